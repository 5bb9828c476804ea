"""arq's worker, held in this loop and in a process of its own."""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.arq import ArqWorker
from drainmw.sources.base import Counts
from tests.engines.drains import (
    LONG,
    named_at_the_deadline,
    quiet_while_requests_are_busy,
)
from tests.engines.journal import Journal
from tests.engines.redis5.arqs import Apart, every_second, here, once_within, queue
from tests.engines.scenario import (
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.rig import Release

pytestmark = [
    pytest.mark.anyio,
    # arq closes its pool by the name of old.
    pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning"),
]


@pytest.fixture
async def apart(redis_url: str, folder: Path, journal: Journal) -> AsyncIterator[Apart]:
    """Workers in processes of their own, once they are started."""
    async with queue(redis_url) as pool:
        with contextlib.ExitStack() as ends:
            yield Apart(pool, journal, redis_url, folder, ends)


async def test_it_passes_the_scenario(redis_url: str, journal: Journal) -> None:
    async with here(redis_url, journal) as engine:
        await hold_in_the_middle(engine, journal, prompt=0.5)


async def test_it_passes_at_random(redis_url: str, journal: Journal) -> None:
    """J4: what has been looked up in the queue, and not started, stays there."""
    async with here(redis_url, journal) as engine:
        await holds_at_random(engine, journal, rounds=12)


async def test_what_one_release_has_not_started_another_runs(
    redis_url: str, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    async with here(redis_url, journal) as blue, here(redis_url, journal) as green:
        await hand_over(blue, green, journal)


async def test_a_worker_can_be_held_before_it_starts(
    redis_url: str, journal: Journal
) -> None:
    async with here(redis_url, journal, starts=False) as engine:
        await engine.source.hold()
        engine.start()
        await engine.enqueue(["early"], 0.0)
        await asyncio.sleep(0.2)
        assert journal.lines() == []
        await engine.source.release()
        await all_ran_once(journal, ["early"])


async def test_a_hold_does_not_wait_for_all_that_is_being_started(
    redis_url: str, journal: Journal
) -> None:
    """The ids of a poll are started one by one, with a look at the hold between."""
    async with here(redis_url, journal, starts=False, max_jobs=50) as engine:
        ids = [f"job-{n:02}" for n in range(50)]
        await engine.enqueue(ids, 0.01)
        engine.start()
        await journal.until(journal.started, "the first")
        await engine.source.hold()
        await engine.source.settled()
        assert 0 < len(journal.ended()) < len(ids)
        await engine.source.release()
        await all_ran_once(journal, ids)


@pytest.mark.parametrize("step", ["leased", "begun"])
async def test_a_hold_waits_for_the_one_that_is_being_started(
    step: str, redis_url: str, journal: Journal
) -> None:
    """J4: until it has been leased, and until it has begun."""
    async with here(redis_url, journal, starts=False) as engine:
        source, worker = engine.source, engine.worker
        whose, name = (source, "_start") if step == "leased" else (worker, "run_job")
        act = getattr(whose, name)
        is_at_it, go = asyncio.Event(), asyncio.Event()

        async def late(*given: Any) -> None:
            is_at_it.set()
            await go.wait()
            await act(*given)

        setattr(whose, name, late)
        await engine.enqueue(["x"], 0.1)
        engine.start()
        await is_at_it.wait()
        holding = asyncio.create_task(source.hold())
        await asyncio.sleep(0.05)
        assert not holding.done()
        go.set()
        await holding
        assert source.count() == Counts(jobs=1)
        assert journal.started() == ["x"]
        await source.settled()
        await all_ran_once(journal, ["x"])


async def test_consumers_are_quiet_while_requests_are_busy(
    redis_url: str, journal: Journal
) -> None:
    async with here(redis_url, journal) as engine:
        await quiet_while_requests_are_busy(engine, journal)


async def test_running_jobs_stand_in_the_report(
    redis_url: str, journal: Journal
) -> None:
    async with here(redis_url, journal) as engine:
        await named_at_the_deadline(engine, journal)


async def test_jobs_that_outlast_their_leases_run_once(
    redis_url: str, journal: Journal
) -> None:
    """J6: serving and held; arq's own shortest lease is of ten seconds."""
    async with (
        here(redis_url, journal, starts=False, job_timeout=None) as blue,
        here(redis_url, journal, starts=False) as green,
    ):
        assert blue.worker.in_progress_timeout_s == 10
        for engine in (blue, green):
            engine.worker.in_progress_timeout_s = 0.4
        blue.start()
        await blue.enqueue(["a", "b"], 1.1)
        await journal.until(lambda: len(journal.started()) == 2, "blue runs both")
        green.start()
        await asyncio.sleep(0.55)
        await blue.source.hold()
        await all_ran_once(journal, ["a", "b"])
        await blue.source.settled()
        assert await blue.pool.keys("arq:in-progress:*") == []


async def test_a_lease_that_cannot_be_renewed_ends_no_worker(
    redis_url: str, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a broker can be read, and not be written to, for a while."""
    async with here(redis_url, journal, starts=False) as engine:
        engine.worker.in_progress_timeout_s = 0.4
        renew, fails = engine.source._renew, asyncio.Event()

        async def fail_once(milliseconds: int) -> None:
            if not fails.is_set():
                fails.set()
                raise ResponseError("READONLY You can't write")
            await renew(milliseconds)

        engine.source._renew = fail_once  # type: ignore[method-assign]
        engine.start()
        await engine.enqueue(["a"], 0.6)
        await all_ran_once(journal, ["a"])
        await engine.enqueue(["b"], 0.0)
        await all_ran_once(journal, ["a", "b"])
        assert engine.source.count() == Counts()
    assert 'leases not renewed error="READONLY' in caplog.text


async def test_a_worker_that_died_is_unknown(redis_url: str, journal: Journal) -> None:
    """J5: whether its broker knows what it did is not to be told."""
    release = Release()
    async with here(redis_url, journal) as engine:
        release.drain.add_source(engine.source)

        async def fails(*_: object) -> None:
            raise ConnectionError("the broker is gone")

        engine.worker.finish_job = fails
        await engine.enqueue(["x"], 0.1)
        await journal.until(journal.started, "it runs")
        await release.client.begin(timeoutMs=1000)
        await asyncio.wait([engine.worker.tasks["x"]])
        for _ in range(2):  # at once, and when the worker has noticed
            with pytest.raises(SourceUnavailable, match=r"died: .*broker is gone"):
                engine.source.count()
            with pytest.raises(SourceUnavailable, match="died"):
                await engine.source.settled()
            await asyncio.sleep(0.2)
        assert engine.worker.main_task.done()
        await release.drain.ended
        report = await release.client.report()
        assert str(release.drain.phase) == "failed"
        assert "the worker has died" in report["failure"]


async def test_a_worker_that_runs_is_no_source_any_more(
    redis_url: str, journal: Journal
) -> None:
    async with here(redis_url, journal) as engine:
        await asyncio.sleep(0)
        with pytest.raises(Misuse, match="before it runs"):
            ArqWorker(engine.worker)


@pytest.mark.parametrize("wrong", [None, ArqWorker, object()])
def test_what_is_no_worker_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match=r"a worker, such as .* not (None|the c|object)"):
        ArqWorker(wrong)


@pytest.mark.parametrize("held", ["at work", "at its birth"])
async def test_a_one_shot_that_is_due_while_held_runs_once_after_it(
    held: str, redis_url: str, journal: Journal
) -> None:
    """J8."""
    jobs = [once_within(2.0)]
    async with here(redis_url, journal, starts=False, cron_jobs=jobs) as engine:
        if held == "at work":
            engine.start()
            await journal.until(lambda: jobs[0].next_run, "it knows when")
        await engine.source.hold()
        if held == "at its birth":
            engine.start()
        await journal.until(lambda: engine.source.overdue, "it is due")
        await asyncio.sleep(0.3)
        assert engine.source.overdue == 1
        assert journal.lines() == []
        assert engine.source.count() == Counts()
        await engine.source.release()
        await journal.until(journal.ended, "the one-shot")
        await asyncio.sleep(0.2)
        assert len(journal.started()) == 1
        assert engine.source.overdue == 0


async def test_a_fire_that_the_new_release_has_run_is_not_run_again(
    redis_url: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8. arq itself knows it for 60 s only; here that is next to nothing."""
    monkeypatch.setattr("arq.worker.keep_cronjob_progress", 0.01)
    async with (
        here(redis_url, journal, cron_jobs=[every_second()]) as blue,
        here(redis_url, journal, cron_jobs=[every_second()]) as green,
    ):
        await journal.until(journal.ended, "the first fire")
        await blue.source.hold()
        since = time.monotonic()
        # Each enqueues a fire a second ahead: this is one that blue still plans.
        await journal.until(lambda: len(journal.ended(since)) >= 2, "two more")
        await green.source.hold()
        await green.source.settled()
        await asyncio.sleep(1.1)  # one that nobody has run
        await blue.source.release()
        number = len(journal.ended())
        await journal.until(lambda: len(journal.ended()) >= number + 2, "it goes on")
        assert max(Counter(journal.started()).values()) == 1, str(journal)
        fires = sorted(int(id.removeprefix("tick:")) for id in journal.started())
        assert fires[-1] - fires[0] == 1000 * (len(fires) - 1), "none is missing"


async def test_a_worker_process_passes_the_scenario(
    apart: Apart, journal: Journal
) -> None:
    apart.start("a")
    await hold_in_the_middle(apart, journal, prompt=0.5)


async def test_a_worker_process_that_died_is_unknown_until_reborn(
    apart: Apart, journal: Journal
) -> None:
    """J5, and who is reborn is held."""
    process = apart.start("a")
    await apart.enqueue(["lost"], LONG)
    await journal.until(journal.started, "it works")
    await apart.source.hold()
    assert await apart.source.count() == Counts(jobs=1)
    process.popen.send_signal(signal.SIGKILL)
    process.popen.wait()
    with pytest.raises(SourceUnavailable, match="worker a of arq died"):
        await apart.source.count()
    process = apart.start("a")
    await apart.enqueue(["later"], 0.0)
    assert await apart.source.count() == Counts()
    await asyncio.sleep(0.2)
    assert journal.started() == ["lost"]
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0, process.err.text
    await apart.source.settled()
