"""Schedulers of Taskiq in two processes: who sends what is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from taskiq import InMemoryBroker, ScheduledTask, ScheduleSource, TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource

from drainmw.errors import LeaseCrowded, Misuse, OwnershipUnavailable
from drainmw.owner import Owner
from drainmw.sources import taskiqowned as module
from drainmw.sources.taskiqowned import OwnedTaskiqClock
from drainmw.testing import ManualClock
from tests.homes import Place, TestHome
from tests.rig import calm

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.001)
    monkeypatch.setattr(module, "CROWDED_PAUSE", 0.001)


class Scene:
    """Blue and green, which have the same schedules; `sent` says who sent what."""

    def __init__(self) -> None:
        place, clock = Place(), ManualClock()
        self.now = NOON
        self.sent: list[str] = []
        self.homes = {name: TestHome(place, name, clock) for name in ("blue", "green")}
        self.schedulers = {name: self._scheduler(name) for name in self.homes}

    def _scheduler(self, name: str) -> TaskiqScheduler:
        broker = InMemoryBroker()
        scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])

        async def on_ready(_source: Any, task: ScheduledTask) -> None:
            self.sent.append(f"{name} {task.task_name}")

        scheduler.on_ready = on_ready  # type: ignore[method-assign, assignment]
        owner = self.homes[name].owner
        OwnedTaskiqClock(scheduler, owner, wall=lambda: self.now.timestamp())
        return scheduler

    def due(self, name: str, **when: Any) -> asyncio.Task[None]:
        """As Taskiq's loop calls it. Each process has an id of its own for it."""
        task = ScheduledTask(task_name="mail", labels={}, args=[], kwargs={}, **when)
        scheduler = self.schedulers[name]
        return asyncio.create_task(scheduler.on_ready(scheduler.sources[0], task))

    async def begin(self, name: str) -> None:
        """A drain: its clocks are held, and what it owned is given up."""
        await self.homes[name].owner.hold()
        await self.homes[name].owner.give_up()


@pytest.fixture
def scene() -> Scene:
    return Scene()


WHENS: dict[str, Callable[[datetime], dict[str, Any]]] = {
    "cron": lambda _now: {"cron": "* * * * *"},
    "interval": lambda _now: {"interval": timedelta(minutes=1)},
    "time": lambda now: {"time": now.replace(tzinfo=None)},
}
whens = pytest.mark.parametrize("when", WHENS.values(), ids=WHENS)


@whens
async def test_the_owner_sends_and_the_other_finds_it_sent(
    when: Callable[[datetime], dict[str, Any]], scene: Scene
) -> None:
    """J9: also when it takes over later."""
    await scene.homes["blue"].look()
    both = [scene.due(name, **when(NOON)) for name in ("green", "blue")]
    await both[1]
    assert scene.sent == ["blue mail"]
    await scene.begin("blue")
    await scene.homes["green"].look()
    await both[0]
    assert scene.sent == ["blue mail"]


@whens
async def test_what_is_due_in_a_hand_over_is_sent_once(
    when: Callable[[datetime], dict[str, Any]], scene: Scene
) -> None:
    """J8: by the next release, also where the old one is resumed after that.

    Of one schedule that is due again and again, the next one waits all the while.
    """
    blue, green = scene.homes.values()
    await blue.look()
    waits = [scene.due("green", **when(NOON))]
    await scene.due("blue", **when(NOON))
    await scene.begin("blue")
    scene.now += timedelta(minutes=1)
    late = when(scene.now)
    withheld = scene.due("blue", **late)
    if "time" in late:
        waits.append(scene.due("green", **late))
    await calm()
    assert scene.sent == ["blue mail"]
    await green.look()
    await asyncio.gather(*waits)
    assert scene.sent == ["blue mail", "green mail"]
    await scene.begin("green")
    await blue.owner.release()
    await blue.look()
    await withheld
    assert scene.sent == ["blue mail", "green mail"]


