"""Processes of the command, forked from one that has done the imports.

To import what `drainmw serve` needs takes longer than to start it, and tests that
kill a process at every step start many.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from drainmw.client import ControlClient
from tests.processes import ROOT, control_socket, until

_MOTHER = """
import json, os, signal, sys
import drainmw.serve, drainmw.handing, starlette.applications, uvicorn.lifespan.on
import uvicorn.protocols.http.auto, uvicorn.protocols.websockets.auto
from drainmw.cli import main

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is gone at once
for line in sys.stdin:
    arguments, environment, log = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.environ.update(environment)
        for number, file in ((0, os.devnull), (1, log), (2, log)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
        try:
            main(arguments)
        except SystemExit as end:
            print(f"exit {end.code or 0}", flush=True)
            os._exit(end.code or 0)
    print(child, flush=True)
"""


class Child:
    """One forked process."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log of that event."""
        lines = [json.loads(line) for line in self.text.splitlines() if line[:1] == "{"]
        return [line for line in lines if line["event"] == name]

    def until_event(self, name: str) -> dict[str, Any]:
        return dict(until(lambda: self.events(name), f"{name} in {self.text}")[0])

    @property
    def lives(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`; returns once it is gone."""
        self.signal(signal.SIGKILL)
        until(lambda: not self.lives, "the end of who was killed")

    def exit_code(self) -> int:
        """Wait for its end."""
        until(lambda: not self.lives, f"an end: {self.text}")
        return int(self.text.splitlines()[-1].removeprefix("exit "))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Serving(Child):
    """One of `drainmw serve`."""

    control: Path

    def asked(self) -> ControlClient:
        """A client of its control socket; close it."""
        return ControlClient(control=self.control)

    @property
    def address(self) -> str:
        return str(self.until_event("serving")["address"])

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False) as client:
            return client.get(f"{self.address}{path}")


class Nursery:
    """Starts processes, and ends them."""

    def __init__(self, mother: subprocess.Popen[str]) -> None:
        self._mother = mother
        self._children: list[Child] = []

    def serve(
        self, folder: Path, app: str, *options: str, **environment: str
    ) -> Serving:
        """`drainmw serve`, with a control socket; it need not answer yet."""
        folder.mkdir(exist_ok=True)
        control = control_socket(folder)
        arguments = ["serve", app, "--port", "0", "--control", str(control), *options]
        child = Serving(*self._started(folder, arguments, environment))
        child.control = control
        self._children.append(child)
        return child

    def run(self, folder: Path, *arguments: str) -> Child:
        """Another command."""
        folder.mkdir(exist_ok=True)
        child = Child(*self._started(folder, list(arguments), {}))
        self._children.append(child)
        return child

    def _started(
        self, folder: Path, arguments: list[str], environment: dict[str, str]
    ) -> tuple[int, Path]:
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        log = folder / "log"
        log.touch()
        self._mother.stdin.write(json.dumps([arguments, environment, str(log)]) + "\n")
        self._mother.stdin.flush()
        return int(self._mother.stdout.readline()), log

    def end_all(self) -> list[Child]:
        """Kill them; all that there were."""
        children, self._children = self._children, []
        for child in children:
            child.end()
        return children


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A process that forks others; all end with it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMW_")}
    path = [str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
    inherited["PYTHONPATH"] = os.pathsep.join(path)
    with subprocess.Popen(
        [sys.executable, "-W", "always::ResourceWarning", "-c", _MOTHER],
        cwd=ROOT,
        env=inherited,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as mother:
        found = Nursery(mother)
        try:
            yield found
        finally:
            found.end_all()
            mother.kill()
