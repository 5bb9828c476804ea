"""Procrastinate on a real Postgres, its workers as tasks and as processes."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("procrastinate")

from procrastinate import App
from procrastinate.exceptions import ConnectorException
from procrastinate.sql import queries
from procrastinate.testing import InMemoryConnector

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.procrastinate import ProcrastinateWorkers, drainable
from drainmw.sources.remote import RemoteSource
from tests.engines.drains import quiet_while_requests_are_busy
from tests.engines.journal import Journal
from tests.engines.procrastinated import SOCKETS, URL, Release, release
from tests.engines.scenario import (
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.processes import Process, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def blue(postgres_url: str, journal: Journal) -> AsyncIterator[Release]:
    async with release(postgres_url, journal) as one:
        yield one


@pytest.fixture
async def green(
    blue: Release, postgres_url: str, journal: Journal
) -> AsyncIterator[Release]:
    async with release(postgres_url, journal) as one:
        yield one


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


async def test_it_passes_the_scenario(blue: Release, journal: Journal) -> None:
    blue.start()
    await hold_in_the_middle(blue, journal, prompt=0.5)


async def test_jobs_that_block_pass_it(blue: Release, journal: Journal) -> None:
    blue.task = "block"
    blue.start()
    await hold_in_the_middle(blue, journal, prompt=0.5, may_start=True)


async def test_two_workers_of_an_app_pass_it_at_random(
    blue: Release, journal: Journal
) -> None:
    """J4: what was fetched at the hold has begun when it returns."""
    blue.start(2)
    blue.start(2)
    await holds_at_random(blue, journal)


async def test_what_one_release_has_not_started_another_runs(
    blue: Release, green: Release, journal: Journal
) -> None:
    """J1: nothing of the new one is paused, in one process with the old one."""
    blue.start()
    green.start()
    await hand_over(blue, green, journal)


async def test_a_release_wakes_workers_that_would_poll_much_later(
    blue: Release, journal: Journal
) -> None:
    """J8: also for what came due in the hold, though nobody was told of it then."""
    blue.start(fetch_job_polling_interval=60.0)
    await blue.source.hold()
    due = blue.app.tasks["work"].configure(schedule_in={"milliseconds": 200})
    await due.defer_async(path=str(journal.path), id="due", seconds=0.0)
    await asyncio.sleep(0.5)
    assert journal.started() == []
    await blue.source.release()
    await all_ran_once(journal, ["due"])


async def test_held_before_it_runs_it_starts_held(
    blue: Release, journal: Journal
) -> None:
    await blue.source.hold()
    blue.start()
    await blue.enqueue(["x"], 0.0)
    await asyncio.sleep(0.3)
    assert journal.started() == []
    await blue.source.release()
    await all_ran_once(journal, ["x"])


async def test_the_heartbeat_of_a_held_worker_goes_on(
    blue: Release, green: Release, journal: Journal
) -> None:
    """J6: a job that outlives its lease is nobody else's."""
    blue.start(update_heartbeat_interval=0.1)
    await blue.enqueue(["long"], 1.0)
    await journal.until(journal.started, "it works")
    await blue.source.hold()
    green.start(stalled_worker_timeout=0.5)
    await asyncio.sleep(0.7)
    stalled = await green.app.job_manager.get_stalled_jobs(seconds_since_heartbeat=0.5)
    assert list(stalled) == []
    (told,) = blue.source.running()  # type: ignore[attr-defined]
    assert (told.id, told.kind) == ("work[1]", "jobs")
    await blue.source.settled()
    await all_ran_once(journal, ["long"])


async def test_an_outcome_that_was_not_stored_is_stored_later(
    blue: Release, postgres_url: str, journal: Journal
) -> None:
    """J5: until then the count is unknown."""
    name = "procrastinate_finish_job_v1"
    loop = asyncio.get_running_loop()
    told: list[str] = []  # the worker leaves the failure to its loop
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    blue.start(1)
    await blue.enqueue(["x"], 0.3)
    await journal.until(journal.started, "it works")
    await blue.source.hold()
    execute(postgres_url, f"ALTER FUNCTION {name} RENAME TO away")
    with pytest.raises(SourceUnavailable, match="Database error"):
        await blue.source.settled()
    with pytest.raises(SourceUnavailable, match="may have jobs of ours"):
        blue.source.count()
    execute(postgres_url, f"ALTER FUNCTION away RENAME TO {name}")
    await blue.source.settled()
    assert blue.source.count() == Counts()
    (job,) = await blue.app.job_manager.list_jobs_async()
    assert job.status == "succeeded"
    await blue.stop()
    gc.collect()
    assert told == ["Task exception was never retrieved"]


