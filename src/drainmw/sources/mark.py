"""The mark in a directory that says: what works here is to be held.

It is what a worker process looks at that comes up while its release drains, and
what is left of a hold whose process has died. Its name holds as long as the hold
is wanted; whoever wants it has a share in the file, which the kernel takes back
with the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path

from drainmw.errors import SourceUnavailable

if sys.platform != "win32":
    import fcntl

NAME = "held"
_TOKEN_BYTES = 16
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class Mark:
    """One hold that is wanted. `take` makes it, or joins those who have made it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file
        self.token = _token_of(file)
        """What tells this hold from an earlier one."""

    @property
    def stands(self) -> bool:
        """Whether the hold is still wanted."""
        try:
            return _is_same(self._path, self._file)
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """It is not wanted any more, by anybody. Idempotent."""
        if self.stands:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the share up."""
        os.close(self._file)


def take(directory: Path) -> Mark:
    """Want a hold; it is one with that of others who want it now.

    Raises:
        SourceUnavailable: Somebody clears up after a process that has died.
    """
    path = directory / NAME
    with contextlib.suppress(FileExistsError):
        _write(path)
    mark = _opened(path, fcntl.LOCK_SH)
    if mark is None:
        raise SourceUnavailable(f"an earlier hold in {directory} is being released")
    return mark


def orphan(directory: Path) -> Mark | None:
    """The mark of a hold that no living process wants, to be released and removed."""
    return _opened(directory / NAME, fcntl.LOCK_EX)


def standing(directory: Path) -> str | None:
    """The token of the hold that is wanted, if any is."""
    try:
        file = os.open(directory / NAME, _FLAGS | os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _token_of(file)
    finally:
        os.close(file)


def _opened(path: Path, share: int) -> Mark | None:
    """The mark, if it stands and that share is to be had."""
    try:
        file = os.open(path, _FLAGS | os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, share | fcntl.LOCK_NB)
        mark = Mark(path, file)
        if mark.stands:
            return mark
    except BlockingIOError:
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _write(path: Path) -> None:
    """Make it whole, or not at all: nobody may read half a token."""
    token = secrets.token_hex(_TOKEN_BYTES)
    draft = path.with_name(f".{token}")
    file = os.open(draft, _FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, token.encode())
        os.link(draft, path)
    finally:
        os.close(file)
        draft.unlink(missing_ok=True)


def _token_of(file: int) -> str:
    return os.pread(file, 2 * _TOKEN_BYTES, 0).decode("ascii", "replace")


def _is_same(path: Path, file: int) -> bool:
    """Whether the file that is open is the one of that name."""
    there, here = path.lstat(), os.fstat(file)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
