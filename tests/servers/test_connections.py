"""What becomes of HTTP/1 connections: the last answer says so, and ends them."""

from __future__ import annotations

from contextlib import ExitStack

from tests.gate import Gate
from tests.servers.server import IDLE, Server
from tests.servers.wire import Answer, Connection


def _is_over(server: Server, connection: Connection, answer: Answer) -> None:
    """It said so, and it is; or is refused again, where the server keeps it."""
    assert answer.closes
    if server.kind.closes_after_last_answer:
        assert connection.is_closed_within(0.5)
    else:
        assert not connection.is_closed_within(0.05)
        assert connection.ask("GET", "/hello").is_refusal


def test_while_serving_a_connection_is_kept(server: Server) -> None:
    with server.connect() as connection:
        for _ in range(3):
            answer = connection.ask("GET", "/hello")
            assert (answer.status, answer.closes) == (200, False)
        assert not connection.is_closed_within(0.05)


def test_a_request_in_flight_ends_its_connection(server: Server) -> None:
    with Gate() as gate, server.connect() as connection:
        connection.send_head("GET", f"/held?gate={gate.port}")
        gate.until_reached()
        server.begin()
        gate.open()
        answer = connection.answer()
        assert (answer.status, answer.body) == (200, b"held")
        _is_over(server, connection, answer)


def test_the_next_request_on_a_kept_connection_is_refused_and_ends_it(
    server: Server,
) -> None:
    with server.connect() as connection:
        for _ in range(10):
            assert connection.ask("GET", "/hello").status == 200
        server.begin()
        answer = connection.ask("GET", "/hello")
        assert answer.is_refusal
        _is_over(server, connection, answer)


def test_fifty_idle_connections_get_fifty_refusals_and_no_reset(
    server: Server,
) -> None:
    with ExitStack() as opened:
        pool = [opened.enter_context(server.connect()) for _ in range(50)]
        assert [c.ask("GET", "/hello").status for c in pool] == [200] * 50
        nonce = server.begin()
        assert server.outcome(nonce)["status"] == "drained"
        admitted = server.report()["admittedTotal"]
        for connection in pool:
            connection.send_head("GET", "/hello")
        answers = [connection.answer() for connection in pool]
    assert [answer.is_refusal for answer in answers] == [True] * 50
    assert all(answer.closes for answer in answers)
    assert server.report()["admittedTotal"] == admitted
    assert server.status(nonce)["inFlight"] == IDLE


def test_a_connection_header_of_the_app_is_replaced_and_not_doubled(
    server: Server,
) -> None:
    with Gate() as gate, server.connect() as connection:
        connection.send_head("GET", f"/keep?gate={gate.port}")
        gate.until_reached()
        server.begin()
        gate.open()
        head = connection.head().lower()
    assert head.startswith(b"http/1.1 200")
    assert head.count(b"\r\nconnection:") == 1
    assert b"\r\nconnection: close" in head


def test_probes_and_control_end_their_connection_too(server: Server) -> None:
    server.begin()
    assert server.get("/livez").closes
    assert server.get("/readyz").closes
    assert server.control("GET", "/.drainmw/v1/report").closes
