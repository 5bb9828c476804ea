"""Agents and the source of them: what is asked, and what is made of the answers."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from drainmw.agent import LEFT, LIVE, Agent
from drainmw.errors import Misuse, SettingsError, SourceError, SourceUnavailable
from drainmw.sources.base import Counts, Running, WorkSource
from drainmw.sources.inloop import InLoop
from drainmw.sources.remote import RemoteSource
from drainmw.sources.threaded import Lane
from drainmw.testing import ManualSource
from tests.processes import PATIENCE

pytestmark = pytest.mark.anyio


class Engine:
    """A blocking source that does what the test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.counts = Counts()
        self.errors: dict[str, Exception] = {}
        self.handed_back = 3
        self.prefix = ""
        self.settles_early = False
        self.gate, self.settle_gate = threading.Event(), threading.Event()
        self.gate.set()
        self.settle_gate.set()
        self.while_counting: Callable[[], object] = lambda: None
        self._news = threading.Condition()

    def hold(self) -> None:
        self._note("hold")
        assert self.gate.wait(PATIENCE)

    def count(self) -> Counts:
        if "count" in self.errors:
            raise self.errors["count"]
        self.while_counting()
        return self.counts

    def settle(self) -> None:
        self._note("settle")
        assert self.settle_gate.wait(PATIENCE)
        if self.settles_early:
            return
        with self._news:
            self._news.wait_for(lambda: not any(self.counts) or self.is_open)

    def release(self) -> None:
        self._note("release")
        with self._news:
            self._news.notify_all()

    def running(self) -> list[Running]:
        jobs = range(self.counts.jobs)
        return [Running(f"{self.prefix}job {n}", 100.0 - n) for n in jobs]

    def finish(self) -> None:
        with self._news:
            self.counts = Counts()
            self._news.notify_all()

    @property
    def is_open(self) -> bool:
        steps = [call for call in self.calls if call in ("hold", "release")]
        return steps[-1:] != ["hold"]

    def _note(self, step: str) -> None:
        self.calls.append(step)
        if step in self.errors:
            raise self.errors[step]


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A private directory whose path is short enough for a socket."""
    folder = tempfile.mkdtemp(prefix="dmw-")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def agents(sockets: Path) -> Iterator["Agents"]:
    with contextlib.ExitStack() as ends:
        yield Agents(sockets, ends)


class Agents:
    """Agents in this process; to their source they are others."""

    def __init__(self, sockets: Path, ends: contextlib.ExitStack) -> None:
        self.sockets = sockets
        self._ends = ends

    def start(self, name: str) -> tuple[Engine, Agent]:
        engine = Engine()
        agent = Agent(engine, self.sockets, name)
        self._ends.callback(agent.close)
        agent.start()
        return engine, agent


def source_of(sockets: Path, expected: int = 1) -> RemoteSource:
    return RemoteSource("engine", "pull", sockets, expected=expected)


async def until(met: Any) -> None:
    def wait() -> None:
        pulse = threading.Event()
        for _ in range(int(PATIENCE / 0.002)):
            if met():
                return
            pulse.wait(0.002)
        raise AssertionError("never")

    await Lane("until").call(wait)


# Holding


async def test_all_workers_are_held_side_by_side(agents: Agents) -> None:
    engines = [agents.start(name)[0] for name in ("a", "b", "c")]
    for engine in engines:
        engine.gate.clear()
    source = source_of(agents.sockets)
    hold = asyncio.create_task(source.hold())
    await until(lambda: all(engine.calls == ["hold"] for engine in engines))
    for engine in engines:
        assert not hold.done()
        engine.gate.set()
    await hold
    assert await source.count() == Counts()


async def test_a_hold_is_asked_for_once_by_however_many(agents: Agents) -> None:
    engine, _ = agents.start("a")
    source, other = source_of(agents.sockets), source_of(agents.sockets)
    await source.hold()
    await source.hold()
    await other.hold()
    assert engine.calls == ["hold"]
    await source.release()
    await source.release()
    await other.release()
    assert engine.calls == ["hold", "release"]
    await source.hold()
    assert engine.calls == ["hold", "release", "hold"]


async def test_without_a_worker_nothing_is_held_and_nothing_zero(
    sockets: Path,
) -> None:
    source = source_of(sockets)
    assert isinstance(source, WorkSource)
    for step in (source.hold, source.count, source.settled):
        with pytest.raises(SourceUnavailable, match="0 of 1 workers of engine answer"):
            await step()


def test_what_a_source_cannot_be_is_refused(sockets: Path) -> None:
    with pytest.raises(Misuse, match="must be clock, pull or push, not 'pul'"):
        RemoteSource("engine", cast(Any, "pul"), sockets / "new")
    assert not (sockets / "new").exists()
    for number in (-1, "2", None):
        with pytest.raises(Misuse, match="expected must be a whole number of at"):
            RemoteSource("engine", "pull", sockets, expected=cast(Any, number))


async def test_no_worker_may_be_expected(sockets: Path) -> None:
    source = source_of(sockets, expected=0)
    await source.hold()
    await source.settled()
    assert await source.count() == Counts()
    with pytest.raises(Misuse, match="at least 0"):
        source_of(sockets, expected=-1)


async def test_fewer_workers_than_expected_are_unknown(agents: Agents) -> None:
    first, _ = agents.start("a")
    source = source_of(agents.sockets, expected=2)
    with pytest.raises(SourceUnavailable, match="1 of 2 workers"):
        await source.hold()
    assert first.calls == ["hold"]  # it stays so, until a release
    second, _ = agents.start("b")
    assert second.calls == ["hold"]
    await source.hold()
    assert await source.count() == Counts()


async def test_who_comes_up_in_a_drain_is_held_before_it_starts(
    agents: Agents,
) -> None:
    agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    late, _ = agents.start("b")
    assert late.calls == ["hold"]
    late.counts = Counts(jobs=1)
    assert await source.count() == Counts(jobs=1)
    await source.release()
    assert late.calls == ["hold", "release"]
    later, _ = agents.start("c")
    assert later.calls == []


async def test_who_cannot_be_held_does_not_start(sockets: Path, agents: Agents) -> None:
    agents.start("a")
    await source_of(sockets).hold()
    engine = Engine()
    engine.errors["hold"] = OSError("no broker")
    agent = Agent(engine, sockets, "b")
    with pytest.raises(OSError, match="no broker"):
        agent.start()
    assert not (sockets / f"b{LEFT}").exists()


async def test_who_is_not_held_though_it_should_be_is_held(agents: Agents) -> None:
    engine, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    _ask(agent, ask="release", token=_ask(agent, ask="count")["token"])
    assert engine.calls == ["hold", "release"]
    assert await source.count() == Counts()
    assert engine.calls == ["hold", "release", "hold"]


async def test_a_release_of_an_earlier_hold_opens_nothing(agents: Agents) -> None:
    engine, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    first = _ask(agent, ask="count")["token"]
    await source.release()
    await source.hold()
    answer = _ask(agent, ask="release", token=first)
    assert answer["token"] not in (None, first)
    assert engine.calls == ["hold", "release", "hold"]


async def test_a_hold_that_fails_is_undone_by_a_release(agents: Agents) -> None:
    engine, _ = agents.start("a")
    engine.errors["hold"] = RuntimeError("half done")
    source = source_of(agents.sockets)
    with pytest.raises(SourceError, match="worker a of engine: half done"):
        await source.hold()
    await source.release()
    assert engine.calls == ["hold", "release"]


async def test_a_release_that_fails_can_be_asked_for_again(agents: Agents) -> None:
    engine, _ = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    engine.errors["release"] = SourceUnavailable("no broker")
    with pytest.raises(SourceUnavailable, match="worker a of engine: no broker"):
        await source.release()
    engine.errors.clear()
    await source.release()
    assert engine.calls == ["hold", "release", "release"]
    assert _ask(agents_path(agents, "a"), ask="count")["token"] is None


# Several processes of an app, and one that dies


async def test_another_process_that_releases_makes_ours_unknown(
    agents: Agents,
) -> None:
    agents.start("a")
    ours, others = source_of(agents.sockets), source_of(agents.sockets)
    await ours.hold()
    await others.hold()
    await others.release()
    with pytest.raises(SourceUnavailable, match="released by another process"):
        await ours.count()
    await ours.release()
    assert await ours.count() == Counts()


async def test_a_hold_outlives_who_asked_and_ends_with_who_comes_next(
    agents: Agents,
) -> None:
    """As long as anybody lives who wants it, the next one leaves it alone."""
    engine, _ = agents.start("a")
    died, sibling = source_of(agents.sockets), source_of(agents.sockets)
    await died.hold()
    await sibling.hold()
    _die(died)
    newborn = source_of(agents.sockets)
    await newborn.count()
    assert engine.calls == ["hold"]
    _die(sibling)
    await newborn.count()
    assert engine.calls == ["hold", "release"]
    assert os.listdir(agents.sockets) == [f"a{LIVE}"]


async def test_who_was_held_goes_on_once_the_app_is_there_again(agents: Agents) -> None:
    """Nobody asks for a count until the next drain."""
    engine, _ = agents.start("a")
    died = source_of(agents.sockets)
    await died.hold()
    _die(died)
    source_of(agents.sockets)
    await until(lambda: engine.calls == ["hold", "release"])


async def test_a_newcomer_leaves_alone_who_is_held_by_one_that_lives(
    agents: Agents,
) -> None:
    engine, _ = agents.start("a")
    wants = source_of(agents.sockets)
    await wants.hold()
    newcomer = source_of(agents.sockets)
    await newcomer._free()
    assert engine.calls == ["hold"]


async def test_nobody_is_born_held_by_a_process_that_died(agents: Agents) -> None:
    agents.start("a")
    died = source_of(agents.sockets)
    await died.hold()
    _die(died)
    source_of(agents.sockets)
    late, _ = agents.start("b")
    assert late.calls == []


async def test_a_mark_that_vanishes_is_unknown_and_never_zero(agents: Agents) -> None:
    """As by somebody who cleans up old files."""
    _, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    (agents.sockets / "held").unlink()
    _ask(agent, ask="release", token=_ask(agent, ask="count")["token"])
    with pytest.raises(SourceUnavailable, match="released by another process"):
        await source.count()


async def test_a_directory_that_vanishes_is_unknown(sockets: Path) -> None:
    source = source_of(sockets / "inner", expected=0)
    await source.hold()
    shutil.rmtree(sockets / "inner")
    with pytest.raises(SourceUnavailable, match="No such file"):
        await source.count()
    anew = source_of(sockets / "inner", expected=0)
    (sockets / "inner").rmdir()
    with pytest.raises(SourceUnavailable, match="No such file"):
        await anew.hold()


# Counting and settling


async def test_counts_are_added_and_what_runs_is_named(agents: Agents) -> None:
    first, second = agents.start("a")[0], agents.start("b")[0]
    first.counts, second.counts = Counts(2, 1), Counts(3, 0)
    source = source_of(agents.sockets)
    assert await source.count() == Counts(5, 1)
    ids = [piece.id for piece in source.running()]
    assert ids == ["job 2", "job 1", "job 1", "job 0", "job 0"]
    assert (source.handed_back, source.overdue) == (6, None)


async def test_it_settles_when_the_last_worker_has(agents: Agents) -> None:
    engines = [agents.start(name)[0] for name in ("a", "b")]
    for engine in engines:
        engine.counts = Counts(jobs=1)
    source = source_of(agents.sockets)
    await source.hold()
    settled = asyncio.create_task(source.settled())
    await until(lambda: all("settle" in engine.calls for engine in engines))
    for engine in engines:
        assert not settled.done()
        engine.finish()
    async with asyncio.timeout(PATIENCE):
        await settled


async def test_a_settle_that_was_given_up_starts_no_second_one(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.agent.LONGEST_POLL", 0.01)
    engine, _ = agents.start("a")
    engine.counts = Counts(jobs=1)
    source = source_of(agents.sockets)
    await source.hold()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await source.settled()
    assert engine.calls == ["hold", "settle"]
    await source.release()
    await source.hold()
    engine.finish()
    await source.settled()
    assert engine.calls[-1] == "settle"


async def test_a_zero_is_not_settled_before_the_engine_says_so(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still hand back what it has not started."""
    monkeypatch.setattr("drainmw.agent.LONGEST_POLL", 0.01)
    engine, _ = agents.start("a")
    engine.settle_gate.clear()
    source = source_of(agents.sockets)
    await source.hold()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await source.settled()
    engine.settle_gate.set()
    await source.settled()


