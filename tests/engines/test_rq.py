"""RQ on a real Valkey: its own command, and workers that fork.

A job has started, and counts, some milliseconds before its fork writes so.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

pytest.importorskip("rq")

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from rq.suspension import suspend

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.rq import DrainableWorker, RQWorkers
from drainmw.sources.rqrelease import PAUSE, Keys, busy
from tests.engines.drains import quiet_while_requests_are_busy
from tests.engines.journal import Journal
from tests.engines.rqs import Release, counted
from tests.engines.scenario import (
    SLOTS,
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def blue(redis_url: str, journal: Journal) -> Iterator[Release]:
    one = Release(redis_url, journal, "blue")
    yield one
    one.end()


@pytest.fixture
def green(redis_url: str, journal: Journal) -> Iterator[Release]:
    one = Release(redis_url, journal, "green")
    yield one
    one.end()


async def test_it_passes_the_scenario(blue: Release, journal: Journal) -> None:
    blue.start(SLOTS)
    await hold_in_the_middle(blue, journal, jobs=12, prompt=0.5, may_start=True)


async def test_workers_of_many_queues_pass_it_at_random(
    blue: Release, journal: Journal
) -> None:
    """J4: what was pulled at the hold goes back to the front."""
    blue.start(2, queues=("work", "other"))
    await holds_at_random(blue, journal, pause=0.1, may_start=True)


async def test_what_one_release_has_not_started_another_runs(
    blue: Release, green: Release, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    blue.start(1)
    green.start(1)
    await hand_over(blue, green, journal, jobs=6, slots=1)


async def test_idle_workers_settle_at_once(
    blue: Release, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for work in Redis, so they have to be woken; until then they count."""
    blue.start(2)
    await journal.until(lambda: pulling(blue) == 2, "both wait for work")
    assert await blue.count() == Counts()
    with monkeypatch.context() as deaf:
        deaf.setattr(blue.redis, "client_unblock", lambda _id: None)
        await blue.source.hold()
        assert await blue.count() == Counts(jobs=2)
    asked = time.monotonic()
    await blue.source.settled()
    assert time.monotonic() - asked < 0.5
    assert await blue.count() == Counts()


async def test_idle_workers_give_back_what_comes_while_they_are_held(
    blue: Release, journal: Journal
) -> None:
    """J4: each would run one job more."""
    blue.start(2)
    await journal.until(lambda: pulling(blue) == 2, "both wait for work")
    blue.redis.hset("drainmw:rq:blue:holds", "somebody", "now")
    await blue.enqueue(["x", "y"], 0.0)
    await journal.until(lambda: not pulling(blue), "both have looked")
    await blue.source.hold()
    assert await blue.count() == Counts()
    assert len(blue.queue) == 2
    assert blue.redis.get("drainmw:rq:blue:back") == b"2"
    assert journal.started() == []
    blue.redis.hdel("drainmw:rq:blue:holds", "somebody")
    await blue.source.release()
    await all_ran_once(journal, ["x", "y"])


async def test_workers_that_are_suspended_settle(
    blue: Release, journal: Journal
) -> None:
    blue.start(1)
    await blue.enqueue(["x"], 0.2)
    await journal.until(journal.started, "it works")
    suspend(blue.redis)
    await blue.source.hold()
    async with asyncio.timeout(2):
        await blue.source.settled()
    assert await blue.count() == Counts()


def pulling(one: Release) -> int:
    return sum(state.startswith(b"pulling") for state in states_of(one))


def states_of(one: Release) -> list[bytes]:
    return one.redis.hvals(f"drainmw:rq:{one.release}:workers")  # type: ignore[return-value]


async def test_a_job_that_came_too_late_goes_back_to_the_front(
    blue: Release, journal: Journal
) -> None:
    """J4: the worker had it in hand when the hold was written."""
    await blue.enqueue(["x", "y"], 0.0)
    ids = blue.queue.job_ids
    worker = DrainableWorker([blue.queue], connection=blue.redis)
    worker.release = "blue"
    worker.register_birth()
    assert worker.may_pull()
    pulled = blue.queue.dequeue_any([blue.queue], None, connection=blue.redis)
    assert pulled is not None
    blue.redis.hset("drainmw:rq:blue:holds", "somebody", "now")
    for _ in range(2):  # the answer may get lost
        assert not worker.may_start(*pulled)
        assert blue.queue.job_ids == ids
    assert blue.queue.intermediate_queue.get_job_ids() == []
    assert not worker.may_pull()
    worker.register_death()


