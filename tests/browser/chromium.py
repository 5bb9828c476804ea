"""Debian's Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.processes import PATIENCE, until
from tests.servers.process import end

PROGRAM = shutil.which("chromium")

OPTIONS = (
    "--headless",
    "--no-sandbox",  # which needs namespaces that a container does not give
    "--disable-gpu",
    "--disable-dev-shm-usage",  # it is small in a container
    "--remote-debugging-port=0",  # a free one; told in the file below
    # It talks to the servers under test, and to nobody else.
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    # A page that nobody looks at would get its timers late.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)
PORT_FILE = "DevToolsActivePort"


class Session:
    """Commands to the browser, or to one page, one after the other."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._numbers = count(1)
        self.events: list[dict[str, Any]] = []
        """What it told unasked, of the domains that were enabled."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, and wait for its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        self._wire.send(json.dumps(command))
        while (message := json.loads(self._wire.recv(PATIENCE))).get("id") != number:
            self.events.append(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result


class Page:
    """One page, in a tab of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._session.call("Runtime.enable")

    def go(self, url: str) -> None:
        """Open that address."""
        result = self._session.call("Page.navigate", url=url)
        assert "errorText" not in result, result

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or what its promise resolves to."""
        result = self._session.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def exceptions(self) -> list[Any]:
        """Those that no script of the page has caught, as far as was asked."""
        self.evaluate("null")
        thrown = "Runtime.exceptionThrown"
        return [e["params"] for e in self._session.events if e["method"] == thrown]


class Chromium:
    """A running browser. Use `running`, which ends it."""

    def __init__(self, profile: str, port: int, session: Session) -> None:
        self.profile = profile
        """The folder with all that it keeps."""
        self._port = port
        self._session = session

    @contextmanager
    def page(self) -> Iterator[Page]:
        """An empty page, closed at the end."""
        created = self._session.call("Target.createTarget", url="about:blank")
        target = created["targetId"]
        try:
            with _attached(self._port, f"/devtools/page/{target}") as session:
                yield Page(session)
        finally:
            self._session.call("Target.closeTarget", targetId=target)


@contextmanager
def running(log: Path) -> Iterator[Chromium]:
    """Start a browser with a new profile; it is ended with all it started."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        _process(Path(profile), log) as process,
    ):
        port, path = _address(Path(profile), process)
        with _attached(port, path) as session:
            yield Chromium(profile, port, session)


@contextmanager
def _attached(port: int, path: str) -> Iterator[Session]:
    url = f"ws://127.0.0.1:{port}{path}"
    with connect(url, proxy=None, max_size=None, compression=None) as wire:
        yield Session(wire)


@contextmanager
def _process(profile: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    assert PROGRAM is not None, "chromium is not installed"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            env={"PATH": os.environ["PATH"], "HOME": str(profile)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so all of it can be ended
        )
    try:
        yield process
    finally:
        end(process)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The port and the path of the browser, which are the two lines of a file."""

    def lines() -> list[str]:
        assert process.poll() is None, "chromium has ended"
        with suppress(FileNotFoundError):
            return (profile / PORT_FILE).read_text().splitlines()
        return []

    until(lambda: len(lines()) == 2, "a port of chromium's")
    port, path = lines()
    return int(port), path
