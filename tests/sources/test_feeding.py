"""Who may feed a held push source: the work that is in flight, of any source."""

import asyncio

import pytest

from drainmw import IntakeRefused
from drainmw.sources.base import Fed
from drainmw.sources.feeding import Work, depth, feeder
from drainmw.sources.tasks import TaskRegistry
from tests.rig import Release, calm
from tests.test_release import ended

pytestmark = pytest.mark.anyio


async def nothing() -> str:
    return "done"


def test_outside_of_any_work_nobody_feeds() -> None:
    assert feeder() is None
    assert (depth(False), depth(True)) == (0, 1)


async def test_each_generation_that_a_held_source_takes_is_one_deeper() -> None:
    """And what was taken while intake was open is none, whoever started it."""
    tasks = TaskRegistry()
    depths: list[int] = []

    async def chain(left: int) -> None:
        work = feeder()
        assert work is not None
        depths.append(work.depth)
        if len(depths) == 2:
            await tasks.hold()
        if left:
            await tasks.spawn(chain(left - 1))

    await tasks.spawn(chain(4))
    assert depths == [0, 0, 1, 2, 3]


def test_who_watches_is_told_once_that_it_is_over() -> None:
    told: list[str] = []
    work = Work(object())
    work.watchers.add(lambda: told.append("over"))
    work.over()
    work.over()
    assert (told, work.in_flight) == (["over"], False)


async def test_a_drain_tells_each_source_of_the_work_of_the_others() -> None:
    """And of none but its own: another release may be done long since."""
    first, second = TaskRegistry("first"), TaskRegistry("second")
    stranger = TaskRegistry("stranger")
    assert isinstance(first, Fed)
    release, go = Release(), asyncio.Event()
    release.drain.add_source(first)
    release.drain.add_source(second)

    async def job() -> str:
        await go.wait()
        return await second.spawn(nothing())

    task, foreign = first.spawn(job()), stranger.spawn(job())
    await release.client.begin()
    await calm()
    with pytest.raises(IntakeRefused):
        second.spawn(nothing())
    go.set()
    assert await task == "done"
    with pytest.raises(IntakeRefused):
        await foreign
    assert await ended(release.drain) == "drained"
