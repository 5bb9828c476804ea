"""A source of an event loop, as one that blocks the threads which ask it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.flag import running_loop
from drainmw.sources.base import Counts, Running, WorkSource
from drainmw.sources.counting import running_of

T = TypeVar("T")


class InLoop:
    """A work source of an event loop, as one that blocks the threads that ask it."""

    def __init__(self, source: WorkSource) -> None:
        self.source = source
        self.loop: asyncio.AbstractEventLoop | None = None
        self._settling: Future[None] | None = None

    def hold(self) -> None:
        """As the source does."""
        self._result(self.source.hold())

    def count(self) -> Counts:
        """As the source does."""
        return self._result(self._counted())

    def settle(self) -> None:
        """As `settled` of the source, until a release."""
        self._settling = self._submitted(self.source.settled())
        try:
            self._settling.result()
        except CancelledError:
            raise SourceUnavailable("released before it had settled") from None

    def release(self) -> None:
        """As the source does."""
        if self._settling is not None:
            self._settling.cancel()
        self._result(self.source.release())

    def running(self) -> list[Running]:
        """What the source says."""
        return running_of(self.source)

    @property
    def overdue(self) -> int | None:
        """What the source says."""
        return getattr(self.source, "overdue", None)

    @property
    def handed_back(self) -> int | None:
        """What the source says."""
        return getattr(self.source, "handed_back", None)

    async def _counted(self) -> Counts:
        answer = self.source.count()
        return await answer if inspect.isawaitable(answer) else answer

    def _result(self, step: Coroutine[Any, Any, T]) -> T:
        return self._submitted(step).result()

    def _submitted(self, step: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self.loop
        if loop is None or running_loop() is loop:
            step.close()
            raise Misuse("the agent of a source in an event loop needs `async with`")
        try:
            return asyncio.run_coroutine_threadsafe(step, loop)
        except RuntimeError:  # it has been closed
            step.close()
            raise SourceUnavailable("the event loop of the worker has ended") from None
