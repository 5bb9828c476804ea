"""State that goes over in the tests, and several workers of a release in one process.

The workers share a lifecycle and ask each other over real sockets. Only their
process ids are made up, since they all have the same.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from drainmw import Drain
from drainmw.core.drain import Lifecycle
from drainmw.core.roster import Worker
from drainmw.record import Hint, LocalRecord
from drainmw.reporting import Told
from drainmw.siblingapp import SiblingApp
from drainmw.state import ImportContext
from tests.rig import NONCE, Release, begin_request, new_drain

T = TypeVar("T")

ZERO = {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0}


class Rooms:
    """Who is in, as an adapter with every hook; it tells what it was asked for.

    A step fails with what stands in `fails`, and waits for its event in `gates`.
    """

    phase = "drained"

    def __init__(self, *names: str, **members: Any) -> None:
        self.protocol = "rooms/v1"
        self.schema_version = 1
        self.maximum_bytes = 4096
        self.names = list(names)
        self.is_valid = True
        self.heard: list[str] = []
        self.contexts: list[ImportContext] = []
        self.fails: dict[str, BaseException] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.reached = asyncio.Event()
        """Set once a step waits."""
        vars(self).update(members)

    def validate(self, value: Any) -> bool:
        return self.is_valid and isinstance(value, list)

    async def export_state(self) -> tuple[str, Any]:
        await self._hear("export")
        return f"of-{len(self.names)}", list(self.names)

    def combine(self, parts: list[tuple[str, Any]]) -> tuple[str, Any]:
        if "combine" in self.fails:
            raise self.fails["combine"]
        names = sorted(name for _, value in parts for name in value)
        return "+".join(cursor for cursor, _ in parts), names

    async def seal(self) -> None:
        await self._hear("seal")

    async def unseal(self) -> None:
        await self._hear("unseal")

    async def import_state(self, value: Any, context: ImportContext) -> None:
        self.contexts.append(context)
        await self._hear("import")
        self.names += value

    async def confirm(self, context: ImportContext) -> None:
        self.contexts.append(context)
        await self._hear("confirm")

    async def discard(self, context: ImportContext) -> None:
        self.contexts.append(context)
        await self._hear("discard")
        self.names.clear()

    def hold(self, step: str) -> asyncio.Event:
        """Let that step wait for the event."""
        return self.gates.setdefault(step, asyncio.Event())

    async def _hear(self, step: str) -> None:
        self.heard.append(step)
        if step in self.gates:
            self.reached.set()
            await self.gates[step].wait()
        if step in self.fails:
            raise self.fails[step]


class Rates(Rooms):
    """A second kind of state."""

    def __init__(self, *names: str, **members: Any) -> None:
        super().__init__(*names, **{"protocol": "rates/v1", **members})


def release_with(*adapters: Any, **settings: Any) -> Release:
    release = Release(**settings)
    for adapter in adapters:
        release.drain.add_state(adapter)
    return release


async def drained_with(*adapters: Any, **settings: Any) -> Release:
    """A release that has ended well, with that state."""
    release = release_with(*adapters, **settings)
    await drain_of(release)
    return release


async def until(met: Callable[[], object]) -> None:
    """Look again until it is so, for what no event tells."""
    async with asyncio.timeout(5):
        while not met():  # noqa: ASYNC110  there is no event
            await asyncio.sleep(0.001)


async def drain_of(release: Release, nonce: str = NONCE) -> None:
    await release.drain.begin(begin_request(nonce))
    await release.drain.ended
    assert release.drain.phase == "drained"


class _Shared:
    """One worker's end of the record of all."""

    def __init__(self, all_of_them: Workers, pid: int) -> None:
        self._all = all_of_them
        self.pid = pid
        self.gate = all_of_them.record.gate

    def read(self) -> tuple[int, Lifecycle]:
        return self._all.record.read()

    def transact(self, act: Callable[[Lifecycle], T], only_at: int | None = None) -> T:
        return self._all.record.transact(act, only_at)

    def publish(self, worker: Worker) -> None:
        """Nobody counts here."""

    def others(self) -> list[Worker]:
        return []

    def wake(self, hint: Hint = "look") -> None:
        self._all.woken(self.pid)

    def tell(self, told: Told) -> None:
        """Nobody asks."""

    def told(self) -> list[Told]:
        return []

    def members(self) -> list[int]:
        return list(self._all.alive)

    def addresses(self) -> dict[int, Path]:
        alive = self._all.alive
        return {pid: self._all.address(pid) for pid in alive if pid != self.pid}

    def keep(self, name: str, body: bytes) -> None:
        self._all.record.keep(name, body)

    def kept(self, name: str) -> bytes:
        return self._all.record.kept(name)

    def forget(self) -> None:
        self._all.record.forget()


class Workers:
    """The workers of one release. Use `workers`, which ends them."""

    def __init__(self, directory: Path) -> None:
        self.record = LocalRecord(None, [0])
        self.releases: dict[int, Release] = {}
        self.alive: list[int] = []
        self._directory = directory
        self._apps: list[SiblingApp] = []

    def address(self, pid: int) -> Path:
        return self._directory / f"{pid}.sock"

    def add(self, *adapters: Any, listens: bool = True) -> Release:
        """The first of them has the process id of the test."""
        pid = 1000 + len(self.alive) if self.alive else os.getpid()
        self.alive.append(pid)
        release = self.releases[pid] = self._joined(pid, new_drain())
        for adapter in adapters:
            release.drain.add_state(adapter)
        if listens:
            self._apps.append(app := SiblingApp(release.drain))
            app.serve(self.address(pid))
        return release

    def observer(self) -> Release:
        """Who is none of them, and sees them all."""
        drain = new_drain(observes=_nobody())
        drain._joined = True
        return self._joined(0, drain)

    def woken(self, by: int) -> None:
        loop = asyncio.get_running_loop()
        for pid, release in self.releases.items():
            if pid != by:
                loop.call_soon(release.drain.follow)

    def end(self, pid: int) -> None:
        """It is gone, as the kernel knows."""
        self.alive.remove(pid)

    async def drained(self, nonce: str = NONCE) -> None:
        """All of them have ended well."""
        request = begin_request(nonce)

        def drain(lifecycle: Lifecycle) -> None:
            lifecycle.begin(request, 0.0)
            lifecycle.close()
            lifecycle.conclude(ZERO, 0.0)

        self.record.transact(drain)
        for release in self.releases.values():
            release.drain.follow()

    def _joined(self, pid: int, drain: Drain) -> Release:
        drain._keep(_Shared(self, pid))
        return Release(drain=drain)

    async def stop(self) -> None:
        for app in self._apps:
            serving = app._serving
            if serving is not None:
                serving.cancel()
                await asyncio.wait((serving,))


def _nobody() -> Any:
    from drainmw.supervisor import Supervisor

    return Supervisor(1, "0")


@asynccontextmanager
async def workers() -> AsyncIterator[Workers]:
    """No worker yet; each listens in a directory of a short path."""
    directory = Path(tempfile.mkdtemp(prefix="dr"))
    found = Workers(directory)
    try:
        yield found
    finally:
        await found.stop()
        shutil.rmtree(directory)
