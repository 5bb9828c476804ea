"""One WebSocket: what its app is given, and how it is closed from outside.

While the release serves, a message costs one look at a number on its way in or
out. What the app waits for is remembered, so that closing can interrupt it:
the server's own disconnect comes late on some servers, and never on others
whose client is silent.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine
from types import CellType, FunctionType
from typing import Any

from starlette.types import Message, Receive, Send
from starlette.websockets import WebSocketDisconnect

from drainmw.core.ledger import Ticket
from drainmw.errors import ConnectionClosed
from drainmw.flag import running_loop, start_task
from drainmw.interrupt import (
    can_be_seen,
    interrupt,
    interrupt_calls,
    is_waiting,
    returns_coroutine,
)
from drainmw.log import logger
from drainmw.text import failure_text

OPEN = 0
"""Messages pass."""
OPENING = 1
"""Not accepted yet."""
LEAVING = 2
"""It will be closed when the app comes back to `receive`."""
CLOSING = 3
"""The close has been sent, or is about to be."""
OVER = 4
"""The app has closed it, or has returned."""

FALLBACK_CODE = 4012  # where a server refuses 1012; of the range for private use
HEARD_WITHIN = 0.5  # seconds in which an app hears of a close in each of its tasks
QUIET = 0.1  # seconds without a send, after which an app that reads is idle
HANDED_OVER = 0.05  # seconds in which a server takes a close frame, if it can
GATHERED = 0.05  # seconds in which sends that are stuck are gathered to be looked for
PAUSE = 0.01  # seconds before an app is told again


class Socket(Ticket):
    """The ticket of one WebSocket. All of it belongs to one event loop."""

    __slots__ = (
        "_closed_at",
        "_closer",
        "_code",
        "_gives_up_at",
        "_has_returned",
        "_interrupted",
        "_is_late",
        "_reason",
        "_receive",
        "_receive_for_app",
        "_send_for_app",
        "_sending",
        "_sent_at",
        "_sent_by",
        "_told",
        "closing",
        "loop",
        "state",
    )

    def __init__(self) -> None:
        super().__init__()
        self.state = OPENING
        self.closing: asyncio.Task[bool] | None = None
        """Sends the close; the app's call is not over before it is."""
        self.loop = running_loop()
        self._receive: Any = None
        self._receive_for_app: Any = None
        self._send_for_app: Any = None
        self._sending: Any = None
        """The latest send, where it could not be looked for."""
        self._closer: Callable[[Socket], None] | None = None
        self._is_late = False
        self._told: asyncio.Task[Any] | None = None
        self._closed_at = 0.0
        self._sent_at = float("-inf")
        self._sent_by: asyncio.Task[Any] | None = None
        self._interrupted = False
        self._has_returned = False
        self._gives_up_at = 0.0
        self._code = 1012
        self._reason = ""

    def open(
        self, receive: Receive, send: Send
    ) -> tuple[Receive, Callable[[Message], Awaitable[None]]]:
        """Take the server's two ends; gives those for the app.

        These are closures, in which a message costs least. What they call is in
        cells of theirs, which are changed when something is no longer as usual.
        """
        self._receive = receive
        self.send = send if can_be_seen(send) else self._noted(send)
        send_now: Send = self._send_late  # until it is accepted
        waiting: Awaitable[Message] | None = None

        async def receive_for_app() -> Message:
            nonlocal waiting
            waiting = call = receive()
            try:
                return await call
            except CancelledError:
                if self._was_interrupted():
                    return self._disconnect()
                raise

        @returns_coroutine
        def send_for_app(message: Message) -> Awaitable[None]:
            return send_now(message)

        self._receive_for_app = receive_for_app
        self._send_for_app = send_for_app
        return receive_for_app, send_for_app

    def _noted(self, send: Send) -> Callable[[Message], Awaitable[None]]:
        def send_noted(message: Message) -> Awaitable[None]:
            sending = send(message)
            if self.state < CLOSING:  # one of the app, and not our close
                self._sending = sending
            return sending

        return send_noted

    def _turn(self, state: int) -> None:
        """Take a new state, and let the app's ends call what belongs to it."""
        self.state = state
        is_leaving = state in (LEAVING, CLOSING)
        _cell(self._receive_for_app, "receive").cell_contents = (
            self._receive_late if is_leaving else self._receive
        )
        _cell(self._send_for_app, "send_now").cell_contents = (
            self._send_late if is_leaving else self.send
        )

    async def _receive_late(self) -> Message:
        """For an app that comes back while it is to leave, or has been closed."""
        if self.state == LEAVING and not self._another_task_sends():
            self.close()
        if self.state != CLOSING:
            receive: Receive = self._receive
            return await receive()
        if self._told:  # an app that does not listen must not keep the loop
            await asyncio.sleep(PAUSE)
        return self._disconnect()

    async def _send_late(self, message: Message) -> None:
        kind = message["type"]
        if self.state == CLOSING:
            await asyncio.sleep(0)  # likewise
            if kind == "websocket.close" or self._may_not_know():
                return
            raise ConnectionClosed
        if kind == "websocket.accept" and self.state == OPENING:
            self._turn(OPEN if self._closer is None else LEAVING)
        elif kind == "websocket.send":
            self._note_send()
        else:
            self._turn(OVER)
        await self.send(message)
        if self._is_late:
            self.close()

    async def _send_watched(self, message: Message) -> None:
        self._note_send()
        if message["type"] == "websocket.close":
            self._turn(OVER)
        await self.send(message)

    def _note_send(self) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        self._sent_by = asyncio.current_task()

    def _another_task_sends(self) -> bool:
        """Whether the app answers in a task beside the one that reads."""
        return not self.is_quiet and self._sent_by is not asyncio.current_task()

    def _may_not_know(self) -> bool:
        """Whether a task sends that has not had the time to hear of the close.

        An error would end it before whoever reads the disconnect can do so in
        order. What is sent now reaches nobody, on no server.
        """
        if asyncio.current_task() is self._told:
            return False
        now = asyncio.get_running_loop().time()
        # Just before the deadline there is less time for an error to be heard.
        half_way = (self._closed_at + self._gives_up_at) / 2
        return now < min(self._closed_at + HEARD_WITHIN, half_way)

    def _disconnect(self) -> Message:
        self._told = asyncio.current_task()
        return {
            "type": "websocket.disconnect",
            "code": self._code,
            "reason": self._reason,
        }

    def _was_interrupted(self) -> bool:
        """By us, and by nobody else who wants the whole task to end."""
        task = asyncio.current_task()
        return self._interrupted and not (task and task.cancelling())

    # How it is closed

    @property
    def is_idle(self) -> bool:
        """The app waits for the next message of the client."""
        waiting = _cell(self._receive_for_app, "waiting")
        return is_waiting(waiting.cell_contents)

    @property
    def is_quiet(self) -> bool:
        """The app has sent nothing for a while, as far as it was watched."""
        return asyncio.get_running_loop().time() - self._sent_at >= QUIET

    def watch(self) -> None:
        """Notice from here on when the app sends."""
        if self.state == OPEN:
            _cell(self._send_for_app, "send_now").cell_contents = self._send_watched

    def leave(self, closer: Callable[[Socket], None]) -> bool:
        """Close it by calling `closer` once, now if it is idle or as soon as it is.

        True where it has to be asked again: the app waits for its client, and sends
        in another task.
        """
        if self.state not in (OPEN, OPENING, LEAVING):
            return False
        self._closer = closer
        if self.state == OPEN:
            self._turn(LEAVING)
        if self.state == LEAVING and self.is_idle:
            if not self.is_quiet:
                return True
            self.close()
        return False

    def close(self) -> None:
        """Close it whatever the app is doing, after a `leave`.

        One that is not accepted yet is closed as soon as it is: it is accepted
        or refused, as the app decides.
        """
        self._is_late = True
        if self.state == LEAVING and self._closer is not None:
            self._turn(CLOSING)
            self._closed_at = asyncio.get_running_loop().time()
            self._closer(self)

    def stay(self) -> None:
        """Take a `leave` back, unless it is closed already."""
        self._closer = None
        self._is_late = False
        if self.state in (OPEN, LEAVING):  # nor is it watched any more
            self._turn(OPEN)

    def send_close(
        self, code: int, reason: str, within: float
    ) -> Coroutine[Any, Any, bool]:
        """Say goodbye on the wire; false if the client did not take it in that time.

        From the call on, this is what the app is told of. Its wait for a message
        ends as soon as the server has the close, answered or not.
        """
        self._code, self._reason = code, reason
        self._gives_up_at = asyncio.get_running_loop().time() + within
        return self._sent_close(within)

    async def _sent_close(self, within: float) -> bool:
        later = asyncio.get_running_loop().call_later
        # Both are needed also where the server does not let go of the close.
        timers = (later(HANDED_OVER, self._wake), later(within, self._let_out))
        try:
            async with asyncio.timeout(within) as limit:
                await self._send_either()
            return not limit.expired()
        except TimeoutError:
            return False
        finally:
            for timer in timers:
                timer.cancel()
            self._wake()

    async def _send_either(self) -> None:
        """With the code that was asked for, or one that every server sends."""
        for number in (self._code, FALLBACK_CODE):
            close = {
                "type": "websocket.close",
                "code": number,
                "reason": self._reason,
            }
            try:
                return await self.send(close)  # type: ignore[no-any-return]  # a slot
            except TimeoutError:
                raise
            except Exception as exc:  # closed already, or a code it does not know
                logger().debug("close refused", code=number, error=failure_text(exc))

    def _wake(self) -> None:
        """End the app's wait for a message of the client."""
        self._interrupted = True
        interrupt(_cell(self._receive_for_app, "waiting").cell_contents)

    def _let_out(self) -> None:
        """End a send of the app that waits for the client, whichever task is in it.

        Nothing is noted of sends where they can be found without, since that would
        cost more than the rest of one. To look for them costs much where there are
        many tasks: so it is done for all who ask in a while, and not for an app
        that has returned.
        """
        if self._has_returned:
            return
        self._interrupted = True
        interrupt(self._sending)
        loop = asyncio.get_running_loop()
        stuck = _stuck.setdefault(loop, [])
        stuck.append(self.send)
        if len(stuck) == 1:  # nobody is about to look
            looking = start_task(_interrupt_stuck(loop), name="drainmw looking")
            _looking.add(looking)
            looking.add_done_callback(_looking.discard)

    # How the app's call ends

    def explains(self, exc: BaseException) -> bool:
        """Whether an app only raises what our close made it raise."""
        if self.state != CLOSING:
            return False
        if isinstance(exc, BaseExceptionGroup):
            return all(self.explains(inner) for inner in exc.exceptions)
        if isinstance(exc, CancelledError):
            return self._was_interrupted()
        return isinstance(exc, WebSocketDisconnect) or _stems_from_us(exc)

    async def end(self) -> None:
        """Wait for our close; then nothing is sent any more.

        A server may hold the close for longer than it was given: uvicorn's
        `websockets` goes on waiting for the client when it is cancelled, until
        the app's call has returned.
        """
        self._has_returned = True
        if self.closing is not None:
            left = self._gives_up_at - asyncio.get_running_loop().time()
            await asyncio.wait((self.closing,), timeout=max(0.0, left) + HANDED_OVER)
        self._turn(OVER)


_stuck: dict[asyncio.AbstractEventLoop, list[Any]] = {}
"""Sends of servers, of which calls are about to be interrupted, by their loop."""
_looking: set[asyncio.Task[None]] = set()


async def _interrupt_stuck(loop: asyncio.AbstractEventLoop) -> None:
    try:
        await asyncio.sleep(GATHERED)
    finally:
        stuck = _stuck.pop(loop)
    await interrupt_calls(stuck)


def _cell(function: FunctionType, name: str) -> CellType:
    cells = function.__closure__ or ()
    return cells[function.__code__.co_freevars.index(name)]


def _stems_from_us(exc: BaseException | None) -> bool:
    while exc is not None:
        if isinstance(exc, ConnectionClosed):
            return True
        exc = exc.__cause__ or exc.__context__
    return False
