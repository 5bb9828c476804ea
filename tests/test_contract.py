"""The forms of the wire, and every trap that a parser sets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.bodies import BeginRequest, NonceRequest, parse_json
from drainmw.errors import RequestInvalid
from tests.rig import NONCE, SOURCE, TARGET, Release, begin_json

REQUEST_INVALID = "RUNTIME_DRAIN_REQUEST_INVALID"


def written(**members: str) -> bytes:
    """A begin body with some members written literally as given."""
    texts = {name: json.dumps(value) for name, value in begin_json().items()}
    inner = ",".join(f'"{name}":{text}' for name, text in (texts | members).items())
    return f"{{{inner}}}".encode()


NOT_JSON = {
    "empty": b"",
    "white space": b"  \n",
    "cut short": written()[:-1],
    "something behind it": written() + b"x",
    "bad UTF-8": written().replace(b"nnn", b"\xff\xfe\xfd", 1),
    "overlong UTF-8": b'{"a":"\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "UTF-16": written().decode().encode("utf-16"),
    "UTF-16 without a mark": written().decode().encode("utf-16-le"),
    "a byte order mark": b"\xef\xbb\xbf" + written(),
    "NaN": written(timeoutMs="NaN"),
    "infinity": written(timeoutMs="Infinity"),
    "minus infinity": written(other="-Infinity"),
    "5,000 digits": written(timeoutMs="5" * 5000),
    "5,000 digits and nothing else": b"5" * 5000,
    "a deep array": b"[" * 100_000,
    "a deep object": b'{"a":' * 100_000,
    "deep and complete": b"[" * 100_000 + b"]" * 100_000,
    "a control character": written(nonce='"\x00"'),
    "single quotes": written().replace(b'"', b"'"),
    "a comment": b"/* */" + written(),
    "a comma too many": written()[:-1] + b",}",
}

NOT_A_BEGIN = {
    "an array": b"[1]",
    "an array around it": b"[" + written() + b"]",
    "a string": b'"begin"',
    "a number": b"5",
    "null": b"null",
    "true": b"true",
    "nothing in it": b"{}",
    "a lone surrogate": written(nonce='"\\ud800' + "n" * 42 + '"'),
    "a lone surrogate for a revision": written(sourceRevision='"\\udfff"'),
    "true for a number": written(timeoutMs="true"),
    "a string for a number": written(timeoutMs='"5000"'),
    "a fraction": written(timeoutMs="5000.5"),
    "a number beyond a double": written(timeoutMs="1e999"),
    "zero": written(timeoutMs="0"),
    "minus zero": written(timeoutMs="-0.0"),
    "an array of one number": written(timeoutMs="[5000]"),
    "4,000 digits": written(timeoutMs="5" * 4000),
    "a nonce with a line end": written(nonce=f'"{NONCE}\\n"'),
    "a nonce that a line end makes long enough": written(nonce=f'"{NONCE[1:]}\\n"'),
    "a revision with a line end": written(sourceRevision=f'"{SOURCE}\\n"'),
    "digits of another script": written(sourceRevision='"' + "\\u0663" * 40 + '"'),
    "a protocol with a line end": written(protocol='"forgezero-drain/v1\\n"'),
    "a protocol of another case": written(protocol='"Forgezero-drain/v1"'),
    "the last of two nonces is wrong": written()[:-1] + b',"nonce":"x"}',
    "names of Python": written().replace(b"timeoutMs", b"timeout_ms"),
    "a revision of another name": written().replace(b"sourceRevision", b"source"),
}

A_BEGIN = {
    "as it stands": written(),
    "with white space": b" \r\n\t" + written() + b"\n",
    "a number with a point": written(timeoutMs="5000.0"),
    "a number with an exponent": written(timeoutMs="5e3"),
    "a number with a small exponent": written(timeoutMs="50000e-1"),
    "a member it does not know": written(more='{"a":[1,null]}'),
    "an unknown member with a lone surrogate": written(more='"\\ud800"'),
    "an unknown name with a lone surrogate": written()[:-1] + b',"\\ud800":1}',
    "a digest of 4,000 digits": written(more="5" * 4000),
    "the last of two nonces is right": b'{"nonce":"x",' + written()[1:],
    "escaped letters": written(nonce='"' + "\\u006e" * 43 + '"'),
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=list(NOT_JSON))
def test_what_is_not_json_is_refused_as_an_invalid_request(body: bytes) -> None:
    with pytest.raises(RequestInvalid, match="the body"):
        parse_json(body)


@pytest.mark.parametrize("body", NOT_A_BEGIN.values(), ids=list(NOT_A_BEGIN))
def test_json_that_is_no_begin_is_refused(body: bytes) -> None:
    with pytest.raises(RequestInvalid, match="must be"):
        BeginRequest.parse(parse_json(body))


@pytest.mark.parametrize("body", A_BEGIN.values(), ids=list(A_BEGIN))
def test_a_begin_is_read_however_its_json_is_written(body: bytes) -> None:
    request = BeginRequest.parse(parse_json(body))
    assert request.nonce == NONCE
    assert (request.source_revision, request.target_revision) == (SOURCE, TARGET)
    assert (type(request.timeout_ms), request.timeout_ms) == (int, 5000)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [*NOT_JSON.values(), *NOT_A_BEGIN.values()],
    ids=[*NOT_JSON, *NOT_A_BEGIN],
)
async def test_a_bad_body_changes_nothing_over_http(body: bytes) -> None:
    """X6: a body of deep nesting or of broken UTF-8 is a bounded, clear refusal."""
    release = Release()
    answer = await release.client.control(
        "POST",
        "/.forgezero/runtime/drain/v1/begin",
        content=body,
        headers={"content-type": "application/json"},
    )
    too_large = len(body) > 16 * 1024
    code = "RUNTIME_CONTROL_BODY_TOO_LARGE" if too_large else REQUEST_INVALID
    assert (answer.status_code, answer.json()["code"]) == (
        413 if too_large else 400,
        code,
    )
    assert (release.drain.phase, release.drain.epoch) == ("serving", 0)
    assert (await release.client.get("/")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("deep", [b"[" * 16_000, b'{"a":' * 3_200])
async def test_nesting_within_the_size_limit_is_an_invalid_request(deep: bytes) -> None:
    """X6: sixteen thousand brackets fit into 16 KiB."""
    answer = await Release().client.control(
        "POST",
        "/.forgezero/runtime/drain/v1/begin",
        content=deep,
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (400, REQUEST_INVALID)


@pytest.mark.parametrize(
    ("members", "named", "right"),
    [
        ({"protocol": "v2"}, "protocol", 'exactly "forgezero-drain/v1"'),
        ({"nonce": "n"}, "nonce", "43 characters of base64url"),
        ({"sourceRevision": 1}, "sourceRevision", "40 lower-case hex digits"),
        ({"targetRevision": "B" * 40}, "targetRevision", "40 lower-case hex digits"),
        ({"timeoutMs": 99}, "timeoutMs", "a whole number from 100 to 600000"),
    ],
)
def test_a_refused_begin_names_the_member_and_its_right_form(
    members: dict[str, Any], named: str, right: str
) -> None:
    with pytest.raises(RequestInvalid) as refused:
        BeginRequest.parse(begin_json(**members))
    assert str(refused.value) == f"{named} must be {right}"


def test_every_wrong_member_is_named_at_once() -> None:
    with pytest.raises(RequestInvalid) as refused:
        BeginRequest.parse({"nonce": 1, "timeoutMs": None})
    for name in begin_json():
        assert f"{name} must be" in str(refused.value)


@pytest.mark.parametrize(
    "value", [[], "x", None, {}, {"nonce": "n"}, {"nonce": [NONCE]}]
)
def test_a_resume_without_a_nonce_is_refused(value: object) -> None:
    with pytest.raises(RequestInvalid):
        NonceRequest.parse(value)


@given(st.binary(max_size=200))
def test_no_bytes_are_read_in_any_other_way(body: bytes) -> None:
    try:
        BeginRequest.parse(parse_json(body))
    except RequestInvalid:
        return
    raise AssertionError("random bytes are no begin")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(begin_json(), JSON_VALUES)))
def test_no_values_of_the_members_are_read_in_any_other_way(value: Any) -> None:
    whole = begin_json() | value
    try:
        request = BeginRequest.parse(whole)
    except RequestInvalid:
        return
    assert request.nonce == whole["nonce"]
    assert 100 <= request.timeout_ms == whole["timeoutMs"] <= 600_000
