"""WebSocket clients, and what they are told at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.libraries.matrix import DAPHNE
from tests.servers.server import Server

PATIENCE = 10.0  # seconds


@contextmanager
def connected(
    server: Server, path: str, number: int = 1, *protocols: str
) -> Iterator[list[ClientConnection]]:
    """That many open WebSockets, which read all the time."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                connect(
                    f"ws://127.0.0.1:{server.port}{path}",
                    subprotocols=[Subprotocol(name) for name in protocols] or None,
                    max_queue=None,
                    proxy=None,
                )
            )
            for _ in range(number)
        ]


def farewell(websocket: ClientConnection) -> Close:
    """The close frame that came, whatever came before it."""
    with pytest.raises(ConnectionClosed) as end:
        while True:
            websocket.recv(timeout=PATIENCE)
    assert end.value.rcvd is not None, end.value
    return end.value.rcvd


def is_told_to_come_back(server: Server, close: Close) -> bool:
    """Whether it is ours, with a hint when to come back.

    daphne lets neither a 1012 nor a reason through.
    """
    if server.kind is DAPHNE:
        return (close.code, close.reason) == (4012, "")
    hint = json.loads(close.reason)
    assert list(hint) == ["retry_ms"]
    return close.code == 1012 and hint["retry_ms"] >= 0
