"""The source of a scheduler of APScheduler: each promise by itself.

The schedulers are real and have but a few jobs; time is set forward where a hold
would be long. tests/engines has them under load.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.base import BaseJobStore
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED

from drainmw import Counts
from drainmw.errors import Misuse
from drainmw.sources.apscheduler import APSchedulerSource
from drainmw.sources.owned import Owned
from tests.rig import NONCE, Release, Waiting, calm, close_databases, new_drain

pytestmark = pytest.mark.anyio

PATIENCE = 5.0  # seconds
STORED: list[str] = []
"""What jobs have done that a database kept: it knows them by their name alone."""


def stored(id: str) -> None:
    STORED.append(id)


@contextmanager
def emptied() -> Iterator[list[str]]:
    STORED.clear()
    yield STORED
    STORED.clear()


@asynccontextmanager
async def running(*schedulers: Any, **options: Any) -> AsyncIterator[None]:
    try:
        for scheduler in schedulers:
            scheduler.start(**options)
        yield
    finally:
        for scheduler in schedulers:
            if scheduler.running:
                await asyncio.to_thread(scheduler.shutdown)
            close_databases(scheduler)
        await calm()


async def until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


async def settled(source: APSchedulerSource) -> None:
    async with asyncio.timeout(PATIENCE):
        await source.settled()


def in_threads(slots: int = 2, *, executor: Any = None, **stores: Any) -> Any:
    executors = {"default": executor or ThreadPoolExecutor(slots)}
    return BackgroundScheduler(jobstores=stores, executors=executors, timezone=UTC)


def in_loop(**stores: Any) -> Any:
    return AsyncIOScheduler(jobstores=stores, timezone=UTC)


class Wall:
    """The time of day, for the scheduler and for us."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = timedelta()
        wall = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Any:
                return datetime.now(tz) + wall.offset

        for module in (
            "apscheduler.executors.base",
            "apscheduler.schedulers.base",
            "drainmw.sources.apscheduler",
        ):
            monkeypatch.setattr(f"{module}.datetime", Shifted)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def forward(self, seconds: float) -> None:
        self.offset += timedelta(seconds=seconds)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


class Gate:
    """A job, or a listener, that lasts until the test lets it go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = 0

    def __call__(self) -> None:
        self.entered += 1
        assert self.go.wait(PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go.set()


# The barrier


async def test_a_hold_waits_for_the_one_job_that_leaves_its_store() -> None:
    """And for nothing else: what comes after it in the same look stays there."""
    ran = list[str]()
    submits, go = threading.Event(), threading.Event()

    class Slow(ThreadPoolExecutor):  # type: ignore[misc]
        def _do_submit_job(self, job: Any, run_times: Any) -> None:
            submits.set()
            assert go.wait(PATIENCE)
            super()._do_submit_job(job, run_times)

    scheduler = in_threads(executor=Slow(1))
    source = APSchedulerSource(scheduler)
    async with running(scheduler, paused=True):
        for number in range(5):
            scheduler.add_job(ran.append, args=[f"{number}"], id=f"{number}")
        scheduler.resume()
        await until(submits.is_set)
        holding = asyncio.create_task(source.hold())
        await calm()
        assert not holding.done()
        assert source.count() == Counts(schedules=1)
        go.set()
        await holding
        await settled(source)
        assert ran == ["0"]
        await source.release()
        await until(lambda: ran == ["0", "1", "2", "3", "4"])


class Away(MemoryJobStore):  # type: ignore[misc]
    """A job store whose database answers when the test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = threading.Event(), threading.Event()

    def get_due_jobs(self, now: datetime) -> Any:
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        return super().get_due_jobs(now)


async def test_a_hold_does_not_wait_for_a_database_and_nothing_starts_then() -> None:
    store, ran = Away(), list[str]()
    scheduler = in_threads(default=store)
    source = APSchedulerSource(scheduler)
    scheduler.add_job(ran.append, args=["due"])
    async with running(scheduler):
        await until(store.asked.is_set)
        async with asyncio.timeout(1):
            await source.hold()
        store.answers.set()
        await asyncio.sleep(0.05)
        assert (ran, source.count()) == ([], Counts())
        await source.release()
        await until(lambda: ran == ["due"])


