"""Which process a release is, so that another one can tell that it is dead.

A pid says nothing in another namespace, or after a restart of the machine. So
it comes with both, and where they differ nothing is proven: the release may live.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drainmw.errors import GroupError
from drainmw.locks import any_held
from drainmw.supervisor import Supervisor, itself

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("pid", "mnt")


def identity(
    boss: Supervisor | None = None, group: Path | None = None
) -> dict[str, Any]:
    """Of this process, or of a group by its supervisor and its directory.

    Empty where it cannot be told.
    """
    try:
        boss = boss or itself()
    except GroupError:
        return {}
    return {
        "host": _host(),
        "pid": boss.pid,
        "started": boss.started,
        "group": None if group is None else str(group.resolve()),
    }


def is_dead(process: Mapping[str, Any] | None) -> bool:
    """Whether it is proven that nobody of that release lives any more."""
    if not process or process.get("host") != _host():
        return False
    pid, started = process.get("pid"), process.get("started")
    if type(pid) is not int or pid < 1 or not isinstance(started, str):
        return False
    if not _is_gone(Supervisor(pid, started)):
        return False
    group = process.get("group")
    if group is None:
        return True
    return isinstance(group, str) and group[:1] == "/" and _is_left(Path(group))


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether somebody of that release does; `None` for one that is seen elsewhere."""
    return not is_dead(process) if process.get("host") == _host() else None


def _is_gone(process: Supervisor) -> bool:
    """Whether it is known to be; the processes of others may be hidden (proc(5))."""
    if process.lives:
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    except OverflowError:
        return False
    return os.access(f"/proc/{process.pid}/stat", os.R_OK)


def _is_left(group: Path) -> bool:
    """Whether no worker lives there; where one cannot look, some may."""
    try:
        names = os.listdir(group)
    except FileNotFoundError:
        return True  # swept, by somebody who has looked
    except (OSError, ValueError):
        return False
    return not any_held(group / name for name in fnmatch.filter(names, "w*.lock"))


def _host() -> str:
    """This run of this machine, as seen from here."""
    try:
        seen = [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
        return " ".join((_BOOT.read_text().strip(), *seen))
    except OSError:
        return os.uname().nodename
