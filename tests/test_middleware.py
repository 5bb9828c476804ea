"""Admission: what is counted, what is refused, what is answered here."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainmw import Drain, DrainMiddleware
from drainmw.contract import BEGIN_PATH, METRICS_PATH, STATUS_PATH
from drainmw.errors import InstalledTwice, Misuse
from drainmw.testing import (
    AsgiDriver,
    ManualClock,
    ManualSource,
    http_scope,
    websocket_scope,
)
from tests.rig import (
    AUTHORIZED,
    NONCE,
    Client,
    Release,
    Waiting,
    begin_json,
    begin_request,
    calm,
    headers_of,
    hello,
    new_drain,
)

pytestmark = pytest.mark.anyio


async def stopped(release: Release, within: float = 2.0) -> str:
    async with asyncio.timeout(within):
        await release.drain.ended
    return str(release.drain.phase)


# Counting


async def test_a_request_is_counted_until_the_app_returns() -> None:
    app = Waiting(answers_first=True)
    release = Release(app)
    async with release.call() as call:
        assert (await call.receive_output())["status"] == 200
        assert (await call.receive_output())["body"] == b"hello"
        assert (await release.in_flight())["http"] == 1
        app.go.set()
        await call.wait()
    assert (await release.in_flight())["http"] == 0


async def test_a_stream_is_counted_until_its_last_byte() -> None:
    """H1: also with a `BaseHTTPMiddleware` inside, and across a begin."""
    go = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await go.wait()
        yield b"last"

    async def stream(_request: Request) -> Response:
        return StreamingResponse(chunks())

    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    inner = Starlette(
        routes=[Route("/", stream)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=pass_on)],
    )
    release = Release(inner)
    async with release.call() as call:
        await call.send_input({"type": "http.request"})
        start = await call.receive_output()
        assert "connection" not in headers_of(start)
        assert (await call.receive_output())["body"] == b"first"
        await release.client.begin()
        assert await release.state() == "draining"
        go.set()
        await call.wait()
        assert await stopped(release) == "drained"


async def test_a_background_task_is_counted_until_it_ends() -> None:
    """H10: though the response is out and the client is gone."""
    go = asyncio.Event()

    async def answer(_request: Request) -> Response:
        return PlainTextResponse("sent", background=BackgroundTask(go.wait))

    release = Release(Starlette(routes=[Route("/", answer)]))
    async with release.call() as call:
        await call.send_input({"type": "http.request"})
        await call.receive_output()
        await call.receive_output()
        await call.send_input({"type": "http.disconnect"})
        await release.client.begin()
        assert await release.state() == "draining"
        go.set()
        await call.wait()
        assert await stopped(release) == "drained"


async def raises_before(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("before the response")


async def raises_after(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("after its start")


async def raises_with_its_sender(_scope: Scope, _receive: Receive, send: Send) -> None:
    raise RuntimeError("keeps its send", send)


@pytest.mark.parametrize("app", [raises_before, raises_after, raises_with_its_sender])
@pytest.mark.parametrize("path", ["/", "/readyz"])
async def test_nothing_is_counted_after_an_app_that_raises(
    app: ASGIApp, path: str
) -> None:
    """H2: 500 times, before the response and after its start."""
    release = Release(app)
    for _ in range(500):
        async with release.call(http_scope(path)) as call:
            with pytest.raises(RuntimeError):
                await call.wait()
    assert (await release.in_flight())["http"] == 0
    assert len(release.drain.ledger.pool) <= 1


async def test_nothing_is_counted_after_a_cancelled_call() -> None:
    """H2: 500 times."""
    release = Release(Waiting())
    for _ in range(500):
        async with release.call():
            pass
    assert (await release.in_flight())["http"] == 0


async def test_nothing_is_counted_after_the_client_went_away() -> None:
    """H2: 500 times, the app waiting for the disconnect."""

    async def listens(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    release = Release(listens)
    for _ in range(500):
        async with release.call() as call:
            await call.send_input({"type": "http.disconnect"})
            await call.wait()
    assert (await release.in_flight())["http"] == 0


async def test_messages_pass_one_by_one_and_untouched() -> None:
    """H11: the first byte comes before the second is made; nothing is kept."""
    made: list[int] = []

    async def large(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(1000):
            made.append(number)
            chunk = {"type": "http.response.body", "body": b"x" * 1024}
            await send(chunk | {"more_body": number < 999})

    release = Release(large)
    seen = 0

    async def send(message: Message) -> None:
        nonlocal seen
        seen += len(message.get("body", b"")) // 1024
        assert len(made) == seen

    await release.app(http_scope(), _no_input, send)
    assert seen == 1000


async def _no_input() -> Message:
    raise AssertionError("nothing is received")


async def test_a_sender_that_outlives_its_request_never_reaches_another() -> None:
    kept: list[Send] = []

    async def keeps(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(send)
        await hello(scope, receive, send)

    release = Release(keeps)
    async with release.call() as first:
        await first.wait()
        async with release.call() as second:
            await second.wait()
            for _ in range(4):
                await first.receive_nothing(0)
            await kept[0]({"type": "http.response.body", "body": b"late"})
            bodies = [(await second.receive_output()).get("body") for _ in range(2)]
            assert bodies == [None, b"hello"]
            assert await second.receive_nothing()
    assert (await release.in_flight())["http"] == 0


async def test_a_sender_kept_in_a_task_never_reaches_another_request() -> None:
    tasks: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    async def later(send: Send) -> None:
        await go.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async def leaves_a_task(scope: Scope, receive: Receive, send: Send) -> None:
        tasks.append(asyncio.create_task(later(send)))
        await hello(scope, receive, send)

    release = Release(leaves_a_task)
    async with release.call() as first:
        await first.wait()
        async with release.call() as second:
            go.set()
            await asyncio.gather(*tasks[:1])
            assert [(await second.receive_output()).get("body") for _ in range(2)] == [
                None,
                b"hello",
            ]
            await asyncio.gather(*tasks)


async def test_tickets_are_recycled_where_nobody_keeps_a_sender() -> None:
    release = Release()
    for _ in range(50):
        await release.client.get("/")
    gc.collect()
    assert len(release.drain.ledger.pool) == 1
    assert (await release.client.report())["admittedTotal"] == 50


@pytest.mark.parametrize("type_", ["lifespan", "startup.of.another.protocol"])
async def test_what_is_neither_http_nor_a_websocket_passes_through(type_: str) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": message["type"] + ".complete"})

    release = Release(app)
    await release.drain.begin(begin_request())
    async with release.call({"type": type_}) as call:
        await call.send_input({"type": "lifespan.startup"})
        output = await call.receive_output()
        assert output == {"type": "lifespan.startup.complete"}
        assert not any(release.drain.ledger.counts().values())


class Starting:
    """An app that starts the engine of a source."""

    def __init__(self, source: ManualSource) -> None:
        self.found_held: list[bool] = []
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.found_held.append(self._source.is_held)
        await send({"type": "lifespan.startup.complete"})


async def test_an_app_that_starts_in_a_drain_finds_its_sources_held() -> None:
    """A worker that is reborn in a drain must not start its scheduler."""
    source = ManualSource("cron", "clock", blocked=["hold"])
    app = Starting(source)
    release = Release(app)
    release.drain.add_source(source)
    await release.drain.begin(begin_request())
    async with release.call({"type": "lifespan"}) as call:
        await calm()
        assert app.found_held == []
        source.unblock("hold")
        await call.receive_output()
        assert app.found_held == [True]


async def test_an_app_starts_though_a_source_cannot_be_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drainmw.release.BIRTH_PATIENCE", 0.01)
    source = ManualSource("cron", "clock", blocked=["hold"])
    app = Starting(source)
    release = Release(app)
    release.drain.add_source(source)
    await release.drain.begin(begin_request())
    async with release.call({"type": "lifespan"}) as call:
        await call.receive_output()
    assert app.found_held == [False]
    await release.drain.resume(NONCE)


async def test_a_scope_without_a_root_path_is_counted_too() -> None:
    app = Waiting()
    release = Release(app)
    scope = http_scope()
    del scope["root_path"]
    async with release.call(scope):
        assert (await release.in_flight())["http"] == 1


# Refusing


@pytest.mark.parametrize("settle", [True, False])
async def test_a_refused_request_has_not_touched_the_app_and_says_so(
    settle: bool,
) -> None:
    """H8: `Retry-After` and our marker header are there."""
    app = Waiting()
    release = Release(app, retry_after=7)
    blocker = release.call()
    if not settle:
        await blocker.start()
    await release.client.begin()
    await calm()
    answer = await release.client.http.post("/orders", content=b"one")
    assert len(app.calls) == int(not settle)
    assert answer.status_code == 503
    phase = "drained" if settle else "draining"
    assert 7 <= int(answer.headers["retry-after"]) <= 14
    assert answer.headers["drainmw-refused"] == phase
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["code"] == "RUNTIME_DRAIN_INTAKE_REFUSED"
    assert (await release.client.report())["refusedTotal"] == 1
    if not settle:
        await blocker.cancel()


async def test_a_refused_head_has_no_body() -> None:
    release = Release()
    await release.client.begin()
    async with release.call(http_scope(method="HEAD")) as call:
        start = await call.receive_output()
        assert start["status"] == 503
        assert headers_of(start)["retry-after"] in ("1", "2")
        assert (await call.receive_output())["body"] == b""


@pytest.mark.parametrize(
    ("version", "closes"), [("1.0", True), ("1.1", True), ("2", False), ("3", False)]
)
async def test_a_refusal_closes_the_connection_on_http_1_alone(
    version: str, closes: bool
) -> None:
    """H4, H5: never on HTTP/2 or 3."""
    release = Release()
    await release.client.begin()
    async with release.call(http_scope(http_version=version)) as call:
        await call.send_input({"type": "http.request"})
        headers = headers_of(await call.receive_output())
        assert ("connection" in headers) is closes


@pytest.mark.parametrize(
    ("version", "closes"), [("1.0", True), ("1.1", True), ("2", False), ("3", False)]
)
async def test_a_request_in_flight_at_begin_closes_its_connection(
    version: str, closes: bool
) -> None:
    """H4: its own 200 carries `Connection: close`."""
    app = Waiting()
    release = Release(app)
    async with release.call(http_scope(http_version=version)) as call:
        await release.client.begin()
        app.go.set()
        start = await call.receive_output()
        assert start["status"] == 200
        assert ("connection" in headers_of(start)) is closes


async def test_the_last_answer_replaces_what_the_app_says_of_its_connection() -> None:
    go = asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await go.wait()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"Connection", b"keep-alive"),
                    (b"Keep-Alive", b"timeout=5"),
                    (b"x-kept", b"yes"),
                ],
            }
        )

    release = Release(app)
    async with release.call() as call:
        await release.client.begin()
        go.set()
        start = await call.receive_output()
        assert start["headers"] == [(b"x-kept", b"yes"), (b"connection", b"close")]


@pytest.mark.parametrize("path", ["/", "/readyz", "/livez", STATUS_PATH])
async def test_every_answer_of_a_cordoned_release_closes_its_connection(
    path: str,
) -> None:
    """R5: in the lame-duck window, each HTTP/1 answer says so."""
    release = Release()
    release.drain.cordon()
    async with release.call(http_scope(path)) as call:
        assert headers_of(await call.receive_output())["connection"] == "close"
    release.drain.uncordon()
    async with release.call(http_scope(path)) as call:
        assert "connection" not in headers_of(await call.receive_output())


async def test_a_cordoned_release_admits_and_counts() -> None:
    app = Waiting()
    release = Release(app)
    release.drain.cordon()
    async with (
        release.call() as call,
        release.call(websocket_scope()),
    ):
        counts = await release.in_flight()
        assert (counts["http"], counts["websocket"]) == (1, 1)
        app.go.set()
        await call.wait()


# Reading what is refused


class Upload:
    """A client that has `chunks` to send and then says nothing more."""

    def __init__(self, chunks: int, size: int = 1024, *, ends: bool = True) -> None:
        self.read = 0
        self._chunks = chunks
        self._size = size
        self._ends = ends

    async def __call__(self) -> Message:
        if self.read == self._chunks and not self._ends:
            await asyncio.Event().wait()
        self.read += 1
        more = self.read < self._chunks or not self._ends
        return {"type": "http.request", "body": b"x" * self._size, "more_body": more}


async def refused(
    release: Release, upload: Upload, *headers: tuple[bytes, bytes]
) -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    chunked = (b"transfer-encoding", b"chunked")
    scope = http_scope(method="POST", headers=headers or [chunked])
    await release.app(scope, upload, send)
    assert headers_of(sent[0])["connection"] == "close"
    return int(sent[0]["status"])


async def drained_release(**settings: Any) -> Release:
    release = Release(**settings)
    await release.drain.begin(begin_request())
    await stopped(release)
    return release


async def test_a_refused_body_is_read_and_thrown_away() -> None:
    """H3: the client reads a 503, never a reset."""
    upload = Upload(8 * 1024)
    assert await refused(await drained_release(), upload) == 503
    assert upload.read == 8 * 1024


async def test_a_refused_body_is_read_up_to_sixteen_mebibytes() -> None:
    upload = Upload(64, size=2**20, ends=False)
    assert await refused(await drained_release(), upload) == 503
    assert upload.read == 17


async def test_a_body_that_declares_more_than_the_limit_is_not_read() -> None:
    upload = Upload(1)
    release = await drained_release(refused_body_bytes=1000)
    assert await refused(release, upload, (b"content-length", b"1001")) == 503
    assert upload.read == 0
    assert await refused(release, upload, (b"content-length", b"1000")) == 503
    assert upload.read == 1


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-length", b"0")],
        [(b"content-length", b"5"), (b"expect", b"100-continue")],
        [(b"transfer-encoding", b"chunked"), (b"Expect", b"100-Continue")],
        [(b"content-length", b"5" * 5000)],
        [(b"content-length", b"-5")],
        [(b"content-length", "\uff15".encode())],
    ],
    ids=["none", "empty", "expect", "expect chunked", "digits", "negative", "wide"],
)
async def test_nothing_is_read_where_nothing_is_to_come(
    headers: list[tuple[bytes, bytes]],
) -> None:
    release = await drained_release()
    async with release.call(http_scope(method="POST", headers=headers)) as call:
        assert (await call.receive_output())["status"] == 503


async def test_a_slow_refused_body_is_read_for_a_limited_time() -> None:
    release = await drained_release(refused_body_timeout=0.05)
    async with asyncio.timeout(1.0):
        assert await refused(release, Upload(3, ends=False)) == 503


@pytest.mark.parametrize(("late", "read"), [(5.9, 1), (6.0, 0), (60.0, 0)])
async def test_no_refused_body_is_read_a_second_past_the_deadline(
    late: float, read: int
) -> None:
    clock = ManualClock()
    release = await drained_release(clock=clock)
    clock.advance(late)
    upload = Upload(1)
    assert await refused(release, upload) == 503
    assert upload.read == read


async def test_only_so_many_refused_bodies_are_read_at_once() -> None:
    release = await drained_release(refused_body_readers=2)
    chunked = http_scope(method="POST", headers=[(b"transfer-encoding", b"chunked")])
    async with release.call(chunked) as first, release.call(chunked) as second:
        async with release.call(chunked) as third:
            assert (await third.receive_output())["status"] == 503
        assert await first.receive_nothing()
        await second.send_input({"type": "http.request"})
        assert (await second.receive_output())["status"] == 503
        async with release.call(chunked) as fourth:
            assert await fourth.receive_nothing()


async def test_a_client_that_goes_away_while_it_is_read_is_not_answered() -> None:
    release = await drained_release()
    scope = http_scope(method="POST", headers=[(b"content-length", b"5")])
    async with release.call(scope) as call:
        await call.send_input({"type": "http.disconnect"})
        await call.wait()
        assert await call.receive_nothing()


# Admit


def sticky(scope: dict[str, Any]) -> bool:
    return (b"x-session", b"here") in scope["headers"]


HERE = {"x-session": "here"}


async def test_a_session_that_lives_here_finishes_here() -> None:
    """H9: admitted and counted; unknown sessions are refused."""
    app = Waiting()
    release = Release(app, admit=sticky)
    async with release.call() as blocker:
        await release.client.begin()
        await calm()
        headers = [(b"x-session", b"here")]
        async with (
            release.call(http_scope(headers=headers)),
            release.call(websocket_scope(headers=headers)),
        ):
            counts = await release.in_flight()
            assert (counts["http"], counts["websocket"]) == (2, 1)
            assert (await release.client.get("/")).status_code == 503
            await blocker.cancel()
            await calm()
            assert await release.state() == "draining"
        assert await stopped(release) == "drained"


async def test_nobody_is_admitted_once_the_verdict_stands() -> None:
    """H9: once the verdict is being taken, and after it, nothing is admitted."""
    asked: list[str] = []

    def admit(scope: dict[str, Any]) -> bool:
        asked.append(scope["path"])
        return True

    release = Release(Waiting(), admit=admit)
    await release.client.begin()
    assert await stopped(release) == "drained"
    assert (await release.client.get("/late")).status_code == 503
    assert asked == []


async def test_nobody_is_admitted_while_the_verdict_is_read() -> None:
    """H9: the gate is closed while a source is asked for the last time."""
    source = ManualSource(blocked=["count"])
    release = Release(admit=lambda scope: True, count_timeout=5)
    release.drain.add_source(source)
    await release.client.begin()
    await calm()
    assert source.calls[-1] == "count"
    assert (await release.client.get("/")).status_code == 503
    source.unblock("count")
    assert await stopped(release) == "drained"


async def test_work_admitted_after_the_first_zero_is_waited_for() -> None:
    app = Waiting()
    source = ManualSource(blocked=["settled"])
    release = Release(app, admit=sticky)
    release.drain.add_source(source)
    await release.client.begin()
    await calm()
    async with release.call(http_scope(headers=[(b"x-session", b"here")])) as call:
        source.settle()
        await calm()
        assert await release.state() == "draining"
        app.go.set()
        await call.wait()
    assert await stopped(release) == "drained"


def raises(_scope: dict[str, Any]) -> bool:
    raise LookupError("no such session")


async def test_an_admit_that_raises_refuses(caplog: pytest.LogCaptureFixture) -> None:
    app = Waiting()
    release = Release(app, admit=raises)
    async with release.call():
        await release.client.begin()
        assert (await release.client.get("/")).status_code == 503
    assert "admit failed" in caplog.text


async def test_admit_gets_a_scope_of_its_own() -> None:
    def spoils(scope: dict[str, Any]) -> bool:
        scope.clear()
        return True

    app = Waiting()
    release = Release(app, admit=spoils)
    async with release.call():
        await release.client.begin()
        async with release.call(http_scope("/kept")):
            assert app.calls[-1]["path"] == "/kept"


async def test_admit_is_not_asked_while_serving_or_cordoned() -> None:
    release = Release(admit=raises)
    assert (await release.client.get("/")).status_code == 200
    release.drain.cordon()
    assert (await release.client.get("/")).status_code == 200


# WebSockets


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message["text"]})


async def test_a_handshake_during_a_drain_is_denied() -> None:
    """S3: 503 and `Retry-After`; the app is not called; no accept."""
    release = Release(_unreachable)
    await release.client.begin()
    async with release.call(websocket_scope()) as call:
        await call.send_input({"type": "websocket.connect"})
        start = await call.receive_output()
        assert (start["type"], start["status"]) == (
            "websocket.http.response.start",
            503,
        )
        headers = headers_of(start)
        assert headers["retry-after"] in ("1", "2")
        assert headers["drainmw-refused"] == str(release.drain.phase)
        body = await call.receive_output()
        assert body["type"] == "websocket.http.response.body"
        assert json.loads(body["body"])["code"] == "RUNTIME_DRAIN_INTAKE_REFUSED"
        await call.wait()
        assert await call.receive_nothing()


@pytest.mark.parametrize("extensions", [None, {}, {"http.response.push": {}}])
async def test_a_handshake_is_closed_where_it_cannot_be_denied(
    extensions: dict[str, Any] | None,
) -> None:
    """S3: a server turns this into a 403."""
    release = Release(_unreachable)
    await release.client.begin()
    scope = websocket_scope(extensions=extensions)
    async with release.call(scope) as call:
        await call.send_input({"type": "websocket.connect"})
        assert (await call.receive_output())["type"] == "websocket.close"
        await call.wait()


async def test_a_handshake_without_extensions_in_its_scope_is_closed() -> None:
    release = Release(_unreachable)
    await release.client.begin()
    scope = websocket_scope()
    del scope["extensions"]
    async with release.call(scope) as call:
        await call.send_input({"type": "websocket.connect"})
        assert (await call.receive_output())["type"] == "websocket.close"


async def test_a_handshake_whose_client_went_away_is_not_answered() -> None:
    release = Release(_unreachable)
    await release.client.begin()
    async with release.call(websocket_scope()) as call:
        await call.send_input({"type": "websocket.disconnect", "code": 1006})
        await call.wait()
        assert await call.receive_nothing()


async def _unreachable(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError("the app must not be called")


async def test_a_websocket_is_counted_until_the_app_has_cleaned_up() -> None:
    """S9: one second of clean-up after the disconnect."""
    clean = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        await clean.wait()

    release = Release(app)
    async with release.call(websocket_scope()) as call:
        await call.send_input({"type": "websocket.connect"})
        assert (await call.receive_output())["type"] == "websocket.accept"
        await release.client.begin()
        await call.send_input({"type": "websocket.receive", "text": "still here"})
        assert (await call.receive_output())["text"] == "still here"
        await call.send_input({"type": "websocket.disconnect", "code": 1000})
        await calm()
        assert (await release.in_flight())["websocket"] == 1
        assert await release.state() == "draining"
        clean.set()
        await call.wait()
        assert await stopped(release) == "drained"


@pytest.mark.parametrize("answer", ["websocket.accept", "websocket.close"])
async def test_a_handshake_in_flight_at_begin_is_counted_as_one(answer: str) -> None:
    """S11: accepted or refused by the app, never a protocol error."""
    go = asyncio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await go.wait()
        await send({"type": answer})

    release = Release(app)
    async with release.call(websocket_scope()) as call:
        await call.send_input({"type": "websocket.connect"})
        await release.client.begin()
        assert (await release.in_flight())["websocket"] == 1
        go.set()
        assert await call.receive_output() == {"type": answer}
        await call.wait()
        assert await stopped(release) == "drained"


async def test_nothing_is_counted_after_a_websocket_that_raises_or_is_cancelled() -> (
    None
):
    """H2: WebSockets too."""
    release = Release(raises_before)
    for _ in range(100):
        async with release.call(websocket_scope()) as call:
            with pytest.raises(RuntimeError):
                await call.wait()
    waiting = Release(Waiting(), drain=release.drain)
    for _ in range(100):
        async with waiting.call(websocket_scope()):
            assert (await waiting.in_flight())["websocket"] == 1
    assert (await release.in_flight())["websocket"] == 0


# Probes


def with_probes(status: int) -> ASGIApp:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"mine", "more_body": True})
        await send({"type": "http.response.body", "body": b" too"})

    return app


@pytest.mark.parametrize("path", ["/readyz", "/livez"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 204, 500, 503])
async def test_an_app_with_its_own_probe_keeps_it_while_serving(
    path: str, method: str, status: int
) -> None:
    release = Release(with_probes(status))
    answer = await release.client.http.request(method, path)
    assert answer.status_code == status
    if method == "GET" and status != 204:
        assert answer.content == b"mine too"


@pytest.mark.parametrize("path", ["/readyz", "/livez"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_404_of_the_app_is_replaced_by_our_200(path: str, method: str) -> None:
    release = Release(with_probes(404))
    answer = await release.client.http.request(method, path)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert (answer.json()["phase"] if method == "GET" else answer.content) in (
        "serving",
        b"",
    )


async def test_a_draining_release_is_not_ready_but_alive() -> None:
    """R4: readiness 503 with a reason, liveness 200, metrics and control 200."""
    app = Waiting()
    release = Release(app)
    async with release.call() as call:
        await release.client.begin()
        ready = await release.client.get("/readyz")
        assert (ready.status_code, ready.json()["detail"]) == (503, "draining")
        assert ready.headers["content-type"] == "application/problem+json"
        live = await release.client.get("/livez")
        assert (live.status_code, live.json()["alive"]) == (200, True)
        for path in (METRICS_PATH, "/.drainmw/v1/report"):
            answer = await release.client.control("GET", path)
            assert answer.status_code == 200
        assert len(app.calls) == 1
        app.go.set()
        await call.wait()
        await stopped(release)
    ready = await release.client.get("/readyz")
    assert (ready.status_code, ready.json()["detail"]) == (503, "drained")


async def test_a_cordoned_release_is_not_ready_and_asks_no_app() -> None:
    release = Release(_unreachable)
    release.drain.cordon()
    ready = await release.client.get("/readyz")
    assert (ready.status_code, ready.json()["detail"]) == (503, "cordoned")
    assert (await release.client.get("/livez")).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
@pytest.mark.parametrize("path", ["/readyz", "/livez"])
async def test_what_is_not_get_or_head_is_no_probe(path: str, method: str) -> None:
    """R4: it is refused like any work, and counted like any before."""
    app = Waiting()
    release = Release(app)
    async with release.call(http_scope(path, method)):
        assert (await release.in_flight())["http"] == 1
    await release.client.begin()
    async with release.call(http_scope(path, method)) as call:
        assert headers_of(await call.receive_output())["drainmw-refused"]
    assert len(app.calls) == 1


@pytest.mark.parametrize("path", ["/readyz", "/livez", BEGIN_PATH])
async def test_a_websocket_is_no_probe_and_no_control(path: str) -> None:
    """R4: a WebSocket on `/livez` is refused like any work."""
    release = Release(Waiting())
    async with release.call(websocket_scope(path)):
        assert (await release.in_flight())["websocket"] == 1
    await release.client.begin()
    async with release.call(websocket_scope(path)) as call:
        await call.send_input({"type": "websocket.connect"})
        assert (await call.receive_output())["status"] == 503


async def test_a_probe_that_is_passed_on_is_counted_like_any_request() -> None:
    app = Waiting()
    release = Release(app)
    async with release.call(http_scope("/readyz")) as call:
        assert (await release.in_flight())["http"] == 1
        app.go.set()
        await call.wait()
    assert (await release.in_flight())["http"] == 0


async def test_probes_can_be_moved_and_switched_off() -> None:
    release = Release(with_probes(404), readiness_path="/health", liveness_path=None)
    assert (await release.client.get("/health")).status_code == 200
    for path in ("/readyz", "/livez"):
        assert (await release.client.get(path)).status_code == 404
    await release.client.begin()
    assert (await release.client.get("/health")).json()["code"] == "RUNTIME_NOT_READY"
    refused = await release.client.get("/livez")
    assert refused.headers["drainmw-refused"]


@pytest.mark.parametrize(
    "path",
    [
        "/livez-orders",
        "/livez/",
        "/readyz/orders",
        "//readyz",
        "/Readyz",
        "/orders/livez",
        BEGIN_PATH + "/x",
        "/.drainmw/v1/",
        "/.drainmw/v1/reports",
        "/.forgezero",
    ],
)
async def test_nothing_else_becomes_exempt(path: str) -> None:
    """H12: `/livez-orders` is not `/livez`."""
    release = Release()
    await release.client.begin()
    for root in ("", "/api"):
        async with release.call(http_scope(path, root_path=root)) as call:
            assert headers_of(await call.receive_output())["drainmw-refused"]


@pytest.mark.parametrize("root", ["/api", "/api/", "/a/b"])
@pytest.mark.parametrize("prefixed", [True, False])
async def test_paths_match_below_a_root_path_whatever_the_server_does(
    root: str, prefixed: bool
) -> None:
    """H12: uvicorn puts the root path into the path, hypercorn does not."""
    release = Release(with_probes(404))
    before = root.rstrip("/") if prefixed else ""

    async def ask(path: str) -> int:
        authorization = AUTHORIZED["authorization"].encode()
        scope = http_scope(
            before + path, root_path=root, headers=[(b"authorization", authorization)]
        )
        async with release.call(scope) as call:
            return int((await call.receive_output())["status"])

    assert await ask("/readyz") == 200
    assert await ask("/.drainmw/v1/report") == 200
    assert await ask("/orders") == 404
    await release.client.begin()
    assert await ask("/livez") == 200
    assert await ask("/.drainmw/v1/report") == 200
    assert await ask("/orders") == 503


async def test_an_app_mounted_below_a_path_has_its_endpoints_there() -> None:
    """H12: mounted at `/sub`."""
    release = Release(with_probes(404))
    whole = Starlette(routes=[Mount("/sub", app=release.app)])
    client = Client(whole)
    assert (await client.get("/sub/readyz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 404
    answer = await client.control("POST", "/sub" + BEGIN_PATH, json=begin_json())
    assert answer.status_code == 202
    assert (await client.get("/sub/orders")).status_code == 503


# With other layers


async def test_a_browser_sees_a_503_with_cors_around_us() -> None:
    """H7: CORS middleware outermost; its headers stand on the refusal."""
    release = Release()
    app = CORSMiddleware(release.app, allow_origins=["https://shop.example"])
    client = Client(app)
    await release.drain.begin(begin_request())
    origin = {"origin": "https://shop.example"}
    answer = await client.get("/", headers=origin)
    assert answer.status_code == 503
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    preflight = await client.http.options(
        "/", headers={**origin, "access-control-request-method": "GET"}
    )
    assert preflight.status_code == 200


async def test_a_browser_sees_a_503_with_headers_of_ours() -> None:
    """H7: we are outermost; an option puts the headers on the refusal."""
    release = Release(
        refusal_headers={
            "Access-Control-Allow-Origin": "*",
            "Access-Control-Allow-Methods": "*",
        }
    )
    await release.drain.begin(begin_request())
    origin = {"origin": "https://shop.example"}
    answer = await release.client.get("/", headers=origin)
    assert answer.status_code == 503
    assert answer.headers["access-control-allow-origin"] == "*"
    asks = {**origin, "access-control-request-method": "PUT"}
    preflight = await release.client.http.options("/", headers=asks)
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert preflight.headers["access-control-allow-methods"] == "*"
    plain = await release.client.http.options("/", headers=origin)
    assert plain.status_code == 503


async def test_a_preflight_is_refused_where_no_headers_are_set() -> None:
    release = Release()
    await release.drain.begin(begin_request())
    asks = {"origin": "https://a.example", "access-control-request-method": "PUT"}
    answer = await release.client.http.options("/", headers=asks)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] in ("1", "2")


# Installing


@pytest.mark.parametrize(
    "given",
    [
        lambda: (new_drain(), hello),
        lambda: (new_drain(),),
        lambda: (None, new_drain()),
        lambda: ("shop:app", new_drain()),
        lambda: (hello, "drain"),
    ],
    ids=["swapped", "a drain alone", "no app", "a name", "no drain"],
)
def test_what_is_not_an_app_and_a_drain_is_an_error(given: Any) -> None:
    with pytest.raises(Misuse) as refused:
        DrainMiddleware(*given())
    assert str(refused.value) == (
        "DrainMiddleware takes the app first: DrainMiddleware(app, drain)"
    )


def home(_request: Request) -> Response:
    return PlainTextResponse("home")


def starlette_app() -> Starlette:
    return Starlette(routes=[Route("/", home)])


@pytest.mark.parametrize("shared", [True, False])
def test_two_middlewares_around_each_other_are_an_error(shared: bool) -> None:
    drain = new_drain()
    inner = DrainMiddleware(hello, drain)
    with pytest.raises(InstalledTwice, match="twice"):
        DrainMiddleware(inner, drain if shared else new_drain())


def test_a_middleware_around_another_layer_is_found_too() -> None:
    class Layer:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.app(scope, receive, send)

    inner: Any = Layer(Layer(DrainMiddleware(hello, new_drain())))
    with pytest.raises(InstalledTwice):
        DrainMiddleware(inner, new_drain())


@pytest.mark.parametrize("shared", [True, False])
async def test_add_middleware_twice_is_an_error_at_start(shared: bool) -> None:
    app = starlette_app()
    drain = new_drain()
    app.add_middleware(DrainMiddleware, drain=drain)
    app.add_middleware(DrainMiddleware, drain=drain if shared else new_drain())
    with pytest.raises(InstalledTwice):
        await AsgiDriverOf(app).lifespan()


@pytest.mark.parametrize("shared", [True, False])
def test_wrapping_an_app_that_has_added_us_is_an_error(shared: bool) -> None:
    app = starlette_app()
    drain = new_drain()
    app.add_middleware(DrainMiddleware, drain=drain)
    with pytest.raises(InstalledTwice):
        DrainMiddleware(app, drain if shared else new_drain())


async def test_adding_us_to_an_app_that_is_wrapped_is_an_error_at_start() -> None:
    app = starlette_app()
    drain = new_drain()
    wrapped = DrainMiddleware(app, drain)
    app.add_middleware(DrainMiddleware, drain=drain)
    async with AsgiDriver(wrapped, {"type": "lifespan", "state": {}}) as call:
        await call.send_input({"type": "lifespan.startup"})
        failed = await call.receive_output()
    assert failed["type"] == "lifespan.startup.failed"
    assert "installed twice" in failed["message"]


async def test_two_drains_around_each_other_count_each_request_once() -> None:
    """Where the second is built too late to be seen, the outer one decides."""
    app = starlette_app()
    outer, inner = new_drain(), new_drain()
    wrapped = DrainMiddleware(app, outer)
    app.add_middleware(DrainMiddleware, drain=inner)
    client = Client(wrapped)
    assert (await client.get("/")).text == "home"
    assert (await client.report())["admittedTotal"] == 1
    await client.begin()
    assert (outer.begun.is_set(), inner.begun.is_set()) == (True, False)
    assert (await client.get("/")).status_code == 503


class AsgiDriverOf:
    """Starts an app as a server does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def lifespan(self) -> None:
        async with AsgiDriver(self._app, {"type": "lifespan", "state": {}}) as call:
            await call.send_input({"type": "lifespan.startup"})
            message = await call.receive_output()
            assert message["type"] == "lifespan.startup.complete", message


