"""A fetch does not hold up the event loop that it runs in."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fetching_first

HERE = Path(__file__).parent


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_first_fetch_of_a_process_imports_nothing_in_its_event_loop(
    loop: str,
) -> None:
    """In a process of its own: in this one everything is imported by now."""
    command = [sys.executable, "-m", fetching_first.__name__, loop]
    told = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=60
    )
    assert (told.stdout, told.stderr) == ("b'state'\n", "")
