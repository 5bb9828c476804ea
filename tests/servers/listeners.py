"""Clients that listen until a drain ends what they listen to, and note how."""

from __future__ import annotations

import asyncio
import socket
import time
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.uri import parse_uri

from tests.servers.server import Server
from tests.servers.wire import PATIENCE

AT_ONCE = 20  # connections that are made side by side: some servers queue few


# WebSockets


@dataclass(slots=True)
class Ending:
    """What one WebSocket was told, and how it ended."""

    code: int | None
    """Of the close frame; 1006 where there was none."""
    reason: str
    at: float
    """Monotonic seconds at which the close frame was there."""
    texts: list[str] = field(default_factory=list)


class _Timed(ClientConnection):
    """Knows when the close frame came: some servers end TCP much later."""

    closed_at: float | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.closed_at is None and self.protocol.close_rcvd is not None:
            self.closed_at = time.monotonic()


class Listener:
    """One open WebSocket that reads whatever comes, and answers a close."""

    def __init__(self, connection: _Timed) -> None:
        self._connection = connection
        self._texts: list[str] = []
        self._listening = asyncio.create_task(self._listen())

    async def say(self, text: str) -> None:
        await self._connection.send(text)

    async def ending(self) -> Ending:
        """Wait for its end, with patience; one that stays open has no code."""
        await _ended(self._listening)
        found = self._connection
        at = found.closed_at or time.monotonic()
        return Ending(found.close_code, found.close_reason or "", at, self._texts)

    async def _listen(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                self._texts.append(str(await self._connection.recv()))


async def listen(server: Server, path: str) -> Listener:
    """Open a WebSocket.

    Raises:
        InvalidHandshake: It was refused.
    """
    made = connect(
        f"ws://127.0.0.1:{server.port}{path}",
        proxy=None,
        compression=None,
        create_connection=_Timed,
        close_timeout=PATIENCE,
    )
    connection = await made
    assert isinstance(connection, _Timed)
    return Listener(connection)


async def listen_many(server: Server, path: str, number: int) -> list[Listener]:
    """Open that many."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one() -> Listener:
        async with room:
            return await listen(server, path)

    return await asyncio.gather(*(one() for _ in range(number)))


async def try_to_listen(server: Server, path: str) -> Ending | InvalidHandshake:
    """Open a WebSocket and wait for its end; or how it was refused."""
    try:
        listener = await listen(server, path)
    except InvalidHandshake as refused:
        return refused
    return await listener.ending()


class Mute:
    """A WebSocket on a socket of one's own, which never answers a close.

    Nothing is read before it is asked for, and little fits into its buffer.
    """

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(("127.0.0.1", port))
        self._protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}{path}"))
        self._protocol.send_request(self._protocol.connect())
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._socket.recv(1)
        self._protocol.receive_data(head)
        assert self._protocol.handshake_exc is None, self._protocol.handshake_exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def ending(self) -> Ending:
        """Read up to the close frame."""
        while self._protocol.close_rcvd is None:
            data = self._socket.recv(65536)
            assert data, "the connection ended without a close frame"
            self._protocol.receive_data(data)
        close = self._protocol.close_rcvd
        return Ending(close.code, close.reason, time.monotonic())

    def vanish(self) -> None:
        """Leave without a word."""
        self._socket.close()


# Streams


@dataclass(slots=True)
class Streamed:
    """One response, as far as it came."""

    at: float = 0.0
    """Monotonic seconds at its last byte."""
    body: bytes = b""
    error: str | None = "it goes on"
    """Why it is not complete; `None` where it is."""

    @property
    def events(self) -> list[str]:
        """What the whole events in it say."""
        whole = self.body.decode().split("\n\n")[:-1]
        return [event.removeprefix("data: ") for event in whole]


class Stream:
    """A GET whose response is read as it comes, as an EventSource does."""

    def __init__(self, server: Server, path: str) -> None:
        self._url = f"http://127.0.0.1:{server.port}{path}"
        self._found = Streamed()
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def first_event(self) -> None:
        """Return once something has come."""
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()

    async def ended(self) -> Streamed:
        """Wait for its end, with patience."""
        await _ended(self._reading)
        return self._found

    async def _read(self) -> None:
        found = self._found
        headers = {"accept": "text/event-stream"}
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client,
                client.stream("GET", self._url, headers=headers) as response,
            ):
                async for data in response.aiter_bytes():
                    found.body += data
                    self._news.set()
            found.error = None
        except httpx.HTTPError as exc:
            found.error = repr(exc)
        found.at = time.monotonic()


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for it, with patience, and no longer."""
    await asyncio.wait((task,), timeout=PATIENCE)
    task.cancel()
    with suppress(CancelledError):
        await task


# The drain


@dataclass(slots=True)
class Seen:
    """One drain as its operator sees it, from before the begin to its outcome."""

    began: float
    """Monotonic seconds, just before the begin was sent."""
    reports: list[tuple[float, dict[str, Any]]]
    """Each with the moment at which it was there."""
    outcome: dict[str, Any]
    ended: float
    """Monotonic seconds at which the outcome was seen."""

    def counted(self, kind: str, path: str) -> list[float]:
        """Seconds after the begin at which the report named that path."""
        return [
            at - self.began
            for at, report in self.reports
            if path in {b["path"] for b in report["blockers"] if b["kind"] == kind}
        ]

    @property
    def took(self) -> float:
        """Seconds from the begin to the outcome."""
        return self.ended - self.began


def drained(
    server: Server, timeout: float, meanwhile: Callable[[], None] = lambda: None
) -> Seen:
    """Begin, look until the drain has ended, and serve again."""
    began = time.monotonic()
    nonce = server.begin(timeout)
    meanwhile()
    reports = []
    while server.status(nonce)["status"] == "draining":
        report = server.report()
        reports.append((time.monotonic(), report))
        time.sleep(0.02)
    seen = Seen(began, reports, server.status(nonce), time.monotonic())
    server.resume(nonce)
    return seen
