"""Blocking sources: in threads of their own, in order, bounded."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable

import pytest

from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.sources.base import Counts, Running, WorkSource
from drainmw.sources.holds import Holds
from drainmw.sources.threaded import Lane, ThreadedSource
from tests.processes import PATIENCE

pytestmark = pytest.mark.anyio


class Engine:
    """A blocking source whose steps hang until the test opens them."""

    def __init__(self, *blocked: str) -> None:
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.counts = Counts()
        self.handed_back = 7
        self._gates = {step: threading.Event() for step in blocked}
        self._news = threading.Condition()

    def open(self, step: str) -> None:
        self._gates[step].set()

    def hold(self) -> None:
        self._passes("hold")

    def count(self) -> Counts:
        self._passes("count")
        return self.counts

    def settle(self) -> None:
        self._passes("settle")

    def release(self) -> None:
        if "settle" in self._gates:
            self.open("settle")  # as the protocol wants it
        self._passes("release")

    def running(self) -> list[Running]:
        return [Running("a", 1.0)]

    def wait_for(self, *calls: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.calls == [*calls], PATIENCE)

    def _passes(self, step: str) -> None:
        with self._news:
            self.calls.append(step)
            self.threads.add(threading.current_thread().name)
            self._news.notify_all()
        if gate := self._gates.get(step):
            assert gate.wait(PATIENCE)


async def called(engine: Engine, *calls: str) -> None:
    """Wait, without the executor that a test may have filled."""
    await Lane("waiting").call(lambda: engine.wait_for(*calls))


async def test_it_is_a_source() -> None:
    source = ThreadedSource("engine", "clock", Engine())
    assert isinstance(source, WorkSource)
    assert (source.name, source.intake) == ("engine", "clock")
    assert list(source.running()) == [Running("a", 1.0)]
    assert (source.handed_back, source.overdue) == (7, None)


def test_a_source_that_lacks_a_part_is_refused() -> None:
    with pytest.raises(Misuse, match="object is no blocking source: it needs hold"):
        ThreadedSource("engine", "pull", object())  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="the class Engine is no blocking source"):
        ThreadedSource("engine", "pull", Engine)  # type: ignore[arg-type]


def test_an_engine_is_halted_on_the_spot_where_it_can_be() -> None:
    class Halting(Engine):
        halted_in: str | None = None

        def halt(self) -> None:
            self.halted_in = threading.current_thread().name

    engine = Halting()
    ThreadedSource("engine", "pull", engine).halt()
    assert engine.halted_in == threading.current_thread().name
    ThreadedSource("engine", "pull", Engine()).halt()


async def test_each_step_is_called_in_a_thread_of_ours() -> None:
    engine = Engine()
    source = ThreadedSource("engine", "pull", engine)
    await source.hold()
    await source.settled()
    assert await source.count() == Counts()  # type: ignore[misc]
    await source.release()
    assert engine.calls == ["hold", "settle", "count", "release"]
    assert engine.threads == {
        f"drainmw engine {s}" for s in ("hold", "settle", "count")
    }


async def test_a_count_that_is_there_at_once_needs_no_thread() -> None:
    engine = Engine()
    source = ThreadedSource("engine", "pull", engine, count_blocks=False)
    assert source.count() == Counts()
    assert engine.threads == {threading.current_thread().name}


async def test_a_full_executor_keeps_nobody_from_holding() -> None:
    """Sync endpoints may have filled it, and are what the drain waits for."""
    loop = asyncio.get_running_loop()
    gate = threading.Event()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    filled = loop.run_in_executor(None, gate.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await ThreadedSource("engine", "pull", Engine()).hold()
    gate.set()
    await filled


async def test_a_release_comes_after_the_hold_that_it_undoes() -> None:
    """A hold that was given up goes on in its thread, and must not win."""
    engine = Engine("hold")
    source = ThreadedSource("engine", "pull", engine)
    hold = asyncio.create_task(source.hold())
    await called(engine, "hold")
    hold.cancel()
    release = asyncio.create_task(source.release())
    await asyncio.sleep(0.01)
    assert engine.calls == ["hold"]
    engine.open("hold")
    await release
    assert engine.calls == ["hold", "release"]


async def test_what_was_given_up_before_its_turn_is_never_called() -> None:
    engine = Engine("hold")
    source = ThreadedSource("engine", "pull", engine)
    hold = asyncio.create_task(source.hold())
    await called(engine, "hold")
    release = asyncio.create_task(source.release())
    await asyncio.sleep(0)
    release.cancel()
    await asyncio.gather(release, return_exceptions=True)
    engine.open("hold")
    await hold
    await source.hold()
    assert engine.calls == ["hold", "hold"]


async def test_a_count_does_not_wait_for_a_hold_or_a_settle() -> None:
    engine = Engine("hold", "settle")
    source = ThreadedSource("engine", "pull", engine)
    tasks = [asyncio.create_task(source.hold()), asyncio.create_task(source.settled())]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        assert await source.count() == Counts()  # type: ignore[misc]
    engine.open("hold")
    engine.open("settle")
    await asyncio.gather(*tasks)


async def test_a_settle_that_is_given_up_ends_with_the_release() -> None:
    engine = Engine("settle")
    source = ThreadedSource("given up", "pull", engine)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await source.settled()
    assert engine.calls == ["settle"]
    (thread,) = (t for t in threading.enumerate() if t.name.startswith("drainmw given"))
    await source.release()
    await Lane("waiting").call(lambda: thread.join(PATIENCE))
    assert not thread.is_alive()


async def test_a_settle_that_a_release_ended_has_not_settled() -> None:
    engine = Engine("settle")
    source = ThreadedSource("engine", "pull", engine)
    settled = asyncio.create_task(source.settled())
    await called(engine, "settle")
    await source.release()
    with pytest.raises(SourceUnavailable, match="released before it had settled"):
        await settled


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SourceUnavailable("no broker"), SourceUnavailable),
        (OSError("gone"), OSError),
        (StopIteration(), SourceError),
        (SystemExit(1), SourceError),
        (asyncio.CancelledError(), SourceError),
    ],
    ids=lambda value: str(value),
)
async def test_what_an_engine_raises_is_raised(
    raised: BaseException, expected: type[BaseException]
) -> None:
    def fails() -> None:
        raise raised

    lane = Lane("failing")
    call = asyncio.ensure_future(shielded(lane, fails))
    assert isinstance(await call, expected)
    assert await lane.call(lambda: 1) == 1  # the thread has survived it


async def shielded(lane: Lane, function: Callable[[], None]) -> BaseException | None:
    try:
        await lane.call(function)
    except BaseException as exc:
        return exc
    return None


async def test_no_thread_to_be_had_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane = Lane("drainmw engine hold")
    with (
        monkeypatch.context() as patch,
        pytest.raises(SourceUnavailable, match="can't"),
    ):
        patch.setattr(threading.Thread, "start", start)
        await lane.call(lambda: None)
    assert await lane.call(lambda: 1) == 1


def test_an_answer_to_a_loop_that_has_been_closed_is_nobodys() -> None:
    engine = Engine("hold")
    source = ThreadedSource("engine", "pull", engine)

    async def give_up() -> None:
        hold = asyncio.ensure_future(source.hold())
        await called(engine, "hold")
        hold.cancel()

    asyncio.run(give_up())
    engine.open("hold")
    asyncio.run(source.release())
    assert engine.calls == ["hold", "release"]


async def test_a_count_that_hangs_is_unknown_and_never_zero() -> None:
    engine = Engine("count")
    holds = Holds(count_timeout=0.02)
    holds.add(ThreadedSource("engine", "pull", engine))
    for _ in range(2):
        (seen,) = await holds.ask()
        assert seen.counts is None
        assert isinstance(seen.error, TimeoutError)
    assert engine.calls == ["count"]  # the second waits behind the first
    engine.counts = Counts(jobs=2)
    engine.open("count")
    holds_patient = Holds(count_timeout=PATIENCE)
    holds_patient.entries = holds.entries
    assert await holds_patient.counts() == Counts(jobs=2)
