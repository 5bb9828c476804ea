"""One owner: when a tick may be fired, and what is noted of it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from drainmw import Drain, IntakeRefused
from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease, Tick
from drainmw.errors import Misuse, OwnershipUnavailable
from drainmw.sources.base import Counts, WorkSource
from drainmw.sources.tasks import TaskRegistry
from drainmw.tenure import SILENT, TRUST
from drainmw.testing import ManualClock
from tests.homes import Place, TestHome
from tests.rig import calm

LASTS = 6.0

pytestmark = pytest.mark.anyio


class Scene:
    """Two processes, blue and green, and what the log says."""

    def __init__(self, lasts: float | None = None) -> None:
        self.clock = ManualClock()
        self.place = Place(lasts)
        self.blue = TestHome(self.place, "blue", self.clock)
        self.green = TestHome(self.place, "green", self.clock)

    @property
    def running(self) -> list[int]:
        return [tick.due for tick in self.place.lease.running]

    @property
    def interrupted(self) -> list[int]:
        return [tick.due for tick in self.place.lease.interrupted]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def remote() -> Scene:
    """Where only time tells whether a holder lives."""
    return Scene(LASTS)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["drainmw"]["event"] for record in caplog.records]


# Getting it, keeping it


async def test_one_of_two_gets_it(scene: Scene) -> None:
    assert await scene.blue.look()
    assert not await scene.green.look()
    assert (scene.blue.owner.generation, scene.green.owner.generation) == (1, None)
    assert await scene.blue.look()


async def test_nobody_gets_it_who_may_not(scene: Scene) -> None:
    assert not await scene.blue.look(may_own=False)
    assert scene.place.lease.generation == 0


async def test_flags_tell_of_gain_and_loss(scene: Scene) -> None:
    owner = scene.blue.owner
    assert (bool(owner.gained), bool(owner.lost)) == (False, True)
    gained = asyncio.ensure_future(_waited(owner.gained))
    await scene.blue.look()
    await asyncio.wait_for(gained, 1)
    lost = asyncio.ensure_future(_waited(owner.lost))
    await calm()
    assert not lost.done()
    await owner.hold()
    await asyncio.wait_for(lost, 1)
    assert not owner.gained


async def _waited(flag: object) -> None:
    await flag  # type: ignore[misc]  # any awaitable


async def test_where_the_kernel_tells_of_death_the_next_takes_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.blue.look()
    scene.blue.shared.die()
    assert await scene.green.look()
    assert scene.green.owner.generation == 2


async def test_across_hosts_a_holder_that_renews_keeps_it(remote: Scene) -> None:
    await remote.blue.look()
    for _ in range(20):
        remote.clock.advance(1.0)
        assert await remote.blue.look()
        assert not await remote.green.look()
    assert remote.blue.owner.generation == 1


async def test_across_hosts_silence_is_death_and_the_silent_one_knows_before(
    remote: Scene,
) -> None:
    await remote.blue.look()
    await remote.green.look()
    remote.clock.advance(LASTS * TRUST)
    assert not remote.blue.owner.is_mine
    assert not await remote.blue.fires(5)
    assert not await remote.green.look()
    remote.clock.advance(LASTS * (1 - TRUST))
    assert await remote.green.look()
    assert remote.green.owner.generation == 2


async def test_whoever_was_overtaken_finds_out_and_fires_nothing(
    remote: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await remote.blue.look()
    await remote.green.look()
    remote.clock.advance(LASTS)
    await remote.green.look()
    assert not await remote.blue.look()
    assert remote.blue.owner.generation is None
    assert "schedules lost" in events(caplog)
    assert await remote.green.look()


async def test_a_tick_under_an_old_generation_is_refused_by_the_store(
    remote: Scene,
) -> None:
    """Its clock may stand still, as that of a machine that was suspended."""
    await remote.blue.look()
    remote.place.lease.take("green", dead=True)
    assert remote.blue.owner.is_mine
    assert not await remote.blue.fires(5)
    assert not remote.blue.owner.is_mine
    assert (remote.running, remote.place.lease.last) == ([], {})


async def test_a_store_that_was_emptied_is_told_by_its_owner(remote: Scene) -> None:
    await remote.blue.look()
    assert await remote.blue.fires(5)
    remote.place.lease = Lease()
    assert await remote.blue.look()
    assert remote.blue.owner.generation == 1
    assert not await remote.blue.fires(5)
    assert await remote.blue.fires(6)


async def test_an_emptied_store_is_not_taken_from_an_owner_that_lives(
    remote: Scene,
) -> None:
    """Who waits has looked before the last tick was claimed, and knows less."""
    await remote.blue.look()
    await remote.green.look()
    assert await remote.blue.fires(5)
    remote.place.lease = Lease()
    assert not await remote.green.look()
    assert await remote.blue.look()
    remote.clock.advance(LASTS - 1)
    assert not await remote.green.look()
    await remote.blue.owner.give_up()
    assert await remote.green.look()
    assert not await remote.green.fires(5)


async def test_an_emptied_store_is_taken_over_where_its_owner_is_silent(
    remote: Scene,
) -> None:
    await remote.blue.look()
    await remote.green.look()
    remote.place.lease = Lease()
    assert not await remote.green.look()
    remote.clock.advance(LASTS)
    assert await remote.green.look()
    assert not await remote.blue.look()
    assert remote.green.owner.generation == 2


async def test_an_owner_that_was_silent_for_too_long_reminds_of_ticks_alone(
    remote: Scene,
) -> None:
    await remote.blue.look()
    assert await remote.blue.fires(5)
    remote.clock.advance(LASTS * TRUST)
    remote.place.lease = Lease()
    assert not await remote.blue.look()
    assert not await remote.blue.look()
    remote.clock.advance(LASTS)
    assert await remote.blue.look()
    assert remote.blue.owner.generation == 2
    assert not await remote.blue.fires(5)


async def test_what_is_known_of_before_outlives_another_owner_of_an_emptied_store(
    remote: Scene,
) -> None:
    """Who starts on an emptied store knows nothing, and is corrected."""
    remote.place.lease = Lease(generation=6)
    await remote.blue.look()
    assert await remote.blue.fires(5)
    remote.place.lease = Lease()
    assert await remote.green.look()
    assert await remote.blue.look()
    assert not await remote.green.look()
    assert remote.blue.owner.generation == 7
    assert not await remote.green.fires(5)
    assert not await remote.blue.fires(5)


# Ticks


async def test_a_tick_is_fired_once_over_all(scene: Scene) -> None:
    await scene.blue.look()
    assert await scene.blue.fires(5)
    assert not await scene.blue.fires(5)
    assert not await scene.blue.fires(4)
    scene.blue.shared.die()
    await scene.green.look()
    assert not await scene.green.fires(5)
    assert await scene.green.fires(6)


async def test_a_tick_is_counted_and_named_while_it_runs(scene: Scene) -> None:
    owner = scene.blue.owner
    await scene.blue.look()
    async with owner.tick(datetime(2026, 11, 30, tzinfo=UTC), "nightly") as mine:
        assert mine
        assert owner.count() == Counts(schedules=1)
        (running,) = owner.running()
        assert running.id == "nightly 2026-11-30T00:00:00+00:00"
        settled = asyncio.ensure_future(owner.settled())
        await calm()
        assert not settled.done()
    await asyncio.wait_for(settled, 1)
    assert owner.count() == Counts()
    assert scene.running == []


async def test_of_two_tasks_that_want_one_tick_one_gets_it(scene: Scene) -> None:
    await scene.blue.look()
    fired = await asyncio.gather(*(scene.blue.fires(5) for _ in range(5)))
    assert sorted(fired) == [False, False, False, False, True]


async def test_ticks_of_several_schedules_run_side_by_side(scene: Scene) -> None:
    await scene.blue.look()
    owner = scene.blue.owner
    async with owner.tick(5, "a") as first, owner.tick(5, "b") as second:
        assert first and second
        assert owner.count() == Counts(schedules=2)


async def test_a_tick_may_be_left_in_another_context(scene: Scene) -> None:
    """As where a generator is closed by another task than the one that ran it."""
    await scene.blue.look()
    firing = scene.blue.owner.tick(10)

    async def enter() -> bool:
        return await firing.__aenter__()

    async def leave() -> None:
        await firing.__aexit__(None, None, None)

    assert await asyncio.create_task(enter())
    await asyncio.create_task(leave())
    assert scene.blue.owner.count() == (0, 0)
    assert scene.running == []


async def test_a_tick_that_raises_has_ended(scene: Scene) -> None:
    await scene.blue.look()
    with pytest.raises(ValueError, match="mine"):
        async with scene.blue.owner.tick(5):
            raise ValueError("mine")
    assert (scene.running, scene.interrupted) == ([], [])


async def test_a_tick_that_is_cancelled_is_interrupted_and_told(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.blue.look()

    async def hang() -> None:
        async with scene.blue.owner.tick(5):
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await calm()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (scene.running, scene.interrupted) == ([], [5000])
    assert "tick interrupted" in events(caplog)
    (warning,) = scene.blue.owner.warnings()
    assert warning == (
        "tick of reports due 1970-01-01T00:00:05+00:00 was interrupted: it may have "
        "run in part, and is not repeated"
    )


async def test_a_tick_whose_owner_dies_is_reported_by_the_next(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.blue.look()
    async with scene.blue.owner.tick(5):
        scene.blue.shared.die()
        assert await scene.green.look()
        assert not await scene.green.fires(5)
    assert scene.interrupted == [5000]
    (record,) = [r for r in caplog.records if "interrupted" in r.getMessage()]
    told = record.__dict__["drainmw"]
    assert (told["schedule"], told["generation"], told["instance"]) == (
        *("reports", 1),
        "blue",
    )


async def test_a_tick_in_flight_may_start_work(scene: Scene) -> None:
    """What admitted work starts is part of it, also where push intake has closed."""
    drain = Drain()
    registry = TaskRegistry("more")
    drain.add_source(registry)
    drain.add_source(scene.blue.owner)
    await scene.blue.look()
    await registry.hold()
    with pytest.raises(IntakeRefused):
        registry.spawn(calm())
    async with scene.blue.owner.tick(5):
        await registry.spawn(calm())
    with pytest.raises(IntakeRefused):
        registry.spawn(calm())


@pytest.mark.parametrize("due", [datetime(2026, 11, 30), float("nan"), True])
async def test_what_is_no_moment_is_refused(scene: Scene, due: datetime) -> None:
    with pytest.raises(Misuse):
        scene.blue.owner.tick(due)


async def test_a_new_schedule_begins_when_it_is_first_asked_for(scene: Scene) -> None:
    owner, moment = scene.blue.owner, datetime(2026, 11, 30, tzinfo=UTC)
    assert await owner.since("nightly", moment) is None
    await scene.blue.look()
    assert await owner.since("nightly", moment) == moment
    assert await owner.since("nightly", moment.timestamp() + 9) == moment
    scene.blue.shared.fails = OwnershipUnavailable("away")
    assert await owner.since("nightly", moment) is None


# The hand-over


async def test_a_begin_stops_ticks_at_once_and_then_gives_the_lease_up(
    scene: Scene,
) -> None:
    await scene.blue.look()
    await scene.blue.owner.hold()
    assert not await scene.blue.fires(5)
    await scene.blue.look(may_own=False)
    assert not await scene.green.look()  # a clock of blue's may still run
    await scene.blue.look(may_own=False, clocks_held=True)
    assert await scene.green.look()
    assert scene.green.owner.generation == 2
    assert await scene.green.fires(5)


async def test_a_gate_that_has_closed_stops_ticks_before_anybody_is_told(
    scene: Scene,
) -> None:
    """A loop that was stuck when a drain began may look at its clocks first."""
    await scene.blue.look()
    scene.blue.gate_is_open = False
    assert not scene.blue.owner.is_mine
    assert not await scene.blue.fires(5)
    scene.blue.gate_is_open = True
    scene.blue.shared.is_open.clear()
    fires = asyncio.ensure_future(scene.blue.fires(5))
    await calm()
    scene.blue.gate_is_open = False
    scene.blue.shared.is_open.set()
    assert not await fires
    assert scene.running == []


async def test_a_resume_takes_it_again_with_a_higher_generation(scene: Scene) -> None:
    await scene.blue.look()
    await scene.blue.owner.hold()
    await scene.blue.look(may_own=False, clocks_held=True)
    await scene.blue.owner.release()
    assert not scene.blue.owner.is_mine
    assert await scene.blue.look()
    assert scene.blue.owner.generation == 2
    assert await scene.blue.fires(5)


async def test_a_resume_that_comes_before_it_was_given_up_keeps_it(
    scene: Scene,
) -> None:
    await scene.blue.look()
    await scene.blue.owner.hold()
    await scene.blue.look(may_own=False)
    await scene.blue.owner.release()
    assert await scene.blue.look()
    assert scene.blue.owner.generation == 1


async def test_a_tick_that_runs_when_it_is_given_up_ends_well(scene: Scene) -> None:
    await scene.blue.look()
    async with scene.blue.owner.tick(5):
        await scene.blue.owner.hold()
        await scene.blue.look(may_own=False, clocks_held=True)
        scene.green.peers.look([Beat("blue", 1, None, 1, "host")])
        assert await scene.green.look()
        await scene.green.look()
        assert scene.running == [5000]
    assert (scene.running, scene.interrupted) == ([], [])
    assert list(scene.green.owner.warnings()) == []


async def test_a_tick_of_one_that_has_given_it_up_and_died_is_reported(
    scene: Scene,
) -> None:
    await scene.blue.look()
    async with scene.blue.owner.tick(5):
        await scene.blue.owner.hold()
        await scene.blue.look(may_own=False, clocks_held=True)
        await scene.green.look()
        for _ in range(SILENT):
            scene.green.peers.look([Beat("blue", 1, None, 1, "host")])
            await scene.green.look()
            assert scene.interrupted == []
        scene.green.peers.look([Beat("blue", 1, None, 1, "host")])
        await scene.green.look()
    assert scene.interrupted == [5000]


async def test_nobody_hears_that_it_is_owned_once_another_may_take_it(
    scene: Scene,
) -> None:
    """Or the next owner would take a word of before for an overlap."""
    await scene.blue.look()
    scene.blue.shared.is_open.clear()
    giving = asyncio.ensure_future(scene.blue.owner.give_up())
    await calm()
    assert scene.blue.said == [False]
    assert scene.place.lease.holder == "blue"
    scene.blue.shared.is_open.set()
    await giving
    assert scene.place.lease.holder is None


async def test_a_tick_that_was_being_claimed_at_the_begin_goes_to_the_next(
    scene: Scene,
) -> None:
    await scene.blue.look()
    scene.blue.shared.is_open.clear()
    fires = asyncio.ensure_future(scene.blue.fires(5))
    await calm()
    holds = asyncio.ensure_future(scene.blue.owner.hold())
    await calm()
    assert not holds.done()  # it may still begin
    scene.blue.shared.is_open.set()
    await asyncio.wait_for(holds, 1)
    assert not await fires
    assert scene.blue.owner.count() == Counts()
    await scene.blue.look(may_own=False, clocks_held=True)
    await scene.green.look()
    assert await scene.green.fires(5)
    assert scene.interrupted == []


async def test_a_hold_returns_though_somebody_waits_for_the_ticks_to_end(
    scene: Scene,
) -> None:
    home = scene.blue
    await home.look()
    async with home.owner.tick(10):
        home.shared.is_open.clear()
        claim = asyncio.ensure_future(home.fires(20))
        await calm()
        settled = asyncio.ensure_future(home.owner.settled())
        held = asyncio.ensure_future(home.owner.hold())
        await calm()
        home.shared.is_open.set()
        assert not await claim
        await asyncio.wait_for(held, 1)
        assert not settled.done()
    await asyncio.wait_for(settled, 1)


async def test_what_is_being_claimed_is_given_back_before_the_lease_is(
    scene: Scene,
) -> None:
    """Somebody may take it at once; what was not given back would be lost."""
    await scene.blue.look()
    scene.blue.shared.is_open.clear()
    fires = asyncio.ensure_future(scene.blue.fires(5))
    await calm()
    gives = asyncio.ensure_future(scene.blue.owner.give_up())
    await calm()

    def take_it_at_once() -> None:
        if scene.place.lease.holder is None:
            scene.place.lease.take("green")
            scene.place.version += 1

    scene.place.on_write = take_it_at_once
    scene.blue.shared.is_open.set()
    await asyncio.wait_for(gives, 1)
    assert not await fires
    assert (scene.running, scene.interrupted) == ([], [])
    assert scene.place.lease.last == {"reports": 4999}


# A store that fails


async def test_a_store_that_fails_is_told_once_and_tried_again(
    remote: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    remote.blue.shared.fails = OwnershipUnavailable("redis://host: refused")
    for _ in range(3):
        assert not await remote.blue.look()
    assert events(caplog).count("ownership unavailable") == 1
    assert list(remote.blue.owner.warnings()) == [
        "schedules of reports stand still: redis://host: refused"
    ]
    remote.blue.shared.fails = None
    assert await remote.blue.look()
    assert list(remote.blue.owner.warnings()) == []


async def test_a_claim_whose_answer_is_lost_can_be_made_again(remote: Scene) -> None:
    await remote.blue.look()
    remote.blue.shared.forgets_to_answer = True
    assert not await remote.blue.fires(5)
    assert remote.running == [5000]
    assert remote.blue.owner.count() == Counts()
    remote.blue.shared.forgets_to_answer = False
    assert await remote.blue.fires(5)
    assert (remote.running, remote.interrupted) == ([], [])


async def test_a_claim_whose_answer_is_lost_is_given_back(remote: Scene) -> None:
    await remote.blue.look()
    remote.blue.shared.forgets_to_answer = True
    assert not await remote.blue.fires(5)
    remote.blue.shared.forgets_to_answer = False
    await remote.blue.look()
    assert remote.running == []
    assert await remote.blue.fires(5)


async def test_a_claim_that_arrives_after_it_was_given_up_takes_no_tick_away(
    remote: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, written = remote.blue, list[tuple[int, Lease]]()
    await home.look()

    async def is_under_way(version: int, lease: Lease) -> bool:
        written.append((version, lease))
        raise OwnershipUnavailable("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(home.shared, "_replace", is_under_way)
        assert not await home.fires(10)
    await home.owner.tenure.settle()
    assert not await home.shared._replace(*written[0])
    assert await home.fires(10)


async def test_a_claim_that_is_cancelled_is_given_back(scene: Scene) -> None:
    await scene.blue.look()
    scene.blue.shared.is_open.clear()
    fires = asyncio.create_task(scene.blue.fires(5))
    await calm()
    fires.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fires
    scene.blue.shared.is_open.set()
    await scene.blue.look()
    assert (scene.running, scene.blue.owner.count()) == ([], Counts())
    assert await scene.blue.fires(5)


async def test_a_claim_that_is_granted_while_it_is_cancelled_is_given_back(
    scene: Scene,
) -> None:
    await scene.blue.look()
    scene.blue.answers.clear()
    fires = asyncio.create_task(scene.blue.fires(5))
    await calm()
    assert scene.running == [5000]
    fires.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fires
    scene.blue.answers.set()
    await scene.blue.look()
    assert (scene.running, scene.blue.owner.count()) == ([], Counts())
    assert await scene.blue.fires(5)


async def test_a_tick_that_runs_is_not_given_back_by_its_first_try(
    remote: Scene,
) -> None:
    """The look that would give it back, and the second claim, come at once."""
    await remote.blue.look()
    remote.blue.shared.forgets_to_answer = True
    assert not await remote.blue.fires(5)
    remote.blue.shared.forgets_to_answer = False
    remote.blue.shared.is_open.clear()
    look = asyncio.ensure_future(remote.blue.look())
    await calm()
    begun, end = asyncio.Event(), asyncio.Event()

    async def fire() -> bool:
        async with remote.blue.owner.tick(5) as mine:
            begun.set()
            await end.wait()
            return mine

    fires = asyncio.ensure_future(fire())
    await calm()
    remote.blue.shared.is_open.set()
    await asyncio.wait_for(begun.wait(), 1)
    await look
    await remote.blue.look()
    assert remote.running == [5000]
    end.set()
    assert await fires


async def test_an_end_that_cannot_be_noted_is_noted_later(remote: Scene) -> None:
    await remote.blue.look()
    async with remote.blue.owner.tick(5):
        remote.blue.shared.fails = OwnershipUnavailable("away")
    assert remote.blue.owner.count() == Counts()
    assert remote.running == [5000]
    remote.blue.shared.fails = None
    await remote.blue.look()
    assert (remote.running, remote.interrupted) == ([], [])


async def test_an_end_is_noted_also_by_one_that_owns_no_more(remote: Scene) -> None:
    await remote.blue.look()
    async with remote.blue.owner.tick(5):
        await remote.blue.owner.give_up()
        remote.blue.shared.fails = OwnershipUnavailable("away")
    remote.blue.shared.fails = None
    await remote.blue.look(may_own=False)
    assert remote.running == []


async def test_a_taking_that_fails_lets_go_of_the_lock(scene: Scene) -> None:
    scene.blue.shared.forgets_to_answer = True
    assert not await scene.blue.look()
    assert await scene.green.look()
    assert scene.green.owner.generation == 2


async def test_a_giving_up_that_fails_is_taken_back_by_a_resume(
    remote: Scene,
) -> None:
    await remote.blue.look()
    await remote.blue.owner.hold()
    remote.blue.shared.fails = OwnershipUnavailable("away")
    await remote.blue.look(may_own=False, clocks_held=True)
    remote.blue.shared.fails = None
    await remote.blue.owner.release()
    assert not remote.blue.owner.is_mine
    assert await remote.blue.look()
    assert remote.blue.owner.generation == 1


async def test_a_giving_up_that_fails_is_made_up_for(remote: Scene) -> None:
    await remote.blue.look()
    await remote.blue.owner.hold()
    remote.blue.shared.fails = OwnershipUnavailable("away")
    await remote.blue.look(may_own=False, clocks_held=True)
    assert remote.place.lease.holder == "blue"
    remote.blue.shared.fails = None
    await remote.blue.look(may_own=False, clocks_held=True)
    assert remote.place.lease.holder is None


# Other loops, other processes


async def test_a_process_that_was_forked_owns_nothing(scene: Scene) -> None:
    await scene.blue.look()
    scene.blue.owner.forget()
    assert not scene.blue.owner.is_mine
    assert scene.blue.owner.lost
    assert scene.blue.owner.count() == Counts()


async def test_what_ran_in_a_loop_that_is_gone_is_interrupted(scene: Scene) -> None:
    await scene.blue.look()
    firing = scene.blue.owner.tick(5)
    assert await firing.__aenter__()
    scene.blue.owner.restart()
    assert scene.blue.owner.count() == Counts()
    await scene.blue.look()
    assert scene.interrupted == [5000]
    assert [t.due for t in scene.blue.owner.tenure.interrupted] == [5000]


async def test_it_may_be_looked_at_from_any_thread(scene: Scene) -> None:
    await scene.blue.look()
    seen: list[object] = []
    owner = scene.blue.owner
    thread = threading.Thread(target=lambda: seen.extend((owner.is_mine, owner.gained)))
    thread.start()
    thread.join()
    assert [bool(value) for value in seen] == [True, True]


async def test_it_is_a_source_of_the_clock_kind(scene: Scene) -> None:
    owner = scene.blue.owner
    assert isinstance(owner, WorkSource)
    assert (owner.name, owner.intake) == ("reports", "clock")
    assert repr(owner) == "<Owner reports, not mine>"
    owner.counts_overdue.append(lambda: 3)
    assert owner.overdue == 3


async def test_what_is_interrupted_is_named_in_few_warnings(scene: Scene) -> None:
    owner = scene.blue.owner
    owner.tenure.interrupted += [Tick("x", due, 1, "dead") for due in range(9)]
    assert len(list(owner.warnings())) == 5
