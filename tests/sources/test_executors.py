"""Executors: what they have accepted is counted until it has been called."""

import asyncio
import functools
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from drainmw import IntakeRefused
from drainmw.errors import Misuse
from drainmw.sources.base import Explains, Fed, WorkSource
from drainmw.sources.executors import ExecutorSource
from drainmw.sources.feeding import current
from drainmw.testing import ManualClock
from tests.rig import Release, calm
from tests.test_release import ended, failure_of

pytestmark = pytest.mark.anyio


class Gated:
    """A call that lasts until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, answer: str = "done") -> str:
        self.begun.set()
        assert self.go.wait(10)
        return answer


@pytest.fixture
def pool() -> Iterator[ExecutorSource]:
    with ExecutorSource(ThreadPoolExecutor(1)) as source:
        yield source


@pytest.fixture
def gated() -> Iterator[Gated]:
    call = Gated()
    yield call
    call.go.set()


def test_it_is_a_push_source_and_an_executor(pool: ExecutorSource) -> None:
    assert isinstance(pool, WorkSource)
    assert isinstance(pool, Explains)
    assert isinstance(pool, Fed)
    assert isinstance(pool, Executor)
    assert (pool.name, pool.intake, pool.count()) == ("executor", "push", (0, 0))


async def test_a_call_counts_from_submit_until_it_returns(
    pool: ExecutorSource, gated: Gated
) -> None:
    calls = [pool.submit(gated, str(n)) for n in range(3)]
    assert pool.count() == (3, 0)
    gated.go.set()
    async with asyncio.timeout(5):
        await pool.settled()
    assert [call.result(0) for call in calls] == ["0", "1", "2"]
    assert pool.count() == (0, 0)


async def test_a_call_that_raises_or_never_begins_is_uncounted_too(
    pool: ExecutorSource, gated: Gated
) -> None:
    first = pool.submit(gated)
    waiting = pool.submit(gated)
    bad = pool.submit(int, "x")
    assert waiting.cancel()
    assert pool.count().jobs == 2
    gated.go.set()
    async with asyncio.timeout(5):
        await pool.settled()
    assert first.result(0) == "done"
    assert isinstance(bad.exception(0), ValueError)


async def test_what_has_begun_is_named_and_what_waits_is_not(gated: Gated) -> None:
    clock = ManualClock()
    with ExecutorSource(ThreadPoolExecutor(1), "images", clock=clock) as pool:
        pool.submit(functools.partial(functools.partial(gated), "a"))
        clock.advance(1)
        pool.submit(gated, "b")
        await asyncio.to_thread(gated.begun.wait, 5)
        assert [(piece.id, piece.started) for piece in pool.running()] == [
            ("Gated", 1000.0)
        ]
        gated.go.set()


async def test_a_held_one_refuses_by_name_and_a_released_one_takes(
    pool: ExecutorSource,
) -> None:
    await pool.hold()
    with pytest.raises(IntakeRefused, match="job len is refused"):
        pool.submit(len, "abc")
    with pytest.raises(IntakeRefused):
        await asyncio.get_running_loop().run_in_executor(pool, len, "abc")
    with pytest.raises(IntakeRefused):
        pool.map(len, ["a"])
    assert pool.count().jobs == 0
    await pool.release()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(pool, len, "abc") == 3
    assert list(pool.map(len, ["a", "bc"])) == [1, 2]


async def test_a_caller_that_gives_up_does_not_end_the_call(
    pool: ExecutorSource, gated: Gated
) -> None:
    """A thread cannot be cancelled: it still runs, and so it still counts."""
    loop = asyncio.get_running_loop()
    waiting = loop.run_in_executor(pool, gated)
    await asyncio.to_thread(gated.begun.wait, 5)
    waiting.cancel()
    await calm()
    assert waiting.cancelled()
    assert pool.count().jobs == 1
    gated.go.set()
    async with asyncio.timeout(5):
        await pool.settled()


async def test_a_running_call_may_still_submit_once_it_is_held(gated: Gated) -> None:
    with ExecutorSource(ThreadPoolExecutor(2)) as pool:

        def parent() -> int:
            gated()
            return pool.submit(len, "abc").result(5)

        call = pool.submit(parent)
        await pool.hold()
        gated.go.set()
        assert await asyncio.wrap_future(call) == 3
        async with asyncio.timeout(5):
            await pool.settled()
        with pytest.raises(IntakeRefused):
            pool.submit(len, "abc")


async def test_a_thread_that_has_left_a_call_feeds_nobody(pool: ExecutorSource) -> None:
    seen: list[BaseException] = []
    await asyncio.wrap_future(pool.submit(len, "abc"))
    await pool.hold()

    def outside() -> None:
        try:
            pool.submit(len, "abc")
        except IntakeRefused as exc:
            seen.append(exc)

    inner: Any = pool._executor  # its call is in the very same thread
    await asyncio.wrap_future(inner.submit(outside))
    assert len(seen) == 1
    assert await asyncio.wrap_future(inner.submit(current.get)) is None


async def test_a_request_in_flight_may_still_submit() -> None:
    fed = True
    with ExecutorSource(ThreadPoolExecutor(1), is_fed=lambda: fed) as pool:
        await pool.hold()
        assert await asyncio.wrap_future(pool.submit(len, "abc")) == 3
        fed = False
        with pytest.raises(IntakeRefused):
            pool.submit(len, "abc")


async def test_an_executor_that_takes_nothing_leaves_nothing_counted(
    pool: ExecutorSource,
) -> None:
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(len, "abc")
    assert pool.count().jobs == 0


async def test_what_is_cancelled_at_a_shutdown_is_over(
    pool: ExecutorSource, gated: Gated
) -> None:
    pool.submit(gated)
    waiting = pool.submit(gated)
    await asyncio.to_thread(gated.begun.wait, 5)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    assert pool.count().jobs == 1


def test_a_loop_does_not_take_it_as_its_default(pool: ExecutorSource) -> None:
    """A held default executor would resolve no name any more."""
    loop = asyncio.new_event_loop()
    with pytest.raises(TypeError):
        loop.set_default_executor(pool)
    loop.close()


@pytest.mark.parametrize("wrong", [None, 5, ThreadPoolExecutor])
def test_what_is_no_executor_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match=r"wraps an executor of concurrent\.futures"):
        ExecutorSource(wrong)


def test_one_cannot_be_wrapped_twice(pool: ExecutorSource) -> None:
    with pytest.raises(Misuse):
        ExecutorSource(pool)


async def test_calls_in_other_processes_count_too() -> None:
    """They need a pickle, which a piece of work of ours is none."""
    spawn = multiprocessing.get_context("spawn")
    with ExecutorSource(ProcessPoolExecutor(1, spawn)) as pool:
        call = pool.submit(pow, 2, 10)
        assert pool.count().jobs == 1
        await pool.hold()
        async with asyncio.timeout(30):
            await pool.settled()
        assert call.result(0) == 1024


# With a drain


async def with_pool(
    story: Callable[[Release, ExecutorSource, Gated], Any],
) -> None:
    call = Gated()
    with ExecutorSource(ThreadPoolExecutor(1), "images") as pool:
        release = Release()
        release.drain.add_source(pool)
        try:
            await story(release, pool, call)
        finally:
            call.go.set()


async def test_a_drain_waits_for_what_was_submitted() -> None:
    async def story(release: Release, pool: ExecutorSource, call: Gated) -> None:
        calls = [pool.submit(call) for _ in range(2)]
        await release.client.begin()
        await calm()
        assert (await release.in_flight())["jobs"] == 2
        assert await release.state() == "draining"
        call.go.set()
        assert await ended(release.drain) == "drained"
        assert all(call.done() for call in calls)

    await with_pool(story)


async def test_what_runs_at_the_deadline_stands_in_the_report() -> None:
    """J7: the ids of jobs that still run."""

    async def story(release: Release, pool: ExecutorSource, call: Gated) -> None:
        pool.submit(call)
        await release.client.begin(timeoutMs=150)
        assert await ended(release.drain) == "failed"
        assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"
        report = await release.client.report()
        (told,) = [s for s in report["sources"] if s["name"] == "images"]
        assert (told["running"], told["jobs"]) == (["Gated"], 1)
        assert "Gated" in [blocker["path"] for blocker in report["blockers"]]

    await with_pool(story)


async def test_a_job_of_another_source_may_feed_it_while_it_is_held() -> None:
    async def story(release: Release, pool: ExecutorSource, call: Gated) -> None:
        go = asyncio.Event()

        async def job() -> int:
            await go.wait()
            return await asyncio.wrap_future(pool.submit(len, "abc"))

        task = release.drain.spawn(job())
        await release.client.begin()
        await calm()
        with pytest.raises(IntakeRefused):
            pool.submit(len, "abc")
        go.set()
        assert await task == 3
        assert await ended(release.drain) == "drained"

    await with_pool(story)
