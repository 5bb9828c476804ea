"""A flag that any event loop and any thread can wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

from drainmw.errors import Misuse, SourceError

T = TypeVar("T")


class Flag:
    """Set once something has happened; `await` it, or wait for it in a thread.

    Unlike `asyncio.Event` it belongs to no loop: each waiter is woken in its
    own. Setting and clearing are safe from any thread.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._event.is_set()

    def __repr__(self) -> str:
        return f"<Flag {'set' if self.is_set() else 'not set'}>"

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Wake everybody who waits. Idempotent."""
        self._event.set()
        for waiter, loop in list(self._waiters.items()):
            self._waiters.pop(waiter, None)
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # that loop has been closed; nobody waits there
                continue

    def clear(self) -> None:
        """Let the next waiters wait again."""
        self._event.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set; false after `timeout` seconds.

        Raises:
            Misuse: An event loop runs in this thread, and would be blocked too.
        """
        if running_loop() is not None:
            raise Misuse("wait() would block the event loop; await the flag itself")
        return self._event.wait(timeout)

    def __await__(self) -> Generator[None, None, None]:
        return self._waited().__await__()

    async def _waited(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._event.is_set():
            waiter = loop.create_future()
            self._waiters[waiter] = loop
            try:
                if not self._event.is_set():
                    await waiter
            finally:
                self._waiters.pop(waiter, None)


class Pulse:
    """Beats whenever something may have changed; any number can wait for one.

    Take `count`, look at what matters, and wait for a beat after that count: a
    beat in between is not lost. Safe from any thread and loop.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    def beat(self) -> None:
        """Wake everybody who waits."""
        with self._lock:
            self.count += 1
            waiters, self._waiters = self._waiters, {}
        for waiter, loop in waiters.items():
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # that loop has been closed; nobody waits there
                continue

    async def after(self, count: int) -> None:
        """Return once it has beaten after that count."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with self._lock:
            if self.count != count:
                return
            self._waiters[waiter] = loop
        try:
            await waiter
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)

    async def until(self, met: Callable[[], object]) -> None:
        """Return once that is true, which is looked at after every beat."""
        while True:
            count = self.count
            if met():
                return
            await self.after(count)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop in which this runs, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def loop_for(what: str) -> asyncio.AbstractEventLoop:
    """The event loop in which this runs, for what needs one.

    Raises:
        Misuse: There is none in this thread.
    """
    loop = running_loop()
    if loop is None:
        raise Misuse(
            f"{what} needs a running event loop: call it in an async function, "
            "or from another thread by loop.call_soon_threadsafe"
        )
    return loop


def start_task(
    coro: Coroutine[Any, Any, T], *, name: str | None = None
) -> asyncio.Task[T]:
    """A task of ours in the running loop, which starts in a turn of its own.

    Where the app gives its loop `asyncio.eager_task_factory`, one by `create_task`
    would run at once: before whoever starts it knows of it, and in what it is doing.
    """
    return asyncio.Task(coro, loop=asyncio.get_running_loop(), name=name)


@contextlib.contextmanager
def own_cancellation_only(
    kind: type[SourceError] = SourceError, why: str = "CancelledError"
) -> Iterator[None]:
    """Within it only a cancellation of the running task is one.

    Raises:
        SourceError: Something that was waited for was cancelled, which is a failure
            like any other; of that kind, and with that reason.
    """
    try:
        yield
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise kind(why) from None


def is_cancelled() -> bool:
    """Whether the running task was cancelled, also where it took no notice."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
