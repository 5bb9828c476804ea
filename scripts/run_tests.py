"""Run pytest side by side, then say by name what it skipped and why."""

import os
import sys

import pytest

# A process for each core, as most tests wait for another process; who has nothing
# left to do takes over half of what another one has. What is given twice, such as
# `-n 0`, counts the last time.
SIDE_BY_SIDE = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")


class Skips:
    """Collects the skipped tests, and lists them below pytest's closing line.

    With `forbidden`, a run that skipped something has failed.
    """

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

    def pytest_unconfigure(self) -> None:
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


def main() -> int:
    # Taken out, because what the tests start reads its settings from DRAINMW_*.
    forbidden = os.environ.pop("DRAINMW_NO_SKIP", "") == "1"
    arguments = [*SIDE_BY_SIDE, "-ra", *sys.argv[1:]]
    return pytest.main(arguments, plugins=[Skips(forbidden=forbidden)])


if __name__ == "__main__":
    sys.exit(main())
