"""State on its way: the endpoints of both sides, and the fetch between them.

The vectors of the contract run over HTTP: exports and begins through the
endpoints, handoffs against a source on a real socket that answers as each says.
"""

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from drainmw.contract import (
    OFFER_PATH,
    STATE_BEGIN_PATH,
    STATE_EXPORT_PATH,
    STATE_STATUS_PATH,
)
from drainmw.core.canonical import canonical, loads
from drainmw.state import ImportContext
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    SOURCE,
    TARGET,
    TOKEN,
    Release,
    begin_request,
    new_drain,
)

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent / "contract"
EXPORTS = json.loads((HERE / "export.json").read_text())
BEGINS = json.loads((HERE / "state-begin.json").read_text())
HANDOFFS = loads((HERE / "state-handoff.json").read_bytes())

Vector = dict[str, Any]


class Sessions:
    """An adapter whose every answer the test decides."""

    phase = "serving"

    def __init__(self, value: Any = None, *, cursor: str = "c-1", **form: Any) -> None:
        self.protocol: str = form.get("protocol", "sessions/v1")
        self.schema_version: int = form.get("schema_version", 1)
        self.maximum_bytes: int = form.get("maximum_bytes", 1_048_576)
        self.value = value
        self.cursor = cursor
        self.accepts = True
        self.import_error: Exception | None = None
        self.may_import = asyncio.Event()
        self.may_import.set()
        self.imported: list[tuple[Any, ImportContext]] = []
        self.exports = 0

    def validate(self, value: Any) -> bool:
        return self.accepts

    async def export_state(self) -> tuple[str, Any]:
        self.exports += 1
        return self.cursor, self.value

    async def import_state(self, value: Any, context: ImportContext) -> None:
        if self.import_error is not None:
            raise self.import_error
        await self.may_import.wait()
        self.imported.append((value, context))


class Exporting(Sessions):
    """An adapter that exports when it may."""

    def __init__(self, value: Any = None, **form: Any) -> None:
        super().__init__(value, **form)
        self.is_asked, self.may_export = asyncio.Event(), asyncio.Event()

    async def export_state(self) -> tuple[str, Any]:
        self.is_asked.set()
        await self.may_export.wait()
        return await super().export_state()


def release_of(*adapters: Any, **settings: Any) -> Release:
    release = Release(**settings)
    for adapter in adapters:
        release.drain.add_state(adapter)
    return release


async def export(release: Release, **query: str) -> httpx.Response:
    params = {"sourceRevision": SOURCE, "targetRevision": TARGET, **query}
    return await release.client.control("GET", STATE_EXPORT_PATH, params=params)


def begin_json(url: str = "http://127.0.0.1:9/state", **members: Any) -> Vector:
    return {
        "protocol": "sessions/v1",
        "nonce": NONCE,
        "schemaVersion": 1,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "source": {"url": url, "authorization": f"Bearer {TOKEN}"},
        "timeoutMs": 5000,
        **members,
    }


async def begin(release: Release, body: Vector) -> httpx.Response:
    return await release.client.control("POST", STATE_BEGIN_PATH, json=body)


async def status(release: Release, nonce: str = NONCE) -> Vector:
    answer = await release.client.control(
        "GET", STATE_STATUS_PATH, params={"nonce": nonce}
    )
    assert answer.status_code == 200, answer.text
    told: Vector = answer.json()
    return told


