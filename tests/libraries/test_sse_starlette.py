"""sse-starlette: its streams are ended complete, their generators closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.libraries.log import Log, faults_in
from tests.libraries.matrix import Library
from tests.processes import served
from tests.servers.server import Server

LIBRARY = Library("tests.libraries.sse_starlette_app:app", needs=("sse_starlette",))
SOON = 2.0  # seconds; the default grace of a stream is 0.5


@contextmanager
def listening(port: int, path: str) -> Iterator[Iterator[str]]:
    """What comes on an event stream, once something has come.

    Reading to the end fails where a chunked body is not complete.
    """
    url = f"http://127.0.0.1:{port}{path}"
    accept = {"accept": "text/event-stream"}
    with (
        httpx.Client(trust_env=False) as client,
        client.stream("GET", url, headers=accept) as response,
    ):
        text = response.iter_text()
        assert next(text).startswith(("id:", "event:"))
        yield text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/generated", "numbers left"),
        ("/quiet", "news left"),
        ("/pushed", "publisher left"),
    ],
)
def test_a_stream_is_ended_complete_and_what_made_it_is_told(
    server: Server, log: Log, path: str, said: str
) -> None:
    with listening(server.port, path) as text:
        nonce = server.begin(timeout=20)
        began = time.monotonic()
        rest = "".join(text)
        assert time.monotonic() - began < SOON
    assert rest.endswith("\r\n\r\n") or path == "/quiet"
    assert server.outcome(nonce)["status"] == "drained"
    assert time.monotonic() - began < SOON
    assert log.count(said) == 1
    assert log.faults() == []


def test_many_streams_are_ended_complete(server: Server, log: Log) -> None:
    def listen() -> str:
        with listening(server.port, "/generated") as text:
            return "".join(text)

    streams = [server.in_background(listen) for _ in range(10)]
    server.until(lambda: server.in_flight()["http"] == 10)
    nonce = server.begin(timeout=20)
    assert all(stream.result().endswith("\r\n\r\n") for stream in streams)
    assert server.outcome(nonce)["status"] == "drained"
    assert log.count("numbers left") == 10
    assert log.faults() == []


def test_its_own_watch_of_the_server_does_not_cut_in_at_a_signal(
    tmp_path: Path,
) -> None:
    with served(tmp_path, app=LIBRARY.app) as release:
        with listening(release.port, "/generated") as text:
            release.signal()
            assert "".join(text).endswith("\r\n\r\n")
        assert release.exit_code() == 0
        assert "numbers left" in release.err.text
        assert release.events("drain ended")[0]["phase"] == "drained"
        assert faults_in(release.err.lines) == []
