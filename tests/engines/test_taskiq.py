"""Taskiq's receivers, held in this loop and in processes of their own."""

import asyncio
import contextlib
import functools
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NoConnection
from taskiq import AckableMessage
from taskiq.api import run_receiver_task
from taskiq_redis import PubSubBroker, RedisStreamBroker

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.remote import RemoteSource
from drainmw.sources.taskiq import TaskiqWorkers
from drainmw.sources.taskiqqueues import Message
from tests.engines.drains import named_at_the_deadline, quiet_while_requests_are_busy
from tests.engines.journal import Journal, work
from tests.engines.scenario import (
    SLOTS,
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.engines.taskiqs import MakeBroker, Taskiq, here, on_a_list, on_a_stream
from tests.processes import PATIENCE, Process, running

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("make", [on_a_list, on_a_stream])


@both
async def test_it_passes_the_scenario(
    make: MakeBroker, redis_url: str, journal: Journal
) -> None:
    async with here(make, redis_url, journal, max_prefetch=2) as engine:
        await hold_in_the_middle(engine, journal, prompt=0.1)


@both
async def test_it_passes_at_random(
    make: MakeBroker, redis_url: str, journal: Journal
) -> None:
    """J4: what it has pulled ahead goes back, or runs."""
    async with here(make, redis_url, journal, max_prefetch=2) as engine:
        await holds_at_random(engine, journal, rounds=10)
        assert engine.source.handed_back > 0


@both
async def test_what_is_taken_in_the_moment_of_a_hold_goes_back(
    make: MakeBroker,
    redis_url: str,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J4: it has a slot, and its task has not begun."""
    async with here(make, redis_url, journal) as engine:
        source = engine.source
        take = source._take

        def take_and_hold(message: Message) -> object:
            lease = take(message)
            with contextlib.suppress(StopIteration):
                source.hold().send(None)  # a step that waits for nothing
            return lease

        monkeypatch.setattr(source, "_take", take_and_hold)
        await engine.enqueue(["x"], 0.0)
        await journal.until(lambda: source.handed_back, "it goes back")
        await source.settled()
        assert journal.started() == []
        monkeypatch.undo()
        await source.release()
        await all_ran_once(journal, ["x"])


@both
async def test_what_one_release_has_not_started_another_runs(
    make: MakeBroker, redis_url: str, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    async with (
        here(make, redis_url, journal) as blue,
        here(make, redis_url, journal) as green,
    ):
        await hand_over(blue, green, journal)


@both
async def test_another_release_need_not_wait_for_what_runs_here(
    make: MakeBroker, redis_url: str, journal: Journal
) -> None:
    """What this one was delivered ahead is in the queue again at once."""
    async with (
        here(make, redis_url, journal, max_prefetch=4) as blue,
        here(make, redis_url, journal) as green,
    ):
        await green.source.hold()
        await green.source.settled()
        ids = [f"job-{n:02}" for n in range(12)]
        await blue.enqueue(ids, 0.6)
        await journal.until(lambda: len(journal.started()) == SLOTS, "blue is busy")
        await blue.source.hold()
        await asyncio.sleep(0.1)
        assert blue.source.count() == Counts(jobs=SLOTS)
        assert blue.source.handed_back >= 1
        since = time.monotonic()
        await green.source.release()
        await journal.until(lambda: len(journal.started(since)) == SLOTS, "green's")
        assert journal.ended() == []
        await blue.source.settled()
        await all_ran_once(journal, ids)


@both
async def test_a_receiver_can_be_held_before_it_listens(
    make: MakeBroker, redis_url: str, journal: Journal
) -> None:
    """And takes nothing that would be lost with it: it counts nothing."""
    async with here(make, redis_url, journal, starts=False) as engine:
        await engine.source.hold()
        await engine.source.settled()
        await engine.enqueue(["early"], 0.0)
        engine.start()
        await asyncio.sleep(0.2)
        assert journal.lines() == []
        assert engine.source.handed_back == 0
        await engine.source.release()
        await all_ran_once(journal, ["early"])


async def test_an_idle_pop_is_over_when_it_has_settled(
    redis_url: str, journal: Journal
) -> None:
    """Whoever ends the process afterwards loses nothing."""
    async with here(on_a_list, redis_url, journal) as engine:
        await asyncio.sleep(0.1)
        await engine.source.hold()
        await engine.source.settled()
        await engine.enqueue(["later"], 0.0)
        await asyncio.sleep(0.4)
        assert engine.source.handed_back == 0
        await engine.source.release()
        await all_ran_once(journal, ["later"])


async def test_consumers_are_quiet_while_requests_are_busy(
    redis_url: str, journal: Journal
) -> None:
    async with here(on_a_stream, redis_url, journal) as engine:
        told = await quiet_while_requests_are_busy(
            engine, journal, slots=SLOTS + 1, at_once=True
        )
        assert told["handedBack"] > 0


async def test_running_jobs_stand_in_the_report(
    redis_url: str, journal: Journal
) -> None:
    async with here(on_a_list, redis_url, journal) as engine:
        await named_at_the_deadline(engine, journal)


async def test_a_receiver_that_died_is_unknown_until_one_listens(
    redis_url: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: what it had been delivered is not to be told."""

    async def fails(*_: object) -> None:
        await asyncio.sleep(0.05)  # Taskiq listens again without a pause
        raise NoConnection("the broker is gone")

    async with here(on_a_stream, redis_url, journal) as engine:
        await asyncio.sleep(0.1)
        queue = engine.source._queue
        monkeypatch.setattr(queue, "give_back_unread", fails)
        await engine.source.hold()
        with pytest.raises(SourceUnavailable, match=r"died: .*the broker is gone"):
            await engine.source.settled()
        with pytest.raises(SourceUnavailable, match="the broker is gone"):
            engine.source.count()
        monkeypatch.undo()
        await asyncio.sleep(0.3)
        await engine.source.settled()
        assert engine.source.count() == Counts()


LEASE = 600  # milliseconds


async def test_tasks_that_outlast_their_leases_run_once(
    redis_url: str, journal: Journal
) -> None:
    """J6: what runs, serving and held, and what waits; or another would run it."""
    make = functools.partial(on_a_stream, idle_timeout=LEASE)
    ids = [*(f"long-{n}" for n in range(SLOTS)), "waits-0", "waits-1"]

    async def another_looks_for_leases() -> None:
        for number in range(5):
            await asyncio.sleep(LEASE / 1000 / 4)
            await green.enqueue([f"tick-{number} of {len(ids)}"], 0.0)
            ids.append(f"tick-{number} of {len(ids)}")

    async with (
        here(make, redis_url, journal) as blue,
        here(make, redis_url, journal) as green,
    ):
        await asyncio.sleep(0.1)  # both listen
        for engine in (blue, green):
            await engine.source.hold()
            await engine.source.settled()
        await blue.enqueue(ids[:SLOTS], 2.5 * LEASE / 1000)
        await blue.enqueue(ids[SLOTS:], 0.0)
        await blue.source.release()  # and is delivered all of them at once
        await journal.until(lambda: len(journal.started()) == SLOTS, "blue is busy")
        await green.source.release()
        await another_looks_for_leases()
        await journal.until(lambda: ids[-1] in journal.started(), "green has looked")
        assert set(journal.started()) == {*ids} - {"waits-0", "waits-1"}
        await blue.source.hold()
        await another_looks_for_leases()
        await all_ran_once(journal, ids)
        assert blue.source.handed_back == 2


async def test_a_task_that_is_not_acknowledged_is_another_ones_in_its_time(
    redis_url: str, journal: Journal
) -> None:
    """Nobody renews what does not run."""
    make = functools.partial(on_a_stream, idle_timeout=50)
    async with here(make, redis_url, journal) as blue:
        job = blue.broker.find_task("job")
        assert job is not None
        kicker = job.kicker().with_labels(ack_type="manual")
        await kicker.kiq(str(journal.path), "again", 0.0)
        await journal.until(journal.ended, "it has run")
        await blue.source.hold()
        await blue.source.settled()
        assert blue.source.handed_back == 0
        async with here(make, redis_url, journal) as green:
            await asyncio.sleep(0.1)
            await green.enqueue(["makes green look"], 0.0)
            await journal.until(lambda: len(journal.ended()) == 3, "it ran again")
    assert sorted(journal.ended()) == ["again", "again", "makes green look"]


def test_a_broker_that_reads_in_a_way_of_its_own_is_refused() -> None:
    class Other(RedisStreamBroker):
        async def listen(self) -> AsyncGenerator[AckableMessage, None]:
            async for message in super().listen():
                yield message

    with pytest.raises(Misuse, match="Other has a listen of its own"):
        TaskiqWorkers(Other("redis://127.0.0.1"))


async def test_a_receiver_of_taskiqs_own_fails_a_hold(redis_url: str) -> None:
    """What it runs is not counted, so a zero would not be true."""
    broker = on_a_list(redis_url)
    source, other = TaskiqWorkers(broker), TaskiqWorkers(on_a_list(redis_url))
    listens = asyncio.create_task(run_receiver_task(broker, run_startup=True))
    await asyncio.sleep(0.2)
    with pytest.raises(Misuse, match=r"receiver_cls=workers\.receiver"):
        await source.hold()
    await other.hold()
    listens.cancel()
    await asyncio.gather(listens, return_exceptions=True)
    await source.hold()
    await broker.shutdown()


async def test_a_call_that_outlives_its_timeout_counts_until_it_ends(
    redis_url: str, journal: Journal
) -> None:
    """Taskiq waits no more for what runs in a thread, and cannot end it."""
    async with here(on_a_list, redis_url, journal) as engine:
        block = engine.broker.register_task(work, "block", timeout=0.1)
        await block.kicker().with_task_id("x").kiq(str(journal.path), "x", 0.5)
        await journal.until(journal.started, "it runs")
        await engine.source.hold()
        await asyncio.sleep(0.2)
        assert engine.source.count() == Counts(jobs=1)
        assert [piece.id for piece in engine.source.running()] == ["x"]
        await engine.source.settled()
        assert journal.ended() == ["x"]


async def test_what_went_back_with_a_lost_answer_goes_back_once(
    redis_url: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J4: somebody else may run it before it is tried again."""
    execute: Any = Redis.execute_command
    lost: list[str] = []

    async def lose(self: Redis, *command: Any, **options: Any) -> Any:
        answer = await execute(self, *command, **options)
        if command[0] in ("EVAL", "RPUSH") and not lost:
            lost.append(command[0])
            await all_ran_once(journal, [f"job-{n}" for n in range(8)])
            raise NoConnection("Connection lost")
        return answer

    async with (
        here(on_a_list, redis_url, journal, max_prefetch=4) as old,
        here(on_a_list, redis_url, journal, starts=False) as new,
    ):
        await old.enqueue([f"job-{n}" for n in range(8)], 0.2)
        await journal.until(lambda: len(journal.started()) == SLOTS, "old is busy")
        monkeypatch.setattr(Redis, "execute_command", lose)
        await old.source.hold()
        new.start()
        await old.source.settled()
        await asyncio.sleep(0.2)
        assert lost
        await all_ran_once(journal, [f"job-{n}" for n in range(8)])


def test_a_broker_of_another_kind_is_refused() -> None:
    with pytest.raises(Misuse, match="or a ListQueueBroker, not PubSubBroker"):
        TaskiqWorkers(PubSubBroker("redis://127.0.0.1"))


@pytest.fixture
def command(redis_url: str, folder: Path) -> Iterator[Process]:
    """Taskiq's own command with two worker processes."""
    words = ["worker", "tests.engines.taskiqs:broker", "--workers", "2"]
    words += ["--receiver", "tests.engines.taskiqs:Apart", "--max-async-tasks", "2"]
    own = {"TASKIQ_URL": redis_url, "TASKIQ_AGENTS": str(folder)}
    with running("-m", "taskiq", *words, environment=own) as process:
        deadline = time.monotonic() + PATIENCE
        while len(list(folder.glob("*.sock"))) < 2:
            assert time.monotonic() < deadline, process.err.text
            time.sleep(0.02)
        yield process


async def test_worker_processes_pass_the_scenario(
    command: Process, redis_url: str, folder: Path, journal: Journal
) -> None:
    source = RemoteSource("taskiq", "pull", folder, expected=2)
    broker = on_a_stream(redis_url)
    await broker.startup()
    await hold_in_the_middle(Taskiq(broker, source, journal), journal, prompt=0.5)
    await source.hold()
    await source.settled()
    command.signal(signal.SIGTERM)
    assert command.exit_code() == 0, command.err.text
    await source.settled()
    assert await source.count() == Counts()
    await broker.shutdown()
