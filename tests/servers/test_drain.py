"""Count, refuse, finish, drained: the life of a drain, on every server."""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from contextlib import ExitStack
from threading import Barrier

import pytest

from tests.gate import Gate
from tests.servers.server import IDLE, OWN, Server, begin_request, new_nonce
from tests.servers.wire import Answer


def test_what_is_in_flight_is_counted(server: Server) -> None:
    before = server.report()
    with server.held() as held, server.websocket("/echo") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"
        report = server.report()
        assert report["inFlight"] == {**IDLE, "http": 1, "websocket": 1}
        assert [(b["kind"], b["method"], b["path"]) for b in report["blockers"]] == [
            ("http", "GET", "/held"),
            ("websocket", None, "/echo"),
        ]
        held.let_go()
    assert held.answer().status == 200
    server.until(lambda: server.in_flight() == IDLE)
    after = server.report()
    assert after["admittedTotal"] == before["admittedTotal"] + 2
    assert after["refusedTotal"] == before["refusedTotal"]


def test_new_work_is_refused_and_told_so(server: Server) -> None:
    nonce = server.begin()
    refused = server.get("/hello")
    assert refused.status == 503
    assert refused.headers["retry-after"] in ("1", "2")
    assert refused.headers["drainmw-refused"] in ("draining", "drained")
    assert refused.headers["connection"] == "close"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "RUNTIME_DRAIN_INTAKE_REFUSED"
    assert server.status(nonce)["inFlight"] == IDLE
    assert server.report()["refusedTotal"] >= 1


def test_a_request_in_flight_finishes_and_only_then_it_is_drained(
    server: Server,
) -> None:
    with server.held() as held:
        nonce = server.begin()
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]["http"]) == ("draining", 1)
        assert server.get("/hello").is_refusal
        assert server.goes_on(nonce)
        held.let_go()
        outcome = server.outcome(nonce)
    assert held.answer().status == 200
    assert held.answer().body == b"held"
    assert (outcome["status"], outcome["inFlight"]) == ("drained", IDLE)
    assert server.get("/hello").is_refusal


def test_a_stream_in_flight_ends_complete(server: Server) -> None:
    with server.held("/stream") as stream:
        nonce = server.begin()
        assert server.status(nonce)["status"] == "draining"
        stream.let_go()
        assert server.outcome(nonce)["status"] == "drained"
    assert stream.answer().body == b"0 1 2 3 4 "


def test_an_idle_release_is_drained_at_once(server: Server) -> None:
    nonce = server.begin()
    began = time.monotonic()
    assert server.outcome(nonce)["status"] == "drained"
    assert time.monotonic() - began < 0.1


def test_drained_is_visible_within_100_ms_of_the_end_of_the_work(
    server: Server,
) -> None:
    with server.held() as held:
        nonce = server.begin(timeout=30)
        assert server.status(nonce)["status"] == "draining"
        held.let_go()
        seen = server.until(lambda: server.status(nonce)["status"] == "drained")
    assert seen - held.answer().at < 0.1


def test_status_and_probes_are_answered_through_the_drain_and_never_counted(
    server: Server,
) -> None:
    def look() -> tuple[str, int]:
        status = server.status(nonce)
        assert server.get("/readyz").status == 503
        assert server.get("/livez").status == 200
        return status["status"], status["inFlight"]["http"]

    with server.held() as held:
        nonce = server.begin()
        assert {look() for _ in range(30)} == {("draining", 1)}
        held.let_go()
        assert server.outcome(nonce)["status"] == "drained"
        assert time.monotonic() - held.answer().at < 0.3
    assert {look() for _ in range(10)} == {("drained", 0)}


def test_fifty_begins_at_once_are_one_drain(server: Server) -> None:
    nonce = new_nonce()
    gate = Barrier(50)

    def begin() -> Answer:
        gate.wait()
        return server.try_begin(nonce)

    with server.held() as held:
        futures = [server.in_background(begin) for _ in range(50)]
        wait(futures)
        answers = [future.result() for future in futures]
        assert [answer.status for answer in answers] == [202] * 50
        duplicates = [answer.json()["duplicate"] for answer in answers]
        assert (duplicates.count(False), duplicates.count(True)) == (1, 49)
        held.let_go()
    assert held.answer().status == 200
    assert server.outcome(nonce)["status"] == "drained"


def test_of_two_begins_the_one_whose_body_came_first_wins(server: Server) -> None:
    first, second = new_nonce(), new_nonce()
    body = json.dumps(begin_request(first)).encode()
    with server.connect() as slow, server.connect() as quick:
        server.send_begin_head(slow, len(body))
        slow.send(body[:-10])
        complete = json.dumps(begin_request(second)).encode()
        server.send_begin_head(quick, len(complete))
        quick.send(complete)
        server.until(lambda: server.report()["nonce"] == second)
        slow.send(body[-10:])
        answer = slow.answer("POST")
    assert answer.status == 409
    assert answer.json()["code"] == "RUNTIME_DRAIN_ALREADY_STARTED"
    assert server.try_status(first).status == 404
    assert server.outcome(second)["status"] == "drained"
    server.resume(second)
    assert server.try_status(first).status == 404
    assert server.report()["nonce"] is None
    assert server.get("/hello").status == 200