async def test_an_engine_that_settles_too_early_is_asked_again(agents: Agents) -> None:
    engine, _ = agents.start("a")
    engine.counts, engine.settles_early = Counts(jobs=1), True
    source = source_of(agents.sockets)
    await source.hold()
    settled = asyncio.create_task(source.settled())
    await until(lambda: engine.calls.count("settle") == 2)
    assert not settled.done()
    engine.finish()
    await settled


async def test_a_count_is_not_of_a_hold_that_ended_meanwhile(agents: Agents) -> None:
    engine, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    token = _ask(agent, ask="count")["token"]
    engine.while_counting = lambda: _ask(agent, ask="release", token=token)
    assert _ask(agent, ask="count")["token"] is None


async def test_settled_without_a_hold_is_nothing_known(agents: Agents) -> None:
    agents.start("a")
    with pytest.raises(SourceUnavailable, match="engine is not held"):
        await source_of(agents.sockets).settled()


@pytest.mark.parametrize("step", ["hold", "settle", "count"])
async def test_an_engine_without_a_broker_is_unknown(agents: Agents, step: str) -> None:
    """V2: and no password is told."""
    engine, _ = agents.start("a")
    source = source_of(agents.sockets)
    if step != "hold":
        await source.hold()
    engine.errors[step] = SourceUnavailable("redis://:secret@host refused")
    call = {"hold": source.hold, "settle": source.settled, "count": source.count}
    with pytest.raises(SourceUnavailable) as found:
        await call[step]()
    assert str(found.value) == "worker a of engine: redis://***@host refused"


