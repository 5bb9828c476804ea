"""A program under test: a process on a free port, ended with all it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
ATTEMPTS = 3  # somebody may take the port between our look and its start
START_PATIENCE = 20.0  # seconds
END_PATIENCE = 2.0  # seconds after SIGTERM, before the whole group is killed

Arguments = Callable[[int], Sequence[str]]
"""From the port to what follows `python -m`."""


@contextmanager
def listening(arguments: Arguments, log: Path, **environment: str) -> Iterator[int]:
    """Start a program that listens on 127.0.0.1; gives its port.

    Its output goes to `log`. The environment has no `DRAINMW_*` variable but
    those given.
    """
    for attempt in range(ATTEMPTS):
        port = _free_port()
        process = _start(arguments(port), log, environment)
        try:
            if _answers(process, port):
                yield port
                return
        finally:
            end(process)
        time.sleep(0.1 * attempt)
    raise AssertionError(f"it did not start:\n{log.read_text()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    arguments: Sequence[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMW_")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    here = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**inherited, **here, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so all of it can be ended
        )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait for the first answer to a request; false if it ended instead."""
    deadline = time.monotonic() + START_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
                wire.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
                if wire.recv(1):
                    return process.poll() is None
        time.sleep(0.02)
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group of its own, and all of that group."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
