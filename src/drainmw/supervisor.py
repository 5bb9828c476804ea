"""Which process starts the workers of a release, and whether this is one."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drainmw.errors import GroupError

SERVERS = ("drainmw", "uvicorn", "gunicorn", "hypercorn", "granian", "daphne")
_IMPORT_STRING = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(\(\))?")


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The process that starts the workers of a group; a pid alone is reused."""

    pid: int
    started: str

    @property
    def lives(self) -> bool:
        """Whether that very process still runs."""
        return _start_time(self.pid) == self.started


def supervisor(environ: Mapping[str, str] | None = None) -> Supervisor | None:
    """Who started this process as one of several; `None` for one that is alone.

    Raises:
        GroupError: It is one of several and its parent cannot be told.
    """
    environ = os.environ if environ is None else environ
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        pid = parent.pid
    elif environ.get("SERVER_SOFTWARE", "").startswith("gunicorn/"):
        pid = os.getppid()
    else:
        return None
    if sys.platform == "win32":
        raise GroupError("workers need POSIX locks and Unix sockets to act as one")
    started = _start_time(pid)
    if started is None:
        raise GroupError(f"the supervisor, process {pid}, cannot be identified")
    return Supervisor(pid, started)


def itself() -> Supervisor:
    """This process, as the supervisor of the workers that it starts.

    Raises:
        GroupError: Its start cannot be told.
    """
    started = _start_time(os.getpid())
    if started is None:
        raise GroupError("the start of this process cannot be told")
    return Supervisor(os.getpid(), started)


def may_be_one_of_several() -> bool:
    """Whether this process, or one forked from it, may have siblings."""
    return multiprocessing.parent_process() is not None or os.environ.get(
        "SERVER_SOFTWARE", ""
    ).startswith("gunicorn/")


def served_app(argv: Sequence[str] | None = None) -> str | None:
    """The import string that a server was started with; `None` where none is seen.

    Workers have the arguments of who has started them.
    """
    argv = sys.argv if argv is None else argv
    program = Path(argv[0]) if argv else Path()
    name = program.parent.name if program.stem == "__main__" else program.stem
    if name not in SERVERS:
        return None
    return next((a for a in argv[1:] if _IMPORT_STRING.fullmatch(a)), None)


def runtime_directory(chosen: Path | None) -> Path:
    """Where groups live: chosen, or `XDG_RUNTIME_DIR`, or below the temporary one."""
    if chosen is not None:
        return chosen
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and Path(xdg).is_dir():
        return Path(xdg) / "drainmw"
    return Path(tempfile.gettempdir()) / f"drainmw-{os.geteuid()}"


def _start_time(pid: int) -> str | None:
    """When a process started, in the words of its system; `None` if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    asked = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True
    )
    return re.sub(r"\W+", "-", asked.stdout.strip()) or None
