"""The keyed queue: what it takes, in which order it runs, and what its gates do."""

import asyncio
import contextvars
import gc
import random
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from drainmw import IntakeRefused
from drainmw.errors import (
    HandlerUnknown,
    IntakePaused,
    Misuse,
    NotConverging,
    ResultElsewhere,
    SlotOccupied,
    WorkStopped,
)
from drainmw.flag import Flag
from drainmw.sources.base import Explains, Fed, WorkSource
from drainmw.sources.queue import KeyedQueue
from drainmw.sources.queuestate import QueueState
from drainmw.testing import ManualClock
from tests.rig import Release, calm
from tests.test_release import ended, failure_of

pytestmark = pytest.mark.anyio


class Bench:
    """A queue, and work that lasts until the test lets it go."""

    def __init__(self, **options: Any) -> None:
        self.queue = KeyedQueue(**options)
        self.begun: list[Any] = []
        self.gates: dict[Any, asyncio.Event] = {}
        self.queue.handler("work")(self.work)
        self.queue.handler("steps")(self.steps)

    async def work(self, name: Any) -> str:
        self.begun.append(name)
        await self.gate(name).wait()
        return f"{name} done"

    async def steps(self, name: Any, number: int) -> Any:
        """So many steps, with a checkpoint after each."""
        current = self.queue.current
        for step in range(current.checkpoint or 0, number):
            self.begun.append((name, step, current.id))
            await self.gate((name, step)).wait()
            if current.must_park:
                return current.park(step + 1)
        return f"{name} done"

    def gate(self, name: Any) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def go(self, *names: Any) -> None:
        for name in names:
            self.gate(name).set()

    def run(self, key: str, name: Any, **options: Any) -> asyncio.Future[Any]:
        return self.queue.run(key, "work", name, **options)


def with_handoff(**options: Any) -> Bench:
    bench = Bench(handoff=True, **options)
    QueueState(bench.queue)
    return bench


async def error_of(future: asyncio.Future[Any]) -> BaseException | None:
    async with asyncio.timeout(1):
        await asyncio.wait([future])
    return future.exception()


def test_it_is_a_push_source_that_explains_itself() -> None:
    queue = KeyedQueue()
    assert isinstance(queue, WorkSource)
    assert isinstance(queue, Explains)
    assert isinstance(queue, Fed)
    assert (queue.name, queue.intake, queue.count()) == ("queue", "push", (0, 0))


# Running


async def test_keys_go_side_by_side_and_one_key_in_order() -> None:
    bench = Bench()
    results = [bench.run("a", 1), bench.run("a", 2), bench.run("b", 3)]
    await calm()
    assert bench.begun == [1, 3]
    assert bench.queue.count() == (3, 0)
    bench.go(1)
    await calm()
    assert bench.begun == [1, 3, 2]
    bench.go(2, 3)
    assert await asyncio.gather(*results) == ["1 done", "2 done", "3 done"]
    assert bench.queue.count() == (0, 0)


async def test_lifecycle_work_goes_before_application_work() -> None:
    bench = Bench()
    bench.go(1, 2, 3)
    results = [bench.run("a", 1), bench.run("a", 2)]
    results.append(bench.run("a", 3, lane="lifecycle"))
    await asyncio.gather(*results)
    assert bench.begun == [1, 3, 2]


async def test_any_callable_is_a_handler_also_one_that_is_not_async() -> None:
    queue = KeyedQueue()
    assert await queue.run("a", lambda text: text.upper(), "abc") == "ABC"
    assert await queue.run("a", "abc".join, ["x", "y"]) == "xabcy"
    bench = Bench()
    bench.go("direct")
    assert await bench.queue.run("a", bench.work, "direct") == "direct done"


async def test_a_handler_may_be_one_that_has_no_hash() -> None:
    class Odd(list[int]):
        def __call__(self) -> str:
            return "odd"

    assert await KeyedQueue().run("a", Odd()) == "odd"


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [LookupError, Falsy, GeneratorExit, BaseException])
async def test_what_fails_fails_its_caller_and_the_next_goes_on(
    kind: type[BaseException],
) -> None:
    queue = KeyedQueue()

    async def fails() -> None:
        raise kind("no")

    failed, fine = queue.run("a", fails), queue.run("a", lambda: "fine")
    # Awaited itself, a `GeneratorExit` would be thrown into this coroutine.
    await asyncio.wait((failed,), timeout=1)
    with pytest.raises(kind):
        failed.result()
    assert await fine == "fine"
    assert queue.count().jobs == 0


async def test_what_cancels_itself_ends_and_the_next_goes_on() -> None:
    queue = KeyedQueue()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def stopped() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    results = [queue.run("a", cancelled), queue.run("a", stopped)]
    assert await queue.run("a", lambda: "fine") == "fine"
    assert [result.cancelled() for result in results] == [True, True]


