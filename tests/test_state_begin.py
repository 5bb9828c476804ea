"""The begin of a handoff: its form, and which one is the same again."""

import json
from typing import Any

import pytest

from drainmw.bodies import StateBeginRequest, parse_json
from drainmw.errors import RequestInvalid, StateRequestInvalid, StateSourceInvalid
from drainmw.location import Location
from tests.rig import NONCE, OTHER_NONCE, OTHER_REVISION, SOURCE, TARGET, TOKEN

OTHER_TOKEN = "u" * 43


def begin_json(**members: Any) -> dict[str, Any]:
    return {
        "protocol": "sessions/v1",
        "nonce": NONCE,
        "schemaVersion": 1,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "source": source_json(),
        "timeoutMs": 5000,
        **members,
    }


def source_json(**members: Any) -> dict[str, Any]:
    url = "http://127.0.0.1:9/state"
    return {"url": url, "authorization": f"Bearer {TOKEN}", **members}


def begin(**members: Any) -> StateBeginRequest:
    return StateBeginRequest.parse(begin_json(**members))


# The form

WRONG: dict[str, list[Any]] = {
    "protocol": ["", "has space", "-p", "p" * 129, "p\n", "é", 1, None, "\ud800"],
    "nonce": ["", NONCE[1:], NONCE + "n", NONCE + "\n", "+" * 43, 5, None],
    "schemaVersion": [0, 65536, 1.5, -1, "1", True, None, [1], float(10**300)],
    "sourceRevision": ["", "A" * 40, SOURCE + "\n", "٣" * 40, None, 10**39],
    "targetRevision": ["", "g" * 40, TARGET[1:], None, {}],
    "source": [
        None,
        "http://127.0.0.1/",
        [],
        {},
        {"url": "http://127.0.0.1/"},
        {"authorization": f"Bearer {TOKEN}"},
        source_json(url=None),
        source_json(url=["http://127.0.0.1/"]),
        source_json(authorization=None),
        source_json(authorization=TOKEN),
        source_json(authorization=f"Bearer  {TOKEN}"),
        source_json(authorization=f"Bearer {TOKEN} "),
        source_json(authorization=f" Bearer {TOKEN}"),
        source_json(authorization=f"Bearer {TOKEN}\n"),
        source_json(authorization=f"BEARER {TOKEN}"),
        source_json(authorization=f"Bearer {'ñ' * 43}"),
    ],
    "timeoutMs": [99, 600_001, 100.5, "5000", True, None],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
)
def test_a_member_in_another_form_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(StateRequestInvalid, match=rf"^{name} must be [^;]*$"):
        begin(**{name: value})


@pytest.mark.parametrize("name", WRONG)
def test_a_member_that_is_missing_is_refused_by_name(name: str) -> None:
    body = begin_json()
    del body[name]
    with pytest.raises(StateRequestInvalid, match=f"^{name} must be [^;]*$"):
        StateBeginRequest.parse(body)


@pytest.mark.parametrize("body", [None, [], "begin", 5, True])
def test_what_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(StateRequestInvalid, match="must be a JSON object"):
        StateBeginRequest.parse(body)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"5" * 5000])
def test_what_is_not_json_is_refused_as_the_begin_of_a_handoff(body: bytes) -> None:
    with pytest.raises(StateRequestInvalid, match="the body") as refused:
        parse_json(body, StateRequestInvalid)
    assert refused.value.code == "RUNTIME_STATE_REQUEST_INVALID"
    with pytest.raises(RequestInvalid) as refused_elsewhere:
        parse_json(body)
    assert refused_elsewhere.value.code == "RUNTIME_DRAIN_REQUEST_INVALID"


def test_a_member_that_it_does_not_know_is_ignored() -> None:
    given = begin(more=1, source=source_json(more=[1]))
    assert given == begin()


@pytest.mark.parametrize("number", ["1", "1.0", "1e0", "10E-1"])
def test_a_version_is_read_however_its_number_is_written(number: str) -> None:
    text = json.dumps(begin_json()).replace(
        '"schemaVersion": 1', f'"schemaVersion": {number}'
    )
    version = StateBeginRequest.parse(parse_json(text.encode())).schema_version
    assert (type(version), version) == (int, 1)


def test_a_form_is_refused_before_an_address() -> None:
    with pytest.raises(StateRequestInvalid):
        begin(source=source_json(url="http://example.com/", authorization="x"))


def test_the_token_stands_in_nothing_that_is_printed() -> None:
    request = begin()
    assert TOKEN not in f"{request!r} {request} {request.source!r}"
    assert TOKEN not in f"{request.model_dump()} {request.model_dump_json()}"
    wrong = source_json(authorization=f"Bearer {TOKEN}!")
    with pytest.raises(StateRequestInvalid) as refused:
        begin(source=wrong)
    assert TOKEN not in f"{refused.value!r}"
    assert refused.value.__context__ is None


# Retries


def test_the_same_begin_is_a_retry_whatever_its_time() -> None:
    assert begin().fingerprint == begin().fingerprint
    assert begin(timeoutMs=100).fingerprint == begin(timeoutMs=9000).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        {"protocol": "sessions/v2"},
        {"nonce": OTHER_NONCE},
        {"schemaVersion": 2},
        {"sourceRevision": OTHER_REVISION},
        {"targetRevision": OTHER_REVISION},
        {"source": source_json(url="http://127.0.0.1:10/state")},
        {"source": source_json(url="http://localhost:9/state")},
        {"source": source_json(authorization=f"Bearer {OTHER_TOKEN}")},
        {"origin": {"acknowledge": "http://127.0.0.1:9/"}},
    ],
)
def test_another_begin_is_no_retry(other: dict[str, Any]) -> None:
    assert begin(**other).fingerprint != begin().fingerprint


# Its address


def test_an_address_of_this_host_needs_no_resolving() -> None:
    location = begin(source=source_json(url="http://localhost:9/x?y")).source.location
    assert location == Location.read("http://localhost:9/x?y")
    assert (location.port, location.target) == (9, "/x?y")


def test_an_origin_says_what_it_likes_of_itself() -> None:
    url = "http://127.0.0.1:9/"
    bare = begin(origin={"acknowledge": url}).origin
    assert bare is not None
    assert (bare.acknowledge, bare.epoch, bare.process) == (url, None, None)
    told = begin(
        origin={"acknowledge": url, "epoch": 3.0, "process": {"pid": 7}, "more": 1}
    ).origin
    assert told is not None
    assert (told.epoch, told.process) == (3, {"pid": 7})


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:9/",
        [],
        {},
        {"acknowledge": None},
        {"acknowledge": "http://127.0.0.1:9/", "epoch": -1},
        {"acknowledge": "http://127.0.0.1:9/", "epoch": "3"},
        {"acknowledge": "http://127.0.0.1:9/", "process": "7"},
    ],
)
def test_an_origin_in_another_form_is_refused_by_name(origin: Any) -> None:
    with pytest.raises(StateRequestInvalid, match="origin must be as the offer"):
        begin(origin=origin)


@pytest.mark.parametrize("url", ["http://example.com/x", "https://127.0.0.1/", "x"])
def test_an_origin_elsewhere_is_refused(url: str) -> None:
    """The token of the fetch is sent there."""
    with pytest.raises(StateSourceInvalid):
        begin(origin={"acknowledge": url})


@pytest.mark.parametrize("url", ["http://example.com/x", "http://127.0.0.1.x/", "x"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(StateSourceInvalid):
        begin(source=source_json(url=url))
