"""Celery's clock, held and released; beat itself is in tests/engines."""

from collections.abc import Callable
from typing import Any

import pytest

from drainmw.sources.celerybeat import HELD_PAUSE, OVERDUE_PAUSE, Clock
from drainmw.testing import ManualClock


class Scheduler:
    """One of beat's, of entries that are due or not."""

    def __init__(self) -> None:
        self.schedule: dict[str, Any] = {}
        self.ticks = 0
        self.meanwhile: Callable[[], object] = int

    def tick(self, pause: float) -> float:
        self.ticks += 1
        self.meanwhile()
        return pause

    def is_due(self, entry: Any) -> tuple[bool, float]:
        if isinstance(entry, Exception):
            raise entry
        return entry, 5.0


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def now() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clock(scheduler: Scheduler, now: ManualClock) -> Clock:
    return Clock(scheduler, now)


def test_an_open_clock_ticks_as_its_scheduler_does(
    clock: Clock, scheduler: Scheduler
) -> None:
    assert clock.tick(3.5) == 3.5
    assert scheduler.ticks == 1
    told = clock.answer()
    assert told.pop("process") != Clock(scheduler).answer()["process"]
    assert told == {"held": False, "jobs": 0, "schedules": 0, "overdue": 0}


def test_a_held_clock_sends_nothing_and_looks_again_soon(
    clock: Clock, scheduler: Scheduler
) -> None:
    clock.hold(["blue"])
    assert clock.tick(3.5) == HELD_PAUSE
    assert scheduler.ticks == 0
    assert clock.answer()["held"] is True


def test_what_is_being_sent_counts_until_it_was_sent(
    clock: Clock, scheduler: Scheduler
) -> None:
    seen = []

    def hold() -> None:
        clock.hold(["blue"])
        seen.append(clock.answer()["schedules"])

    scheduler.meanwhile = hold
    clock.tick(0.0)
    assert seen == [1]
    assert clock.answer()["schedules"] == 0


def test_what_could_not_be_sent_is_not_being_sent(
    clock: Clock, scheduler: Scheduler
) -> None:
    def fail() -> None:
        raise OSError("no broker")

    scheduler.meanwhile = fail
    with pytest.raises(OSError, match="no broker"):
        clock.tick(0.0)
    assert clock.answer()["schedules"] == 0


def test_it_ticks_again_once_its_last_holder_has_let_go(
    clock: Clock, scheduler: Scheduler
) -> None:
    clock.hold(["blue", "other"])
    clock.release("blue")
    clock.tick(0.0)
    assert scheduler.ticks == 0
    clock.release("other")
    clock.tick(0.0)
    assert scheduler.ticks == 1


def test_an_operator_lets_everybody_go(clock: Clock) -> None:
    clock.hold(["blue", "other"])
    clock.release()
    assert clock.answer()["held"] is False


def test_what_is_due_while_it_is_held_is_overdue(
    clock: Clock, scheduler: Scheduler, now: ManualClock
) -> None:
    scheduler.schedule = {"a": True, "b": False, "c": ValueError("no such hour")}
    clock.hold(["blue"])
    clock.tick(0.0)
    assert clock.answer()["overdue"] == 1
    scheduler.schedule["b"] = True
    now.advance(OVERDUE_PAUSE / 2)
    clock.tick(0.0)
    assert clock.answer()["overdue"] == 1
    now.advance(OVERDUE_PAUSE / 2)
    clock.tick(0.0)
    assert clock.answer()["overdue"] == 2
    clock.release("blue")
    assert clock.answer()["overdue"] == 0
