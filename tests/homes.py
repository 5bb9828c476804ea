"""Processes that share a store, all of them in the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from drainmw.core.heartbeat import Beat, Peers
from drainmw.core.lease import Lease
from drainmw.errors import OwnershipUnavailable
from drainmw.owner import Owner
from drainmw.stores.base import Store, replaced
from drainmw.tenure import Client
from drainmw.testing import ManualClock
from tests.rig import calm

T = TypeVar("T")


class Place:
    """Where leases lie, for all stores of it."""

    def __init__(self, lasts: float | None = None) -> None:
        self.lasts = lasts
        self.lease = Lease()
        self.version = 0
        self.on_write: Callable[[], None] = lambda: None
        self.holder: SharedStore | None = None
        """Whose process the kernel would see, where leases stand without renewal."""


class SharedStore:
    """One process's end of it."""

    pause = 0.01
    where = "the test"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lasts = place.lasts
        self.fails: BaseException | None = None
        self.forgets_to_answer = False
        """The write is done, and the answer lost."""
        self.is_open = asyncio.Event()
        """Writes wait for it, between their reading and their writing."""
        self.is_open.set()
        self.transactions = 0

    async def open(self, instance: str) -> None:
        """Nothing to open."""

    async def take(self, name: str) -> bool:
        self._check()
        if self.lasts is not None:
            return True
        if self.place.holder not in (None, self):
            return False
        self.place.holder = self
        return True

    async def drop(self, name: str) -> None:
        if self.place.holder is self:
            self.place.holder = None

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        self.transactions += 1
        answer = await replaced(self._read, self._replace, act)
        if self.forgets_to_answer:
            raise OwnershipUnavailable("the answer was lost")
        return answer

    async def _read(self) -> tuple[int, Lease]:
        self._check()
        return self.place.version, Lease.restored(self.place.lease.snapshot())

    async def _replace(self, version: int, lease: Lease) -> bool:
        await self.is_open.wait()
        self._check()
        if version != self.place.version:
            return False
        self.place.lease = Lease.restored(lease.snapshot())
        self.place.version += 1
        self.place.on_write()
        return True

    async def beat(self, beat: Beat) -> list[Beat]:
        self._check()
        return []

    async def close(self) -> None:
        """Nothing to close."""

    def die(self) -> None:
        """What the kernel does with the lock of a process that was killed."""
        if self.place.holder is self:
            self.place.holder = None

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails


class TestHome:
    """A process with one owner; the test looks after it."""

    __test__ = False

    def __init__(self, place: Place, instance: str, clock: ManualClock) -> None:
        self.shared = SharedStore(place)
        self.store: Store = self.shared
        self.instance = instance
        self.peers = Peers()
        self._clock = clock
        self.gate_is_open = True
        self.said: list[bool] = []
        """Whether the owner was owned, each time that this process has said so."""
        self.answers = asyncio.Event()
        """What was done in the loop of the store is heard of once it is set."""
        self.answers.set()
        self.started: list[Client] = []
        self.owner = Owner("reports", self)
        self.owner.restart()

    def clock(self) -> float:
        return self._clock.now

    def may_fire(self) -> bool:
        return self.gate_is_open

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        answer = await asyncio.shield(asyncio.ensure_future(make()))
        await self.answers.wait()
        return answer

    async def beat(self) -> None:
        self.shared._check()
        self.said.append(self.owner.is_mine)

    def start_client(self, client: Client) -> None:
        self.started.append(client)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        """Run what runs beside the owner, and find that none of it has failed."""
        tasks = [asyncio.ensure_future(client()) for client in self.started]
        await calm()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            for end in done:
                if isinstance(end, Exception):
                    raise end

    async def look(self, *, may_own: bool = True, clocks_held: bool = False) -> bool:
        """Look once; gives whether it is owned then."""
        await self.owner.look(may_own=may_own, clocks_held=clocks_held)
        return self.owner.is_mine

    async def fires(self, due: float) -> bool:
        """Fire that tick, if it is ours."""
        async with self.owner.tick(due) as mine:
            return mine