async def test_a_held_scheduler_sleeps_though_jobs_are_due() -> None:
    scheduler = in_threads()
    source = APSchedulerSource(scheduler)
    looks = 0

    def look() -> Any:
        nonlocal looks
        looks += 1
        return process_jobs()

    process_jobs, scheduler._process_jobs = scheduler._process_jobs, look
    async with running(scheduler):
        await source.hold()
        scheduler.add_job(print)
        await asyncio.sleep(0.1)
        assert looks < 5


async def test_a_look_that_began_before_the_source_was_made_is_over_some_time() -> None:
    scheduler, ran = in_threads(), list[str]()
    async with running(scheduler):
        with scheduler._jobstores_lock:  # the thread of the scheduler waits for it
            scheduler.add_job(ran.append, args=["due"])
            await asyncio.sleep(0.05)
            source = APSchedulerSource(scheduler)
        await until(lambda: ran)
        async with asyncio.timeout(PATIENCE):
            await source.hold()


async def test_a_hold_does_not_wait_for_a_look_that_has_failed() -> None:
    """Whoever keeps the exception keeps the rest of it, too."""
    kept: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda *all: kept.append(all))

    class Full(MemoryJobStore):  # type: ignore[misc]
        def update_job(self, job: Any) -> None:
            raise OSError("no space left")

    scheduler = in_loop(default=Full())
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.add_job(print, "interval", seconds=0.01)
        await until(lambda: kept)
        async with asyncio.timeout(PATIENCE):
            await source.hold()


# What counts


async def test_a_job_counts_until_the_last_listener_has_heard_of_it(gate: Gate) -> None:
    scheduler, heard = in_threads(), Gate()
    source = APSchedulerSource(scheduler)
    scheduler.add_listener(lambda _event: heard(), EVENT_JOB_EXECUTED)
    async with running(scheduler):
        scheduler.add_job(gate, id="nightly")
        await until(lambda: gate.entered)
        await source.hold()
        assert source.count() == Counts(schedules=1)
        gate.go.set()
        await until(lambda: heard.entered)
        assert source.count() == Counts(schedules=1)
        assert [(p.id, p.kind) for p in source.running()] == [("nightly", "schedules")]
        heard.go.set()
        await settled(source)
        assert (source.count(), source.running()) == (Counts(), [])


async def test_what_waits_in_the_pool_counts_and_still_runs(gate: Gate) -> None:
    scheduler, ran = in_threads(slots=1), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.add_job(gate, id="first")
        await until(lambda: gate.entered)
        scheduler.add_job(ran.append, args=["second"], id="second")
        await until(lambda: source.count() == Counts(schedules=2))
        await source.hold()
        assert [piece.id for piece in source.running()] == ["first", "second"]
        gate.go.set()
        await settled(source)
        assert ran == ["second"]


async def test_several_instances_of_a_job_count_each() -> None:
    scheduler, entered, go = in_threads(slots=3), list[int](), threading.Semaphore(0)
    source = APSchedulerSource(scheduler)

    def job() -> None:
        entered.append(1)
        assert go.acquire(timeout=PATIENCE)

    async with running(scheduler):
        scheduler.add_job(job, "interval", seconds=0.02, max_instances=3)
        await until(lambda: len(entered) == 3)
        await source.hold()
        for left in (3, 2, 1):
            await until(lambda n=left: source.count() == Counts(schedules=n))  # type: ignore[misc]
            await asyncio.sleep(0.01)
            assert source.count() == Counts(schedules=left)
            go.release()
        await settled(source)


async def test_jobs_that_fail_or_cannot_be_submitted_do_not_stay() -> None:
    scheduler = in_threads()
    source = APSchedulerSource(scheduler)
    pool = scheduler._executors["default"]._pool
    async with running(scheduler):
        scheduler.add_job(lambda: 1 / 0, id="fails")
        await until(lambda: scheduler.get_job("fails") is None)
        await settled(source)
        pool.shutdown()
        scheduler.add_job(print, id="not submitted")
        await until(lambda: scheduler.get_job("not submitted") is None)
        assert source.count() == Counts()


