"""What comes from outside, made fit for a log, a report or a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

PATH_MAXIMUM = 128  # characters, as in the report of the contract
FAILURE_MAXIMUM = 1000  # characters; a message may hold all that a job was given
_LOOKED_AT = 100_000  # characters of a message
_SAFE = "/:@!$&'()*+,;=~"
_WORD = re.compile(r"\S+")
_SETTING = re.compile(
    r"""
    ( (?: password | passwd | passphrase | pwd | secret ) ["']? \s* [=:] \s* )
    (?: " (?: [^"\\] | \\. )* ["]? | ' (?: [^'\\] | \\. )* [']? | \S+ )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def shown_path(path: str) -> str:
    """A path percent-encoded and cut; no query belongs in it."""
    return quote(path, safe=_SAFE, errors="replace")[:PATH_MAXIMUM]


def route_path(scope: Mapping[str, Any]) -> str:
    """The path below the root path, whether the server left that in or not."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(f"{root}/"):
        return path[len(root) :]
    return path


def printable(text: str) -> str:
    """Text in which nothing steers a terminal or breaks a line."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def kind_of(value: object) -> str:
    """What a value is, as an error names it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else type(value).__name__


def without_credentials(text: str) -> str:
    """Text in which the user part of every URL, and every password that is named
    as one, is masked."""
    return _SETTING.sub(r"\1***", _WORD.sub(_masked, text))


def _masked(word: re.Match[str]) -> str:
    """Up to the last @: a password may hold what would end the user part."""
    scheme, _, rest = word[0].partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}://***@{host}" if at else word[0]


def failure_text(exc: BaseException) -> str:
    """An exception as a failure: its message, or its class where it has none.

    Long ones are cut, after what is secret has been masked as a whole.
    """
    try:
        said = str(exc).strip()[:_LOOKED_AT]
        shown = without_credentials(said)[: FAILURE_MAXIMUM + 1]
        message = printable(shown)
    except Exception:  # it cannot even say what it is
        message = ""
    if len(message) > FAILURE_MAXIMUM:
        message = f"{message[:FAILURE_MAXIMUM]} ..."
    return message or type(exc).__name__
