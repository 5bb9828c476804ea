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


# The refusal of an event stream


def accepting(*values: str, **scope: Any) -> Any:
    """The scope of a request with one `Accept` for each value."""
    headers = [(b"accept", value.encode()) for value in values]
    return http_scope(**{"headers": headers, **scope})


async def answered_to(
    scope: Any,
    *,
    streams: bool = True,
    retry_after: int = 3,
    chance: Random | None = None,
    phase: str = "draining",
    extra: tuple[tuple[str, str], ...] = (),
) -> Messages:
    refusal = Refusal(
        retry_after=retry_after,
        chance=chance or Random(1),
        streams=streams,
        extra=extra,
        body_bytes=10,
        body_readers=1,
    )
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await refusal.http(scope, receive, send, phase=phase, patience=1)
    return sent


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream",  # a browser's EventSource
        "text/event-stream, */*",
        "*/*, text/event-stream",
        "text/event-stream, text/*, */*;q=0.1",
        "text/event-stream;q=0.5, */*",
        "text/event-stream;q=0.001",
        "text/event-stream, application/json;q=0.9",
        "application/json;q=0.9,text/event-stream",
        "text/event-stream;charset=utf-8",
        "text/event-stream ; charset=utf-8 ; q=0.9, text/html;q=0.8",
        "TEXT/Event-Stream",
        "text/event-stream;Q=0.9, text/html;Q=0.8",
        "text/event-stream, text/html;q=0",
        "text/event-stream, text/html;q=often",
        "text/event-stream, text/html;q=",
        "text/event-stream;q=0.2, text/html;q=nan",
        "text/event-stream;q=0.2, text/html;q=5",
        "text/event-stream;q=0.2, text/html;q=inf",
        "text/event-stream, text/html;q=0.5, text/event-stream;q=0.1",
        ", text/event-stream,",
    ],
)
async def test_who_prefers_an_event_stream_gets_one(accept: str) -> None:
    start, _ = await answered_to(accepting(accept))
    assert start["status"] == 200


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/*",
        "text/html",
        "application/json",
        "text/event-streams",
        "text/event-stream+json",
        "text/html, text/event-stream;q=0.9",
        "text/event-stream;q=0.9, text/html",
        "application/json, text/event-stream",
        "text/event-stream, application/json",
        "text/event-stream;q=0.5, text/html;q=0.5",
        "text/event-stream;q=0.5, text/html, application/json;q=0.1",
        "text/event-stream;q=0",
        "text/event-stream;q=0.0, */*",
        "text/event-stream;q=",
        "text/event-stream;q=often",
        "text/event-stream;q=nan",
        "text/event-stream;q=5, text/html",
        "text/event-stream;q=inf",
        "text/event-stream;q=-1",
        "text/event-stream;q=-inf",
        "text/html;x=text/event-stream",
    ],
)
async def test_who_does_not_gets_the_503_of_all(accept: str) -> None:
    start, body = await answered_to(accepting(accept))
    assert start["status"] == 503
    assert headers_of(start)["content-type"] == "application/problem+json"
    assert json.loads(body["body"])["status"] == 503


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((), 503),
        (("text/event-stream", "*/*"), 200),
        (("", "text/event-stream"), 200),
        (("text/html;q=0.9", "text/event-stream"), 200),
        (("text/event-stream;q=0.9", "text/html"), 503),
        (("text/html", "text/event-stream;q=0.9"), 503),
        (("text/event-stream;q=0.1", "text/html;q=0.5", "text/event-stream"), 200),
    ],
)
async def test_several_accept_headers_are_one(
    values: tuple[str, ...], status: int
) -> None:
    start, _ = await answered_to(accepting(*values))
    assert start["status"] == status


@pytest.mark.parametrize(
    "headers",
    [
        [(b"ACCEPT", b"text/event-stream")],
        [[bytearray(b"Accept"), bytearray(b"text/event-stream")]],
    ],
)
async def test_accept_comes_in_any_case_and_any_bytes(headers: Any) -> None:
    start, _ = await answered_to(http_scope(headers=headers))
    assert start["status"] == 200


