"""The client of the control endpoints, against a target that says anything."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from drainmw import client as client_module
from drainmw.client import ControlClient, Denied, NoCounters, Unreachable
from drainmw.errors import DrainNotFound, SettingsError
from tests.processes import free_port
from tests.rig import NONCE, SOURCE, TARGET, TOKEN

OTHER_TOKEN = "z" * 43
IN_FLIGHT = {"http": 1, "websocket": 0, "jobs": 0, "schedules": 0}
DRAINING: Any = {
    "protocol": "forgezero-drain/v1",
    "nonce": NONCE,
    "sourceRevision": SOURCE,
    "targetRevision": TARGET,
    "timeoutMs": 5000,
    "status": "draining",
    "inFlight": IN_FLIGHT,
}
DRAINED: Any = {**DRAINING, "status": "drained"}
SERVING: Any = {
    "app": None,
    "revision": None,
    "phase": "serving",
    "epoch": 0,
    "nonce": None,
    "sourceRevision": None,
    "targetRevision": None,
    "remainingMs": None,
    "inFlight": IN_FLIGHT,
    "admittedTotal": 1,
    "refusedTotal": 0,
    "lastAdmittedAgoMs": 12,
    "lastRefusedAgoMs": None,
    "failure": None,
    "blockers": [],
    "sources": [],
    "workers": [],
    "warnings": [],
}

Answer = tuple[int, Any]
"""A status and a body: bytes as they are, anything else as JSON."""


class Target:
    """Gives the answers it was told to give, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str, str | None, Any]] = []
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target._answer(self)

            def do_POST(self) -> None:
                target._answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = json.loads(handler.rfile.read(length)) if length else None
        authorization = handler.headers.get("authorization")
        self.asked.append((handler.command, handler.path, authorization, body))
        status, content = self.answers.pop(0)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    serving = threading.Thread(target=target.server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield target
    finally:
        target.server.shutdown()
        serving.join()
        target.server.server_close()


@pytest.fixture
def client(target: Target) -> Iterator[ControlClient]:
    with ControlClient(url=target.url, tokens=[TOKEN]) as client:
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "POLL_FIRST", 0.001)
    monkeypatch.setattr(client_module, "POLL_LAST", 0.002)
    monkeypatch.setattr(client_module, "PATIENCE", 0.3)


def problem(status: int, code: str, **members: Any) -> Answer:
    return status, {"title": "no", "status": status, "code": code, **members}


UNKNOWN = problem(503, "RUNTIME_DRAIN_COUNTERS_UNKNOWN", detail="no count from queue")
INVALID = problem(500, "RUNTIME_DRAIN_COUNTERS_INVALID", detail="queue reports -1")


# Asking


def test_each_call_is_the_request_of_the_contract(
    target: Target, client: ControlClient
) -> None:
    moved = {"phase": "serving", "epoch": 1}
    accepted = {"accepted": True, "duplicate": False}
    target.answers = [(202, accepted), (200, DRAINED), (200, SERVING)]
    target.answers += [(200, moved)] * 3
    assert client.begin(NONCE, SOURCE, TARGET, 5000) == accepted
    assert client.status(NONCE) == DRAINED
    assert client.report() == SERVING
    assert client.cordon() == moved
    assert client.uncordon() == moved
    assert client.resume(NONCE) == moved
    bearer = f"Bearer {TOKEN}"
    drain = "/.forgezero/runtime/drain/v1"
    body = {
        "protocol": "forgezero-drain/v1",
        "nonce": NONCE,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 5000,
    }
    assert target.asked == [
        ("POST", f"{drain}/begin", bearer, body),
        ("GET", f"{drain}/status?nonce={NONCE}", bearer, None),
        ("GET", "/.drainmw/v1/report", bearer, None),
        ("POST", "/.drainmw/v1/cordon", bearer, {}),
        ("POST", "/.drainmw/v1/uncordon", bearer, {}),
        ("POST", "/.drainmw/v1/resume", bearer, {"nonce": NONCE}),
    ]


OFFERED: Any = {
    "protocol": "rooms/v1",
    "schemaVersion": 2,
    "sourceRevision": SOURCE,
    "targetRevision": TARGET,
    "source": {"url": "http://127.0.0.1:9/x", "authorization": "Bearer x"},
    "origin": {"acknowledge": "http://127.0.0.1:9/y", "epoch": 3, "process": {}},
}


