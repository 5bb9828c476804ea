"""What the demo plays on: a clock that prints, the processes, and the commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
WIDTH = 120  # characters of a line
PATIENCE = 20.0  # seconds for a process to become ready, or to end


class Timeline:
    """Prints what happens, as it happens."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.tally: Counter[str] = Counter()

    def say(self, who: str, what: str) -> None:
        line = f"{time.monotonic() - self._start:6.2f} s  {who:<8} {what}"
        print(line if len(line) <= WIDTH else f"{line[: WIDTH - 2]} …", flush=True)


class Release:
    """A process of `drainmw serve`. Use `serving`, which ends it."""

    url = ""

    def __init__(self, app: str, revision: str, control: Path) -> None:
        self.control = control
        self._app = app
        self._revision = revision
        self._process: Process | None = None
        self._listening = asyncio.Event()

    async def start(self) -> None:
        """Return once it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "drainmw", "serve", self._app, "--port", "0"),
            *("--control", str(self.control), "--revision", self._revision),
            cwd=ROOT,
            env=_environment(),
            stderr=PIPE,
        )
        self._log = asyncio.create_task(self._read_log(self._process))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._listening.wait()
                while self._process.returncode is None:
                    if await self._is_ready():
                        return
                    await asyncio.sleep(0.02)
        raise SystemExit(f"{self._app} did not start")

    async def _is_ready(self) -> bool:
        async with local_client(self.url) as http:
            with contextlib.suppress(httpx.HTTPError):
                return (await http.get("/readyz")).is_success
        return False

    async def stop(self) -> int:
        """SIGTERM, and the exit code; SIGKILL if that is of no use. Idempotent."""
        process = self._process
        if process is None:
            return 0
        try:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        await self._log
        return await process.wait()

    async def _read_log(self, process: Process) -> None:
        assert process.stderr is not None, "it was asked for"
        async for line in process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                print(line.decode(errors="replace"), end="", file=sys.stderr)
                continue
            if event["event"] == "serving" and "address" in event:
                self.url = event["address"]
                self._listening.set()
        self._listening.set()  # it has ended, and said why above


@contextlib.asynccontextmanager
async def serving(app: str, revision: str, control: Path) -> AsyncIterator[Release]:
    """A release on a free port, once it is ready; it is stopped in any case."""
    release = Release(app, revision, control)
    try:
        await release.start()
        yield release
    finally:
        await release.stop()


async def drainmw(*arguments: str, show: Callable[[str], None]) -> None:
    """Run the command, and show each line as it is printed.

    Raises:
        SystemExit: It ended with another code than 0.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drainmw", *arguments),
        cwd=ROOT,
        env=_environment(),
        stdout=PIPE,
    )
    assert process.stdout is not None, "it was asked for"
    try:
        async for line in process.stdout:
            show(line.decode().rstrip())
        if await process.wait():
            raise SystemExit(f"drainmw {arguments[0]} failed")  # and has said why
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def local_client(url: str, **headers: str) -> httpx.AsyncClient:
    """A client that asks no proxy for what is on this host."""
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False)


def _environment() -> dict[str, str]:
    """Without settings that are meant for something else."""
    return {k: v for k, v in os.environ.items() if not k.startswith("DRAINMW_")}
