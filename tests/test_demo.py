"""The demo keeps its word: it exits with 0 only where everything went well, and
leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from examples.memory import BURST, RATE
from examples.stage import Release, serving
from examples.visitors import CLIENTS, PRESENT, Record
from tests.processes import ROOT, running

DEMO = "examples.demo"


def test_both_acts_of_the_demo_end_well() -> None:
    """A release drains with nothing broken; a chat moves and nothing is forgotten."""
    done = subprocess.run(
        [sys.executable, "-m", DEMO],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken; 3 of 3 long ones finished; drained." in done.stdout
    assert re.search(r"[1-9]\d* answers told who is there, 0 wrong\.", done.stdout)
    assert "refused and tried again, 0 failed." in done.stdout
    assert done.stdout.count("is back now") == 6
    assert done.stderr == ""


def test_the_demo_leaves_no_process_when_it_is_interrupted() -> None:
    """By Ctrl-C, or by the end of whoever started it."""
    with (
        running("-m", DEMO, "moving") as first,
        running("-m", DEMO, "moving") as second,
    ):
        for process in (first, second):
            process.out.wait_for_text("drainmw begin")
        first.signal(signal.SIGINT)
        second.signal(signal.SIGTERM)
        for process in (first, second):
            assert process.exit_code() == 130, process.err.text
            assert process.err.text == ""
            with pytest.raises(ProcessLookupError):
                os.killpg(process.popen.pid, 0)


@pytest.mark.anyio
async def test_a_release_that_does_not_start_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"examples\.nothing:app did not start"):
        async with serving("examples.nothing:app", "a" * 40, tmp_path / "c.sock"):
            pass
    assert "examples.nothing" in capfd.readouterr().err


@pytest.mark.anyio
async def test_a_release_is_stopped_whatever_goes_wrong(tmp_path: Path) -> None:
    seen: list[Release] = []
    with pytest.raises(ZeroDivisionError):
        async with serving("examples.app:app", "a" * 40, tmp_path / "c.sock") as seen_:
            seen.append(seen_)
            raise ZeroDivisionError
    assert await seen[0].stop() == 0


# What it takes for a proof


def record() -> Record:
    """Of clients that got all through that they might, until ten seconds later."""
    through = [0.0] * BURST + [n / RATE for n in range(1, int(10 * RATE) + 1)]
    return Record(
        complete=0.0,
        started=dict.fromkeys(CLIENTS, 0.0),
        through=defaultdict(list, {client: list(through) for client in CLIENTS}),
    )


def test_a_record_without_a_fault_is_a_proof() -> None:
    seen = record()
    for room, present in PRESENT.items():
        seen.saw(room, present, asked=1.0)
    assert list(seen.problems(switched=5.0)) == []
    assert (seen.answers, seen.allowed("c1")) == (len(PRESENT), BURST + 10 * RATE)


@pytest.mark.parametrize(
    ("present", "shown"),
    [
        (["eve", "fay"], "eve, fay"),
        (["dan", "eve", "fay", "yan"], "dan, eve, fay, yan"),
        ([], "nobody"),
    ],
)
def test_one_wrong_answer_is_a_problem(present: list[str], shown: str) -> None:
    seen = record()
    seen.saw("kitchen", present, asked=-1.0)  # before everybody was there
    assert list(seen.problems(switched=5.0)) == []
    seen.saw("kitchen", present, asked=1.0)
    assert list(seen.problems(switched=5.0)) == [f"in the kitchen: {shown}"]


def test_one_request_too_many_is_a_problem() -> None:
    seen = record()
    seen.through["c2"].append(seen.through["c2"][-1])
    assert list(seen.problems(switched=5.0)) == ["c2 got 21 through of 20"]


def test_a_client_that_is_let_in_no_more_is_a_problem() -> None:
    seen = record()
    del seen.through["c3"]
    problems = [f"{client} got nothing through after the change" for client in CLIENTS]
    assert list(seen.problems(switched=5.0)) == problems[2:3]
    assert list(seen.problems(switched=10.5)) == problems


def test_a_failed_request_is_a_problem() -> None:
    seen = record()
    seen.failed.append("c1: 500")
    assert list(seen.problems(switched=5.0)) == ["c1: 500"]
