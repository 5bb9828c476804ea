"""Whole drains of an app with an engine's jobs: what all of them must show.

    await quiet_while_requests_are_busy(engine, journal)
    await named_at_the_deadline(engine, journal)

One of them a test, as in `scenario`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.engines.journal import PATIENCE, Journal
from tests.engines.scenario import SLOTS, Engine, all_ran_once
from tests.rig import Release, Waiting

LONG = 20.0  # seconds of a job that shall not end by itself
AT_ONCE = 0.2  # seconds after a begin in which consumers are to be quiet


async def quiet_while_requests_are_busy(
    engine: Engine,
    journal: Journal,
    *,
    jobs: int = 40,
    seconds: float = 0.05,
    slots: int = SLOTS,
    at_once: bool = False,
) -> dict[str, Any]:
    """J2: within 200 ms of the begin, and not after HTTP; what the report told then.

    After a resume all goes on. `at_once` has the engine find all jobs together.
    """
    app = Waiting()
    release = Release(app)
    release.drain.add_source(engine.source)
    ids = [f"job-{n}" for n in range(jobs)]
    if at_once:
        await engine.source.hold()
    await engine.enqueue(ids, seconds)
    if at_once:
        await engine.source.release()
    await journal.until(lambda: len(journal.started()) >= slots, "they work")
    async with release.call() as call:
        await release.client.begin(timeoutMs=PATIENCE * 1000)
        begun = time.monotonic()
        await asyncio.sleep(AT_ONCE)
        told = await told_of(engine, release)
        assert told["held"]
        await journal.until(lambda: not journal.running(), "all that ran has ended")
        await asyncio.sleep(AT_ONCE)
        assert journal.started(since=begun + AT_ONCE) == [], str(journal)
        assert len(journal.ended()) < jobs, "the begin came too late: more jobs"
        assert str(release.drain.phase) == "draining"
        app.go.set()
        await call.wait()
        assert await ended(release) == "drained"
        told["handedBack"] = (await told_of(engine, release))["handedBack"]
    await release.client.resume()
    await all_ran_once(journal, ids)
    return told


async def named_at_the_deadline(
    engine: Engine, journal: Journal, ids: tuple[str, str] = ("slow-1", "slow-2")
) -> None:
    """J7: the report of a drain that failed has the ids of what still runs."""
    release = Release()
    release.drain.add_source(engine.source)
    await engine.enqueue(ids, LONG)
    await journal.until(lambda: len(journal.started()) == len(ids), "both run")
    await release.client.begin(timeoutMs=200)
    assert await ended(release) == "failed"
    report = await release.client.report()
    assert report["failure"] == "RUNTIME_DRAIN_TIMEOUT"
    told = await told_of(engine, release)
    assert (told["held"], told["jobs"], told["handedBack"]) == (True, len(ids), 0)
    assert sorted(told["running"]) == sorted(ids)


async def told_of(engine: Engine, release: Release) -> dict[str, Any]:
    """What the report says of an engine's source."""
    sources = (await release.client.report())["sources"]
    (told,) = (source for source in sources if source["name"] == engine.source.name)
    return dict(told)


async def ended(release: Release) -> str:
    """How its drain ended."""
    async with asyncio.timeout(PATIENCE):
        await release.drain.ended
    return str(release.drain.phase)
