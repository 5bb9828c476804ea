"""State adapters: which are taken, which is asked, and what each is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from weakref import ref

import pytest

from drainmw.bodies import StateBeginRequest
from drainmw.core.envelope import Envelope, Terms
from drainmw.errors import (
    Misuse,
    StateAdapterInvalid,
    StateAdapterNotFound,
    StateDigestMismatch,
    StateEnvelopeInvalid,
    StateExportInvalid,
    StateExportTooLarge,
    StateRequestInvalid,
    StateSourceFailed,
    StateValueInvalid,
    StateVersionUnknown,
)
from drainmw.state import (
    Adapters,
    ImportContext,
    Lift,
    StateAdapter,
    check,
    export,
    failure_of,
    readable,
    receive,
)
from tests.rig import NONCE, SOURCE, TARGET
from tests.test_state_begin import begin

pytestmark = pytest.mark.anyio


class Store:
    """A list of names, which version 3 keeps with a number each."""

    def __init__(self, protocol: str = "sessions/v1", **members: Any) -> None:
        self.protocol = protocol
        self.schema_version = 3
        self.maximum_bytes = 4096
        self.imported: list[tuple[Any, ImportContext]] = []
        vars(self).update(members)

    def validate(self, value: Any) -> bool:
        return all(isinstance(number, int) for number in value["names"].values())

    async def export_state(self) -> tuple[str, Any]:
        return "c-1", {"names": {"ann": 1}}

    async def import_state(self, value: Any, context: ImportContext) -> None:
        self.imported.append((value, context))


class LiftingStore(Store):
    """It reads what versions 1 and 2 have written: a text, and a list."""

    older: Mapping[int, Lift] = {
        1: lambda value: value.split(),
        2: lambda value: {"names": dict.fromkeys(value, 0)},
    }


def terms(adapter: StateAdapter, version: int | None = None) -> Terms:
    return Terms(adapter.protocol, version or adapter.schema_version, SOURCE, TARGET)


def request(version: int = 3) -> StateBeginRequest:
    return begin(schemaVersion=version)


def sent(value: Any, version: int = 3) -> bytes:
    """What a release of that version exports."""
    plain = Store(schema_version=version, validate=lambda value: True)
    return export(plain, terms(plain), ("c-1", value)).body


# Registration


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"protocol": value}, "protocol of a state adapter must be")
        for value in ("", "has space", "-p", "p" * 129, "p\n", "é", None, 5, b"p")
    ]
    + [
        ({"schema_version": value}, "schema_version of sessions/v1 must be an int")
        for value in (0, 65536, -1, 1.5, 1.0, True, "1", None)
    ]
    + [
        ({"maximum_bytes": value}, "maximum_bytes of sessions/v1 must be an int")
        for value in (0, 1_048_577, 1e3, True, None)
    ]
    + [
        ({name: None}, f"must have a method {name}")
        for name in ("validate", "export_state", "import_state")
    ]
    + [
        ({"older": value}, "older of sessions/v1 must map versions to functions")
        for value in (None, [2], {"2": str}, {2: "x"}, {True: str}, {0: str, 1: str})
    ]
    + [
        ({"older": dict.fromkeys(versions, str)}, "must lead to version 3")
        for versions in ([1], [1, 3], [2, 3], [4], [3])
    ],
)
def test_an_adapter_in_another_form_is_refused_with_the_right_one(
    members: dict[str, Any], says: str
) -> None:
    with pytest.raises(StateAdapterInvalid, match=says) as refused:
        Adapters().add(Store(**members))
    assert refused.value.code == "RUNTIME_STATE_ADAPTER_INVALID"
    assert isinstance(refused.value, Misuse)


def test_an_object_that_is_no_adapter_at_all_is_refused() -> None:
    with pytest.raises(StateAdapterInvalid):
        check(object())  # type: ignore[arg-type]  # the mistake is the test


def test_one_protocol_has_one_adapter() -> None:
    adapters = Adapters()
    first = Store()
    adapters.add(first)
    with pytest.raises(StateAdapterInvalid, match="sessions/v1 already"):
        adapters.add(Store())
    assert list(adapters) == [first]


def test_a_bounded_adapter_is_taken_at_its_bounds() -> None:
    adapters = Adapters()
    adapters.add(Store("p", schema_version=1, maximum_bytes=1))
    adapters.add(Store("9" * 128, schema_version=65535, maximum_bytes=1_048_576))
    assert len(adapters) == 2


# Selection


def test_the_protocol_may_be_left_out_where_there_is_one() -> None:
    adapters = Adapters()
    with pytest.raises(StateAdapterNotFound, match=r"no state adapter$"):
        adapters.find(None)
    sessions = Store()
    adapters.add(sessions)
    assert adapters.find(None) is adapters.find("sessions/v1") is sessions
    limits = Store("limits/v1")
    adapters.add(limits)
    assert adapters.find("limits/v1") is limits
    with pytest.raises(StateAdapterNotFound, match="name one of sessions/v1, limits"):
        adapters.find(None)


@pytest.mark.parametrize("protocol", ["", "sessions", "sessions/v1\n", "\ud800"])
def test_another_protocol_is_not_found_and_those_there_are_are_named(
    protocol: str,
) -> None:
    adapters = Adapters()
    adapters.add(Store())
    with pytest.raises(StateAdapterNotFound, match="it has sessions/v1") as refused:
        adapters.find(protocol)
    assert refused.value.code == "RUNTIME_STATE_ADAPTER_NOT_FOUND"


def test_a_begin_of_an_unknown_protocol_is_an_invalid_request() -> None:
    adapters = Adapters()
    with pytest.raises(StateRequestInvalid, match="no state adapter"):
        adapters.chosen(request())


def test_a_begin_of_a_version_that_is_read_chooses_its_adapter() -> None:
    adapters, store = Adapters(), LiftingStore()
    adapters.add(store)
    assert [adapters.chosen(request(version)) for version in (1, 2, 3)] == [store] * 3


@pytest.mark.parametrize("version", [1, 2, 4])
def test_an_unknown_version_is_refused_with_both_versions_named(version: int) -> None:
    adapters = Adapters()
    adapters.add(Store())
    says = f"sessions/v1 is of version {version}; this release reads 3"
    with pytest.raises(StateVersionUnknown, match=says) as refused:
        adapters.chosen(request(version))
    assert refused.value.code == "RUNTIME_STATE_REQUEST_INVALID"


def test_all_versions_that_are_read_are_named() -> None:
    assert (readable(Store()), readable(LiftingStore())) == ([3], [1, 2, 3])
    adapters = Adapters()
    adapters.add(LiftingStore())
    with pytest.raises(StateVersionUnknown, match="reads 1 and 2 and 3"):
        adapters.chosen(request(4))


# Out


async def test_what_an_adapter_exports_is_what_the_next_one_receives() -> None:
    old, new = Store(), Store()
    out = export(old, terms(old), await old.export_state())
    value, envelope = receive(new, request(), out.body)
    assert value == {"names": {"ann": 1}}
    assert envelope == Envelope(terms(new), "c-1", out.digest)


@pytest.mark.parametrize("exported", [None, "c-1", ["c-1", {}], ("c-1",), (1, 2, 3)])
def test_an_export_is_a_cursor_and_a_value(exported: object) -> None:
    with pytest.raises(StateExportInvalid, match="a cursor and a value"):
        export(Store(), terms(Store()), exported)


@pytest.mark.parametrize("value", [{"names": {"ann": "secret"}}, {}, "secret", None])
def test_a_value_that_its_adapter_refuses_is_not_exported(value: Any) -> None:
    with pytest.raises(StateExportInvalid, match="sessions/v1 refuses") as refused:
        export(Store(), terms(Store()), ("c-1", value))
    assert refused.value.code == "RUNTIME_STATE_EXPORT_INVALID"
    assert "secret" not in str(refused.value)


def test_a_check_that_answers_nothing_is_a_no() -> None:
    silent = Store(validate=lambda value: None)
    with pytest.raises(StateExportInvalid):
        export(silent, terms(silent), ("c-1", {}))


def test_an_export_that_is_no_json_or_too_large_is_refused() -> None:
    store = Store(validate=lambda value: True, maximum_bytes=300)
    with pytest.raises(StateValueInvalid):
        export(store, terms(store), ("c-1", {1: 1}))
    with pytest.raises(StateExportTooLarge, match="300 bytes"):
        export(store, terms(store), ("c-1", "x" * 300))


def test_an_exact_adapter_exports_no_integer_that_would_arrive_as_another() -> None:
    lenient = Store(validate=lambda value: True)
    exact = Store(validate=lambda value: True, exact=True)
    value = [2**53 - 1, 2**53 + 1, 2**60]
    assert export(lenient, terms(lenient), ("c-1", value)).large == 2
    with pytest.raises(StateExportInvalid, match="exports 2 integers beyond 53 bits"):
        export(exact, terms(exact), ("c-1", value))
    assert export(exact, terms(exact), ("c-1", value[:1])).large == 0


# In


@pytest.mark.parametrize(
    ("version", "value", "lifted"),
    [
        (1, "ann bob", {"ann": 0, "bob": 0}),
        (2, ["ann"], {"ann": 0}),
        (3, {"names": {"ann": 5}}, {"ann": 5}),
    ],
)
def test_an_older_version_is_lifted_step_by_step(
    version: int, value: Any, lifted: dict[str, int]
) -> None:
    store = LiftingStore()
    received, envelope = receive(store, request(version), sent(value, version))
    assert received == {"names": lifted}
    assert envelope.terms.schema_version == version


def test_a_value_that_cannot_be_lifted_is_no_valid_envelope() -> None:
    with pytest.raises(StateEnvelopeInvalid, match="from version 1: AttributeError"):
        receive(LiftingStore(), request(1), sent(["secret"], 1))


def test_a_value_is_checked_after_it_was_lifted_and_only_if_it_is_genuine() -> None:
    asked: list[Any] = []
    store = LiftingStore(validate=asked.append)
    with pytest.raises(StateEnvelopeInvalid, match="refuses"):
        receive(store, request(2), sent(["ann"], 2))
    assert asked == [{"names": {"ann": 0}}]
    with pytest.raises(StateDigestMismatch):
        receive(store, request(2), sent(["ann"], 2).replace(b"ann", b"bob"))
    assert len(asked) == 1


class PreparingStore(LiftingStore):
    """It imports the names alone."""

    def validate(self, value: Any) -> bool:
        raise AssertionError("an import is prepared in its place")

    def prepare_import(self, text: bytes) -> Any:
        return sorted(json.loads(text)["names"])


def test_what_is_imported_is_what_was_prepared_of_the_lifted_value() -> None:
    prepared, envelope = receive(PreparingStore(), request(2), sent(["b", "é"], 2))
    assert prepared == ["b", "é"]
    assert envelope.cursor == "c-1"


class Names(dict[str, Any]):
    """A dict that can be watched."""


def test_a_value_is_gone_while_an_import_is_prepared_of_it() -> None:
    """What is made of it may be as large again."""
    made: list[ref[Names]] = []

    def lift(value: Any) -> Names:
        names = Names(names=value)
        made.append(ref(names))
        return names

    class Patient(PreparingStore):
        older: Mapping[int, Lift] = {2: lift}

        def prepare_import(self, text: bytes) -> Any:
            return made[0]()

    prepared, _ = receive(Patient(), request(2), sent(["ann"], 2))
    assert prepared is None


@pytest.mark.parametrize("value", [{"name": "secret"}, "secret", ["secret", "\ud800"]])
def test_what_cannot_be_prepared_is_no_valid_envelope(value: Any) -> None:
    with pytest.raises(StateEnvelopeInvalid, match="sessions/v1 refuses") as refused:
        receive(PreparingStore(), request(3), sent(value))
    assert "secret" not in str(refused.value)


def test_an_envelope_of_another_version_than_begun_is_refused() -> None:
    with pytest.raises(StateEnvelopeInvalid, match="schemaVersion is not what"):
        receive(LiftingStore(), request(3), sent(["ann"], 2))


def test_an_import_is_told_what_it_is_given() -> None:
    _, envelope = receive(LiftingStore(), request(2), sent(["ann"], 2))
    context = ImportContext.of(envelope, NONCE, provisional=False, index=1, count=4)
    assert context == ImportContext(
        source_revision=SOURCE,
        target_revision=TARGET,
        cursor="c-1",
        digest=envelope.digest,
        nonce=NONCE,
        schema_version=2,
        provisional=False,
        index=1,
        count=4,
    )
    alone = ImportContext.of(envelope, NONCE)
    assert (alone.provisional, alone.index, alone.count) == (True, 0, 1)


# Failures


@pytest.mark.parametrize(
    ("exc", "says"),
    [
        (StateEnvelopeInvalid("value must be there"), "RUNTIME_STATE_ENVELOPE_INVALID"),
        (StateSourceFailed(404), "RUNTIME_STATE_SOURCE_HTTP_404"),
        (Exception("STORE_FULL"), "STORE_FULL"),
        (KeyError(), "KeyError"),
        (Exception("x" * 200), "x" * 128),
        (Exception("redis://me:secret@host is gone"), "redis://***@host is gone"),
        (Exception("two\nlines"), "two\\nlines"),
    ],
)
def test_a_failure_is_our_code_or_the_message_of_the_adapter(
    exc: Exception, says: str
) -> None:
    assert failure_of(exc) == says