async def test_a_count_that_is_no_count_is_an_error(agents: Agents) -> None:
    engine, _ = agents.start("a")
    engine.errors["count"] = ZeroDivisionError()
    with pytest.raises(SourceError, match="ZeroDivisionError") as found:
        await source_of(agents.sockets).count()
    assert not isinstance(found.value, SourceUnavailable)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", "broke off"),
        (b'{"token"', "EOF"),
        (b'{"token":""}\n', "counts: Field required"),
    ],
)
async def test_half_an_answer_is_none(
    sockets: Path, said: bytes, expected: str
) -> None:
    def answer() -> None:
        with listener, listener.accept()[0] as peer:
            peer.recv(1000)
            peer.sendall(said)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(sockets / f"a{LIVE}"))
    listener.listen()
    answering = asyncio.create_task(Lane("answers").call(answer))
    with pytest.raises(SourceUnavailable, match=f"worker a of engine.*{expected}"):
        await source_of(sockets).count()
    await answering


async def test_an_id_that_is_no_text_hides_no_count(agents: Agents) -> None:
    """V1: whoever enqueues a job may choose its id."""
    engine, _ = agents.start("a")
    engine.counts, engine.prefix = Counts(jobs=1), "\ud800\x1b" + "x" * 1000
    source = source_of(agents.sockets)
    assert await source.count() == Counts(jobs=1)
    (piece,) = source.running()
    assert piece.id == "\\ud800\\x1b" + "x" * 118


