"""What a person sees of a drain."""

from __future__ import annotations

import io
import os
import time

import pytest

from drainmw.console import Progress, describe, revision
from drainmw.contract import Blocker, InFlight, Report, Status
from tests.rig import NONCE, SOURCE, TARGET

ERASE = "\r\x1b[2K"


class Terminal(io.StringIO):
    """A terminal of 120 columns, as far as a progress line can tell."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the console, in the hand of the test."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", "120")
    return clock


def status(state: str = "draining", http: int = 0, failure: str = "") -> Status:
    in_flight: InFlight = {"http": http, "websocket": 0, "jobs": 0, "schedules": 0}
    answer: Status = {
        "protocol": "forgezero-drain/v1",
        "nonce": NONCE,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 5000,
        "status": state,  # type: ignore[typeddict-item]  # also one that is new
        "inFlight": in_flight,
    }
    if failure:
        answer["failure"] = failure
    return answer


def blocker(kind: str, method: str | None, path: str, age: int) -> Blocker:
    return {"kind": kind, "method": method, "path": path, "ageMs": age, "worker": 7}


def report(**members: object) -> Report:
    serving: Report = {
        "app": "shop:app",
        "revision": None,
        "phase": "serving",
        "epoch": 0,
        "nonce": None,
        "sourceRevision": None,
        "targetRevision": None,
        "remainingMs": None,
        "inFlight": {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0},
        "admittedTotal": 12,
        "refusedTotal": 0,
        "lastAdmittedAgoMs": None,
        "lastRefusedAgoMs": None,
        "failure": None,
        "blockers": [],
        "sources": [],
        "workers": [],
        "warnings": [],
    }
    return {**serving, **members}  # type: ignore[typeddict-item]  # by each test


def test_an_unknown_revision_is_called_so() -> None:
    assert revision(None) == "unknown"
    assert revision("0" * 40) == "unknown"
    assert revision(SOURCE) == SOURCE


def test_elsewhere_there_is_a_line_for_each_change() -> None:
    out = io.StringIO()
    progress = Progress(out)
    for http in (2, 2, 1, 1, 0):
        progress.show(status(http=http))
    progress.show(status("drained"))
    progress.stop()
    assert out.getvalue().splitlines() == [
        "draining  http 2  websocket 0  jobs 0  schedules 0",
        "draining  http 1  websocket 0  jobs 0  schedules 0",
        "draining  http 0  websocket 0  jobs 0  schedules 0",
        "drained  http 0  websocket 0  jobs 0  schedules 0",
    ]


def test_a_terminal_has_one_line_that_changes(now: list[float]) -> None:
    out = Terminal()
    progress = Progress(out)
    progress.learn(
        report(
            phase="draining",
            remainingMs=20_000,
            blockers=[
                blocker("http", "POST", "/a", 900),
                blocker("websocket", None, "/b", 80),
                blocker("jobs", None, "import", 7),
                blocker("http", "GET", "/fourth", 1),
            ],
        )
    )
    progress.show(status(http=1))
    now[0] += 1.5
    progress.show(status(http=1))
    progress.show(status("failed", 1, "RUNTIME_DRAIN_TIMEOUT"))
    progress.stop()
    counters = "http 1  websocket 0  jobs 0  schedules 0"
    young = "POST /a 0.9 s, websocket /b 0.1 s, jobs import 0.0 s"
    older = "POST /a 2.4 s, websocket /b 1.6 s, jobs import 1.5 s"
    assert out.getvalue() == (
        f"{ERASE}draining  {counters}  20.0 s left  {young}"[: 119 + len(ERASE)]
        + f"{ERASE}draining  {counters}  18.5 s left  {older}"[: 119 + len(ERASE)]
        + f"{ERASE}failed  {counters}  RUNTIME_DRAIN_TIMEOUT\n"
    )


def test_time_left_never_falls_below_zero(now: list[float]) -> None:
    out = Terminal()
    progress = Progress(out)
    progress.learn(report(remainingMs=500))
    now[0] += 3
    progress.show(status())
    assert out.getvalue().endswith("schedules 0  0.0 s left")


def test_a_line_never_wraps(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    Progress(out).show(status())
    assert out.getvalue() == f"{ERASE}draining  http 0  w"
    assert len(out.getvalue()) - len(ERASE) == 19


def test_a_line_that_is_left_ends_once(now: list[float]) -> None:
    out = Terminal()
    progress = Progress(out)
    progress.stop()
    assert out.getvalue() == ""
    progress.show(status())
    progress.stop()
    progress.stop()
    assert out.getvalue().count("\n") == 1


class Interrupted(Terminal):
    """A terminal at which Ctrl-C is pressed as soon as a line is on it."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text != "\n":
            raise KeyboardInterrupt
        return written