def test_each_step_of_a_handoff_is_the_request_of_its_endpoint(
    target: Target, client: ControlClient
) -> None:
    """What one side answers goes to the other one as it came."""
    moved: Any = {"phase": "detached", "epoch": 3}
    settled: Any = {"nonce": NONCE, "status": "acknowledged", "provisional": False}
    told: Any = {
        "phase": "drained",
        "sealed": True,
        "process": {"pid": 7},
        "adapters": [],
        "given": [],
        "taken": [],
    }
    target.answers = [
        *[(200, told), (200, moved), (200, OFFERED), (202, {"accepted": True})],
        *[(200, moved), (200, moved), (200, moved), (200, settled), (200, settled)],
    ]
    assert client.handoffs() == told
    assert client.seal(NONCE) == moved
    taker = told["process"]
    assert client.offer("rooms/v1", NONCE, SOURCE, TARGET, 5000, taker=taker) == OFFERED
    assert client.begin_handoff(OFFERED, NONCE, 4000) == {"accepted": True}
    assert client.detach(NONCE) == moved
    assert client.resume(NONCE, force=True) == moved
    assert client.take_back("rooms/v1", NONCE, taker=taker) == moved
    assert client.confirm(NONCE, moved) == settled
    assert client.discard(NONCE) == settled
    offer = {
        "protocol": "rooms/v1",
        "nonce": NONCE,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 5000,
        "taker": taker,
    }
    back = {"protocol": "rooms/v1", "nonce": NONCE, "status": "discarded"}
    back |= {"taker": taker}
    begin = {**OFFERED, "nonce": NONCE, "timeoutMs": 4000}
    own, nonce = "/.drainmw/v1", {"nonce": NONCE}
    assert [(method, path, body) for method, path, _, body in target.asked] == [
        ("GET", f"{own}/handoffs", None),
        ("POST", f"{own}/seal", nonce),
        ("POST", f"{own}/offer", offer),
        ("POST", "/.forgezero/runtime/state/v1/begin", begin),
        ("POST", f"{own}/detach", nonce),
        ("POST", f"{own}/resume", nonce | {"force": True}),
        ("POST", f"{own}/acknowledge", back),
        ("POST", f"{own}/confirm", nonce | moved),
        ("POST", f"{own}/discard", nonce),
    ]
    assert {authorization for _, _, authorization, _ in target.asked} == {
        f"Bearer {TOKEN}"
    }


@pytest.mark.parametrize("missing", ["phase", "sealed", "adapters", "given", "taken"])
def test_a_report_of_handoffs_that_is_not_whole_is_none(
    target: Target, client: ControlClient, missing: str
) -> None:
    """What is not told is not taken for nothing."""
    members = ("phase", "sealed", "adapters", "given", "taken")
    told = dict.fromkeys(members, None)
    del told[missing]
    target.answers = [(200, told)]
    with pytest.raises(Denied):
        client.handoffs()


def test_an_offer_that_is_not_whole_is_none(
    target: Target, client: ControlClient
) -> None:
    target.answers = [(200, {"protocol": "rooms/v1", "schemaVersion": 2})]
    with pytest.raises(Denied, match="not one of drainmw's"):
        client.offer("rooms/v1", NONCE, SOURCE, TARGET, 5000)


def test_a_root_path_stays_before_the_path(target: Target) -> None:
    target.answers = [(200, {"phase": "serving", "epoch": 0})]
    with ControlClient(url=f"{target.url}/api/") as client:
        client.cordon()
    assert target.asked[0][:3] == ("POST", "/api/.drainmw/v1/cordon", None)


def test_a_token_that_was_rotated_out_is_tried_once(target: Target) -> None:
    no = problem(401, "RUNTIME_CONTROL_UNAUTHORIZED")
    target.answers = [no, (200, DRAINING), (200, DRAINED)]
    with ControlClient(url=target.url, tokens=[OTHER_TOKEN, TOKEN]) as client:
        assert client.status(NONCE) == DRAINING
        assert client.status(NONCE) == DRAINED
    given = [authorization for _, _, authorization, _ in target.asked]
    assert given == [f"Bearer {OTHER_TOKEN}", f"Bearer {TOKEN}", f"Bearer {TOKEN}"]


def test_no_proxy_of_the_environment_sees_the_token(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    target.answers = [(200, DRAINED)]
    with ControlClient(url=target.url, tokens=[TOKEN]) as client:
        assert client.status(NONCE) == DRAINED


def test_a_redirect_is_not_followed(target: Target, client: ControlClient) -> None:
    target.headers = {"location": f"{target.url}/elsewhere"}
    target.answers = [(307, {"phase": "serving"})]
    with pytest.raises(Denied) as raised:
        client.cordon()
    assert raised.value.status == 307
    assert len(target.asked) == 1


# Answers that are not what was hoped for


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"5",
        b"null",
        b'{"phase": "serving"}',
        b"[" * 9999,
    ],
    ids=["empty", "html", "not UTF-8", "list", "number", "null", "less", "deep"],
)
def test_what_is_no_answer_of_ours_is_denied(
    target: Target, client: ControlClient, body: bytes
) -> None:
    target.answers = [(200, body)]
    with pytest.raises(Denied) as raised:
        client.report()
    assert str(raised.value) == (
        "RUNTIME_CONTROL_NOT_FOUND: "
        "the answer, 200, is not one of drainmw's control endpoints"
    )