def test_two_apps_may_share_one_drain_side_by_side() -> None:
    drain = new_drain()
    first, second = DrainMiddleware(hello, drain), DrainMiddleware(hello, drain)
    whole = Starlette(routes=[Mount("/a", app=first), Mount("/b", app=second)])
    with TestClient(whole) as client:
        assert client.get("/a/").status_code == client.get("/b/").status_code == 200


@pytest.mark.parametrize("how", ["wrap", "add", "list"])
async def test_starlette_takes_us_in_each_usual_way(how: str) -> None:
    drain = new_drain()
    app: ASGIApp
    if how == "wrap":
        app = DrainMiddleware(starlette_app(), drain)
    elif how == "add":
        app = starlette_app()
        app.add_middleware(DrainMiddleware, drain=drain)
    else:
        app = Starlette(
            routes=[Route("/", home)],
            middleware=[Middleware(DrainMiddleware, drain=drain)],
        )
    await AsgiDriverOf(app).lifespan()
    client = Client(app)
    assert (await client.get("/")).text == "home"
    assert (await client.begin()).status_code == 202
    assert (await client.get("/")).status_code == 503


def test_without_a_drain_it_makes_one_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAINMW_TOKEN", "z" * 43)
    monkeypatch.setenv("DRAINMW_RETRY_AFTER", "9")
    app: Any = DrainMiddleware(hello)
    assert app.app is hello
    assert isinstance(app.drain, Drain)
    assert app.drain.settings.retry_after == 9
    assert bool(app.drain.tokens)


