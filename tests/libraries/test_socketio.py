"""python-socketio: its clients are told over either transport, and come back."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import aiohttp
import pytest
import socketio
from anyio.to_thread import run_sync
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close
from websockets.sync.client import ClientConnection

from tests.libraries.log import Log
from tests.libraries.matrix import Library
from tests.libraries.sockets import connected, is_told_to_come_back
from tests.servers.server import Server

LIBRARY = Library(
    "tests.libraries.socketio_app:app", needs=("socketio", "aiohttp", "anyio")
)
ENGINE = "/socket.io/?EIO=4&transport="
# The packets of Engine.IO, and with 4 those of Socket.IO in them.
PING, CONNECT, CONNECTED, EVENT = "2", "40", "40", "42"
TIMEOUT = 20.0  # seconds of a drain
PATIENCE = 10.0  # seconds


@asynccontextmanager
async def customer(
    server: Server, transports: list[str]
) -> AsyncIterator[socketio.AsyncClient]:
    """A connected client, which comes back by itself whenever it is cut off."""
    url = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as session:
        client = socketio.AsyncClient(
            http_session=session, reconnection_delay=0.05, reconnection_delay_max=0.1
        )
        await client.connect(url, transports=transports)
        try:
            yield client
        finally:
            await client.shutdown()
    gc.collect()  # it reads no refusal to its end, and drops the answer


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
@pytest.mark.parametrize(
    "transports", [["websocket"], ["polling", "websocket"], ["polling"]], ids="+".join
)
async def test_its_own_client_leaves_is_refused_and_comes_back(
    server: Server, log: Log, transports: list[str]
) -> None:
    gone, back = asyncio.Event(), asyncio.Event()
    async with customer(server, transports) as client, asyncio.timeout(PATIENCE):
        client.on("disconnect", lambda reason: gone.set())
        client.on("connect", back.set)
        assert await client.call("add", [1, 2]) == 3
        assert client.transport() == transports[-1]
        nonce = await run_sync(server.begin, TIMEOUT)
        await gone.wait()
        outcome = await run_sync(server.outcome, nonce)
        assert outcome["status"] == "drained"
        refused = server.report()["refusedTotal"]
        await run_sync(server.until, lambda: server.report()["refusedTotal"] > refused)
        await run_sync(server.until, lambda: log.count(" disconnected") == 1)
        assert log.count(" connected") == 1
        back.clear()
        await run_sync(server.resume, nonce)
        await back.wait()
        assert await client.call("add", [3, 4]) == 7
    assert log.faults() == []


def test_busy_websockets_are_closed_with_a_hint_and_the_app_is_told(
    server: Server, log: Log
) -> None:
    with connected(server, f"{ENGINE}websocket", 10) as websockets:
        for websocket in websockets:
            join(websocket)
        nonce = server.begin(TIMEOUT)
        with ThreadPoolExecutor(10) as pool:
            closes = list(pool.map(answering_pings, websockets))
        assert all(is_told_to_come_back(server, close) for close in closes)
    assert server.outcome(nonce)["status"] == "drained"
    assert log.count(" disconnected") == 10
    assert log.faults() == []


def answering_pings(websocket: ClientConnection) -> Close:
    """The close frame, of a client that the server does not take for gone."""
    with pytest.raises(ConnectionClosed) as end:
        while True:
            if websocket.recv(timeout=PATIENCE) == PING:
                websocket.send("3")
    assert end.value.rcvd is not None
    return end.value.rcvd


def join(websocket: ClientConnection) -> None:
    """Connect as Socket.IO does, and be among those who are told of prices."""
    assert str(websocket.recv()).startswith("0{")
    websocket.send(CONNECT)
    assert str(websocket.recv()).startswith(CONNECTED)
    websocket.send(EVENT + json.dumps(["prices"]))
    assert json.loads(str(websocket.recv()).removeprefix(EVENT))[0] == "price"


def test_a_poll_in_flight_is_answered_and_the_next_one_refused(
    server: Server, log: Log
) -> None:
    opened = server.get(f"{ENGINE}polling").body
    session = f"{ENGINE}polling&sid={json.loads(opened[1:])['sid']}"
    assert server.ask("POST", session, CONNECT.encode()).body == b"OK"
    assert server.get(session).body.decode().startswith(CONNECTED)
    poll = server.start(session)
    nonce = server.begin(TIMEOUT)
    assert server.ask("POST", session, f'{EVENT}["add",[1,2]]'.encode()).is_refusal
    assert server.status(nonce)["status"] == "draining"
    answer = poll.result()
    assert (answer.status, answer.body.decode(), answer.closes) == (200, PING, True)
    assert server.outcome(nonce)["status"] == "drained"
    assert server.get(session).is_refusal
    server.until(lambda: log.count(" disconnected") == 1)
    assert log.faults() == []
