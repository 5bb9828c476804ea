"""All workers behind one listener, as one release.

A group is a directory that the workers of one supervisor share:

    group        a map of fixed size: the gate byte, then a slot for each worker
    record.json  the lifecycle; replaced whole, under the lock
    lock         taken for every transition
    wN.lock      held by the worker of slot N as long as it lives
    wN.sock      where it is woken

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
import multiprocessing
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from drainmw.contract import Blocker
from drainmw.core.drain import Lifecycle
from drainmw.core.ledger import GateByte
from drainmw.core.roster import Worker
from drainmw.errors import DrainError, GroupError, Superseded
from drainmw.record import Hint
from drainmw.socketfile import check_directory

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

VERSION = 1
MAGIC = b"DRMW"
WORKERS_MAXIMUM = 255  # their number is a byte of the map
LOCK_PATIENCE = 2.0  # seconds until a transition gives up on the lock
LOCK_PAUSE = 0.0002
READ_TRIES = 100  # of a slot that is being written
WHO_MAXIMUM = 64  # bytes
ERROR_MAXIMUM = 128

_HEADER = struct.Struct("<B3x4sI")  # gate, magic, version
_GENERATION = struct.Struct("<Q")
_GENERATION_AT = 16
_TAKEN_AT = 24  # how many slots were ever taken
_OBSERVED_AT = 25  # whether there was ever an observer
_SLOTS_AT = 64
_SLOT = struct.Struct(f"<IQddB3x4q2q2d{WHO_MAXIMUM}s{ERROR_MAXIMUM}s")
_SEQUENCE = struct.Struct("<I")
_SLOT_SIZE = 320
_SIZE = _SLOTS_AT + WORKERS_MAXIMUM * _SLOT_SIZE
_UNKNOWN = -1
_MAXIMUM = 2**63 - 1
_SETTLED, _VALID, _FATAL = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The process that starts the workers of a group; a pid alone is reused."""

    pid: int
    started: str

    @property
    def lives(self) -> bool:
        """Whether that very process still runs."""
        return _start_time(self.pid) == self.started


def supervisor(environ: Mapping[str, str] | None = None) -> Supervisor | None:
    """Who started this process as one of several; `None` for one that is alone.

    Raises:
        GroupError: It is one of several and its parent cannot be told.
    """
    environ = os.environ if environ is None else environ
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        pid = parent.pid
    elif environ.get("SERVER_SOFTWARE", "").startswith("gunicorn/"):
        pid = os.getppid()
    else:
        return None
    if sys.platform == "win32":
        raise GroupError("workers need POSIX locks and Unix sockets to act as one")
    started = _start_time(pid)
    if started is None:
        raise GroupError(f"the supervisor, process {pid}, cannot be identified")
    return Supervisor(pid, started)


def itself() -> Supervisor:
    """This process, as the supervisor of the workers that it starts.

    Raises:
        GroupError: Its start cannot be told.
    """
    started = _start_time(os.getpid())
    if started is None:
        raise GroupError("the start of this process cannot be told")
    return Supervisor(os.getpid(), started)


def may_be_one_of_several() -> bool:
    """Whether this process, or one forked from it, may have siblings."""
    return multiprocessing.parent_process() is not None or os.environ.get(
        "SERVER_SOFTWARE", ""
    ).startswith("gunicorn/")