def test_an_error_keeps_its_code_and_detail(
    target: Target, client: ControlClient
) -> None:
    target.answers = [problem(409, "RUNTIME_DRAIN_ALREADY_STARTED", detail="no\x1b[2J")]
    with pytest.raises(Denied) as raised:
        client.cordon()
    denied = raised.value
    assert (denied.status, denied.code) == (409, "RUNTIME_DRAIN_ALREADY_STARTED")
    assert str(denied) == r"RUNTIME_DRAIN_ALREADY_STARTED: no\x1b[2J"
    assert not denied.resumed


def test_an_error_without_detail_is_its_code(
    target: Target, client: ControlClient
) -> None:
    target.answers = [problem(409, "RUNTIME_DRAIN_DETACHED")]
    with pytest.raises(Denied, match=r"^RUNTIME_DRAIN_DETACHED$"):
        client.resume(NONCE)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_drain_that_is_not_there_says_whether_it_was_resumed(
    target: Target, client: ControlClient, resumed: bool
) -> None:
    more = {"resumed": True} if resumed else {}
    target.answers = [problem(404, "RUNTIME_DRAIN_NOT_FOUND", **more)]
    with pytest.raises(DrainNotFound) as raised:
        client.status(NONCE)
    assert raised.value.resumed is resumed


def test_counters_that_nobody_knows_say_who_did_not_answer(
    target: Target, client: ControlClient
) -> None:
    target.answers = [UNKNOWN]
    with pytest.raises(NoCounters) as raised:
        client.status(NONCE)
    assert str(raised.value) == ("RUNTIME_DRAIN_COUNTERS_UNKNOWN: no count from queue")


def test_a_target_that_says_nothing_is_unreachable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with ControlClient(url=url, timeout=0.1) as client:
            with pytest.raises(Unreachable, match=r"does not answer: timed out$"):
                client.report()


def test_a_target_that_hangs_up_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as rude:
        url = f"http://127.0.0.1:{rude.getsockname()[1]}"

        def hang_up() -> None:
            wire, _ = rude.accept()
            with closing(wire):
                wire.recv(65536)

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        with ControlClient(url=url) as client, pytest.raises(Unreachable):
            client.report()
        hanging.join()


# Watching


def test_a_watch_ends_with_the_drain(target: Target, client: ControlClient) -> None:
    target.answers = [(200, DRAINING), (200, DRAINING), (200, DRAINED)]
    assert list(client.watch(NONCE)) == [DRAINING, DRAINING, DRAINED]


@pytest.mark.parametrize("state", ["UNKNOWN", "INVALID"])
def test_a_watch_goes_on_while_there_are_no_counters(
    target: Target, client: ControlClient, state: str
) -> None:
    no = UNKNOWN if state == "UNKNOWN" else INVALID
    running = (200, {**SERVING, "phase": "draining", "nonce": NONCE})
    target.answers = [no, running, (200, DRAINING), no, running, no, (500, b"")]
    target.answers += [(200, DRAINED)]
    assert list(client.watch(NONCE)) == [DRAINING, DRAINED]


@pytest.mark.parametrize("phase", ["drained", "failed"])
def test_a_watch_ends_with_the_drain_though_there_are_no_counters(
    target: Target, client: ControlClient, phase: str
) -> None:
    failure = "broker refused" if phase == "failed" else None
    in_flight = {**IN_FLIGHT, "jobs": None, "schedules": None}
    report: Any = {**SERVING, "phase": phase, "nonce": NONCE, "inFlight": in_flight}
    report |= {"sourceRevision": SOURCE, "targetRevision": TARGET, "failure": failure}
    target.answers = [(200, DRAINING), UNKNOWN, (200, report)]
    *_, last = client.watch(NONCE)
    expected: Any = {
        "protocol": "forgezero-drain/v1",
        "nonce": NONCE,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "status": phase,
        "inFlight": in_flight,
        **({"failure": "broker refused"} if phase == "failed" else {}),
    }
    assert last == expected


def test_a_drain_of_another_nonce_is_no_end_of_this_one(
    target: Target, client: ControlClient
) -> None:
    target.answers = [(200, {**SERVING, "phase": "drained", "nonce": "m" * 43})]
    assert client.ended(NONCE) is None


