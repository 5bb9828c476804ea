"""The protocol between a release and the state that it hands over.

An adapter exports one kind of state, named by its protocol and a version, and
imports it in the next release. Its older versions are read there where the
adapter says how each is lifted to the next.

What else it may have, each of them async or not:

`combine(parts)`
    makes one state of those of several workers: a list of cursors and values, as
    each exported them, to a cursor and a value. Called outside the event loop.
`prepare_import(text)`
    makes of the JSON of a verified value what `import_state` is given in its place.
    Asked instead of `validate`, outside the event loop; an exception is a no.
`seal()`, `unseal()`
    are called in every worker of the old release: what goes over is being fixed,
    and nothing may change it from here on; it may, again. An exception of `seal`
    refuses. Idempotent.
`confirm(context)`, `discard(context)`
    are called in every worker of the new release, one of them once: ownership has
    moved here, and what was imported is not provisional any more; or it has not,
    and the import is to be undone.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from pydantic_core import to_json

from drainmw.bodies import StateBeginRequest
from drainmw.contract import (
    FAILURE_MAXIMUM,
    SCHEMA_VERSION_MAXIMUM,
    STATE_BYTES_MAXIMUM,
    STATE_PROTOCOL_FORM,
)
from drainmw.core.canonical import buffer, write
from drainmw.core.envelope import (
    Asked,
    Envelope,
    Export,
    Terms,
    build,
    check_cursor,
    verify,
    wrap,
)
from drainmw.errors import (
    StateAdapterInvalid,
    StateAdapterNotFound,
    StateEnvelopeInvalid,
    StateError,
    StateExportInvalid,
    StateRequestInvalid,
    StateVersionUnknown,
)
from drainmw.text import failure_text

Lift = Callable[[Any], Any]
"""Makes a value of one version into one of the next."""


@dataclass(frozen=True, slots=True)
class ImportContext:
    """What an import is told of the value that it is given."""

    source_revision: str
    target_revision: str
    cursor: str
    """Where the exporting adapter stood."""
    digest: str
    nonce: str
    """Of the handoff; the same if it is done again in a fresh process."""
    schema_version: int
    """In which the value came, before it was lifted."""
    provisional: bool = True
    """The old release may still take its work back."""
    index: int = 0
    """This worker's place among those that import the same value."""
    count: int = 1

    @classmethod
    def of(
        cls,
        envelope: Envelope,
        nonce: str,
        *,
        provisional: bool = True,
        index: int = 0,
        count: int = 1,
    ) -> ImportContext:
        """That of a verified envelope, for one of so many workers."""
        return cls(
            source_revision=envelope.terms.source_revision,
            target_revision=envelope.terms.target_revision,
            cursor=envelope.cursor,
            digest=envelope.digest,
            nonce=nonce,
            schema_version=envelope.terms.schema_version,
            provisional=provisional,
            index=index,
            count=count,
        )


@runtime_checkable
class StateAdapter(Protocol):
    """One kind of state. Values are JSON: `None`, `bool`, `int`, `float`, `str`,
    lists, and dicts with `str` for names.

    An integer beyond 53 bits arrives as the nearest `float`, which may be another
    number; an adapter with a true `exact` does not export it.
    """

    protocol: str
    """Its name on the wire, such as `presence/v1`."""
    schema_version: int
    """From 1 to 65535; grows when the form of the value changes."""
    maximum_bytes: int
    """Of the envelope, from 1 to 1048576."""

    def validate(self, value: Any) -> bool:
        """Whether that is a value of this adapter, in its own version.

        Asked before a value goes out and before one is imported, outside the
        event loop. An exception is a no.
        """
        ...

    async def export_state(self) -> tuple[str, Any]:
        """A cursor, which says where this state stands, and the value.

        Nobody may change the value afterwards: it is written by another thread.
        """
        ...

    async def import_state(self, value: Any, context: ImportContext) -> None:
        """Take a verified value over; called at most once.

        Cancelled at the deadline. Whatever it raises fails the handoff with
        its message, and must leave this release as it was.
        """
        ...


Hook = Callable[..., Any]
HookName = Literal["combine", "prepare_import", "seal", "unseal", "confirm", "discard"]
HOOKS: tuple[HookName, ...] = get_args(HookName)


def hook_of(adapter: StateAdapter, name: HookName) -> Hook | None:
    """A method that an adapter may have; `None` where it has none."""
    hook: Hook | None = getattr(adapter, name, None)
    return hook


async def called(hook: Hook, *args: object) -> Any:
    """Call it, and wait for it where it is async."""
    done = hook(*args)
    return await done if inspect.isawaitable(done) else done


ExportPhase = Literal["serving", "draining", "drained"]
"""From which phase on state may be exported. `serving` is a snapshot: what changes
later is lost."""