async def test_a_failure_that_nobody_hears_of_is_told_to_the_loop() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, about: told.append(about)
    )
    queue = KeyedQueue()

    async def fails() -> None:
        raise LookupError("no")

    queue.run("a", fails, id="w1").cancel()
    await queue.when_idle()
    assert [about["message"] for about in told] == ["work w1 failed"]
    assert isinstance(told[0]["exception"], LookupError)


async def test_a_caller_that_gives_up_ends_nothing() -> None:
    bench = Bench()
    bench.run("a", 1).cancel()
    second = bench.run("a", 2)
    await calm()
    assert (bench.begun, bench.queue.count().jobs) == ([1], 2)
    bench.go(1, 2)
    assert await second == "2 done"


async def test_work_sees_the_context_of_its_caller() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    queue = KeyedQueue()
    request.set("r-1")
    result = queue.run("a", request.get)
    request.set("r-2")
    assert await result == "r-1"


async def test_work_that_nobody_holds_on_to_is_not_lost() -> None:
    bench = Bench()
    bench.run("a", "orphan")
    await calm()
    gc.collect()
    bench.go("orphan")
    async with asyncio.timeout(1):
        await bench.queue.when_idle()


async def test_a_chain_of_work_does_not_keep_all_of_it() -> None:
    """Each piece knows who started it, but only while that matters."""
    queue = KeyedQueue()
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Big:
        pass

    def again(left: int, big: Big) -> None:
        alive.add(big)
        if left:
            queue.run("a", again, left - 1, Big())
            return
        gc.collect()
        left_at_the_end.append(len(alive))

    left_at_the_end: list[int] = []
    queue.run("a", again, 20, Big())
    await queue.when_idle()
    assert left_at_the_end[0] <= 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda queue: queue.run(5, len, "a"), "key must be a text"),
        (lambda queue: queue.run("a", len, "a", lane="fast"), "lane lifecycle or"),
        (lambda queue: queue.run("a", 5), "a handler or the name of one, not 5"),
        (lambda queue: queue.run("a", len, "a", id=""), "an id of work must be a text"),
    ],
)
async def test_a_call_that_is_wrong_is_refused(
    call: Callable[[KeyedQueue], Any], says: str
) -> None:
    queue = KeyedQueue()
    with pytest.raises(Misuse, match=says):
        call(queue)
    assert queue.count().jobs == 0


def test_it_needs_a_running_loop_and_says_so() -> None:
    with pytest.raises(Misuse, match="run needs a running event loop: call it in an"):
        KeyedQueue().run("a", len, "abc")


# Handlers


async def test_a_handler_is_run_by_its_name() -> None:
    queue = KeyedQueue()

    @queue.handler("shout")
    async def shout(text: str) -> str:
        return text.upper()

    assert await queue.run("a", "shout", "abc") == await queue.run("a", shout, "abc")


async def test_a_name_that_is_not_registered_is_refused_with_those_that_are() -> None:
    bench = Bench()
    with pytest.raises(HandlerUnknown, match="as resize; there are: steps, work"):
        bench.queue.run("a", "resize")
    with pytest.raises(HandlerUnknown, match="there are: none"):
        KeyedQueue().run("a", "resize")


def test_a_name_is_taken_once_and_for_a_function() -> None:
    bench = Bench()
    with pytest.raises(Misuse, match="registered as work already"):
        bench.queue.handler("work")(len)
    wrong: Any = 5
    for no_name in (len, "", None):  # len: as a decorator without its parentheses
        with pytest.raises(Misuse, match=r'as in @queue\.handler\("resize"\), not by'):
            bench.queue.handler(cast(Any, no_name))
    with pytest.raises(Misuse, match="handler other must be a function, not 5"):
        bench.queue.handler("other")(wrong)


async def test_current_is_for_handlers_of_this_very_queue() -> None:
    first, second = KeyedQueue("first"), KeyedQueue("second")
    with pytest.raises(Misuse, match="current is for handlers that first runs"):
        _ = first.current
    seen = await first.run("a", lambda: (first.current.id, first.current.key), id="w")
    assert seen == ("w", "a")
    with pytest.raises(Misuse):
        await first.run("a", lambda: second.current)


# Ids


async def test_the_same_id_is_run_once_whenever_it_comes_again() -> None:
    bench = Bench()
    results = [bench.run("a", 1, id="w"), bench.run("a", "other", id="w")]
    await calm()
    results.append(bench.run("b", 1, id="w"))
    bench.go(1)
    assert await asyncio.gather(*results) == ["1 done"] * 3
    assert await bench.run("a", 1, id="w") == "1 done"
    assert bench.begun == [1]


async def test_a_failure_is_remembered_too() -> None:
    queue = KeyedQueue()

    async def fails() -> None:
        raise LookupError("no")

    for _ in range(2):
        with pytest.raises(LookupError):
            await queue.run("a", fails, id="w")


