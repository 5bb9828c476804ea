"""Executors: calls in threads or processes that a drain waits for.

What an executor has accepted must finish, whether it has begun or waits for a
thread: nobody else can take it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from drainmw.errors import Misuse
from drainmw.sources.base import Running
from drainmw.sources.feeding import Work, current
from drainmw.sources.jobs import JobSource

P = ParamSpec("P")
T = TypeVar("T")

_ELSEWHERE: type | tuple[()] = getattr(futures, "InterpreterPoolExecutor", ())
"""The kind of thread pool whose calls share nothing with this interpreter."""


class ExecutorSource(JobSource, Executor):
    """A push source around an executor: submit to it, not to what it wraps.

    It goes where an executor goes, as in `loop.run_in_executor(source, call)`, but
    cannot be a loop's default one: that resolves names, which a drain needs too.
    """

    def __init__(
        self,
        executor: Executor,
        name: str = "executor",
        *,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] | None = None,
    ) -> None:
        """Wrap an executor, which must be idle.

        Raises:
            Misuse: It is no executor, or is wrapped already.
        """
        wrapped: object = executor
        if not isinstance(wrapped, Executor) or isinstance(wrapped, ExecutorSource):
            raise Misuse(
                "ExecutorSource wraps an executor of concurrent.futures or of its "
                f"kind, not {wrapped!r}"
            )
        super().__init__(name, clock=clock, is_fed=is_fed)
        self._executor = executor
        self._futures: dict[Work, Future[Any]] = {}

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """As `Executor.submit`, from any thread.

        A call in a thread of a `ThreadPoolExecutor` may submit more while this is
        held; what a call elsewhere starts is not known to be its.

        Raises:
            IntakeRefused: The source is held; nothing was called.
        """
        job = self._enter(_label(fn))
        try:
            if _is_here(self._executor):
                call = functools.partial(_called, job, fn)
                future = self._executor.submit(call, *args, **kwargs)
            else:
                future = self._executor.submit(fn, *args, **kwargs)
        except BaseException:
            self._end(job)
            raise
        self._futures[job] = future
        future.add_done_callback(lambda _: self._done(job))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`; a call that is cancelled is over."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)

    def running(self) -> Iterator[Running]:
        """The calls that have begun, the one submitted first as the first."""
        jobs = list(self._jobs.items())
        return (told for job, told in jobs if self._has_begun(job))

    def _has_begun(self, job: Work) -> bool:
        future = self._futures.get(job)
        return future is not None and future.running()

    def _done(self, job: Work) -> None:
        self._futures.pop(job, None)
        self._end(job)


def _is_here(executor: Executor) -> bool:
    """Its calls need no pickle, and see our context variables."""
    threads = isinstance(executor, ThreadPoolExecutor)
    return threads and not isinstance(executor, _ELSEWHERE)


def _called(job: Work, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    token = current.set(job)
    try:
        return fn(*args, **kwargs)
    finally:
        current.reset(token)


def _label(fn: object) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__name__))
