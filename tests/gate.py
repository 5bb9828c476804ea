"""A gate in an app under test, which its test opens.

Work that waits there is in flight for as long as a test needs it to be, and not for
a time that somebody guessed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

PATIENCE = 10.0  # seconds for whatever a test waits for


class Gate:
    """The test's side of it: it opens at the latest when the test is over."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self._waiting: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()

    @property
    def port(self) -> int:
        """The name of it that an app is told."""
        port: int = self._listener.getsockname()[1]
        return port

    def until_reached(self) -> None:
        """Return once somebody waits there."""
        self._waiting.append(self._listener.accept()[0])

    def open(self) -> None:
        """Let all go on, now and later. Idempotent."""
        self._listener.close()
        for waiting in self._waiting:
            waiting.close()


async def wait_at(port: int) -> None:
    """The app's side: go on once that gate is open, or gone."""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await reader.read()
        finally:
            writer.close()


def block_at(port: int) -> None:
    """The same, in a thread, or to the harm of an event loop."""
    with suppress(ConnectionError):
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.recv(1)