async def test_a_job_that_never_arrived_goes_back(
    blue: Release, green: Release, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: the database leased it, and was gone before it said so."""
    connector = blue.app.connector
    gone = ConnectorException("gone")
    one, all = connector.execute_query_one_async, connector.execute_query_all_async

    async def lose(query: str, **arguments: Any) -> dict[str, Any]:
        row = await one(query, **arguments)
        if query == queries["fetch_job"] and row["id"] is not None:
            raise gone
        return row

    async def fail(query: str, **arguments: Any) -> list[dict[str, Any]]:
        if query == queries["list_jobs"]:
            raise gone
        return await all(query, **arguments)

    with monkeypatch.context() as broken:
        broken.setattr(connector, "execute_query_one_async", lose)
        broken.setattr(connector, "execute_query_all_async", fail)
        await green.enqueue(["x"], 0.0)
        with pytest.raises(ConnectorException, match="gone"):
            await blue.start(1)
        await blue.source.hold()
        with pytest.raises(SourceUnavailable, match="may have jobs of ours"):
            blue.source.count()
        with pytest.raises(SourceUnavailable, match="gone"):
            await blue.source.settled()
    await blue.source.settled()
    assert blue.source.count() == Counts()
    assert blue.source.handed_back == 1  # type: ignore[attr-defined]
    green.start(1)
    await all_ran_once(journal, ["x"])


async def test_a_fire_is_withheld_and_caught_up_with(blue: Release) -> None:
    fired = clocked(blue)
    await blue.source.hold()
    deferring = asyncio.create_task(fire(blue, 60))
    await asyncio.sleep(0.05)
    assert blue.source.overdue == 1  # type: ignore[attr-defined]
    assert blue.source.count() == Counts()
    await blue.source.release()
    assert await deferring is not None
    assert await fire(blue, 120) is not None
    assert await fired() == [60, 120]


async def test_a_fire_of_another_release_is_not_repeated(
    blue: Release, green: Release
) -> None:
    """The database would let the older one of them through."""
    fired = clocked(blue)
    clocked(green)
    await blue.source.hold()
    deferring = asyncio.create_task(fire(blue, 60))
    await fire(green, 60)
    await fire(green, 120)
    await blue.source.release()
    assert await deferring is None
    assert await fire(blue, 120) is None
    assert await fire(blue, 180) is not None
    assert await fired() == [60, 120, 180]


def clocked(one: Release) -> Any:
    """Give it a periodic task; what tells which of its fires are in the queue."""

    @one.app.periodic(cron="* * * * *")
    @one.app.task(name="tick")
    async def tick(timestamp: int) -> None:
        """Nothing to do."""

    async def fired() -> list[int]:
        jobs = await one.app.job_manager.list_jobs_async(task="tick")
        return [int(str(job.task_kwargs["timestamp"])) for job in jobs]

    return fired


async def fire(one: Release, timestamp: int) -> int | None:
    """As the deferrer of a worker does at that minute."""
    task = one.app.tasks["tick"].configure(task_kwargs={"timestamp": timestamp})
    return await one.app.job_manager.defer_periodic_job(task.job, "", timestamp)


async def test_an_app_has_one_source(blue: Release, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="an app has one source"):
        ProcrastinateWorkers(blue.app)
    with pytest.raises(Misuse, match="an app has one source"):
        drainable(blue.app, tmp_path)


async def test_a_worker_that_runs_is_too_late_for_a_source(tmp_path: Path) -> None:
    """What it has fetched before would not be counted."""
    app, other = App(connector=InMemoryConnector()), App(connector=InMemoryConnector())
    async with app.open_async():
        run = app.run_worker_async(install_signal_handlers=False)
        worker = asyncio.create_task(run)
        await asyncio.sleep(0.1)
        with pytest.raises(Misuse, match="runs already; add the source before it"):
            ProcrastinateWorkers(app)
        with pytest.raises(Misuse, match="runs already"):
            drainable(app, tmp_path)
        ProcrastinateWorkers(other)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        ProcrastinateWorkers(app)


@pytest.mark.parametrize("wrong", [None, App, "postgresql://"])
def test_what_is_no_app_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match=r"an App of Procrastinate, not (None|str|the cl)"):
        ProcrastinateWorkers(wrong)


async def test_consumers_are_quiet_while_requests_are_busy(
    blue: Release, journal: Journal
) -> None:
    """J7, too: the report names what runs."""
    blue.start()
    told = await quiet_while_requests_are_busy(blue, journal, jobs=12, seconds=0.4)
    assert told["jobs"] == len(told["running"]) == 4


# Workers in processes of their own


class Commanded:
    """Workers of the command, as the scenario drives them."""

    def __init__(self, url: str, sockets: Path, enqueuer: Release) -> None:
        self.source = RemoteSource("procrastinate", "pull", sockets)
        self.enqueue = enqueuer.enqueue
        self._environment = {URL: url, SOCKETS: str(sockets)}
        self._ends = contextlib.ExitStack()

    def start(self, slots: int) -> Process:
        """Start one more, and wait until it works."""
        program = ("-m", "procrastinate", "--app", "tests.engines.procrastinated.app")
        options = ("--concurrency", str(slots), "--fetch-job-polling-interval", "0.2")
        process = self._ends.enter_context(
            running(*program, "worker", *options, environment=self._environment)
        )
        process.err.wait_for_text("Starting worker")
        return process

    def end(self) -> None:
        self._ends.close()


@pytest.fixture
def commanded(blue: Release, postgres_url: str, folder: Path) -> Iterator[Commanded]:
    one = Commanded(postgres_url, folder / "sockets", blue)
    yield one
    one.end()


async def test_the_command_passes_the_scenario_and_leaves_in_order(
    commanded: Commanded, journal: Journal
) -> None:
    process = commanded.start(4)
    await hold_in_the_middle(commanded, journal, prompt=0.3)
    await commanded.source.hold()
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    await commanded.source.settled()
    assert await commanded.source.count() == Counts()


async def test_a_dead_worker_of_the_command_is_unknown(
    commanded: Commanded, journal: Journal
) -> None:
    """J5."""
    process = commanded.start(1)
    await commanded.enqueue(["x"], 20.0)
    await journal.until(journal.started, "it works")
    await commanded.source.hold()
    assert await commanded.source.count() == Counts(jobs=1)
    process.signal(signal.SIGKILL)
    process.popen.wait()
    with pytest.raises(SourceUnavailable, match="died while it was held"):
        await commanded.source.count()
