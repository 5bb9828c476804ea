"""What a server and its app wrote."""

from __future__ import annotations

import re
from pathlib import Path

_FAULT = re.compile(
    r"\b(ERROR|CRITICAL|Traceback|\w*Error|\w*Exception|\w*Warning)\b"
    r'|"level": ?"(error|critical)"'
)


class Log:
    """The lines that were written since."""

    def __init__(self, path: Path, start: int | None = None) -> None:
        self._path = path
        self._start = path.stat().st_size if start is None else start

    @property
    def lines(self) -> list[str]:
        written = self._path.read_bytes()[self._start :]
        return written.decode(errors="replace").splitlines()

    def count(self, text: str) -> int:
        """How many lines have that text."""
        return sum(text in line for line in self.lines)

    def faults(self) -> list[str]:
        """The lines of a level that is an error's, and those of a traceback."""
        return faults_in(self.lines)


def faults_in(lines: list[str]) -> list[str]:
    return [line for line in lines if _FAULT.search(line)]
