"""The bearer tokens that open the control endpoints.

A token file may hold two, so that one can be rotated without a moment in which
neither works; it is read again when it changes. Tokens are compared in constant
time and stand in no message.
"""

from __future__ import annotations

import hmac
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from drainmw.errors import SettingsError

if TYPE_CHECKING:
    from drainmw.settings import Settings

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
TOKEN_FORM = "43 characters of base64url, as `drainmw token` prints"
_FILE_MAXIMUM = 4096  # bytes; two tokens and two line ends are 90


def generate() -> str:
    """A new token of 32 random bytes."""
    return secrets.token_urlsafe(32)


class Tokens:
    """What is accepted as a token here; empty where control is closed."""

    def __init__(self, settings: Settings) -> None:
        """Read what the settings name.

        Raises:
            SettingsError: The file cannot be read, or holds something else.
        """
        self._file = settings.token_file
        self._seen: tuple[int, ...] = ()
        self._accepted: tuple[bytes, ...] = ()
        self.complaint: str | None = None
        """Why a changed file was not taken up; what it held before still opens."""
        if settings.token is not None:
            self._accepted = (settings.token.get_secret_value().encode(),)
        if self._file is not None:
            self._seen = _identity(self._file)
            self._accepted = tuple(token.encode() for token in read(self._file))

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def accept(self, authorization: bytes | None) -> bool:
        """Whether that header opens control. Every accepted token is compared."""
        self._reread()
        scheme, _, credentials = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        given = credentials.strip()
        matches = [hmac.compare_digest(given, token) for token in self._accepted]
        return any(matches)

    def _reread(self) -> None:
        """Take up a changed file; keep what was accepted if it is unusable."""
        if self._file is None:
            return
        try:
            seen = _identity(self._file)
            if seen != self._seen:
                self._accepted = tuple(token.encode() for token in read(self._file))
                self._seen = seen
            self.complaint = None
        except SettingsError as exc:
            self.complaint = f"{exc}; the tokens read before stay in force"


def read(path: Path, spelled: str = "DRAINMW_TOKEN_FILE") -> list[str]:
    """The one or two tokens of a file.

    Raises:
        SettingsError: Names the variable and what would be right, never the
            contents.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_MAXIMUM).decode("ascii")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not ASCII"
        raise SettingsError(f"{spelled} cannot be read: {path}: {why}") from None
    lines = text.removesuffix("\n").split("\n")
    tokens = [line.removesuffix("\r") for line in lines]
    if not 1 <= len(tokens) <= 2 or not all(TOKEN.fullmatch(t) for t in tokens):
        raise SettingsError(
            f"{spelled} must name a file with one token or two, "
            f"each on a line of its own: {TOKEN_FORM}"
        )
    return tokens


def _identity(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as exc:
        raise SettingsError(
            f"DRAINMW_TOKEN_FILE cannot be read: {path}: {exc.strerror}"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise SettingsError(f"DRAINMW_TOKEN_FILE must be a regular file: {path}")
    return found.st_ino, found.st_mtime_ns, found.st_size