async def test_who_says_less_than_nothing_takes_nothing_from_others(
    agents: Agents,
) -> None:
    """A sum of three and minus three would be zero."""
    busy, liar = agents.start("a")[0], agents.start("b")[0]
    busy.counts, liar.counts = Counts(jobs=3), Counts(jobs=-3)
    with pytest.raises(SourceError, match=r"worker b of engine: .*jobs"):
        await source_of(agents.sockets).count()


# Agents


async def test_a_hold_that_comes_after_its_release_holds_nobody(
    agents: Agents,
) -> None:
    """As of a worker that was stopped meanwhile, and reads both at once."""
    engine, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    token = _ask(agent, ask="count")["token"]
    await source.release()
    assert _ask(agent, ask="hold", token=token)["unavailable"] is True
    assert engine.calls == ["hold", "release"]
    assert _ask(agent, ask="count")["token"] is None


async def test_who_died_while_it_was_asked_to_hold_is_unknown(
    agents: Agents,
) -> None:
    """It was there when the hold began, and may have had work."""
    agents.start("a")
    engine, agent = agents.start("b")
    engine.errors["hold"] = SourceUnavailable("not yet")
    source = source_of(agents.sockets)
    with pytest.raises(SourceUnavailable, match="not yet"):
        await source.hold()
    engine.counts = Counts(jobs=1)
    agent.close()
    await source.hold()
    with pytest.raises(SourceUnavailable, match="worker b of engine died"):
        await source.count()


