"""Canonical JSON: one value, one text, whoever writes it.

It is RFC 8785, and two things that the RFC leaves out: an integer that a double
cannot hold is the double nearest to it, and a lone surrogate is its lower-case
`\\u` escape. The standard library escapes texts just as the RFC wants it; the
package `rfc8785` writes the numbers that have an exponent.

A thread that writes lets the event loop beside it go on between two bytecodes,
never within a call into C. So no call here is given all of a value: it is written
in parts, and even names are sorted in runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import chain
from math import isfinite
from typing import Any, NoReturn

import rfc8785

from drainmw.errors import StateExportTooLarge, StateValueInvalid

EXACT = 2**53 - 1
"""Up to here every integer is a double of its own."""

_SURE = 15  # digits of an integer that is within EXACT whatever they are
_LONE = re.compile("[\ud800-\udfff]")

_BITE = 2047
"""Bytes that are hashed without letting go of the interpreter. To let go of it for
so short a time is worse than not at all: a thread that waits for it begins its wait
of 5 ms anew, and where that happens more often than every 5 ms, it waits forever."""

Sink = Callable[[bytes], object]
Large = Callable[[int], object]


def canonical(
    value: object,
    *,
    maximum: int | None = None,
    large: Large = lambda integer: None,
) -> bytes:
    """The canonical JSON of a value, in UTF-8; `write` says more."""
    text = buffer(maximum or 0)
    write(value, text.write, maximum=maximum, large=large)
    text.truncate()
    return text.getvalue()


def buffer(size: int) -> BytesIO:
    """One for so many bytes, which does not move while it grows up to there: that
    may take its memory twice. `truncate` it at its end."""
    made = BytesIO()
    made.seek(max(0, size))
    made.write(b"\0")
    made.seek(0)
    return made


def write(
    value: object,
    sink: Sink,
    *,
    maximum: int | None = None,
    large: Large = lambda integer: None,
) -> None:
    """Give the canonical JSON of a value, in UTF-8, to a sink, part by part.

    `large` is told each integer beyond 53 bits: it is read as a `float`.

    Raises:
        StateValueInvalid: It is not JSON, or nested too deeply.
        StateExportTooLarge: It is more than `maximum` bytes; no more were written.
    """
    try:
        _Writer(sink, maximum, large).write(value)
    except RecursionError:
        _check_cycles(value)
        raise StateValueInvalid("it is nested too deeply") from None
    except StateExportTooLarge:
        _check_cycles(value)  # without an end it is too large as well
        raise


class Digest:
    """The digest of the contract, of bytes that come in parts; `str` makes it."""

    def __init__(self, *parts: bytes) -> None:
        self._hash = hashlib.sha256()
        for part in parts:
            self.add(part)

    def add(self, part: bytes | memoryview) -> None:
        """Take the next part."""
        rest = memoryview(part)
        while rest:
            self._hash.update(rest[:_BITE])
            rest = rest[_BITE:]

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def loads(body: bytes | bytearray | memoryview) -> Any:
    """Read JSON as the contract does: in doubles, the last of equal names counts.

    An integer within 53 bits is an `int`; a byte order mark is skipped.

    Raises:
        StateValueInvalid: For whatever does not parse, however it does not.
    """
    try:
        return json.loads(
            str(body, "utf-8-sig"),
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError:
        raise StateValueInvalid("it is not UTF-8") from None
    except RecursionError:
        raise StateValueInvalid("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise StateValueInvalid("it is no JSON document") from None


def _integer(digits: str) -> int | float:
    if len(digits) <= _SURE:
        return int(digits)
    number = _finite(digits)
    return int(number) if abs(number) <= EXACT else number


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise StateValueInvalid("a number is beyond the range of a double")
    return number


def _no_constant(name: str) -> NoReturn:
    raise StateValueInvalid(f"{name} is no number of JSON")


# Writing

_PARTS = 300  # that are kept before they are written
_LONG = 250  # characters of a part that is not kept
_RUN = 4096  # names that are sorted by one call

_LITERALS = {None: "null", True: "true", False: "false"}
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class _Writer:
    """Writes one value."""

    def __init__(self, sink: Sink, maximum: int | None, large: Large) -> None:
        self._sink = sink
        self._maximum = maximum
        self._large = large
        self._written = 0
        self._parts: list[str] = []
        self._scalars: dict[type, Callable[[Any], str]] = {
            str: _quoted,
            float: _double,
            int: self._integer,
            bool: _LITERALS.__getitem__,
            type(None): _LITERALS.__getitem__,
        }

    def write(self, value: object) -> None:
        """All of it."""
        self._put("", value)
        self._flush()

    def _put(self, before: str, value: object) -> None:
        """Write a value, and what stands before it; one frame for each level."""
        scalar = self._scalars.get(type(value))
        if scalar is not None:
            self._keep(before + scalar(value))
        elif isinstance(value, dict):
            members, names = _members(value)
            before += "{"
            for name in names:
                self._put(f"{before}{_quoted(name)}:", members[name])
                before = ","
            self._keep("}" if names else before + "}")
        elif isinstance(value, list | tuple):
            before += "["
            for item in value:
                self._put(before, item)
                before = ","
            self._keep("]" if value else before + "]")
        else:
            self._put(before, _plain(value))

    def _keep(self, part: str) -> None:
        self._parts.append(part)
        if len(part) > _LONG or len(self._parts) > _PARTS:
            self._flush()

    def _integer(self, value: int) -> str:
        if -EXACT <= value <= EXACT:
            return repr(value)
        self._large(value)
        try:
            return _double(float(value))
        except OverflowError:
            why = "an integer is beyond the range of a double"
            raise StateValueInvalid(why) from None

    def _flush(self) -> None:
        """Write what is kept. No two halves of a pair meet where parts do, since
        each text is whole, between its quotes."""
        part = _utf8("".join(self._parts))
        self._parts.clear()
        self._written += len(part)
        if self._maximum is not None and self._written > self._maximum:
            raise StateExportTooLarge(self._maximum)
        self._sink(part)


def _plain(value: object) -> str | float | int:
    """The scalar that an instance of a class of its own is, such as an enum."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise StateValueInvalid(f"JSON has no {type(value).__name__}")


