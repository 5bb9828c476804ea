"""The envelope in which state goes over: built here, verified there.

The old release writes it in canonical JSON, with a digest over everything
else; the new one believes nothing in it that it did not ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_core import from_json

from drainmw.bodies import EnvelopeBody, StateBeginRequest
from drainmw.contract import CURSOR_FORM, REVISION_FORM
from drainmw.core.canonical import Digest, buffer, canonical, loads, write
from drainmw.core.handoff import Handoff
from drainmw.errors import (
    StateDigestMismatch,
    StateEnvelopeInvalid,
    StateExportInvalid,
    StateExportTooLarge,
    StateRevisionInvalid,
    StateSourceFailed,
    StateSourceRedirected,
    StateSourceTooLarge,
    StateValueInvalid,
)

Asked: TypeAlias = StateBeginRequest | Handoff


@dataclass(frozen=True, slots=True)
class Terms:
    """Which state is meant, between which releases: both sides agree on it.

    Raises:
        StateRevisionInvalid: A revision is not 40 lower-case hex digits.
    """

    protocol: str
    schema_version: int
    source_revision: str
    target_revision: str

    def __post_init__(self) -> None:
        _check_revision("sourceRevision", self.source_revision)
        _check_revision("targetRevision", self.target_revision)

    @classmethod
    def of(cls, stated: Asked | EnvelopeBody) -> Terms:
        """Those of a request, of a handoff, or of an envelope."""
        return cls(
            stated.protocol,
            stated.schema_version,
            stated.source_revision,
            stated.target_revision,
        )

    def members(self) -> dict[str, object]:
        """As they stand in an envelope."""
        return {
            "protocol": self.protocol,
            "schemaVersion": self.schema_version,
            "sourceRevision": self.source_revision,
            "targetRevision": self.target_revision,
        }


def _check_revision(name: str, revision: object) -> None:
    if not isinstance(revision, str) or not re.fullmatch(REVISION_FORM, revision):
        raise StateRevisionInvalid(name)


# The old release


@dataclass(frozen=True, slots=True)
class Export:
    """An envelope as it goes out."""

    body: bytes
    """Canonical, with its digest."""
    cursor: str
    digest: str
    is_over: bool
    """With its digest it is over the maximum: a new release of the same maximum
    will not take it."""
    large: int
    """How many integers are beyond 53 bits: each arrives as the nearest double."""


def build(terms: Terms, cursor: object, value: object, maximum: int) -> Export:
    """Put a value into an envelope; takes up to 60 ms a MiB, and a MiB.

    Raises:
        StateExportInvalid: The cursor is not in its form.
        StateValueInvalid: The value is not JSON.
        StateExportTooLarge: Without its digest it is more than `maximum` bytes.
    """
    large: list[int] = []
    wrapping = _Wrapping(terms, check_cursor(cursor), maximum)
    try:
        write(value, wrapping.put, maximum=wrapping.left, large=large.append)
    except StateExportTooLarge:
        raise StateExportTooLarge(maximum) from None
    return wrapping.export(len(large))


def wrap(
    terms: Terms, cursor: str, text: bytes | memoryview, maximum: int, *, large: int
) -> Export:
    """Put the canonical JSON of a value into an envelope.

    Raises:
        StateExportTooLarge: Without its digest it is more than `maximum` bytes.
    """
    wrapping = _Wrapping(terms, cursor, maximum)
    if len(text) > wrapping.left:
        raise StateExportTooLarge(maximum)
    wrapping.put(text)
    return wrapping.export(large)


class _Wrapping:
    """An envelope while its value is written into it."""

    def __init__(self, terms: Terms, cursor: str, maximum: int) -> None:
        self._members = terms.members() | {"cursor": cursor}
        self._maximum = maximum
        head = _head(self._members)
        self.left = maximum - len(head) - len(_TAIL)
        """How many bytes the value may have."""
        self._digest = Digest(head)
        self._body = buffer(maximum)
        self._body.write(self._whole_head())

    def put(self, part: bytes | memoryview) -> None:
        """Take the next part of the value."""
        self._digest.add(part)
        self._body.write(part)

    def export(self, large: int) -> Export:
        """The envelope, with its digest in its place."""
        self.put(_TAIL)
        self._body.truncate()
        self._body.seek(0)
        self._body.write(self._whole_head())
        body, total = self._body.getvalue(), str(self._digest)
        is_over = len(body) > self._maximum
        return Export(body, str(self._members["cursor"]), total, is_over, large)

    def _whole_head(self) -> bytes:
        """With the digest of what there is by now; all of them are equally long."""
        return _head(self._members | {"digest": str(self._digest)})


def check_cursor(cursor: object) -> str:
    """A cursor, in its form.

    Raises:
        StateExportInvalid: It is not.
    """
    if not isinstance(cursor, str) or not re.fullmatch(CURSOR_FORM, cursor):
        raise StateExportInvalid("the cursor of an export is not in its form")
    return cursor


_TAIL = b"}"


def _head(members: dict[str, object]) -> bytes:
    """An envelope up to its value: "value" sorts behind every other name."""
    return canonical(members).removesuffix(b"}") + b',"value":'


# The new release


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an envelope held beside its value, once it was verified."""

    terms: Terms
    cursor: str
    digest: str


def check_answer(status: int, length: int | None, maximum: int) -> None:
    """Look at an answer before its body: its status and the length it announces.

    Raises:
        StateFetchError: It is no success, or more than `maximum` bytes.
    """
    if 300 <= status < 400:
        raise StateSourceRedirected
    if not 200 <= status < 300:
        raise StateSourceFailed(status)
    if length is not None and length > maximum:
        raise StateSourceTooLarge(maximum)


class Arriving:
    """The body of an answer while it arrives, and never more than it may be."""

    def __init__(self, maximum: int) -> None:
        self.body = bytearray()
        self._maximum = maximum

    def add(self, part: bytes) -> None:
        """Take the next part.

        Raises:
            StateSourceTooLarge: It would be more; nothing was added.
        """
        if len(self.body) + len(part) > self._maximum:
            raise StateSourceTooLarge(self._maximum)
        self.body += part


def verify(body: bytes | bytearray, terms: Terms) -> tuple[Any, Envelope]:
    """Read a value and its envelope, and check them; takes up to 70 ms a MiB.

    Raises:
        StateEnvelopeInvalid: It is not in its form, or not the one asked for.
        StateDigestMismatch: The digest is not that of its contents.
    """
    try:
        given, large = EnvelopeBody.parse(_read(body)), list[int]()
        _check_terms(Terms.of(given), terms)
        total = Digest(_head(terms.members() | {"cursor": given.cursor}))
        write(given.value, total.add, large=large.append)
        total.add(_TAIL)
    except StateValueInvalid as exc:
        raise StateEnvelopeInvalid(str(exc)) from None
    if str(total) != given.digest:
        raise StateDigestMismatch
    value = EnvelopeBody.parse(loads(body)).value if large else given.value
    return value, Envelope(terms, given.cursor, given.digest)


def _read(body: bytes | bytearray) -> Any:
    """As `loads` does, save that integers stay what they are, and that a number
    beyond the range of a double is for the writer to refuse.

    It is faster, and makes no text of the whole, which takes four bytes for each
    character as soon as there is an emoji in it. What is rare it does not read.
    """
    try:
        return from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return loads(body)


def _check_terms(given: Terms, asked: Terms) -> None:
    wanted = asked.members()
    wrong = [name for name, told in given.members().items() if told != wanted[name]]
    if wrong:
        raise StateEnvelopeInvalid(f"{', '.join(wrong)} is not what was asked for")
