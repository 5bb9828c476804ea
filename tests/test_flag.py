"""A flag that any loop and any thread can wait for."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from drainmw.errors import Misuse, SourceError
from drainmw.flag import Flag, Pulse, own_cancellation_only, start_task
from tests.rig import calm

pytestmark = pytest.mark.anyio


async def waits(flag: Flag) -> str:
    await flag
    return "woken"


def test_a_flag_is_false_until_it_is_set() -> None:
    flag = Flag()
    assert (flag.is_set(), bool(flag), flag.wait(0)) == (False, False, False)
    flag.set()
    flag.set()
    assert (flag.is_set(), bool(flag), flag.wait(0)) == (True, True, True)
    flag.clear()
    assert not flag


def test_a_flag_shows_whether_it_is_set() -> None:
    flag = Flag()
    assert repr(flag) == "<Flag not set>"
    flag.set()
    assert repr(flag) == "<Flag set>"


async def test_a_set_flag_is_not_waited_for() -> None:
    flag = Flag()
    flag.set()
    async with asyncio.timeout(1):
        await flag
        await flag


async def test_everybody_who_waits_is_woken() -> None:
    flag = Flag()
    tasks = [asyncio.create_task(waits(flag)) for _ in range(10)]
    await calm()
    assert not any(task.done() for task in tasks)
    flag.set()
    async with asyncio.timeout(1):
        assert await asyncio.gather(*tasks) == ["woken"] * 10


async def test_a_waiter_whose_flag_was_cleared_again_waits_on() -> None:
    flag = Flag()
    task = asyncio.create_task(waits(flag))
    await calm()
    flag.set()
    flag.clear()
    await calm()
    assert not task.done()
    flag.set()
    async with asyncio.timeout(1):
        assert await task == "woken"


async def test_a_cancelled_waiter_is_forgotten() -> None:
    flag = Flag()
    task = asyncio.create_task(waits(flag))
    await calm()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert flag._waiters == {}
    flag.set()


def test_waiters_in_several_loops_and_threads_are_woken_by_another() -> None:
    flag = Flag()
    ready = threading.Barrier(5, timeout=5)

    def in_a_loop() -> str:
        async def life() -> str:
            task = asyncio.create_task(waits(flag))
            await asyncio.sleep(0)
            await asyncio.to_thread(ready.wait)
            async with asyncio.timeout(5):
                return await task

        return asyncio.run(life())

    def in_a_thread() -> str:
        ready.wait()
        return "woken" if flag.wait(5) else "late"

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(in_a_loop) for _ in range(2)]
        jobs += [pool.submit(in_a_thread) for _ in range(2)]
        ready.wait()
        flag.set()
        assert [job.result(5) for job in jobs] == ["woken"] * 4


def test_a_waiter_of_a_closed_loop_disturbs_nobody() -> None:
    flag = Flag()
    loop = asyncio.new_event_loop()
    task = loop.create_task(waits(flag))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    flag.set()
    assert flag.is_set()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant
    del task


async def test_to_block_a_thread_with_an_event_loop_is_refused() -> None:
    """It would never be set, and nothing else would run either."""
    with pytest.raises(Misuse, match="await the flag itself"):
        Flag().wait()


async def test_each_who_waits_until_something_looks_after_every_beat() -> None:
    pulse = Pulse()
    seen: list[int] = []
    first = asyncio.create_task(pulse.until(lambda: len(seen) >= 1))
    second = asyncio.create_task(pulse.until(lambda: len(seen) >= 2))
    await calm()
    seen.append(1)
    await calm()
    assert not first.done()
    pulse.beat()
    await calm()
    assert first.done() and not second.done()
    seen.append(2)
    pulse.beat()
    await asyncio.wait_for(second, 1)


async def test_a_cancellation_of_what_is_waited_for_is_a_failure() -> None:
    waited = asyncio.get_running_loop().create_future()
    waited.cancel()
    with pytest.raises(SourceError), own_cancellation_only():
        await waited


async def test_a_cancellation_of_who_waits_is_one() -> None:
    async def wait() -> None:
        with own_cancellation_only():
            await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(wait())
    await calm()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Tasks of ours


async def test_a_task_of_ours_starts_in_a_turn_of_its_own() -> None:
    """Whatever the app has its loop make of tasks, such as eager ones."""
    loop, steps = asyncio.get_running_loop(), list[str]()

    async def runs() -> str:
        steps.append("runs")
        return "done"

    def factory(_loop: object, _coro: object, **_named: object) -> Any:
        raise AssertionError("that of the app was asked")

    loop.set_task_factory(factory)
    try:
        task = start_task(runs(), name="ours")
    finally:
        loop.set_task_factory(None)
    steps.append("started")
    assert await task == "done"
    assert (task.get_name(), steps) == ("ours", ["started", "runs"])
