"""The last answer on a connection, and the parts of a refusal."""

import json
from random import Random
from typing import Any

import pytest

from drainmw.answers import (
    Refusal,
    answer,
    discard,
    header,
    is_http1,
    last_answer,
)
from drainmw.errors import SettingsError
from drainmw.settings import load
from drainmw.testing import http_scope, websocket_scope
from tests.rig import headers_of

pytestmark = pytest.mark.anyio

Messages = list[dict[str, Any]]


def start_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def test_the_last_answer_is_a_new_message() -> None:
    start = start_of((b"x-kept", b"1"), (b"connection", b"keep-alive"))
    last = last_answer(start, http_scope())
    assert last["headers"] == [(b"x-kept", b"1"), (b"connection", b"close")]
    assert start["headers"][1] == (b"connection", b"keep-alive")
    assert last["status"] == 200


@pytest.mark.parametrize("headers", [(), ((b"Connection", b"Upgrade, x"),)])
def test_the_last_answer_says_close_exactly_once(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    last = last_answer(start_of(*headers), http_scope())
    assert last["headers"] == [(b"connection", b"close")]


def test_the_last_answer_may_come_without_headers_or_with_other_types() -> None:
    bare = {"type": "http.response.start", "status": 204}
    assert last_answer(bare, http_scope())["headers"] == [(b"connection", b"close")]
    lists = {**bare, "headers": [[bytearray(b"Keep-Alive"), b"x"], [b"a", b"b"]]}
    headers = last_answer(lists, http_scope())["headers"]
    assert [tuple(pair) for pair in headers] == [
        (b"a", b"b"),
        (b"connection", b"close"),
    ]


@pytest.mark.parametrize("version", ["2", "2.0", "3"])
def test_later_versions_of_http_know_no_such_header(version: str) -> None:
    start = start_of()
    assert last_answer(start, http_scope(http_version=version)) is start


@pytest.mark.parametrize(
    ("scope", "first"),
    [
        ({"http_version": "1.1"}, True),
        ({"http_version": "1.0"}, True),
        ({}, True),
        ({"http_version": "2"}, False),
    ],
)
def test_which_connections_a_header_closes(scope: dict[str, Any], first: bool) -> None:
    assert is_http1(scope) is first


def test_a_header_is_found_in_any_case_and_the_first_counts() -> None:
    scope = http_scope(headers=[(b"Expect", b"a"), (b"expect", b"b")])
    assert header(scope, b"expect") == b"a"
    assert header(scope, b"x-none") is None


# Our answers


async def answered(scope: Any, *, content: Any = None, **options: Any) -> Messages:
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer(scope, send, 200, content or {"a": 1}, **options)
    return sent


async def test_an_answer_describes_its_body() -> None:
    start, body = await answered(http_scope(), media_type="text/x")
    headers = headers_of(start)
    assert json.loads(body["body"]) == {"a": 1}
    assert headers == {
        "content-type": "text/x",
        "content-length": str(len(body["body"])),
        "cache-control": "no-store",
    }


async def test_an_answer_has_no_blanks_between_its_members() -> None:
    _, body = await answered(http_scope(), content={"a": 1, "b": [1, 2]})
    assert body["body"] == b'{"a":1,"b":[1,2]}'


async def test_a_head_is_described_like_a_get_and_has_no_body() -> None:
    get, head = await answered(http_scope()), await answered(http_scope(method="HEAD"))
    assert get[0] == head[0]
    assert head[1]["body"] == b""


async def test_an_answer_may_close_its_connection() -> None:
    start, _ = await answered(http_scope(), close=True, headers=[(b"x-a", b"b")])
    assert (headers_of(start)["connection"], headers_of(start)["x-a"]) == ("close", "b")


# Bodies


@pytest.mark.parametrize(
    ("sizes", "most", "read"),
    [([], 10, 1), ([5, 5], 10, 2), ([5, 6, 5], 10, 2), ([0, 0, 0], 0, 3)],
)
async def test_a_body_is_read_to_its_end_or_its_limit(
    sizes: list[int], most: int, read: int
) -> None:
    messages = [
        {"type": "http.request", "body": b"x" * size, "more_body": i < len(sizes) - 1}
        for i, size in enumerate(sizes)
    ] or [{"type": "http.request"}]
    seen = 0

    async def receive() -> Any:
        nonlocal seen
        seen += 1
        return messages[seen - 1]

    assert await discard(receive, most) is True
    assert seen == read


async def test_a_body_whose_client_is_gone_is_said_so() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    assert await discard(receive, 10) is False


# The refusal


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("draining", "it is draining"),
        ("drained", "it has drained"),
        ("failed", "its drain has failed"),
        ("detached", "its successor has taken over"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_refusal_says_why_in_words(kind: str, phase: str, said: str) -> None:
    _, body = await refused(kind, phase)
    assert body["body"].decode() == (
        '{"title":"This release takes no new work","status":503,'
        '"code":"RUNTIME_DRAIN_INTAKE_REFUSED",'
        f'"detail":"{said}; the request was not touched and is safe to retry"}}'
    )


async def refused(kind: str, phase: str, *extra: tuple[str, str]) -> Messages:
    refusal = Refusal(
        retry_after=3,
        chance=Random(1),
        streams=True,
        extra=extra,
        body_bytes=10,
        body_readers=1,
    )
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    if kind == "http":
        await refusal.http(http_scope(), receive, send, phase=phase, patience=1)
    else:
        await refusal.websocket(websocket_scope(), receive, send, phase=phase)
    return sent


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_refusal_carries_extra_headers(kind: str) -> None:
    start, body = await refused(kind, "draining", ("x-extra", "yes"))
    headers = headers_of(start)
    assert start["status"] == 503
    assert headers["x-extra"] == "yes"
    assert 3 <= int(headers["retry-after"]) <= 6
    assert headers["drainmw-refused"] == "draining"
    problem = json.loads(body["body"])
    assert "safe to retry" in problem["detail"]
    assert problem["code"] == "RUNTIME_DRAIN_INTAKE_REFUSED"


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_no_header_of_a_refusal_may_be_set_a_second_time(kind: str) -> None:
    start, _ = await refused(kind, "draining")
    for name, value in headers_of(start).items():
        with pytest.raises(SettingsError, match=r"^refusal_headers must be"):
            load({}, refusal_headers={name.title(): value})
