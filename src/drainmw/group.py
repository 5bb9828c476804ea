"""All workers behind one listener, as one release.

A group is a directory that the workers of one supervisor share:

    group        a map of fixed size: the gate byte, then a slot for each worker
    record.json  the lifecycle; replaced whole, under the lock
    lock         taken for every transition
    wN.lock      held by the worker of slot N as long as it lives
    wN.sock      where it is woken
    sN.sock      where it is asked about its state, by HTTP
    kept-*       state that is fixed, until the drain is resumed

The record is the truth and the gate byte its shadow: a transition writes the
record and then the byte, whoever finds them disagreeing repairs the byte under
the lock. So a begin closes intake in every worker at one instant, also in one
whose event loop is stuck.

Locks are POSIX record locks, since a child process does not inherit them: the
kernel lets go of them when the worker dies, whoever it has forked. Wake-ups are
datagrams and only hints: nothing is lost with one, because who has not answered
is asked again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from drainmw import slots
from drainmw.core.drain import Lifecycle
from drainmw.core.ledger import GateByte
from drainmw.core.roster import Worker
from drainmw.errors import DrainError, GroupError, Superseded
from drainmw.locks import any_held, is_held, opened, share, try_lock, unlock
from drainmw.record import Hint
from drainmw.reporting import Told
from drainmw.socketfile import check_directory
from drainmw.supervisor import Supervisor

T = TypeVar("T")

VERSION = 3
MAGIC = b"DRMW"
LOCK_PATIENCE = 2.0  # seconds until a transition gives up on the lock
LOCK_PAUSE = 0.0002

_HEADER = struct.Struct("<B3x4sI")  # gate, magic, version
_GENERATION = struct.Struct("<Q")
_GENERATION_AT = 16
_TAKEN_AT = 24  # how many slots were ever taken
_OBSERVED_AT = 25  # whether there was ever an observer


class Group:
    """A worker's end of its group; also an observer's, who has no slot."""

    def __init__(
        self,
        directory: Path,
        boss: Supervisor,
        *,
        name: str | None = None,
        revision: str | None = None,
        observer: bool = False,
    ) -> None:
        """Join, or make, the group of that supervisor and name.

        Raises:
            GroupError: The place is not private, another version of drainmw
                made it, a sibling is of another revision, or it is full.
        """
        check_directory(directory, "group")
        label = f"{boss.pid}-{boss.started}" + (f"-{name}" if name else "")
        self.path = directory / f"group-{label}"
        check_directory(self.path, "group")
        self.boss = boss
        self._root = str(self.path)
        self._record = f"{self._root}/record.json"
        self._place = _claim(self.path)
        self._thread_lock = threading.Lock()
        self._slot_lock = threading.Lock()
        self._slot: int | None = None
        self._peers: dict[int, int] = {}
        self._read: tuple[tuple[int, ...], int, Lifecycle] | None = None
        lock_file = None
        try:
            self._lock_file = lock_file = opened(self.path / "lock")
            self._map = self._mapped()
            self.gate: GateByte = self._map
            with self._locked():
                self._agree(revision, observer=observer)
                if observer:
                    self._map[_OBSERVED_AT] = 1
                else:
                    self._slot = self._take_slot()
                    self.publish(slots.silent(os.getpid()))
        except BaseException:
            if lock_file is not None:
                os.close(lock_file)
            del _claimed[self._place]
            raise
        # Who cleans temporary folders by age passes by a directory that is locked
        # in this way (tmpfiles.d(5)).
        self._tenure = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        share(self._tenure)
        # From here on its lock is held: should the rest fail, this worker is
        # one that never speaks, so that no drain ends as if it were not there.
        self.address = f"o{os.getpid()}.sock" if observer else f"w{self._slot}.sock"
        self.socket = self._bind()
        _sweep(directory, self.path)

    # The record

    def read(self) -> tuple[int, Lifecycle]:
        """The newest generation and its lifecycle; repairs the gate."""
        seen = self._identity()
        if self._read is None or self._read[0] != seen:
            self._read = (seen, *self._load())
        _, generation, lifecycle = self._read
        if self.gate[0] != lifecycle.gate:
            with self._locked():
                _, newest = self._load()
                self.gate[0] = newest.gate
        return generation, lifecycle

    def transact(self, act: Callable[[Lifecycle], T], only_at: int | None = None) -> T:
        """Apply a transition to the newest record, under the lock.

        Raises:
            Superseded: The record is of another generation than `only_at`.
            GroupError: The lock was not to be had for two seconds.
        """
        with self._locked():
            generation, lifecycle = self._load()
            if only_at not in (None, generation):
                raise Superseded
            before = lifecycle.snapshot()
            answer = act(lifecycle)
            if lifecycle.snapshot() != before:
                self._store(generation + 1, lifecycle)
            self.gate[0] = lifecycle.gate
            return answer

    def _agree(self, revision: str | None, *, observer: bool) -> None:
        """Make the record, or find it in accord. Under the lock."""
        if not (self.path / "record.json").exists():
            if observer:
                raise GroupError("no worker has come up yet")
            self._store(1, Lifecycle(revision))
            self.gate[0] = 0
            return
        _, lifecycle = self._load()
        if not observer and lifecycle.revision != revision:
            raise GroupError(
                f"a sibling is of revision {lifecycle.revision}, this one of "
                f"{revision}; two apps under one supervisor need two group names "
                "(DRAINMW_GROUP)"
            )
        self.gate[0] = lifecycle.gate

    def _identity(self) -> tuple[int, ...]:
        """Changes with every record.

        The file alone is not enough: inodes are used again, and many a file
        system's clock ticks every 4 ms. The number alone is not either: who
        replaced the file may have died before writing it.
        """
        (generation,) = _GENERATION.unpack_from(self._map, _GENERATION_AT)
        try:
            found = os.stat(self._record)
        except OSError as exc:
            raise GroupError(f"{self.path} is gone: {exc.strerror}") from None
        return generation, found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> tuple[int, Lifecycle]:
        path = self.path / "record.json"
        try:
            whole = json.loads(path.read_bytes())
            return whole["generation"], Lifecycle.restored(whole["lifecycle"])
        except (OSError, ValueError, KeyError, TypeError, DrainError) as exc:
            why = f"{type(exc).__name__}: {exc}"
            raise GroupError(f"{path} cannot be read: {why}") from None

    def _store(self, generation: int, lifecycle: Lifecycle) -> None:
        whole = {"generation": generation, "lifecycle": lifecycle.snapshot()}
        draft = self.path / f"record.{os.getpid()}"
        draft.write_text(json.dumps(whole))
        draft.replace(self.path / "record.json")
        _GENERATION.pack_into(self._map, _GENERATION_AT, generation)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The one lock of the group; never held across a wait."""
        deadline = time.monotonic() + LOCK_PATIENCE
        with self._thread_lock:
            while not try_lock(self._lock_file):
                if time.monotonic() > deadline:
                    raise GroupError("the lock of the group is not to be had")
                time.sleep(LOCK_PAUSE)
            try:
                yield
            finally:
                unlock(self._lock_file)

    # The slots

    def publish(self, worker: Worker) -> None:
        """Write this worker's slot; loops of several threads take turns."""
        if self._slot is not None:
            with self._slot_lock:
                slots.write(self._map, self._slot, worker)

    def others(self) -> list[Worker]:
        """What every other live worker has published last."""
        return [slots.read(self._map, slot) for slot in self._live()]

    def _take_slot(self) -> int:
        """The first slot whose worker is gone. Under the lock."""
        for slot in range(slots.WORKERS_MAXIMUM):
            file = opened(self.path / f"w{slot}.lock")
            if try_lock(file):
                at = slots.SLOTS_AT + slot * slots.SLOT_SIZE
                self._map[at : at + slots.SLOT_SIZE] = bytes(slots.SLOT_SIZE)
                (self.path / f"w{slot}.json").unlink(missing_ok=True)
                self._held = file
                self._map[_TAKEN_AT] = max(self._map[_TAKEN_AT], slot + 1)
                return slot
            os.close(file)
        raise GroupError(f"there are {slots.WORKERS_MAXIMUM} workers already")

    def _live(self) -> Iterator[int]:
        """The slots of all others whose worker lives: it holds its lock."""
        for slot in self._known():
            if is_held(self._peers[slot]):
                yield slot

    def _known(self) -> Iterator[int]:
        """The slots of all others that were ever taken, which is in order."""
        for slot in range(self._map[_TAKEN_AT]):
            if slot == self._slot:  # never opened again: closing would unlock it
                continue
            if slot not in self._peers:
                self._peers[slot] = opened(self.path / f"w{slot}.lock")
            yield slot

    # What is shared of state

    def members(self) -> list[int]:
        """Every live worker by its process id, in the order of their slots."""
        pids = {slot: slots.read(self._map, slot).pid for slot in self._live()}
        if self._slot is not None:
            pids[self._slot] = os.getpid()
        return [pids[slot] for slot in sorted(pids)]

    def addresses(self) -> dict[int, Path]:
        """Where every other live worker is asked, by its process id."""
        return {
            slots.read(self._map, slot).pid: self.path / f"s{slot}.sock"
            for slot in self._live()
        }

    @property
    def own_address(self) -> Path | None:
        """Where this worker is asked; an observer is not."""
        return None if self._slot is None else self.path / f"s{self._slot}.sock"

    def keep(self, name: str, body: bytes) -> None:
        """Keep something for all workers, also those that are yet to come."""
        draft = self.path / f"kept.{os.getpid()}"
        with open(os.open(draft, _NEW_FILE, 0o600), "wb") as file:
            file.write(body)
        draft.replace(self.path / f"kept-{name}")

    def kept(self, name: str) -> bytes:
        """What was kept under that name.

        Raises:
            GroupError: It is gone.
        """
        path = self.path / f"kept-{name}"
        try:
            return path.read_bytes()
        except OSError as exc:
            raise GroupError(f"{path}: {exc.strerror}") from None

    def forget(self) -> None:
        """Remove what was kept."""
        for path in self.path.glob("kept-*"):
            path.unlink(missing_ok=True)

    # Wake-ups

    def wake(self, hint: Hint = "look") -> None:
        """Hint to all others; a full queue has hints enough."""
        for slot in self._known():
            self._hint(f"w{slot}.sock", hint.encode())
        if self._map[_OBSERVED_AT]:
            for observer in self.path.glob("o*.sock"):
                if observer.name != self.address:
                    self._hint(observer.name, b"look")

    def answer(self, address: str) -> None:
        """Hint to the one who asked that there is news."""
        self._hint(address, b"look")

    def hints(self) -> dict[str, str]:
        """Take what has come in: who asked, and for what."""
        asked: dict[str, str] = {}
        while True:
            try:
                message, address = self.socket.recvfrom(64)
            except (BlockingIOError, InterruptedError):
                return asked
            name = os.path.basename(os.fsdecode(address)) if address else ""
            if name and (
                message == b"tell" or (message == b"ask" and name not in asked)
            ):
                asked[name] = message.decode()

    # What a report tells of every worker

    def tell(self, told: Told) -> None:
        """Write down what this worker tells."""
        if self._slot is not None:
            path = self.path / f"w{self._slot}.json"
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(told))
            draft.replace(path)

    def told(self) -> list[Told]:
        """What the others have written down; a sibling may run another version."""
        found: list[Told] = []
        for slot in self._live():
            with contextlib.suppress(OSError, ValueError, TypeError):
                told = json.loads((self.path / f"w{slot}.json").read_bytes())
                found.append({"blockers": [], "warnings": [], "sources": [], **told})
        return found

    def fileno(self) -> int:
        """What becomes readable when a hint comes in."""
        return self.socket.fileno()

    def leave(self) -> None:
        """Close everything; the kernel lets go of the locks."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            (self.path / self.address).unlink()
        for file in self._peers.values():
            os.close(file)
        os.close(self._lock_file)
        os.close(self._tenure)
        if self._slot is not None:
            os.close(self._held)
        _claimed.pop(self._place, None)

    def _hint(self, address: str, message: bytes) -> None:
        try:
            self.socket.sendto(message, f"{self._root}/{address}")
        except OSError as exc:
            if exc.errno not in _HINT_LOST:
                raise

    def _bind(self) -> socket.socket:
        path = self.path / self.address
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.setblocking(False)
        try:
            bound.bind(str(path))
        except OSError as exc:
            bound.close()
            raise GroupError(f"{path}: {exc.strerror or exc}") from None
        return bound

    def _mapped(self) -> mmap.mmap:
        path = self.path / "group"
        file = opened(path)
        try:
            with self._locked():
                if os.fstat(file).st_size == 0:
                    os.ftruncate(file, slots.SIZE)
                    os.pwrite(file, _HEADER.pack(0, MAGIC, VERSION), 0)
                _, magic, version = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
            if (magic, version) != (MAGIC, VERSION):
                raise GroupError(
                    f"{path} is of version {version}, this drainmw makes {VERSION}; "
                    "all workers of a group need the same one"
                )
            return mmap.mmap(file, slots.SIZE)
        finally:
            os.close(file)


_HINT_LOST = frozenset(
    (
        errno.EAGAIN,
        errno.ENOBUFS,
        errno.ECONNREFUSED,
        errno.ENOENT,
        errno.ECONNRESET,
        errno.EPERM,
    )
)


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW

_claimed: dict[tuple[Path, int], int] = {}
"""The groups of this process, with its pid: a fork is another process."""


def _claim(path: Path) -> tuple[Path, int]:
    """One process is one worker: its locks could not tell two apart."""
    place = _place(path)
    if _claimed.get(place) == os.getpid():
        raise GroupError(
            "this process is in its group already; a second Drain in it "
            "needs a name of its own (group=)"
        )
    _claimed[place] = os.getpid()
    return place


def _place(path: Path) -> tuple[Path, int]:
    return path.resolve(), path.stat().st_ino


def _sweep(directory: Path, own: Path) -> None:
    """Remove groups whose supervisor is gone and in which nobody lives."""
    for path in directory.glob("group-*-*"):
        found = re.match(r"group-(\d+)-([^-]+)", path.name)
        if path == own or found is None or path.is_symlink():
            continue
        if not Supervisor(int(found[1]), found[2]).lives and not _inhabited(path):
            shutil.rmtree(path, ignore_errors=True)


def _inhabited(path: Path) -> bool:
    try:
        if _claimed.get(_place(path)) == os.getpid():
            return True  # our own lock would look free, and closing it frees it
    except FileNotFoundError:  # a sibling has swept it
        return False
    return any_held(path.glob("w*.lock"))
