"""The stories of tests/servers in their hundreds; the figures are printed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from statistics import median, quantiles
from threading import Event

import httpx
import pytest

from tests.servers.matrix import SERVERS, Kind
from tests.servers.server import IDLE, Server, running
from tests.servers.wire import Answer

FAILURES = 500
AT_ONCE = 50
UPLOADS = 100
DRAINS = 100
CONNECTIONS = 300
MEGABYTE = 2**20


@pytest.fixture(scope="module", params=SERVERS, ids=lambda kind: kind.name)
def soaked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind: Kind = request.param
    with running(kind, tmp_path_factory.mktemp(kind.name)) as server:
        yield server


@pytest.fixture
def server(soaked: Server) -> Iterator[Server]:
    soaked.be_as_new()
    try:
        yield soaked
    finally:
        soaked.be_as_new()


@pytest.fixture
def told(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Iterator[list[str]]:
    """What a test wants to be read, also when it passes."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        for line in lines:
            print(f"\n{request.node.name}: {line}", end="")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["raise", "cancel"])
def test_the_count_is_zero_after_every_app_that_failed(
    server: Server, how: str, when: str
) -> None:
    _many_times(server, f"/broken/{how}/{when}", read=False)


def test_the_count_is_zero_after_every_client_that_left(server: Server) -> None:
    _many_times(server, "/slow?seconds=0.05", read=False)


def test_the_count_is_zero_after_every_answer(server: Server) -> None:
    _many_times(server, "/hello", read=True)


def _many_times(server: Server, path: str, *, read: bool) -> None:
    for _ in range(FAILURES // AT_ONCE):
        before = _admitted(server)
        with ExitStack() as connections:
            for _ in range(AT_ONCE):
                connection = connections.enter_context(server.connect())
                connection.send_head("GET", path)
                if read:
                    assert connection.answer().status == 200
            _until_admitted(server, before + AT_ONCE)
        server.until(lambda: server.in_flight() == IDLE)


def _until_admitted(server: Server, number: int) -> None:
    server.until(lambda: _admitted(server) == number)


def _admitted(server: Server) -> int:
    admitted: int = server.report()["admittedTotal"]
    return admitted


def test_every_refused_upload_reads_a_503(server: Server, told: list[str]) -> None:
    server.begin()
    seen: Counter[str] = Counter()
    with httpx.Client(trust_env=False) as client:
        for _ in range(UPLOADS):
            seen[f"http.client {_upload(server)}"] += 1
            url = f"http://127.0.0.1:{server.port}/upload"
            answer = client.post(url, content=bytes(8 * MEGABYTE))
            seen[f"httpx {answer.status_code}"] += 1
    told.append(str(dict(seen)))
    assert seen == {"http.client 503": UPLOADS, "httpx 503": UPLOADS}


def _upload(server: Server) -> int:
    client = HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        client.request("POST", "/upload", bytes(8 * MEGABYTE))
        return client.getresponse().status
    finally:
        client.close()


def test_drained_is_visible_soon_after_the_end_of_the_work(
    server: Server, told: list[str]
) -> None:
    late = []
    for _ in range(DRAINS):
        slow = server.start("/slow?seconds=0.1")
        nonce = server.begin()
        seen = _until_drained(server, nonce)
        late.append((seen - slow.result().at) * 1000)
        server.resume(nonce)
    rare = quantiles(late, n=100)[98]
    told.append(
        f"seen after {median(late):.1f} ms (median), {rare:.1f} ms (99 of 100), "
        f"{max(late):.1f} ms at most, looking every 5 ms"
    )
    assert max(late) < 100


def _until_drained(server: Server, nonce: str) -> float:
    return server.until(lambda: server.status(nonce)["status"] == "drained")


def test_under_load_every_request_is_answered_and_none_is_admitted_once_drained(
    server: Server, told: list[str]
) -> None:
    over = Event()
    seen: Counter[str] = Counter()

    def load() -> None:
        while not over.is_set():
            seen[_sort(server.get("/hello"))] += 1

    clients = [server.in_background(load) for _ in range(4)]
    try:
        for _ in range(DRAINS):
            nonce = server.begin()
            assert server.outcome(nonce)["status"] == "drained"
            admitted = _admitted(server)
            time.sleep(0.01)
            assert _admitted(server) == admitted
            assert server.status(nonce)["inFlight"] == IDLE
            server.resume(nonce)
            time.sleep(0.01)
    finally:
        over.set()
    for client in clients:
        client.result()
    told.append(f"{DRAINS} drains, {dict(seen)}")
    assert set(seen) == {"answered", "refused"}


def _sort(answer: Answer) -> str:
    if answer.is_refusal and answer.closes:
        return "refused"
    return "answered" if answer.status == 200 else f"{answer.status}"


def test_every_kept_connection_is_refused_once_and_not_reset(
    server: Server, told: list[str]
) -> None:
    with ExitStack() as opened:
        pool = [opened.enter_context(server.connect()) for _ in range(CONNECTIONS)]
        for connection in pool:
            assert connection.ask("GET", "/hello").status == 200
        server.begin()
        for connection in pool:
            connection.send_head("GET", "/hello")
        seen = Counter(_sort(connection.answer()) for connection in pool)
    told.append(str(dict(seen)))
    assert seen == {"refused": CONNECTIONS}