async def test_a_known_id_is_no_new_work_and_no_gate_refuses_it() -> None:
    bench = Bench()
    first = bench.run("a", 1, id="w")
    await bench.queue.hold()
    again = bench.run("a", 1, id="w")
    bench.go(1)
    assert await first == await again


# Intake


async def test_paused_intake_refuses_by_name_while_accepted_work_goes_on() -> None:
    bench = Bench()
    results = [bench.run("a", 1), bench.run("a", 2)]
    bench.queue.pause_intake()
    with pytest.raises(IntakePaused, match=r"work .* is refused: intake is paused"):
        bench.run("a", 3)
    bench.go(1, 2, 3)
    assert await asyncio.gather(*results) == ["1 done", "2 done"]
    bench.queue.resume_intake()
    assert await bench.run("a", 3) == "3 done"


async def test_behind_a_paused_intake_idle_is_exact_and_can_be_undone() -> None:
    bench = Bench()
    bench.run("a", 1)
    bench.run("b", 2)
    bench.queue.pause_intake()
    idle = asyncio.create_task(bench.queue.when_idle())
    idle_a = asyncio.create_task(bench.queue.when_idle("a"))
    await calm()
    bench.go(1)
    await calm()
    assert (idle_a.done(), idle.done()) == (True, False)
    bench.go(2)
    await idle
    for _ in range(3):
        assert bench.queue.count() == (0, 0)
        await asyncio.sleep(0)
    bench.queue.resume_intake()
    bench.go(3)
    assert await bench.run("a", 3) == "3 done"


async def test_accepted_work_may_start_more_though_intake_is_paused() -> None:
    bench = Bench()

    async def parent() -> Any:
        await bench.gate("parent").wait()
        return await bench.run("b", "child")

    result = bench.queue.run("a", parent)
    await calm()
    bench.queue.pause_intake()
    bench.go("parent", "child")
    await bench.queue.when_idle()
    assert await result == "child done"


async def test_work_that_goes_on_starting_more_is_told_and_not_waited_for() -> None:
    queue = KeyedQueue("mail")
    runs = 0

    async def again() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        if runs < 12:
            queue.run("a", again)

    queue.run("a", again)
    queue.pause_intake()
    with pytest.raises(NotConverging, match="work of mail goes on starting more: "):
        await queue.when_idle()
    assert runs in (4, 5)  # it has been chased three times
    while True:
        try:
            await queue.when_idle()
        except NotConverging:
            continue
        break
    assert runs == 12  # nothing of it was refused


async def test_a_slow_chain_of_three_is_no_chain_without_an_end() -> None:
    queue = KeyedQueue()

    async def again(left: int) -> None:
        if left:
            queue.run("a", again, left - 1)

    queue.run("a", again, 3)
    queue.pause_intake()
    async with asyncio.timeout(1):
        await queue.when_idle()


# Keys


@pytest.mark.parametrize("key", ["a", None], ids=["of one key", "of all"])
async def test_a_pause_starts_nothing_more_until_a_resume(key: str | None) -> None:
    bench = Bench()
    results = [bench.run("a", 1), bench.run("a", 2)]
    await calm()
    bench.queue.pause(key)
    bench.go(1, 2)
    await calm()
    assert bench.begun == [1]
    results.append(bench.run("a", 3))
    bench.go(3)
    bench.queue.resume(key)
    await asyncio.gather(*results)
    assert bench.begun == [1, 2, 3]


@pytest.mark.parametrize("key", ["a", None], ids=["of one key", "of all"])
async def test_a_stop_gives_up_what_waits_and_takes_nothing_more(
    key: str | None,
) -> None:
    bench = Bench()
    running, waiting = bench.run("a", 1), bench.run("a", 2, id="w2")
    await calm()
    bench.queue.stop(key)
    with pytest.raises(WorkStopped, match="w2 is not run: its key a is stopped"):
        await waiting
    with pytest.raises(WorkStopped):
        bench.run("a", 3, id="w3")
    bench.go(1, 2)
    assert await running == "1 done"
    bench.queue.resume(key)
    assert await bench.run("a", 2, id="w2") == "2 done"
    assert bench.begun == [1, 2]


async def test_who_waits_for_a_key_to_be_idle_is_woken_by_a_stop() -> None:
    bench = Bench()
    bench.queue.pause("a")
    bench.run("a", 1)
    idle = asyncio.create_task(bench.queue.when_idle("a"))
    await calm()
    assert not idle.done()
    bench.queue.stop("a")
    async with asyncio.timeout(1):
        await idle


async def test_a_snapshot_tells_where_everything_stands() -> None:
    bench = Bench()
    bench.run("a", 1, id="w1")
    bench.run("a", 2)
    bench.queue.pause("b")
    bench.queue.stop("c")
    await calm()
    snapshot = bench.queue.snapshot()
    assert (snapshot.intake, snapshot.is_paused) == ("open", False)
    assert list(snapshot.keys) == ["a", "b", "c"]
    key = snapshot.keys["a"]
    assert (key.running, key.waiting, key.withdrawn, key.parked) == ("w1", 1, 0, 0)
    assert (snapshot.keys["b"].is_paused, snapshot.keys["c"].is_stopped) == (True, True)
    bench.queue.pause_intake()
    assert bench.queue.snapshot().intake == "paused"
    await bench.queue.hold()
    assert bench.queue.snapshot().intake == "held"
    bench.go(1, 2)
    await bench.queue.when_idle()


# Schedules


async def test_a_schedule_has_one_slot_until_its_piece_is_over() -> None:
    bench = Bench()
    first = bench.run("a", 1, schedule="nightly")
    assert bench.queue.count() == (0, 1)
    with pytest.raises(SlotOccupied, match="schedule nightly is not over"):
        bench.run("b", 2, schedule="nightly")
    assert bench.queue.is_occupied("nightly")
    bench.go(1, 2)
    await first
    assert not bench.queue.is_occupied("nightly")
    assert await bench.run("b", 2, schedule="nightly") == "2 done"


async def test_a_parked_piece_still_has_its_slot() -> None:
    bench = with_handoff()
    bench.queue.run("a", "steps", "x", 2, schedule="nightly")
    await calm()
    await bench.queue.hold()
    bench.go(("x", 0), ("x", 1))
    await bench.queue.settled()
    assert bench.queue.is_occupied("nightly")
    await bench.queue.release()
    await bench.queue.when_idle()
    assert not bench.queue.is_occupied("nightly")


# Held, without a handoff


async def test_a_held_queue_refuses_by_name_and_finishes_all_it_has() -> None:
    bench = Bench(name="mail")
    results = [bench.run("a", n, id=f"w{n}") for n in range(3)]
    await bench.queue.hold()
    await bench.queue.hold()
    with pytest.raises(IntakeRefused, match="work w9 is refused: this release is"):
        bench.run("a", 9, id="w9")
    settled = asyncio.create_task(bench.queue.settled())
    await calm()
    assert not settled.done()
    bench.go(0, 1, 2)
    await settled
    assert await asyncio.gather(*results) == ["0 done", "1 done", "2 done"]
    assert (bench.queue.handed_back, bench.begun) == (0, [0, 1, 2])
    await bench.queue.release()
    bench.go(9)
    assert await bench.run("a", 9, id="w9") == "9 done"


async def test_a_release_does_not_open_what_the_app_has_closed() -> None:
    bench = Bench()
    bench.queue.pause_intake()
    await bench.queue.hold()
    await bench.queue.release()
    with pytest.raises(IntakePaused):
        bench.run("a", 1)


async def test_running_work_may_still_feed_it_and_what_it_left_behind_may_not() -> None:
    bench = Bench()
    left: list[asyncio.Task[Any]] = []

    async def late() -> None:
        await bench.gate("late").wait()
        await bench.run("b", "late child")

    async def parent() -> Any:
        left.append(asyncio.create_task(late()))
        await bench.gate("parent").wait()
        return await bench.run("a", "child")

    result = bench.queue.run("other", parent)
    await calm()
    await bench.queue.hold()
    bench.go("parent", "child")
    assert await result == "child done"
    bench.go("late")
    with pytest.raises(IntakeRefused):
        await left[0]


async def test_a_request_in_flight_may_still_feed_it() -> None:
    fed = True
    bench = Bench(is_fed=lambda: fed)
    bench.go(1)
    await bench.queue.hold()
    assert await bench.run("a", 1) == "1 done"
    fed = False
    with pytest.raises(IntakeRefused):
        bench.run("a", 2)


# Held, with a handoff


async def test_what_has_not_started_is_withdrawn_and_its_callers_are_told() -> None:
    bench = with_handoff()
    results = [bench.run("a", n, id=f"w{n}") for n in range(3)]
    await calm()
    await bench.queue.hold()
    assert (bench.queue.count(), bench.queue.handed_back) == ((1, 0), 2)
    for result in results[1:]:
        told = await error_of(result)
        assert isinstance(told, ResultElsewhere)
        assert "goes on in the next release, or here after a resume" in str(told)
    bench.go(0, 1, 2)
    assert await results[0] == "0 done"
    await bench.queue.settled()
    assert bench.begun == [0]
    assert isinstance(await error_of(bench.run("a", 1, id="w1")), ResultElsewhere)


