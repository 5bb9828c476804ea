"""Servers of several workers, and one release that all of them are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gate import Gate
from tests.servers.matrix import Kind
from tests.servers.server import Server, running
from tests.servers.wire import Answer

RESPAWNS_WITHIN = 15.0  # seconds; uvicorn waits 5 where one dies that it asks
APP = "tests.workers.app:app"
_GUNICORN = ("--bind", "127.0.0.1:{port}", "--no-control-socket", "-w")


@dataclass(frozen=True, slots=True)
class Crew:
    """A server as it is started, and what becomes of it."""

    kind: Kind
    workers: int
    respawns: bool = True
    """Whether a worker that was killed is replaced, and the server lives on."""
    reloads: bool = False
    """Whether a SIGHUP replaces all workers without a failed request."""


def _crew(
    name: str, workers: int, *options: str, needs: tuple[str, ...], **more: bool
) -> Crew:
    module = name.partition("-")[0]
    return Crew(Kind(name, needs, module, options), workers, **more)


CREWS = (
    _crew(
        "uvicorn",
        4,
        *("--host", "127.0.0.1", "--port", "{port}", "--workers", "4"),
        needs=("uvicorn",),
        reloads=True,
    ),
    _crew(
        "gunicorn-asgi",
        4,
        *(*_GUNICORN, "4", "-k", "asgi"),
        needs=("gunicorn",),
        reloads=True,
    ),
    _crew(
        "gunicorn-uvicorn",
        4,
        *(*_GUNICORN, "4", "-k", "uvicorn_worker.UvicornWorker"),
        needs=("gunicorn", "uvicorn_worker"),
        reloads=True,
    ),
    _crew(
        "granian",
        4,
        *("--interface", "asgi", "--host", "127.0.0.1", "--port", "{port}"),
        *("--workers", "4", "--respawn-failed-workers"),
        needs=("granian",),
    ),
    _crew(
        "hypercorn",
        2,
        *("--bind", "127.0.0.1:{port}", "-w", "2"),
        needs=("hypercorn",),
        respawns=False,
    ),
)
PRELOADED = _crew(
    "gunicorn-preloaded",
    2,
    *(*_GUNICORN, "2", "-k", "asgi", "--preload"),
    needs=("gunicorn",),
)


class Crowd:
    """One release of several workers, seen through a server's one address."""

    def __init__(self, crew: Crew, server: Server) -> None:
        self.crew = crew
        self.server = server
        self.first: set[int] = set()
        """The workers that it started with."""

    def pids(self) -> set[int]:
        """The workers that the report lists."""
        return {worker["pid"] for worker in self.workers()}

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.report()["workers"]
        return found

    def victims(self) -> set[int]:
        """Whom to kill: granian ends where one dies that it has just replaced."""
        pids = self.pids()
        return pids & self.first or pids

    @property
    def supervisor(self) -> int:
        """The process that started the workers."""
        stat = Path(f"/proc/{min(self.pids())}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def is_whole(self) -> bool:
        """All workers are there and have spoken."""
        workers = self.workers()
        return len(workers) == self.crew.workers and not any(
            worker["unknown"] for worker in workers
        )

    def until_whole(self) -> None:
        """Wait until all workers are there, whoever has died."""
        until = time.monotonic() + RESPAWNS_WITHIN
        while not self.is_up():
            assert time.monotonic() < until, self.pids()
            time.sleep(0.02)

    def be_as_new(self) -> None:
        """Serve again, be idle, and have all workers."""
        self.server.patience = 10.0
        self.until_whole()
        self.server.be_as_new()
        self.server.until(self.is_whole)

    def is_up(self) -> bool:
        """The same, where it may be that nobody answers."""
        with suppress(OSError, AssertionError, ValueError):
            return self.is_whole()
        return False

    def holding(self, gate: Gate) -> tuple[int, Future[Answer]]:
        """Send a request that waits there; gives the worker that runs it."""
        path = f"/held?gate={gate.port}"
        before = {w["pid"]: w["inFlight"]["http"] for w in self.workers()}
        answer = self.server.in_background(self.server.get, path)
        gate.until_reached()

        def holder() -> int | None:
            for worker in self.workers():
                if worker["inFlight"]["http"] != before[worker["pid"]]:
                    return int(worker["pid"])
            return None

        self.server.until(holder)
        pid = holder()
        assert pid is not None
        return pid, answer

    def refusals(self, number: int) -> int:
        """How many of that many new connections are refused."""
        tried = [
            self.server.in_background(self.server.get, "/pid") for _ in range(number)
        ]
        return sum(future.result().is_refusal for future in tried)


@contextmanager
def crowd(
    crew: Crew,
    folder: Path,
    runtime: Path,
    *,
    whole: bool = True,
    group: str = "all",
    app: str = APP,
) -> Iterator[Crowd]:
    """Run that server, until all workers have come up if it is to be `whole`.

    Its group lies in `runtime`, whose path must be short.
    """
    with running(
        crew.kind,
        folder,
        app=app,
        DRAINMW_RUNTIME_DIR=str(runtime),
        DRAINMW_GROUP=group,
    ) as server:
        found = Crowd(crew, server)
        if whole:
            server.until(found.is_whole)
            found.first = found.pids()
        yield found
