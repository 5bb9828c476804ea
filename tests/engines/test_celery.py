"""Celery's workers, in processes of their own, on a Valkey."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from drainmw.errors import SourceError, SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.celery import CeleryWorkers
from tests.engines.celery_app import LEASE, made
from tests.engines.celery_nodes import Workers, asked, held, worker
from tests.engines.journal import Journal
from tests.engines.scenario import (
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.processes import Process
from tests.rig import Release, Waiting

pytestmark = pytest.mark.anyio

# A database of the server that the counter of the fixtures never reaches.
SHARED_DATABASE = 4000


@pytest.fixture(scope="module")
def shared(valkey_port: int) -> str:
    """A broker with a worker, `blue@test`, for all tests that leave it alive."""
    return f"redis://127.0.0.1:{valkey_port}/{SHARED_DATABASE}"


@pytest.fixture(scope="module")
def process(shared: str) -> Iterator[Process]:
    """That worker."""
    with worker(shared) as process:
        yield process


@pytest.fixture
def blue(shared: str, process: Process, journal: Journal) -> Iterator[Workers]:
    """Its driver and its adapter; it is left as it was before."""
    blue = Workers(shared, journal, "blue@test")
    yield blue
    with blue.app.connection_for_write() as own:  # no test has ended it
        blue.app.control.purge(connection=own)
        blue.source.engine.release()
        assert let_everybody_go(blue.app, own) == {"blue@test": False}


@pytest.fixture(scope="module")
def green_process(shared: str) -> Iterator[CeleryWorkers]:
    """A second worker, `green@test`, which takes nothing but in the tests of it."""
    keeper = CeleryWorkers(made(shared), ["green@test"])
    with worker(shared, "green@test"):
        keeper.engine.hold()
        yield keeper


@pytest.fixture
def green(
    shared: str, green_process: CeleryWorkers, journal: Journal
) -> Iterator[Workers]:
    green_process.engine.release()
    yield Workers(shared, journal, "green@test")
    green_process.engine.hold()


def let_everybody_go(app: Any, connection: Any = None) -> dict[str, bool]:
    """As `celery control drainmw_release` does; tells whether it is held still."""
    where = {"destination": ["blue@test"], "limit": 1, "timeout": 5}
    (reply,) = app.control.broadcast(
        "drainmw_release", reply=True, connection=connection, **where
    )
    return {node: answer["held"] for node, answer in reply.items()}


async def known(source: CeleryWorkers) -> Counts:
    """Its count, once there is an answer."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await asked(source)
            except SourceUnavailable:
                await asyncio.sleep(0.02)


async def counted(source: CeleryWorkers, jobs: int) -> None:
    """Wait until it has so many."""
    async with asyncio.timeout(10):
        while True:
            if (await known(source)).jobs == jobs:
                return
            await asyncio.sleep(0.02)


async def ended(release: Release) -> str:
    """How its drain ended."""
    async with asyncio.timeout(10):
        await release.drain.ended
    return await release.state()


# The scenario


async def test_a_worker_of_processes_passes_the_scenario(
    redis_url: str, journal: Journal
) -> None:
    blue = Workers(redis_url, journal, "blue@test")
    with worker(redis_url, pool="prefork"):
        await hold_in_the_middle(blue, journal, seconds=0.1, prompt=2.0)
        journal.path.write_text("")
        await holds_at_random(blue, journal, rounds=6, may_start=True)


async def test_a_worker_of_threads_passes_the_scenario(
    blue: Workers, journal: Journal
) -> None:
    await hold_in_the_middle(blue, journal, seconds=0.1, prompt=2.0)
    journal.path.write_text("")
    await holds_at_random(blue, journal, rounds=6, may_start=True)


async def test_what_is_acknowledged_late_runs_once_too(
    blue: Workers, journal: Journal
) -> None:
    await holds_at_random(blue.of("late"), journal, rounds=6, may_start=True)


async def test_what_the_old_release_has_not_begun_the_new_one_runs(
    blue: Workers, green: Workers, journal: Journal
) -> None:
    await hand_over(blue, green, journal, seconds=0.1)


async def is_held(release: Release, name: str) -> bool:
    sources = (await release.client.report())["sources"]
    return any(source["held"] for source in sources if source["name"] == name)


async def test_the_new_release_starts_jobs_and_the_old_one_none(
    blue: Workers, green: Workers, journal: Journal
) -> None:
    """J1 and J2: quiet in good time after the begin, while HTTP is busy."""
    app = Waiting()
    release = Release(app)
    release.drain.add_source(blue.source)
    await blue.of("named").enqueue([f"job-{n}" for n in range(60)], 0.05)
    await journal.until(lambda: len(journal.started()) >= 8, "both work")
    async with release.call():
        await release.client.begin(timeoutMs=9000)
        async with asyncio.timeout(2):  # 10 to 50 ms on a quiet machine; no event tells
            while not await is_held(release, blue.source.name):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        quiet_from = time.monotonic()
        await journal.until(lambda: len(journal.ended()) == 60, "all ended")
        assert (await release.in_flight())["http"] == 1
        late = journal.started(since=quiet_from)
        assert {id.split()[0] for id in late} == {"green@test"}, str(journal)
        assert await known(green.source) == Counts()
        app.go.set()
    assert await ended(release) == "drained"
    assert len(journal.started()) == 60


