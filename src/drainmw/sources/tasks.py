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
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from drainmw.errors import Misuse
from drainmw.flag import loop_for
from drainmw.sources.feeding import current
from drainmw.sources.jobs import JobSource

T = TypeVar("T")


class TaskRegistry(JobSource):
    """A push source of asyncio tasks, of any number of event loops."""

    def __init__(
        self,
        name: str = "tasks",
        *,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] | None = None,
    ) -> None:
        """`is_fed` tells whether requests are in flight that may spawn jobs."""
        super().__init__(name, clock=clock, is_fed=is_fed)
        self._tasks: set[asyncio.Task[Any]] = set()
        """A loop has but weak references to its tasks; a job must not get lost."""

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine as a job of the running loop.

        A job that raises has ended; its task holds the exception.

        Raises:
            IntakeRefused: The registry is held; the coroutine is closed.
            Misuse: It is no coroutine, or no event loop runs in this thread.
        """
        if not asyncio.iscoroutine(coro):
            raise Misuse(f"spawn takes a coroutine, such as work(), not {coro!r}")
        label = name or str(getattr(coro, "__qualname__", type(coro).__name__))
        try:
            loop = loop_for("spawn")
            job = self._enter(label)
        except BaseException:
            coro.close()
            raise
        try:
            context = contextvars.copy_context()
            context.run(current.set, job)
            task = loop.create_task(coro, name=label, context=context)
        except BaseException:
            self._end(job)
            coro.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._end(job))
        return task