def phase_of(adapter: StateAdapter) -> ExportPhase:
    """That of an adapter; one that names none is exported when nothing changes it."""
    phase: ExportPhase = getattr(adapter, "phase", "drained")
    return phase


@runtime_checkable
class Lifts(Protocol):
    """An adapter that reads older versions."""

    older: Mapping[int, Lift]
    """By version, how a value becomes one of the next; without a gap up to
    the adapter's own."""


class Adapters:
    """The state adapters of one release."""

    def __init__(self) -> None:
        self._by_protocol: dict[str, StateAdapter] = {}

    def __iter__(self) -> Iterator[StateAdapter]:
        return iter(self._by_protocol.values())

    def __len__(self) -> int:
        return len(self._by_protocol)

    def add(self, adapter: StateAdapter) -> None:
        """Register an adapter.

        Raises:
            StateAdapterInvalid: Says what is not in its form, and its right form.
        """
        check(adapter)
        if adapter.protocol in self._by_protocol:
            raise StateAdapterInvalid(
                f"there is a state adapter of the protocol {adapter.protocol} already"
            )
        self._by_protocol[adapter.protocol] = adapter

    def find(self, protocol: str | None) -> StateAdapter:
        """The adapter of a protocol, which may be left out where there is one.

        Raises:
            StateAdapterNotFound: Names those that there are.
        """
        known = list(self._by_protocol)
        if protocol is None and len(known) == 1:
            protocol = known[0]
        if protocol is None or protocol not in self._by_protocol:
            raise StateAdapterNotFound(protocol, known)
        return self._by_protocol[protocol]

    def chosen(self, request: StateBeginRequest) -> StateAdapter:
        """The adapter that imports what a begin asks for.

        Raises:
            StateRequestInvalid: There is none of that protocol.
            StateVersionUnknown: It does not read that version.
        """
        try:
            adapter = self.find(request.protocol)
        except StateAdapterNotFound as exc:
            raise StateRequestInvalid(str(exc)) from None
        versions = readable(adapter)
        if request.schema_version not in versions:
            raise StateVersionUnknown(
                adapter.protocol, request.schema_version, versions
            )
        return adapter


def readable(adapter: StateAdapter) -> list[int]:
    """The versions that an adapter reads, its own as the last."""
    return [*sorted(_older(adapter)), adapter.schema_version]


def _older(adapter: StateAdapter) -> Mapping[int, Lift]:
    return adapter.older if isinstance(adapter, Lifts) else {}


# Checks


def check(adapter: StateAdapter) -> None:
    """Look at an adapter before it is needed.

    Raises:
        StateAdapterInvalid: Says what is not in its form, and its right form.
    """
    protocol = getattr(adapter, "protocol", None)
    if not isinstance(protocol, str) or not re.fullmatch(STATE_PROTOCOL_FORM, protocol):
        raise StateAdapterInvalid(
            "protocol of a state adapter must be 1 to 128 of the characters "
            "A-Z a-z 0-9 _ . : @ / -, the first a letter or a digit"
        )
    _check_whole(adapter, "schema_version", SCHEMA_VERSION_MAXIMUM)
    _check_whole(adapter, "maximum_bytes", STATE_BYTES_MAXIMUM)
    for name in ("validate", "export_state", "import_state"):
        if not callable(getattr(adapter, name, None)):
            raise StateAdapterInvalid(f"{protocol} must have a method {name}")
    for hook in HOOKS:
        if not (hook_of(adapter, hook) is None or callable(hook_of(adapter, hook))):
            raise StateAdapterInvalid(f"{hook} of {protocol} must be a method, or None")
    if phase_of(adapter) not in get_args(ExportPhase):
        raise StateAdapterInvalid(
            f"phase of {protocol} must be one of {', '.join(get_args(ExportPhase))}"
        )
    _check_older(adapter)


def _check_whole(adapter: StateAdapter, name: str, maximum: int) -> None:
    number = getattr(adapter, name, None)
    if type(number) is not int or not 1 <= number <= maximum:
        raise StateAdapterInvalid(
            f"{name} of {adapter.protocol} must be an int from 1 to {maximum}"
        )


def _check_older(adapter: StateAdapter) -> None:
    older: object = _older(adapter)
    if not isinstance(older, Mapping) or not all(
        type(version) is int and version > 0 and callable(lift)
        for version, lift in older.items()
    ):
        raise StateAdapterInvalid(
            f"older of {adapter.protocol} must map versions to functions of a value"
        )
    if any(after != before + 1 for before, after in pairwise(readable(adapter))):
        raise StateAdapterInvalid(
            f"older of {adapter.protocol} must lead to version "
            f"{adapter.schema_version}, each one version further"
        )


# Out and in, outside the event loop