# What counts, and what is known


async def test_jobs_that_run_at_the_deadline_are_named(
    blue: Workers, journal: Journal
) -> None:
    """J7"""
    release = Release()
    release.drain.add_source(blue.source)
    (id,) = await blue.send(["long"], 1.5)
    await journal.until(journal.started, "it runs")
    await release.client.begin(timeoutMs=300)
    assert await ended(release) == "failed"
    report = await release.client.report()
    assert report["inFlight"]["jobs"] == 1
    assert report["sources"][-1]["running"] == [f"work[{id}]"]
    assert [b["path"] for b in report["blockers"]] == [f"work[{id}]"]
    await release.client.resume()
    await counted(blue.source, 0)


async def test_what_waits_for_its_time_or_its_rate_is_counted_and_goes_back(
    blue: Workers, journal: Journal, shared: str
) -> None:
    source = blue.source
    await blue.enqueue(["in a minute"], 0.0, countdown=60)
    await blue.of("limited").enqueue([f"limited-{n}" for n in range(4)], 0.0)
    await journal.until(journal.started, "the first of them")
    await counted(source, 4)
    await held(source)
    await source.settled()
    held_at = time.monotonic()
    left = 5 - len(journal.started())
    assert left > 1
    assert (await known(source), source.handed_back) == (Counts(), left)
    with redis.Redis.from_url(shared) as broker:
        assert broker.llen("celery") == left
    await asyncio.sleep(0.4)
    assert journal.started(since=held_at) == []
    await source.release()
    await all_ran_once(journal, [f"limited-{n}" for n in range(4)])
    await counted(source, 1)
    await held(source)  # the last of them goes back, too


@pytest.mark.parametrize("fate", ["resumed", "handed over"])
async def test_what_comes_due_during_a_hold_runs_once(
    fate: str, blue: Workers, journal: Journal, request: pytest.FixtureRequest
) -> None:
    """J8"""
    due = time.monotonic() + 0.8
    await blue.enqueue(["once"], 0.0, countdown=0.8)
    await counted(blue.source, 1)
    await held(blue.source)
    await blue.source.settled()
    assert time.monotonic() < due
    await asyncio.sleep(due + 0.2 - time.monotonic())
    assert journal.started() == []
    if fate == "resumed":
        await blue.source.release()
    else:
        request.getfixturevalue("green")
    await all_ran_once(journal, ["once"])


async def test_a_worker_that_gives_no_answer_is_named(blue: Workers) -> None:
    both = CeleryWorkers(blue.app, ["blue@test", "nobody@test"])
    with pytest.raises(SourceUnavailable, match="no answer from nobody@test"):
        await asked(both)


async def test_a_worker_that_died_is_unknown_and_its_release_not_drained(
    redis_url: str, journal: Journal
) -> None:
    """J5: nor does another one of its name know what it ran."""
    blue = Workers(redis_url, journal, "blue@test")
    release = Release()
    release.drain.add_source(blue.source)
    with worker(redis_url) as process:
        await blue.enqueue(["lost"], 20.0)
        await journal.until(journal.started, "it runs")
        await release.client.begin(timeoutMs=3000)
        await held(blue.source)  # the drain has done so, or is about to
        process.signal(signal.SIGKILL)
        process.exit_code()
    with pytest.raises(SourceUnavailable, match="no answer from blue@test"):
        await asked(blue.source)
    with worker(redis_url):
        with pytest.raises(SourceUnavailable, match="blue@test died while it was"):
            await asked(blue.source)
        async with asyncio.timeout(10):
            await release.drain.ended
        report = await release.client.report()
    assert report["phase"] == "failed"
    assert report["inFlight"]["jobs"] is None
    assert "blue@test died while it was held" in report["sources"][-1]["error"]


async def test_two_workers_of_one_name_are_not_taken_for_one(
    blue: Workers, shared: str, journal: Journal
) -> None:
    """As where both releases on a host run under Celery's default name."""
    await blue.enqueue(["long"], 0.5)
    await journal.until(journal.started, "it runs")
    with worker(shared):
        with pytest.raises(SourceUnavailable, match="two processes answer as blue"):
            await blue.source.hold()
    await journal.until(journal.ended, "it has ended")


