"""The helpers that users have for their own tests."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from drainmw import Counts, WorkSource
from drainmw.testing import AsgiDriver, ManualClock, ManualSource, http_scope
from tests.rig import calm, hello

pytestmark = pytest.mark.anyio


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.advance(1.5)
    assert clock() == 6.5


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    await send(await receive())


async def test_a_call_is_driven_message_by_message() -> None:
    async with AsgiDriver(echo, http_scope()) as call:
        assert await call.receive_nothing()
        assert not call.is_done
        await call.send_input({"type": "http.request"})
        assert await call.receive_output() == {"type": "http.request"}
        await call.wait()
        assert call.is_done


async def test_what_an_app_sent_can_be_read_after_it_has_returned() -> None:
    async with AsgiDriver(hello, http_scope()) as call:
        await call.wait()
        assert (await call.receive_output())["status"] == 200
        assert (await call.receive_output())["body"] == b"hello"
        with pytest.raises(EOFError):
            await call.receive_output()


async def test_what_an_app_raises_is_raised_to_the_driver() -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise LookupError("inside")

    async with AsgiDriver(broken, http_scope()) as call:
        with pytest.raises(LookupError, match="inside"):
            await call.wait()
        with pytest.raises(LookupError, match="inside"):
            await call.receive_output()


async def test_waiting_for_an_app_that_is_silent_times_out_and_cancels_nothing() -> (
    None
):
    async with AsgiDriver(echo, http_scope()) as call:
        with pytest.raises(TimeoutError):
            await call.receive_output(0.01)
        with pytest.raises(TimeoutError):
            await call.wait(0.01)
        assert not call.is_done
        await call.cancel()
        await call.cancel()
        assert call.is_done


async def test_a_call_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="start the call first"):
        await AsgiDriver(hello, http_scope()).wait()


async def test_a_manual_source_does_what_the_test_says() -> None:
    source = ManualSource("engine", "clock", blocked=["settled"])
    assert isinstance(source, WorkSource)
    assert source.count() == Counts(0, 0)
    source.set_counts(jobs=2, schedules=3)
    assert source.count() == (2, 3)
    await source.hold()
    settled = asyncio.create_task(source.settled())
    await calm()
    assert (source.is_held, settled.done()) == (True, False)
    source.settle()
    await settled
    await source.release()
    assert not source.is_held
    assert source.calls == ["count", "count", "hold", "settled", "release"]


async def test_a_step_that_hangs_can_be_made_to_fail_and_be_mended() -> None:
    source = ManualSource(blocked=["hold"])
    hold = asyncio.create_task(source.hold())
    await calm()
    source.fail("hold", LookupError("gone"))
    with pytest.raises(LookupError):
        await hold
    source.mend("hold")
    source.unblock("hold")
    await source.hold()
    assert source.is_held


async def test_a_count_that_is_blocked_answers_when_it_is_let_go() -> None:
    source = ManualSource(blocked=["count"])
    answer: Any = asyncio.ensure_future(source.count())  # type: ignore[arg-type]
    await calm()
    assert not answer.done()
    source.unblock("count")
    assert await answer == (0, 0)
    source.fail("count", LookupError())
    with pytest.raises(LookupError):
        source.count()
