"""An address on this host, as the begin of a handoff names it.

What is fetched there is believed, and a token is sent there. So a URL is taken
only where no two parsers can read another host out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from drainmw.errors import StateSourceInvalid

PORT_MAXIMUM = 65535
_ADDRESSES = {
    "127.0.0.1": ("127.0.0.1",),
    "[::1]": ("::1",),
    "localhost": ("127.0.0.1", "::1"),
}
_PATH = r"[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2}"
# Parsers disagree about an empty port, one with zeros in front, a query or two
# slashes right after the authority, and every character that RFC 3986 leaves out.
_SOURCE_URL = re.compile(
    r"http://(?P<authority>(?P<host>127\.0\.0\.1|\[::1\]|localhost)"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?)"
    rf"(?:(?P<path>/(?!/)(?:{_PATH})*)(?P<query>\?(?:{_PATH}|\?)*)?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where on this host something is asked for, with nothing left to resolve."""

    authority: str
    """The host and the port as they were written, for a `Host` header."""
    addresses: tuple[str, ...]
    """To connect to, the first that answers."""
    port: int
    target: str
    """The path and the query."""

    @classmethod
    def read(cls, url: str) -> Location:
        """Read a URL in which no two parsers see another host, port or path.

        Raises:
            StateSourceInvalid: It is not this host, or not clearly so.
        """
        found = _SOURCE_URL.fullmatch(url)
        if found is None:
            raise StateSourceInvalid
        host, path = found["host"].lower(), found["path"] or "/"
        port = int(found["port"] or 80)
        if port > PORT_MAXIMUM or any(_is_dots(part) for part in path.split("/")):
            raise StateSourceInvalid
        target = path + (found["query"] or "")
        return cls(found["authority"], _ADDRESSES[host], port, target)


def _is_dots(segment: str) -> bool:
    """A segment that some parsers take out of a path, and others leave in."""
    return unquote(segment) in (".", "..")