async def test_nothing_is_on_its_way_from_the_broker_once_it_has_settled(
    blue: Workers, process: Process, shared: str
) -> None:
    """Or it would be lost with the process."""
    await held(blue.source)
    await blue.source.settled()
    process.signal(signal.SIGSTOP)
    try:
        await blue.enqueue(["stays"], 0.0)
        await asyncio.sleep(0.05)
        with redis.Redis.from_url(shared) as broker:
            assert broker.llen("celery") == 1
    finally:
        process.signal(signal.SIGCONT)


async def test_a_solo_worker_is_unknown_until_its_job_has_ended(
    redis_url: str, journal: Journal
) -> None:
    blue = Workers(redis_url, journal, "blue@test")
    with worker(redis_url, pool="solo"):
        await blue.enqueue(["long"], 0.8)
        await journal.until(journal.started, "it runs")
        with pytest.raises(SourceUnavailable):
            await asked(blue.source)
        assert await known(blue.source) == Counts()
        assert journal.ended() == ["long"]
        await held(blue.source)
        await blue.enqueue(["waits"], 0.0)
        await asyncio.sleep(0.2)
        assert journal.started() == ["long"]
        await blue.source.release()
        await all_ran_once(journal, ["long", "waits"])


async def test_a_worker_of_another_app_cannot_be_held_and_says_why(
    redis_url: str,
) -> None:
    source = CeleryWorkers(made(redis_url), ["blue@test"])
    with worker(redis_url, TEST_STOCK="1"):
        with pytest.raises(SourceError, match=r"drainable\(app\)"):
            await held(source)


# How long a lease lasts

LEASE_SECONDS = 1.2


async def test_jobs_that_outlast_their_leases_run_once(
    redis_url: str, journal: Journal
) -> None:
    """J6: what runs, serving and held, and what waits; or another would run it."""
    blue = Workers(redis_url, journal, "blue@test")
    green = CeleryWorkers(blue.app, ["green@test"])
    options, lease = ("--prefetch-multiplier=1",), {LEASE: str(LEASE_SECONDS)}
    long = [f"long-{n}" for n in range(8)]
    with (
        worker(redis_url, "blue@test", *options, pool="prefork", **lease),
        worker(redis_url, "green@test", *options, pool="threads", **lease),
    ):
        await held(blue.source)
        await blue.enqueue(["in time"], 0.0, countdown=LEASE_SECONDS * 1.5)
        await counted(green, 1)
        await blue.source.release()
        await blue.of("late").enqueue(long, LEASE_SECONDS * 1.3)
        await journal.until(lambda: len(journal.started()) == 8, "all slots busy")
        await held(blue.source)
        await counted(blue.source, 4)
        await counted(green, 5)
        await all_ran_once(journal, [*long, "in time"])
        await blue.source.settled()
        await blue.source.release()


# How long a hold lasts


async def test_a_hold_outlives_the_connection_to_the_broker(
    blue: Workers, journal: Journal, shared: str
) -> None:
    with redis.Redis.from_url(shared) as broker:
        await held(blue.source)
        for kind in ("normal", "pubsub"):
            broker.client_kill_filter(_type=kind, skipme=True)
        await blue.enqueue(["late"], 0.0)
        assert await known(blue.source) == Counts()
        await asyncio.sleep(0.3)
        assert journal.started() == []
        await blue.source.release()
        await all_ran_once(journal, ["late"])


async def test_a_worker_that_comes_up_during_a_hold_comes_up_held(
    redis_url: str, journal: Journal
) -> None:
    blue = Workers(redis_url, journal, "blue@test")
    await blue.enqueue(["waits"], 0.0)
    holding = asyncio.create_task(blue.source.hold())
    await asyncio.sleep(0)
    with worker(redis_url):
        with pytest.raises(SourceUnavailable):
            await holding
        assert await known(blue.source) == Counts()
        await asyncio.sleep(0.3)
        assert journal.started() == []
        await held(blue.source)
        await blue.source.release()
        await all_ran_once(journal, ["waits"])


async def test_a_worker_is_held_until_its_last_holder_lets_go(
    blue: Workers, journal: Journal, shared: str
) -> None:
    """Each process of an app holds for itself."""
    other = Workers(shared, journal, "blue@test")
    await held(blue.source)
    await held(other.source)
    await blue.enqueue(["waits"], 0.0)
    await blue.source.release()
    await asyncio.sleep(0.2)
    assert journal.started() == []
    await other.source.release()
    await all_ran_once(journal, ["waits"])


async def test_a_worker_that_lost_its_hold_is_unknown_and_is_held_anew(
    blue: Workers, journal: Journal
) -> None:
    await held(blue.source)
    assert let_everybody_go(blue.app) == {"blue@test": False}
    with pytest.raises(SourceUnavailable, match="blue@test must be held anew"):
        await asked(blue.source)
    await blue.source.settled()
    assert await asked(blue.source) == Counts()
    await blue.enqueue(["waits"], 0.0)
    await asyncio.sleep(0.2)
    assert journal.started() == []
