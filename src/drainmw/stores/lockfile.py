"""Ownership on one host: a lock file, which the kernel lets go of at death.

Beside the directories of the groups lies one for each app:

    lock               taken for every change
    NAME.lease.lock    held by the process that may run the schedules of that name
    NAME.lease.json    generation and ticks; replaced whole, under the lock
    ID.beat.lock       held by that instance as long as it lives
    ID.beat.json       its heartbeat; replaced whole

A claim is on the disk before a tick is fired, so that it is not fired again
after a power cut either, where the directory outlives one.

Locks are POSIX record locks, which a child does not inherit. They belong to a
process: to close a second descriptor of a file lets go of its lock. So all the
stores of a process share one `_Place`, and nobody opens there what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease
from drainmw.errors import GroupError, OwnershipUnavailable, SettingsError
from drainmw.locks import is_held, opened, share, try_lock, unlock
from drainmw.socketfile import check_directory
from drainmw.stores.base import beats_from, lease_from

T = TypeVar("T")

PAUSE = 0.2  # seconds between two looks whether a lease is free
LOCK_PATIENCE = 2.0  # seconds until a change gives up on the lock
LOCK_PAUSE = 0.001
CLOSED = -1
"""In the place of a file. The number of one that was closed is soon another's."""


def directory_of(app: str, runtime: Path) -> Path:
    """Where the processes of all releases of an app meet."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", app)[:40]
    return runtime / f"own-{readable}-{hashlib.sha256(app.encode()).hexdigest()[:12]}"


class LockFileStore:
    """The store of one app on this host."""

    lasts: float | None = None
    pause = PAUSE

    def __init__(self, directory: Path) -> None:
        """Use that directory, which is made if need be; its parent, too.

        Raises:
            SettingsError: It is not private.
            GroupError, OSError: It cannot be used.
        """
        self.where = f"file {directory}"
        self._directory = directory
        self._place = _place(directory)
        self._instance: str | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self, instance: str) -> None:
        """Be an instance, and remove those that are dead."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drainmw ownership")
        self._instance = instance
        await self._in_thread(self._place.enter, instance)

    async def take(self, name: str) -> bool:
        """Hold its lock, unless a process that lives does."""
        return await self._in_thread(self._place.take, name, self)

    async def drop(self, name: str) -> None:
        """Let go of its lock."""
        await self._in_thread(self._place.drop, name, self)

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        """Change its record, under the lock of the directory."""
        return await self._in_thread(self._place.transact, name, act)

    async def beat(self, beat: Beat) -> list[Beat]:
        """Write ours, and read those of all others that live."""
        return await self._in_thread(self._place.beat, beat)

    async def close(self) -> None:
        """Remove our heartbeat."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await self._in_thread(self._place.leave, instance)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """A thread of our own, while it is open: the app may need those of the loop."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, call, *args)
        except (OSError, GroupError, SettingsError) as exc:
            raise OwnershipUnavailable(f"{self._directory}: {exc}") from exc


