"""Small helpers for tests of apps and sources that drainmw looks after.

A clock that stands still, one ASGI call driven message by message, and a
source of work that does what the test says. Nothing else in the package
imports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Scope

from drainmw.flag import Flag
from drainmw.sources.base import Counts, Intake

Step = Literal["hold", "count", "settled", "release"]
"""The four things that a drain asks of a source."""


class ManualClock:
    """Monotonic seconds that pass only when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self.now += seconds


class AsgiDriver:
    """One call of an ASGI app, driven by hand, message by message.

    Use it as an asynchronous context manager, or call `start` and, at the end,
    `cancel`. All of it belongs to one event loop.
    """

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self.scope = scope
        self._app = app
        self._input: asyncio.Queue[Message] = asyncio.Queue()
        self._output: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsgiDriver:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cancel()

    @property
    def is_done(self) -> bool:
        """The call has returned or raised."""
        return self._started.done()

    async def start(self) -> None:
        """Call the app; returns when it has got to its first wait."""
        call = self._app(self.scope, self._input.get, self._output.put)
        self._task = asyncio.ensure_future(_awaited(call))
        await asyncio.sleep(0)

    async def send_input(self, message: Message) -> None:
        """Put a message where the app's `receive` finds it."""
        await self._input.put(message)
        await asyncio.sleep(0)

    async def receive_output(self, within: float = 1.0) -> Message:
        """The next message that the app sends.

        Raises:
            TimeoutError: It sent none within that many seconds.
            EOFError: It has returned, and everything it sent was read.
            Exception: What the app raised.
        """
        if not self._output.empty():
            return self._output.get_nowait()
        sent = asyncio.ensure_future(self._output.get())
        try:
            async with asyncio.timeout(within):
                await asyncio.wait(
                    (sent, self._started), return_when=asyncio.FIRST_COMPLETED
                )
            if sent.done():
                return sent.result()
        finally:
            sent.cancel()
        self._started.result()
        raise EOFError("the app has returned and sends no more")

    async def receive_nothing(self, within: float = 0.01) -> bool:
        """Whether the app sends nothing for that many seconds."""
        await asyncio.sleep(within)
        return self._output.empty()

    async def wait(self, within: float = 1.0) -> None:
        """Wait until the app returns; what it sent can still be read.

        Raises:
            TimeoutError: It runs on; it is not cancelled.
            Exception: What the app raised.
        """
        async with asyncio.timeout(within):
            await asyncio.shield(self._started)

    async def cancel(self) -> None:
        """Cancel the call, as a server does whose client went away. Idempotent."""
        task = self._started
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()

    @property
    def _started(self) -> asyncio.Task[None]:
        if self._task is None:
            raise RuntimeError("start the call first")
        return self._task


class ManualSource:
    """A source of work whose every answer the test decides.

    At first nothing is in flight and each step returns at once. `calls` lists
    the steps that were asked for, in order.
    """

    def __init__(
        self,
        name: str = "manual",
        intake: Intake = "pull",
        *,
        blocked: Iterable[Step] = (),
    ) -> None:
        self.name = name
        self.intake: Intake = intake
        self.is_held = False
        self.calls: list[Step] = []
        self._counts: Any = Counts()
        self._blocked: set[Step] = set(blocked)
        self._errors: dict[Step, Exception] = {}
        self._changed = Flag()

    # What the test decides

    def set_counts(self, jobs: Any = 0, schedules: Any = 0) -> None:
        """What `count` answers from now on; it may be something wrong."""
        self._counts = (jobs, schedules)

    def block(self, step: Step) -> None:
        """Let that step hang from now on."""
        self._blocked.add(step)

    def unblock(self, step: Step) -> None:
        """Let that step return, also where it hangs already."""
        self._blocked.discard(step)
        self._stir()

    def settle(self) -> None:
        """Let `settled` return."""
        self.unblock("settled")

    def fail(self, step: Step, error: Exception) -> None:
        """Let that step raise, also where it hangs already."""
        self._errors[step] = error
        self._stir()

    def mend(self, step: Step) -> None:
        """Take a `fail` back."""
        self._errors.pop(step, None)

    # What the drain asks

    async def hold(self) -> None:
        """Hold as soon as it is neither blocked nor failing."""
        await self._passes("hold")
        self.is_held = True

    def count(self) -> Counts | Awaitable[Counts]:
        """What was set, or an answer that hangs."""
        if "count" in self._blocked:
            return self._counted()
        self.calls.append("count")
        if "count" in self._errors:
            raise self._errors["count"]
        counts: Counts = self._counts
        return counts

    async def settled(self) -> None:
        """Return as soon as it is neither blocked nor failing."""
        await self._passes("settled")

    async def release(self) -> None:
        """Release as soon as it is neither blocked nor failing."""
        await self._passes("release")
        self.is_held = False

    async def _counted(self) -> Counts:
        await self._passes("count")
        counts: Counts = self._counts
        return counts

    async def _passes(self, step: Step) -> None:
        self.calls.append(step)
        while step in self._blocked or step in self._errors:
            if step in self._errors:
                raise self._errors[step]
            await self._changed

    def _stir(self) -> None:
        """Wake those who wait now; a new flag is for those who come later."""
        changed, self._changed = self._changed, Flag()
        changed.set()


def http_scope(
    path: str = "/",
    method: str = "GET",
    headers: Iterable[tuple[bytes, bytes]] = (),
    **more: Any,
) -> Scope:
    """The scope of an HTTP/1.1 request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        **more,
    }


def websocket_scope(
    path: str = "/", headers: Iterable[tuple[bytes, bytes]] = (), **more: Any
) -> Scope:
    """The scope of a WebSocket, of a server that has the denial response."""
    return {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
        **more,
    }


async def _awaited(call: Awaitable[None]) -> None:
    await call
