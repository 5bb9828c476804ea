"""What a receiver of Taskiq has of a stream, and what is not its own any more."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from drainmw.sources.base import Counts
from drainmw.sources.taskiqqueues import StreamQueue, _Entry
from tests.engines.journal import Journal
from tests.engines.scenario import all_ran_once
from tests.engines.taskiqs import here, on_a_stream
from tests.processes import PATIENCE

pytestmark = pytest.mark.anyio

GROUP = STREAM = "taskiq"
LEASE = 200  # milliseconds


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    async with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisStreamBroker]:
    broker = RedisStreamBroker(
        redis_url,
        consumer_id="0",
        idle_timeout=LEASE,
        xread_block=50,
        additional_streams={"more": ">"},
    )
    await broker.startup()
    yield broker
    await broker.shutdown()


@pytest.fixture
def queue(broker: RedisStreamBroker) -> StreamQueue:
    return StreamQueue(broker)


async def pulled(queue: StreamQueue) -> _Entry:
    """The next entry, of one who pulls nothing else."""
    async with asyncio.timeout(PATIENCE), queue.pull() as pull:
        message = await pull.step()
    assert isinstance(message, _Entry)
    return message


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> Callable[[Callable[[], Awaitable[object]]], None]:
    """Do something between a command and its answer, once."""
    original = getattr(Redis, command)

    def do(act: Callable[[], Awaitable[object]]) -> None:
        async def patched(self: Any, *args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            answer = await original(self, *args, **options)
            await act()
            return answer

        monkeypatch.setattr(Redis, command, patched)

    return do


# What goes back


async def test_what_another_has_claimed_meanwhile_is_not_sent_again(
    queue: StreamQueue, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.xadd(STREAM, {"data": "a"})
    entry = await pulled(queue)
    await queue.give_back(entry)
    thief = functools.partial(redis.xclaim, STREAM, GROUP, "thief", 0, [entry.place.id])
    meanwhile(monkeypatch, "xpending_range")(thief)
    assert await queue.give_back_unread() == 0
    assert (await redis.xpending(STREAM, GROUP))["consumers"] == [
        {"name": b"thief", "pending": 1}
    ]
    assert await redis.xlen(STREAM) == 1


@pytest.mark.parametrize("renewals", [0, 1])
async def test_what_its_stream_has_dropped_meanwhile_goes_back(
    queue: StreamQueue, redis: Any, renewals: int
) -> None:
    """By its greatest length. A renewal makes the server forget that it was ours."""
    await redis.xadd(STREAM, {"data": "a"})
    await queue.give_back(await pulled(queue))
    await redis.xtrim(STREAM, 0)
    for _ in range(renewals):
        await queue.renew()
    assert await queue.give_back_unread() == 1
    assert (await redis.xpending(STREAM, GROUP))["pending"] == 0
    assert (await pulled(queue)).data == b"a"
    assert await queue.give_back_unread() == 0


@pytest.mark.parametrize("dropped", [False, True])
async def test_what_goes_back_goes_once_though_the_answer_got_lost(
    queue: StreamQueue, redis: Any, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    """The client asks again by itself."""
    evaluate = Redis.eval

    async def twice(self: Any, *args: Any) -> Any:
        await evaluate(self, *args)
        return await evaluate(self, *args)

    await redis.xadd(STREAM, {"data": "a"})
    await queue.give_back(await pulled(queue))
    if dropped:
        await redis.xtrim(STREAM, 0)
    length = await redis.xlen(STREAM)
    monkeypatch.setattr(Redis, "eval", twice)
    await queue.give_back_unread()
    assert await redis.xlen(STREAM) == length + 1


async def test_what_was_acknowledged_does_not_go_back(
    queue: StreamQueue, redis: Any
) -> None:
    await redis.xadd(STREAM, {"data": "a"})
    entry = await pulled(queue)
    await queue.give_back(entry)
    await redis.xack(STREAM, GROUP, entry.place.id)
    assert await queue.give_back_unread() == 0
    assert await redis.xlen(STREAM) == 1


async def test_what_one_was_delivered_ahead_another_one_here_pulls(
    queue: StreamQueue, redis: Any
) -> None:
    """One of them ends, and the other one is not held."""
    for data in "abc":
        await redis.xadd(STREAM, {"data": data})
    async with queue.pull() as other:
        await queue.give_back(await pulled(queue))
        assert await queue.give_back_unread() == 0
        seen = [await other.step() for _ in range(3)]
    assert sorted(m.data for m in seen if isinstance(m, _Entry)) == [b"a", b"b", b"c"]


# What runs again


async def test_what_is_acknowledged_while_one_asks_does_not_run_again(
    queue: StreamQueue, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has run out, as that of a loop that stood still."""
    await redis.xadd(STREAM, {"data": "a"})
    entry: Any = await pulled(queue)
    await asyncio.sleep(1.5 * LEASE / 1000)
    meanwhile(monkeypatch, "xautoclaim")(entry.ack)
    await redis.xadd(STREAM, {"data": "b"})
    async with queue.pull() as pull:
        other: Any = await pull.step()
        assert other.data == b"b"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pull.step(), 0.2)


