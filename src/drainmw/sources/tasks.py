"""The task registry: asyncio tasks that a drain waits for.

A task counts as a job from the call of `spawn` until it is done. Work that
admitted work starts is part of that work, so a held registry still takes what
a running job of its own, or a request that is still in flight, spawns. From
anybody else it refuses, and closes the coroutine: nothing of it has run.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from drainmw.errors import IntakeRefused, Misuse
from drainmw.flag import Flag
from drainmw.sources.base import Counts, Intake, Running

T = TypeVar("T")

_job: contextvars.ContextVar[object | None] = contextvars.ContextVar(
    "drainmw_job", default=None
)


class TaskRegistry:
    """A push source of asyncio tasks, of any number of event loops."""

    intake: Intake = "push"

    def __init__(
        self,
        name: str = "tasks",
        *,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_fed` tells whether requests are in flight that may spawn jobs."""
        self.name = name
        self._clock = clock
        self._is_fed = is_fed
        self._jobs: dict[object, Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        """A loop has but weak references to its tasks; a job must not get lost."""
        self._held = False
        self._changed = Flag()

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine as a job of the running loop.

        A job that raises has ended; its task holds the exception.

        Raises:
            IntakeRefused: The registry is held; the coroutine is closed.
            Misuse: It is no coroutine, or no event loop runs in this thread.
        """
        _check_runnable(coro)
        label = name or str(getattr(coro, "__qualname__", type(coro).__name__))
        job = object()
        self._jobs[job] = Running(label, self._clock())
        if self._held and not self._may_continue():
            self._end(job)
            coro.close()
            raise IntakeRefused(f"job {label}")
        try:
            context = contextvars.copy_context()
            context.run(_job.set, job)
            loop = asyncio.get_running_loop()
            task = loop.create_task(coro, name=label, context=context)
        except BaseException:
            self._end(job)
            coro.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._end(job))
        return task

    async def hold(self) -> None:
        """Refuse what does not come from work in flight."""
        self._held = True

    def count(self) -> Counts:
        """The jobs that are not done."""
        return Counts(jobs=len(self._jobs))

    async def settled(self) -> None:
        """Return when no job is left."""
        while self._jobs:
            self._changed.clear()
            if self._jobs:
                await self._changed

    async def release(self) -> None:
        """Take jobs of anybody again."""
        self._held = False

    def running(self) -> Iterator[Running]:
        """The jobs that are not done, oldest first."""
        return iter(list(self._jobs.values()))

    def _may_continue(self) -> bool:
        return _job.get() in self._jobs or self._is_fed()

    def _end(self, job: object) -> None:
        self._jobs.pop(job, None)
        self._changed.set()


def _check_runnable(coro: object) -> None:
    if not asyncio.iscoroutine(coro):
        raise Misuse(f"spawn takes a coroutine, such as work(), not {coro!r}")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        coro.close()
        raise Misuse(
            "spawn needs a running event loop: call it in an async function, "
            "or from another thread by loop.call_soon_threadsafe"
        ) from None
