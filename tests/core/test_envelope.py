"""What goes into an envelope comes out of it, and nothing else does."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drainmw.core.canonical import EXACT, Digest, canonical, loads
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
    return json.dumps({"digest": str(Digest(canonical(known)))} | given).encode()


@given(values)
def test_what_was_built_is_what_is_verified(value: Any) -> None:
    export = built(value)
    assert verify(export.body, TERMS) == (
        value,
        Envelope(TERMS, "c-1", export.digest),
    )
    assert (export.is_over, export.large) == (False, 0)


@given(values)
def test_the_body_is_canonical_and_its_digest_that_of_the_rest(value: Any) -> None:
    export = built(value)
    members = loads(export.body)
    assert canonical(members) == export.body
    assert members.pop("digest") == export.digest == str(Digest(canonical(members)))


def test_the_maximum_is_measured_without_the_digest() -> None:
    whole = len(built("x" * 100).body)
    bare = whole - len(f'"digest":"{Digest()}",')
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
    value, _ = verify(export.body, TERMS)
    assert value == [2.0**53, 2.0**60, -(2.0**53)]


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
    assert verify(body, TERMS)[0] == ["x"]
    with pytest.raises(StateDigestMismatch):
        verify(written()[:-1] + b',"cursor":"c-0"}', TERMS)


def test_a_value_may_be_null_but_not_absent() -> None:
    body = written(value=None)
    assert verify(body, TERMS)[0] is None
    with pytest.raises(StateEnvelopeInvalid, match=r"^value must be there$"):
        verify(body.replace(b'"value"', b'"other"'), TERMS)


def test_a_version_is_compared_as_a_number() -> None:
    assert verify(written(schemaVersion=1.0), TERMS)[1].terms == TERMS
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
        written(more=float("nan")),
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


numbers = st.one_of(
    st.integers().map(str),
    st.integers(EXACT - 2, EXACT + 4).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True
    ),
    st.sampled_from(["-0", "-0.0", "1e-999", f"0.{'5' * 500}", "5" * 300, "1E5"]),
)
escapes = st.sampled_from(
    ["\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\/", "é", "😀", "a"]
)
documents = st.recursive(
    numbers
    | st.sampled_from(["null", "true", '"1"'])
    | st.lists(escapes, max_size=3).map(lambda parts: f'"{"".join(parts)}"'),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from("abé"), inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f'"{n}":{item}' for n, item in pairs) + "}"
        )
    ),
    max_leaves=8,
)
"""Values as texts, with much in them that JSON spells in several ways."""


@given(documents, st.booleans())
@example("[" * 300 + "]" * 300, False)
@example('{"a":1,"a":9007199254740993}', True)
def test_a_value_is_read_as_the_contract_reads_it(
    document: str, is_marked: bool
) -> None:
    """However it is read, which is another way for what is rare."""
    value = loads(document.encode())
    body = written(value=None, digest=built(value).digest).decode()
    marked = f"{chr(0xFEFF) * is_marked}{body.replace('null', document)}"
    read, _ = verify(marked.encode(), TERMS)
    assert repr(read) == repr(value)


def test_no_more_than_the_body_is_made_of_a_value() -> None:
    value = {str(number): "x" * 90 for number in range(10_000)}
    built(value)
    tracemalloc.start()
    body = built(value).body
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(body) > 900_000
    assert peak < 1.5 * MAXIMUM


def test_a_value_is_read_with_little_beside_it() -> None:
    """An emoji does not make each character of the body take four bytes."""
    body = built(["😀", *("x" * 500 for _ in range(1900))]).body
    tracemalloc.start()
    value, _ = verify(body, TERMS)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(value) == 1901
    assert peak - held < len(body)


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
