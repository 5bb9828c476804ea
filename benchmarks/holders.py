"""Clients that hold a WebSocket each: thousands of them in one event loop.

No library: a handshake, an answer to each ping, and an answer to the close
frame, which is written down when it comes.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple, cast

AT_ONCE = 64  # handshakes; a listener's queue has an end
PATIENCE = 30.0  # seconds for one
HANDSHAKE = (
    b"GET /feed HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
# RFC 6455, sections 5.2 and 5.5: with FIN set; a control frame has no long form.
CLOSE, PING, PONG = 0x88, 0x89, 0x8A
LONGEST = 125
MASKED = 0x80
MASK = bytes(4)  # which leaves the payload as it is
NO_CODE = 1005
ABNORMAL = 1006  # no close frame before the end


class Close(NamedTuple):
    """How one ended."""

    at: float
    """Monotonic seconds, which all processes of a machine share."""
    code: int
    reason: str


class Held:
    """All of them."""

    def __init__(self, count: int) -> None:
        self.closes: list[Close] = []
        """In the order in which they came."""
        self.are_over = asyncio.Event()
        """Each of them has ended."""
        self._count = count

    def note(self, code: int, reason: str) -> None:
        """One has ended."""
        self.closes.append(Close(monotonic(), code, reason))
        if len(self.closes) == self._count:
            self.are_over.set()


class Holder(asyncio.Protocol):
    """One client."""

    __slots__ = ("_ended", "_held", "_transport", "_unread", "opened")

    def __init__(self, held: Held) -> None:
        self._held = held
        self._unread = b""
        self._ended = False
        self.opened: asyncio.Future[None] | None = asyncio.Future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own
        self._transport.write(HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self.opened is None or self._is_open(self.opened):
            while self._frame():
                pass

    def connection_lost(self, exc: Exception | None) -> None:
        if self.opened is not None:
            if not self.opened.done():
                why = f"it ended in the handshake: {self._unread!r}"
                self.opened.set_exception(ConnectionError(why))
        elif not self._ended:
            self._held.note(ABNORMAL, "")

    def _is_open(self, opened: asyncio.Future[None]) -> bool:
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if not end or not head.startswith(b"HTTP/1.1 101 "):
            return False
        self._unread = rest
        opened.set_result(None)
        self.opened = None
        return True

    def _frame(self) -> bool:
        """Take one, if all of it has come."""
        if len(self._unread) < 2:
            return False
        kind, length = self._unread[0], self._unread[1]
        assert kind in (CLOSE, PING) and length <= LONGEST, self._unread[:2]
        if len(self._unread) < 2 + length:
            return False
        payload, self._unread = self._unread[2 : 2 + length], self._unread[2 + length :]
        answer = CLOSE if kind == CLOSE else PONG
        self._transport.write(bytes((answer, MASKED | length)) + MASK + payload)
        if kind == CLOSE:
            self._ended = True
            code = int.from_bytes(payload[:2]) if payload else NO_CODE
            self._held.note(code, payload[2:].decode())
        return True


async def hold(port: int, count: int) -> Held:
    """Open so many."""
    held = Held(count)
    left = iter(range(count))

    async def open_in_turn() -> None:
        for _ in left:
            await _open(port, held)

    try:
        async with asyncio.TaskGroup() as opening:
            for _ in range(AT_ONCE):
                opening.create_task(open_in_turn())
    except* OSError as failed:
        first = failed.exceptions[0]
    else:
        return held
    raise SystemExit(f"not all WebSockets could be opened: {first!r}")


async def _open(port: int, held: Held) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        made = loop.create_connection(lambda: Holder(held), "127.0.0.1", port)
        _, holder = await made
        if holder.opened is not None:
            await holder.opened