def export(adapter: StateAdapter, terms: Terms, exported: object) -> Export:
    """Check what `export_state` returned and put it into an envelope.

    Raises:
        StateExportInvalid: The cursor or the value is not what it should be.
        StateValueInvalid: The value is not JSON.
        StateExportTooLarge: It is more than the adapter's maximum.
    """
    cursor, value = pair(adapter, exported)
    _check_value(adapter, value, StateExportInvalid)
    built = build(terms, cursor, value, adapter.maximum_bytes)
    _check_exact(adapter, built.large)
    return built


class Part:
    """What one worker exports, or all of them once it is sealed."""

    def __init__(self, written: bytes) -> None:
        """Read what `part_of` has written."""
        end = written.rindex(b"\n")  # canonical JSON has none
        told = json.loads(written[end:])
        self._written = written
        self.cursor: str = told["cursor"]
        self.text = memoryview(written)[:end]
        """The value, in canonical JSON."""
        self.large: int = told["large"]
        """How many of its integers are beyond 53 bits."""

    def written(self) -> bytes:
        """As it is kept, and sent from worker to worker."""
        return self._written

    @classmethod
    def read(cls, written: bytes) -> Part:
        """What was written."""
        return cls(written)


def part_of(adapter: StateAdapter, exported: object, *, whole: bool = False) -> Part:
    """Check what a worker exported; the whole is checked by its adapter, too.

    Raises:
        StateExportInvalid, StateValueInvalid, StateExportTooLarge: As `export`.
    """
    cursor, value = pair(adapter, exported)
    if whole:
        _check_value(adapter, value, StateExportInvalid)
    large: list[int] = []
    text = buffer(adapter.maximum_bytes)
    write(value, text.write, maximum=adapter.maximum_bytes, large=large.append)
    _check_exact(adapter, len(large))
    told = {"cursor": check_cursor(cursor), "large": len(large)}
    text.write(b"\n" + json.dumps(told).encode())
    text.truncate()
    return Part(text.getvalue())


def wrapped(adapter: StateAdapter, terms: Terms, part: Part) -> Export:
    """Put what was sealed into an envelope.

    Raises:
        StateExportTooLarge: It is more than the adapter's maximum.
    """
    return wrap(terms, part.cursor, part.text, adapter.maximum_bytes, large=part.large)


def pair(adapter: StateAdapter, exported: object) -> tuple[object, object]:
    """A cursor and a value.

    Raises:
        StateExportInvalid: It is something else.
    """
    if not isinstance(exported, tuple) or len(exported) != 2:
        raise StateExportInvalid(f"{adapter.protocol} must export a cursor and a value")
    cursor, value = exported
    return cursor, value


def receive(
    adapter: StateAdapter, asked: Asked, body: bytes | bytearray
) -> tuple[Any, Envelope]:
    """What to import, in the adapter's own version, and the envelope it came in.

    Raises:
        StateEnvelopeInvalid: It is not in its form, not the one asked for, or
            its value is none of the adapter's.
        StateDigestMismatch: The digest is not that of its contents.
    """
    value, envelope = verify(body, Terms.of(asked))
    value = _lifted(adapter, envelope.terms.schema_version, value)
    prepare = hook_of(adapter, "prepare_import")
    if prepare is None:
        _check_value(adapter, value, StateEnvelopeInvalid)
        return value, envelope
    with _refusing(adapter, StateEnvelopeInvalid):
        text = to_json(value)
        del value  # it is several times as large
        return prepare(text), envelope


def _check_value(adapter: StateAdapter, value: Any, invalid: type[StateError]) -> None:
    with _refusing(adapter, invalid):
        is_valid = adapter.validate(value)
    if not is_valid:
        raise invalid(f"{adapter.protocol} refuses the value")


@contextmanager
def _refusing(adapter: StateAdapter, invalid: type[StateError]) -> Iterator[None]:
    """Ask the adapter. What the value holds stands in no message."""
    try:
        yield
    except Exception as exc:
        why = type(exc).__name__
        raise invalid(f"{adapter.protocol} refuses the value: {why}") from exc


def _check_exact(adapter: StateAdapter, large: int) -> None:
    if large and getattr(adapter, "exact", False):
        raise StateExportInvalid(
            f"{adapter.protocol} exports {large} integers beyond 53 bits, which "
            "would arrive as other numbers; make them texts"
        )


def _lifted(adapter: StateAdapter, own: int, value: Any) -> Any:
    older = _older(adapter)
    for version in range(own, adapter.schema_version):
        try:
            value = older[version](value)
        except Exception as exc:
            raise StateEnvelopeInvalid(
                f"{adapter.protocol} cannot lift the value from version {version}: "
                f"{type(exc).__name__}"
            ) from exc
    return value


def failure_of(exc: BaseException) -> str:
    """What a status says of the error that failed a handoff."""
    text = exc.code if isinstance(exc, StateError) else failure_text(exc)
    return text[:FAILURE_MAXIMUM]
