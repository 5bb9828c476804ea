"""A source whose engine blocks, asked in threads of its own.

Not in the executor of the event loop: an app may have filled that with the very
calls that a drain waits for. There are three threads at most, for holding, counting
and settling, each there only while it is needed; an engine that never answers
keeps one of them and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.sources.base import (
    BlockingSource,
    Counts,
    Explains,
    Halts,
    Intake,
    Running,
)
from drainmw.text import kind_of

T = TypeVar("T")


class ThreadedSource:
    """A work source around a blocking one."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        engine: BlockingSource,
        *,
        count_blocks: bool = True,
    ) -> None:
        """`count_blocks=False` is for a count that is there at once.

        Raises:
            Misuse: The engine's adapter lacks a part.
        """
        if isinstance(engine, type) or not isinstance(engine, BlockingSource):
            raise Misuse(
                f"{kind_of(engine)} is no blocking source: it needs hold, count, "
                "settle and release"
            )
        self.name = name
        self.intake: Intake = intake
        self.engine = engine
        self._count_blocks = count_blocks
        self._holding = Lane(f"drainmw {name} hold")
        self._counting = Lane(f"drainmw {name} count")
        self._settling = Lane(f"drainmw {name} settle")
        self._releases = 0

    def halt(self) -> None:
        """Begin to hold, where the engine's adapter has a `halt`; it may not block."""
        if isinstance(self.engine, Halts):
            self.engine.halt()

    async def hold(self) -> None:
        """Hold, after what was asked for before; cancelled, it goes on."""
        await self._holding.call(self.engine.hold)

    def count(self) -> Counts | Awaitable[Counts]:
        """What the engine says."""
        if not self._count_blocks:
            return self.engine.count()
        return self._counting.call(self.engine.count)

    async def settled(self) -> None:
        """Return when the engine has settled.

        Raises:
            SourceUnavailable: It has been released meanwhile.
        """
        releases = self._releases
        await self._settling.call(self.engine.settle)
        if self._releases != releases:
            raise SourceUnavailable(f"{self.name} was released before it had settled")

    async def release(self) -> None:
        """Release, once a hold that is under way has returned."""
        self._releases += 1
        await self._holding.call(self.engine.release)

    def running(self) -> Iterable[Running]:
        """What the engine says, which may not block for that."""
        return self.engine.running() if isinstance(self.engine, Explains) else ()

    @property
    def overdue(self) -> int | None:
        """Due fires that are withheld; `None` where the engine does not say."""
        return getattr(self.engine, "overdue", None)

    @property
    def handed_back(self) -> int | None:
        """Leases that went back unstarted; `None` where it does not say."""
        return getattr(self.engine, "handed_back", None)


class Lane:
    """Calls in a thread, in the order in which they were asked for.

    The thread is there while there are calls. It is a daemon: what it waits for
    keeps no process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Any]] = deque()
        self._is_running = False

    async def call(self, function: Callable[[], T]) -> T:
        """What it returns or raises. Cancelled, it is not called if it still waits.

        Raises:
            SourceUnavailable: There is no thread to be had.
        """
        call: _Call[T] = _Call(function)
        with self._lock:
            self._waiting.append(call)
            if not self._is_running:
                self._start()
        try:
            return await call.future
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(call)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            self._waiting.clear()
            raise SourceUnavailable(f"{self._name}: {exc}") from None
        self._is_running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                call = self._waiting.popleft()
            call.run()


class _Call(Generic[T]):
    """One call, and the future of the loop that asked for it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        try:
            result = self._function()
        except BaseException as exc:
            # No future takes a StopIteration, and a SystemExit ends an event loop.
            is_plain = isinstance(exc, Exception) and type(exc) is not StopIteration
            self._tell(self._fail, exc if is_plain else SourceError(type(exc).__name__))
        else:
            self._tell(self._succeed, result)

    def _tell(self, how: Callable[[Any], None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # that loop has been closed
            self._loop.call_soon_threadsafe(how, what)

    def _succeed(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, exc: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(exc)
