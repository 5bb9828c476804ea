"""Who runs the schedules of an app, over all workers and releases.

Every process that has an owner looks after it in one task: it waits for the
lease, renews it, and gives it up once a drain has begun and every clock here is
held. Beside that it says once a second that it lives and what it owns, and
hears the same of all others. Where two own one thing it warns, and does
nothing else: which of them is right is for people to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from drainmw.core.heartbeat import Beat, Overlap, Peers, overlaps
from drainmw.errors import (
    GroupError,
    LeaseLost,
    Misuse,
    OwnershipUnavailable,
    SettingsError,
)
from drainmw.flag import Pulse, own_cancellation_only, running_loop, start_task
from drainmw.log import logger
from drainmw.owner import Owner
from drainmw.settings import Settings
from drainmw.stores.base import Store
from drainmw.stores.lockfile import LockFileStore, directory_of
from drainmw.stores.memory import MemoryStore
from drainmw.supervisor import runtime_directory, served_app
from drainmw.tenure import Client
from drainmw.text import failure_text

T = TypeVar("T")

BEAT = 1.0  # seconds
STOP_PATIENCE = 1.0  # seconds for each thing that a stop has to do
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Ownership:
    """This process's part in it. One for each `Drain`."""

    # Of one start; `_forget_loop` says what they are outside of one.
    _loop: asyncio.AbstractEventLoop | None
    _task: asyncio.Task[None] | None
    _clients: dict[Client, asyncio.Task[None]]
    _next_beat: float
    _number: int
    _trouble: str | None

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float],
        may_fire: Callable[[], bool],
        may_own: Callable[[], bool],
        clocks_held: Callable[[], bool],
        is_observer: bool = False,
    ) -> None:
        """`may_fire` is a look at the gate, `may_own` at the whole release."""
        self._clock = clock
        self.instance = ""
        self.store: Store = MemoryStore()
        """Where leases are."""
        self._beats: Store = self.store
        """Where heartbeats are."""
        self.peers = Peers()
        self.overlaps: list[Overlap] = []
        self.unprotected: str | None = None
        """Why nobody keeps another process from owning the same, if so."""
        self._settings = settings
        self._may_fire = may_fire
        self._may_own = may_own
        self._clocks_held = clocks_held
        self._is_observer = is_observer
        self._owners: dict[str, Owner] = {}
        self._told_overlaps: set[tuple[str, frozenset[str]]] = set()
        self._stirred = Pulse()
        self._forget_loop()

    # What the release does

    def own(self, name: str) -> tuple[Owner, bool]:
        """The owner of that name, and whether it is a new one.

        Raises:
            Misuse: It cannot be a name.
            SettingsError: Its store cannot be used as it is configured.
        """
        given: object = name
        if not isinstance(given, str) or not NAME.fullmatch(given):
            raise Misuse(
                "a name must be 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`, "
                f"not {name!r}"
            )
        if name in self._owners:
            return self._owners[name], False
        self._remote()
        owner = self._owners[name] = Owner(name, self)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed this instant
                self._loop.call_soon_threadsafe(self.start)
        self.stir()
        return owner, True

    def start(self) -> None:
        """Look after it in the running loop, if there is one. Idempotent."""
        if self._task is not None and not self._task.get_loop().is_closed():
            return
        self._forget_loop()
        self._loop = running_loop()
        if self._loop is None:
            return
        for owner in self._owners.values():
            owner.restart()
        if self._owners and not self._is_observer:
            name = "drainmw ownership"
            self._task = start_task(self._look_after(), name=name)

    async def stop(self) -> None:
        """Give up what this process owns, and be gone. In the loop of `start`."""
        task = self._task
        if task is None or self._loop is not asyncio.get_running_loop():
            return
        await _ended([*self._clients.values(), task])
        for owner in self._owners.values():
            await self._try_to(owner.give_up)
            await self._try_to(owner.tenure.drop)  # also where that was not noted
        await self._try_to(self._close)
        self._forget_loop()

    async def _try_to(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """At the end: what fails must not keep the rest from being done."""
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                await act()
        except (LeaseLost, OwnershipUnavailable, TimeoutError) as exc:
            logger().warning("ownership not given up", error=failure_text(exc))

    def stir(self) -> None:
        """Look at once, since something has changed. From any thread."""
        self._stirred.beat()

    def forked(self) -> None:
        """Be another process than the one that this was forked from."""
        self.store = self._beats = MemoryStore()  # the others are its parent's
        self._stirred = Pulse()
        self._forget_loop()
        for owner in self._owners.values():
            owner.forget()

    def warnings(self) -> Iterator[str]:
        """What an operator should mend."""
        if self.unprotected is not None and self._owners:
            yield f"schedules are unprotected: {self.unprotected}"
        for overlap in self.overlaps:
            yield str(overlap)
        for owner in self._owners.values():
            yield from owner.warnings()

    # What owners need

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it in the loop of the store, to its end."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise OwnershipUnavailable("ownership has not been started")
        with own_cancellation_only(OwnershipUnavailable, "its event loop has ended"):
            if loop is running_loop():
                return await asyncio.shield(_watched(start_task(make())))
            asked = asyncio.run_coroutine_threadsafe(make(), loop)
            return await asyncio.shield(_watched(asyncio.wrap_future(asked)))

    def clock(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def may_fire(self) -> bool:
        """Whether no drain has begun."""
        return self._may_fire()

    async def beat(self) -> None:
        """Say anew what this process owns."""
        await self._beat()

    def start_client(self, client: Client) -> None:
        """Run it beside the task, if that runs."""
        if self._task is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed this instant
                self._loop.call_soon_threadsafe(self._run_client, client)

    # The task

    async def _look_after(self) -> None:
        await self._open()
        for owner in self._owners.values():
            for client in owner.clients:
                self._run_client(client)
        while True:
            beats = self._stirred.count
            try:
                await self._look()
            except Exception:  # whatever it is, others would wait for us for ever
                logger().error("ownership failed", exc_info=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self.store.pause, BEAT)):
                    await self._stirred.after(beats)

    async def _look(self) -> None:
        now = self._clock()
        if now >= self._next_beat:
            self._next_beat = now + BEAT
            await self._hear()
        what = {"may_own": self._may_own(), "clocks_held": self._clocks_held()}
        owners = list(self._owners.values())
        await asyncio.gather(*(owner.look(**what) for owner in owners))

    async def _open(self) -> None:
        """Choose the stores, and be a new instance in them."""
        await self._leave_closed_loop()
        self.instance = secrets.token_hex(8)
        self.peers = Peers()
        self.store, self._beats, self.unprotected = self._chosen()
        for owner in self._owners.values():
            owner.restart()
        if self.unprotected is not None:
            logger().warning("schedules unprotected", reason=self.unprotected)
        while True:
            try:
                for store in {self.store, self._beats}:
                    await store.open(self.instance)
                return
            except OwnershipUnavailable as exc:
                self._note(exc)
                for owner in self._owners.values():
                    owner.trouble = str(exc)
            await asyncio.sleep(BEAT)

    async def _leave_closed_loop(self) -> None:
        """Let go of what was held in one, which nobody has stopped."""
        with contextlib.suppress(OwnershipUnavailable, RuntimeError):
            for owner in self._owners.values():
                await self.store.drop(owner.name)
            await self._close()

    async def _close(self) -> None:
        for store in {self.store, self._beats}:
            await store.close()

    def _chosen(self) -> tuple[Store, Store, str | None]:
        """Where leases are, where heartbeats are, and why the first protect nobody."""
        remote = self._remote()
        if remote is not None:
            return remote, remote, None
        alone = self.store if isinstance(self.store, MemoryStore) else MemoryStore()
        kind = self._settings.ownership.get_secret_value()
        try:
            shared = self._shared()
        except (SettingsError, GroupError, OSError) as exc:
            return alone, alone, None if kind == "off" else failure_text(exc)
        return alone if kind == "off" else shared, shared, None

    def _shared(self) -> LockFileStore:
        app = self._settings.app or served_app()
        if sys.platform == "win32":
            raise SettingsError("this system has no POSIX locks")
        if app is None:
            raise SettingsError(
                "no name that all its releases share; set DRAINMW_APP (app=)"
            )
        runtime = runtime_directory(self._settings.runtime_dir)
        return LockFileStore(directory_of(app, runtime))

    def _remote(self) -> Store | None:
        """The store that a URL names.

        Raises:
            SettingsError: Its client is not installed, or the app has no name.
        """
        url = self._settings.ownership.get_secret_value()
        scheme, colon, _ = url.partition(":")
        if not colon:
            return None
        app = self._settings.app or served_app()
        if app is None:
            raise SettingsError(
                "ownership across hosts needs a name that all releases share: "
                "set DRAINMW_APP (app=)"
            )
        extra = "postgres" if scheme.startswith("postgres") else "redis"
        try:
            return _opened(extra)(url, app)
        except ImportError:
            raise SettingsError(
                f"ownership at {scheme}: needs the extra drainmw[{extra}]"
            ) from None

    # Heartbeats

    async def _hear(self) -> None:
        try:
            own, others = await self._beat()
        except OwnershipUnavailable as exc:
            self._note(exc)
            return
        self._trouble = None
        self.peers.look(others)
        self.overlaps = overlaps([own, *self.peers.alive()])
        self._warn()

    async def _beat(self) -> tuple[Beat, list[Beat]]:
        self._number += 1
        owned = [owner for owner in self._owners.values() if owner.is_mine]
        own = Beat(
            instance=self.instance,
            number=self._number,
            release=self._settings.revision,
            pid=os.getpid(),
            host=socket.gethostname(),
            owns={owner.name: owner.generation or 0 for owner in owned},
            protected=not isinstance(self.store, MemoryStore),
        )
        return own, await self._beats.beat(own)

    def _warn(self) -> None:
        """Once for each overlap that we are part of."""
        found = {
            (overlap.name, frozenset(beat.instance for beat in overlap.beats)): overlap
            for overlap in self.overlaps
        }
        for key, overlap in found.items():
            if key not in self._told_overlaps and self.instance in key[1]:
                logger().warning(
                    "schedule overlap",
                    schedules=overlap.name,
                    owners=", ".join(sorted(beat.who for beat in overlap.beats)),
                    consequence="their ticks may be fired more than once",
                )
        self._told_overlaps = set(found)

    # Small things

    def _run_client(self, client: Client) -> None:
        if client not in self._clients:
            task = start_task(client())
            self._clients[client] = task
            task.add_done_callback(_complain)

    def _note(self, exc: OwnershipUnavailable) -> None:
        if self._trouble != str(exc):
            logger().warning("ownership unavailable", error=str(exc))
        self._trouble = str(exc)

    def _forget_loop(self) -> None:
        self._loop = self._task = self._trouble = None
        self._clients = {}
        self._next_beat = 0.0
        self._number = 0


def _opened(extra: str) -> Callable[[str, str], Store]:
    if extra == "postgres":
        from drainmw.stores.postgres import PostgresStore

        return PostgresStore
    from drainmw.stores.redis import RedisStore

    return RedisStore


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    _, late = await asyncio.wait(tasks, timeout=STOP_PATIENCE)
    if late:
        logger().warning("schedules not stopped", count=len(late))


def _watched(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """One whose failure is looked at, also if nobody waits any more."""
    future.add_done_callback(_retrieve)
    return future


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger().error("ownership failed", error=failure_text(exc), exc_info=exc)
