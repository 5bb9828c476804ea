"""Real processes of the command: started, watched, always ended.

Tests wait for what a process writes or answers, never for a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner, Result

from drainmw.cli import main
from drainmw.client import ControlClient

ROOT = Path(__file__).parents[1]
APP = "tests.served_app:app"
PATIENCE = 20.0  # seconds for whatever a test waits for
COLUMNS = 120  # of a terminal


class Output:
    """What a process writes, as it comes."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._written = b""
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def raw(self) -> bytes:
        return self._written

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The whole lines."""
        return self.text.splitlines() if self._ended else self.text.split("\n")[:-1]

    def wait_for(self, found: Callable[[], Any], what: str) -> Any:
        """Look again whenever something has been written."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while not (result := found()):
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(f"{what} was not written:\n{self.text}")
                self._news.wait(left)
        return result

    def wait_for_text(self, pattern: str) -> str:
        """The text, once the pattern is in it."""
        self.wait_for(lambda: re.search(pattern, self.text), pattern)
        return self.text

    def wait_for_end(self) -> None:
        self._reader.join(PATIENCE)

    def _read(self) -> None:
        # A terminal whose other end has been closed raises EIO.
        with suppress(OSError):
            while data := os.read(self._file, 65536):
                with self._news:
                    self._written += data
                    self._news.notify_all()
        os.close(self._file)
        with self._news:
            self._ended = True
            self._news.notify_all()


class Process:
    """One program under test. Use `running`, which ends it."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        *,
        cwd: Path = ROOT,
        terminal: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        ours = ("DRAINMW_", "COLUMNS")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        path = [str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
        inherited["PYTHONPATH"] = os.pathsep.join(path)  # for `tests.served_app`
        out_reads, out_writes = _terminal() if terminal else os.pipe()
        err_reads, err_writes = (out_reads, out_writes) if terminal else os.pipe()
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env=inherited | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=out_writes,
            stderr=err_writes,
            start_new_session=True,  # a group of its own, so all of it can be ended
        )
        for writes in {out_writes, err_writes}:
            os.close(writes)
        self.out = Output(out_reads)
        self.err = self.out if terminal else Output(err_reads)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The JSON lines of the log, of one event or all."""
        lines = [json.loads(line) for line in self.err.lines if line[:1] == "{"]
        return [line for line in lines if name in (None, line["event"])]

    def wait_for_event(self, name: str, number: int = 1) -> dict[str, Any]:
        """That event of the log, the first one or a later one."""
        self.err.wait_for(lambda: len(self.events(name)) >= number, name)
        return self.events(name)[number - 1]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end of it and of its output."""
        try:
            code = self.popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs:\n{self.err.text}") from None
        self.out.wait_for_end()
        self.err.wait_for_end()
        return code

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.out.wait_for_end()
        self.err.wait_for_end()


class Served(Process):
    """A process of `drainmw serve`."""

    control: Path

    @property
    def address(self) -> str:
        return str(self.wait_for_event("serving")["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def get(self, path: str = "/", **options: Any) -> httpx.Response:
        with httpx.Client(trust_env=False) as client:
            return client.get(f"{self.address}{path}", **options)

    def asked(self) -> ControlClient:
        """A client of its control socket; close it."""
        return ControlClient(control=self.control)

    def report(self) -> dict[str, Any]:
        with self.asked() as client:
            return dict(client.report())

    def be_as_new(self) -> None:
        """Serve again, without a drain and without a cordon."""
        with self.asked() as client:
            report = client.report()
            if report["nonce"] is not None:
                client.resume(report["nonce"])
            elif report["phase"] == "cordoned":
                client.uncordon()


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Process]:
    """A program in its own process: `running("-m", "drainmw", "token")`."""
    process = Process(arguments, **options)
    try:
        yield process
    finally:
        process.end()


@contextmanager
def served(
    folder: Path,
    *options: str,
    app: str = APP,
    cwd: Path = ROOT,
    terminal: bool = False,
    environment: dict[str, str] | None = None,
) -> Iterator[Served]:
    """A process of `drainmw serve` on a free port, once it answers.

    Its control socket lies in the folder. Of drainmw's variables it has those
    given, and no other.
    """
    control = control_socket(folder)
    process = Served(
        (
            *("-m", "drainmw", "serve", app),
            *(() if "--uds" in options else ("--port", "0")),
            *("--control", str(control)),
            *options,
        ),
        cwd=cwd,
        terminal=terminal,
        environment=environment,
    )
    process.control = control
    try:
        process.err.wait_for_text("Application startup complete")
        yield process
    finally:
        process.end()


def control_socket(folder: Path) -> Path:
    """A place for one, in a directory of its own."""
    directory = folder / "private"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory / "c.sock"


_FORKED = """
import json, os, sys
import drainmw.serve
from drainmw.cli import main
for arguments, environment in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.environ.update(environment)
        try:
            main(["serve", *arguments])
        except SystemExit as end:
            os._exit(end.code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    print("--", file=sys.stderr, flush=True)
"""

Start = tuple[list[str], dict[str, str]]
"""The arguments and the variables of one `drainmw serve`."""


def refused_starts(*starts: Start, cwd: Path = ROOT) -> list[str]:
    """What each start says as its last line, which must end with exit code 2.

    Each is a process of its own, forked from one that has done the imports.
    """
    with running("-c", _FORKED, json.dumps(starts), cwd=cwd) as process:
        assert process.exit_code() == 0, process.err.text
        assert process.out.lines == ["2"] * len(starts), process.err.text
        assert "serving" not in process.err.text
        said = process.err.text.split("--\n")[:-1]
        return [text.splitlines()[-1] for text in said]


class Held:
    """A POST that is in flight until the test lets it go."""

    def __init__(self, port: int, path: str = "/held") -> None:
        self._wire = socket.create_connection(("127.0.0.1", port), PATIENCE)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n"
        self._wire.sendall(head.encode())
        self._answer = b""
        self._read_until(b"started")

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._wire.close()

    def let_go(self) -> bytes:
        """The answer up to its last byte."""
        self._wire.sendall(b"x")
        return self._read_until(b"0\r\n\r\n")

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._answer:
            data = self._wire.recv(65536)
            assert data, self._answer
            self._answer += data
        return self._answer


def drainmw(*arguments: str, **environment: str) -> Result:
    """The command, in this process; its variables are those given."""
    result = CliRunner().invoke(main, arguments, env=environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def token_file(folder: Path, *tokens: str) -> Path:
    path = folder / "token"
    path.write_text("".join(f"{token}\n" for token in tokens))
    return path


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(met: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Ask until it is so, for what only an answer can tell."""
    deadline = time.monotonic() + patience
    while not (result := met()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)
    return result


def _terminal() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    size = struct.pack("4H", 24, COLUMNS, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs
