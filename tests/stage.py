"""Releases in this process that a blocking client and the command can ask.

They live in an event loop of a thread; each has a control socket of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from drainmw.client import ControlClient
from drainmw.control import Control
from drainmw.inner import InnerServer
from tests.rig import NONCE, Release
from tests.rooms import drain_of, release_with

T = TypeVar("T")


class Hosted:
    """One release, and where it is asked."""

    def __init__(self, stage: Stage, release: Release, control: Path) -> None:
        self._stage = stage
        self.drain = release.drain
        self.release = release
        self.control = control

    def drained(self, nonce: str = NONCE) -> Hosted:
        """Drain it, which ends well."""
        self._stage.run(drain_of(self.release, nonce))
        return self

    def asked(self) -> ControlClient:
        """A client of it; close it."""
        return ControlClient(control=self.control)

    def handoffs(self) -> Any:
        with self.asked() as client:
            return client.handoffs()

    def given(self) -> list[bool]:
        """Whether the next release has what it fetched, and says so."""
        return [given["acknowledged"] for given in self.handoffs()["given"]]


class Stage:
    """Where releases are hosted. Use `stage`, which ends them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do that in their loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def host(self, *adapters: Any, **settings: Any) -> Hosted:
        """A release with that state."""
        return self.run(self._hosted(adapters, settings))

    async def _hosted(
        self, adapters: tuple[Any, ...], settings: dict[str, Any]
    ) -> Hosted:
        self._number += 1
        control = self._directory / f"{self._number}.sock"
        release = release_with(*adapters, **settings)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(control))
        listener.listen()
        server = InnerServer(Control(release.drain, trusted=True))
        self.loop.create_task(server.serve(sockets=[listener]))
        return Hosted(self, release, control)

    def close(self) -> None:
        self.run(_end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=5)


@contextmanager
def staged() -> Iterator[Stage]:
    directory = Path(tempfile.mkdtemp(prefix="dr"))
    stage = Stage(directory)
    try:
        yield stage
    finally:
        stage.close()
        shutil.rmtree(directory)
