"""One worker's course of a drain, among siblings that the test plays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drainmw.core.drain import Phase, Run
from drainmw.core.ledger import Ledger, Ticket
from drainmw.core.roster import Worker
from drainmw.course import Course
from drainmw.errors import GroupError
from drainmw.rollcall import RollCall
from drainmw.sources.holds import Holds
from drainmw.testing import ManualSource, http_scope
from tests.rig import NONCE, begin_request
from tests.siblings import SharedRecord

PATIENCE = 0.05  # seconds

pytestmark = pytest.mark.anyio


class Scene:
    """This worker in a drain, and one sibling of pid 2, idle and obedient."""

    def __init__(self) -> None:
        self.record = SharedRecord()
        self.ledger = Ledger(self.record.gate)
        self.holds = Holds(PATIENCE)
        self.rolls = RollCall(
            self.record,
            self.ledger,
            self.holds,
            clock=time.monotonic,
            patience=PATIENCE,
        )
        self.ledger.wake = self.rolls.stirred.beat
        self.said: dict[str, Any] = {}
        """What the sibling says otherwise than that it is idle and settled."""
        self.record.siblings[2] = Worker(2, 0, 0, 0, False, (None,) * 4)
        self.record.on_wake = lambda _hint: self.speak()
        self.course: Course | None = None

    def speak(self, pid: int = 2, **said: Any) -> None:
        if pid not in self.record.siblings:
            return
        generation, _ = self.record.read()
        word = Worker(
            pid, 0.0, time.monotonic(), generation, settled=True, counts=(0, 0, 0, 0)
        )
        self.record.siblings[pid] = replace(word, **{**self.said, **said})
        self.rolls.stirred.beat()

    def speak_for(self, *pids: int) -> None:
        for pid in pids:
            self.speak(pid)

    def begin(self, timeout: int = 5000) -> None:
        request = begin_request(timeoutMs=timeout)
        self.record.transact(lambda life: life.begin(request, time.monotonic()))
        run = self.record.read()[1].run
        assert run is not None
        self.course = Course(
            run,
            rolls=self.rolls,
            ledger=self.ledger,
            holds=self.holds,
            clock=time.monotonic,
            expire=self.expire,
            ended=lambda: None,
            narrate=_silently,
        )
        self.course.start()

    def expire(self) -> None:
        self.record.transact(lambda life: life.expire(time.monotonic()))

    @property
    def phase(self) -> Phase:
        return self.record.read()[1].phase

    @property
    def failure(self) -> str | None:
        run = self.record.read()[1].run
        return run.failure if run else None

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(3):
            while not met():  # noqa: ASYNC110  # the record tells nobody
                await asyncio.sleep(0.005)

    async def stays(self, phase: Phase, seconds: float = 0.2) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.phase is phase
            await asyncio.sleep(0.005)


async def _silently(_run: Run) -> None:
    """Say nothing."""


async def test_all_idle_and_all_answered_is_drained() -> None:
    scene = Scene()
    scene.begin()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_own_work_is_waited_for() -> None:
    scene = Scene()
    ticket = scene.ledger.enter("http", http_scope(), 1.0, Ticket)
    assert ticket is not None
    scene.begin()
    await scene.stays(Phase.DRAINING)
    scene.ledger.release(ticket)
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_work_of_a_sibling_is_waited_for() -> None:
    scene = Scene()
    scene.said = {"settled": False, "counts": (1, 0, 0, 0)}
    scene.begin()
    await scene.stays(Phase.DRAINING)
    scene.said = {}
    scene.speak()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_a_silent_sibling_is_waited_for_and_asked_again() -> None:
    scene = Scene()
    scene.record.on_wake = lambda _hint: None
    scene.begin()
    await scene.stays(Phase.DRAINING, 0.4)
    assert scene.record.hints.count("ask") >= 1
    scene.record.on_wake = lambda _hint: scene.speak()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_a_sibling_that_falls_silent_while_closing_reopens() -> None:
    scene = Scene()

    def fall_silent(_hint: str) -> None:
        if scene.record.gate[0] != 3:
            scene.speak()

    scene.record.on_wake = fall_silent
    scene.begin()
    await scene.until(lambda: scene.record.gate[0] == 3)
    await scene.until(lambda: scene.record.gate[0] == 2)
    assert scene.course is not None
    assert scene.course.unknown == "no answer from worker 2"
    scene.record.on_wake = lambda _hint: scene.speak()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_a_sibling_that_dies_is_not_waited_for() -> None:
    scene = Scene()
    scene.said = {"settled": False, "counts": (3, 0, 0, 0)}
    scene.begin()
    await scene.stays(Phase.DRAINING, 0.1)
    scene.record.siblings.clear()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


EAGER = getattr(asyncio, "eager_task_factory", None)  # from 3.12 on


@pytest.mark.parametrize("factory", [None] if EAGER is None else [None, EAGER])
async def test_one_that_says_zero_and_is_not_held_is_waited_for(factory: Any) -> None:
    """And the loop goes on, also where tasks run as soon as they are made."""
    asyncio.get_running_loop().set_task_factory(factory)
    scene = Scene()
    scene.record.on_wake = lambda _hint: scene.speak(settled=scene.record.gate[0] != 3)
    scene.begin()
    await scene.stays(Phase.DRAINING)
    scene.record.on_wake = lambda _hint: scene.speak()
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_one_born_at_the_verdict_is_heard_first() -> None:
    scene = Scene()
    born: list[int] = []

    def on_wake(_hint: str) -> None:
        scene.speak()
        if scene.record.gate[0] == 3 and not born:
            born.append(3)
            scene.record.before = lambda: scene.record.siblings.update(
                {3: Worker(3, 0, 0, 0, False, (None,) * 4)}
            )

    scene.record.on_wake = on_wake
    scene.begin()
    await scene.until(lambda: bool(born))
    await scene.stays(Phase.DRAINING, 0.1)
    scene.record.on_wake = lambda _hint: scene.speak_for(2, 3)
    await scene.until(lambda: scene.phase is Phase.DRAINED)


async def test_a_closing_that_somebody_took_back_ends_nothing() -> None:
    scene = Scene()
    reopened: list[int] = []

    def on_wake(_hint: str) -> None:
        if scene.record.gate[0] == 3 and not reopened:
            reopened.append(1)
            scene.record.transact(lambda life: life.reopen())
        scene.speak()

    scene.record.on_wake = on_wake
    scene.begin()
    await scene.until(lambda: scene.phase is not Phase.DRAINING)
    assert (scene.phase, scene.failure, reopened) == (Phase.DRAINED, None, [1])


async def test_a_late_counter_of_a_sibling_goes_back_to_waiting() -> None:
    scene = Scene()
    late = [(1, 0, 0, 0)]

    def on_wake(_hint: str) -> None:
        if scene.record.gate[0] == 3 and late:
            scene.speak(counts=late.pop(), settled=False)
        else:
            scene.speak()

    scene.record.on_wake = on_wake
    scene.begin()
    await scene.until(lambda: scene.phase is not Phase.DRAINING)
    assert (scene.phase, late) == (Phase.DRAINED, [])


async def test_a_counter_that_stays_late_fails_the_drain() -> None:
    scene = Scene()

    def on_wake(_hint: str) -> None:
        is_closing = scene.record.gate[0] == 3
        scene.speak(counts=(0, 0, int(is_closing), 0))

    scene.record.on_wake = on_wake
    scene.begin()
    await scene.until(lambda: scene.phase is Phase.FAILED)
    assert scene.failure == "RUNTIME_DRAIN_NOT_IDLE"


async def test_a_fatal_error_of_a_sibling_fails_the_drain() -> None:
    scene = Scene()
    scene.said = {"error": "boom", "fatal": True}
    scene.begin()
    await scene.until(lambda: scene.phase is Phase.FAILED)
    assert scene.failure == "boom"


async def test_an_invalid_counter_of_a_sibling_fails_the_drain() -> None:
    scene = Scene()
    scene.said = {"valid": False, "counts": (0, 0, None, 0)}
    scene.begin()
    await scene.until(lambda: scene.phase is Phase.FAILED)
    assert scene.failure == "RUNTIME_DRAIN_COUNTERS_INVALID"


async def test_the_deadline_is_watched_while_somebody_is_silent() -> None:
    scene = Scene()
    scene.record.on_wake = lambda _hint: None
    scene.begin(timeout=200)
    await scene.until(lambda: scene.phase is Phase.FAILED)
    assert scene.failure == "RUNTIME_DRAIN_TIMEOUT"


async def test_a_lock_that_is_not_to_be_had_ends_no_course() -> None:
    scene = Scene()
    tried: list[int] = []

    def locked() -> None:
        tried.append(1)
        if len(tried) < 3:
            scene.record.before = locked
        raise GroupError("the lock of the group is not to be had")

    scene.begin()
    scene.record.before = locked
    await scene.until(lambda: scene.phase is not Phase.DRAINING)
    assert (scene.phase, len(tried)) == (Phase.DRAINED, 3)


async def test_a_resume_ends_the_course() -> None:
    scene = Scene()
    source = ManualSource()
    source.block("settled")
    scene.holds.add(source)
    scene.begin()
    await scene.stays(Phase.DRAINING, 0.05)
    scene.record.transact(lambda life: life.resume(NONCE))
    assert scene.course is not None
    scene.course.stop()
    await scene.stays(Phase.SERVING, 0.1)
