"""The task registry: jobs of any loop, counted from spawn to done."""

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from drainmw import IntakeRefused
from drainmw.errors import Misuse
from drainmw.sources.base import Explains, WorkSource
from drainmw.sources.tasks import TaskRegistry
from drainmw.testing import ManualClock
from tests.rig import calm

pytestmark = pytest.mark.anyio


async def job(go: asyncio.Event | None = None) -> str:
    if go is not None:
        await go.wait()
    return "done"


async def fails() -> None:
    raise RuntimeError("of the job")


def test_it_is_a_push_source_that_explains_itself() -> None:
    tasks = TaskRegistry()
    assert isinstance(tasks, WorkSource)
    assert isinstance(tasks, Explains)
    assert (tasks.name, tasks.intake, tasks.count()) == ("tasks", "push", (0, 0))


async def test_a_job_counts_from_the_call_of_spawn_until_it_is_done() -> None:
    tasks, go = TaskRegistry(), asyncio.Event()
    task = tasks.spawn(job(go))
    assert tasks.count() == (1, 0)
    go.set()
    assert await task == "done"
    await calm()
    assert tasks.count() == (0, 0)


@pytest.mark.parametrize("end", ["raises", "is cancelled", "is cancelled unstarted"])
async def test_a_job_that_ends_badly_is_uncounted_too(end: str) -> None:
    tasks = TaskRegistry()
    task: asyncio.Task[Any] = tasks.spawn(
        fails() if end == "raises" else job(asyncio.Event())
    )
    if end == "is cancelled":
        await calm()
    if end != "raises":
        task.cancel()
    await asyncio.wait([task])
    await calm()
    assert tasks.count().jobs == 0
    if end == "raises":
        assert isinstance(task.exception(), RuntimeError)


async def test_what_runs_is_named_oldest_first() -> None:
    clock, go = ManualClock(), asyncio.Event()
    tasks = TaskRegistry(clock=clock)
    first = tasks.spawn(job(go), name="reindex")
    clock.advance(1)
    second = tasks.spawn(job(go))
    assert [(piece.id, piece.started) for piece in tasks.running()] == [
        ("reindex", 1000.0),
        ("job", 1001.0),
    ]
    assert first.get_name() == "reindex"
    go.set()
    await asyncio.gather(first, second)


async def test_a_held_registry_refuses_and_closes_the_coroutine() -> None:
    """Nothing of it has run, and nobody complains that it was not awaited."""
    tasks = TaskRegistry()
    await tasks.hold()
    await tasks.hold()
    coro = job()
    with pytest.raises(IntakeRefused, match="job reindex is refused"):
        tasks.spawn(coro, name="reindex")
    assert inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED
    assert tasks.count().jobs == 0
    await tasks.release()
    await tasks.release()
    assert await tasks.spawn(job()) == "done"


async def test_a_running_job_may_still_spawn_once_it_is_held() -> None:
    tasks, go = TaskRegistry(), asyncio.Event()

    async def parent() -> str:
        await go.wait()
        return await tasks.spawn(child())

    async def child() -> str:
        return await tasks.spawn(job())

    task = tasks.spawn(parent())
    await tasks.hold()
    go.set()
    assert await task == "done"
    await calm()
    assert tasks.count().jobs == 0