async def test_who_leaves_with_work_leaves_no_proof(agents: Agents) -> None:
    engine, agent = agents.start("a")
    source = source_of(agents.sockets, expected=0)
    await source.hold()
    engine.counts = Counts(jobs=1)
    agent.close()
    with pytest.raises(SourceUnavailable, match="worker a of engine died"):
        await source.count()


async def test_who_came_late_is_missed_when_it_dies(agents: Agents) -> None:
    agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    late, agent = agents.start("late")
    late.counts = Counts(jobs=1)
    assert await source.count() == Counts(jobs=1)
    agent.close()
    with pytest.raises(SourceUnavailable, match="worker late of engine died"):
        await source.count()


async def test_a_socket_that_vanishes_is_no_proof(agents: Agents) -> None:
    """As by somebody who cleans up old files; the worker lives, and works."""
    _, agent = agents.start("a")
    source = source_of(agents.sockets, expected=0)
    await source.hold()
    agent.path.unlink()
    with pytest.raises(SourceUnavailable, match="worker a of engine died"):
        await source.count()


async def test_an_old_proof_is_none_for_who_died(agents: Agents) -> None:
    engine, agent = agents.start("a")
    source = source_of(agents.sockets)
    await source.hold()
    engine.counts = Counts(jobs=1)
    agent.close()
    (agents.sockets / f"a{LEFT}").touch()
    with pytest.raises(SourceUnavailable, match="worker a of engine died"):
        await source.count()


async def test_who_left_in_order_once_may_still_die_later(agents: Agents) -> None:
    _, agent = agents.start("a")
    agent.close()
    agent.close()
    assert os.listdir(agents.sockets) == [f"a{LEFT}"]
    engine, again = agents.start("a")
    assert os.listdir(agents.sockets) == [f"a{LIVE}"]
    source = source_of(agents.sockets)
    await source.hold()
    engine.errors["count"] = SourceUnavailable("gone")
    again.close()
    with pytest.raises(SourceUnavailable, match="worker a of engine died"):
        await source.count()


async def test_who_leaves_in_order_while_another_is_not_held_yet_is_not_missed(
    agents: Agents,
) -> None:
    """A hold that failed over one of two is asked for again."""
    _, leaving = agents.start("a")
    engine, _ = agents.start("b")
    engine.errors["hold"] = SourceUnavailable("not yet")
    source = source_of(agents.sockets, expected=2)
    with pytest.raises(SourceUnavailable, match="not yet"):
        await source.hold()
    leaving.close()
    engine.errors.clear()
    await source.hold()
    assert await source.count() == Counts()


async def test_who_dies_while_another_is_not_held_yet_is_named(agents: Agents) -> None:
    dying, agent = agents.start("a")
    engine, _ = agents.start("b")
    engine.errors["hold"] = SourceUnavailable("not yet")
    source = source_of(agents.sockets, expected=2)
    with pytest.raises(SourceUnavailable, match="not yet"):
        await source.hold()
    dying.counts = Counts(jobs=1)
    agent.close()
    engine.errors.clear()
    with pytest.raises(SourceUnavailable, match="worker a of engine died"):
        await source.hold()


async def test_who_died_before_the_hold_is_not_waited_for(agents: Agents) -> None:
    engine, agent = agents.start("old")
    engine.counts = Counts(jobs=1)
    agent.close()
    agents.start("new")
    source = source_of(agents.sockets)
    await source.hold()
    assert await source.count() == Counts()


