"""The envelope in which state goes over: built here, verified there.

The old release writes it in canonical JSON, with a digest over everything
else; the new one believes nothing in it that it did not ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from drainmw.bodies import EnvelopeBody, StateBeginRequest
from drainmw.contract import CURSOR_FORM, REVISION_FORM
from drainmw.core.canonical import canonical, digest, loads
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
    """Put a value into an envelope; takes some 100 ms a MiB.

    Raises:
        StateExportInvalid: The cursor is not in its form.
        StateValueInvalid: The value is not JSON.
        StateExportTooLarge: Without its digest it is more than `maximum` bytes.
    """
    checked = check_cursor(cursor)
    head = _head(terms.members() | {"cursor": checked})
    large: list[int] = []
    try:
        text = canonical(
            value, maximum=maximum - len(head) - len(_TAIL), large=large.append
        )
    except StateExportTooLarge:
        raise StateExportTooLarge(maximum) from None
    return wrap(terms, checked, text, maximum, large=len(large))


def wrap(terms: Terms, cursor: str, text: bytes, maximum: int, *, large: int) -> Export:
    """Put the canonical JSON of a value into an envelope.

    Raises:
        StateExportTooLarge: Without its digest it is more than `maximum` bytes.
    """
    members = terms.members() | {"cursor": cursor}
    head = _head(members)
    if len(head) + len(text) + len(_TAIL) > maximum:
        raise StateExportTooLarge(maximum)
    total = digest(head, text, _TAIL)
    body = b"".join((_head(members | {"digest": total}), text, _TAIL))
    return Export(body, cursor, total, len(body) > maximum, large)


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
    """What an envelope held, once it was verified."""

    terms: Terms
    cursor: str
    value: Any
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


def verify(body: bytes | bytearray, terms: Terms) -> Envelope:
    """Read an envelope and check it; takes some 100 ms a MiB.

    Raises:
        StateEnvelopeInvalid: It is not in its form, or not the one asked for.
        StateDigestMismatch: The digest is not that of its contents.
    """
    try:
        given = EnvelopeBody.parse(loads(body))
        _check_terms(Terms.of(given), terms)
        text = canonical(given.value)
    except StateValueInvalid as exc:
        raise StateEnvelopeInvalid(str(exc)) from None
    head = _head(terms.members() | {"cursor": given.cursor})
    if digest(head, text, _TAIL) != given.digest:
        raise StateDigestMismatch
    return Envelope(terms, given.cursor, given.value, given.digest)


def _check_terms(given: Terms, asked: Terms) -> None:
    wanted = asked.members()
    wrong = [name for name, told in given.members().items() if told != wanted[name]]
    if wrong:
        raise StateEnvelopeInvalid(f"{', '.join(wrong)} is not what was asked for")
