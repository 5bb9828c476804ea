"""Holding many sources at once: side by side, insistent, undone by release."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from drainmw import Counts, SourceUnavailable
from drainmw.errors import CountersInvalid, CountersUnknown, Misuse, SourceError
from drainmw.sources.holds import Holds, together
from drainmw.testing import ManualSource
from tests.rig import calm

pytestmark = pytest.mark.anyio

INTAKES = ("clock", "pull", "push")


def holding(*sources: ManualSource, count_timeout: float = 0.05) -> Holds:
    holds = Holds(count_timeout)
    for source in sources:
        holds.add(source)
    return holds


async def test_ten_sources_are_held_and_settled_side_by_side() -> None:
    """J3: one deadline, not one after the other."""
    sources = [ManualSource(f"s{n}", blocked=["hold", "settled"]) for n in range(10)]
    holds = holding(*sources)
    holds.start(1, "pull")
    held = asyncio.create_task(holds.held("pull"))
    await calm()
    assert [source.calls for source in sources] == [["hold"]] * 10
    for source in sources:
        source.unblock("hold")
    await held
    settled = asyncio.create_task(holds.settled("pull"))
    await calm()
    assert [source.calls[-1] for source in sources] == ["settled"] * 10
    for source in sources:
        assert not settled.done()
        source.settle()
        await calm()
    await settled


async def test_clocks_are_held_first_whatever_the_order_of_registration() -> None:
    order: list[str] = []

    class Noted(ManualSource):
        async def hold(self) -> None:
            order.append(self.name)
            await super().hold()

    holds = holding(Noted("pull"), Noted("clock", "clock"), Noted("push", "push"))
    holds.start(1, "clock", "pull")
    await holds.held("clock", "pull")
    assert order == ["clock", "pull"]
    assert not holds.all_held
    holds.start(1, "push")
    await holds.held("push")
    assert order == ["clock", "pull", "push"]
    assert holds.all_held


async def test_a_hold_is_started_once_a_drain() -> None:
    source = ManualSource()
    holds = holding(source)
    for _ in range(3):
        holds.start(1, "pull")
        await holds.held("pull")
    assert source.calls == ["hold"]


@pytest.mark.parametrize("step", ["hold", "settled"])
async def test_the_first_exception_is_raised_at_once(step: Any) -> None:
    slow, broken = ManualSource("slow", blocked=[step]), ManualSource("broken")
    broken.fail(step, LookupError("no such queue"))
    holds = holding(slow, broken)
    holds.start(1, "pull")
    with pytest.raises(LookupError):
        await holds.held("pull")
        await holds.settled("pull")
    assert "release" not in slow.calls + broken.calls


async def test_an_absent_source_is_asked_ever_more_slowly() -> None:
    source = ManualSource()
    source.fail("hold", SourceUnavailable("gone"))
    holds = holding(source)
    holds.start(1, "pull")
    await asyncio.sleep(0.3)
    assert 2 <= source.calls.count("hold") <= 4
    assert holds.errors == ["gone"]
    source.mend("hold")
    async with asyncio.timeout(1):
        await holds.held("pull")
    assert holds.errors == []


# Release


async def test_a_release_undoes_every_hold_also_one_done_by_half() -> None:
    done, half = ManualSource("done"), ManualSource("half", blocked=["hold"])
    never = ManualSource("never", "push")
    holds = holding(done, half, never)
    holds.start(1, "pull")
    await calm()
    await holds.release(1.0)
    assert (done.calls[-1], half.calls) == ("release", ["hold", "release"])
    assert never.calls == []
    assert holds.stuck == []


async def test_a_release_waits_only_so_long_and_goes_on() -> None:
    stuck, fine = ManualSource("stuck", blocked=["release"]), ManualSource("fine")
    holds = holding(stuck, fine)
    holds.start(1, "pull")
    await holds.held("pull")
    asked = time.monotonic()
    await holds.release(0.05)
    assert time.monotonic() - asked < 0.5
    assert (holds.stuck, fine.is_held) == (["stuck"], False)
    stuck.unblock("release")
    await calm()
    assert (holds.stuck, stuck.is_held) == ([], False)


async def test_a_release_that_fails_is_noted_and_stays_stuck() -> None:
    source = ManualSource("engine")
    source.fail("release", ValueError("redis://:secret@h"))
    holds = holding(source)
    holds.start(1, "pull")
    await holds.held("pull")
    await holds.release(1.0)
    assert (holds.stuck, holds.errors) == (["engine"], ["redis://***@h"])


async def test_the_next_drain_holds_again_though_a_release_is_slow() -> None:
    source = ManualSource(blocked=["release"])
    holds = holding(source)
    holds.start(1, "pull")
    await holds.held("pull")
    await holds.release(0.01)
    holds.start(2, "pull")
    await holds.held("pull")  # what was being let go is held anew, at once
    assert source.calls == ["hold", "release", "hold"]
    assert source.is_held


async def test_a_hold_that_ignores_its_cancellation_is_undone() -> None:
    class Stubborn(ManualSource):
        async def hold(self) -> None:
            try:
                await super().hold()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                self.is_held = True

    source = Stubborn(blocked=["hold"])
    holds = holding(source)
    holds.start(1, "pull")
    await calm()
    await holds.release(1.0)
    await calm()
    assert not source.is_held
    assert holds.stuck == []


async def test_a_hold_that_failed_is_tried_again_by_the_next_drain() -> None:
    source = ManualSource()
    source.fail("hold", ValueError("no"))
    holds = holding(source)
    holds.start(1, "pull")
    with pytest.raises(ValueError, match="no"):
        await holds.held("pull")
    source.mend("hold")
    holds.start(2, "pull")
    await holds.held("pull")
    assert source.is_held


# Counts


async def test_counts_are_added_up() -> None:
    first, second = ManualSource("a"), ManualSource("b", "clock")
    first.set_counts(jobs=2, schedules=1)
    second.set_counts(schedules=3.0)
    assert await holding(first, second).counts() == Counts(2, 4)
    assert await holding().counts() == Counts(0, 0)


async def test_all_are_asked_side_by_side_and_the_silent_are_named() -> None:
    silent = [ManualSource(f"s{n}", blocked=["count"]) for n in range(5)]
    asked = time.monotonic()
    with pytest.raises(CountersUnknown, match="s0, s1, s2, s3, s4") as unknown:
        await holding(ManualSource("fine"), *silent, count_timeout=0.1).counts()
    assert unknown.value.who == ["s0", "s1", "s2", "s3", "s4"]
    assert time.monotonic() - asked < 0.3


async def test_an_absent_source_is_unknown_and_never_zero() -> None:
    source = ManualSource("engine")
    source.fail("count", SourceUnavailable("gone"))
    with pytest.raises(CountersUnknown, match=r"engine \(gone\)"):
        await holding(source, ManualSource("fine")).counts()


async def test_another_exception_of_a_count_is_passed_on() -> None:
    source = ManualSource()
    source.fail("count", LookupError("no"))
    with pytest.raises(LookupError):
        await holding(source).counts()


async def test_a_count_that_is_cancelled_from_inside_is_unknown() -> None:
    class Cancelled(ManualSource):
        def count(self) -> Awaitable[Counts]:
            return self.cancelled()

        async def cancelled(self) -> Counts:
            raise asyncio.CancelledError

    with pytest.raises(CountersUnknown):
        await holding(Cancelled()).counts()


async def test_a_step_that_is_no_coroutine_fails_the_drain_by_name() -> None:
    class Blocking(ManualSource):
        def hold(self) -> None:  # type: ignore[override]
            """It forgot to be a coroutine."""

    holds = holding(Blocking("mailer"))
    holds.start(1, "pull")
    with pytest.raises(SourceError, match="hold of mailer must be a coroutine func"):
        await holds.held("pull")


async def test_a_source_that_fails_is_named_in_log_and_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(ManualSource):
        async def hold(self) -> None:
            raise RuntimeError("half done")

    holds = holding(Failing("mailer"))
    holds.start(1, "pull")
    with pytest.raises(RuntimeError, match="half done"):
        await holds.held("pull")
    assert [entry.error for entry in holds.entries] == ["half done"]
    assert "mailer" in caplog.text


def test_a_source_is_an_object_with_a_name_of_its_own() -> None:
    holds = holding(ManualSource("mail"))
    with pytest.raises(Misuse, match="of the name mail already; add each once, under"):
        holds.add(ManualSource("mail"))
    with pytest.raises(Misuse, match="the class ManualSource is no work source"):
        holds.add(cast(Any, ManualSource))
    with pytest.raises(Misuse, match="must be clock, pull or push, not 'pul'"):
        holds.add(ManualSource("other", cast(Any, "pul")))


@pytest.mark.parametrize("answer", [None, 5, (1,), (1, 2, 3), "ab", {"jobs": 1}, ()])
async def test_a_count_of_another_form_is_invalid(answer: Any) -> None:
    class Odd(ManualSource):
        def count(self) -> Counts:
            counts: Counts = answer
            return counts

    with pytest.raises(CountersInvalid, match="odd"):
        await holding(Odd("odd")).counts()


async def test_waiting_together_stops_the_others_at_the_first_exception() -> None:
    stopped: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            stopped.append("long")

    async def broken() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await together(long(), broken())
    await calm()
    assert stopped == ["long"]
    await together()


async def test_a_halt_that_fails_keeps_no_source_from_its_hold() -> None:
    class Broken(ManualSource):
        def halt(self) -> None:
            raise RuntimeError("of the adapter")

    sources = Broken("broken"), ManualSource("other")
    holds = holding(*sources)
    holds.start(1, "pull")
    assert holds.errors == ["of the adapter"]
    await holds.held("pull")
    assert [source.is_held for source in sources] == [True, True]
    assert holds.errors == []


def test_what_was_halted_in_a_loop_that_has_ended_is_released() -> None:
    """Before its hold came to its first step."""

    class Halting(ManualSource):
        def halt(self) -> None:
            self.is_held = True

    source = Halting()
    holds = holding(source)
    loop = asyncio.new_event_loop()
    loop.call_soon(holds.start, 1, "pull")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert source.is_held
    assert source.calls == []
    for task in asyncio.all_tasks(loop):
        task.cancel()  # so that no one complains
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    holds.abandon()
    asyncio.run(holds.release(1.0))
    assert not source.is_held