def runtime_directory(chosen: Path | None) -> Path:
    """Where groups live: chosen, or `XDG_RUNTIME_DIR`, or below the temporary one."""
    if chosen is not None:
        return chosen
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg:
        return Path(xdg) / "drainmw"
    return Path(tempfile.gettempdir()) / f"drainmw-{os.geteuid()}"


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
            self._lock_file = lock_file = _opened(self.path / "lock")
            self._map = self._mapped()
            self.gate: GateByte = self._map
            with self._locked():
                self._agree(revision, observer=observer)
                if observer:
                    self._map[_OBSERVED_AT] = 1
                else:
                    self._slot = self._take_slot()
                    self.publish(silent(os.getpid()))
        except BaseException:
            if lock_file is not None:
                os.close(lock_file)
            del _claimed[self._place]
            raise
        # Who cleans temporary folders by age passes by a directory that is locked
        # in this way (tmpfiles.d(5)).
        self._tenure = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._tenure, fcntl.LOCK_SH)
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
            while not _try_lock(self._lock_file):
                if time.monotonic() > deadline:
                    raise GroupError("the lock of the group is not to be had")
                time.sleep(LOCK_PAUSE)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_file, fcntl.LOCK_UN)

    # The slots

    def publish(self, worker: Worker) -> None:
        """Write this worker's slot; loops of several threads take turns."""
        if self._slot is not None:
            with self._slot_lock:
                self._write_slot(self._slot, worker)

    def _write_slot(self, slot: int, worker: Worker) -> None:
        at = _SLOTS_AT + slot * _SLOT_SIZE
        counts = [_UNKNOWN if n is None else min(n, _MAXIMUM) for n in worker.counts]
        flags = (
            _SETTLED * worker.settled + _VALID * worker.valid + _FATAL * worker.fatal
        )
        (sequence,) = _SEQUENCE.unpack_from(self._map, at)
        odd = (sequence + 1) | 1
        _SEQUENCE.pack_into(self._map, at, odd & 0xFFFFFFFF)
        _SLOT.pack_into(
            self._map,
            at + _SEQUENCE.size,
            worker.pid,
            worker.generation,
            worker.born,
            worker.published,
            flags,
            *counts,
            worker.admitted,
            worker.refused,
            worker.last_admitted,
            worker.last_refused,
            worker.who.encode()[:WHO_MAXIMUM],
            (worker.error or "").encode()[:ERROR_MAXIMUM],
        )
        _SEQUENCE.pack_into(self._map, at, (odd + 1) & 0xFFFFFFFF)

    def others(self) -> list[Worker]:
        """What every other live worker has published last."""
        return [self._worker(slot) for slot in self._live()]

    def _worker(self, slot: int) -> Worker:
        """One slot, read whole; one that stays half written has not spoken."""
        at = _SLOTS_AT + slot * _SLOT_SIZE
        pid = 0
        for _ in range(READ_TRIES):
            (before,) = _SEQUENCE.unpack_from(self._map, at)
            fields = _SLOT.unpack_from(self._map, at + _SEQUENCE.size)
            (after,) = _SEQUENCE.unpack_from(self._map, at)
            pid, generation, born, published, flags, *rest = fields
            if before == after and before % 2 == 0:
                return Worker(
                    pid=pid,
                    born=born,
                    published=published,
                    generation=generation,
                    settled=bool(flags & _SETTLED),
                    valid=bool(flags & _VALID),
                    counts=tuple(None if n == _UNKNOWN else n for n in rest[:4]),
                    admitted=rest[4],
                    refused=rest[5],
                    last_admitted=rest[6],
                    last_refused=rest[7],
                    who=_text(rest[8]),
                    error=_text(rest[9]) or None,
                    fatal=bool(flags & _FATAL),
                )
        return silent(pid)

    def _take_slot(self) -> int:
        """The first slot whose worker is gone. Under the lock."""
        for slot in range(WORKERS_MAXIMUM):
            file = _opened(self.path / f"w{slot}.lock")
            if _try_lock(file):
                at = _SLOTS_AT + slot * _SLOT_SIZE
                self._map[at : at + _SLOT_SIZE] = bytes(_SLOT_SIZE)
                (self.path / f"w{slot}.json").unlink(missing_ok=True)
                self._held = file
                self._map[_TAKEN_AT] = max(self._map[_TAKEN_AT], slot + 1)
                return slot
            os.close(file)
        raise GroupError(f"there are {WORKERS_MAXIMUM} workers already")

    def _live(self) -> Iterator[int]:
        """The slots of all others whose worker lives: it holds its lock."""
        for slot in self._known():
            if _is_held(self._peers[slot]):
                yield slot

    def _known(self) -> Iterator[int]:
        """The slots of all others that were ever taken, which is in order."""
        for slot in range(self._map[_TAKEN_AT]):
            if slot == self._slot:  # never opened again: closing would unlock it
                continue
            if slot not in self._peers:
                self._peers[slot] = _opened(self.path / f"w{slot}.lock")
            yield slot

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

    # Blockers, for whoever asks to be told

    def tell(self, blockers: list[Blocker]) -> None:
        """Write this worker's oldest work down."""
        if self._slot is not None:
            path = self.path / f"w{self._slot}.json"
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(blockers))
            draft.replace(path)

    def told(self) -> list[Blocker]:
        """What the others have written down."""
        found: list[Blocker] = []
        for slot in self._live():
            with contextlib.suppress(OSError, ValueError):
                found += json.loads((self.path / f"w{slot}.json").read_bytes())
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
        file = _opened(path)
        try:
            with self._locked():
                if os.fstat(file).st_size == 0:
                    os.ftruncate(file, _SIZE)
                    os.pwrite(file, _HEADER.pack(0, MAGIC, VERSION), 0)
                _, magic, version = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
            if (magic, version) != (MAGIC, VERSION):
                raise GroupError(
                    f"{path} is of version {version}, this drainmw makes {VERSION}; "
                    "all workers of a group need the same one"
                )
            return mmap.mmap(file, _SIZE)
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


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")


def silent(pid: int) -> Worker:
    """A worker that has not spoken."""
    nothing = (None,) * 4
    now = time.monotonic()
    return Worker(pid, now, now, 0, settled=False, counts=nothing)


def _opened(path: Path) -> int:
    """Open or make a file of the group, never through a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, 0o600)
    except OSError as exc:
        raise GroupError(f"{path}: {exc.strerror}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(file)
        raise GroupError(f"{path} is not a file of ours")
    return file


def _try_lock(file: int, *, shared: bool = False) -> bool:
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.lockf(file, mode | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_held(file: int) -> bool:
    """Whether the worker of that lock lives; two who look at once see the same."""
    if not _try_lock(file, shared=True):
        return True
    fcntl.lockf(file, fcntl.LOCK_UN)
    return False


def _start_time(pid: int) -> str | None:
    """When a process started, in the words of its system; `None` if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    asked = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True
    )
    return re.sub(r"\W+", "-", asked.stdout.strip()) or None


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
    for lock in path.glob("w*.lock"):
        try:
            file = _opened(lock)
        except GroupError:
            return True
        try:
            if _is_held(file):
                return True
        finally:
            os.close(file)
    return False
