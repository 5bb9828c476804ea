"""The doors before the control endpoints, and what stands behind them."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from drainmw import Drain
from drainmw.contract import (
    ACKNOWLEDGE_PATH,
    BEGIN_PATH,
    CONFIRM_PATH,
    CORDON_PATH,
    DETACH_PATH,
    DISCARD_PATH,
    HANDOFFS_PATH,
    METRICS_PATH,
    OFFER_PATH,
    REPORT_PATH,
    RESUME_PATH,
    SEAL_PATH,
    STATE_BEGIN_PATH,
    STATE_EXPORT_PATH,
    STATE_STATUS_PATH,
    STATUS_PATH,
    UNCORDON_PATH,
)
from drainmw.control import Control
from drainmw.testing import AsgiDriver, http_scope
from tests.rig import (
    AUTHORIZED,
    NONCE,
    OTHER_NONCE,
    OTHER_REVISION,
    SOURCE,
    TOKEN,
    Client,
    Release,
    Waiting,
    begin_json,
    headers_of,
    hello,
    new_drain,
)

pytestmark = pytest.mark.anyio

POSTS = (
    *(BEGIN_PATH, RESUME_PATH, CORDON_PATH, UNCORDON_PATH, DETACH_PATH),
    *(STATE_BEGIN_PATH, OFFER_PATH, SEAL_PATH),
    *(ACKNOWLEDGE_PATH, CONFIRM_PATH, DISCARD_PATH),
)
GETS = (
    *(STATUS_PATH, REPORT_PATH, METRICS_PATH),
    *(STATE_EXPORT_PATH, STATE_STATUS_PATH, HANDOFFS_PATH),
)
ALL = (*POSTS, *GETS)
JSON = {"content-type": "application/json"}

CROSS_SITE = {"sec-fetch-site": "cross-site"}
WRONG = {"authorization": "Bearer " + "w" * 43}


class Asked:
    """One answer, and whether it is in the form of every control answer."""

    def __init__(self, status: int, code: str | None, headers: Any) -> None:
        self.status = status
        self.code = code
        self.headers = headers


async def ask(
    release: Release, method: str, path: str, headers: dict[str, str], body: bytes = b""
) -> Asked:
    answer = await release.client.http.request(
        method, path, headers=headers, content=body
    )
    assert answer.headers["cache-control"] == "no-store"
    code = None
    if answer.status_code >= 400 and method != "HEAD":
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert set(problem) <= {"title", "status", "code", "detail", "resumed"}
        assert problem["title"]
        code = problem["code"]
    return Asked(answer.status_code, code, answer.headers)


# Each door, and that the earlier of two neighbours wins

LARGE = b"x" * 20_000

DOORS: list[tuple[str, int, str, dict[str, str], str, bytes, bool]] = [
    # what, status, code, headers, method, body, a token is configured
    ("marks", 403, "FORBIDDEN", CROSS_SITE, "GET", LARGE, False),
    ("no token", 403, "FORBIDDEN", WRONG, "GET", LARGE, False),
    ("wrong token", 401, "UNAUTHORIZED", WRONG, "GET", LARGE, True),
    ("method", 405, "METHOD_NOT_ALLOWED", AUTHORIZED, "GET", LARGE, True),
    ("media type", 415, "MEDIA_TYPE", AUTHORIZED, "POST", LARGE, True),
    ("size", 413, "BODY_TOO_LARGE", AUTHORIZED | JSON, "POST", LARGE, True),
    ("JSON", 400, "", AUTHORIZED | JSON, "POST", b"{", True),
]


@pytest.mark.parametrize("path", [BEGIN_PATH, RESUME_PATH])
@pytest.mark.parametrize("door", DOORS, ids=[door[0] for door in DOORS])
async def test_the_doors_are_tried_in_the_order_of_the_contract(
    door: tuple[str, int, str, dict[str, str], str, bytes, bool], path: str
) -> None:
    """Each request is wrong at its door and, where it can be, at all later ones."""
    _, status, code, headers, method, body, has_token = door
    release = Release(hello, **({} if has_token else {"drain": closed_drain()}))
    answer = await ask(release, method, path, headers, body)
    expected = f"RUNTIME_CONTROL_{code}" if code else "RUNTIME_DRAIN_REQUEST_INVALID"
    assert (answer.status, answer.code) == (status, expected)
    assert release.drain.phase == "serving"


async def test_who_comes_without_the_token_reads_what_is_missing() -> None:
    """Each by its own title, and by a detail that stands alone in a terminal."""
    closed, release = Release(drain=closed_drain()), Release()
    answers = [
        await closed.client.get(REPORT_PATH, headers=AUTHORIZED),
        await release.client.get(REPORT_PATH),
        await release.client.get(REPORT_PATH, headers=WRONG),
        await release.client.get(REPORT_PATH, headers=AUTHORIZED | CROSS_SITE),
    ]
    said = [(a.status_code, a.json()["title"], a.json()["detail"]) for a in answers]
    needed = "The control token is needed"
    assert said[:3] == [
        (
            403,
            "Control is closed",
            "this app has no token: set DRAINMW_TOKEN or DRAINMW_TOKEN_FILE there",
        ),
        (401, needed, "send the control token once, as Authorization: Bearer <token>"),
        (401, needed, "Authorization must be Bearer and the token of this app"),
    ]
    assert said[3][:2] == (403, "Not from here")


def closed_drain() -> Drain:
    return Drain()


def test_no_endpoint_is_missing_here() -> None:
    assert Control(new_drain()).paths == set(ALL)


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    ("headers", "status"),
    [({**CROSS_SITE, **WRONG}, 403), (WRONG, 401), (AUTHORIZED, 405)],
)
async def test_every_endpoint_has_the_same_first_doors(
    path: str, headers: dict[str, str], status: int
) -> None:
    method = "GET" if path in POSTS else "POST"
    answer = await ask(Release(), method, path, headers, LARGE)
    assert answer.status == status


# Marks of a browser, and Host


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    "marks",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_a_web_page_gets_in_nowhere(path: str, marks: dict[str, str]) -> None:
    """X3: not even with the token."""
    release = Release()
    method = "POST" if path in POSTS else "GET"
    answer = await ask(release, method, path, AUTHORIZED | JSON | marks, b"{}")
    assert (answer.status, answer.code) == (403, "RUNTIME_CONTROL_FORBIDDEN")
    assert release.drain.phase == "serving"


async def test_a_form_of_a_web_page_changes_nothing() -> None:
    """X3: `text/plain`, which needs no preflight, and no token."""
    release = Release()
    body = str(begin_json()).encode()
    headers = {"content-type": "text/plain"}
    answer = await ask(release, "POST", BEGIN_PATH, headers, body)
    assert answer.status == 401
    assert release.drain.phase == "serving"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("10.1.2.3:80", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("localhost.", True),
        ("app", True),
        ("shop-blue_1", True),
        ("x.localhost", True),
        ("blue.shop.internal", True),
        ("host.docker.internal:80", True),
        ("box.local", True),
        ("a.test", True),
        ("evil.example", False),
        ("evil.com:8000", False),
        ("127.0.0.1.evil.com", False),
        ("localhost.evil.com", False),
        ("internal.com", False),
        ("", False),
        ("x y", False),
        (".local", False),
        ("127.0.0.1@evil.com", False),
        ("[::1]evil.com", False),
        ("localhost:@evil.com", False),
        ("localhost:80:80", False),
    ],
)
async def test_a_foreign_host_is_refused(host: str, known: bool) -> None:
    """X3: a name that somebody could register and point here (DNS rebinding)."""
    answer = await ask(Release(), "GET", REPORT_PATH, AUTHORIZED | {"host": host})
    assert answer.status == (200 if known else 403)


async def test_a_host_can_be_made_known() -> None:
    release = Release(control_hosts="shop.example, admin.shop.example")
    for host in ("shop.example", "SHOP.example:8000", "admin.shop.example"):
        headers = AUTHORIZED | {"host": host}
        assert (await ask(release, "GET", REPORT_PATH, headers)).status == 200
    headers = AUTHORIZED | {"host": "other.shop.example"}
    assert (await ask(release, "GET", REPORT_PATH, headers)).status == 403


async def test_two_hosts_are_refused_and_none_is_not() -> None:
    authorization = (b"authorization", AUTHORIZED["authorization"].encode())
    for hosts, status in (([b"127.0.0.1", b"localhost"], 403), ([], 200)):
        headers = [(b"host", host) for host in hosts] + [authorization]
        scope = {**http_scope(REPORT_PATH), "headers": headers}
        async with Release().call(scope) as call:
            assert (await call.receive_output())["status"] == status


# The token


@pytest.mark.parametrize("path", ALL)
async def test_without_a_configured_token_everything_is_closed(path: str) -> None:
    """X1: closed, whatever a request carries."""
    release = Release(drain=closed_drain())
    method = "POST" if path in POSTS else "GET"
    for headers in (AUTHORIZED, {}, {"authorization": "Bearer "}):
        answer = await ask(release, method, path, headers | JSON, b"{}")
        assert (answer.status, answer.code) == (403, "RUNTIME_CONTROL_FORBIDDEN")


def test_a_release_without_a_token_says_so_once_at_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """X1: with one clear line in the log."""
    Release(drain=closed_drain())
    lines = [r.getMessage() for r in caplog.records if "control" in r.getMessage()]
    assert len(lines) == 1
    assert "DRAINMW_TOKEN" in lines[0]
    caplog.clear()
    Release()
    assert caplog.records == []


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN.upper()}",
        "Bearer \xff",
    ],
)
async def test_another_authorization_is_refused(
    path: str, authorization: str | None
) -> None:
    headers: Any = dict(JSON)
    if authorization is not None:
        headers["authorization"] = authorization.encode("latin-1")
    release = Release()
    answer = await ask(release, "POST" if path in POSTS else "GET", path, headers)
    assert (answer.status, answer.code) == (401, "RUNTIME_CONTROL_UNAUTHORIZED")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert release.drain.phase == "serving"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_read_in_any_case(scheme: str) -> None:
    headers = {"authorization": f"{scheme} {TOKEN}"}
    assert (await ask(Release(), "GET", REPORT_PATH, headers)).status == 200


async def test_two_authorizations_are_refused() -> None:
    pair = (b"authorization", AUTHORIZED["authorization"].encode())
    async with Release().call(http_scope(REPORT_PATH, headers=[pair, pair])) as call:
        assert (await call.receive_output())["status"] == 401


@pytest.mark.parametrize(
    "forwarded",
    [
        {},
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=127.0.0.1"},
        {"x-real-ip": "127.0.0.1"},
    ],
)
@pytest.mark.parametrize(
    "more",
    [
        {"client": ("127.0.0.1", 1)},
        {"client": ("::1", 1)},
        {"client": None},
        {"server": ("/run/app.sock", None), "client": None},
        {"client": ("", 0), "server": ("unix:/run/app.sock", 0)},
    ],
)
async def test_no_door_opens_by_address(
    forwarded: dict[str, str], more: dict[str, Any]
) -> None:
    """X4: a reverse proxy on the same host is an address like any other."""
    headers = [(k.encode(), v.encode()) for k, v in forwarded.items()]
    for release, status in (
        (Release(), 401),
        (Release(drain=closed_drain()), 403),
    ):
        scope = http_scope(REPORT_PATH, headers=headers, **more)
        async with release.call(scope) as call:
            assert (await call.receive_output())["status"] == status


async def test_the_token_stands_in_no_answer_no_log_and_no_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = Release()
    caplog.set_level(logging.DEBUG)
    shown = [repr(release.drain.settings), repr(release.drain.tokens)]
    shown += [repr(vars(release.drain)), str(release.drain.settings)]
    for path in ALL:
        for method in ("GET", "POST", "DELETE"):
            answer = await release.client.control(method, path, content=b"{")
            shown += [answer.text, repr(answer.headers)]
    await release.client.begin()
    shown += [(await release.client.status()).text, caplog.text]
    shown += [str(vars(record)) for record in caplog.records]
    assert not any(TOKEN in text for text in shown)


async def test_a_changed_token_file_is_taken_up(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    drain = new_drain(token=None, token_file=file)
    release = Release(drain=drain)
    assert (await ask(release, "GET", REPORT_PATH, AUTHORIZED)).status == 200
    file.write_text("w" * 43 + "\n" + TOKEN + "\n")
    assert (await ask(release, "GET", REPORT_PATH, WRONG)).status == 200
    file.write_text("w" * 43)
    assert (await ask(release, "GET", REPORT_PATH, AUTHORIZED)).status == 401
    file.write_text("not a token")
    assert (await ask(release, "GET", REPORT_PATH, WRONG)).status == 200
    file.unlink()
    assert (await ask(release, "GET", REPORT_PATH, WRONG)).status == 200


# Methods


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
)
async def test_each_endpoint_has_its_method_and_says_which(
    path: str, method: str
) -> None:
    """X5: 405 with `Allow` (HEAD as GET); nothing changes state."""
    release = Release()
    allowed = ("POST",) if path in POSTS else ("GET", "HEAD")
    if method in allowed:
        return
    body = str(begin_json()).encode()
    answer = await ask(release, method, path, AUTHORIZED | JSON, body)
    assert answer.status == 405
    assert answer.headers["allow"] == ", ".join(allowed)
    assert (release.drain.phase, release.drain.epoch) == ("serving", 0)


@pytest.mark.parametrize("path", [REPORT_PATH, METRICS_PATH, STATUS_PATH])
async def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    """X5: HEAD as GET."""
    release = Release(Waiting())
    authorization = (b"authorization", AUTHORIZED["authorization"].encode())
    async with release.call():
        await release.client.begin()
        seen = []
        for method in ("GET", "HEAD"):
            scope = http_scope(path, method, [authorization])
            scope["query_string"] = f"nonce={NONCE}".encode()
            async with release.call(scope) as call:
                start = await call.receive_output()
                body = await call.receive_output()
            seen.append((start["status"], headers_of(start)["content-type"]))
            assert bool(body["body"]) is (method == "GET")
        assert seen[0] == seen[1]
        assert seen[0][0] == 200


# Bodies


@pytest.mark.parametrize(
    ("media_type", "accepted"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("APPLICATION/JSON", True),
        (" application/json ;x=y", True),
        ("text/plain", False),
        ("application/jsonp", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=application/json", False),
        ("", False),
        (None, False),
    ],
)
async def test_a_begin_needs_its_media_type(
    media_type: str | None, accepted: bool
) -> None:
    release = Release()
    headers = dict(AUTHORIZED)
    if media_type is not None:
        headers["content-type"] = media_type
    body = json.dumps(begin_json()).encode()
    answer = await ask(release, "POST", BEGIN_PATH, headers, body)
    expected = (202, None) if accepted else (415, "RUNTIME_CONTROL_MEDIA_TYPE")
    assert (answer.status, answer.code) == expected


@pytest.mark.parametrize("pieces", [1, 2, 40])
@pytest.mark.parametrize(("length", "status"), [(16 * 1024, 400), (16 * 1024 + 1, 413)])
async def test_a_body_over_sixteen_kibibytes_is_too_large(
    pieces: int, length: int, status: int
) -> None:
    """The whole may come in one message, as from some servers, or in many."""
    body = b" " * length
    size = -(-length // pieces)
    async with begin_call(Release()) as call:
        for start in range(0, length, size):
            await call.send_input(
                {
                    "type": "http.request",
                    "body": body[start : start + size],
                    "more_body": start + size < length,
                }
            )
        assert (await call.receive_output())["status"] == status


def begin_call(release: Release) -> AsgiDriver:
    authorization = (b"authorization", AUTHORIZED["authorization"].encode())
    headers = [authorization, (b"content-type", b"application/json")]
    return release.call(http_scope(BEGIN_PATH, "POST", headers))


async def test_a_body_of_ten_megabytes_is_a_bounded_refusal() -> None:
    """X6: it is read to its end, so that the client reads the 413."""
    release = Release()
    async with begin_call(release) as call:
        for number in range(160):
            await call.send_input(
                {
                    "type": "http.request",
                    "body": b" " * 65_536,
                    "more_body": number < 159,
                }
            )
        assert (await call.receive_output())["status"] == 413
    assert release.drain.phase == "serving"


async def test_an_endless_body_is_a_bounded_refusal() -> None:
    """X6: after 16 MiB nothing more of it is read."""
    release = Release()
    read = 0

    async def endless() -> dict[str, Any]:
        nonlocal read
        read += 2**20
        return {"type": "http.request", "body": b" " * 2**20, "more_body": True}

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = begin_call(release).scope
    await release.app(scope, endless, send)
    assert statuses[0] == 413
    assert read <= 20 * 2**20


async def test_a_body_of_a_byte_a_second_is_a_bounded_refusal() -> None:
    """X6: the time for a whole body is limited."""
    release = Release(control_body_timeout=0.1)
    asked = time.monotonic()
    async with begin_call(release) as call:
        await call.send_input({"type": "http.request", "body": b"{", "more_body": True})
        start = await call.receive_output()
        assert start["status"] == 408
        assert headers_of(start)["cache-control"] == "no-store"
    assert time.monotonic() - asked < 0.5
    assert release.drain.phase == "serving"


async def test_a_client_that_goes_away_is_not_answered() -> None:
    release = Release()
    async with begin_call(release) as call:
        await call.send_input({"type": "http.disconnect"})
        await call.wait()
        assert await call.receive_nothing()
    assert release.drain.phase == "serving"


@pytest.mark.parametrize("path", [CORDON_PATH, UNCORDON_PATH])
async def test_cordon_and_uncordon_need_no_body(path: str) -> None:
    release = Release()
    for headers, body, status in (
        ({}, b"", 200),
        (JSON, b"", 200),
        (JSON, b"{}", 200),
        (JSON, b"{", 400),
        ({"content-type": "text/plain"}, b"", 415),
    ):
        answer = await ask(release, "POST", path, AUTHORIZED | headers, body)
        assert answer.status == status, (headers, body)


# Behind the doors


async def test_begin_answers_as_the_contract_says() -> None:
    release = Release(Waiting())
    async with release.call():
        first, again = [await release.client.begin() for _ in range(2)]
        assert (first.status_code, first.json()) == (
            202,
            {"accepted": True, "duplicate": False},
        )
        assert (again.status_code, again.json()) == (
            202,
            {"accepted": True, "duplicate": True},
        )
        for other in (
            await release.client.begin(OTHER_NONCE),
            await release.client.begin(targetRevision=OTHER_REVISION),
        ):
            assert other.status_code == 409
            assert other.json()["code"] == "RUNTIME_DRAIN_ALREADY_STARTED"


async def test_a_begin_for_another_release_changes_nothing() -> None:
    release = Release(revision=OTHER_REVISION)
    answer = await release.client.begin()
    assert (answer.status_code, answer.json()["code"]) == (
        409,
        "RUNTIME_DRAIN_REVISION_MISMATCH",
    )
    assert OTHER_REVISION in answer.json()["detail"]
    assert release.drain.phase == "serving"
    assert (
        await release.client.begin(sourceRevision=OTHER_REVISION)
    ).status_code == 202


@pytest.mark.parametrize(
    "query",
    [
        "",
        "nonce=",
        "nonce=x",
        "other=" + NONCE,
        f"nonce={OTHER_NONCE}",
        f"nonce={NONCE}&nonce={NONCE}",
        f"nonce={NONCE}%0A",
        "nonce=%ff%fe",
        "nonce=" + "x" * 10_000,
        "&" * 5000,
    ],
)
async def test_a_status_of_no_such_nonce_is_not_found(query: str) -> None:
    release = Release()
    await release.client.begin()
    answer = await ask(release, "GET", f"{STATUS_PATH}?{query}", AUTHORIZED)
    assert (answer.status, answer.code) == (404, "RUNTIME_DRAIN_NOT_FOUND")


async def test_status_has_the_members_of_the_contract_and_no_others() -> None:
    release = Release(Waiting())
    async with release.call():
        await release.client.begin()
        assert (await release.client.status()).json() == {
            "protocol": "forgezero-drain/v1",
            "nonce": NONCE,
            "sourceRevision": SOURCE,
            "targetRevision": "b" * 40,
            "timeoutMs": 5000,
            "status": "draining",
            "inFlight": {"http": 1, "websocket": 0, "jobs": 0, "schedules": 0},
        }


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"nonce":1}', b'{"nonce":"x"}'])
async def test_a_resume_without_a_nonce_is_an_invalid_request(body: bytes) -> None:
    answer = await ask(Release(), "POST", RESUME_PATH, AUTHORIZED | JSON, body)
    assert (answer.status, answer.code) == (400, "RUNTIME_DRAIN_REQUEST_INVALID")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"[]", b'{"nonce":1}', b'{"nonce":"x"}', b"\xff"])
async def test_a_nonce_in_another_form_is_an_invalid_request(
    path: str, body: bytes
) -> None:
    """And changes nothing."""
    release = Release()
    if path in (CORDON_PATH, UNCORDON_PATH):
        return
    answer = await ask(release, "POST", path, AUTHORIZED | JSON, body)
    assert (answer.status, str(answer.code)[-15:]) == (400, "REQUEST_INVALID")
    assert (release.drain.phase, release.drain.epoch) == ("serving", 0)


async def test_metrics_need_the_token_unless_they_are_public() -> None:
    assert (await ask(Release(), "GET", METRICS_PATH, {})).status == 401
    for release in (
        Release(metrics_public=True),
        Release(drain=new_drain(token=None, metrics_public="true")),
    ):
        assert (await ask(release, "GET", METRICS_PATH, {})).status == 200
        assert (await ask(release, "GET", REPORT_PATH, {})).status in (401, 403)
        marked = await ask(release, "GET", METRICS_PATH, CROSS_SITE)
        assert marked.status == 403


async def test_a_fault_of_ours_is_a_500_that_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = Release()

    async def broken() -> None:
        raise ZeroDivisionError("a secret of the machine room")

    vars(release.drain)["report"] = broken
    answer = await release.client.control("GET", REPORT_PATH)
    assert answer.status_code == 500
    assert answer.headers["cache-control"] == "no-store"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "control failed" in caplog.text


async def test_control_is_neither_counted_nor_refused() -> None:
    app = Waiting()
    release = Release(app)
    for _ in range(3):
        await release.client.report()
    await release.client.begin()
    async with asyncio.timeout(1):
        await release.drain.ended
    report = await release.client.report()
    assert (report["admittedTotal"], report["refusedTotal"]) == (0, 0)
    assert app.calls == []


async def test_as_an_app_of_its_own_it_has_no_other_path() -> None:
    client = Client(Control(new_drain(), trusted=True))
    assert (await client.get(REPORT_PATH)).status_code == 200
    nowhere = await client.get("/orders")
    assert (nowhere.status_code, nowhere.json()["code"]) == (
        404,
        "RUNTIME_CONTROL_NOT_FOUND",
    )
    marked = await client.get(REPORT_PATH, headers=CROSS_SITE)
    assert marked.status_code == 403