def test_a_line_that_is_interrupted_as_it_is_drawn_ends_too(now: list[float]) -> None:
    out = Interrupted()
    progress = Progress(out)
    with pytest.raises(KeyboardInterrupt):
        progress.show(status())
    progress.stop()
    assert out.getvalue().endswith("schedules 0\n")


HOSTILE = "\x1b]0;x\x07\nfake"
TAMED = r"\x1b]0;x\x07\nfake"


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_that_a_target_says_steers_the_terminal(
    now: list[float], terminal: bool
) -> None:
    out = Terminal() if terminal else io.StringIO()
    progress = Progress(out)
    progress.learn(report(blockers=[blocker("http", "GET", HOSTILE, 1)]))
    progress.show(status(http=1))
    progress.show(status("failed", 0, HOSTILE))
    progress.show(status(HOSTILE))
    shown = out.getvalue().replace(ERASE, "")
    assert shown.count(TAMED) == 3
    assert not {"\x1b", "\x07", "\r"} & set(shown)
    assert shown.count("\n") == (2 if terminal else 3)  # of those that ended


def test_a_serving_release_is_described_in_a_few_lines() -> None:
    assert describe(report()) == "\n".join(
        [
            "phase      serving  (epoch 0)",
            "app        shop:app",
            "revision   unknown",
            "in flight  http 0  websocket 0  jobs 0  schedules 0",
            "admitted   12  refused 0",
        ]
    )


def test_a_draining_release_is_described_with_all_it_waits_for() -> None:
    found = report(
        app=None,
        revision=SOURCE,
        phase="draining",
        epoch=3,
        nonce=NONCE,
        sourceRevision=SOURCE,
        targetRevision="0" * 40,
        remainingMs=4321,
        inFlight={"http": 1, "websocket": 0, "jobs": None, "schedules": None},
        refusedTotal=4,
        blockers=[
            blocker("http", "POST", "/pay", 1500),
            blocker("websocket", None, "/live", 20),
            blocker("jobs", None, "import", 61_200),
        ],
        sources=[
            _source("tasks", held=True, error=None),
            _source("queue", held=False, error=HOSTILE),
            _source("clock", held=True, error=None, overdue=2, handed_back=0),
            _source("rq", held=True, error=None, handed_back=7),
        ],
        warnings=[HOSTILE],
    )
    assert describe(found) == "\n".join(
        [
            "phase      draining  (epoch 3)",
            "app        unnamed",
            f"revision   {SOURCE}",
            "in flight  http 1  websocket 0  jobs unknown  schedules unknown",
            "admitted   12  refused 4",
            f"nonce      {NONCE}",
            f"drains     {SOURCE}",
            "for        unknown",
            "time left  4.3 s",
            "blocker    http POST /pay 1.5 s",
            "blocker    websocket /live 0.0 s",
            "blocker    jobs import 61.2 s",
            "source     tasks held",
            f"source     queue open  {TAMED}",
            "source     clock held  overdue 2",
            "source     rq held  handed back 7",
            f"warning    {TAMED}",
        ]
    )


def _source(
    name: str,
    *,
    held: bool,
    error: str | None,
    overdue: int | None = None,
    handed_back: int | None = None,
) -> dict[str, object]:
    told = {"overdue": overdue, "handedBack": handed_back}
    return {"name": name, "held": held, "error": error, **told}


def test_a_source_of_several_workers_is_described_with_its_worker() -> None:
    source = _source("cron", held=True, error=HOSTILE)
    found = report(workers=[{}, {}], sources=[{**source, "worker": 71}])
    assert f"source     cron held in 71  {TAMED}" in describe(found).splitlines()


def test_a_failed_release_is_described_with_its_failure() -> None:
    found = report(phase="failed", failure="RUNTIME_DRAIN_TIMEOUT", remainingMs=-9)
    lines = describe(found).splitlines()
    assert lines[-1] == "failure    RUNTIME_DRAIN_TIMEOUT"


def test_progress_goes_to_standard_output_unless_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Progress().show(status("drained"))
    expected = f"drained  http 0  websocket 0  jobs 0  schedules 0{os.linesep}"
    assert capsys.readouterr().out == expected
