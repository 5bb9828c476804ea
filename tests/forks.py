"""Runs of pytest against copies of the package, all forked from one process.

That process has imported what the tests import, but for the package itself: each
run finds it in its own copy. To import the rest is most of the time of a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from tests.servers.process import end

ROOT = Path(__file__).parents[1]
PLUGINS = ("anyio.pytest_plugin", "pytest_timeout")  # no other one is loaded
LIBRARIES = (
    *("anyio._backends._asyncio", "httpx", "hypothesis", "pydantic"),
    *("starlette.applications", "structlog", "uvicorn", "websockets"),
)
NEVER_RAN = 70  # EX_SOFTWARE; no exit code of pytest's


@dataclass(frozen=True, slots=True)
class Run:
    """How one run ended, and what it wrote."""

    code: int
    output: str


class Forks:
    """Runs one after the other. Use `forks`, which ends what they started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, copy: Path, tests: Sequence[str]) -> Run:
        """Run tests against the package in that directory, up to the first failure."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([str(copy), tests]).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BaseException:
            end(self._process)  # or its answer would be taken for that to the next
            raise
        return Run(**json.loads(answer))


@contextmanager
def forks() -> Iterator[Forks]:
    """The process that forks."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.forks"],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a group of its own, so all of it can be ended
    ) as process:
        try:
            yield Forks(process)
        finally:
            end(process)


def _serve() -> None:
    """Answer each line on standard input, which names a copy and its tests."""
    _import_what_tests_import()
    for line in sys.stdin:
        copy, tests = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _be_run(copy, tests, output.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            written = output.read().decode(errors="replace")
        print(json.dumps({"code": code, "output": written}), flush=True)


def _import_what_tests_import() -> None:
    for name in (*PLUGINS, *LIBRARIES):
        import_module(name)
    assert "drainmw" not in sys.modules


def _be_run(copy: str, tests: list[str], output: int) -> None:
    """Run in this process, and end it."""
    code = NEVER_RAN
    for standard in (1, 2):
        os.dup2(output, standard)
    try:
        code = _run(copy, tests)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(copy: str, tests: list[str]) -> int:
    sys.path.insert(0, copy)
    os.environ["PYTHONPATH"] = copy  # for what the tests start
    found = import_module("drainmw").__file__
    assert Path(str(found)).is_relative_to(copy), f"not the copy, but {found} is tested"
    plugins = [import_module(name) for name in PLUGINS]
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=plugins)


if __name__ == "__main__":
    _serve()