async def test_what_a_job_left_behind_may_not_spawn_once_it_is_done() -> None:
    tasks, go = TaskRegistry(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def late() -> None:
        await go.wait()
        await tasks.spawn(job())

    async def parent() -> None:
        left.append(asyncio.create_task(late()))

    await tasks.spawn(parent())
    await calm()
    await tasks.hold()
    go.set()
    with pytest.raises(IntakeRefused):
        await left[0]


async def test_a_request_in_flight_may_still_spawn() -> None:
    fed = True
    tasks = TaskRegistry(is_fed=lambda: fed)
    await tasks.hold()
    assert await tasks.spawn(job()) == "done"
    fed = False
    with pytest.raises(IntakeRefused):
        tasks.spawn(job())


def test_outside_a_loop_the_coroutine_is_closed_and_nothing_counted() -> None:
    tasks = TaskRegistry()
    coro = job()
    with pytest.raises(Misuse, match="needs a running event loop: call it in an async"):
        tasks.spawn(coro)
    assert inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED
    assert tasks.count().jobs == 0


async def test_it_has_settled_when_no_job_is_left() -> None:
    tasks, go = TaskRegistry(), asyncio.Event()
    await tasks.settled()
    jobs = [tasks.spawn(job(go)) for _ in range(3)]
    settled = asyncio.create_task(tasks.settled())
    await calm()
    assert not settled.done()
    go.set()
    async with asyncio.timeout(1):
        await settled
    assert all(task.done() for task in jobs)


def test_a_job_of_another_loop_settles_here() -> None:
    tasks = TaskRegistry()

    async def elsewhere() -> None:
        await tasks.spawn(job())

    async def here() -> None:
        settled = asyncio.create_task(tasks.settled())
        await asyncio.to_thread(asyncio.run, elsewhere())
        async with asyncio.timeout(1):
            await settled

    asyncio.run(here())
    assert tasks.count().jobs == 0


async def test_another_thread_spawns_as_the_message_says() -> None:
    tasks, go = TaskRegistry(), asyncio.Event()
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(
        lambda: loop.call_soon_threadsafe(lambda: tasks.spawn(job(go)))
    )
    await calm()
    assert tasks.count().jobs == 1
    go.set()
    await tasks.settled()


@pytest.mark.parametrize("bad", [job, None, 5], ids=["not called", "none", "a number"])
async def test_a_job_that_is_not_a_coroutine_is_not_counted(bad: Any) -> None:
    tasks = TaskRegistry()
    with pytest.raises(Misuse) as refused:
        tasks.spawn(bad)
    assert str(refused.value) == (
        f"spawn takes a coroutine, such as work(), not {bad!r}"
    )
    assert tasks.count().jobs == 0


async def test_a_coroutine_of_another_kind_is_a_job_too() -> None:
    """As compilers make them; asyncio takes what has the methods."""
    tasks = TaskRegistry()
    assert await tasks.spawn(Compiled(job())) == "done"


class Compiled(Coroutine[Any, Any, str]):
    """Not of the type that an `async def` makes."""

    def __init__(self, inner: Coroutine[Any, Any, str]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        return self._inner.send(value)

    def throw(self, *how: Any) -> Any:
        return self._inner.throw(*how)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()


Spawn = Callable[[Coroutine[Any, Any, str]], "asyncio.Task[str]"]


@pytest.mark.parametrize("held", [True, False])
async def test_a_refused_spawn_wakes_who_waits_for_the_last_job(held: bool) -> None:
    tasks, go = TaskRegistry(), asyncio.Event()
    task = tasks.spawn(job(go))
    settled = asyncio.create_task(tasks.settled())
    await calm()
    if held:
        await tasks.hold()
        with pytest.raises(IntakeRefused):
            tasks.spawn(job())
        await calm()
        assert not settled.done()
    go.set()
    await task
    async with asyncio.timeout(1):
        await settled


async def test_a_job_that_nobody_holds_on_to_is_not_lost() -> None:
    """A loop keeps but weak references to its tasks."""
    tasks = TaskRegistry()
    ended: list[str] = []

    async def waits_for_what_only_it_knows() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lost")

    task_id = id(tasks.spawn(waits_for_what_only_it_knows(), name="orphan"))
    await calm()
    gc.collect()
    assert ended == []
    assert tasks.count() == (1, 0)
    (task,) = [t for t in asyncio.all_tasks() if id(t) == task_id]
    task.cancel()
    await calm()
    assert tasks.count() == (0, 0)


async def test_an_end_between_two_looks_wakes_everybody_who_waits() -> None:
    """As that of a call in a thread, just when one more begins to wait."""
    tasks, go = TaskRegistry(), asyncio.Event()
    tasks.spawn(job(go))
    (work,) = tasks._jobs

    class Ending(dict[Any, Any]):
        def __bool__(self) -> bool:
            looked = len(self) > 0
            if looked:
                tasks._end(work)
            return looked

    first = asyncio.create_task(tasks.settled())
    await calm()
    tasks._jobs = Ending(tasks._jobs)
    second = asyncio.create_task(tasks.settled())
    await calm()
    assert (first.done(), second.done()) == (True, True)
    go.set()
    await calm()