async def test_a_release_puts_it_back_in_its_place() -> None:
    bench = with_handoff()
    for n in range(3):
        bench.run("a", n)
    await calm()
    await bench.queue.hold()
    bench.go(*range(9))
    await bench.queue.settled()
    await bench.queue.release()
    last = bench.run("a", 3)
    assert await last == "3 done"
    assert bench.begun == [0, 1, 2, 3]


async def test_a_hold_of_many_lets_the_loop_go_on_and_starts_nothing() -> None:
    bench = with_handoff()
    for n in range(500):
        bench.run("a", n)
    await calm()
    turns = 0
    bench.go(*range(500))
    holding = asyncio.create_task(bench.queue.hold())
    while not holding.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 4
    assert (bench.begun, bench.queue.handed_back) == ([0], 499)


async def test_a_hold_that_is_done_by_half_is_undone_by_release() -> None:
    bench = with_handoff()
    for n in range(500):
        bench.run("a", n)
    holding = asyncio.create_task(bench.queue.hold())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    holding.cancel()
    await asyncio.wait([holding])
    assert holding.cancelled()
    await bench.queue.release()
    bench.go(*range(500))
    await bench.queue.when_idle()
    assert bench.begun == list(range(500))


async def test_a_hold_that_is_done_by_half_is_finished_by_another_hold() -> None:
    bench = with_handoff()
    for n in range(500):
        bench.run("a", n)
    holding = asyncio.create_task(bench.queue.hold())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    holding.cancel()
    await asyncio.wait([holding])
    await bench.queue.hold()
    assert bench.queue.handed_back == 499
    bench.go(0)
    await bench.queue.settled()


async def test_the_next_hold_may_go_without_a_handoff() -> None:
    plans = [True, False]
    bench = Bench(handoff=lambda: plans.pop(0))
    QueueState(bench.queue)
    for n in range(3):
        bench.run("a", n)
    await bench.queue.hold()
    assert bench.queue.handed_back == 2
    await bench.queue.hold()  # the release between was overtaken
    assert bench.queue.handed_back == 0
    bench.go(0, 1, 2)
    await bench.queue.settled()
    assert bench.begun == [0, 1, 2]


async def test_without_a_state_adapter_nothing_is_withdrawn() -> None:
    """Nobody would take it over."""
    bench = Bench(handoff=True)
    results = [bench.run("a", n) for n in range(2)]
    await bench.queue.hold()
    bench.go(0, 1)
    await asyncio.gather(*results)
    with pytest.raises(Misuse, match="must be held and have a QueueState"):
        await bench.queue.withdraw()


async def test_work_can_be_withdrawn_in_the_middle_of_a_drain() -> None:
    bench = Bench()
    QueueState(bench.queue)
    for n in range(3):
        bench.run("a", n)
    with pytest.raises(Misuse):
        await bench.queue.withdraw()
    await bench.queue.hold()
    assert bench.queue.handed_back == 0
    await bench.queue.withdraw()
    await bench.queue.withdraw()
    assert bench.queue.handed_back == 2
    bench.go(0)
    await bench.queue.settled()


async def test_work_of_a_handler_without_a_name_ends_here() -> None:
    bench = with_handoff()
    other: Callable[..., Coroutine[Any, Any, str]] = Bench().work
    bench.run("a", 0)
    stays = bench.queue.run("a", lambda: "here")
    bench.run("a", 2)
    foreign = bench.queue.run("b", other, "x")
    await calm()
    await bench.queue.hold()
    assert bench.queue.handed_back == 1
    bench.go(0)
    assert await stays == "here"
    assert bench.queue.count().jobs == 1
    foreign.cancel()


async def test_what_running_work_has_started_ends_with_it() -> None:
    """It may wait for the result; a drain must not break it."""
    bench = with_handoff()

    async def parent() -> list[Any]:
        before = bench.run("b", "before")
        await bench.gate("parent").wait()
        after = bench.run("b", "after")
        return [await before, await after]

    bench.run("b", "first")
    result = bench.queue.run("a", parent)
    await calm()
    bench.run("b", "unrelated")
    await bench.queue.hold()
    assert bench.queue.handed_back == 1
    bench.go("parent", "before", "first", "after", "unrelated")
    assert await result == ["before done", "after done"]
    await bench.queue.settled()


async def test_what_running_work_has_started_and_left_goes_over_once_that_is_over() -> (
    None
):
    bench = with_handoff()

    async def parent() -> None:
        bench.run("b", "child")
        await bench.gate("parent").wait()

    bench.run("b", "first")
    await calm()
    bench.queue.run("a", parent)
    await calm()
    await bench.queue.hold()
    assert bench.queue.handed_back == 0
    bench.go("parent")
    await calm()
    assert bench.queue.handed_back == 1
    bench.go("first")
    await bench.queue.settled()
    assert bench.begun == ["first"]