def test_a_deadline_fails_the_drain_and_cuts_nothing(server: Server) -> None:
    with server.held() as held:
        began = time.monotonic()
        nonce = server.begin(timeout=0.6)
        failed = server.until(lambda: server.status(nonce)["status"] == "failed")
        assert 0.5 < failed - began < 0.8
        status = server.status(nonce)
        assert status["failure"] == "RUNTIME_DRAIN_TIMEOUT"
        assert status["inFlight"]["http"] == 1
        held.let_go()
    assert held.answer().status == 200
    server.until(lambda: server.in_flight() == IDLE)
    assert server.status(nonce)["status"] == "failed"
    assert server.get("/hello").is_refusal


def test_a_resume_serves_again_and_retires_the_nonce(server: Server) -> None:
    old = server.begin()
    epoch = server.report()["epoch"]
    assert server.get("/hello").is_refusal
    assert server.resume(old) == epoch + 1
    assert server.get("/hello").status == 200
    assert server.try_status(old).status == 404
    again = server.try_begin(old)
    assert again.status == 409
    assert again.json()["code"] == "RUNTIME_DRAIN_RESUMED"
    assert server.get("/hello").status == 200
    new = server.begin()
    assert server.report()["epoch"] == epoch + 2
    assert server.outcome(new)["status"] == "drained"
    assert server.try_status(old).status == 404


def test_a_resume_while_a_request_hangs_answers_at_once(server: Server) -> None:
    with server.held() as held:
        nonce = server.begin()
        began = time.monotonic()
        server.resume(nonce)
        assert server.get("/hello").status == 200
        assert time.monotonic() - began < 0.3
        held.let_go()
    assert held.answer().status == 200


def test_a_cordon_refuses_nothing_and_ends_every_connection(server: Server) -> None:
    assert server.control("POST", f"{OWN}/cordon").json()["phase"] == "cordoned"
    assert server.get("/readyz").status == 503
    answer = server.get("/hello")
    assert (answer.status, answer.closes) == (200, True)
    assert server.control("POST", f"{OWN}/uncordon").json()["phase"] == "serving"
    assert server.get("/readyz").status == 200
    assert not server.get("/hello").closes


@pytest.mark.parametrize("path", ["/background", "/spawn"])
def test_work_after_the_response_is_counted_until_it_ends(
    server: Server, path: str
) -> None:
    kind = {"/background": "http", "/spawn": "jobs"}[path]
    with Gate() as gate:
        answer = server.get(f"{path}?gate={gate.port}")  # its client is gone by now
        assert answer.status == 200
        gate.until_reached()
        server.until(lambda: server.in_flight() == {**IDLE, kind: 1})
        nonce = server.begin()
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]) == ("draining", {**IDLE, kind: 1})
        assert server.goes_on(nonce)
        gate.open()
        assert server.outcome(nonce)["inFlight"] == IDLE
    assert server.status(nonce)["status"] == "drained"


def test_an_event_stream_holds_the_drain_until_its_client_leaves(
    server: Server,
) -> None:
    with server.connect() as listener:
        listener.send_head("GET", "/events", accept="text/event-stream")
        server.until(lambda: server.in_flight()["http"] == 1)
        nonce = server.begin()
        assert b"data: tick" in listener.read() + listener.read()
        assert server.status(nonce)["status"] == "draining"
    left = time.monotonic()
    assert server.outcome(nonce)["status"] == "drained"
    assert time.monotonic() - left < server.kind.ends_stream_within


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["raise", "cancel"])
def test_an_app_that_fails_is_not_counted_any_more(
    server: Server, how: str, when: str
) -> None:
    before = server.report()["admittedTotal"]
    with ExitStack() as connections:
        for _ in range(20):  # not all servers answer a client whose app was cancelled
            connection = connections.enter_context(server.connect())
            connection.send_head("GET", f"/broken/{how}/{when}")
        server.until(lambda: server.report()["admittedTotal"] == before + 20)
        server.until(lambda: server.in_flight() == IDLE)
    assert server.get("/hello").status == 200


def test_a_client_that_leaves_is_not_counted_once_the_app_returns(
    server: Server,
) -> None:
    for _ in range(20):
        with server.connect() as connection:
            connection.send_head("GET", "/slow?seconds=0.1")
    server.until(lambda: server.in_flight() == IDLE)
    assert server.get("/hello").status == 200


def test_the_app_has_a_lifespan_where_the_server_has(server: Server) -> None:
    started = server.get("/counters").json().get("lifespans", 0)
    assert started == (1 if server.kind.lifespan else 0)