def test_a_watched_drain_that_vanishes_was_resumed(
    target: Target, client: ControlClient
) -> None:
    target.answers = [(200, DRAINING), problem(404, "RUNTIME_DRAIN_NOT_FOUND")]
    with pytest.raises(DrainNotFound) as raised:
        list(client.watch(NONCE))
    assert raised.value.resumed


def test_a_drain_that_never_was_is_not_one_that_was_resumed(
    target: Target, client: ControlClient
) -> None:
    target.answers = [problem(404, "RUNTIME_DRAIN_NOT_FOUND")]
    with pytest.raises(DrainNotFound) as raised:
        list(client.watch(NONCE))
    assert not raised.value.resumed


def test_a_watch_survives_a_moment_without_an_answer(
    target: Target, client: ControlClient
) -> None:
    target.answers = [(200, DRAINING), (200, DRAINING), (200, DRAINED)]
    watch = client.watch(NONCE)
    assert next(watch) == DRAINING
    client._http.close()
    client._http = ControlClient(url=f"http://127.0.0.1:{free_port()}")._http
    away = threading.Timer(0.05, _come_back, (client, target))
    away.start()
    assert list(watch) == [DRAINING, DRAINED]
    away.join()


def _come_back(client: ControlClient, target: Target) -> None:
    client._http = ControlClient(url=target.url)._http


def test_a_handoff_is_watched_through_a_moment_without_an_answer(
    target: Target, client: ControlClient
) -> None:
    """An import may hold the event loop up."""
    pending: Any = {"status": "pending"}
    acknowledged: Any = {"status": "acknowledged"}
    target.answers = [(200, pending), (200, acknowledged)]
    watch = client.handoff(NONCE)
    assert next(watch) == pending
    client._http.close()
    client._http = ControlClient(url=f"http://127.0.0.1:{free_port()}")._http
    away = threading.Timer(0.05, _come_back, (client, target))
    away.start()
    assert list(watch) == [acknowledged]
    away.join()


def test_a_handoff_gives_up_on_a_target_that_is_gone() -> None:
    with ControlClient(url=f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unreachable):
            list(client.handoff(NONCE))


def test_a_watch_gives_up_on_a_target_that_is_gone() -> None:
    with ControlClient(url=f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unreachable):
            list(client.watch(NONCE))


# Naming a target


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "the URL must be like http://127.0.0.1:8000, not empty"),
        ("host", "the URL must be like http://127.0.0.1:8000, not host"),
        ("http://", "the URL must be like http://127.0.0.1:8000, not http://"),
        ("file:///etc", "the URL must be like http://127.0.0.1:8000, not file:///etc"),
        ("http://h:99999", "the URL must be like http://127.0.0.1:8000, not http://h"),
        ("http://[::1", "the URL must be like http://127.0.0.1:8000, not http://["),
        (
            "http://h\x1b",
            r"the URL must be like http://127.0.0.1:8000, not http://h\x1b",
        ),
        ("http://me:pw@h", "the URL must carry no user or password: http://***@h"),
        ("http://h?a=b", "the URL must have no query and no fragment: http://h?a=b"),
        ("http://h/#a", "the URL must have no query and no fragment: http://h/#a"),
    ],
)
def test_a_url_that_cannot_be_asked_is_a_settings_error(url: str, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        ControlClient(url=url)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("both", [False, True])
def test_a_client_has_one_target(both: bool) -> None:
    target = {"url": "http://h", "control": Path("c")} if both else {}
    with pytest.raises(SettingsError, match="name one target"):
        ControlClient(**target)  # type: ignore[arg-type]  # either of two types


def test_closing_twice_is_harmless() -> None:
    client = ControlClient(url="http://h")
    client.close()
    client.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"inFlight": {}},
        {"inFlight": []},
        {"inFlight": {**IN_FLIGHT, "jobs": None}},
        {"inFlight": {**IN_FLIGHT, "jobs": True}},
        {"nonce": "m" * 43},
        {"protocol": "forgezero-drain/v2"},
        {"status": "done"},
    ],
)
def test_a_status_that_is_not_whole_is_no_proof(
    target: Target, client: ControlClient, lie: dict[str, Any]
) -> None:
    target.answers = [(200, {**DRAINED, **lie})]
    with pytest.raises(Denied, match="not one of drainmw's control endpoints"):
        client.status(NONCE)


def test_a_report_that_is_not_whole_is_none(
    target: Target, client: ControlClient
) -> None:
    target.answers = [(200, {"phase": 1, "inFlight": 2})]
    with pytest.raises(Denied, match="not one of drainmw's control endpoints"):
        client.report()