async def test_a_worker_that_is_born_while_it_is_held_starts_held(
    blue: Release, journal: Journal
) -> None:
    with pytest.raises(SourceUnavailable, match=r"0 of 1 .*RQ_RELEASE=blue\?"):
        await blue.source.hold()
    await blue.enqueue(["x"], 0.0)
    blue.start(1)
    await blue.source.settled()
    await asyncio.sleep(0.2)
    assert journal.started() == []
    await blue.source.release()
    await all_ran_once(journal, ["x"])


async def test_a_job_that_was_scheduled_waits_until_the_release(
    blue: Release, journal: Journal
) -> None:
    """J8: RQ's scheduler goes on, and moves it into its queue."""
    blue.start(1, "--with-scheduler")
    await blue.source.hold()
    work = "tests.engines.journal.work"
    path = str(journal.path)
    blue.queue.enqueue_in(timedelta(seconds=0.2), work, path, "due", 0.0)
    await journal.until(lambda: blue.queue.job_ids, "it is in its queue")
    assert journal.started() == []
    await blue.source.release()
    await all_ran_once(journal, ["due"])


async def test_the_lease_of_a_job_is_renewed_while_its_worker_is_held(
    blue: Release, journal: Journal
) -> None:
    """J6."""
    blue.start(1, "--job-monitoring-interval", "1")
    await blue.enqueue(["long"], 2.0)
    await journal.until(journal.started, "it works")
    await blue.source.hold()
    assert await blue.count() == Counts(jobs=1)
    before = leases(blue)
    await journal.until(lambda: leases(blue) != before, "it is renewed")
    assert len(leases(blue)) == len(journal.running()) == 1
    await blue.source.settled()
    await all_ran_once(journal, ["long"])


def leases(one: Release) -> list[tuple[bytes, float]]:
    key = one.queue.started_job_registry.key
    return one.redis.zrange(key, 0, -1, withscores=True)  # type: ignore[return-value]


async def test_who_leaves_in_order_has_left_nothing(
    blue: Release, journal: Journal
) -> None:
    """Also where it waited for work, and nobody was held yet."""
    worker, idle = blue.start(2)
    await journal.until(lambda: pulling(blue) == 2, "both wait for work")
    idle.signal(signal.SIGTERM)
    assert idle.exit_code() == 0
    await blue.source.hold()
    await blue.source.settled()
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert await blue.count() == Counts()
    await blue.source.settled()


async def test_who_dies_with_a_job_is_unknown_and_its_fork_is_counted(
    blue: Release, journal: Journal
) -> None:
    """J5: even where it has died before the hold, until RQ has forgotten it."""
    (worker,) = blue.start(1)
    await blue.enqueue(["x"], 0.5)
    await journal.until(journal.started, "it works")
    worker.signal(signal.SIGKILL)
    worker.popen.wait()
    await journal.until(journal.ended, "its fork has ended")
    await asyncio.sleep(0.3)
    blue.start(1)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="has died, and had a job"):
            await blue.source.hold()
        with pytest.raises(SourceUnavailable, match="has died, and had a job"):
            await blue.count()
        with pytest.raises(SourceUnavailable, match="has died, and had a job"):
            await blue.source.settled()
    for key in blue.redis.scan_iter("rq:worker:*"):
        if blue.redis.hget(key, "pid") == str(worker.popen.pid).encode():
            blue.redis.delete(key)  # as it expires
    await blue.source.settled()
    assert await blue.count() == Counts()


async def test_a_hold_that_redis_has_lost_is_unknown_once(blue: Release) -> None:
    blue.start(1)
    await blue.source.hold()
    blue.redis.delete("drainmw:rq:blue:holds")
    with pytest.raises(SourceUnavailable, match="had lost the hold"):
        await blue.count()
    await blue.source.settled()
    assert await blue.count() == Counts()


