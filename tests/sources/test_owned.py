"""An engine's clock runs only where it is owned and no drain has begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from drainmw import Counts, Owned, SourceUnavailable, WorkSource
from drainmw.errors import Misuse
from drainmw.sources import owned as module
from drainmw.sources.base import Running
from drainmw.testing import ManualClock, ManualSource
from tests.homes import Place, TestHome
from tests.rig import calm

pytestmark = pytest.mark.anyio


class Engine(ManualSource):
    """A clock that runs from the start, as one does that nobody has paused."""

    overdue = 3
    handed_back = 0

    def running(self) -> list[Running]:
        return [Running("nightly", 1.0)]


class Scene:
    """Two processes with an engine each."""

    def __init__(self) -> None:
        place, clock = Place(), ManualClock()
        self.blue = TestHome(place, "blue", clock)
        self.green = TestHome(place, "green", clock)
        self.engines = [Engine("engine", "clock"), Engine("engine", "clock")]
        homes = (self.blue, self.green)
        self.owned = [
            Owned(engine, home.owner)
            for engine, home in zip(self.engines, homes, strict=True)
        ]

    @property
    def held(self) -> list[bool]:
        return [engine.is_held for engine in self.engines]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@asynccontextmanager
async def followed(scene: Scene) -> AsyncIterator[None]:
    async with scene.blue.clients(), scene.green.clients():
        yield


async def test_an_engine_is_held_until_it_is_owned(scene: Scene) -> None:
    assert scene.held == [False, False]
    async with followed(scene):
        assert scene.held == [True, True]
        await scene.blue.look()
        await calm()
        assert scene.held == [False, True]


async def test_an_engine_that_is_lost_is_held_and_the_next_released(
    scene: Scene,
) -> None:
    await scene.blue.look()
    async with followed(scene):
        await calm()
        assert scene.held == [False, True]
        scene.blue.shared.die()
        await scene.green.look()
        await scene.blue.look()
        await calm()
        assert scene.held == [True, False]


async def test_a_drain_holds_it_and_a_resume_releases_it_where_it_is_owned(
    scene: Scene,
) -> None:
    await scene.blue.look()
    async with followed(scene):
        await scene.owned[0].hold()
        assert scene.held == [True, True]
        await scene.owned[0].release()
        assert scene.held == [False, True]


async def test_a_resume_leaves_it_held_where_it_is_not_owned_any_more(
    scene: Scene,
) -> None:
    await scene.blue.look()
    async with followed(scene):
        for source in (scene.owned[0], scene.blue.owner):
            await source.hold()
        await scene.blue.look(may_own=False, clocks_held=True)
        await scene.green.look()
        for source in (scene.owned[0], scene.blue.owner):
            await source.release()
        await calm()
        assert scene.held == [True, False]
        await scene.green.owner.give_up()
        await scene.blue.look()
        await calm()
        assert scene.held == [False, True]


async def test_a_hold_asks_the_engine_also_where_it_is_held(scene: Scene) -> None:
    """Only the engine knows; a hold that returns is a promise."""
    async with followed(scene):
        scene.engines[0].fail("hold", SourceUnavailable("away"))
        with pytest.raises(SourceUnavailable):
            await scene.owned[0].hold()
        scene.engines[0].mend("hold")
        await scene.owned[0].hold()
        assert scene.held[0]


async def test_an_engine_that_does_not_answer_is_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.01)
    scene.engines[0].fail("hold", SourceUnavailable("redis://u:s3cret@host away"))
    async with followed(scene):
        assert scene.held == [False, True]
        assert "source failed" in caplog.text
        assert "s3cret" not in caplog.text
        scene.engines[0].mend("hold")
        async with asyncio.timeout(2):
            while not scene.held[0]:  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.005)


async def test_an_engine_that_was_cancelled_is_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nobody would hold it once it is another's."""
    monkeypatch.setattr(module, "AGAIN", 0.01)
    await scene.blue.look()
    async with followed(scene):
        with monkeypatch.context() as patch:
            patch.setattr(scene.engines[0], "hold", is_cancelled)
            scene.blue.shared.die()
            await scene.green.look()
            await scene.blue.look()
            await calm()
        async with asyncio.timeout(2):
            while not scene.held[0]:  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.005)


async def is_cancelled() -> None:
    raise asyncio.CancelledError


async def test_it_tells_what_the_engine_tells(scene: Scene) -> None:
    engine, source = scene.engines[0], scene.owned[0]
    assert isinstance(source, WorkSource)
    assert (source.name, source.intake) == ("engine", "clock")
    engine.set_counts(0, 2)
    assert source.count() == Counts(0, 2)
    assert [piece.id for piece in source.running()] == ["nightly"]
    assert (source.overdue, source.handed_back) == (3, 0)
    engine.block("settled")
    settled = asyncio.ensure_future(source.settled())
    await calm()
    assert not settled.done()
    engine.settle()
    await settled


def test_only_a_clock_can_be_owned(scene: Scene) -> None:
    with pytest.raises(Misuse, match="fed by pull, not by a clock"):
        Owned(ManualSource("queue", "pull"), scene.blue.owner)


def test_a_clock_that_cannot_stand_by_says_what_would_be_right(scene: Scene) -> None:
    engine = Engine("engine", "clock")
    vars(engine)["unowned"] = "would fire twice; use another"
    with pytest.raises(Misuse, match="engine would fire twice; use another"):
        Owned(engine, scene.blue.owner)
    vars(engine)["unowned"] = None
    Owned(engine, scene.blue.owner)


def test_what_is_no_source_or_no_owner_is_named(scene: Scene) -> None:
    engine, wrong = Engine("engine", "clock"), cast(Any, "reports")
    with pytest.raises(Misuse, match=r"takes a source.* not str"):
        Owned(wrong, scene.blue.owner)
    with pytest.raises(Misuse, match=r"takes a source.* not the class Engine"):
        Owned(cast(Any, Engine), scene.blue.owner)
    with pytest.raises(Misuse, match=r"as drain\.own\(name\) gives, not str"):
        Owned(engine, wrong)
    with pytest.raises(Misuse, match=r"as drain\.own\(name\) gives, not Engine"):
        Owned(scene.blue.owner, cast(Any, engine))  # the other way round
