"""This process's hold of one lease: getting it, keeping it, giving it up.

What has become of ticks is noted here, and written with whatever change of the
lease comes next.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from drainmw.core.heartbeat import Peers
from drainmw.core.lease import FORGOTTEN, Lease, Outcome, Tick, Watch
from drainmw.errors import LeaseHeld
from drainmw.log import logger
from drainmw.stores.base import Store

T = TypeVar("T")

TRUST = 0.8  # of the time that a lease stands, in which its holder relies on it
SILENT = 12  # looks at an instance that says nothing new, until its ticks are lost

Client = Callable[[], Coroutine[Any, Any, None]]


class Home(Protocol):
    """What all owners of a process share; where and as whom they act."""

    store: Store
    instance: str
    peers: Peers

    def clock(self) -> float:
        """Monotonic seconds."""
        ...

    def may_fire(self) -> bool:
        """Whether no drain has begun; known before anybody here is told of one."""
        ...

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it to its end in the loop of the store, whoever is cancelled.

        Raises:
            OwnershipUnavailable: There is no such loop yet, or no more.
        """
        ...

    async def beat(self) -> None:
        """Say anew what this process owns."""
        ...

    def start_client(self, client: Client) -> None:
        """Run it as long as ownership is looked after, if it is."""
        ...


class Tenure:
    """All of it is called in the loop of the store, and may raise
    `OwnershipUnavailable`; what only looks is safe from any thread."""

    def __init__(self, name: str, home: Home) -> None:
        self.interrupted: list[Tick] = []
        """What this process has found interrupted, oldest first."""
        self.unwritten: dict[Tick, Outcome] = {}
        """What became of ticks, and is not in the store yet."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called when the lease may have run out."""
        self._name = name
        self._home = home
        self.begins_anew = False
        """It was taken where all was lost, and others may have had it since."""
        self._known: Lease | None = None
        self._was_mine = False
        """Nobody else has had it since this process did."""
        self._lock = asyncio.Lock()
        self.end()

    @property
    def stands(self) -> bool:
        """Whether this process may rely on it now."""
        return (
            self.generation is not None
            and not self.is_leaving
            and self._home.clock() < self._until
        )

    def end(self) -> None:
        """It is another's, or nobody's."""
        self.generation: int | None = None
        self.is_leaving = False
        """It is being given up."""
        self._until = 0.0
        self._watch: Watch | None = None

    def restart(self) -> None:
        """Begin in another loop."""
        self.end()
        self._lock = asyncio.Lock()

    async def get(self) -> None:
        """Take it, if nobody has it who may live."""
        store = self._home.store
        if not await store.take(self._name):
            self._was_mine = False
            return
        sent, taken = self._home.clock(), None
        try:
            taken = await self.transact(self._take)
        finally:
            if taken is None:
                await store.drop(self._name)
        if taken is None:
            return
        self.generation, self.begins_anew, interrupted = taken
        self._was_mine = True
        self._rely_on_it(sent)
        logger().info(
            "schedules owned",
            schedules=self._name,
            generation=self.generation,
            store=store.where,
        )
        self._tell(interrupted)

    async def renew(self) -> None:
        """Show that we live, and look after ticks of those who do not.

        Raises:
            LeaseLost: It is another's.
        """
        home, generation = self._home, self.generation or 0
        self.is_leaving = False

        def renew(lease: Lease) -> list[Tick]:
            if home.store.lasts is None:
                lease.check(home.instance, generation)
            else:
                lease.renew(home.instance, generation)
            return lease.reap(self._gone(lease))

        sent = home.clock()
        self._tell(await self.transact(renew))
        self._rely_on_it(sent)

    async def give_up(self) -> None:
        """Let anybody have it. Until it is gone it is `is_leaving`.

        Raises:
            LeaseLost: It is another's already.
        """
        home, generation = self._home, self.generation or 0
        await home.beat()  # nobody may still hear that it is ours
        await self.transact(lambda lease: lease.give_up(home.instance, generation))
        logger().info("schedules given up", schedules=self._name)
        await self.drop()

    async def drop(self) -> None:
        """Have it no more."""
        await self._home.store.drop(self._name)
        self._was_mine = False
        self.end()

    async def settle(self) -> None:
        """Write what has become of ticks, if anything is unwritten."""
        if self.unwritten:
            await self.transact(lambda _lease: None)

    async def transact(self, act: Callable[[Lease], T]) -> T:
        """One change of the lease; before it, what has become of ticks.

        One at a time, so that a tick which is claimed again is not given back by
        what was noted of its first claim.
        """
        async with self._lock:
            written = dict(self.unwritten)

            def whole(lease: Lease) -> tuple[T, list[Tick], Lease]:
                if (known := self._known) is not None:
                    holds = self._is_held_as(known)
                    lease.recall(known, self._home.instance, holds=holds)
                interrupted = lease.settle(written)
                return act(lease), interrupted, lease

            store = self._home.store
            answer, interrupted, lease = await store.transact(self._name, whole)
            for tick in written:
                self.unwritten.pop(tick, None)
            if self._known is None or lease.generation >= self._known.generation:
                self._known = lease
        self._tell(interrupted)
        return answer

    def _is_held_as(self, known: Lease) -> bool:
        """Whether nobody can have taken it since, as far as time tells of death."""
        in_time = self._home.clock() < self._until
        may_forget = self._home.store.lasts is not None
        return may_forget and in_time and self.generation == known.generation

    def _take(self, lease: Lease) -> tuple[int, bool, list[Tick]] | None:
        by_kernel = self._home.store.lasts is None
        lost = by_kernel and lease.holder == FORGOTTEN and not self._was_mine
        try:
            dead = self._is_dead(lease)
            found = lease.take(self._home.instance, dead=dead)
        except LeaseHeld:
            return None
        return lease.generation, lost, found

    def _is_dead(self, lease: Lease) -> bool:
        """Whether its holder is, once the store lets us take it."""
        lasts = self._home.store.lasts
        if lasts is None:
            return True
        self._watch = self._watch or Watch(lasts)
        return self._watch.is_over(lease, self._home.clock())

    def _gone(self, lease: Lease) -> set[str]:
        own, peers = self._home.instance, self._home.peers
        others = {tick.instance for tick in lease.running} - {own}
        return {other for other in others if peers.is_gone(other, SILENT)}

    def _rely_on_it(self, sent: float) -> None:
        lasts = self._home.store.lasts
        self._until = math.inf if lasts is None else sent + lasts * TRUST
        if lasts is not None:
            asyncio.get_running_loop().call_later(lasts * TRUST, self.on_turn)

    def _tell(self, interrupted: list[Tick]) -> None:
        for tick in interrupted:
            self.interrupted.append(tick)
            logger().warning(
                "tick interrupted",
                schedules=self._name,
                schedule=tick.schedule,
                due=tick.moment.isoformat(),
                generation=tick.generation,
                instance=tick.instance,
            )