async def test_what_was_not_acknowledged_runs_here_again_in_its_time(
    redis_url: str, journal: Journal
) -> None:
    """Where there is no other consumer, as where its middleware had failed."""
    make = functools.partial(on_a_stream, idle_timeout=50)
    async with here(make, redis_url, journal) as engine:
        job = engine.broker.find_task("job")
        assert job is not None
        kicker = job.kicker().with_labels(ack_type="manual")
        await kicker.kiq(str(journal.path), "again", 0.0)
        await journal.until(journal.ended, "it has run")
        await asyncio.sleep(0.1)
        await engine.enqueue(["makes it look"], 0.0)
        await journal.until(lambda: len(journal.ended()) == 3, "it ran again")
    assert sorted(journal.ended()) == ["again", "again", "makes it look"]


# What is renewed


async def test_a_renewal_that_fails_is_not_the_last(
    redis_url: str, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: a client may raise more than it tells of."""
    make = functools.partial(on_a_stream, idle_timeout=LEASE)
    async with here(make, redis_url, journal) as engine:
        queue: Any = engine.source._queue
        renew, renewed = queue.renew, asyncio.Event()

        async def fail() -> None:
            queue.renew = succeed
            raise RuntimeError("the handler is closed")

        async def succeed() -> None:
            await renew()
            renewed.set()

        queue.renew = fail
        async with asyncio.timeout(PATIENCE):
            await renewed.wait()
    assert "leases not renewed error='the handler is closed'" in caplog.text


async def test_a_stream_that_is_gone_hinders_no_other_renewal(
    queue: StreamQueue, redis: Any
) -> None:
    """Of two streams; the group of one is gone with it."""
    for stream in (STREAM, "more"):
        await redis.xadd(stream, {"data": stream})
    entries = [await pulled(queue) for _ in range(2)]
    for gone, stays in ((STREAM, "more"), ("more", STREAM)):
        (kept,) = (e.place.id for e in entries if e.place.stream == stays)
        await asyncio.sleep(0.1)
        await redis.rename(gone, "elsewhere")
        with pytest.raises(ResponseError, match="NOGROUP"):
            await queue.renew()
        await redis.rename("elsewhere", gone)
        (told,) = await redis.xpending_range(stays, GROUP, kept, kept, 1)
        assert told["time_since_delivered"] < 100


async def test_leases_are_renewed_until_the_last_task_has_ended(
    redis_url: str, journal: Journal
) -> None:
    """Though its receiver was cancelled; then nobody is left who renews."""
    make = functools.partial(on_a_stream, idle_timeout=LEASE)
    async with (
        here(make, redis_url, journal) as blue,
        here(make, redis_url, journal, starts=False) as green,
    ):
        await blue.enqueue(["long"], 4 * LEASE / 1000)
        await journal.until(journal.started, "it runs")
        assert blue.task is not None
        blue.task.cancel()
        await asyncio.gather(blue.task, return_exceptions=True)
        assert blue.source.count() == Counts(jobs=1)
        green.start()
        await asyncio.sleep(2 * LEASE / 1000)
        await green.enqueue(["makes green look"], 0.0)
        await all_ran_once(journal, ["long", "makes green look"])
        await blue.source.settled()
        await asyncio.sleep(0)
        keepers = [t for t in asyncio.all_tasks() if "leases" in t.get_name()]
        assert len(keepers) == 1  # green's


async def test_what_has_no_data_is_not_renewed(queue: StreamQueue, redis: Any) -> None:
    """It ends the receiver, as it does with Taskiq's own."""
    await redis.xadd(STREAM, {"something": "else"})
    with pytest.raises(KeyError, match="data"):
        await pulled(queue)
    await asyncio.sleep(0.02)
    await queue.renew()
    (told,) = await redis.xpending_range(STREAM, GROUP, "-", "+", 1)
    assert told["time_since_delivered"] >= 20


async def test_a_broker_acknowledges_in_its_own_way(
    redis_url: str, journal: Journal, redis: Any
) -> None:
    class Deletes(RedisStreamBroker):
        def _ack_generator(
            self, id: str, queue_name: str
        ) -> Callable[[], Awaitable[None]]:
            async def ack() -> None:
                await super(Deletes, self)._ack_generator(id, queue_name)()
                await redis.xdel(queue_name, id)

            return ack

    queue = StreamQueue(Deletes(redis_url))
    await queue._broker.startup()
    await redis.xadd(STREAM, {"data": "a"})
    entry: Any = await pulled(queue)
    await entry.ack()
    assert await redis.xlen(STREAM) == 0
    await queue._broker.shutdown()


async def test_two_receivers_share_what_one_of_them_was_delivered(
    redis_url: str, journal: Journal
) -> None:
    """The first of them ends after two tasks."""
    async with here(on_a_stream, redis_url, journal, starts=False) as engine:
        receiver: Any = engine.source.receiver

        def few(*args: Any, **options: Any) -> Any:
            return receiver(*args, **{**options, "max_tasks_to_execute": 2})

        ids = [f"job-{n}" for n in range(12)]
        await engine.enqueue(ids, 0.0)
        any_class: Any = few
        first = asyncio.create_task(
            run_receiver_task(
                engine.broker,
                receiver_cls=any_class,
                max_async_tasks=1,
                sync_workers=1,
            )
        )
        engine.start()
        await all_ran_once(journal, ids)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