async def outcome(release: Release, nonce: str = NONCE) -> Vector:
    """The first status that is not `pending`."""
    async with asyncio.timeout(5):
        while True:
            told = await status(release, nonce)
            if told["status"] != "pending":
                return told
            await asyncio.sleep(0.005)


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def source(answer: Answer) -> AsyncIterator[str]:
    """Something on loopback that is asked for state; gives its URL."""

    async def handle(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await answer(reader, writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/state"
    finally:
        server.close()


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    """An answer as it stands, and the end of the connection after it."""
    lines = [f"HTTP/1.1 {status} Whatever", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return answer


# The old side


@pytest.mark.parametrize("vector", EXPORTS)
async def test_the_endpoint_exports_as_the_reference_did(vector: Vector) -> None:
    given = vector["given"]
    adapter = Sessions(
        loads(given["valueJson"].encode()),
        cursor=given["cursor"],
        protocol=given["protocol"],
        schema_version=given["schemaVersion"],
        maximum_bytes=given["maximumBytes"],
    )
    result = vector["result"]
    if result.get("error") == "RUNTIME_STATE_ADAPTER_INVALID":
        with pytest.raises(Exception, match="must be"):
            release_of(adapter)
        return
    release = release_of(adapter)
    revisions = {n: given[n] for n in ("sourceRevision", "targetRevision")}
    answer = await export(release, **revisions)
    assert answer.headers["cache-control"] == "no-store"
    if "error" in result:
        invalid = result["error"] == "RUNTIME_STATE_REVISION_INVALID"
        assert answer.status_code == (400 if invalid else 500)
        assert answer.json()["code"] == result["error"]
        return
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert loads(answer.content) == result
    assert canonical(loads(answer.content)) == answer.content


async def test_of_several_adapters_one_is_named_and_of_one_it_may_be_left_out() -> None:
    one, two = Sessions([1]), Sessions([2], protocol="rates/v1")
    both, alone = release_of(one, two), release_of(one)
    assert (await export(alone)).json()["value"] == [1]
    assert (await export(both, protocol="rates/v1")).json()["value"] == [2]
    for answer in (await export(both), await export(alone, protocol="other")):
        assert answer.status_code == 404
        assert answer.json()["code"] == "RUNTIME_STATE_ADAPTER_NOT_FOUND"
        assert "sessions/v1" in answer.json()["detail"]


@pytest.mark.parametrize("phase", ["serving", "draining", "drained"])
async def test_state_is_exported_from_the_phase_that_its_adapter_names(
    phase: str,
) -> None:
    """What still changes does not go over."""
    adapter = Sessions("x")
    adapter.phase = phase
    release = release_of(adapter)
    order = ["serving", "draining", "drained"]
    go = asyncio.Event()
    release.drain.spawn(go.wait())
    for reached in order:
        if reached == "draining":
            await release.drain.begin(begin_request())
        elif reached == "drained":
            go.set()
            await release.drain.ended
        answer = await export(release)
        if order.index(reached) >= order.index(phase):
            assert answer.status_code == 200
        else:
            assert answer.status_code == 409
            assert answer.json()["code"] == "RUNTIME_STATE_NOT_EXPORTABLE"
            assert f"once this release is {phase}" in answer.json()["detail"]
    assert adapter.exports == 3 - order.index(phase)


async def test_an_adapter_that_names_no_phase_is_exported_when_nothing_changes_it() -> (
    None
):
    class Plain(Sessions):
        pass

    del Sessions.phase
    try:
        release = release_of(Plain("x"))
        assert (await export(release)).status_code == 409
        await release.drain.begin(begin_request())
        await release.drain.ended
        assert (await export(release)).status_code == 200
    finally:
        Sessions.phase = "serving"


async def test_a_failed_drain_exports_nothing() -> None:
    release = release_of(Sessions("x"))
    release.drain.spawn(asyncio.sleep(5))
    await release.drain.begin(begin_request(timeoutMs=100))
    await release.drain.ended
    assert (await export(release)).json()["code"] == "RUNTIME_STATE_NOT_EXPORTABLE"


async def test_a_resume_during_an_export_leaves_nothing_to_hand_over() -> None:
    """It serves again, so what was exported changes."""
    adapter = Exporting("x")
    adapter.phase = "drained"
    release = release_of(adapter)
    await release.drain.begin(begin_request())
    await release.drain.ended
    answer = asyncio.create_task(export(release))
    await adapter.is_asked.wait()
    await release.drain.resume(NONCE)
    adapter.may_export.set()
    assert (await answer).json()["code"] == "RUNTIME_STATE_NOT_EXPORTABLE"


def test_exports_of_several_loops_do_not_wait_for_each_other() -> None:
    """Two servers in two threads may share one `Drain`."""
    both = threading.Barrier(2, timeout=5)

    class Shared(Sessions):
        async def export_state(self) -> tuple[str, Any]:
            await asyncio.to_thread(both.wait)
            return await super().export_state()

    drain = new_drain()
    drain.add_state(Shared("x"))

    def exported(_loop: int) -> bytes:
        asked = drain.handoffs.export(None, SOURCE, TARGET)
        return asyncio.run(asyncio.wait_for(asked, 10)).body

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(exported, range(2))
    assert one == two


async def test_an_export_that_outlives_its_drain_is_refused() -> None:
    """It was resumed, changed, and drained again meanwhile."""
    release = Release()

    class Slow(Sessions):
        phase = "drained"

        async def export_state(self) -> tuple[str, Any]:
            await release.client.resume()
            await release.drain.begin(begin_request(OTHER_NONCE))
            await release.drain.ended
            return "c-1", "old"

    release.drain.add_state(Slow())
    await release.drain.begin(begin_request())
    await release.drain.ended
    answer = await export(release)
    assert (answer.status_code, answer.json()["code"]) == (
        409,
        "RUNTIME_STATE_NOT_EXPORTABLE",
    )


async def test_another_release_is_not_the_source() -> None:
    release = release_of(Sessions("x"), revision="e" * 40)
    answer = await export(release)
    assert answer.status_code == 409
    assert answer.json()["code"] == "RUNTIME_DRAIN_REVISION_MISMATCH"


async def test_an_adapter_that_raises_is_a_fault_that_says_nothing_of_the_state() -> (
    None
):
    class Broken(Sessions):
        async def export_state(self) -> tuple[str, Any]:
            raise RuntimeError("secret of somebody")

    answer = await export(release_of(Broken()))
    assert answer.status_code == 500
    assert answer.json()["code"] == "RUNTIME_STATE_EXPORT_INVALID"
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", [STATE_EXPORT_PATH, STATE_STATUS_PATH])
async def test_state_is_behind_the_token(path: str) -> None:
    release = release_of(Sessions("x"))
    assert (await release.client.get(path)).status_code == 401
    answer = await release.client.http.post(STATE_BEGIN_PATH, json=begin_json())
    assert answer.status_code == 401


# The old side: a listener of its own


async def offered(release: Release, **members: Any) -> httpx.Response:
    body = {"sourceRevision": SOURCE, "targetRevision": TARGET, "timeoutMs": 2000}
    return await release.client.control("POST", OFFER_PATH, json=body | members)


async def fetched(offer: Vector, token: str | None = None) -> httpx.Response:
    authorization = f"Bearer {token}" if token else offer["source"]["authorization"]
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(
            offer["source"]["url"], headers={"authorization": authorization}
        )


async def closed(offer: Vector) -> None:
    """Return once nobody listens there; until then nobody is answered."""
    with pytest.raises(httpx.HTTPError):
        async with asyncio.timeout(5):
            while True:
                assert (await fetched(offer, "w" * 43)).status_code == 401


async def test_an_offer_is_taken_once_and_not_with_the_control_token() -> None:
    release = release_of(Sessions([1]))
    answer = await offered(release)
    assert answer.status_code == 200
    offer = answer.json()
    assert offer["source"]["url"].startswith("http://127.0.0.1:")
    assert TOKEN not in answer.text
    for token in (TOKEN, "w" * 43):
        assert (await fetched(offer, token)).status_code == 401
    taken = await fetched(offer)
    assert (taken.status_code, taken.json()["value"]) == (200, [1])
    await closed(offer)


async def test_an_offer_is_all_that_a_new_release_needs() -> None:
    old, new = release_of(Sessions({"a": 1})), release_of(adapter := Sessions())
    offer = (await offered(old)).json()
    await begin(new, {**offer, "nonce": NONCE, "timeoutMs": 2000})
    assert (await outcome(new))["status"] == "acknowledged"
    assert [value for value, _ in adapter.imported] == [{"a": 1}]
    await closed(offer)


@pytest.mark.parametrize(
    ("phase", "members", "status", "code"),
    [
        ("drained", {}, 409, "RUNTIME_STATE_NOT_EXPORTABLE"),
        ("serving", {"protocol": "other"}, 404, "RUNTIME_STATE_ADAPTER_NOT_FOUND"),
        ("serving", {"protocol": 5}, 400, "RUNTIME_STATE_REQUEST_INVALID"),
        ("serving", {"timeoutMs": 1}, 400, "RUNTIME_STATE_REQUEST_INVALID"),
        ("serving", {"targetRevision": "x"}, 400, "RUNTIME_STATE_REQUEST_INVALID"),
    ],
)
async def test_what_cannot_be_exported_is_not_offered(
    phase: str, members: Vector, status: int, code: str
) -> None:
    adapter = Sessions("x")
    adapter.phase = phase
    answer = await offered(release_of(adapter), **members)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_only_so_many_offers_stand_at_once() -> None:
    release = release_of(Sessions("x"))
    offers = [(await offered(release, timeoutMs=20_000)).json() for _ in range(9)]
    await closed(offers[0])
    for offer in offers[1:]:
        assert (await fetched(offer)).status_code == 200
        await closed(offer)


async def test_an_adapter_need_not_be_async() -> None:
    """What it has imported is never reported as failed."""

    class Plain(Sessions):
        def export_state(self) -> Any:
            return "c-1", [1]

        def import_state(self, value: Any, context: ImportContext) -> Any:
            self.imported.append((value, context))

    old, new = release_of(Plain()), release_of(adapter := Plain())
    offer = (await offered(old)).json()
    await begin(new, {**offer, "nonce": NONCE, "timeoutMs": 2000})
    assert (await outcome(new))["status"] == "acknowledged"
    assert len(adapter.imported) == 1
    await closed(offer)


async def test_an_offer_that_nobody_takes_ends_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offer = (await offered(release_of(Sessions("x")), timeoutMs=100)).json()
    await closed(offer)
    assert "offer of state not taken" in caplog.text


async def test_an_offer_has_one_taker_also_where_two_come_at_once() -> None:
    """The other one is told so at once, while the first is still served."""
    adapter = Exporting()
    offer = (await offered(release_of(adapter))).json()
    first = asyncio.create_task(fetched(offer))
    await adapter.is_asked.wait()
    assert (await fetched(offer)).status_code == 404
    adapter.may_export.set()
    assert (await first).status_code == 200
    assert adapter.exports == 1
    await closed(offer)


async def test_an_offer_that_was_answered_by_an_error_can_be_taken_again() -> None:
    adapter = Sessions([1])
    offer = (await offered(release_of(adapter))).json()
    adapter.accepts = False
    assert (await fetched(offer)).status_code == 500
    adapter.accepts = True
    assert (await fetched(offer)).status_code == 200


async def test_an_offer_leaves_the_logs_of_the_server_around_it_alone() -> None:
    access = logging.getLogger("uvicorn.access")
    handler = logging.NullHandler()
    access.addHandler(handler)
    try:
        offer = (await offered(release_of(Sessions([1])))).json()
        await fetched(offer)
        assert handler in access.handlers
        assert access.propagate
    finally:
        access.removeHandler(handler)


# The new side: beginning


@pytest.mark.parametrize(
    "vector", BEGINS["single"], ids=[v["name"] for v in BEGINS["single"]]
)
async def test_the_endpoint_answers_a_begin_as_the_reference_did(
    vector: Vector,
) -> None:
    release = release_of(Sessions())
    body = {**vector["request"], "timeoutMs": vector["timeoutMs"]}
    answer = await begin(release, body)
    if "error" in vector:
        assert (answer.status_code, answer.json()["code"]) == (400, vector["error"])
        return
    assert (answer.status_code, answer.json()) == (202, vector["result"])
    assert (await outcome(release))["failure"] == "RUNTIME_STATE_SOURCE_UNREACHABLE"


@pytest.mark.parametrize("name", BEGINS["sequences"])
async def test_begins_meet_as_they_did_at_the_reference(name: str) -> None:
    release = release_of(Sessions())
    for scene in BEGINS["sequences"][name]:
        body = {**scene["request"], "timeoutMs": scene["timeoutMs"]}
        answer = await begin(release, body)
        if "error" in scene:
            wrong = scene["error"].endswith("INVALID")
            assert answer.status_code == (400 if wrong else 409)
            assert answer.json()["code"] == scene["error"]
        else:
            assert (answer.status_code, answer.json()) == (202, scene["result"])
    await outcome(release)


async def test_a_nonce_of_one_protocol_is_refused_for_another() -> None:
    release = release_of(Sessions(), Sessions(protocol="rates/v1"))
    assert (await begin(release, begin_json())).status_code == 202
    other = begin_json(protocol="rates/v1")
    answer = await begin(release, other)
    assert answer.json()["code"] == "RUNTIME_STATE_ALREADY_STARTED"
    assert (await begin(release, other | {"nonce": OTHER_NONCE})).status_code == 202
    for nonce in (NONCE, OTHER_NONCE):
        await outcome(release, nonce)


async def test_a_handoff_that_nobody_began_is_not_found() -> None:
    release = release_of(Sessions())
    for query in ({"nonce": NONCE}, {}):
        answer = await release.client.control("GET", STATE_STATUS_PATH, params=query)
        assert answer.status_code == 404
        assert answer.json()["code"] == "RUNTIME_STATE_NOT_FOUND"


async def test_another_release_is_not_the_target() -> None:
    release = release_of(Sessions(), revision="e" * 40)
    answer = await begin(release, begin_json())
    assert (answer.status_code, answer.json()["code"]) == (
        409,
        "RUNTIME_DRAIN_REVISION_MISMATCH",
    )


# The new side: fetching and importing


@pytest.mark.parametrize(
    "vector", HANDOFFS["cases"], ids=[v["name"] for v in HANDOFFS["cases"]]
)
async def test_an_answer_leads_to_what_the_reference_reported(vector: Vector) -> None:
    adapter = Sessions(maximum_bytes=vector["maximumBytes"])
    adapter.accepts = not vector.get("adapterRejects", False)
    if "importFails" in vector:
        adapter.import_error = RuntimeError(vector["importFails"])
    release = release_of(adapter)
    answer = vector["response"]
    headers = {name.replace("-", "_"): v for name, v in answer["headers"].items()}
    answers = says(answer["status"], answer["body"].encode(), **headers)
    async with source(answers) as url:
        request = HANDOFFS["request"]
        body = {**request, "timeoutMs": 5000}
        body["source"] = {**request["source"], "url": url}
        assert (await begin(release, body)).status_code == 202
        assert await outcome(release, request["nonce"]) == vector["outcome"]
    expected = [vector["imported"]] if vector.get("imported") else []
    assert [
        {
            "value": value,
            "context": {
                "sourceRevision": context.source_revision,
                "targetRevision": context.target_revision,
                "cursor": context.cursor,
                "digest": context.digest,
            },
        }
        for value, context in adapter.imported
    ] == expected


async def test_what_one_release_exports_the_other_one_imports() -> None:
    """Over a real socket, from export to acknowledgement."""
    old, new = Sessions({"seen": ["a", 1.5]}), Sessions()
    releases = release_of(old), release_of(new)

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert f": Bearer {TOKEN}\r\n" in head
        body = (await export(releases[0])).content
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    async with source(answer) as url:
        await begin(releases[1], begin_json(url))
        told = await outcome(releases[1])
    assert (told["status"], told["cursor"]) == ("acknowledged", "c-1")
    [(value, context)] = new.imported
    assert value == {"seen": ["a", 1.5]}
    assert (context.nonce, context.provisional) == (NONCE, True)


async def endless_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{")
    while True:  # until the client has closed
        writer.write(b" " * 65536)
        await writer.drain()


async def endless_head(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"x" * 4096 + b"\r\n")
        await writer.drain()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"half')
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (endless_body, "RUNTIME_STATE_SOURCE_TOO_LARGE"),
        (endless_head, "RUNTIME_STATE_SOURCE_UNREACHABLE"),
        (resets, "RUNTIME_STATE_SOURCE_UNREACHABLE"),
        (
            says(302, location="http://127.0.0.1:9/"),
            "RUNTIME_STATE_SOURCE_REDIRECTED",
        ),
        (says(200, b"{}", content_encoding="gzip"), "RUNTIME_STATE_ENVELOPE_INVALID"),
        (says(200, b"{}", content_length="9"), "RUNTIME_STATE_SOURCE_UNREACHABLE"),
        (says(200, b"xx", content_length="2"), "RUNTIME_STATE_ENVELOPE_INVALID"),
    ],
)
async def test_an_answer_that_may_not_be_read_fails(
    answer: Answer, failure: str
) -> None:
    """X7: in good time, and no more of it is read than may be."""
    release = release_of(adapter := Sessions())
    async with source(answer) as url:
        await begin(release, begin_json(url))
        assert (await outcome(release))["failure"] == failure
    assert adapter.imported == []


async def test_nobody_who_answers_is_unreachable() -> None:
    release = release_of(Sessions())
    async with source(says(200)) as url:
        pass
    for nonce, host in ((NONCE, "127.0.0.1"), (OTHER_NONCE, "localhost")):
        release = release_of(Sessions())
        body = begin_json(url.replace("127.0.0.1", host), nonce=nonce)
        await begin(release, body)
        told = await outcome(release, nonce)
        assert told["failure"] == "RUNTIME_STATE_SOURCE_UNREACHABLE"


async def test_a_proxy_of_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The token never leaves loopback."""
    asked: list[None] = []

    async def proxy(
        _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked.append(None)

    async with source(proxy) as proxy_url, source(says(204)) as url:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy_url)
        release = release_of(Sessions())
        await begin(release, begin_json(url))
        assert (await outcome(release))["failure"] == "RUNTIME_STATE_ENVELOPE_INVALID"
    assert asked == []


async def test_a_fetch_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no use for them, and they would hold the event loop up."""
    read: list[None] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_verify_locations", lambda *_, **__: read.append(None)
    )
    release = release_of(Sessions())
    async with source(says(204)) as url:
        await begin(release, begin_json(url))
        await outcome(release)
    assert read == []


@pytest.mark.parametrize("where", ["head", "body", "import"])
async def test_one_deadline_holds_over_everything(where: str) -> None:
    """Whatever comes too late has changed nothing."""
    new = Sessions()
    new.may_import.clear()
    release = release_of(new)
    body = (await export(release_of(Sessions([1])))).content
    ever = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if where != "head":
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        if where == "import":
            writer.write(body)
            return
        await ever.wait()

    async with source(slow) as url:
        await begin(release, begin_json(url, timeoutMs=200))
        told = await outcome(release)
        ever.set()
    assert told["failure"] == "RUNTIME_STATE_TIMEOUT"
    assert new.imported == []


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("nothing to say")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (Unspeakable(), "Unspeakable"),
        (BaseExceptionGroup("several", [asyncio.CancelledError()]), "several"),
        (TimeoutError("the store is slow"), "the store is slow"),
    ],
)
async def test_whatever_ends_an_import_ends_its_handoff(
    error: BaseException, failure: str
) -> None:
    """Before the deadline, and by its own name."""

    class Ending(Sessions):
        async def import_state(self, value: Any, context: ImportContext) -> None:
            raise error

    release = release_of(Ending())
    body = (await export(release_of(Sessions([1])))).content
    async with source(says(200, body)) as url:
        await begin(release, begin_json(url))
        assert failure in (await outcome(release))["failure"]


async def test_a_failed_handoff_is_final_in_its_process() -> None:
    release = release_of(adapter := Sessions())
    async with source(says(503)) as url:
        await begin(release, begin_json(url))
        assert (await outcome(release))["status"] == "failed"
    assert (await begin(release, begin_json(url))).json()["duplicate"] is True
    answer = await begin(release, begin_json(url, nonce=OTHER_NONCE))
    assert answer.json()["code"] == "RUNTIME_STATE_ALREADY_STARTED"
    assert adapter.imported == []


async def test_neither_log_nor_status_tells_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = release_of(Sessions())
    secret = "s" * 43
    source_of = {"url": "http://127.0.0.1:9/x", "authorization": f"Bearer {secret}"}
    with caplog.at_level("DEBUG"):
        await begin(release, begin_json(source=source_of))
        told = await outcome(release)
    assert secret not in caplog.text
    assert secret not in json.dumps(told)
