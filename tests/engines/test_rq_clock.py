"""RQ's cron and its scheduler, held as clocks, on a real Valkey."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("rq")

from redis import Redis
from rq import cron_job_registry
from rq.utils import now

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.rq import DrainableWorker
from drainmw.sources.rqclock import HELD_PAUSE, DrainableCron, DrainableScheduler
from drainmw.sources.rqclock import RQClock as Clock
from tests.engines.journal import Journal, work
from tests.engines.rqs import Release, counted
from tests.engines.scenario import all_ran_once

pytestmark = pytest.mark.anyio


@pytest.fixture
def blue(redis_url: str, journal: Journal) -> Iterator[Release]:
    one = Release(redis_url, journal, "blue")
    yield one
    one.end()


class Cron(DrainableCron):
    """One of this process, whose steps the test takes."""

    release = "blue"

    def __init__(self, redis: Redis) -> None:
        super().__init__(connection=redis)
        self.job = self.register(work, "work", interval=60)


@pytest.fixture
def cron(blue: Release) -> Iterator[Cron]:
    cron = Cron(blue.redis)
    cron.register_birth()
    yield cron
    cron.register_death()


class Scheduler(DrainableScheduler):
    """One of this process, whose steps the test takes, on the queue of releases."""

    def __init__(self, redis: Redis, release: str) -> None:
        super().__init__(["work"], release, connection=redis)

    def step(self) -> None:
        """As its loop does, each second."""
        if self.should_reacquire_locks:
            self.acquire_locks()
        self.heartbeat()  # type: ignore[no-untyped-call]
        self.enqueue_scheduled_jobs()


@pytest.fixture
def schedulers(blue: Release) -> Iterator[list[Scheduler]]:
    """Of two releases."""
    both = [Scheduler(blue.redis, name) for name in ("blue", "green")]
    for scheduler in both:
        scheduler.register_birth()
    yield both
    for scheduler in both:
        end(scheduler)


def end(scheduler: Any) -> None:
    """As its process does when it ends."""
    scheduler.stop()
    scheduler.connection.connection_pool.disconnect()


def schedule(one: Release, id: str, seconds: float = 0.0) -> None:
    when, path = timedelta(seconds=seconds), str(one.journal.path)
    one.queue.enqueue_in(when, "tests.engines.journal.work", path, id, 0.0)


# The cron


async def test_a_cron_that_is_held_enqueues_nothing(
    blue: Release, journal: Journal
) -> None:
    """And what came due meanwhile once after the release."""
    process = blue.start_cron(0.3)
    clock = Clock(blue.redis, "blue", expected=1)
    await journal.until(lambda: len(blue.queue) == 2, "it ticks")
    await clock.hold()
    number = len(blue.queue)
    await clock.settled()
    assert await counted(clock) == Counts()
    await asyncio.sleep(0.3 + 2 * HELD_PAUSE)
    assert await counted(clock) == Counts()
    assert (len(blue.queue), clock.overdue, clock.handed_back) == (number, 1, None)
    await clock.release()
    await journal.until(lambda: len(blue.queue) > number, "it ticks again")
    assert len(blue.queue) == number + 1
    await clock.hold()
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    await clock.settled()
    assert await counted(clock) == Counts()
    await clock.release()


async def test_a_cron_that_enqueues_counts(blue: Release, cron: Cron) -> None:
    """It is a clock, so its hold waits for it, but not for long."""
    began, go = threading.Event(), threading.Event()

    def enqueue(redis: Redis) -> Any:
        began.set()
        go.wait(5)

    job: Any = cron.job
    job.enqueue = enqueue
    looking = threading.Thread(target=cron.enqueue_jobs)
    looking.start()
    await asyncio.to_thread(began.wait, 5)
    await blue.clock.hold()
    assert await counted(blue.clock) == Counts(schedules=1)
    (told,) = blue.clock.running()
    assert (told.id, told.kind) == (cron.name, "schedules")
    settled = asyncio.create_task(blue.clock.settled())
    await asyncio.sleep(0.1)
    assert not settled.done()
    go.set()
    looking.join()
    await settled
    assert await counted(blue.clock) == Counts()
    assert cron.enqueue_jobs() == []


async def test_a_cron_is_born_held_and_keeps_no_processor_busy(
    blue: Release, cron: Cron
) -> None:
    await blue.clock.hold()
    assert cron.enqueue_jobs() == []
    assert cron.calculate_sleep_interval() == HELD_PAUSE
    await blue.clock.release()
    assert cron.enqueue_jobs() == [cron.job]
    assert cron.calculate_sleep_interval() > 50
    assert len(blue.queue) == 1


@pytest.fixture
def green(blue: Release) -> Iterator[Cron]:
    """Of the next release, which has just come up."""
    green = Cron(blue.redis)
    green.release = "green"
    green.register_birth()
    yield green
    green.register_death()


async def test_what_another_release_has_enqueued_is_not_enqueued_again(
    blue: Release, cron: Cron, green: Cron
) -> None:
    """J8: in both directions."""
    assert cron.enqueue_jobs() == [cron.job]
    await blue.clock.hold()
    assert green.enqueue_jobs() == []
    long_ago(cron, seconds=61)
    green.job.set_enqueue_time(now() - timedelta(seconds=61))
    assert (cron.enqueue_jobs(), cron.job.should_run()) == ([], True)
    assert green.enqueue_jobs() == [green.job]
    await blue.clock.release()
    assert cron.enqueue_jobs() == []
    assert len(blue.queue) == 2


def long_ago(cron: Cron, *, seconds: float) -> None:
    """Its job was enqueued then."""
    then = now() - timedelta(seconds=seconds)
    cron.job.set_enqueue_time(then)
    cron_job_registry.add(cron.job.name, cron.connection, then.timestamp())


@pytest.mark.parametrize(("minutes", "number"), [(2, 1), (120, 0)])
async def test_a_fire_that_nobody_was_there_for_is_made_up_for_within_an_hour(
    minutes: int, number: int, cron: Cron
) -> None:
    """RQ's own knows only what comes after its start."""
    due = now() - timedelta(minutes=minutes)
    cron.job.interval, cron.job.cron = None, f"{due.astimezone():%M %H} * * *"
    cron.job.next_enqueue_time = cron.job.get_next_enqueue_time()
    before = (due - timedelta(minutes=1)).timestamp()
    cron_job_registry.add(cron.job.name, cron.connection, before)
    assert len(cron.enqueue_jobs()) == number
    assert cron.enqueue_jobs() == []


