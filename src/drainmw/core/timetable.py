"""When a schedule is due, in whole milliseconds since 1970.

Every release works the same moments out for itself: they depend on the
schedule alone, not on when a process has started.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from drainmw.errors import Misuse


class Timetable(Protocol):
    """The moments of one schedule."""

    def after(self, moment: int) -> int | None:
        """The first one after that; `None` where there is none."""
        ...

    def newest(self, moment: int) -> int | None:
        """The last one up to that; `None` where there is none."""
        ...

    def start(self, now: int) -> int:
        """After which a schedule begins that nobody knows yet."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again: all that are `offset` past a whole number of periods."""

    period: int
    offset: int = 0

    def after(self, moment: int) -> int:
        """The next one."""
        return self.newest(moment) + self.period

    def newest(self, moment: int) -> int:
        """The last one."""
        return (moment - self.offset) // self.period * self.period + self.offset

    def start(self, now: int) -> int:
        """What was due before it was known is nobody's."""
        return now


@dataclass(frozen=True, slots=True)
class Once:
    """One moment."""

    at: int

    def after(self, moment: int) -> int | None:
        """That moment, if it is later."""
        return self.at if self.at > moment else None

    def newest(self, moment: int) -> int | None:
        """That moment, if it is not later."""
        return self.at if self.at <= moment else None

    def start(self, now: int) -> int:
        """It is to be fired, also where it has passed meanwhile."""
        return self.at - 1


def next_due(
    table: Timetable, last: int, now: int, *, catch_up: int, coalesce: bool
) -> int | None:
    """The next tick to claim after the last one, due or yet to come.

    Ticks that are overdue by more than `catch_up` are passed by; of several that
    are overdue the newest stands for all if they `coalesce`.
    """
    due = table.after(max(last, now - catch_up - 1))
    if coalesce and due is not None and due <= now:
        return table.newest(now)
    return due


def overdue(table: Timetable, last: int, now: int) -> int:
    """How many are due and not claimed."""
    if isinstance(table, Every):
        return max(0, table.newest(now) - table.newest(last)) // table.period
    due = table.after(last)
    return int(due is not None and due <= now)


def due_ms(due: datetime | float) -> int:
    """A moment in whole milliseconds since 1970.

    Raises:
        Misuse: It is no moment, or a time without a zone.
    """
    if isinstance(due, datetime):
        if due.tzinfo is None:
            raise Misuse(f"{due} needs a zone, such as datetime.now(UTC) has")
        return round(due.timestamp() * 1000)
    if not is_finite(due):
        raise Misuse(f"{due!r} is no moment: a datetime, or seconds since 1970")
    return round(due * 1000)


def is_finite(value: object) -> bool:
    """Whether it is a number, and neither infinite nor none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def moment(due: int) -> datetime:
    """The same as a time."""
    return datetime.fromtimestamp(due / 1000, UTC)
