"""Who may feed a push source that is held: work in flight, and nobody else.

Work that admitted work starts is part of that work. So a piece of work is known
to whatever it starts, by a context variable, until it is over.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Work:
    """One piece of work, as what it starts knows it. Only its source writes it."""

    source: object
    depth: int = 0
    """How many pieces, each started by the one before, lead from a closed intake
    to this one; 0 if intake was open."""
    in_flight: bool = True
    watchers: set[Callable[[], None]] = field(default_factory=set)
    """Called once it is over, in any thread."""

    def over(self) -> None:
        """It feeds nobody any more."""
        self.in_flight = False
        watchers, self.watchers = self.watchers, set()
        for watcher in watchers:
            watcher()


current: contextvars.ContextVar[Work | None] = contextvars.ContextVar(
    "drainmw_work", default=None
)
"""The piece of work in which this runs, or which has left this behind."""


def feeder() -> Work | None:
    """The work in flight in which this is called, of any source."""
    work = current.get()
    return work if work is not None and work.in_flight else None


class Feeders:
    """Whom one source takes work from once it is held."""

    def __init__(self, source: object, is_fed: Callable[[], bool] | None) -> None:
        self._source = source
        self._asked: list[Callable[[], bool]] = [] if is_fed is None else [is_fed]

    def add(self, is_fed: Callable[[], bool]) -> None:
        """Ask that, too, whether the caller is work in flight."""
        self._asked.append(is_fed)

    def are_own(self) -> bool:
        """The caller is work in flight of the source itself."""
        work = feeder()
        return work is not None and work.source is self._source

    def may_feed(self) -> bool:
        """The caller is work in flight, or there is some that may be."""
        return self.are_own() or any(is_fed() for is_fed in self._asked)


def depth(is_closed: bool) -> int:
    """That of work which is started here and now."""
    if not is_closed:
        return 0
    work = feeder()
    return 1 if work is None else work.depth + 1
