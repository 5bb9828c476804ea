"""Canonical JSON: one value, one text, whoever writes it.

It is RFC 8785, by the package of that name, and two things that the RFC leaves
out and the package refuses: an integer that a double cannot hold is the double
nearest to it, and a lone surrogate is its lower-case `\\u` escape. So a value
that the package refuses is written here, with the package for every number and
every text in it. Most are never refused, and cost what the package costs: some
80 ms a MiB, of which no part belongs into an event loop.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from math import isfinite
from typing import IO, Any, NoReturn, cast

import rfc8785

from drainmw.errors import StateExportTooLarge, StateValueInvalid

EXACT = 2**53 - 1
"""Up to here every integer is a double of its own."""

_SURE = 15  # digits of an integer that is within EXACT whatever they are
_LONE = re.compile("([\ud800-\udfff])")


def canonical(
    value: object,
    *,
    maximum: int | None = None,
    large: Callable[[int], object] = lambda integer: None,
) -> bytes:
    """The canonical JSON of a value, in UTF-8.

    `large` is told each integer beyond 53 bits: it is read as a `float`.

    Raises:
        StateValueInvalid: It is not JSON, or nested too deeply.
        StateExportTooLarge: It is more than `maximum` bytes; no more were written.
    """
    with _sink(maximum) as sink:
        try:
            _write(value, sink, large)
        except RecursionError:
            _check_cycles(value)
            raise StateValueInvalid("it is nested too deeply") from None
        except ValueError:
            if maximum is None:
                raise
            _check_cycles(value)  # without an end it is too large as well
            raise StateExportTooLarge(maximum) from None
        end = sink.tell()
        sink.seek(0)
        return sink.read(end)


def digest(*parts: bytes) -> str:
    """The digest of the contract, of bytes in parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return f"sha256:{total.hexdigest()}"


def loads(body: bytes | bytearray) -> Any:
    """Read JSON as the contract does: in doubles, the last of equal names counts.

    An integer within 53 bits is an `int`; a byte order mark is skipped.

    Raises:
        StateValueInvalid: For whatever does not parse, however it does not.
    """
    try:
        return json.loads(
            body.decode("utf-8-sig"),
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


def _sink(maximum: int | None) -> IO[bytes]:
    """Where bytes are written to. A map takes so many and refuses more, and does
    that in C: there is a write for every comma."""
    if maximum is None:
        return BytesIO()
    if maximum < 1:
        raise StateExportTooLarge(maximum)
    return cast(IO[bytes], mmap.mmap(-1, maximum))


def _write(value: object, sink: IO[bytes], large: Callable[[int], object]) -> None:
    try:
        rfc8785.dump(cast(Any, value), sink)
    except ValueError:
        sink.seek(0)
        _write_beyond(value, sink, large)


def _write_beyond(
    value: object, sink: IO[bytes], large: Callable[[int], object]
) -> None:
    """Write what the package refuses, or refuse it by name."""
    if isinstance(value, str):
        _write_text(value, sink)
    elif isinstance(value, dict):
        members = {_name(key): member for key, member in value.items()}
        separator = b"{"
        for name in sorted(members, key=_utf16):
            sink.write(separator)
            _write_text(name, sink)
            sink.write(b":")
            _write_beyond(members[name], sink, large)
            separator = b","
        sink.write(b"}" if members else b"{}")
    elif isinstance(value, list | tuple):
        separator = b"["
        for item in value:
            sink.write(separator)
            _write_beyond(item, sink, large)
            separator = b","
        sink.write(b"]" if value else b"[]")
    else:
        rfc8785.dump(_scalar(value, large), sink)


def _scalar(value: object, large: Callable[[int], object]) -> int | float | None:
    if isinstance(value, int) and abs(value) > EXACT:
        return _nearest(value, large)
    if isinstance(value, float) and not isfinite(value):
        raise StateValueInvalid(f"{value} is no number of JSON")
    if value is None or isinstance(value, int | float):
        return value
    raise StateValueInvalid(f"JSON has no {type(value).__name__}")


def _nearest(integer: int, large: Callable[[int], object]) -> float:
    large(integer)
    try:
        return float(integer)
    except OverflowError:
        raise StateValueInvalid("an integer is beyond the range of a double") from None


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise StateValueInvalid(f"a name must be a text, not {type(key).__name__}")
    return _joined(key)


def _write_text(text: str, sink: IO[bytes]) -> None:
    if not _LONE.search(text):
        rfc8785.dump(text, sink)
        return
    sink.write(b'"')
    for part in _LONE.split(_joined(text)):
        sink.write(_surrogate(part) or rfc8785.dumps(part)[1:-1])
    sink.write(b'"')


def _surrogate(part: str) -> bytes | None:
    return f"\\u{ord(part):04x}".encode() if _LONE.fullmatch(part) else None


def _joined(text: str) -> str:
    """A text in which no two surrogates make a pair: they are one character."""
    if not _LONE.search(text):
        return text
    return _utf16(text).decode("utf-16-be", "surrogatepass")


def _utf16(text: str) -> bytes:
    """The code units by which names are sorted."""
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