async def test_a_job_in_the_scheduler_s_own_thread_counts(gate: Gate) -> None:
    """The debug executor has no other: a hold waits for it."""
    scheduler = in_threads(executor=DebugExecutor())
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.add_job(gate)
        await until(lambda: gate.entered)
        assert source.count() == Counts(schedules=1)
        holding = asyncio.create_task(source.hold())
        await calm()
        assert not holding.done()
        gate.go.set()
        await holding
        assert source.count() == Counts()


async def test_a_job_in_a_thread_counts_though_the_loop_s_scheduler_shuts_down(
    gate: Gate,
) -> None:
    """It would cancel what nobody can cancel, and call that an end."""
    scheduler = in_loop()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.add_job(gate)
        await until(lambda: gate.entered)
        scheduler.shutdown()
        await until(lambda: not scheduler.running)
        await calm()
        assert source.count() == Counts(schedules=1)
        gate.go.set()
        await settled(source)


async def test_a_coroutine_counts_until_its_shut_down_has_ended_it() -> None:
    scheduler, entered = in_loop(), asyncio.Event()
    source = APSchedulerSource(scheduler)

    async def job() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with running(scheduler):
        scheduler.add_job(job)
        await entered.wait()
        assert source.count() == Counts(schedules=1)
        scheduler.shutdown()
        await settled(source)


@pytest.mark.parametrize("scheduler_ends", [False, True])
async def test_what_ran_before_the_source_was_made_counts(
    gate: Gate, scheduler_ends: bool
) -> None:
    """Also where its end has begun, out of our sight, when we come."""
    scheduler = in_threads()
    async with running(scheduler):
        scheduler.add_job(gate, id="before")
        await until(lambda: gate.entered)
        executor = scheduler._executors["default"]
        unseen = executor._run_job_success
        source = APSchedulerSource(scheduler)
        assert [piece.id for piece in source.running()] == ["before"]
        await source.hold()
        if scheduler_ends:
            executor._run_job_success = unseen
        gate.go.set()
        await settled(source)
        assert (source.count(), source.running()) == (Counts(), [])


async def test_what_ran_before_counts_until_its_listeners_have_heard(
    gate: Gate,
) -> None:
    scheduler, heard = in_threads(), Gate()
    scheduler.add_listener(lambda _event: heard(), EVENT_JOB_EXECUTED)
    async with running(scheduler):
        scheduler.add_job(gate)
        await until(lambda: gate.entered)
        source = APSchedulerSource(scheduler)
        gate.go.set()
        await until(lambda: heard.entered)
        assert source.count() == Counts(schedules=1)
        heard.go.set()
        await settled(source)


