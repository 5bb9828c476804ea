"""Bodies that are refused, slow or too large: a clear answer, never a reset."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection

import httpx
import pytest

from tests.servers.server import BEGIN, Server, begin_request, new_nonce
from tests.servers.wire import Connection

MEGABYTE = 2**20


def test_a_refused_upload_of_httpx_reads_the_refusal(server: Server) -> None:
    before = server.counters()["uploads"]
    nonce = server.begin()
    server.outcome(nonce)
    with httpx.Client(trust_env=False) as client:
        url = f"http://127.0.0.1:{server.port}/upload"
        answer = client.post(url, content=bytes(8 * MEGABYTE))
    assert answer.status_code == 503
    assert answer.headers["drainmw-refused"] == "drained"
    assert answer.headers["retry-after"] in ("1", "2")
    server.resume(nonce)
    assert server.counters()["uploads"] == before


def test_a_refused_upload_of_the_standard_library_reads_the_refusal(
    server: Server,
) -> None:
    before = server.counters()["uploads"]
    nonce = server.begin()
    server.outcome(nonce)
    client = HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        client.request("POST", "/upload", bytes(8 * MEGABYTE))
        answer = client.getresponse()
        answer.read()
    finally:
        client.close()
    assert answer.status == 503
    assert answer.getheader("drainmw-refused") == "drained"
    assert answer.getheader("retry-after") in ("1", "2")
    server.resume(nonce)
    assert server.counters()["uploads"] == before


def test_a_refused_upload_in_chunks_reads_the_refusal(server: Server) -> None:
    server.begin()
    with server.connect() as connection:
        connection.send_head("POST", "/upload", transfer_encoding="chunked")
        for _ in range(8):
            connection.send(b"100000\r\n" + bytes(MEGABYTE) + b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.answer("POST").is_refusal


def test_an_upload_in_flight_at_the_begin_is_taken(server: Server) -> None:
    body = bytes(MEGABYTE)
    before = server.counters()["uploads"]
    with server.connect() as connection:
        connection.send_head("POST", "/upload", content_length=str(len(body)))
        connection.send(body[: MEGABYTE // 2])
        if server.kind.reads_bodies_first:
            # The app has not been called, so this is no work in flight.
            time.sleep(0.1)
            nonce = server.begin()
            connection.send(body[MEGABYTE // 2 :])
            assert connection.answer("POST").is_refusal
            server.resume(nonce)
            assert server.counters()["uploads"] == before
            return
        server.until(lambda: server.in_flight()["http"] == 1)
        nonce = server.begin()
        assert server.status(nonce)["inFlight"]["http"] == 1
        connection.send(body[MEGABYTE // 2 :])
        answer = connection.answer("POST")
    assert (answer.status, answer.json()) == (200, {"size": MEGABYTE})
    assert answer.closes
    assert server.outcome(nonce)["status"] == "drained"


def test_a_refused_client_that_expects_100_continue_uploads_nothing(
    server: Server,
) -> None:
    server.begin()
    with server.connect() as connection:
        connection.send_head(
            "POST", "/upload", content_length="1000", expect="100-continue"
        )
        head = connection.head().lower()
        if not server.kind.says_continue:
            assert head.startswith(b"http/1.1 503 ")
            assert b"\r\ndrainmw-refused: " in head
            return
        assert head.startswith(b"http/1.1 100 ")
        if server.kind.reads_bodies_first:
            connection.send(bytes(1000))
        assert connection.answer("POST").is_refusal


def test_a_refused_body_that_trickles_is_read_for_a_second_past_the_deadline(
    server: Server,
) -> None:
    server.begin(timeout=0.1)
    began = time.monotonic()
    with server.connect() as connection:
        connection.send_head("POST", "/upload", content_length="1000")
        _trickle(connection, 5)
        if server.kind.reads_bodies_first:
            # It waits for the rest before anybody is asked.
            assert not connection.is_closed_within(1)
            return
        assert connection.answer("POST").is_refusal
    assert time.monotonic() - began < 1.5


def test_a_begin_that_trickles_is_bounded_and_begins_nothing(server: Server) -> None:
    body = json.dumps(begin_request(new_nonce())).encode()
    began = time.monotonic()
    with server.connect() as connection:
        server.send_begin_head(connection, len(body))
        _trickle(connection, 1)
        if server.kind.reads_bodies_first:
            assert not connection.is_closed_within(0.8)
        else:
            answer = connection.answer("POST")
            assert answer.status == 408
            assert answer.json()["code"] == "RUNTIME_CONTROL_BODY_TIMEOUT"
    assert time.monotonic() - began < 1.5
    assert server.report()["phase"] == "serving"


def test_a_begin_of_ten_megabytes_reads_a_413_also_where_its_connection_ends(
    server: Server,
) -> None:
    content = begin_request(new_nonce()) | {"padding": "x" * 10 * MEGABYTE}
    for phase in ("serving", "drained"):
        answer = server.control("POST", BEGIN, content)
        assert answer.status == 413
        assert answer.json()["code"] == "RUNTIME_CONTROL_BODY_TOO_LARGE"
        assert answer.closes is (phase == "drained")
        assert server.report()["phase"] == phase
        if phase == "serving":
            server.outcome(server.begin())


@pytest.mark.parametrize(
    "body", [b"[" * 9000, b'{"nonce": "\xff\xfe"}', b"9" * 6000, b"{"]
)
def test_a_begin_that_is_no_json_reads_a_400(server: Server, body: bytes) -> None:
    with server.connect() as connection:
        server.send_begin_head(connection, len(body))
        connection.send(body)
        answer = connection.answer("POST")
    assert answer.status == 400
    assert answer.json()["code"] == "RUNTIME_DRAIN_REQUEST_INVALID"
    assert server.report()["phase"] == "serving"


def _trickle(connection: Connection, most: int) -> None:
    """A few bytes, one at a time."""
    for _ in range(most):
        connection.send(b" ")
        time.sleep(0.1)
