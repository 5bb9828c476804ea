"""The small scheduler: what it fires when, and what it does about the past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

import pytest

from drainmw import Clock
from drainmw.core.lease import CROWDED, KEPT, Lease
from drainmw.core.timetable import due_ms, moment
from drainmw.errors import Misuse, OwnershipUnavailable
from drainmw.interrupt import returns_coroutine
from drainmw.sources import clock as module
from drainmw.testing import ManualClock
from tests.homes import Place, TestHome

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()

pytestmark = pytest.mark.anyio


class Scene:
    """Processes on one place, each with a clock of the same schedules."""

    def __init__(self) -> None:
        self.time = ManualClock()
        self.wall = ManualClock(NOON)
        self.place = Place()
        self.fired: list[tuple[str, float]] = []
        """By whom, and how many seconds after noon it was due."""
        self.changed = asyncio.Event()
        self.blue = self.process("blue")
        self.green = self.process("green")

    def process(self, name: str) -> tuple[TestHome, Clock]:
        home = TestHome(self.place, name, self.time)
        return home, Clock(home.owner, wall=self.wall)

    def act(self, name: str) -> Callable[[datetime], Any]:
        async def act(due: datetime) -> None:
            self.fired.append((name, round(due.timestamp() - NOON, 3)))
            self.changed.set()

        return act

    def both(self, add: Callable[[Clock, Any], object]) -> None:
        """Add a schedule in both releases."""
        add(self.blue[1], self.act("blue"))
        add(self.green[1], self.act("green"))

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(2):
            while not met():
                self.changed.clear()
                await self.changed.wait()

    async def hand_over(self) -> None:
        blue, green = self.blue[0], self.green[0]
        await blue.owner.hold()
        await blue.look(may_own=False, clocks_held=True)
        assert await green.look()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(module, "PAUSE", 0.002)
    monkeypatch.setattr(module, "LOOK", 0.002)
    return Scene()


@asynccontextmanager
async def running(*processes: tuple[TestHome, Clock]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for home, _ in processes:
            await stack.enter_async_context(home.clients())
        yield


def due(scene: Scene) -> list[float]:
    return [seconds for _, seconds in scene.fired]


async def some_time() -> None:
    """For what must not happen: a few looks of a clock."""
    await asyncio.sleep(0.03)


async def test_an_interval_is_fired_at_each_of_its_moments(scene: Scene) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        assert due(scene) == []
        for number in range(1, 4):
            scene.wall.advance(10)
            await scene.until(lambda n=number: len(scene.fired) == n)  # type: ignore[misc]
    assert due(scene) == [10, 20, 30]


async def test_only_the_owner_fires(scene: Scene) -> None:
    scene.both(lambda clock, act: clock.every(10, name="x")(act))
    await scene.green[0].look()
    async with running(scene.blue, scene.green):
        await some_time()
        scene.wall.advance(30)
        await scene.until(lambda: len(scene.fired) == 3)
        await some_time()
    assert scene.fired == [("green", 10), ("green", 20), ("green", 30)]


async def test_what_is_due_in_between_is_fired_once_by_the_next(scene: Scene) -> None:
    scene.both(lambda clock, act: clock.every(10, name="x")(act))
    await scene.blue[0].look()
    async with running(scene.blue, scene.green):
        await some_time()
        scene.wall.advance(10)
        await scene.until(lambda: len(scene.fired) == 1)
        await scene.blue[0].owner.hold()
        scene.wall.advance(20)
        await some_time()
        assert scene.blue[0].owner.overdue == 2
        await scene.hand_over()
        assert scene.blue[0].owner.overdue == 0
        await scene.until(lambda: len(scene.fired) == 3)
        await some_time()
    assert scene.fired == [("blue", 10), ("green", 20), ("green", 30)]


async def test_a_schedule_whose_first_owner_dies_before_its_first_tick(
    scene: Scene,
) -> None:
    scene.both(lambda clock, act: clock.every(10, name="x")(act))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
    scene.blue[0].shared.die()
    scene.wall.advance(25)
    await scene.green[0].look()
    async with running(scene.green):
        await scene.until(lambda: len(scene.fired) == 2)
    assert scene.fired == [("green", 10), ("green", 20)]


async def test_a_single_moment_is_fired_once_over_all_releases(scene: Scene) -> None:
    """J8: here after a resume, or by the next release."""
    when = datetime.fromtimestamp(NOON + 5, UTC)
    scene.both(lambda clock, act: clock.at(when, act, name="once"))
    await scene.blue[0].look()
    async with running(scene.blue, scene.green):
        await scene.blue[0].owner.hold()
        scene.wall.advance(9)
        await some_time()
        assert scene.fired == []
        await scene.blue[0].owner.release()
        await scene.until(lambda: bool(scene.fired))
        await scene.hand_over()
        await some_time()
    assert scene.fired == [("blue", 5)]


async def test_a_moment_that_has_passed_for_a_day_is_missed_and_told(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    late = NOON - KEPT / 1000
    scene.blue[1].at(late + 0.001, scene.act("blue"), name="just")
    scene.blue[1].at(late, scene.act("blue"), name="too late")
    await scene.blue[0].look()
    async with running(scene.blue):
        await scene.until(lambda: bool(scene.fired))
        await some_time()
    assert len(scene.fired) == 1
    (record,) = [r for r in caplog.records if "missed" in r.getMessage()]
    told = record.__dict__["drainmw"]
    assert (told["schedule"], told["late_ms"]) == ("too late", KEPT)


async def test_what_is_overdue_for_too_long_is_passed_by(scene: Scene) -> None:
    scene.blue[1].every(10, name="all", catch_up=25)(scene.act("all"))
    scene.blue[1].every(10, name="one", coalesce=True)(scene.act("one"))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(100)
        await scene.until(lambda: len(scene.fired) == 4)
        await some_time()
    assert sorted(scene.fired) == [("all", 80), ("all", 90), ("all", 100), ("one", 100)]


async def test_a_tick_that_takes_long_delays_the_next_and_loses_none(
    scene: Scene,
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(moment: datetime) -> None:
        begun.set()
        await go.wait()
        await scene.act("slow")(moment)

    scene.blue[1].every(10)(slow)
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(10)
        await begun.wait()
        scene.wall.advance(20)
        await some_time()
        assert scene.blue[0].owner.count().schedules == 1
        go.set()
        await scene.until(lambda: len(scene.fired) == 3)
    assert due(scene) == [10, 20, 30]


SECRET = "no luck: redis://:hidden@host refused"


@pytest.mark.parametrize("error", [ValueError(SECRET), asyncio.CancelledError()])
async def test_a_tick_that_fails_is_logged_and_the_next_is_fired(
    error: BaseException, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that has waited for what somebody else has cancelled."""

    async def fails(moment: datetime) -> None:
        await scene.act("x")(moment)
        raise error

    scene.blue[1].every(10, name="x")(fails)
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(20)
        await scene.until(lambda: len(scene.fired) == 2)
        await some_time()
    failed = [r.getMessage() for r in caplog.records if "tick failed" in r.getMessage()]
    assert len(failed) == 2
    assert ("no luck" if str(error) else "CancelledError") in failed[0]
    assert "hidden" not in caplog.text  # V2
    assert scene.place.lease.running == []