def _double(number: float) -> str:
    """As ECMAScript writes it: as Python does, save exponents and a zero behind."""
    text = float.__repr__(number)
    if text.endswith(".0"):
        return text[:-2] if number else "0"
    if "e" in text:
        return rfc8785.dumps(float(number)).decode()
    if "n" in text:
        raise StateValueInvalid(f"{text} is no number of JSON")
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE.sub(_escaped, _joined(text)).encode()


def _escaped(lone: re.Match[str]) -> str:
    return f"\\u{ord(lone[0]):04x}"


# Names


def _members(value: dict[Any, object]) -> tuple[dict[str, object], list[str]]:
    """The members, and their names in the order of their UTF-16 code units."""
    try:
        is_ascii = all(map(str.isascii, value))
    except TypeError:
        kind = next(type(name) for name in value if not isinstance(name, str))
        raise StateValueInvalid(f"a name must be a text, not {kind.__name__}") from None
    if is_ascii:
        return value, _in_order(value)
    members = {_joined(name): member for name, member in value.items()}
    return members, _in_order(members, _utf16)


def _in_order(
    names: Iterable[str], key: Callable[[str], bytes] | None = None
) -> list[str]:
    """Sorted. One call for many names takes long, and a last one is short where
    they are sorted in long runs already."""
    ahead = list(names)
    if len(ahead) <= _RUN:
        return sorted(ahead, key=key)
    starts = range(0, len(ahead), _RUN)
    runs = (sorted(ahead[start : start + _RUN], key=key) for start in starts)
    return sorted(chain.from_iterable(runs), key=key)


def _joined(text: str) -> str:
    """A text in which no two surrogates make a pair: they are one character."""
    if not _LONE.search(text):
        return text
    return _utf16(text).decode("utf-16-be", "surrogatepass")


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


# Why not


def _check_cycles(value: object) -> None:
    """Refuse a list or a dict that holds itself; looks into each of them once."""
    above: set[int] = set()
    seen: set[int] = set()
    ahead: list[tuple[object, bool]] = [(value, False)]
    while ahead:
        item, is_left = ahead.pop()
        if is_left:
            above.remove(id(item))
        elif id(item) in above:
            raise StateValueInvalid(f"a {type(item).__name__} holds itself")
        elif id(item) not in seen:
            seen.add(id(item))
            above.add(id(item))
            ahead.append((item, True))
            ahead.extend((inner, False) for inner in _inside(item))


def _inside(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list | tuple) else ()