@whens
async def test_what_is_due_in_a_hold_is_sent_once_after_it(
    when: Callable[[datetime], dict[str, Any]], scene: Scene
) -> None:
    """J8"""
    blue = scene.homes["blue"]
    await blue.look()
    await scene.due("blue", **when(NOON - timedelta(minutes=1)))
    await blue.owner.hold()
    scene.now += timedelta(minutes=5)
    waits = scene.due("blue", **when(scene.now))
    await calm()
    assert (scene.sent, blue.owner.overdue) == (["blue mail"], 1)
    await blue.owner.release()
    await waits
    assert (scene.sent, blue.owner.overdue) == (["blue mail"] * 2, 0)


async def test_of_a_cron_the_newest_fire_is_looked_for(scene: Scene) -> None:
    """The one that waits began at noon, and blue has sent what was due at one."""
    blue, green = scene.homes.values()
    await blue.look()
    waits = scene.due("green", cron="0 * * * *")
    scene.now += timedelta(hours=1)
    await scene.due("blue", cron="0 * * * *")
    await scene.begin("blue")
    scene.now += timedelta(minutes=59)
    await green.look()
    await waits
    assert scene.sent == ["blue mail"]


async def test_a_loop_that_wakes_a_moment_early_loses_no_fire(scene: Scene) -> None:
    await scene.homes["blue"].look()
    await scene.due("blue", interval=60)
    scene.now += timedelta(seconds=59.9998)
    await scene.due("blue", interval=60)
    assert scene.sent == ["blue mail"] * 2


class Shared(ScheduleSource):
    """As one in a database is: its schedules have ids that last."""

    async def get_schedules(self) -> list[ScheduledTask]:
        return []


async def test_two_of_a_shared_source_are_two_though_they_are_alike(
    scene: Scene,
) -> None:
    await scene.homes["blue"].look()
    for _ in range(2):
        task = ScheduledTask(task_name="mail", labels={}, args=[], kwargs={}, time=NOON)
        for _ in range(2):
            await scene.schedulers["blue"].on_ready(Shared(), task)
    assert scene.sent == ["blue mail"] * 2


async def test_other_arguments_are_another_schedule(scene: Scene) -> None:
    await scene.homes["blue"].look()
    await scene.due("blue", time=NOON)
    scheduler = scene.schedulers["blue"]
    other = ScheduledTask(
        task_name="mail", labels={}, args=[1], kwargs={}, time=NOON, schedule_id="x"
    )
    await scheduler.on_ready(scheduler.sources[0], other)
    assert scene.sent == ["blue mail"] * 2


async def test_a_store_that_is_away_delays_and_loses_nothing(scene: Scene) -> None:
    blue = scene.homes["blue"]
    await blue.look()
    blue.shared.fails = OwnershipUnavailable("away")
    waits = scene.due("blue", time=NOON)
    await asyncio.sleep(0.01)
    assert not waits.done()
    blue.shared.fails = None
    await waits
    assert scene.sent == ["blue mail"]


async def test_more_schedules_than_are_remembered_are_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blue = scene.homes["blue"]
    await blue.look()
    tick = blue.owner.tick

    def crowded(*_: Any) -> Any:
        monkeypatch.setattr(blue.owner, "tick", tick)
        raise LeaseCrowded(1000)

    monkeypatch.setattr(blue.owner, "tick", crowded)
    await scene.due("blue", time=NOON)
    assert caplog.text.count("tick failed") == 1
    assert scene.sent == ["blue mail"]


@pytest.mark.parametrize("wrong", [None, TaskiqScheduler, InMemoryBroker()])
def test_what_is_no_scheduler_is_refused(wrong: Any, scene: Scene) -> None:
    with pytest.raises(Misuse, match="takes a TaskiqScheduler, not "):
        OwnedTaskiqClock(wrong, scene.homes["blue"].owner)


@pytest.mark.parametrize("wrong", [None, "reports", Owner])
def test_what_is_no_owner_is_refused_and_changes_nothing(wrong: Any) -> None:
    scheduler = TaskiqScheduler(InMemoryBroker(), [])
    with pytest.raises(Misuse, match="OwnedTaskiqClock takes an owner"):
        OwnedTaskiqClock(scheduler, wrong)
    assert "on_ready" not in vars(scheduler)