class _Place:
    """A directory, as this process has it open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread_lock = threading.RLock()
        self._leases: dict[str, tuple[int, weakref.ref[object]]] = {}
        self._instances: dict[str, int] = {}
        self._file = self._tenure = CLOSED
        self._is_open = False
        self._open()

    # Leases

    def take(self, name: str, taker: object) -> bool:
        with self._thread_lock:
            self._stay()
            _, holder = self._leases.get(name, (0, lambda: None))
            if holder() not in (None, taker):  # another Drain of this process has it
                return False
            self._let_go(name)
            path = self._directory / f"{name}.lease.lock"
            file = opened(path)
            if try_lock(file) and _is_at(file, path):
                self._leases[name] = file, weakref.ref(taker)
                return True
            os.close(file)
            return False

    def drop(self, name: str, taker: object) -> None:
        with self._thread_lock:
            if name in self._leases and self._leases[name][1]() is taker:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        if name in self._leases:
            os.close(self._leases.pop(name)[0])

    def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        with self._locked():
            lease = self._load(name)
            before = lease.snapshot()
            answer = act(lease)
            after = lease.snapshot()
            if after != before:
                path = self._directory / f"{name}.lease.json"
                lasting = after["last"] != before["last"]
                _replace(path, after, lasting=lasting)
            return answer

    def _load(self, name: str) -> Lease:
        path = self._directory / f"{name}.lease.json"
        return lease_from(path.read_bytes() if path.exists() else None)

    # Instances

    def enter(self, instance: str) -> None:
        with self._locked():
            if instance not in self._instances:
                file = opened(self._directory / f"{instance}.beat.lock")
                try_lock(file)
                self._instances[instance] = file
            for path in self._directory.glob("*.beat.lock"):
                other = path.name.removesuffix(".beat.lock")
                if not self._lives(other):
                    self._remove(other)

    def beat(self, beat: Beat) -> list[Beat]:
        with self._locked():
            _replace(self._directory / f"{beat.instance}.beat.json", beat.snapshot())
            return beats_from(self._others(beat.instance))

    def leave(self, instance: str) -> None:
        with self._locked():
            file = self._instances.pop(instance, None)
            if file is not None:
                os.close(file)
                self._remove(instance)

    def _others(self, own: str) -> Iterator[bytes]:
        for path in self._directory.glob("*.beat.json"):
            instance = path.name.removesuffix(".beat.json")
            if instance != own and self._lives(instance):
                yield path.read_bytes()

    def _lives(self, instance: str) -> bool:
        if instance in self._instances:
            return True
        file = opened(self._directory / f"{instance}.beat.lock")
        try:
            return is_held(file)
        finally:
            os.close(file)

    def _remove(self, instance: str) -> None:
        for kind in ("json", "lock"):
            (self._directory / f"{instance}.beat.{kind}").unlink(missing_ok=True)

    # The directory

    def _open(self) -> None:
        check_directory(self._directory.parent, "ownership of schedules")
        check_directory(self._directory, "ownership of schedules")
        self._file = opened(self._directory / "lock")
        # Who cleans temporary folders by age passes by what is locked in this way.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._tenure = os.open(self._directory, flags)
        share(self._tenure)
        for instance in self._instances:
            file = opened(self._directory / f"{instance}.beat.lock")
            self._instances[instance] = file
            try_lock(file)
        self._is_open = True

    def _close(self) -> None:
        leases = [file for file, _ in self._leases.values()]
        files = (self._file, self._tenure, *leases, *self._instances.values())
        self._leases.clear()
        self._instances = dict.fromkeys(self._instances, CLOSED)
        self._file = self._tenure = CLOSED
        self._is_open = False
        for file in files:
            if file != CLOSED:
                os.close(file)

    def _stay(self) -> None:
        """Begin anew where somebody has removed the directory; all is lost then.

        Also where that has failed the last time.
        """
        if not self._is_open or not _is_at(self._file, self._directory / "lock"):
            self._close()
            self._open()

    def _is_locked(self) -> bool:
        """One that was removed while it was waited for keeps nobody else out."""
        self._stay()
        return try_lock(self._file) and _is_at(self._file, self._directory / "lock")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + LOCK_PATIENCE
        with self._thread_lock:
            while not self._is_locked():
                if time.monotonic() > deadline:
                    raise OwnershipUnavailable(
                        f"the lock of {self._directory} is not to be had"
                    )
                time.sleep(LOCK_PAUSE)
            try:
                yield
            finally:
                unlock(self._file)


_places: dict[Path, _Place] = {}
_places_lock = threading.Lock()


def _place(directory: Path) -> _Place:
    key = directory.resolve()
    with _places_lock:
        if key not in _places:
            _places[key] = _Place(directory)
        return _places[key]


def _forget_places() -> None:
    """A fork has none of the locks, and closing their files costs its parent none."""
    global _places_lock
    _places_lock = threading.Lock()
    _places.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_places)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file still is the one of that name; `OSError`: who knows."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(file)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def _replace(path: Path, content: dict[str, Any], *, lasting: bool = False) -> None:
    """Write a file whole or not at all; `lasting`: it is on the disk then."""
    draft = path.with_suffix(".draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(draft, flags, 0o600), "w") as file:
        json.dump(content, file)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
    if lasting:
        _sync(path.parent)


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