async def test_work_that_starts_itself_anew_goes_over_at_once() -> None:
    bench = with_handoff()

    @bench.queue.handler("again")
    async def again() -> None:
        await asyncio.sleep(0)
        bench.queue.run("a", "again")

    bench.queue.run("a", "again")
    await bench.queue.hold()
    async with asyncio.timeout(1):
        await bench.queue.settled()
    assert bench.queue.handed_back == 1


async def test_what_is_started_on_and_on_goes_over_and_the_queue_settles() -> None:
    """Its starter waits for it, and is told; nobody is chased for ever."""
    bench = with_handoff()

    @bench.queue.handler("again")
    async def again(left: int) -> Any:
        await bench.gate("again").wait()
        return await bench.queue.run(f"k{left}", "again", left - 1)

    result = bench.queue.run("a", "again", 20)
    await calm()
    await bench.queue.hold()
    bench.go("again")
    async with asyncio.timeout(1):
        await bench.queue.settled()
    assert isinstance(await error_of(result), ResultElsewhere)
    assert bench.queue.handed_back == 1


async def test_a_release_that_overtakes_the_news_of_a_withdrawal_stops_them() -> None:
    bench = with_handoff()
    results = [bench.run("a", n) for n in range(2)]
    lines = bench.queue._lines
    for each in lines.travel(10**6):
        each.freeze()
    lines.sift()
    await bench.queue.release()
    bench.go(0, 1)
    assert await asyncio.gather(*results) == ["0 done", "1 done"]


# Parking


async def test_what_runs_parks_at_a_checkpoint_and_goes_on_after_a_release() -> None:
    """Nothing of it is cancelled, and its result stays pending."""
    bench = with_handoff()
    result = bench.queue.run("a", "steps", "x", 3, id="w")
    await calm()
    await bench.queue.hold()
    await calm()
    assert bench.queue.count().jobs == 1  # it is not at its checkpoint yet
    bench.go(("x", 0), ("x", 1), ("x", 2))
    await bench.queue.settled()
    assert not result.done()
    assert bench.queue.snapshot().keys["a"].parked == 1
    assert isinstance(
        await error_of(bench.queue.run("a", "steps", "x", 3, id="w")), ResultElsewhere
    )
    await bench.queue.release()
    assert await result == "x done"
    assert bench.begun == [("x", 0, "w"), ("x", 1, "w"), ("x", 2, "w")]


async def test_nothing_is_asked_to_park_without_a_handoff() -> None:
    bench = Bench()
    result = bench.queue.run("a", "steps", "x", 2)
    await calm()
    await bench.queue.hold()
    bench.go(("x", 0), ("x", 1))
    assert await result == "x done"
    assert len(bench.begun) == 2


async def test_a_checkpoint_that_is_not_json_goes_on_here_at_once() -> None:
    bench = with_handoff()
    seen: list[Any] = []

    @bench.queue.handler("odd")
    async def odd() -> Any:
        current = bench.queue.current
        seen.append(current.checkpoint)
        await bench.gate("odd").wait()
        return current.park({1, 2}) if current.must_park else "done"

    result = bench.queue.run("a", "odd")
    await calm()
    await bench.queue.hold()
    bench.go("odd")
    assert await result == "done"
    assert seen == [None, {1, 2}]


async def test_who_parks_unasked_is_told() -> None:
    bench = with_handoff()
    with pytest.raises(Misuse, match="may park once must_park has said so"):
        await bench.queue.run("a", lambda: bench.queue.current.park(1))


async def test_who_parks_again_is_asked_again() -> None:
    bench = with_handoff()

    @bench.queue.handler("once")
    async def once() -> Any:
        current = bench.queue.current
        await bench.gate("once").wait()
        assert current.checkpoint or current.must_park
        return current.park(1)

    result = bench.queue.run("a", "once")
    await calm()
    await bench.queue.hold()
    bench.go("once")
    await bench.queue.settled()
    await bench.queue.release()
    with pytest.raises(Misuse):
        await result


async def test_who_parks_when_the_release_has_come_goes_on_at_once() -> None:
    bench = with_handoff()

    @bench.queue.handler("slow")
    async def slow() -> Any:
        current = bench.queue.current
        if current.checkpoint:
            return "done"
        await bench.gate("asked").wait()
        assert current.must_park
        await bench.gate("parks").wait()
        return current.park("half")

    result = bench.queue.run("a", "slow")
    await calm()
    await bench.queue.hold()
    bench.go("asked")
    await calm()
    await bench.queue.release()
    bench.go("parks")
    assert await result == "done"


# Loops and threads


async def test_another_loop_runs_its_own_work_in_the_order_of_the_key() -> None:
    bench, accepted = Bench(), Flag()
    order: list[str] = []

    async def elsewhere() -> None:
        loop = asyncio.get_running_loop()

        async def there() -> str:
            order.append("there")
            assert asyncio.get_running_loop() is loop
            return "there"

        result = bench.queue.run("a", there)
        accepted.set()
        assert await result == "there"

    bench.run("a", 1)
    await calm()
    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await accepted
    last = bench.queue.run("a", order.append, "here")
    bench.go(1)
    await last
    await thread
    assert order == ["there", "here"]


