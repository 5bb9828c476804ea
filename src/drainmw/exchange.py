"""One HTTP request: what its app is given, and how its response is ended.

While the release serves, the first and the latest message of a response are
remembered, and no more: what a response is, and whether it is complete, is
only asked in a drain. To end one, the app's task is cancelled, and when its
call has returned the response is completed by us: a server that is told
nothing would cut the connection, and a browser would see an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import dropwhile, islice
from types import CodeType
from typing import Any, Protocol, TypeVar

from starlette.types import Message, Send

from drainmw.answers import last_answer
from drainmw.core.ledger import GateByte, Ticket
from drainmw.interrupt import frames, held_tasks, reaches, returns_coroutine
from drainmw.log import logger
from drainmw.text import failure_text, shown_path

EVENT_STREAM = b"text/event-stream"
BECAUSE = "the release is draining"
INSIST = 0.25  # seconds in which a call ends whose sending task was cancelled
FINAL: Message = {"type": "http.response.body", "body": b"", "more_body": False}
NO_TRAILERS: Message = {"type": "http.response.trailers", "headers": []}


class Exchange(Ticket):
    """The ticket of one HTTP request.

    Its `sender` is what the app gets as `send`. The one who ends a response
    holds the `sender` from before on, so that the ticket is not recycled; from
    then on the ticket holds it itself, as whoever ends it may be gone before the
    app is.
    """

    __slots__ = (
        "_cancels",
        "_has_returned",
        "_heard",
        "_insisting",
        "_pinned",
        "_senders",
        "_within",
        "is_ended",
        "last",
        "start",
    )

    def __init__(self) -> None:
        super().__init__()
        self.start: Message | None = None
        """The first message of the app: nearly always the start of the response."""
        self.last: Message | None = None
        """The latest one after it."""
        self.is_ended = False
        self._within = 0.0
        self._cancels = 0
        self._senders: list[asyncio.Task[Any]] = []
        self._insisting: asyncio.TimerHandle | None = None
        self._pinned: Any = None
        self._heard: Message | None = None
        self._has_returned = False

    # What the response is

    @property
    def can_end(self) -> bool:
        """It has started, is not complete, and its end is no broken promise."""
        if self.start is None or self.start["type"] != "http.response.start":
            return False
        return not self.is_complete and self._header(b"content-length") is None

    @property
    def is_complete(self) -> bool:
        """The last message of the response has been sent."""
        return self.last is not None and not self.last.get("more_body", False)

    @property
    def is_event_stream(self) -> bool:
        """A stream of server-sent events."""
        media_type, _, _ = (self._header(b"content-type") or b"").partition(b";")
        return media_type.strip().lower() == EVENT_STREAM

    def _header(self, name: bytes) -> bytes | None:
        headers = (self.start or {}).get("headers", ())
        return next((bytes(v) for k, v in headers if bytes(k).lower() == name), None)

    # How it is ended

    def end(self, task: asyncio.Task[Any], within: float) -> None:
        """Cancel the app; what it sends until it returns is still passed on.

        Then the response is completed, in `within` seconds or not at all. Where
        the call waits for a task of its own that sends the response, that one is
        cancelled first: a call that is cancelled while it waits leaves it running.
        """
        self.is_ended = True
        self._heard = self.last
        self._pinned = self.sender
        self._within = within
        self._senders = list(self._sending_for(task))
        for sender in self._senders:
            sender.cancel(BECAUSE)
        if self._senders:
            loop = asyncio.get_running_loop()
            self._insisting = loop.call_later(INSIST, self._cancel, task)
        else:
            self._cancel(task)

    def insist(self, task: asyncio.Task[Any]) -> bool:
        """Cancel again an app that has gone on sending; false once it has returned.

        On Python 3.11 `wait_for` loses a cancel that comes together with its
        result. One that sends nothing is cleaning up, and left alone.
        """
        if self._has_returned:
            return False
        if self.last is not self._heard:
            self._heard = self.last
            running = [sender for sender in self._senders if not sender.done()]
            for sender in running:
                sender.cancel(BECAUSE)
            if not running:
                self._cancel(task)
        return True

    def _sending_for(self, task: asyncio.Task[Any]) -> Iterator[asyncio.Task[Any]]:
        below = dropwhile(lambda f: f.f_code not in _codes, frames(task.get_coro()))
        for frame in islice(below, 1, None):
            for held in held_tasks(frame):
                if not held.done() and reaches(held.get_coro(), self.sender):
                    yield held

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._cancels += 1
        task.cancel(BECAUSE)

    def explains(self, exc: BaseException) -> bool:
        """Whether an app that was ended only raises what that made it raise."""
        if isinstance(exc, GeneratorExit):
            self.is_ended = False
        elif isinstance(exc, Exception):
            logger().error("stream failed at its end", error=failure_text(exc))
        else:
            task = asyncio.current_task()
            self.is_ended = task is not None and task.cancelling() <= self._cancels
            if not self.is_ended:
                self._take_back()
        return self.is_ended

    async def complete(self) -> None:
        """Send what is missing of the response; for the task that was cancelled."""
        self._take_back()
        if self._senders:  # whose work is not over before they are
            await asyncio.wait(self._senders)
        if self.is_complete:
            return
        try:
            async with asyncio.timeout(self._within):
                await self.send(FINAL)
                if (self.start or {}).get("trailers"):
                    await self.send(NO_TRAILERS)
        except TimeoutError:
            logger().warning(
                "connection given up",
                path=shown_path(self.scope["path"]),
                reason="it does not read the end of its stream",
            )
        except Exception as exc:  # the client has gone
            logger().debug("stream not completed", error=failure_text(exc))

    def _take_back(self) -> None:
        """Leave the task as if it had not been cancelled by us, nor ever will be."""
        if self._insisting is not None:
            self._insisting.cancel()
        self._has_returned = True
        task = asyncio.current_task()
        while task is not None and self._cancels:
            task.uncancel()
            self._cancels -= 1


class Factory(Protocol):
    """Makes tickets, and can be given another gate for them to look at."""

    def __call__(self) -> Exchange: ...

    def rebind(self, gate: GateByte, /) -> None: ...

    def call_at_start(self, started: Callable[[Exchange], None], /) -> None: ...


def ticket_factory(gate: GateByte) -> Factory:
    """Tickets whose `sender` closes the connection once the gate is not open.

    The decision falls as late as the response starts, so that a request which
    was in flight when the drain began ends its connection too. `started` is
    called for each response that starts after that.
    """
    started: Callable[[Exchange], None] = _nobody

    class Passing(Exchange):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__()
            self.sender = self._pass_on

        @returns_coroutine
        def _pass_on(self, message: Message) -> Awaitable[None]:
            if gate[0]:
                message = self._late(message)
            elif self.start is None:
                self.start = message
            else:
                self.last = message
            # Not `self.send(message)`: CPython 3.11 has no fast way to a method
            # call on a slot, and two fast ones through a local.
            send: Send = self.send
            return send(message)

        def _late(self, message: Message) -> Message:
            if message["type"] != "http.response.start":
                self.last = message
                return message
            self.start = message = last_answer(message, self.scope)
            started(self)
            return message

        @staticmethod
        def rebind(other: GateByte, /) -> None:
            nonlocal gate
            gate = other

        @staticmethod
        def call_at_start(other: Callable[[Exchange], None], /) -> None:
            nonlocal started
            started = other

    return Passing


def _nobody(exchange: Exchange) -> None:
    """Nobody waits for a response to start."""


C = TypeVar("C", bound=Callable[..., Any])

_codes: set[CodeType] = set()


def runs_exchanges(function: C) -> C:
    """Mark a coroutine function that awaits an app and has its `ticket`."""
    _codes.add(function.__code__)
    return function


def tickets(task: asyncio.Task[Any]) -> Iterator[Any]:
    """Of the apps that run in that task.

    Looked up where a response has to be ended, since to note the task costs
    more than all else that a request costs here.
    """
    for frame in frames(task.get_coro()):
        if frame.f_code in _codes:
            yield frame.f_locals.get("ticket")
