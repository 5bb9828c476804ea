"""`drainmw serve`, stopped again and again under load."""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from drainmw.tokens import generate
from tests.processes import Held, Served, served, until
from tests.rig import SOURCE, TARGET
from tests.served_app import LARGE

STOPS = 100
CYCLES = 1000
READERS = 30


class Load:
    """Requests on new connections until the listener is gone."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[str] = Counter()
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self.answers[self._ask()] += 1

    def _ask(self) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as wire:
            try:
                wire.request("GET", "/")
                answer = wire.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected):
                return "nobody there"
            body = answer.read()  # raises if it is cut
            return str(answer.status) if body else "empty"


@pytest.mark.parametrize("repetition", range(STOPS))
def test_a_stop_under_load_cuts_nothing(tmp_path: Path, repetition: int) -> None:
    with served(tmp_path) as release, Held(release.port) as held:
        with Load(release.port) as load:
            until(lambda: load.answers["200"] > repetition % 20, "served")
            release.signal()
            release.wait_for_event("drain begun")
            until(lambda: load.answers["503"], "refused")
            threading.Timer(random.uniform(0, 0.05), held.let_go).start()
            assert release.exit_code() == 0
        assert load.answers.keys() <= {"200", "503", "nobody there"}
        ended = release.wait_for_event("drain ended")
        assert (ended["phase"], ended["http"]) == ("drained", 0)


def test_a_release_drains_and_resumes_for_ever(tmp_path: Path) -> None:
    with served(tmp_path) as release, release.asked() as client:
        for cycle in range(CYCLES):
            nonce = generate()
            with Held(release.port) as held:
                assert not client.begin(nonce, SOURCE, TARGET, 20_000)["duplicate"]
                assert client.status(nonce)["status"] == "draining"
                held.let_go()
            *_, last = client.watch(nonce)
            assert last["status"] == "drained"
            assert client.resume(nonce)["epoch"] == 2 * (cycle + 1)
        assert client.report()["admittedTotal"] == CYCLES


@pytest.mark.parametrize("repetition", range(READERS))
def test_a_slow_reader_gets_every_byte(tmp_path: Path, repetition: int) -> None:
    with served(tmp_path) as release, closing(_asked_for_much(release)) as wire:
        release.signal()
        release.wait_for_event("drain ended")
        received = bytearray()
        while data := wire.recv(random.choice((1024, 65536, 1_000_000))):
            received += data
        assert received.partition(b"\r\n\r\n")[2] == b"x" * LARGE
        assert release.exit_code() == 0


def _asked_for_much(release: Served) -> socket.socket:
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.connect(("127.0.0.1", release.port))
    wire.sendall(b"GET /large HTTP/1.0\r\nHost: localhost\r\n\r\n")
    until(lambda: release.report()["admittedTotal"] == 1, "admitted")
    until(lambda: release.report()["inFlight"]["http"] == 0, "given to the server")
    return wire
