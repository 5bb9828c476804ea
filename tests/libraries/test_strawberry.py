"""Strawberry: its subscriptions are closed, over WebSockets and as streams."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection

from tests.libraries.log import Log
from tests.libraries.matrix import Library
from tests.libraries.sockets import connected, farewell, is_told_to_come_back
from tests.servers.server import Server

LIBRARY = Library("tests.libraries.strawberry_app:app", needs=("strawberry",))
TIMEOUT = 20.0  # seconds of a drain
PROTOCOL = "graphql-transport-ws"
EVENTS = "text/event-stream"
PARTS = "multipart/mixed;subscriptionSpec=1.0"
SOON = 2.0  # seconds; the default grace of a stream is 0.5


@pytest.mark.parametrize("path", ["/graphql", "/graphql/parts"])
@pytest.mark.parametrize("pause", [60.0, 0.002], ids=["quiet", "busy"])
def test_a_subscription_is_closed_with_a_hint_and_its_generator_ends(
    server: Server, log: Log, path: str, pause: float
) -> None:
    with connected(server, path, 10, PROTOCOL) as websockets:
        for websocket in websockets:
            subscribe(websocket, pause)
        nonce = server.begin(TIMEOUT)
        assert all(is_told_to_come_back(server, farewell(ws)) for ws in websockets)
    assert server.outcome(nonce)["status"] == "drained"
    assert log.count("subscription closed") == 10
    assert log.faults() == []


@pytest.mark.parametrize("pause", [60.0, 0.002], ids=["quiet", "busy"])
@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/graphql", EVENTS), ("/graphql/parts", PARTS)],
    ids=["events", "parts"],
)
def test_a_subscription_over_http_is_ended_complete(
    server: Server, log: Log, path: str, media_type: str, pause: float
) -> None:
    url = f"http://127.0.0.1:{server.port}{path}"
    with (
        httpx.Client(trust_env=False, headers={"accept": media_type}) as client,
        client.stream("POST", url, json=numbers(pause)) as response,
    ):
        text = response.iter_text()
        while '"numbers":' not in next(text):
            pass
        nonce = server.begin(TIMEOUT)
        began = time.monotonic()
        for _ in text:  # fails where the chunked body is not complete
            pass
        assert time.monotonic() - began < SOON
    assert server.outcome(nonce)["status"] == "drained"
    server.until(lambda: log.count("subscription closed") == 1)
    assert log.faults() == []


def numbers(pause: float) -> dict[str, str]:
    return {"query": f"subscription {{ numbers(pause: {pause}) }}"}


def subscribe(websocket: ClientConnection, pause: float) -> None:
    """Begin one as the protocol says, and wait for its first number."""
    tell(websocket, "connection_init")
    assert told(websocket)["type"] == "connection_ack"
    tell(websocket, "subscribe", id="1", payload=numbers(pause))
    first = told(websocket)
    assert (first["type"], first["payload"]["data"]) == ("next", {"numbers": 0})


def tell(websocket: ClientConnection, kind: str, **members: Any) -> None:
    websocket.send(json.dumps({"type": kind, **members}))


def told(websocket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(websocket.recv())
    return message
