"""HTTP/2 has no Connection header: streams are refused one by one."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.gate import Gate
from tests.servers.server import Server


@dataclass(slots=True)
class Streams:
    """One HTTP/2 connection without TLS; streams are named by their numbers."""

    port: int
    _wire: socket.socket = field(init=False)
    _h2: H2Connection = field(default_factory=H2Connection)
    _heads: dict[int, dict[str, str]] = field(default_factory=dict)
    _bodies: dict[int, bytes] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._wire = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self._h2.initiate_connection()
        self._flush()

    def close(self) -> None:
        self._wire.close()

    def start(self, method: str, path: str, body: bytes = b"") -> int:
        """Send a request, its body as the server lets it."""
        stream = self._h2.get_next_available_stream_id()
        request = {":method": method, ":path": path, ":scheme": "http"}
        request[":authority"] = f"127.0.0.1:{self.port}"
        # HTTP/2 ends a body by a flag, so nothing declares its length here.
        self._h2.send_headers(stream, list(request.items()), end_stream=not body)
        while body:
            most = self._h2.local_flow_control_window(stream)
            most = min(most, self._h2.max_outbound_frame_size)
            if most == 0:
                self._read()
                continue
            self._h2.send_data(stream, body[:most], end_stream=len(body) <= most)
            body = body[most:]
            self._flush()
        self._flush()
        return stream

    def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """Read until that stream has ended; gives its headers and its body."""
        while stream not in self._ended:
            self._read()
        return self._heads[stream], self._bodies.get(stream, b"")

    def _read(self) -> None:
        data = self._wire.recv(65536)
        if not data:
            raise AssertionError("the server has closed the connection")
        for event in self._h2.receive_data(data):
            if isinstance(event, ResponseReceived):
                head = {str_of(k): str_of(v) for k, v in event.headers}
                self._heads[event.stream_id] = head
            elif isinstance(event, DataReceived):
                seen = self._bodies.get(event.stream_id, b"")
                self._bodies[event.stream_id] = seen + event.data
            elif isinstance(event, StreamReset):
                raise AssertionError(f"stream {event.stream_id} was reset")
            elif isinstance(event, StreamEnded):
                self._ended.add(event.stream_id)
        self._flush()

    def _flush(self) -> None:
        self._wire.sendall(self._h2.data_to_send())


def str_of(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text


@pytest.fixture
def streams(server: Server) -> Iterator[Streams]:
    streams = Streams(server.port)
    try:
        yield streams
    finally:
        streams.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as gate:
        yield gate


def test_a_stream_in_flight_finishes_without_a_connection_header(
    server: Server, streams: Streams, gate: Gate
) -> None:
    held = streams.start("GET", f"/held?gate={gate.port}")
    gate.until_reached()
    nonce = server.begin()
    head, _ = streams.answer(streams.start("GET", "/hello"))
    assert head[":status"] == "503"
    assert head["drainmw-refused"] == "draining"
    assert head["retry-after"] in ("1", "2")
    assert "connection" not in head
    gate.open()
    head, body = streams.answer(held)
    assert (head[":status"], body) == ("200", b"held")
    assert "connection" not in head
    assert server.outcome(nonce)["status"] == "drained"
    head, _ = streams.answer(streams.start("GET", "/hello"))
    assert (head[":status"], head["drainmw-refused"]) == ("503", "drained")


def test_a_refused_upload_costs_no_other_stream(
    server: Server, streams: Streams, gate: Gate
) -> None:
    held = streams.start("GET", f"/held?gate={gate.port}")
    gate.until_reached()
    nonce = server.begin()
    began = time.monotonic()
    head, _ = streams.answer(streams.start("POST", "/upload", bytes(2**20)))
    assert (head[":status"], head["drainmw-refused"]) == ("503", "draining")
    assert time.monotonic() - began < 1
    gate.open()
    head, body = streams.answer(held)
    assert (head[":status"], body) == ("200", b"held")
    assert server.outcome(nonce)["status"] == "drained"


def test_a_stream_of_events_is_ended_complete(server: Server, streams: Streams) -> None:
    events = streams.start("GET", "/ticks")
    server.until(lambda: server.in_flight()["http"] == 1)
    nonce = server.begin()
    head, body = streams.answer(events)
    assert head["content-type"].startswith("text/event-stream")
    assert body.endswith(b"data: tick\n\n")
    assert server.outcome(nonce)["status"] == "drained"
