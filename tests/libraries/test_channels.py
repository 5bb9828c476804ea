"""Django Channels: its consumers hear of the end, whatever they are busy with."""

from __future__ import annotations

import json

import pytest

from tests.libraries.log import Log
from tests.libraries.matrix import DAPHNE, HYPERCORN, UVICORN, Library
from tests.libraries.sockets import connected, farewell, is_told_to_come_back
from tests.servers.server import Server

LIBRARY = Library(
    "tests.libraries.channels_app:app",
    needs=("channels",),
    servers=(UVICORN, HYPERCORN, DAPHNE),
)
TIMEOUT = 20.0  # seconds of a drain


@pytest.mark.parametrize("consumer", ["chat", "plain"])
def test_members_of_a_room_are_closed_and_each_consumer_disconnects(
    server: Server, log: Log, consumer: str
) -> None:
    with connected(server, f"/{consumer}/room", 3) as websockets:
        websockets[0].send(json.dumps({"text": "hello"}))
        for websocket in websockets:
            assert json.loads(websocket.recv()) == {"text": "hello"}
        nonce = server.begin(TIMEOUT)
        assert all(is_told_to_come_back(server, farewell(ws)) for ws in websockets)
    assert server.outcome(nonce)["status"] == "drained"
    assert log.count("left the chat with 1012") == 3
    assert log.faults() == []


def test_members_of_a_busy_room_are_closed_and_each_consumer_disconnects(
    server: Server, log: Log
) -> None:
    with connected(server, "/busy/room", 10) as websockets:
        for websocket in websockets:
            assert json.loads(websocket.recv())["text"].isdecimal()
        nonce = server.begin(TIMEOUT)
        assert all(is_told_to_come_back(server, farewell(ws)) for ws in websockets)
    assert server.outcome(nonce)["status"] == "drained"
    assert log.count("left the chat with 1012") == 10
    assert log.faults() == []
