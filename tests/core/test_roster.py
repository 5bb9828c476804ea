"""Many workers' words as one answer; a false `drained` is looked for."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest

from drainmw.core.drain import Gate, Lifecycle, Phase
from drainmw.core.roster import Roll, Worker, fold
from drainmw.course import is_closing, stands
from drainmw.errors import DrainError
from tests.rig import begin_request

IDLE = {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0}


def worker(pid: int = 1, **said: object) -> Worker:
    """A worker that has spoken of generation 5 at 10.0, and has nothing to do."""
    idle = Worker(
        pid,
        born=1.0,
        published=10.0,
        generation=5,
        settled=True,
        counts=(0, 0, 0, 0),
    )
    return replace(idle, **said)  # type: ignore[arg-type]  # any of its members


def pids(roll: Roll) -> list[int]:
    return [w.pid for w in roll.unknown]


def test_counters_are_sums_over_all_workers() -> None:
    roll = fold([worker(1, counts=(1, 2, 3, 4)), worker(2, counts=(10, 0, 0, 5))], 5)
    assert roll.known == {"http": 11, "websocket": 2, "jobs": 3, "schedules": 9}
    assert not roll.is_idle
    assert roll.unknown == ()


def test_all_spoken_and_idle_is_idle() -> None:
    roll = fold([worker(1), worker(2)], 5)
    assert (roll.is_idle, roll.settled, roll.known) == (True, True, IDLE)


def test_nobody_at_all_is_idle() -> None:
    assert fold([], 5).is_idle


def test_who_spoke_of_an_older_generation_is_unknown_and_never_zero() -> None:
    roll = fold([worker(1), worker(2, generation=4)], 5)
    assert pids(roll) == [2]
    assert roll.counts == dict.fromkeys(IDLE)
    assert (roll.known, roll.is_idle, roll.settled) == (None, False, False)
    assert roll.who == ("worker 2",)


def test_who_spoke_of_a_newer_generation_has_spoken() -> None:
    assert fold([worker(1, generation=6)], 5).is_idle


def test_who_spoke_before_the_question_is_unknown() -> None:
    silent, spoken = worker(1, published=9.9), worker(2, published=10.0)
    assert pids(fold([silent, spoken], 5, since=10.0)) == [1]


def test_who_cannot_tell_one_counter_hides_that_sum_alone() -> None:
    vague = worker(2, counts=(3, 0, None, 0), who="redis", error="no answer")
    roll = fold([worker(1, counts=(1, 0, 1, 0)), vague], 5)
    assert roll.counts == {"http": 4, "websocket": 0, "jobs": None, "schedules": 0}
    assert (pids(roll), roll.who, roll.error) == ([2], ("redis",), "no answer")
    assert (roll.known, roll.is_idle) == (None, False)


def test_one_that_has_not_settled_keeps_all_from_being_settled() -> None:
    roll = fold([worker(1), worker(2, settled=False)], 5)
    assert (roll.settled, roll.is_idle) == (False, True)


def test_an_invalid_counter_is_not_idle() -> None:
    roll = fold([worker(1), worker(2, valid=False)], 5)
    assert (roll.valid, roll.is_idle) == (False, False)


def test_a_fatal_error_is_passed_on() -> None:
    roll = fold([worker(1), worker(2, error="boom", fatal=True)], 5)
    assert (roll.error, roll.fatal) == ("boom", True)


# Any order of anything

NONCES = ("n" * 43, "m" * 43, "o" * 43)
STEPS = 120  # of one order
ORDERS = 400  # a seed
WORKERS_MAXIMUM = 4


@dataclass(eq=False)
class Process:
    """One worker as it really is, beside what it has published."""

    pid: int
    published: Worker
    running: int = 0
    held: bool = False
    """Its source is held: no job starts."""
    settled: bool = False
    """What its course has found."""
    looked: Worker | None = None
    """What it is about to publish."""
    asked: float | None = None
    """Since when its course waits for the counters of a verdict."""
    heard: tuple[Roll, int, set[int]] | None = None
    """What it got, of which generation and from whom; the verdict comes later."""

    @property
    def is_idle(self) -> bool:
        return self.running == 0


class AnyOrder:
    """Workers in a random order, each running the course as `course.py` does.

    Every step that can be parted in time is parted: a worker looks, and
    publishes later; a course asks, hears later, and concludes later still.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lifecycle = Lifecycle()
        self.generation = 1  # as `Group.transact` counts it
        self.now = 100.0
        self.born = 0
        self.processes: list[Process] = []
        self.told: list[str] = []
        """What happened, for whoever reads a failure."""
        self.is_born()

    def run(self) -> None:
        happenings = {
            self.goes_on: 60,
            self.work_ends: 8,
            self.request_comes: 6,
            self.job_starts: 3,
            self.is_born: 2,
            self.dies: 2,
            self.begins: 4,
            self.resumes: 1,
            self.cannot_tell: 1,
            self.time_passes: 1,
        }
        chosen = self.random.choices(
            list(happenings), list(happenings.values()), k=STEPS
        )
        for happens in chosen:
            before = self.lifecycle.snapshot()
            happens()
            if self.lifecycle.snapshot() != before:
                self.generation += 1
            self.told.append(f"{happens.__name__}: {self.processes}")
            self.check()

    def check(self) -> None:
        """The promise."""
        if self.lifecycle.phase is Phase.DRAINED:
            assert all(process.is_idle for process in self.processes)

    # From outside

    def is_born(self) -> None:
        if len(self.processes) < WORKERS_MAXIMUM:
            self.born += 1
            silent = Worker(self.born, self.now, self.now, 0, False, (None,) * 4)
            self.processes.append(Process(self.born, silent))

    def dies(self) -> None:
        if self.processes:
            self.processes.remove(self.one())

    def request_comes(self) -> None:
        most = self.random.choice((Gate.CORDONED, Gate.CORDONED, Gate.DRAINING))
        if self.processes and self.lifecycle.gate <= most:
            self.one().running += 1

    def job_starts(self) -> None:
        """Where nothing holds it; a verdict finds every source held."""
        if self.processes and not (process := self.one()).held:
            if self.lifecycle.phase is not Phase.DRAINED:
                process.running += 1

    def work_ends(self) -> None:
        if busy := [p for p in self.processes if p.running]:
            self.random.choice(busy).running -= 1

    def begins(self) -> None:
        with contextlib.suppress(DrainError):
            request = begin_request(self.random.choice(NONCES))
            self.lifecycle.begin(request, self.now)

    def resumes(self) -> None:
        with contextlib.suppress(DrainError):
            self.lifecycle.resume(self.random.choice(NONCES))
            for process in self.processes:
                process.held = process.settled = False
                process.asked = process.heard = None

    def time_passes(self) -> None:
        self.now += self.random.choice((0.1, 0.1, 6.0))
        self.lifecycle.expire(self.now)

    # One worker at its own pace

    def one(self) -> Process:
        return self.random.choice(self.processes)

    def cannot_tell(self) -> None:
        if self.processes:
            self.looks(self.one(), can_tell=False)

    def goes_on(self) -> None:
        if not self.processes:
            return
        process = self.one()
        if process.looked is not None:
            process.published, process.looked = process.looked, None
        elif self.is_draining:
            self.takes_its_next_step(process)
        else:
            self.looks(process)

    def looks(self, process: Process, *, can_tell: bool = True) -> None:
        self.now += 0.001
        process.looked = Worker(
            process.pid,
            1.0,
            self.now,
            self.generation,
            settled=process.settled and process.held and process.is_idle,
            counts=(process.running if can_tell else None, 0, 0, 0),
        )

    def takes_its_next_step(self, process: Process) -> None:
        """As `Course` does, parted wherever that one waits."""
        if not process.held:
            process.held = True
        elif not (process.settled and process.is_idle):
            process.settled = process.is_idle
            self.looks(process)
        elif process.heard is not None:
            heard, process.heard = process.heard, None
            self.concludes(*heard)
        elif process.asked is not None:
            self.hears(process, process.asked)
        elif fold(self.published(), self.generation).settled:
            self.lifecycle.close()
            self.now += 0.001
            process.asked = self.now
        else:
            self.looks(process)

    def hears(self, process: Process, since: float) -> None:
        if not process.published.has_spoken(self.generation, since):
            self.looks(process)
        elif self.random.random() < 0.3:  # everybody has answered, or it is late
            roll = fold(self.published(), self.generation, since)
            pids = {process.pid for process in self.processes}
            process.asked, process.heard = None, (roll, self.generation, pids)

    def concludes(self, roll: Roll, generation: int, heard: set[int]) -> None:
        if generation != self.generation:  # superseded
            return
        if roll.unknown or (roll.is_idle and not roll.settled):
            self.lifecycle.reopen()
            return
        if (run := self.lifecycle.run) is None or not is_closing(self.lifecycle, run):
            return
        if {process.pid for process in self.processes} <= heard:
            self.lifecycle.conclude(roll.known, self.now)
        if self.lifecycle.phase is Phase.DRAINED:
            self.check_everybody_has_spoken(generation)

    def check_everybody_has_spoken(self, closing: int) -> None:
        for process in self.processes:
            assert process.published.generation >= closing

    def published(self) -> list[Worker]:
        return [process.published for process in self.processes]

    @property
    def is_draining(self) -> bool:
        run = self.lifecycle.run
        return run is not None and stands(self.lifecycle, run)


@pytest.mark.parametrize("seed", range(10))
def test_in_no_order_a_release_is_drained_while_somebody_works_or_is_silent(
    seed: int,
) -> None:
    random = Random(seed)
    ended: Counter[tuple[Phase, int]] = Counter()
    for _ in range(ORDERS):
        order = AnyOrder(random)
        try:
            order.run()
        except AssertionError as exc:
            exc.add_note("\n".join(order.told))
            raise
        ended[order.lifecycle.phase, len(order.processes)] += 1
    assert min(ended[Phase.DRAINED, n] for n in (1, 2, 3)) > 5, ended