async def test_an_accept_that_is_no_text_is_refused_like_any() -> None:
    start, _ = await answered_to(http_scope(headers=[(b"accept", b"\xff\xfe;q=\xff")]))
    assert start["status"] == 503


@pytest.mark.parametrize(
    "method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "QUERY", "get"]
)
async def test_only_a_get_is_answered_by_an_event_stream(method: str) -> None:
    start, _ = await answered_to(accepting("text/event-stream", method=method))
    assert start["status"] == 503


async def test_a_setting_makes_it_the_503_of_all() -> None:
    """For a proxy that would try a 503 elsewhere."""
    start, body = await answered_to(accepting("text/event-stream"), streams=False)
    plain, plain_body = await answered_to(http_scope(), streams=False)
    assert (start, body) == (plain, plain_body)
    assert start["status"] == 503


@pytest.mark.parametrize("phase", ["draining", "drained", "failed", "detached"])
async def test_the_stream_says_when_to_come_back_and_ends(phase: str) -> None:
    start, body = await answered_to(accepting("text/event-stream"), phase=phase)
    headers = headers_of(start)
    assert len(start["headers"]) == len(headers)
    assert 3 <= int(headers.pop("retry-after")) <= 6
    assert headers == {
        "content-type": "text/event-stream",
        "content-length": str(len(body["body"])),
        "cache-control": "no-store",
        "connection": "close",
        "drainmw-refused": phase,
    }
    assert body["body"].startswith(b"retry: ")
    assert body["body"].endswith(b"\n\n")
    assert body["body"].count(b"\n") == 2
    assert not body.get("more_body", False)


async def hint_of(retry_after: int, chance: Random) -> int:
    scope = accepting("text/event-stream")
    _, body = await answered_to(scope, retry_after=retry_after, chance=chance)
    return int(body["body"].removeprefix(b"retry: "))


@pytest.mark.parametrize("retry_after", [1, 3, 3600])
async def test_streams_come_back_at_random_in_milliseconds(retry_after: int) -> None:
    chance = Random(1)
    hints = [await hint_of(retry_after, chance) for _ in range(200)]
    assert all(1000 * retry_after <= hint <= 2000 * retry_after for hint in hints)
    early = sum(hint < 1500 * retry_after for hint in hints)
    assert 60 < early < 140
    assert len(set(hints)) > 150


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
async def test_retry_after_is_at_random_too(accept: str) -> None:
    chance = Random(1)
    answers = [await answered_to(accepting(accept), chance=chance) for _ in range(100)]
    hints = {headers_of(start)["retry-after"] for start, _ in answers}
    assert hints == {"3", "4", "5", "6"}


async def test_who_need_not_wait_is_not_made_to() -> None:
    start, body = await answered_to(accepting("text/event-stream"), retry_after=0)
    assert body["body"] == b"retry: 0\n\n"
    assert headers_of(start)["retry-after"] == "0"


@pytest.mark.parametrize(
    ("version", "closes"), [("1.0", True), ("1.1", True), ("2", False), ("3", False)]
)
async def test_the_stream_ends_its_connection_where_a_header_can(
    version: str, closes: bool
) -> None:
    scope = accepting("text/event-stream", http_version=version)
    start, _ = await answered_to(scope)
    assert start["status"] == 200
    assert (headers_of(start).get("connection") == "close") is closes
    assert ("connection" in headers_of(start)) is closes


async def test_the_stream_carries_extra_headers() -> None:
    """Without its header of CORS, a browser's EventSource would give up."""
    extra = (("access-control-allow-origin", "*"), ("x-extra", "yes"))
    start, _ = await answered_to(accepting("text/event-stream"), extra=extra)
    headers = headers_of(start)
    assert start["status"] == 200
    assert headers["access-control-allow-origin"] == "*"
    assert headers["x-extra"] == "yes"


async def test_no_header_of_the_stream_may_be_set_a_second_time() -> None:
    start, _ = await answered_to(accepting("text/event-stream"))
    for name, value in headers_of(start).items():
        with pytest.raises(SettingsError, match=r"^refusal_headers must be"):
            load({}, refusal_headers={name.title(): value})
