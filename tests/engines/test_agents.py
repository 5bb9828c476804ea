"""Workers in processes of their own: held, counted, dead, reborn."""

import os
import signal

import pytest

from drainmw.errors import SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.remote import RemoteSource
from tests.engines.journal import Journal
from tests.engines.scenario import hand_over, hold_in_the_middle, holds_at_random
from tests.engines.spooled import Workers
from tests.processes import running

pytestmark = pytest.mark.anyio

LONG = 20.0  # seconds of a job that shall not end by itself


async def test_two_processes_pass_the_scenario(
    workers: Workers, journal: Journal
) -> None:
    workers.start("a", "b")
    await hold_in_the_middle(workers, journal, prompt=0.5)


async def test_what_one_release_has_not_started_another_runs(
    workers: Workers, others: Workers, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    workers.start("a", "b")
    others.start("c", "d")
    await hand_over(workers, others, journal)


async def test_two_processes_pass_it_at_random(
    workers: Workers, journal: Journal
) -> None:
    workers.start("a", "b")
    await holds_at_random(workers, journal, rounds=6)


async def test_who_dies_while_held_is_unknown_until_reborn(
    workers: Workers, journal: Journal
) -> None:
    """And who is reborn is held before it takes any work."""
    first, _ = workers.start("a", "b", slots=1)
    await workers.enqueue(["x", "y", "z"], LONG)
    await journal.until(lambda: len(journal.started()) == 2, "both work")
    source = workers.source
    await source.hold()
    assert await source.count() == Counts(jobs=2)
    assert [piece.id for piece in source.running()] == ["x", "y"]
    first.popen.send_signal(signal.SIGKILL)
    first.popen.wait()
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="worker a of spool died"):
            await source.count()
        with pytest.raises(SourceUnavailable, match="worker a of spool died"):
            await source.settled()
    workers.start("a", slots=1)
    assert await source.count() == Counts(jobs=1)
    assert len(journal.started()) == 2
    await source.release()
    await journal.until(lambda: journal.started()[2:] == ["z"], "the reborn works")


async def test_who_leaves_in_order_has_left_nothing(workers: Workers) -> None:
    first, _ = workers.start("a", "b")
    source = workers.source
    await source.hold()
    first.signal(signal.SIGTERM)
    assert first.exit_code() == 0
    await source.settled()
    assert await source.count() == Counts()


async def test_who_is_stopped_is_unknown(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.sources.remote.PATIENCE", 0.1)
    first, _ = workers.start("a", "b")
    await workers.source.hold()
    first.signal(signal.SIGSTOP)
    with pytest.raises(SourceUnavailable, match="worker a of spool: TimeoutError"):
        await workers.source.count()
    first.signal(signal.SIGCONT)
    monkeypatch.undo()
    assert await workers.source.count() == Counts()


_FORKS = """
import os, sys, time
from drainmw.agent import Agent
from tests.engines.spool import Spool, SpoolWorker
from pathlib import Path
with Agent(SpoolWorker(Spool(Path(sys.argv[1])), 1), sys.argv[2], "forks") as agent:
    if os.fork() == 0:
        agent.close()  # as an exit handler that came with the fork would
        print("child", os.getpid(), flush=True)
        time.sleep(20)
    time.sleep(20)
"""


async def test_a_fork_does_not_answer_for_a_dead_worker(workers: Workers) -> None:
    """Its child has all its files; the kernel still tells that it is gone."""
    source = RemoteSource("spool", "pull", workers.sockets)
    folders = (str(workers.spool.folder), str(workers.sockets))
    with running("-c", _FORKS, *folders) as process:
        process.out.wait_for_text(r"child \d+\n")
        await source.hold()
        assert await source.count() == Counts()
        os.kill(process.popen.pid, signal.SIGKILL)
        process.popen.wait()
        with pytest.raises(SourceUnavailable, match="worker forks of spool died"):
            await source.count()
