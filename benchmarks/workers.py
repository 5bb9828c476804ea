"""Eight workers as one: from begin to its 202, a status, and the shared gate.

python -m benchmarks.workers [--quick]
"""

from __future__ import annotations

import asyncio
import gc
import json
import mmap
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from random import shuffle
from statistics import median, quantiles
from time import perf_counter_ns

from benchmarks.begin import begin_request
from benchmarks.table import table
from benchmarks.variants import Server, hello, http_scopes, own, quiet
from drainmw import Drain, DrainMiddleware
from drainmw.contract import BEGIN_PATH, REPORT_PATH, RESUME_PATH, STATUS_PATH
from drainmw.core.ledger import GateByte

WORKERS = 8
BEGIN_LIMIT = 20.0  # milliseconds, 99 of 100
STATUS_LIMIT = 5.0
GATE_LIMIT = 20.0  # nanoseconds
BATCH = 4
app = DrainMiddleware(hello) if os.environ.get("BENCHMARK_WORKER") else None


class Release:
    """Eight workers of uvicorn, asked over new connections."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, content: object = None) -> tuple[int, bytes]:
        """Status and body."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            body = None if content is None else json.dumps(content)
            headers = {**self._headers, "content-type": "application/json"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def workers(self) -> int:
        """How many have come up; 0 while nobody answers."""
        try:
            return len(json.loads(self.ask("GET", REPORT_PATH)[1])["workers"])
        except OSError:
            return 0


@contextmanager
def release() -> Iterator[Release]:
    """Started, and whole."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="dr") as runtime:
        environment = {
            "BENCHMARK_WORKER": "1",
            "DRAINMW_TOKEN": token,
            "DRAINMW_RUNTIME_DIR": runtime,
        }
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "benchmarks.workers:app"),
                *("--workers", str(WORKERS), "--port", str(port)),
                *("--log-level", "critical"),
            ],
            env={**os.environ, **environment},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            found = Release(port, token)
            while found.workers() < WORKERS:
                time.sleep(0.1)
            yield found
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def waits(drains: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds: to the 202, for a status, and from begin to `drained`."""
    begins, statuses, ends = [], [], []
    with release() as workers:
        for _ in range(drains):
            request = begin_request()
            start = time.perf_counter()
            status, _ = workers.ask(
                "POST", BEGIN_PATH, request.model_dump(by_alias=True)
            )
            begins.append((time.perf_counter() - start) * 1000)
            assert status == 202
            drained = False
            while not drained:
                asked = time.perf_counter()
                status, body = workers.ask(
                    "GET", f"{STATUS_PATH}?nonce={request.nonce}"
                )
                statuses.append((time.perf_counter() - asked) * 1000)
                drained = status == 200 and json.loads(body)["status"] == "drained"
            ends.append((time.perf_counter() - start) * 1000)
            for _ in range(5):
                asked = time.perf_counter()
                workers.ask("GET", f"{STATUS_PATH}?nonce={request.nonce}")
                statuses.append((time.perf_counter() - asked) * 1000)
            workers.ask("POST", RESUME_PATH, {"nonce": request.nonce})
    return begins, statuses, ends


async def gates(rounds: int, requests: int) -> dict[str, float]:
    """Nanoseconds a request with the gate in a list and in a shared map."""
    quiet()
    with tempfile.NamedTemporaryFile() as file:
        os.ftruncate(file.fileno(), mmap.PAGESIZE)
        shared: GateByte = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        apps = {"a list": _app([0]), "a shared map": _app(shared)}
        taken: dict[str, list[float]] = {name: [] for name in apps}
        for _ in range(rounds):
            order = list(apps)
            shuffle(order)
            gc.disable()
            for name in order:
                taken[name].append(await _slice(apps[name], requests))
            gc.enable()
    return {name: median(values) for name, values in taken.items()}


def _app(gate: GateByte) -> object:
    drain = Drain()
    wrapped = DrainMiddleware(own(hello), drain)
    drain.ledger.gate = gate
    for rebind in drain._gate_users:
        rebind(gate)
    return wrapped


async def _slice(wrapped: object, requests: int) -> float:
    server = Server()
    taken = 0
    for _ in range(requests // BATCH):
        scopes = http_scopes(BATCH)
        start = perf_counter_ns()
        for scope in scopes:
            await wrapped(scope, server.receive, server.send)  # type: ignore[operator]
        taken += perf_counter_ns() - start
    return taken / requests


def main(arguments: list[str]) -> int:
    """Measure and print; 1 where a limit is not kept."""
    is_quick = "--quick" in arguments
    begins, statuses, ends = waits(60 if is_quick else 300)
    rows = [
        _row("begin to its 202", begins, BEGIN_LIMIT),
        _row("status", statuses, STATUS_LIMIT),
        _row("begin to a `drained` that is seen", ends, None),
    ]
    head = (f"{WORKERS} workers, ms", "median", "99 of 100", "most", "limit")
    print(table(head, rows))
    found = asyncio.run(gates(60 if is_quick else 300, 1000))
    more = found["a shared map"] - found["a list"]
    print()
    print(
        table(
            ("the gate in", "ns a request"),
            [(name, f"{value:.0f}") for name, value in found.items()],
        )
    )
    print(f"\na shared gate costs {more:+.1f} ns (limit {GATE_LIMIT:.0f})")
    is_slow = _rare(begins) > BEGIN_LIMIT or median(statuses) > STATUS_LIMIT
    return int(is_slow or more > GATE_LIMIT)


def _row(name: str, values: list[float], limit: float | None) -> tuple[str, ...]:
    shown = "" if limit is None else f"{limit:.0f}"
    return (
        name,
        f"{median(values):.1f}",
        f"{_rare(values):.1f}",
        f"{max(values):.1f}",
        shown,
    )


def _rare(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
