"""The demo keeps its word: it exits with 0 only where everything went well."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_the_demo_ends_drained_with_nothing_broken() -> None:
    """Real traffic, a begin in the middle, all long work finished."""
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken; 3 of 3 long ones finished; drained." in done.stdout
