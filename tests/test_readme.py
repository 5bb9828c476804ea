"""The README shows only what works: its example and its sessions are run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SCRIPTS = Path(sys.executable).parent

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def block(name: str) -> str:
    """The fenced block behind that mark."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", README.read_text(), re.S)
    assert found, f"the README has lost its block {name}"
    return found[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Shell:
    """Runs the lines of a session, as a reader would, on a port of our own."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMW_")}
        self._environment = {**clean, "PATH": path}
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, line: str) -> str:
        """One command; a trailing `&` leaves it running until the end."""
        line = re.sub("800[01]", str(self.port), line)
        if line.startswith("export "):
            name, value = line.removeprefix("export ").split("=", 1)
            self._environment[name] = self._output(f"echo {value}").strip()
            return ""
        if line.endswith("&"):
            self._start(f"exec {line.removesuffix('&')}")
            return ""
        return self._output(line)

    def stop(self) -> int | None:
        """SIGTERM to what still runs."""
        if self._server is None:
            return None
        self._server.send_signal(signal.SIGTERM)
        return self._server.wait(timeout=20)

    def _start(self, line: str) -> None:
        self._server = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self._directory,
            env=self._environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for _ in range(400):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz").close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server of the README did not start")

    def _output(self, line: str) -> str:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self._directory,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout


@contextmanager
def shell(directory: Path) -> Iterator[Shell]:
    (directory / "app.py").write_text(block("example"))
    session = Shell(directory)
    try:
        yield session
    finally:
        session.stop()


def commands(name: str) -> list[str]:
    """The commands of a session; a command may go on over several lines."""
    lines = block(name).replace("\\\n", " ")
    joined: list[str] = []
    for line in lines.splitlines():
        if joined and joined[-1].count("'") % 2:
            joined[-1] += line.strip()
        else:
            joined.append(line)
    return joined


def test_the_example_is_under_fifteen_lines() -> None:
    """Blank lines apart, as the README promises a short one."""
    assert len([line for line in block("example").splitlines() if line.strip()]) < 15


@needs_curl
def test_the_first_session_drains_and_serves_again(tmp_path: Path) -> None:
    """Each line of the session does what the paragraph below it says."""
    with shell(tmp_path) as session:
        serve, hello, begin, refused, resume = commands("session")
        session.run(serve)
        assert session.run(hello) == "hello"
        assert session.run(begin).splitlines()[-1].startswith("drained")
        answer = session.run(refused)
        assert answer.startswith("HTTP/1.1 503")
        assert "drainmw-refused: drained" in answer
        assert session.run(resume).startswith("serving")
        assert session.run(hello) == "hello"
        assert session.stop() == 0


@needs_curl
def test_curl_begins_a_drain_and_reads_its_status(tmp_path: Path) -> None:
    """The token of the session opens control under plain uvicorn."""
    with shell(tmp_path) as session:
        export, serve, begin, status = commands("curl")
        session.run(export)
        session.run(serve)
        assert session.run(begin) == '{"accepted":true,"duplicate":false}'
        assert '"status":"drained"' in session.run(status)


def test_both_commands_for_a_newcomer_are_there() -> None:
    """`scripts/demo` and `scripts/test` stand in the README and can be run."""
    for name in ("scripts/demo", "scripts/test"):
        assert f"\n{name} " in README.read_text()
        assert os.access(README.parent / name, os.X_OK)
