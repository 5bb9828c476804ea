"""`scripts/test` says what it skipped, wherever it ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "run_tests.py"
FIRST = """
import os
import pytest

def test_that_passes():
    assert not any(name.startswith("DRAINMW_") for name in os.environ)

@pytest.mark.skip(reason="needs the moon")
@pytest.mark.parametrize("phase", ["full", "new"])
def test_of(phase): ...

def test_that_imports():
    pytest.importorskip("no_such_module", reason="needs another module")

@pytest.mark.xfail
def test_that_fails_as_expected():
    assert False
"""
SECOND = """
import pytest
pytest.skip("needs another system", allow_module_level=True)
"""
THIRD = """
def test_that_fails():
    assert False
"""


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """The exit code, and the lines below pytest's closing line."""
    for number, text in enumerate((FIRST, SECOND, THIRD), 1):
        (folder / f"test_{number}.py").write_text(text)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, SCRIPT, "-p", "no:cacheprovider", "-n", "2", *arguments],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=40,
    )
    _, closing, below = done.stdout.rpartition("s =")
    assert closing, done.stdout + done.stderr
    return done.returncode, below.splitlines()[1:]


def test_what_was_skipped_is_listed_by_name(tmp_path: Path) -> None:
    code, last = run(tmp_path, "--deselect", "test_3.py")
    assert last == [
        "4 skipped:",
        "  test_1.py::test_of[full]: needs the moon",
        "  test_1.py::test_of[new]: needs the moon",
        "  test_1.py::test_that_imports: needs another module",
        "  test_2.py: needs another system",
    ]
    assert code == 0


def test_where_it_is_forbidden_to_skip_is_to_fail(tmp_path: Path) -> None:
    code, last = run(tmp_path, "--deselect", "test_3.py", DRAINMW_NO_SKIP="1")
    assert (code, last[0]) == (1, "4 skipped, which is a failure here:")
    assert len(last) == 5


def test_arguments_go_to_pytest(tmp_path: Path) -> None:
    only = ("--ignore", "test_2.py", "-k", "passes")
    assert run(tmp_path, *only, DRAINMW_NO_SKIP="1") == (0, ["nothing was skipped"])
    only = ("--ignore", "test_2.py", "-k", "that_fails and not expected")
    assert run(tmp_path, *only) == (1, ["nothing was skipped"])
