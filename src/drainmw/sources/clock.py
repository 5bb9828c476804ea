"""A small scheduler: intervals and single moments, each tick fired by one process.

Every process of every release has one, with the same schedules. Which of them
fires follows from the owner. What came due while nobody could is fired late,
once; a tick that runs is waited for, and the next one of its schedule comes
after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from drainmw.core.lease import KEPT
from drainmw.core.timetable import (
    Every,
    Once,
    Timetable,
    due_ms,
    is_finite,
    moment,
    next_due,
    overdue,
)
from drainmw.errors import Misuse
from drainmw.flag import is_cancelled, own_cancellation_only
from drainmw.interrupt import is_coroutine_function
from drainmw.log import logger
from drainmw.sources.base import check_owner
from drainmw.text import failure_text

if TYPE_CHECKING:
    from drainmw.owner import Owner

CATCH_UP = 3600.0  # seconds
LOOK = 30.0  # seconds between two looks at the time of day, which may be set
PAUSE = 0.2  # seconds until a tick that was not granted is asked for again

Act = Callable[[datetime], Awaitable[object]]
"""What a tick does; it is told when the tick was due."""


@dataclass(slots=True)
class _Schedule:
    name: str
    table: Timetable
    act: Act
    catch_up: int
    coalesce: bool
    generation: int | None = None
    """Of the lease under which `last` was read."""
    last: int = 0


class Clock:
    """Fires the schedules of one owner. It is no source: its owner is."""

    def __init__(self, owner: Owner, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` gives the time of day, in seconds since 1970.

        Raises:
            Misuse: It is no owner.
        """
        check_owner(owner, "Clock")
        self._owner = owner
        self._wall = wall
        self._schedules: dict[str, _Schedule] = {}
        owner.counts_overdue.append(self._overdue)

    def every(
        self,
        seconds: float,
        *,
        name: str | None = None,
        offset: float = 0.0,
        catch_up: float = CATCH_UP,
        coalesce: bool = False,
    ) -> Callable[[Act], Act]:
        """Decorate what is done at every whole number of periods, and an offset.

        Its name, by default that of the function, is what releases know it by. What
        is overdue by more than `catch_up` seconds is not made up for; with
        `coalesce` the newest overdue tick stands for all of them.

        Raises:
            Misuse: The name is taken, or a number is none.
        """
        period = _positive("seconds", seconds)
        late = round(_checked("catch_up", catch_up) * 1000)
        shift = round(_checked("offset", offset) * 1000)

        def decorate(act: Act) -> Act:
            label = name or str(getattr(act, "__qualname__", type(act).__name__))
            self._add(_Schedule(label, Every(period, shift), act, late, coalesce))
            return act

        return decorate

    def at(self, when: datetime | float, act: Act, *, name: str) -> None:
        """Do it once, at that moment; a day late at most, and never after that.

        Every release must name it: this process may not live to see it.

        Raises:
            Misuse: The name is taken, or it is no moment.
        """
        self._add(_Schedule(name, Once(due_ms(when)), act, KEPT - 1, False))

    def _add(self, schedule: _Schedule) -> None:
        if not is_coroutine_function(schedule.act):
            raise Misuse(f"what {schedule.name} does must be a coroutine function")
        if not _takes_one(schedule.act):
            raise Misuse(f"what {schedule.name} does must take one argument, its due")
        if schedule.name in self._owner.schedules:
            raise Misuse(f"there is a schedule of the name {schedule.name} already")
        self._owner.schedules.add(schedule.name)
        self._schedules[schedule.name] = schedule
        self._owner.add_client(lambda: self._run(schedule))

    # One schedule

    async def _run(self, schedule: _Schedule) -> None:
        while not is_cancelled():  # also where an act took no notice of it
            await self._owner.gained
            try:
                with own_cancellation_only():
                    pause = await self._step(schedule)
            except Exception as exc:  # who ends here leaves its schedule to nobody
                _log_failed(schedule, exc)
                pause = LOOK
            if pause is None:
                return
            await asyncio.sleep(pause)

    async def _step(self, schedule: _Schedule) -> float | None:
        """Fire what is due; gives the pause until the next look, `None` at the end."""
        if not await self._reads_last(schedule):
            return PAUSE
        now = self._now()
        due = next_due(
            schedule.table,
            schedule.last,
            now,
            catch_up=schedule.catch_up,
            coalesce=schedule.coalesce,
        )
        if due is None:
            self._end(schedule, now)
            return None
        if due > now:
            return min((due - now) / 1000, LOOK)
        if await self._fires(schedule, due):
            return 0
        schedule.generation = None  # somebody may have fired it
        return PAUSE

    async def _reads_last(self, schedule: _Schedule) -> bool:
        """Know the last tick that anybody has claimed, under this generation."""
        owner = self._owner
        generation = owner.generation
        if generation is None:
            return False
        if schedule.generation != generation:
            start = moment(schedule.table.start(self._now()))
            last = await owner.since(schedule.name, start)
            if last is None:
                return False
            schedule.last = due_ms(last)
            schedule.generation = generation
        return True

    async def _fires(self, schedule: _Schedule, due: int) -> bool:
        """Fire that tick, if it is ours; what it raises is logged."""
        async with self._owner.tick(moment(due), schedule.name) as mine:
            if not mine:
                return False
            schedule.last = due
            try:
                with own_cancellation_only():
                    await schedule.act(moment(due))
            except Exception as exc:
                _log_failed(schedule, exc, due=moment(due).isoformat())
        return True

    def _end(self, schedule: _Schedule, now: int) -> None:
        """Nothing of it is left; what was missed is told."""
        missed = schedule.table.after(schedule.last)
        if missed is not None and missed <= now:
            logger().warning(
                "tick missed", schedule=schedule.name, late_ms=now - missed
            )

    def _overdue(self) -> int:
        now, generation = self._now(), self._owner.generation
        if generation is None:  # another process may have fired them
            return 0
        known = [s for s in self._schedules.values() if s.generation == generation]
        return sum(overdue(s.table, s.last, now) for s in known)

    def _now(self) -> int:
        return math.floor(self._wall() * 1000)


def _log_failed(schedule: _Schedule, exc: Exception, **facts: Any) -> None:
    error = failure_text(exc)
    logger().error(
        "tick failed", schedule=schedule.name, error=error, exc_info=True, **facts
    )


def _takes_one(act: Act) -> bool:
    with contextlib.suppress(ValueError):  # it does not tell
        try:
            inspect.signature(act).bind(None)
        except TypeError:
            return False
    return True


def _checked(name: str, seconds: float) -> float:
    if not is_finite(seconds) or seconds < 0:
        raise Misuse(f"{name} must be a number of seconds, not {seconds!r}")
    return seconds


def _positive(name: str, seconds: float) -> int:
    """In milliseconds."""
    period = round(_checked(name, seconds) * 1000)
    if period < 1:
        raise Misuse(f"{name} must be a millisecond at least")
    return period
