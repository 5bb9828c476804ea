"""What goes into an envelope comes out of it, and nothing else does."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.core.canonical import EXACT, canonical, digest, loads
from drainmw.core.envelope import (
    Arriving,
    Envelope,
    Export,
    Terms,
    build,
    check_answer,
    verify,
)
from drainmw.errors import (
    StateDigestMismatch,
    StateEnvelopeInvalid,
    StateExportInvalid,
    StateExportTooLarge,
    StateFetchError,
    StateRevisionInvalid,
    StateSourceTooLarge,
    StateValueInvalid,
)
from tests.rig import OTHER_REVISION, SOURCE, TARGET

TERMS = Terms("sessions/v1", 1, SOURCE, TARGET)
MAXIMUM = 1_048_576

values = st.recursive(
    st.none() | st.booleans() | st.integers(-EXACT, EXACT) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def built(value: object, cursor: object = "c-1", maximum: int = MAXIMUM) -> Export:
    return build(TERMS, cursor, value, maximum)


def written(**members: Any) -> bytes:
    """An envelope with some other members, and the digest of those it has."""
    given = TERMS.members() | {"cursor": "c-1", "value": ["x"]} | members
    known = {name: given[name] for name in (*TERMS.members(), "cursor", "value")}
    return json.dumps({"digest": digest(canonical(known))} | given).encode()


@given(values)
def test_what_was_built_is_what_is_verified(value: Any) -> None:
    export = built(value)
    assert verify(export.body, TERMS) == Envelope(TERMS, "c-1", value, export.digest)
    assert (export.is_over, export.large) == (False, 0)


@given(values)
def test_the_body_is_canonical_and_its_digest_that_of_the_rest(value: Any) -> None:
    export = built(value)
    members = loads(export.body)
    assert canonical(members) == export.body
    assert members.pop("digest") == export.digest == digest(canonical(members))


def test_the_maximum_is_measured_without_the_digest() -> None:
    whole = len(built("x" * 100).body)
    bare = whole - len(f'"digest":"{digest()}",')
    assert not built("x" * 100, maximum=whole).is_over
    assert built("x" * 100, maximum=whole - 1).is_over
    assert built("x" * 100, maximum=bare).is_over
    with pytest.raises(StateExportTooLarge, match=f"the {bare - 1} bytes"):
        built("x" * 100, maximum=bare - 1)


def test_a_maximum_that_holds_no_envelope_at_all_is_too_small() -> None:
    with pytest.raises(StateExportTooLarge, match="the 1 bytes"):
        built(None, maximum=1)


@pytest.mark.parametrize(
    "cursor", [None, 5, b"c", "", "é", "c\n", "c d", "-c", "\ud800"]
)
def test_a_cursor_in_another_form_is_not_exported(cursor: object) -> None:
    with pytest.raises(StateExportInvalid):
        built([], cursor=cursor)


def test_a_value_that_is_not_json_is_not_exported() -> None:
    with pytest.raises(StateValueInvalid):
        built({"seen": float("nan")})


def test_integers_that_arrive_as_doubles_are_counted() -> None:
    export = built([2**53 + 1, 2**60, -(2**53) - 1])
    assert export.large == 3
    assert verify(export.body, TERMS).value == [2.0**53, 2.0**60, -(2.0**53)]


@pytest.mark.parametrize("revision", ["", "A" * 40, f"{SOURCE}\n", SOURCE[1:], None, 1])
def test_terms_have_two_revisions(revision: Any) -> None:
    with pytest.raises(StateRevisionInvalid, match="sourceRevision"):
        replace(TERMS, source_revision=revision)
    with pytest.raises(StateRevisionInvalid, match="targetRevision"):
        replace(TERMS, target_revision=revision)


# Verifying


def test_members_that_it_does_not_know_are_no_part_of_it() -> None:
    assert verify(written(more={"a": 1}), TERMS) == verify(written(), TERMS)


def test_of_two_members_of_one_name_the_last_counts() -> None:
    body = b'{"cursor":"c-0","value":0,' + written()[1:]
    assert verify(body, TERMS).value == ["x"]
    with pytest.raises(StateDigestMismatch):
        verify(written()[:-1] + b',"cursor":"c-0"}', TERMS)


def test_a_value_may_be_null_but_not_absent() -> None:
    body = written(value=None)
    assert verify(body, TERMS).value is None
    with pytest.raises(StateEnvelopeInvalid, match=r"^value must be there$"):
        verify(body.replace(b'"value"', b'"other"'), TERMS)


def test_a_version_is_compared_as_a_number() -> None:
    assert verify(written(schemaVersion=1.0), TERMS).terms == TERMS
    for other in (True, "1", 1.5, None):
        with pytest.raises(StateEnvelopeInvalid, match=r"^schemaVersion must be"):
            verify(written(schemaVersion=other), TERMS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol", "sessions/v2"),
        ("schemaVersion", 2),
        ("sourceRevision", OTHER_REVISION),
        ("targetRevision", SOURCE),
    ],
)
def test_an_envelope_that_nobody_asked_for_is_refused_by_name(
    name: str, value: object
) -> None:
    with pytest.raises(StateEnvelopeInvalid, match=rf"^{name} is not what"):
        verify(written(**{name: value}), TERMS)


@pytest.mark.parametrize("cursor", [None, 5, "", "é", "c\n", "c" * 513])
def test_a_cursor_in_another_form_is_refused(cursor: object) -> None:
    with pytest.raises(StateEnvelopeInvalid, match=r"^cursor must be"):
        verify(written(cursor=cursor), TERMS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"null",
        b"[]",
        b"{}",
        b"5",
        b'"x"',
        b"\xff",
        b"[" * 100_000,
        written()[:-1],
        written().replace(b'["x"]', b"[1e999]"),
        written().replace(b'["x"]', b"[" * 50_000 + b"]" * 50_000),
    ],
)
def test_what_is_no_envelope_is_refused_however_it_is_none(body: bytes) -> None:
    with pytest.raises(StateEnvelopeInvalid) as refused:
        verify(body, TERMS)
    assert refused.value.code == "RUNTIME_STATE_ENVELOPE_INVALID"


@given(st.data())
def test_no_changed_byte_is_believed(data: st.DataObject) -> None:
    body = bytearray(built({"a": [1, "é"], "b": None}).body)
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((StateEnvelopeInvalid, StateDigestMismatch)):
        verify(body, TERMS)


# Arriving


def test_a_body_takes_its_maximum_and_no_byte_more() -> None:
    arriving = Arriving(5)
    arriving.add(b"abc")
    arriving.add(b"de")
    with pytest.raises(StateSourceTooLarge, match="the 5 bytes"):
        arriving.add(b"f")
    assert arriving.body == b"abcde"


@pytest.mark.parametrize(
    ("status", "length", "code"),
    [
        (200, None, None),
        (200, 0, None),
        (204, 5, None),
        (299, 5, None),
        (200, 6, "TOO_LARGE"),
        (301, None, "REDIRECTED"),
        (304, 6, "REDIRECTED"),
        (199, None, "HTTP_199"),
        (401, 6, "HTTP_401"),
        (500, None, "HTTP_500"),
    ],
)
def test_an_answer_is_looked_at_before_its_body(
    status: int, length: int | None, code: str | None
) -> None:
    if code is None:
        check_answer(status, length, 5)
        return
    with pytest.raises(StateFetchError) as refused:
        check_answer(status, length, 5)
    assert refused.value.code == f"RUNTIME_STATE_SOURCE_{code}"
