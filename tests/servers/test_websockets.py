"""WebSockets: refused before the app sees them, counted until it returns."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from tests.gate import Gate
from tests.servers.server import IDLE, Server


def _refusal(server: Server, path: str) -> Response:
    with pytest.raises(InvalidStatus) as refused, server.websocket(path):
        pass
    return refused.value.response


def _is_refused(server: Server, path: str) -> None:
    response = _refusal(server, path)
    assert response.status_code == server.kind.websocket_refusal
    if server.kind.websocket_refusal == 503:
        assert response.headers["retry-after"] in ("1", "2")
        assert response.headers["drainmw-refused"] in ("draining", "drained")
        assert b"RUNTIME_DRAIN_INTAKE_REFUSED" in response.body
    else:
        assert "drainmw-refused" not in response.headers


def test_a_handshake_is_refused_and_the_app_is_not_called(server: Server) -> None:
    before = server.counters()["sockets"]
    nonce = server.begin()
    for _ in range(3):
        _is_refused(server, "/echo")
    assert server.report()["refusedTotal"] >= 3
    assert server.status(nonce)["inFlight"] == IDLE
    server.resume(nonce)
    assert server.counters()["sockets"] == before
    with server.websocket("/echo") as websocket:
        websocket.send("again")
        assert websocket.recv() == "again"


def test_a_probe_path_is_no_way_in_for_a_handshake(server: Server) -> None:
    server.begin()
    _is_refused(server, "/livez")
    _is_refused(server, "/.drainmw/v1/report")


def test_an_open_websocket_goes_on_and_holds_the_drain(server: Server) -> None:
    with server.websocket("/echo") as websocket:
        nonce = server.begin()
        for number in range(3):
            websocket.send(str(number))
            assert websocket.recv() == str(number)
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]["websocket"]) == ("draining", 1)
    assert server.outcome(nonce)["status"] == "drained"


def test_it_is_counted_until_the_clean_up_after_it_has_ended(server: Server) -> None:
    before = server.counters()["cleaned"]
    with (
        Gate() as gate,
        server.websocket(f"/echo?cleanup={gate.port}") as websocket,
    ):
        nonce = server.begin()
        # Some servers answer the close only when the app has returned.
        closed = server.in_background(websocket.close)
        gate.until_reached()
        status = server.status(nonce)
        assert (status["status"], status["inFlight"]["websocket"]) == ("draining", 1)
        assert server.goes_on(nonce)
        gate.open()
        assert server.outcome(nonce)["status"] == "drained"
        closed.result()
    server.resume(nonce)
    assert server.counters()["cleaned"] == before + 1


def test_one_that_is_not_yet_accepted_at_the_begin_is_counted_and_accepted(
    server: Server,
) -> None:
    def talk() -> str:
        with server.websocket(f"/echo?accept={gate.port}") as websocket:
            websocket.send("late")
            return str(websocket.recv())

    with Gate() as gate:
        said = server.in_background(talk)
        gate.until_reached()
        nonce = server.begin()
        assert server.status(nonce)["inFlight"]["websocket"] == 1
        gate.open()
        assert said.result() == "late"
    assert server.outcome(nonce)["status"] == "drained"


def test_one_whose_client_vanishes_is_not_counted_any_more(server: Server) -> None:
    with server.websocket("/echo") as websocket:
        nonce = server.begin()
        websocket.socket.close()
    assert server.outcome(nonce)["status"] == "drained"