async def test_who_waits_in_another_loop_is_told_there() -> None:
    bench, joined = Bench(), Flag()
    bench.run("a", 1, id="w")

    async def elsewhere() -> Any:
        result = bench.run("a", 1, id="w")
        asyncio.get_running_loop().call_soon(joined.set)  # when it waits
        async with asyncio.timeout(1):
            return await result

    run = asyncio.to_thread(asyncio.run, elsewhere(), debug=True)
    thread = asyncio.create_task(run)
    await joined
    bench.go(1)
    assert await thread == "1 done"


@pytest.mark.parametrize("seed", range(3))
async def test_loops_of_several_threads_share_it_while_it_is_held_and_released(
    seed: int,
) -> None:
    bench = with_handoff()
    ran: dict[str, list[str]] = {key: [] for key in "abc"}
    at_work: set[str] = set()

    async def work(key: str, id: str) -> None:
        assert key not in at_work
        at_work.add(key)
        ran[key].append(id)
        await asyncio.sleep(0)
        at_work.remove(key)

    bench.queue.handler("shared")(work)

    async def thread(number: int) -> None:
        chance = random.Random(seed * 10 + number)
        for n in range(60):
            key, id = chance.choice("abc"), f"{number}-{n}"
            while True:
                with suppress(IntakeRefused):
                    bench.queue.run(key, "shared", key, id, id=id)
                    break
                await asyncio.sleep(0.0005)
            await asyncio.sleep(0)
        offering.discard(number)
        await finished  # a loop that ends takes its work with it

    finished, offering = Flag(), set(range(4))
    threads = asyncio.gather(
        *(asyncio.to_thread(asyncio.run, thread(number)) for number in range(4))
    )
    while offering:
        await bench.queue.hold()
        await bench.queue.settled()
        before = sum(map(len, ran.values()))
        await asyncio.sleep(0.001)
        assert sum(map(len, ran.values())) == before
        await bench.queue.release()
        await asyncio.sleep(0.001)
    await bench.queue.when_idle()
    finished.set()
    await threads
    for ids in ran.values():
        for number in range(4):
            own = [int(id[2:]) for id in ids if id.startswith(f"{number}-")]
            assert own == sorted(own)
    assert sum(map(len, ran.values())) == len(set().union(*ran.values())) == 240