async def test_stores_and_executors_of_later_are_held_and_counted(gate: Gate) -> None:
    scheduler, ran = in_threads(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.add_executor(ThreadPoolExecutor(1), "late")
        scheduler.add_jobstore(MemoryJobStore(), "late")
        late = {"jobstore": "late", "executor": "late"}
        scheduler.add_job(gate, **late)
        await until(lambda: gate.entered)
        assert source.count() == Counts(schedules=1)
        await source.hold()
        scheduler.add_job(ran.append, args=["withheld"], **late)
        gate.go.set()
        await settled(source)
        assert ran == []
        await source.release()
        await until(lambda: ran)


async def test_two_sources_of_one_scheduler_agree(gate: Gate) -> None:
    scheduler, ran = in_threads(), list[str]()
    first, second = (APSchedulerSource(scheduler, name=n) for n in ("one", "two"))
    async with running(scheduler):
        scheduler.add_executor(ThreadPoolExecutor(1), "late")
        scheduler.add_job(gate, executor="late")
        await until(lambda: gate.entered)
        assert first.count() == second.count() == Counts(schedules=1)
        await first.hold()
        await second.hold()
        gate.go.set()
        scheduler.add_job(ran.append, args=["withheld"])
        await first.release()
        await settled(first)
        assert ran == []
        await second.release()
        await until(lambda: ran)


# Before the start, and beside what the app does


@pytest.mark.parametrize("make", [in_threads, in_loop])
async def test_one_that_is_held_before_it_starts_starts_held(
    make: Callable[[], Any],
) -> None:
    scheduler, ran = make(), list[str]()
    source = APSchedulerSource(scheduler)
    await source.hold()
    await source.hold()
    scheduler.add_job(ran.append, args=["due"])
    async with running(scheduler):
        await asyncio.sleep(0.05)
        assert (ran, source.overdue) == ([], 1)
        await source.release()
        await source.release()
        await until(lambda: ran == ["due"])
        assert source.overdue == 0


@pytest.mark.parametrize("make", [in_threads, in_loop])
async def test_one_that_is_added_in_a_drain_and_starts_at_once_fires_nothing(
    make: Callable[[], Any],
) -> None:
    """As in the startup of a worker that was born in it: its thread does not wait
    until the event loop comes to the hold."""
    scheduler, ran = make(), list[str]()
    scheduler.add_job(ran.append, args=["due"])
    release = Release()
    await release.client.begin()
    release.drain.add_source(APSchedulerSource(scheduler))
    async with running(scheduler):
        time.sleep(0.05)  # noqa: ASYNC251 the loop is busy with the startup
        await calm()
        assert ran == []
        await release.client.resume()
        await until(lambda: ran == ["due"])


@pytest.mark.parametrize("make", [in_threads, in_loop])
async def test_one_that_is_released_before_it_starts_starts_as_ever(
    make: Callable[[], Any],
) -> None:
    scheduler, ran = make(), list[str]()
    source = APSchedulerSource(scheduler)
    await source.hold()
    await source.release()
    scheduler.add_job(ran.append, args=["due"])
    async with running(scheduler):
        await until(lambda: ran == ["due"])


async def test_a_pause_of_the_app_s_own_outlasts_a_hold() -> None:
    scheduler, ran = in_threads(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        scheduler.pause()
        scheduler.add_job(ran.append, args=["due"])
        await source.hold()
        await source.release()
        await asyncio.sleep(0.05)
        assert (ran, scheduler.state) == ([], STATE_PAUSED)
        scheduler.resume()
        await until(lambda: ran == ["due"])


async def test_a_resume_of_the_app_s_own_does_not_undo_a_hold() -> None:
    scheduler, ran = in_threads(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler, paused=True):
        scheduler.add_job(ran.append, args=["due"])
        await source.hold()
        scheduler.resume()
        await asyncio.sleep(0.05)
        assert ran == []


async def test_a_release_after_the_loop_has_closed_is_none_of_its_business() -> None:
    scheduler = in_loop()
    source = APSchedulerSource(scheduler)

    async def lived() -> None:
        scheduler.start()
        await source.hold()

    await asyncio.to_thread(asyncio.run, lived())
    await source.release()


def test_it_takes_a_scheduler() -> None:
    with pytest.raises(Misuse, match="a scheduler of APScheduler 3, not Gate"):
        APSchedulerSource(Gate())


# What a hold has made late


@pytest.mark.parametrize("hold", [3.5, 86400.0])
async def test_a_job_that_was_withheld_is_never_too_late(
    hold: float, wall: Wall
) -> None:
    scheduler, ran = in_threads(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        await source.hold()
        scheduler.add_job(ran.append, args=["once"], run_date=wall.now())
        scheduler.add_job(ran.append, "interval", args=["often"], seconds=1, id="often")
        wall.forward(hold)
        await source.hold()  # still the same one
        await source.release()
        await until(lambda: sorted(ran) == ["often", "once"])
        often = scheduler.get_job("often")
        assert often.misfire_grace_time == 1  # the copy that ran was not stored
        assert often.next_run_time > wall.now() - timedelta(seconds=1)


async def test_one_that_was_late_before_the_hold_stays_the_engine_s_business(
    wall: Wall,
) -> None:
    scheduler, ran = in_threads(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        await source.hold()
        late = wall.now() - timedelta(seconds=2)
        scheduler.add_job(ran.append, args=["late"], run_date=late, id="late")
        await source.release()
        await until(lambda: scheduler.get_job("late") is None)
        await settled(source)
        assert ran == []


async def test_holds_in_a_row_add_up(wall: Wall) -> None:
    """The scheduler had no time to fire anything between them."""
    scheduler, ran = in_loop(), list[str]()
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        await source.hold()
        scheduler.add_job(ran.append, args=["once"], run_date=wall.now())
        wall.forward(5)
        await source.release()
        await source.hold()
        wall.forward(5)
        await source.release()
        await until(lambda: ran == ["once"])


async def test_what_was_withheld_runs_in_a_process_of_its_own(
    wall: Wall, tmp_path: Path
) -> None:
    scheduler = in_threads(executor=ProcessPoolExecutor(1))
    source = APSchedulerSource(scheduler)
    ran = tmp_path / "ran"
    async with running(scheduler):
        await source.hold()
        scheduler.add_job("os:mkdir", args=[ran], run_date=wall.now())
        wall.forward(5)
        await source.release()
        await until(lambda: any(source.count()))
        await settled(source)
        assert ran.exists()


# Standing by for an owner


@pytest.mark.parametrize("make", [in_threads, in_loop])
@pytest.mark.parametrize("paused", [False, True])
async def test_one_that_stands_by_starts_held_paused_or_not(
    make: Callable[[], Any], paused: bool
) -> None:
    scheduler, ran = make(), list[str]()
    source = APSchedulerSource(scheduler, standby=True)
    async with running(scheduler, paused=paused):
        scheduler.add_job(ran.append, args=["due"])
        await asyncio.sleep(0.05)
        assert ran == []
        await source.release()
        await until(lambda: ran == ["due"])


def test_one_that_does_not_stand_by_cannot_be_owned() -> None:
    source = APSchedulerSource(in_threads())
    with pytest.raises(Misuse, match=r"could fire before.*standby=True"):
        Owned(source, new_drain(ownership="off").own())


@pytest.mark.parametrize("make", [in_threads, in_loop])
@pytest.mark.parametrize("its_turn", [False, True])
async def test_its_turn_may_come_before_it_starts(
    make: Callable[[], Any], its_turn: bool
) -> None:
    scheduler, ran = make(), list[str]()
    source = APSchedulerSource(scheduler, standby=True)
    if its_turn:
        await source.release()
    scheduler.add_job(ran.append, args=["due"])
    async with running(scheduler, paused=True):
        if its_turn:
            await until(lambda: ran == ["due"])
        else:
            assert scheduler.state == STATE_PAUSED


async def test_one_that_stood_by_makes_up_for_what_is_in_a_shared_store_alone(
    wall: Wall, tmp_path: Path
) -> None:
    """Who owned them before has fired what is due in our memory."""
    with emptied() as ran:
        shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.sqlite")
        scheduler = in_threads(default=MemoryJobStore(), shared=shared)
        source = APSchedulerSource(scheduler, standby=True)
        async with running(scheduler):
            for store in ("default", "shared"):
                scheduler.add_job(
                    stored, args=[store], run_date=wall.now(), jobstore=store
                )
            wall.forward(5)
            await source.release()
            await until(lambda: not scheduler.get_jobs())
            await settled(source)
            assert ran == ["shared"]


# What the report says


async def test_what_is_overdue_is_told_whatever_store_it_is_in(
    wall: Wall, tmp_path: Path
) -> None:
    shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.sqlite")
    scheduler = in_threads(default=MemoryJobStore(), shared=shared)
    source = APSchedulerSource(scheduler)
    with emptied() as ran:
        async with running(scheduler):
            assert source.overdue == 0
            await source.hold()
            for store in ("default", "shared"):
                for minutes in (0, 10):
                    when = wall.now() + timedelta(minutes=minutes)
                    scheduler.add_job(
                        stored, args=[store], run_date=when, jobstore=store
                    )
                scheduler.add_job(
                    stored, args=["paused"], next_run_time=None, jobstore=store
                )
            await until(lambda: source.overdue == 2)
            wall.forward(700)
            await until(lambda: source.overdue == 4)
            await source.release()
            assert source.overdue == 0
            await until(lambda: len(ran) == 4)


def foreign() -> Any:
    """A job store of a kind that nobody has heard of."""
    members = {n: m for n, m in vars(MemoryJobStore).items() if callable(m)}
    del members["__init__"]
    store: Any = type("Foreign", (BaseJobStore,), members)()
    store._jobs, store._jobs_index = [], {}
    return store


async def test_what_a_store_does_not_tell_is_unknown(tmp_path: Path) -> None:
    shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.sqlite")
    scheduler = in_threads(shared=shared)
    source = APSchedulerSource(scheduler)
    async with running(scheduler):
        await source.hold()
        await until(lambda: source.overdue == 0)
        shared.jobs_t.drop(shared.engine)
        await until(lambda: source.overdue is None)
        shared.jobs_t.create(shared.engine)
        await until(lambda: source.overdue == 0)
        scheduler.add_jobstore(foreign(), "foreign")
        await until(lambda: source.overdue is None)


async def test_a_database_that_gives_no_answer_stalls_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.sqlite")
    scheduler = in_threads(default=shared)
    source = APSchedulerSource(scheduler)
    begin, asked, answers = shared.engine.begin, threading.Event(), threading.Event()

    def slow() -> Any:
        asked.set()
        assert answers.wait(PATIENCE)
        return begin()

    async with running(scheduler):
        monkeypatch.setattr(shared.engine, "begin", slow)
        await source.hold()
        await until(asked.is_set)  # the hold has begun to look
        assert source.overdue is None
        answers.set()
        await until(lambda: source.overdue == 0)


async def test_a_held_scheduler_leaves_what_it_cannot_read_in_the_store(
    tmp_path: Path,
) -> None:
    """The engine throws out what names a function that only a newer release has."""
    shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.sqlite")
    scheduler = in_threads(default=shared)
    source = APSchedulerSource(scheduler)
    await source.hold()
    async with running(scheduler):
        row = {"id": "new", "next_run_time": time.time() - 1, "job_state": b"?"}
        with shared.engine.begin() as connection:
            connection.execute(shared.jobs_t.insert().values(row))
        scheduler.wakeup()
        await until(lambda: source.overdue == 1)
        assert list(shared.get_due_jobs(datetime.now(UTC))) == []
        await asyncio.sleep(0.05)
        with shared.engine.begin() as connection:
            assert len(connection.execute(shared.jobs_t.select()).all()) == 1


async def test_a_job_that_outlasts_a_drain_stands_in_its_report(gate: Gate) -> None:
    """J7, and J2: nothing starts from the begin on, whatever HTTP is doing."""
    scheduler, ran = in_threads(), list[str]()
    app = Waiting()
    release = Release(app)
    release.drain.add_source(APSchedulerSource(scheduler))
    async with running(scheduler), release.call() as call:
        scheduler.add_job(gate, id="nightly")
        await until(lambda: gate.entered)
        began = time.monotonic()
        await release.client.begin(timeoutMs=300)
        assert time.monotonic() - began < 0.2
        scheduler.add_job(ran.append, args=["withheld"])
        async with asyncio.timeout(PATIENCE):
            await release.drain.ended
        app.go.set()
        await call.wait()
        assert str(release.drain.phase) == "failed"
        sources = (await release.client.report())["sources"]
        (told,) = (source for source in sources if source["intake"] == "clock")
        assert (told["held"], told["schedules"], told["overdue"]) == (True, 1, 1)
        assert told["running"] == ["nightly"]
        assert ran == []
        gate.go.set()
        await release.client.resume(NONCE)
        await until(lambda: ran == ["withheld"])


async def test_ten_schedulers_are_held_and_settled_side_by_side() -> None:
    """J3: one after the other, their jobs would take 3 s."""
    schedulers = [in_threads() for _ in range(10)]
    sources = [APSchedulerSource(s, name=f"s{n}") for n, s in enumerate(schedulers)]
    release = Release()
    for scheduler, source in zip(schedulers, sources, strict=True):
        release.drain.add_source(source)
        scheduler.add_job(time.sleep, args=[0.3])
    async with running(*schedulers):
        await until(lambda: all(any(source.count()) for source in sources))
        await release.client.begin(timeoutMs=1500)
        async with asyncio.timeout(PATIENCE):
            await release.drain.ended
        assert str(release.drain.phase) == "drained"
