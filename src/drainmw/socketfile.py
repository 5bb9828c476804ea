"""A listening Unix socket that only its owner can reach.

What opens it is the permission of the file, so it is made under a strict umask
in a directory of mode 0700, and looked at once it stands.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from drainmw.errors import SettingsError

_BACKLOG = 128


def bind(path: Path, what: str = "control socket") -> socket.socket:
    """Bind and listen; a stale file of a process that has gone is replaced.

    Raises:
        SettingsError: The place is not private, or somebody listens there.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise SettingsError("a control socket needs Unix sockets; use a token here")
    check_directory(path.parent, what)
    listener = _bound(path, what, umask=0o177)
    try:
        check(path, what)
    except SettingsError:
        listener.close()
        raise
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def bind_public(path: Path, backlog: int) -> socket.socket:
    """Bind and listen for everybody who can reach the file, as on a port.

    Raises:
        SettingsError: It cannot be bound, or somebody listens there.
    """
    listener = _bound(path, "--uds", umask=0o111)
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


def check(path: Path, what: str = "control socket") -> None:
    """Look at what stands there: our socket, for its owner alone.

    Raises:
        SettingsError: It is something else.
    """
    found = path.lstat()
    private = stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    if not private or found.st_uid != os.geteuid():
        raise SettingsError(f"{what} {path} is not private: it must be 0600")
    check_directory(path.parent, what)


def identity(path: Path) -> tuple[int, int]:
    """What tells a file from a later one of the same name."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove(path: Path, listener: socket.socket, was: tuple[int, int]) -> None:
    """Close, and unlink the file if it is still the one that we bound."""
    with contextlib.suppress(OSError):  # removed by somebody else
        if identity(path) == was:
            path.unlink()
    listener.close()


def peer_is_owner(peer: socket.socket) -> bool:
    """Whether the other end runs as our user or as root, where it can be known."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    credentials = peer.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def check_directory(directory: Path, what: str = "control socket") -> None:
    """Make a directory that only its owner can enter, or find it to be one.

    Raises:
        SettingsError: It is a link, somebody else's, or open to others.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except FileNotFoundError:
        raise SettingsError(
            f"directory {directory} of the {what} cannot be made: "
            f"{directory.parent} does not exist"
        ) from None
    except OSError as exc:
        raise SettingsError(
            f"directory {directory} of the {what}: {exc.strerror}"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"{directory} must be a directory, not a link")
    if found.st_uid != os.geteuid():
        raise SettingsError(
            f"directory {directory} of the {what} must belong to this user"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsError(
            f"directory {directory} of the {what} must be of mode 0700; name a "
            f"directory of its own, such as {directory / 'drainmw'}, which is made so "
            "if it does not exist"
        )


def _bound(path: Path, what: str, *, umask: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(umask)
    try:
        _clear(path, what)
        listener.bind(str(path))
    except OSError as exc:
        listener.close()
        raise SettingsError(f"{what} {path}: {exc.strerror or exc}") from None
    except SettingsError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _clear(path: Path, what: str) -> None:
    """Remove a socket file that nobody listens on."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SettingsError(f"{what} {path}: a file of that name is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError as exc:
            raise SettingsError(f"{what} {path}: {exc.strerror or exc}") from None
    raise SettingsError(f"{what} {path}: another process listens there")
