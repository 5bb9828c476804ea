"""A drain as a person watches it: one line that changes, or a line a change."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from drainmw.contract import (
    UNKNOWN_REVISION,
    Blocker,
    Report,
    SourceReport,
    Status,
)
from drainmw.reporting import in_words
from drainmw.text import printable

_ERASE_LINE = "\r\x1b[2K"
_WIDTH = 120  # columns at most; a line that wraps cannot be erased


def revision(name: str | None) -> str:
    """A revision as the screen shows it."""
    return "unknown" if name in (None, UNKNOWN_REVISION) else str(name)


class Progress:
    """Shows statuses as they come in."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._terminal = self._out.isatty()
        self._open = False
        self._shown: object = None
        self._deadline: float | None = None
        self._blockers: list[Blocker] = []
        self._learned = 0.0

    def learn(self, report: Report) -> None:
        """Take the time left and the oldest blockers from a report."""
        self._learned = time.monotonic()
        remaining = report["remainingMs"]
        if remaining is not None:
            self._deadline = time.monotonic() + remaining / 1000
        self._blockers = report["blockers"]

    def show(self, status: Status) -> None:
        """Show one status: on a terminal always, elsewhere if it has changed."""
        if self._terminal:
            width = min(_WIDTH, shutil.get_terminal_size().columns - 1)
            self._open = True  # first, for a Ctrl-C may come in the middle
            self._out.write(_ERASE_LINE + self._line(status)[:width])
            if status["status"] == "draining":
                self._out.flush()
            else:
                self.stop()
            return
        news = (status["status"], tuple(status["inFlight"].items()))
        if news != self._shown:
            self._shown = news
            self._out.write(self._line(status) + "\n")
            self._out.flush()

    def stop(self) -> None:
        """Leave the line as it is and go on below it. Idempotent."""
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False

    def _line(self, status: Status) -> str:
        parts = [status["status"], _counters(status["inFlight"])]
        if "failure" in status:
            parts.append(status["failure"])
        if status["status"] == "draining":
            if self._deadline is not None:
                left = max(0.0, self._deadline - time.monotonic())
                parts.append(f"{left:.1f} s left")
            parts.append(in_words(_older(self._blockers, self._learned)))
        return printable("  ".join(part for part in parts if part))


def _older(blockers: list[Blocker], since: float) -> list[Blocker]:
    """Blockers as of now; they grow older between two reports."""
    passed = round((time.monotonic() - since) * 1000)
    return [{**blocker, "ageMs": blocker["ageMs"] + passed} for blocker in blockers]


def _counters(in_flight: Mapping[str, object]) -> str:
    return "  ".join(
        f"{kind} {'unknown' if n is None else n}" for kind, n in in_flight.items()
    )


def describe(report: Report) -> str:
    """A report on a few lines."""
    lines = [
        f"phase      {report['phase']}  (epoch {report['epoch']})",
        f"app        {report['app'] or 'unnamed'}",
        f"revision   {revision(report['revision'])}",
        f"in flight  {_counters(report['inFlight'])}",
        f"admitted   {report['admittedTotal']}  refused {report['refusedTotal']}",
    ]
    if report["nonce"] is not None:
        lines += [
            f"nonce      {report['nonce']}",
            f"drains     {revision(report['sourceRevision'])}",
            f"for        {revision(report['targetRevision'])}",
        ]
    if report.get("failure"):
        lines.append(f"failure    {report['failure']}")
    if report["remainingMs"] is not None and report["phase"] == "draining":
        lines.append(f"time left  {report['remainingMs'] / 1000:.1f} s")
    for blocker in report["blockers"]:
        kind = f"{blocker['kind']} " if blocker["method"] else ""
        lines.append(f"blocker    {kind}{in_words([blocker])}")
    several = len(report["workers"]) > 1
    for source in report["sources"]:
        where = f" in {source['worker']}" if several else ""
        lines.append(f"source     {_source(source, where)}")
    lines += [f"warning    {warning}" for warning in report["warnings"]]
    return "\n".join(map(printable, lines))


def _source(source: SourceReport, where: str) -> str:
    """Where it stands, what it told of the hold, and what keeps it from an answer."""
    parts = [f"{source['name']} {'held' if source['held'] else 'open'}{where}"]
    if source["overdue"]:
        parts.append(f"overdue {source['overdue']}")
    if source["handedBack"]:
        parts.append(f"handed back {source['handedBack']}")
    if source["error"]:
        parts.append(source["error"])
    return "  ".join(parts)
