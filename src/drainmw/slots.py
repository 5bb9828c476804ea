"""What each worker says of itself, in a map of memory that all of them share.

A slot carries a sequence number that is odd while it is written, so that a
reader sees it whole or not at all.
"""

from __future__ import annotations

import mmap
import struct
import time

from drainmw.core.roster import Worker

WORKERS_MAXIMUM = 255  # their number is a byte of the map
READ_TRIES = 100  # of a slot that is being written
WHO_MAXIMUM = 64  # bytes
ERROR_MAXIMUM = 128
SLOTS_AT = 64
SLOT_SIZE = 320
SIZE = SLOTS_AT + WORKERS_MAXIMUM * SLOT_SIZE
_SLOT = struct.Struct(f"<IQddB3x4q2q2d{WHO_MAXIMUM}s{ERROR_MAXIMUM}s")
_SEQUENCE = struct.Struct("<I")
_UNKNOWN = -1
_MAXIMUM = 2**63 - 1
_SETTLED, _VALID, _FATAL = 1, 2, 4


def write(area: mmap.mmap, slot: int, worker: Worker) -> None:
    """Write a slot. One writer at a time."""
    at = SLOTS_AT + slot * SLOT_SIZE
    counts = [_UNKNOWN if n is None else min(n, _MAXIMUM) for n in worker.counts]
    flags = _SETTLED * worker.settled + _VALID * worker.valid + _FATAL * worker.fatal
    (sequence,) = _SEQUENCE.unpack_from(area, at)
    odd = (sequence + 1) | 1
    _SEQUENCE.pack_into(area, at, odd & 0xFFFFFFFF)
    _SLOT.pack_into(
        area,
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
    _SEQUENCE.pack_into(area, at, (odd + 1) & 0xFFFFFFFF)


def read(area: mmap.mmap, slot: int) -> Worker:
    """One slot, read whole; one that stays half written has not spoken."""
    at = SLOTS_AT + slot * SLOT_SIZE
    pid = 0
    for _ in range(READ_TRIES):
        (before,) = _SEQUENCE.unpack_from(area, at)
        fields = _SLOT.unpack_from(area, at + _SEQUENCE.size)
        (after,) = _SEQUENCE.unpack_from(area, at)
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


def silent(pid: int) -> Worker:
    """A worker that has not spoken."""
    nothing = (None,) * 4
    now = time.monotonic()
    return Worker(pid, now, now, 0, settled=False, counts=nothing)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
