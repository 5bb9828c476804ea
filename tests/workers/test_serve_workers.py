"""`drainmw serve --workers`: only the parent acts on signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.processes import Held, Served, running, served, until
from tests.rig import NONCE

WORKERS = 3


@contextmanager
def crew(
    folder: Path, runtime: Path, *options: str, **environment: str
) -> Iterator[Served]:
    """A parent and its workers, once all of them have come up."""
    variables = {"DRAINMW_RUNTIME_DIR": str(runtime), **environment}
    options = ("--workers", str(WORKERS), *options)
    with served(folder, *options, environment=variables) as release:
        release.wait_for_event("serving")
        until(lambda: len(pids(release)) == WORKERS, "all workers")
        yield release


def pids(release: Served) -> set[int]:
    """The workers that have spoken."""
    return {w["pid"] for w in release.report()["workers"] if not w["unknown"]}


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def refused(release: Served, number: int = 30) -> int:
    return sum(release.get().status_code == 503 for _ in range(number))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_process_group_drains_once(
    tmp_path: Path, runtime: Path, number: signal.Signals
) -> None:
    with crew(tmp_path, runtime) as release, Held(release.port) as held:
        workers = pids(release)
        os.killpg(release.popen.pid, number)
        release.wait_for_event("drain begun")
        assert refused(release) == 30
        assert held.let_go().endswith(b"finished\r\n0\r\n\r\n")
        assert release.exit_code() == 0
        assert len(release.events("stopping")) == 1
        assert len({event["nonce"] for event in release.events("drain begun")}) == 1
        assert all(is_gone(pid) for pid in workers)
        assert not release.control.exists()


def test_the_control_socket_of_the_parent_drains_and_resumes_all(
    tmp_path: Path, runtime: Path
) -> None:
    with crew(tmp_path, runtime) as release, release.asked() as client:
        assert client.cordon()["phase"] == "cordoned"
        assert {release.get("/readyz").status_code for _ in range(12)} == {503}
        assert refused(release) == 0
        assert client.uncordon()["phase"] == "serving"
        with Held(release.port) as held:
            client.begin(NONCE, "0" * 40, "0" * 40, 20_000)
            assert refused(release) == 30
            status = client.status(NONCE)
            assert (status["status"], status["inFlight"]["http"]) == ("draining", 1)
            held.let_go()
            until(lambda: client.status(NONCE)["status"] == "drained", "drained")
        report = client.report()
        assert {w["pid"] for w in report["workers"]} == pids(release)
        assert (report["phase"], report["refusedTotal"]) == ("drained", 30)
        assert client.resume(NONCE)["phase"] == "serving"
        assert refused(release) == 0
        release.signal()
        assert release.exit_code() == 0


def test_a_worker_that_dies_is_replaced_and_born_draining(
    tmp_path: Path, runtime: Path
) -> None:
    with crew(tmp_path, runtime) as release, release.asked() as client:
        before = pids(release)
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(pids(release)) == WORKERS, "a new worker")
        assert pids(release) != before
        assert refused(release) == 0
        client.begin(NONCE, "0" * 40, "0" * 40, 20_000)
        os.kill(max(before), signal.SIGKILL)
        until(lambda: len(pids(release)) == WORKERS, "another one")
        assert refused(release) == 30
        until(lambda: client.status(NONCE)["status"] == "drained", "drained")
        release.signal()
        assert release.exit_code() == 0


def test_workers_whose_parent_was_killed_drain_and_end(
    tmp_path: Path, runtime: Path
) -> None:
    with crew(tmp_path, runtime) as release, Held(release.port) as held:
        workers = pids(release)
        release.signal(signal.SIGKILL)
        release.wait_for_event("drain begun")
        assert httpx.get(release.address, trust_env=False).status_code == 503
        assert held.let_go().endswith(b"finished\r\n0\r\n\r\n")
        until(lambda: all(is_gone(pid) for pid in workers), "all have ended")


def test_a_second_signal_ends_all_at_once(tmp_path: Path, runtime: Path) -> None:
    with crew(tmp_path, runtime) as release, Held(release.port):
        workers = pids(release)
        release.signal()
        release.wait_for_event("drain begun")
        release.signal()
        began = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - began < 3
        until(lambda: all(is_gone(pid) for pid in workers), "all have ended")


def test_a_drain_that_fails_exits_1_in_time(tmp_path: Path, runtime: Path) -> None:
    options = ("--drain-timeout", "0.5", "--graceful-timeout", "0.5")
    with crew(tmp_path, runtime, *options) as release, Held(release.port):
        workers = pids(release)
        release.signal()
        began = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - began < 0.5 + 0.5 + 2 + 2
        assert all(is_gone(pid) for pid in workers)


def test_an_app_that_does_not_start_ends_all(tmp_path: Path, runtime: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "async def app(scope, receive, send):\n"
        "    await receive()\n"
        "    await send({'type': 'lifespan.startup.failed', 'message': 'no'})\n"
    )
    for app in ("failing:app", "missing:app"):
        with running(
            *("-m", "drainmw", "serve", app, "--workers", "2", "--port", "0"),
            cwd=tmp_path,
            environment={"DRAINMW_RUNTIME_DIR": str(runtime)},
        ) as process:
            assert process.exit_code() == 1
            assert process.events("app did not start")


def test_a_stopped_worker_is_waited_for(tmp_path: Path, runtime: Path) -> None:
    with crew(tmp_path, runtime) as release:
        pid = max(pids(release))
        os.kill(pid, signal.SIGSTOP)
        try:
            release.signal()
            release.wait_for_event("drain begun")
            time.sleep(0.6)
            assert release.events("drain ended") == []
            report = release.report()
            assert [w["pid"] for w in report["workers"] if w["unknown"]] == [pid]
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert release.exit_code() == 0
