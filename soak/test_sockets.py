"""Many WebSockets of one process are closed over a window, and nothing stalls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
@pytest.mark.parametrize("sockets", [1_000, 10_000])
def test_the_closes_are_spread_and_the_loop_is_not_kept(
    sockets: int, ws: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """S5: at most three times the mean in any 100 ms, and the loop is not late."""
    arguments = ("--sockets", str(sockets), "--ws", ws)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sockets", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
