"""The same promises in each framework, however the middleware was installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.frameworks.matrix import UVICORN, Installed, only
from tests.gate import Gate
from tests.servers.server import IDLE, OWN, Server, running

ORIGIN = "https://shop.example"
PREFLIGHT = {"origin": ORIGIN, "access_control_request_method": "POST"}


def test_a_request_is_counted_finishes_and_only_then_it_is_drained(
    server: Server,
) -> None:
    with server.held() as held:
        assert server.in_flight() == {**IDLE, "http": 1}
        assert server.report()["blockers"][0]["path"] == "/held"
        nonce = server.begin()
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]["http"]) == ("draining", 1)
        assert server.goes_on(nonce)
        held.let_go()
        outcome = server.outcome(nonce)
    answer = held.answer()
    assert (answer.status, answer.body, answer.closes) == (200, b"held", True)
    assert (outcome["status"], outcome["inFlight"]) == ("drained", IDLE)


def test_new_work_is_refused_and_the_app_never_sees_it(server: Server) -> None:
    assert server.ask("POST", "/upload", bytes(1000)).body == b"taken"
    before = server.get("/uploads").body
    nonce = server.begin()
    refused = server.ask("POST", "/upload", bytes(2**20))
    assert refused.is_refusal
    assert refused.headers["retry-after"] in ("1", "2")
    assert server.get("/hello").is_refusal
    assert server.get("/nowhere").is_refusal
    server.resume(nonce)
    assert server.get("/uploads").body == before
    assert server.get("/hello").body == b"hello"
    assert server.get("/nowhere").status == 404


def test_a_stream_is_counted_until_its_last_byte(server: Server) -> None:
    with server.held("/stream") as stream:
        nonce = server.begin()
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]["http"]) == ("draining", 1)
        assert server.goes_on(nonce)
        stream.let_go()
        seen = server.until(lambda: server.status(nonce)["status"] == "drained")
    assert stream.answer().body == b"0 1 2 3 4 "
    assert seen - stream.answer().at < 0.1


def test_an_event_stream_is_ended_and_its_generator_closed(server: Server) -> None:
    """Also where the framework sends it in a task of its own; nothing is an error."""
    before = server.log.stat().st_size
    busy, quiet = (server.start(f"/events?seconds={pause}") for pause in (0.02, 60))
    assert server.get("/open").body == b"2"
    nonce = server.begin()
    assert server.outcome(nonce)["status"] == "drained"
    assert quiet.result().body == b"data: x\n\n"
    assert busy.result().body.count(b"data: x\n\n") > 5
    server.resume(nonce)
    assert server.get("/open").body == b"0"
    logged = server.log.read_text()[before:]
    assert "Traceback" not in logged
    assert "ERROR" not in logged.upper()


def test_probes_are_completed_and_an_own_one_is_kept(
    server: Server, installed: Installed
) -> None:
    ready = server.get("/readyz")
    ours = {"ready": True, "phase": "serving"}
    expected = {"mine": True} if installed.has_own_readiness else ours
    assert (ready.status, ready.json()) == (200, expected)
    assert server.get("/livez").json() == {"alive": True, "phase": "serving"}
    server.begin()
    assert server.get("/readyz").status == 503
    assert server.get("/readyz").json()["code"] == "RUNTIME_NOT_READY"
    assert server.get("/livez").status == 200
    assert server.control("GET", f"{OWN}/metrics").status == 200


def test_a_websocket_is_counted_and_closed_and_a_new_one_refused(
    server: Server, installed: Installed
) -> None:
    if not installed.has_websockets:
        nonce = server.begin()
        _is_refused(server)
        assert server.status(nonce)["inFlight"] == IDLE
        return
    before = server.written()
    with server.websocket("/echo") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"
        nonce = server.begin()
        assert server.status(nonce)["inFlight"] == {**IDLE, "websocket": 1}
        _is_refused(server)
        with pytest.raises(ConnectionClosed):
            websocket.recv()
        assert websocket.close_code == 1012
    assert server.outcome(nonce)["status"] == "drained"
    assert "Traceback" not in server.written().removeprefix(before)


def _is_refused(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused, server.websocket("/echo"):
        pass
    assert refused.value.response.status_code == 503
    assert "drainmw-refused" in refused.value.response.headers


def test_a_background_task_is_counted_where_it_is_part_of_the_request(
    server: Server, installed: Installed
) -> None:
    if installed.framework == "django":
        assert server.get("/background").status == 404  # it has none
        return
    with Gate() as gate:
        answer = server.get(f"/background?gate={gate.port}")
        assert answer.body == b"later"
        gate.until_reached()
        if installed.background is None:
            # Quart runs it beside the request; `drain.spawn` is counted there.
            idle = server.until(lambda: server.in_flight() == IDLE)
            assert idle - answer.at < 0.3
            assert server.get(f"/spawn?gate={gate.port}").body == b"later"
            gate.until_reached()
        kind = installed.background or "jobs"
        server.until(lambda: server.in_flight() == {**IDLE, kind: 1})
        nonce = server.begin()
        assert server.goes_on(nonce)
        gate.open()
        assert server.outcome(nonce)["status"] == "drained"


@only("starlette-added")
def test_outside_of_cors_a_refusal_brings_the_headers_it_was_given(
    server: Server,
) -> None:
    assert server.ask("OPTIONS", "/upload", **PREFLIGHT).status == 200
    server.begin()
    refused = server.get("/hello", origin=ORIGIN)
    assert refused.is_refusal
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    preflight = server.ask("OPTIONS", "/upload", **PREFLIGHT)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-methods"] == "*"


@only("starlette-listed")
def test_inside_of_cors_a_refusal_gets_its_headers(server: Server) -> None:
    server.begin()
    refused = server.get("/hello", origin=ORIGIN)
    assert refused.is_refusal
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    preflight = server.ask("OPTIONS", "/upload", **PREFLIGHT)
    assert preflight.status == 200  # by the layer outside, the app is not asked
    assert preflight.headers["access-control-allow-origin"] == ORIGIN


@only("starlette-wrapped")
def test_without_headers_for_cors_a_preflight_is_refused_like_any_request(
    server: Server,
) -> None:
    server.begin()
    assert server.ask("OPTIONS", "/upload", **PREFLIGHT).is_refusal


@pytest.fixture(scope="module")
def inside_litestar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("litestar", reason="litestar is not installed")
    folder = tmp_path_factory.mktemp("litestar-inside")
    app = "tests.frameworks.litestar_app:inside"
    with running(UVICORN, folder, app=app) as server:
        yield server


def test_in_the_list_of_litestar_it_lies_inside_the_router_and_control_is_not_there(
    inside_litestar: Server,
) -> None:
    assert inside_litestar.get("/hello").body == b"hello"
    assert inside_litestar.get("/livez").status == 404
    assert inside_litestar.control("GET", f"{OWN}/report").status == 404
