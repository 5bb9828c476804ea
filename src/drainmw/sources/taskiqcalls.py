"""The calls of Taskiq's tasks that are no coroutines, in a thread or a process.

Such a call goes on when the `timeout` of its task has passed, though Taskiq has its
result by then.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")

current_lease: contextvars.ContextVar[object] = contextvars.ContextVar(
    "drainmw_taskiq_lease", default=None
)
"""What the task of Taskiq that is run here was taken as."""


class Calls(Executor):
    """Where the calls of a receiver run; it knows the one of each lease."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[object, Future[Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        """As the executor does."""
        call = self._executor.submit(fn, *args, **more)
        self._calls[current_lease.get()] = call
        return call

    def after(self, lease: T, end: Callable[[T], object]) -> None:
        """Call `end` once the call of that lease is over, in this loop if it runs."""
        call = self._calls.pop(lease, None)
        if call is None or call.done():
            end(lease)
            return
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            try:
                loop.call_soon_threadsafe(end, lease)
            except RuntimeError:  # that loop has been closed
                end(lease)

        call.add_done_callback(tell)
