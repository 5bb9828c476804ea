"""Drains of long-lived connections in their hundreds; the figures are printed."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from websockets.exceptions import ConnectionClosed

from tests.servers.matrix import SERVERS, Kind
from tests.servers.server import IDLE, Server, running
from tests.servers.wire import Answer
from tests.workers.conftest import needs, runtime
from tests.workers.crowd import Crew, crowd

__all__ = ["runtime"]

APP = "soak.streaming:app"
KINDS = [
    kind for kind in SERVERS if kind.name in ("uvicorn-h11-websockets", "hypercorn")
]
OPTIONS = ("--host", "127.0.0.1", "--port", "{port}", "--workers", "2")
CREW = Crew(Kind("uvicorn-2-workers", ("uvicorn",), "uvicorn", OPTIONS), 2)
DRAINS = 200
DRAINS_OF_WORKERS = 20
LASTS = (0.1, 1.0)  # seconds that a pinned stream goes on after the begin
ENDED = 3  # streams that end at their grace, beside the pinned ones
SOCKETS = ("/echo", "/echo", "/echo", "/ticks", "/ticks")
ENOUGH = 30.0  # seconds for a drain, so that no deadline is near


@dataclass
class Seen:
    """What all drains of a test have shown."""

    closes: Counter[int] = field(default_factory=Counter)
    """WebSockets, by their close code."""
    events: int = 0
    """Of the pinned streams."""
    ended: list[float] = field(default_factory=list)
    """Seconds from the begin to the end of a stream that was ended."""
    late: list[float] = field(default_factory=list)
    """Milliseconds from the last end of any of them to `drained`."""
    took: list[float] = field(default_factory=list)
    """Seconds of a drain."""

    def __str__(self) -> str:
        return (
            f"{len(self.took)} drains of {max(self.took):.2f} s at most, "
            f"{self.events} events of pinned streams, none lost; `drained` was seen "
            f"{max(self.late):.0f} ms at most after the last end; "
            f"{len(self.ended)} streams ended after {max(self.ended):.2f} s at most, "
            f"{self.closes.total()} WebSockets closed: {dict(self.closes)}"
        )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_drain_of_200_cuts_a_pinned_stream(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(kind, tmp_path, app=APP) as server:
        _drain_over_and_over(server, DRAINS, pinned=1, capsys=capsys)


def test_no_drain_of_workers_cuts_a_pinned_stream(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(CREW)
    with crowd(CREW, tmp_path, runtime, group="streams", app=APP) as release:
        _drain_over_and_over(release.server, DRAINS_OF_WORKERS, pinned=4, capsys=capsys)


def _drain_over_and_over(
    server: Server, drains: int, *, pinned: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, chance = Seen(), Random(drains)
    for _ in range(drains):
        mix = Mix(server, [chance.uniform(*LASTS) for _ in range(pinned)])
        nonce, begun = server.begin(ENOUGH), time.monotonic()
        statuses = _until_drained(server, nonce)
        mix.check(begun, statuses, seen)
        server.resume(nonce)
    assert set(seen.closes) == {1012}
    log = server.log.read_text()
    assert "Traceback" not in log, log[-6000:]
    with capsys.disabled():
        print(f"\n{server.kind.name}: {seen}")


class Status(NamedTuple):
    """One answer of the status endpoint."""

    at: float
    """Monotonic seconds."""
    phase: str
    http: int


def _until_drained(server: Server, nonce: str) -> list[Status]:
    """Every status from the begin to the end."""
    statuses: list[Status] = []

    def is_over() -> bool:
        told = server.status(nonce)
        http = told["inFlight"]["http"]
        statuses.append(Status(time.monotonic(), told["status"], http))
        return statuses[-1].phase != "draining"

    server.until(is_over)
    return statuses


class Mix:
    """What is in flight in one drain, each with a client of its own."""

    def __init__(self, server: Server, lasts: list[float]) -> None:
        """A pinned stream for each time given, and all the others; once they run."""
        ask = server.in_background
        self._pinned = [ask(server.get, f"/pinned?seconds={s}") for s in lasts]
        self._ended = [ask(server.get, "/events") for _ in range(ENDED)]
        self._sockets = [ask(_closed, server, path) for path in SOCKETS]
        http = len(self._pinned) + len(self._ended)
        everything = {**IDLE, "http": http, "websocket": len(SOCKETS)}
        server.until(lambda: server.in_flight() == everything)

    def check(self, begun: float, statuses: list[Status], seen: Seen) -> None:
        """That each has ended as it should, and nothing else was ever said."""
        ends = [_end_of_complete(stream.result(), seen) for stream in self._pinned]
        for at, phase, http in statuses:
            running = sum(at < end for end in ends)
            assert not running or (phase == "draining" and http >= running)
        for stream in self._ended:
            answer = stream.result()  # raises where the last chunk is missing
            assert answer.status == 200 and answer.body.endswith(b"\n\n")
            seen.ended.append(answer.at - begun)
            ends.append(answer.at)
        for code, closed in (socket.result() for socket in self._sockets):
            seen.closes[code] += 1
            ends.append(closed)
        drained = statuses[-1]
        assert (drained.phase, drained.http) == ("drained", 0)
        seen.late.append((drained.at - max(ends)) * 1000)
        seen.took.append(drained.at - begun)


def _end_of_complete(answer: Answer, seen: Seen) -> float:
    """Check that no event is missing; gives when the app had sent the last one."""
    *events, last = answer.body.removesuffix(b"\n\n").split(b"\n\n")
    assert last.startswith(b"data: ends at "), "it was cut"
    assert events == [b"data: %d" % number for number in range(len(events))]
    seen.events += len(events)
    return float(last.removeprefix(b"data: ends at "))


def _closed(server: Server, path: str) -> tuple[int, float]:
    """Hold a WebSocket until the server closes it; gives its code, and when."""
    with server.websocket(path) as websocket:
        while True:
            try:
                websocket.recv()
            except ConnectionClosed as closed:
                assert closed.rcvd is not None, "it was cut"
                assert "retry_ms" in json.loads(closed.rcvd.reason)
                return closed.rcvd.code, time.monotonic()
