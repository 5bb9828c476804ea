"""Sources as a drain asks them: held in order, side by side, told of, let go."""

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from drainmw import Counts, Drain
from drainmw.contract import DETACH_PATH
from drainmw.errors import Misuse
from drainmw.flag import Flag
from drainmw.sources.base import Running
from drainmw.sources.holds import Holds
from drainmw.sources.threaded import ThreadedSource
from drainmw.testing import ManualSource, Step
from tests.rig import NONCE, Release, Waiting, calm

pytestmark = pytest.mark.anyio

SECRET = "redis://:secret@host refused"


class Slow:
    """A blocking engine with one job in flight, which is slow in all it does."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = time.monotonic() + seconds

    def hold(self) -> None:
        time.sleep(self._seconds / 2)

    def count(self) -> Counts:
        return Counts(jobs=int(time.monotonic() < self._ended))

    def settle(self) -> None:
        time.sleep(max(0.0, self._ended - time.monotonic()))

    def release(self) -> None:
        time.sleep(self._seconds / 2)


class Telling(ManualSource):
    """A clock that says what it runs, withholds and has handed back."""

    def __init__(self) -> None:
        super().__init__("cron", "clock", blocked=["settled"])
        self.overdue: Any = 2
        self.handed_back: Any = 5

    def running(self) -> list[Running]:
        return [
            Running("nightly", time.monotonic() - 9, "schedules"),
            Running("mail\n17", time.monotonic() - 3),
        ]


async def ended(drain: Drain, within: float = 5.0) -> str:
    async with asyncio.timeout(within):
        await drain.ended
    return str(drain.phase)


async def source_in(release: Release, name: str) -> dict[str, Any]:
    sources = (await release.client.report())["sources"]
    (found,) = (source for source in sources if source["name"] == name)
    return dict(found)


async def test_ten_sources_with_one_slow_job_each_meet_one_deadline() -> None:
    """J3: one after the other they would take 3 s to settle, and 1.5 s to hold."""
    release = Release()
    for number in range(10):
        release.drain.add_source(ThreadedSource(f"s{number}", "pull", Slow(0.3)))
    await release.client.begin(timeoutMs=1200)
    assert await ended(release.drain) == "drained"
    await release.client.resume()  # which waits for half a second at most
    assert release.drain.not_ready() is None


async def test_consumers_are_quiet_while_requests_are_busy() -> None:
    """J2: at begin, not after HTTP."""
    app = Waiting()
    clock, pull = ManualSource("clock", "clock"), ManualSource("pull", "pull")
    release = Release(app)
    release.drain.add_source(pull)
    release.drain.add_source(clock)
    async with release.call() as call:
        before = time.monotonic()
        await release.client.begin()
        assert clock.is_held and pull.is_held
        assert time.monotonic() - before < 0.2
        app.go.set()
        await call.wait()


async def test_what_runs_at_the_deadline_stands_in_the_report() -> None:
    """J7: with what is overdue, and what has been handed back."""
    source = Telling()
    source.set_counts(jobs=1, schedules=1)
    release = Release()
    release.drain.add_source(source)
    await release.client.begin(timeoutMs=100)
    assert await ended(release.drain) == "failed"
    told = await source_in(release, "cron")
    assert told == {
        "name": "cron",
        "intake": "clock",
        "held": True,
        "jobs": 1,
        "schedules": 1,
        "overdue": 2,
        "handedBack": 5,
        "error": None,
        "running": ["nightly", "mail\\n17"],
        "worker": os.getpid(),
    }
    blockers = (await release.client.report())["blockers"]
    found = [(blocker["kind"], blocker["path"]) for blocker in blockers]
    assert found == [("schedules", "nightly"), ("jobs", "mail\\n17")]


@pytest.mark.parametrize("wrong", ["3", -1, True, 1.5, float("nan"), None])
async def test_a_number_that_is_none_is_not_told(wrong: object) -> None:
    source = Telling()
    source.overdue = source.handed_back = wrong
    release = Release()
    release.drain.add_source(source)
    told = await source_in(release, "cron")
    assert (told["overdue"], told["handedBack"]) == (None, None)


async def test_a_number_that_cannot_be_read_breaks_no_report() -> None:
    class Away(ManualSource):
        @property
        def handed_back(self) -> int:
            raise OSError(SECRET)

    release = Release()
    release.drain.add_source(Away())
    assert (await source_in(release, "manual"))["handedBack"] is None


@pytest.mark.parametrize("intake", ["clock", "pull", "push"])
@pytest.mark.parametrize("phase", ["drained", "failed", "detached"])
async def test_a_source_added_at_the_end_is_held_at_once(
    phase: str, intake: Any
) -> None:
    release = Release()
    if phase == "failed":
        broken = ManualSource("broken")
        broken.fail("hold", RuntimeError("broken"))
        release.drain.add_source(broken)
    await release.client.begin()
    await ended(release.drain)
    if phase == "detached":
        await release.client.control("POST", DETACH_PATH, json={"nonce": NONCE})
    assert str(release.drain.phase) == phase
    late = ManualSource("late", intake)
    release.drain.add_source(late)
    await calm()
    assert late.is_held
    assert (await source_in(release, "late"))["held"]


@pytest.mark.parametrize("is_cordoned", [False, True])
async def test_a_source_added_before_a_drain_is_left_alone(is_cordoned: bool) -> None:
    release = Release()
    if is_cordoned:
        release.drain.cordon()
    source = ManualSource()
    release.drain.add_source(source)
    await calm()
    assert source.calls == []


async def test_a_hold_that_returns_after_a_resume_is_undone() -> None:
    """Though it runs in a thread, which nobody can cancel."""
    is_under_way, go = Flag(), threading.Event()

    class Late(Slow):
        is_held = False

        def hold(self) -> None:
            is_under_way.set()
            assert go.wait(20)
            self.is_held = True

        def release(self) -> None:
            self.is_held = False

    engine = Late(0)
    release = Release()
    release.drain.add_source(ThreadedSource("late", "pull", engine))
    await release.client.begin()
    await is_under_way
    await release.client.resume()
    assert release.drain.not_ready() == "not released: late"
    go.set()
    async with asyncio.timeout(5):
        while release.drain.not_ready():
            await calm()
    assert not engine.is_held


async def test_a_source_that_is_not_let_go_stands_in_the_report() -> None:
    source = ManualSource("engine")
    source.fail("release", OSError(SECRET))
    release = Release()
    release.drain.add_source(source)
    await release.client.begin()
    await ended(release.drain)
    await release.client.resume()
    told = await source_in(release, "engine")
    assert (told["held"], told["error"]) == (True, "redis://***@host refused")
    warnings = (await release.client.report())["warnings"]
    assert warnings == ["source engine is not released"]
    ready = await release.client.get("/readyz")
    assert (ready.status_code, "engine" in ready.text) == (503, True)


@pytest.mark.parametrize("step", ["hold", "count", "settled", "release"])
async def test_no_secret_of_a_source_gets_out(
    step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    """V2: it is in no log, no status and no report."""
    caplog.set_level(logging.DEBUG)
    source = ManualSource("engine")
    source.fail(step, OSError(SECRET))
    release = Release()
    release.drain.add_source(source)
    told = [await release.client.begin(), await release.client.status()]
    await ended(release.drain)
    told += [await release.client.status(), await release.client.resume()]
    everything = caplog.text + json.dumps(await release.client.report())
    everything += "".join(answer.text for answer in told)
    assert "secret" not in everything
    assert "redis://***@host refused" in everything


async def test_a_count_that_fails_too_late_tells_nobody() -> None:
    """V2: asyncio would log what nobody has looked at, with the secret."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))

    class Late(ManualSource):
        async def count(self) -> Counts:
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                raise OSError(SECRET) from None
            return Counts()

    holds = Holds(count_timeout=0.01)
    holds.add(Late())
    (seen,) = await holds.ask()
    assert isinstance(seen.error, TimeoutError)
    del seen
    await calm()
    assert complaints == []


async def test_a_count_that_nobody_waits_for_is_given_up() -> None:
    class Asked(ManualSource):
        task: asyncio.Task[Counts]

        def count(self) -> Awaitable[Counts]:
            self.task = asyncio.ensure_future(self._counted())
            return self.task

    source = Asked(blocked=["count"])
    holds = Holds(count_timeout=1)
    holds.add(source)
    assert holds.counted() is None
    await calm()
    assert source.task.cancelled()


def test_a_blocking_source_is_shown_its_place() -> None:
    with pytest.raises(Misuse, match=r"Slow is no work source.*ThreadedSource"):
        Holds(1).add(Slow(0))  # type: ignore[arg-type]
