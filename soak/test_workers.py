"""Drains of several workers in their hundreds; the figures are printed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import pytest

from tests.gate import Gate
from tests.workers.conftest import needs, runtime
from tests.workers.crowd import CREWS, Crew, Crowd, crowd

__all__ = ["runtime"]

DRAINS = 100
CONNECTIONS = 200
KILLS = 20


@pytest.fixture(scope="module", params=CREWS, ids=lambda crew: crew.kind.name)
def release(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    runtime: Path,
) -> Iterator[Crowd]:
    crew: Crew = request.param
    needs(crew)
    with crowd(crew, tmp_path_factory.mktemp(crew.kind.name), runtime) as found:
        yield found


def test_no_drain_of_a_hundred_admits_any_of_200_new_connections(
    release: Crowd, capsys: pytest.CaptureFixture[str]
) -> None:
    server = release.server
    ended = []
    for _ in range(DRAINS):
        admitted = server.report()["admittedTotal"]
        began = time.monotonic()
        nonce = server.begin()
        drained = server.until(lambda n=nonce: _is_drained(release, n))  # type: ignore[misc]
        ended.append((drained - began) * 1000)
        assert release.refusals(CONNECTIONS) == CONNECTIONS
        assert server.report()["admittedTotal"] == admitted
        server.resume(nonce)
        assert release.refusals(8) == 0
    with capsys.disabled():
        print(
            f"\n{release.crew.kind.name}: {DRAINS} drains, "
            f"{DRAINS * CONNECTIONS} connections, 0 admitted; drained after "
            f"{median(ended):.1f} ms (median), {max(ended):.1f} ms at most"
        )


def _is_drained(release: Crowd, nonce: str) -> bool:
    return bool(release.server.status(nonce)["status"] == "drained")


def test_workers_that_are_killed_in_any_moment_of_a_drain(
    release: Crowd, capsys: pytest.CaptureFixture[str]
) -> None:
    """Save where the server does not outlive them."""
    name = release.crew.kind.name
    if not release.crew.respawns or name == "granian":
        return
    server = release.server
    seen = []
    for number in range(KILLS):
        release.until_whole()
        with Gate() as gate:
            pid, _ = release.holding(gate)
            nonce = server.begin(timeout=30)
            time.sleep(number / KILLS * 0.05)
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            drained = server.until(lambda n=nonce: _drained_somewhere(release, n))  # type: ignore[misc]
        seen.append((drained - killed) * 1000)
        release.until_whole()
        assert release.refusals(60) == 60
        server.resume(nonce)
    with capsys.disabled():
        print(
            f"\n{name}: {KILLS} workers killed, drained {median(seen):.0f} ms "
            f"later (median), {max(seen):.0f} ms at most"
        )


def _drained_somewhere(release: Crowd, nonce: str) -> bool:
    with suppress(OSError, ValueError):
        answer = release.server.try_status(nonce)
        return answer.status == 200 and bool(answer.json()["status"] == "drained")
    return False