async def test_a_store_that_is_away_delays_and_loses_nothing(scene: Scene) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    home = scene.blue[0]
    await home.look()
    async with running(scene.blue):
        await some_time()
        home.shared.fails = OwnershipUnavailable("away")
        scene.wall.advance(20)
        await some_time()
        assert scene.fired == []
        home.shared.fails = None
        await scene.until(lambda: len(scene.fired) == 2)
    assert due(scene) == [10, 20]


@pytest.mark.parametrize("error", [RuntimeError("odd"), asyncio.CancelledError()])
async def test_a_store_that_fails_oddly_ends_no_schedule(
    error: BaseException, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    home = scene.blue[0]
    await home.look()
    async with running(scene.blue):
        await some_time()
        home.shared.fails = error
        scene.wall.advance(10)
        await some_time()
        assert "tick failed" in caplog.text
        home.shared.fails = None
        await scene.until(lambda: len(scene.fired) == 1)
    assert due(scene) == [10]


async def test_where_all_was_lost_an_earlier_owner_repeats_nothing(
    scene: Scene,
) -> None:
    """It remembers its own last tick, and none of those that were fired since."""
    scene.both(lambda clock, act: clock.every(10, name="x")(act))
    blue = scene.blue[0]
    await blue.look()
    async with running(scene.blue, scene.green):
        await some_time()
        scene.wall.advance(10)
        await scene.until(lambda: len(scene.fired) == 1)
        await scene.hand_over()
        await blue.owner.release()
        assert not await blue.look()
        scene.wall.advance(20)
        await scene.until(lambda: len(scene.fired) == 3)
        scene.place.lease, scene.place.holder = Lease(), None
        assert await blue.look()
        await some_time()
        scene.wall.advance(10)
        await scene.until(lambda: len(scene.fired) == 4)
    assert due(scene) == [10, 20, 30, 40]


async def test_where_all_was_lost_its_owner_goes_on_and_loses_nothing(
    scene: Scene,
) -> None:
    scene.both(lambda clock, act: clock.every(10, name="x")(act))
    blue = scene.blue[0]
    await blue.look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(10)
        await scene.until(lambda: len(scene.fired) == 1)
        scene.place.lease, scene.place.holder = Lease(), None
        scene.wall.advance(10)
        await blue.look()
        await blue.look()
        await scene.until(lambda: len(scene.fired) == 2)
    assert due(scene) == [10, 20]


async def test_a_refused_tick_is_not_asked_for_without_a_pause(scene: Scene) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    home = scene.blue[0]
    await home.look()
    home.shared.fails = OwnershipUnavailable("away")
    before = home.shared.transactions
    async with running(scene.blue):
        await some_time()
    assert home.shared.transactions - before < 40


async def test_a_time_of_day_that_is_set_back_repeats_nothing(scene: Scene) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(20)
        await scene.until(lambda: len(scene.fired) == 2)
        scene.wall.advance(-15)
        await some_time()
        assert scene.blue[0].owner.overdue == 0
        scene.wall.advance(25)
        await scene.until(lambda: len(scene.fired) == 3)
    assert due(scene) == [10, 20, 30]


async def test_more_schedules_than_are_remembered_are_told(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    now = due_ms(NOON)
    scene.place.lease.last = {f"s{number}": now for number in range(CROWDED)}
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
    assert scene.fired == []
    assert "1000 schedules" in caplog.text


async def test_a_tick_that_was_fired_by_hand_is_passed_by(scene: Scene) -> None:
    scene.blue[1].every(10, name="x")(scene.act("blue"))
    owner = scene.blue[0].owner
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        async with owner.tick(NOON + 10, "x") as mine:
            assert mine
        scene.wall.advance(20)
        await scene.until(lambda: bool(scene.fired))
    assert due(scene) == [20]


async def test_an_offset_moves_the_moments(scene: Scene) -> None:
    scene.blue[1].every(10, name="x", offset=3)(scene.act("blue"))
    await scene.blue[0].look()
    async with running(scene.blue):
        await some_time()
        scene.wall.advance(14)
        await scene.until(lambda: len(scene.fired) == 2)
    assert due(scene) == [3, 13]


async def test_real_time_is_waited_for() -> None:
    place = Place()
    home = TestHome(place, "blue", ManualClock())
    clock = Clock(home.owner)
    seen: list[datetime] = []

    @clock.every(0.02)
    async def often(moment: datetime) -> None:
        seen.append(moment)

    await home.look()
    async with running((home, clock)), asyncio.timeout(2):
        while len(seen) < 6:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.02)
    steps = {due_ms(b) - due_ms(a) for a, b in pairwise(seen)}
    assert steps == {20}
    assert all(moment(due_ms(when)) == when for when in seen)


def test_what_a_clock_cannot_use_is_named() -> None:
    clock = Clock(TestHome(Place(), "blue", ManualClock()).owner)

    async def act() -> None:
        """Takes nothing."""

    with pytest.raises(Misuse, match=r"act does must take one argument, its due"):
        clock.every(10)(cast(Any, act))
    with pytest.raises(Misuse, match=r"as drain\.own\(name\) gives, not str"):
        Clock(cast(Any, "reports"))


def test_a_schedule_has_a_name_of_its_own_and_numbers_that_are_some() -> None:
    clock = Clock(TestHome(Place(), "blue", ManualClock()).owner)

    async def act(due: datetime) -> None:
        """Nothing."""

    clock.every(10)(act)
    with pytest.raises(Misuse, match=r"of the name .*act already"):
        clock.every(20)(act)
    clock.at(5, act, name="once")
    with pytest.raises(Misuse, match="of the name once already"):
        clock.at(6, act, name="once")
    other = Clock(clock._owner)
    with pytest.raises(Misuse, match="of the name once already"):  # claimed for one
        other.at(6, act, name="once")
    for wrong in (0, -1, float("nan"), 0.0001, "60", act):
        with pytest.raises(Misuse, match="seconds must be"):
            clock.every(cast(Any, wrong))
    with pytest.raises(Misuse, match="catch_up must be"):
        clock.every(1, catch_up=-1)
    with pytest.raises(Misuse, match="needs a zone"):
        clock.at(datetime(2026, 1, 1), act, name="naive")


def test_what_a_schedule_does_must_be_a_coroutine_function() -> None:
    clock = Clock(TestHome(Place(), "blue", ManualClock()).owner)
    wrong: Any = lambda due: None  # noqa: E731
    with pytest.raises(Misuse, match="must be a coroutine function"):
        clock.every(10, name="x")(wrong)


def test_a_function_that_is_marked_to_give_a_coroutine_is_one() -> None:
    """As asgiref's `sync_to_async` does it."""
    clock = Clock(TestHome(Place(), "blue", ManualClock()).owner)

    @returns_coroutine
    def marked(due: datetime) -> Awaitable[None]:
        return asyncio.sleep(0)

    assert clock.every(10, name="x")(marked) is marked