async def test_a_fire_that_came_due_in_a_long_hold_is_not_given_up(
    blue: Release, cron: Cron
) -> None:
    """J8: of a cron that was there, for longer than what is made up for."""
    cron.created_at = now() - timedelta(hours=3)
    due = now() - timedelta(hours=2)
    cron.job.interval, cron.job.cron = None, f"{due.astimezone():%M %H} * * *"
    long_ago(cron, seconds=23 * 3600)
    await blue.clock.hold()
    assert cron.enqueue_jobs() == []
    await blue.clock.release()
    assert cron.enqueue_jobs() == [cron.job]
    assert cron.enqueue_jobs() == []


async def test_a_host_whose_clock_is_ahead_silences_no_cron(cron: Cron) -> None:
    """It was the last to enqueue this job."""
    ahead = now() + timedelta(hours=1)
    cron_job_registry.add(cron.job.name, cron.connection, ahead.timestamp())
    assert cron.enqueue_jobs() == []
    assert cron.job.next_enqueue_time is not None
    assert cron.job.next_enqueue_time <= now() + timedelta(seconds=60)


async def test_jobs_of_one_name_are_each_on_its_own(blue: Release, cron: Cron) -> None:
    """Nobody knows which of them another release has enqueued."""
    cron_job_registry.add(cron.job.name, cron.connection)
    other = cron.register(work, "work", interval=60)
    assert cron.enqueue_jobs() == [cron.job, other]


async def test_a_cron_that_fails_is_over(blue: Release, cron: Cron) -> None:
    cron.job.func = None  # which it cannot enqueue
    with pytest.raises(ValueError, match="no function to enqueue"):
        cron.enqueue_jobs()
    assert await counted(blue.clock) == Counts()


async def test_a_clock_that_died_while_it_enqueued_is_unknown(blue: Release) -> None:
    """Until RQ has forgotten it, too."""
    blue.redis.hset("drainmw:rq:blue:clocks", "x", "busy 1.0 x")
    blue.redis.set("rq:scheduler:x", "as RQ has it")
    with pytest.raises(SourceUnavailable, match="clock x has died"):
        await blue.clock.hold()
    with pytest.raises(SourceUnavailable, match="clock x has died"):
        await counted(blue.clock)
    blue.redis.delete("rq:scheduler:x")
    await blue.clock.settled()
    assert await counted(blue.clock) == Counts()


async def test_a_clock_that_is_expected_and_not_there_is_unknown(blue: Release) -> None:
    clock = Clock(blue.redis, "blue", expected=1)
    with pytest.raises(SourceUnavailable, match="0 of 1 clocks answer at drainmw:rq"):
        await counted(clock)
    with pytest.raises(Misuse, match="not 'a b'"):
        Clock(blue.redis, "a b")
    cron = DrainableCron(connection=blue.redis)
    with pytest.raises(Misuse, match="told by RQ_RELEASE"):
        cron.register_birth()


# The scheduler