def test_what_waits_for_a_loop_that_ends_is_cancelled_with_it() -> None:
    """As a task that has not started is; the queue is good for the next loop."""
    queue = KeyedQueue()
    begun: list[int] = []

    async def long(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    async def main() -> None:
        for number in range(5):
            queue.run("a", long, number, id=f"w{number}")
            queue.run("b", long, 10 + number)
        await calm()

    asyncio.run(main())
    assert begun == [0, 10]
    assert queue.count() == (0, 0)

    async def again() -> str:
        return str(await queue.run("a", lambda: "fine", id="w1"))

    assert asyncio.run(again()) == "fine"


async def paused(bench: Bench, *names: int) -> None:
    """Accept them in this loop, for later."""
    bench.queue.pause()
    for name in names:
        bench.run("a", name)


def test_what_was_accepted_in_a_loop_that_is_gone_goes_on_in_another() -> None:
    bench = Bench()

    async def goes_on() -> None:
        bench.go(1)
        bench.queue.resume()
        async with asyncio.timeout(1):
            await bench.queue.when_idle()

    asyncio.run(paused(bench, 1))
    bench.queue.resume()  # here is no loop at all
    assert bench.queue.count().jobs == 1
    asyncio.run(goes_on())
    assert bench.begun == [1]


def test_what_is_on_its_way_to_a_loop_that_is_closed_goes_on_in_another() -> None:
    bench, other = Bench(), asyncio.new_event_loop()

    async def goes_on() -> None:
        bench.go(1, 2)
        idle = asyncio.ensure_future(bench.queue.when_idle())
        await calm()
        bench.queue.resume()  # that loop has stopped, and may run again
        await calm()
        assert bench.begun == []
        other.close()
        await asyncio.wait_for(idle, 1)

    other.run_until_complete(paused(bench, 1, 2))
    asyncio.run(goes_on())
    assert bench.begun == [1, 2]


def test_what_another_thread_could_not_start_is_started_by_who_waits_for_it() -> None:
    bench = Bench()

    async def goes_on() -> None:
        bench.go(1)
        await asyncio.wait_for(bench.queue.when_idle(), 1)

    asyncio.run(paused(bench, 1))
    bench.queue.resume()
    asyncio.run(goes_on())
    assert bench.begun == [1]


# With a drain


def drained_by(bench: Bench) -> Release:
    release = Release()
    release.drain.add_source(bench.queue)
    return release


async def test_a_drain_waits_for_all_that_was_accepted() -> None:
    bench = Bench()
    release = drained_by(bench)
    results = [bench.run("a", n) for n in range(3)]
    await release.client.begin()
    await calm()
    assert (await release.in_flight())["jobs"] == 3
    bench.go(0, 1, 2)
    assert await ended(release.drain) == "drained"
    assert all(result.done() for result in results)


async def test_a_job_that_comes_during_a_drain_is_refused_and_not_lost() -> None:
    """J10: by a named error; nothing of it is accepted."""
    bench = Bench(name="mail")
    release = drained_by(bench)
    bench.run("a", 0)
    await release.client.begin()
    await calm()
    with pytest.raises(IntakeRefused):
        bench.run("a", 1)
    bench.go(0, 1)
    assert await ended(release.drain) == "drained"
    with pytest.raises(IntakeRefused):
        bench.run("a", 1)
    assert bench.begun == [0]
    await release.client.resume()
    assert await bench.run("a", 1) == "1 done"


async def test_what_runs_at_the_deadline_stands_in_the_report() -> None:
    """J7: the ids of jobs that still run."""
    clock = ManualClock()
    bench = Bench(name="mail", clock=clock)
    release = drained_by(bench)
    bench.run("a", 0, id="mail-7")
    clock.advance(1)
    bench.run("b", 1, id="mail-8")
    bench.run("b", 2, id="mail-9")
    await release.client.begin(timeoutMs=150)
    assert await ended(release.drain) == "failed"
    assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"
    report = await release.client.report()
    (told,) = [s for s in report["sources"] if s["name"] == "mail"]
    assert (told["running"], told["jobs"]) == (["mail-7", "mail-8"], 3)
    bench.go(0, 1, 2)
    await bench.queue.when_idle()


async def test_what_a_paused_key_keeps_stands_in_the_report_too() -> None:
    bench = Bench(clock=ManualClock(5.0))
    bench.queue.pause("a")
    for n in range(2):
        bench.run("a", n, id=f"w{n}")
    assert [(p.id, p.started) for p in bench.queue.running()] == [("w0", 5.0)]


async def test_work_without_an_end_fails_the_drain_and_is_named() -> None:
    bench = Bench(name="mail")
    release = drained_by(bench)
    ends = False

    async def again() -> None:
        await asyncio.sleep(0.001)
        if not ends:
            bench.queue.run("a", again, id=f"w{len(bench.begun)}")
            bench.begun.append("again")

    bench.queue.run("a", again)
    await release.client.begin(timeoutMs=200)
    assert await ended(release.drain) == "failed"
    assert "work of mail goes on starting more: w" in await failure_of(release)
    ends = True


async def test_a_drain_with_a_handoff_reports_what_it_hands_back() -> None:
    bench = with_handoff(name="mail")
    release = drained_by(bench)
    for n in range(3):
        bench.run("a", n)
    await release.client.begin()
    await calm()
    bench.go(0)
    assert await ended(release.drain) == "drained"
    report = await release.client.report()
    (told,) = [s for s in report["sources"] if s["name"] == "mail"]
    assert (told["handedBack"], told["jobs"]) == (2, 0)
    assert (told["running"], report["blockers"]) == ([], [])
    bench.go(1, 2)
    await release.client.resume()
    await bench.queue.when_idle()
    assert bench.begun == [0, 1, 2]


async def test_a_job_of_the_registry_may_feed_it_and_waits_for_nothing_lost() -> None:
    bench = with_handoff()
    release = drained_by(bench)

    async def job() -> Any:
        await bench.gate("job").wait()
        return await bench.run("a", "child")

    task = release.drain.spawn(job())
    await release.client.begin()
    await calm()
    bench.go("job", "child")
    assert await task == "child done"
    assert await ended(release.drain) == "drained"


async def test_what_a_job_waits_for_does_not_park() -> None:
    """Its result would come in the next release, and the job hold the drain."""
    bench = with_handoff()
    release = drained_by(bench)
    asked: list[bool] = []

    @bench.queue.handler("waits")
    async def waits() -> str:
        await bench.gate("waits").wait()
        asked.append(bench.queue.current.must_park)
        return bench.queue.current.park(1) if asked[-1] else "done"

    async def job() -> Any:
        return await bench.queue.run("a", waits)

    task = release.drain.spawn(job())
    await calm()
    await release.client.begin()
    await calm()
    await bench.queue.hold()  # as the drain does once the job is over, and a user may
    bench.go("waits")
    assert await asyncio.wait_for(task, 5) == "done"
    assert asked == [False]
    assert await ended(release.drain) == "drained"