@pytest.mark.parametrize("when", ["before it is held", "while it is held"])
async def test_what_runs_on_a_redis_that_came_back_empty_is_unknown(
    blue: Release, journal: Journal, when: str
) -> None:
    """The worker that waits for work tells of itself, the busy one only at the end."""
    blue.start(2)
    await blue.enqueue(["x"], 0.8)
    await journal.until(journal.started, "it works")
    await journal.until(lambda: pulling(blue) == 1, "the other one waits for work")
    if when == "while it is held":
        await blue.source.hold()
    idle = [state.split()[1] for state in states_of(blue) if b"pulling" in state]
    blue.redis.flushdb()
    with contextlib.suppress(SourceUnavailable):
        await blue.source.hold()
    for client in idle:  # it would look up after five seconds
        blue.redis.client_unblock(int(client))
    await journal.until(lambda: states_of(blue), "it has")
    with pytest.raises(SourceUnavailable, match="Redis has lost what worker"):
        await blue.count()
    assert journal.running() == ["x"]
    await journal.until(lambda: not journal.running(), "it has ended")
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(SourceUnavailable):
                await blue.source.settled()
                break
            await asyncio.sleep(0.05)
    assert await blue.count() == Counts()


async def test_who_listens_and_tells_its_state_a_moment_later_is_known(
    blue: Release,
) -> None:
    """It is being born while it is looked for."""
    keys = Keys("blue", "holds", "workers")
    presence: Any = cast(Any, blue.redis).pubsub()
    with contextlib.closing(presence):
        presence.subscribe(keys.channel(blue.redis, "newborn"))
        presence.get_message(timeout=1)
        with pytest.raises(SourceUnavailable, match="lost what worker newborn does"):
            await blue.count()
        asked = asyncio.ensure_future(blue.count())
        await asyncio.sleep(PAUSE / 5)
        keys.tell(blue.redis, "newborn", busy("a job"))
        assert await asked == Counts(jobs=1)


async def test_a_release_of_that_name_in_another_database_is_another(
    blue: Release, another_redis_url: str
) -> None:
    """A server has the channels of all its databases in common."""
    blue.start(1)
    with Redis.from_url(another_redis_url) as database:
        other = RQWorkers(database, "blue", expected=0)
        assert await counted(other) == Counts()


async def test_two_processes_of_an_app_hold_it_each_for_itself(
    blue: Release, journal: Journal
) -> None:
    """A late release of the one does not undo the hold of the other."""
    other = RQWorkers(blue.redis, "blue")
    blue.start(1)
    await blue.source.hold()
    await other.hold()
    await blue.source.release()
    await blue.enqueue(["x"], 0.0)
    await other.settled()
    await asyncio.sleep(0.2)
    assert journal.started() == []
    await other.release()
    await all_ran_once(journal, ["x"])


async def test_a_server_that_is_gone_is_unknown(journal: Journal) -> None:
    gone = Release("redis://127.0.0.1:1/0", journal, "blue")
    with pytest.raises(SourceUnavailable, match="Connection refused"):
        await gone.source.hold()
    gone.end()


async def test_a_worker_needs_a_release(blue: Release) -> None:
    worker = DrainableWorker([blue.queue], connection=blue.redis)
    with pytest.raises(Misuse, match="told by RQ_RELEASE"):
        worker.register_birth()
    with pytest.raises(Misuse, match="not 'a b'"):
        RQWorkers(blue.redis, "a b")
    for number in (-1, "2"):
        with pytest.raises(Misuse, match="at least 0, not"):
            RQWorkers(blue.redis, "blue", expected=cast(Any, number))
    with pytest.raises(Misuse, match="not None; its processes are told by"):
        RQWorkers(blue.redis, cast(Any, None))
    refused = r"takes a Redis, such as redis\.Redis\.from_url\(url\), not "
    for wrong, named in (
        ("redis://host", "str"),
        (blue.queue, "Queue"),
        (AsyncRedis(), "that of redis.asyncio.client"),
    ):
        with pytest.raises(Misuse, match=f"{refused}{named}"):
            RQWorkers(cast(Any, wrong), "blue")


async def test_consumers_are_quiet_while_requests_are_busy(
    blue: Release, journal: Journal
) -> None:
    """J7, too: the report names what runs."""
    blue.start(2)
    told = await quiet_while_requests_are_busy(
        blue, journal, jobs=6, seconds=0.5, slots=2
    )
    assert told["jobs"] == len(told["running"]) == 2