@pytest.mark.parametrize(
    "asked", [b"nonsense\n", b"[]\n", b'{"ask": "die"}\n', b"\n", b"[" * 4096]
)
def test_no_such_question_is_an_answer(agents: Agents, asked: bytes) -> None:
    _, agent = agents.start("a")
    assert _exchange(agent.path, asked)["error"] == "no such question"


def test_too_many_questions_at_once_are_turned_away(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.agent.MOST_AT_ONCE", 1)
    _, agent = agents.start("a")
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as next:
        slow.connect(str(agent.path))
        next.connect(str(agent.path))
        assert next.recv(1) == b""
        slow.sendall(b'{"ask": "count"}\n')
        assert slow.recv(1) == b"{"


def test_an_agent_is_for_its_user_alone(sockets: Path) -> None:
    sockets.chmod(0o755)
    with pytest.raises(SettingsError, match="of the worker socket must be of mode 07"):
        Agent(Engine(), sockets, "a").start()
    with pytest.raises(SettingsError, match="of the source engine must be of mode 07"):
        source_of(sockets)


def test_two_agents_of_one_name_cannot_be(agents: Agents) -> None:
    _, agent = agents.start("a")
    with pytest.raises(SettingsError, match="another process listens there"):
        Agent(Engine(), agents.sockets, "a").start()
    with pytest.raises(Misuse, match="started already"):
        agent.start()


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a" * 65, 5])
def test_a_name_that_is_no_file_is_refused(sockets: Path, name: Any) -> None:
    with pytest.raises(Misuse, match="an agent's name is"):
        Agent(Engine(), sockets, name)


def test_an_agent_needs_a_source(sockets: Path) -> None:
    with pytest.raises(Misuse, match="object is no source: it needs hold"):
        Agent(object(), sockets)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="the class Engine is no source"):
        Agent(Engine, sockets)  # type: ignore[arg-type]


# Agents of an event loop


async def test_a_source_of_a_loop_is_asked_in_that_loop(sockets: Path) -> None:
    worker = ManualSource(blocked=["settled"])
    worker.set_counts(jobs=1)
    source = source_of(sockets)
    async with Agent(worker, sockets, "a"):
        await source.hold()
        assert await source.count() == Counts(jobs=1)
        settled = asyncio.create_task(source.settled())
        await until(lambda: worker.calls[-1] == "settled")
        worker.set_counts()
        worker.settle()
        await settled
    assert sorted(os.listdir(sockets)) == [f"a{LEFT}", "held"]
    await source.release()


async def test_a_release_ends_the_wait_of_a_source_of_a_loop(sockets: Path) -> None:
    worker = ManualSource(blocked=["settled"])
    worker.set_counts(jobs=1)
    source = source_of(sockets)
    async with Agent(worker, sockets, "a"):
        await source.hold()
        settled = asyncio.create_task(source.settled())
        await until(lambda: worker.calls[-1] == "settled")
        await source.release()
        with pytest.raises(SourceUnavailable):
            await settled
        await until(lambda: "drainmw settle" not in _threads())


async def test_a_loop_that_has_ended_has_no_count(sockets: Path) -> None:
    ended = asyncio.new_event_loop()
    ended.close()
    inner = InLoop(ManualSource())
    inner.loop = ended
    with pytest.raises(SourceUnavailable, match="the event loop of the worker"):
        inner.count()


async def test_a_source_of_a_loop_is_not_started_from_within(sockets: Path) -> None:
    agent = Agent(ManualSource(), sockets, "a")
    await source_of(sockets, expected=0).hold()
    with pytest.raises(Misuse, match="needs `async with`"):
        agent.start()


def agents_path(agents: Agents, name: str) -> Path:
    return agents.sockets / f"{name}{LIVE}"


def _ask(agent: Agent | Path, **question: str) -> Any:
    path = agent if isinstance(agent, Path) else agent.path
    return _exchange(path, json.dumps(question).encode() + b"\n")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def _exchange(path: Path, question: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(PATIENCE)
        wire.connect(str(path))
        wire.sendall(question)
        with wire.makefile("rb") as answer:
            return json.loads(answer.readline())


def _die(source: RemoteSource) -> None:
    """What the kernel does when a process ends: its files are closed."""
    assert source._mark is not None
    source._mark.close()
    source._mark = None
