"""Run pytest side by side, then say by name what it skipped and why.

Tests of engines that cannot be installed beside the others run after the rest,
by this same program in an environment of their own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

APART = Path("tests/engines/redis5")
APART_PYTHON = ".venv-redis5/bin/python"
SKIPS_TO = "--skips-to="  # a file: for the run of what stands apart
# A process for each core, as most tests wait for another process; who has nothing
# left to do takes over half of what another one has. What is given twice, such as
# `-n 0`, counts the last time.
SIDE_BY_SIDE = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")


class Skips:
    """Collects the skipped tests. With `forbidden`, they make a run fail."""

    def __init__(self, *, forbidden: bool) -> None:
        self.forbidden = forbidden
        self.reasons: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that failed as expected is reported as skipped, too.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.forbidden and self.reasons and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def tell(self) -> None:
        """List them, below the closing line of the last run."""
        if not self.reasons:
            print("nothing was skipped")
            return
        verdict = ", which is a failure here" if self.forbidden else ""
        print(f"{len(self.reasons)} skipped{verdict}:")
        for name, reason in sorted(self.reasons.items()):
            print(f"  {name}: {reason}")

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longreprtext
        if isinstance(report.longrepr, tuple):
            reason = report.longrepr[2]
        self.reasons[report.nodeid] = reason.removeprefix("Skipped: ")


def main(arguments: list[str]) -> int:
    # Taken out, because what the tests start reads its settings from DRAINMW_*.
    forbidden = os.environ.pop("DRAINMW_NO_SKIP", "") == "1"
    skips = Skips(forbidden=forbidden)
    if arguments and arguments[0].startswith(SKIPS_TO):
        file = Path(arguments[0].removeprefix(SKIPS_TO))
        code = pytest.main(["-ra", *arguments[1:]], plugins=[skips])
        file.write_text(json.dumps(skips.reasons))
        return code
    paths = [path for path in map(_path, arguments) if path]
    codes: list[int] = []
    if not paths or not all(map(_within, paths)):
        rest = [a for a in arguments if (path := _path(a)) is None or not _within(path)]
        codes.append(pytest.main([*SIDE_BY_SIDE, "-ra", *rest], plugins=[skips]))
    if pytest.ExitCode.INTERRUPTED not in codes and _wanted_apart(paths):
        codes.append(_run_apart(arguments, skips))
    skips.tell()
    return _together(codes, chosen=bool(arguments))


def _run_apart(arguments: Sequence[str], skips: Skips) -> int:
    """Run what stands apart; what it skipped is added to the skips."""
    own = [a for a in arguments if (path := _path(a)) is None or _within(path)]
    if not any(_path(argument) for argument in own):
        own.append(str(APART))
    environment = os.environ | {"DRAINMW_NO_SKIP": str(int(skips.forbidden))}
    with tempfile.NamedTemporaryFile("r", prefix="skips-") as file:
        command = [APART_PYTHON, __file__, SKIPS_TO + file.name, *own]
        code = subprocess.run(command, env=environment).returncode
        skips.reasons |= json.loads(file.read() or "{}")
    return code


def _together(codes: Sequence[int], *, chosen: bool) -> int:
    """One exit code. A choice of tests may leave a run without any."""
    empty = pytest.ExitCode.NO_TESTS_COLLECTED
    if chosen and any(code != empty for code in codes):
        codes = [code for code in codes if code != empty]
    return next((code for code in codes if code), 0)


def _wanted_apart(paths: Sequence[Path]) -> bool:
    return not paths or any(_within(p) or p in APART.parents for p in paths)


def _within(path: Path) -> bool:
    return path.is_relative_to(APART)


def _path(argument: str) -> Path | None:
    """The file or folder that an argument names, as `tests/x.py::test_y` does."""
    named = argument.partition("::")[0]
    if named.startswith("-") or not named or not Path(named).exists():
        return None
    here = Path.cwd()
    whole = Path(named).resolve()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