async def test_a_scheduler_that_is_held_enqueues_nothing_until_its_release(
    blue: Release, schedulers: list[Scheduler]
) -> None:
    """J8: a one-shot that comes due meanwhile is enqueued once."""
    scheduler, _ = schedulers
    scheduler.step()
    schedule(blue, "once")
    await blue.clock.hold()
    for _ in range(2):
        scheduler.step()
    assert (len(blue.queue), await counted(blue.clock)) == (0, Counts())
    await blue.clock.release()
    for _ in range(2):
        scheduler.step()
    assert len(blue.queue) == 1


async def test_what_is_due_while_one_is_held_another_release_enqueues(
    blue: Release, schedulers: list[Scheduler]
) -> None:
    """J1 and J8: at once, and nothing of it after the release."""
    old, new = schedulers
    old.step()
    new.step()
    assert (old.acquired_locks, new.acquired_locks) == ({"work"}, set())
    schedule(blue, "once")
    await blue.clock.hold()
    old.step()
    assert not old.should_reacquire_locks
    new.acquire_locks()
    new.step()
    assert (old.acquired_locks, new.acquired_locks) == (set(), {"work"})
    assert len(blue.queue) == 1
    await blue.clock.release()
    for scheduler in schedulers:
        scheduler.step()
    assert (len(blue.queue), old.acquired_locks) == (1, set())
    new.release_locks()  # type: ignore[no-untyped-call]
    old.step()  # it looks for a lock each time, since it had to let go of one
    assert old.acquired_locks == {"work"}


async def test_a_scheduler_looks_for_each_lock_that_it_lacks(
    blue: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ's own looks each ten minutes, and so would a queue stand still."""
    both = DrainableScheduler(["work", "mail"], "blue", connection=blue.redis)
    other = DrainableScheduler(["mail"], "green", connection=blue.redis)
    for scheduler in (both, other):
        scheduler.register_birth()
    both.acquire_locks()
    assert not both.should_reacquire_locks
    await blue.clock.hold()
    both.enqueue_scheduled_jobs()
    assert other.acquire_locks() == {"mail"}
    await blue.clock.release()
    assert both.acquire_locks() == {"work"}
    assert both.should_reacquire_locks  # it had to let go of mail
    other.release_locks()
    assert both.acquire_locks() == {"mail", "work"}
    both.release_locks()
    other.acquire_locks()
    assert both.acquire_locks() == {"work"}
    assert not both.should_reacquire_locks  # it has just looked
    monkeypatch.setattr("drainmw.sources.rqclock.LOCK_PAUSE", 0)
    assert both.should_reacquire_locks
    end(both)
    end(other)


async def test_a_worker_starts_a_scheduler_once_another_has_let_go(
    blue: Release, schedulers: list[Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ's own looks each ten minutes."""
    other, _ = schedulers
    other.acquire_locks()
    worker = DrainableWorker([blue.queue], connection=blue.redis)
    worker.release = "green"
    worker.register_birth()
    started: list[str] = []
    monkeypatch.setattr(DrainableScheduler, "start", lambda s: started.append(s.name))
    worker._start_scheduler()
    assert worker.may_pull()
    other.release_locks()  # type: ignore[no-untyped-call]
    assert worker.may_pull()
    assert started == []
    monkeypatch.setattr("drainmw.sources.rq.LONGEST_PULL", 0)
    assert worker.may_pull()
    assert worker.scheduler is not None
    assert started == [worker.scheduler.name]
    worker.register_death()
    end(worker.scheduler)


async def test_the_scheduler_of_a_worker_is_held(
    blue: Release, journal: Journal
) -> None:
    await blue.clock.hold()
    schedule(blue, "once")
    blue.start(1, "--with-scheduler")
    await journal.until(lambda: blue.redis.hlen("drainmw:rq:blue:clocks"), "it is born")
    await asyncio.sleep(0.2)
    assert (len(blue.queue), journal.started()) == (0, [])
    await blue.clock.release()
    await all_ran_once(journal, ["once"])
    await blue.clock.hold()
    await blue.clock.settled()
    await blue.clock.release()


async def test_a_worker_that_stops_when_nothing_is_left_is_held_too(
    blue: Release, journal: Journal
) -> None:
    schedule(blue, "once")
    worker = DrainableWorker([blue.queue], connection=blue.redis)
    worker.release = "blue"
    await blue.clock.hold()
    worker._start_scheduler(burst=True)
    first = worker.scheduler
    assert len(blue.queue) == 0
    await blue.clock.release()
    worker._start_scheduler(burst=True)
    assert len(blue.queue) == 1
    worker.register_birth()
    assert worker.may_pull()
    assert worker.scheduler is not None
    assert worker.scheduler._process is None  # it looks once, and runs none
    worker.register_death()
    assert blue.redis.hvals("drainmw:rq:blue:clocks") == [b"left", b"left"]
    assert list(blue.redis.scan_iter("rq:scheduler-lock:*")) == []
    end(first)
    end(worker.scheduler)
