"""POSIX record locks: a child does not inherit them, the kernel lets go of them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from drainmw.errors import GroupError

if sys.platform != "win32":
    import fcntl


def opened(path: Path) -> int:
    """Open or make a file of the group, never through a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, 0o600)
    except OSError as exc:
        raise GroupError(f"{path}: {exc.strerror}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(file)
        raise GroupError(f"{path} is not a file of ours")
    return file


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Take a lock if nobody has it; a shared one if nobody has it alone."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.lockf(file, mode | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_held(file: int) -> bool:
    """Whether the worker of that lock lives; two who look at once see the same."""
    if not try_lock(file, shared=True):
        return True
    fcntl.lockf(file, fcntl.LOCK_UN)
    return False


def unlock(file: int) -> None:
    """Let go of a lock."""
    fcntl.lockf(file, fcntl.LOCK_UN)


def share(directory: int) -> None:
    """Take a share in a directory, against those who clean by age."""
    fcntl.flock(directory, fcntl.LOCK_SH)


def any_held(paths: Iterable[Path]) -> bool:
    """Whether the worker of one of those locks lives, or may live.

    Not for the locks of this process: to it they look free, and closing one that
    was opened again lets go of it.
    """
    for path in paths:
        try:
            file = opened(path)
        except GroupError:
            return True
        try:
            if is_held(file):
                return True
        finally:
            os.close(file)
    return False
