"""The demo keeps its word: it exits with 0 only where everything went well, and
leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.stage import Release, serving
from tests.processes import ROOT, running

DEMO = "examples.demo"


def test_the_demo_ends_drained_with_nothing_broken() -> None:
    """Real traffic, a begin in the middle, all long work finished."""
    done = subprocess.run(
        [sys.executable, "-m", DEMO],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken; 3 of 3 long ones finished; drained." in done.stdout
    assert done.stderr == ""


def test_the_demo_leaves_no_process_when_it_is_interrupted() -> None:
    """By Ctrl-C, or by the end of whoever started it."""
    with (
        running("-m", DEMO) as first,
        running("-m", DEMO) as second,
    ):
        for process in (first, second):
            process.out.wait_for_text("operator begin")
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
