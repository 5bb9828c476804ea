"""Over uvicorn (httptools, uvloop): CPU of the server process a request.

Every variant is a server of its own. They are asked in turn, a short slice
each, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import shuffle
from statistics import median

from benchmarks.variants import LAYERS, fastapi, hello, own, quiet

APPS = {"hello": lambda: own(hello), "fastapi": fastapi}
CONNECTIONS = 32
TURNS = 20  # requests a slice on each connection
ENDS = (b"hello", b'{"hello":"world"}')
REQUEST = b"GET /items/12345 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"


@dataclass
class Served:
    """One server, and the connections to it."""

    pid: int
    connections: list[socket.socket]

    def slice(self) -> float:
        """Microseconds of CPU a request."""
        before = cpu_ns(self.pid)
        for _ in range(TURNS):
            for connection in self.connections:
                connection.sendall(REQUEST)
            for connection in self.connections:
                _read_answer(connection)
        return (cpu_ns(self.pid) - before) / (TURNS * CONNECTIONS) / 1000


def cpu_ns(pid: int) -> int:
    """Nanoseconds that a process has been on a CPU."""
    with open(f"/proc/{pid}/schedstat") as schedstat:
        return int(schedstat.read().split()[0])


def _read_answer(connection: socket.socket) -> None:
    answer = connection.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"unexpected answer: {answer[:100]!r}")
    while not answer.endswith(ENDS):
        answer += connection.recv(65536)


def measure(
    app: str, layers: Sequence[str], *, starts: int, rounds: int
) -> dict[str, list[float]]:
    """Microseconds of CPU a request for each variant and round, interleaved.

    All servers are started anew `starts` times, since where the memory of a
    process happens to lie makes a per cent or two for as long as it lives.
    """
    slices: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(starts):
        with ExitStack() as stack:
            servers = [
                (name, stack.enter_context(_serving(app, name))) for name in layers
            ]
            for _, server in servers:
                server.slice()  # warm up
            gc.disable()
            for _ in range(rounds):
                shuffle(servers)
                for name, server in servers:
                    slices[name].append(server.slice())
            gc.enable()
    return slices


def ratios(slices: dict[str, list[float]], base: str) -> dict[str, float]:
    """The median of each variant's ratios to `base`, round by round."""
    return {
        name: median(a / b for a, b in zip(mine, slices[base], strict=True))
        for name, mine in slices.items()
    }


@contextmanager
def _serving(app: str, layer: str) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listener:
        command = [sys.executable, "-m", "benchmarks.served"]
        command += [app, layer, str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        connections = [
            socket.create_connection(listener.getsockname(), timeout=30)
            for _ in range(CONNECTIONS)
        ]
        try:
            yield Served(process.pid, connections)
        finally:
            for connection in connections:
                connection.close()
            process.terminate()
            process.wait()


def serve(app: str, layer: str, fd: int) -> None:
    """What the server process does."""
    import uvicorn

    quiet()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    listener = socket.socket(fileno=fd)
    config = uvicorn.Config(
        LAYERS[layer](APPS[app]()),
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