@pytest.mark.parametrize("with_lifespan", [True, False])
def test_a_test_client_with_and_without_lifespan_drains(with_lifespan: bool) -> None:
    """Without `with`, each call has an event loop of its own."""
    app = starlette_app()
    app.add_middleware(DrainMiddleware, drain=new_drain())
    client = TestClient(app, headers={**AUTHORIZED, "host": "testserver"})
    if with_lifespan:
        with client:
            drive(client)
    else:
        drive(client)


def drive(client: TestClient) -> None:
    assert client.get("/").text == "home"
    assert client.post(BEGIN_PATH, json=begin_json()).json()["accepted"] is True
    for _ in range(100):
        status = client.get(STATUS_PATH, params={"nonce": NONCE}).json()["status"]
        if status != "draining":
            break
    assert status == "drained"
    assert client.get("/").status_code == 503
    answer = client.post("/.drainmw/v1/resume", json={"nonce": NONCE})
    assert answer.json() == {"phase": "serving", "epoch": 2}
    assert client.get("/").text == "home"


def test_requests_of_many_threads_are_all_counted_and_uncounted() -> None:
    drain = new_drain()
    release = Release(drain=drain)
    errors: list[BaseException] = []

    async def load() -> None:
        for _ in range(200):
            assert (await release_of_thread().client.get("/")).status_code == 200

    def release_of_thread() -> Release:
        return Release(drain=drain)

    def run() -> None:
        try:
            asyncio.run(load())
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert release.drain.ledger.is_idle
    assert release.drain.ledger.admitted_total == 800
