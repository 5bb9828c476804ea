"""A worker of a group in a process of its own, led by the test."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from drainmw.core.roster import Worker
from drainmw.group import Group
from drainmw.supervisor import Supervisor
from tests.rig import NONCE, begin_request

Act = Callable[..., Any]

# All come from one process that has imported what each of them needs.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class Peer:
    """The test's end of it."""

    def __init__(self, pid: int, wire: Connection) -> None:
        self.pid = pid
        self._wire = wire

    def do(self, act: Act, *args: Any) -> Any:
        """Call `act(group, *args)` there; raises what it raised."""
        self.start(act, *args)
        answer = self._wire.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def start(self, act: Act, *args: Any) -> None:
        """The same, without waiting for the answer."""
        self._wire.send((act, args))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def peer(directory: Path, boss: Supervisor, **options: Any) -> Iterator[Peer]:
    """Another process that has joined that group.

    Raises:
        GroupError, SettingsError: As joining raised it there.
    """
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_live, args=(theirs, directory, boss, options))
    process.start()
    theirs.close()
    try:
        joined = ours.recv()
        if isinstance(joined, Exception):
            raise joined
        assert process.pid is not None
        yield Peer(process.pid, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def _live(
    wire: Connection, directory: Path, boss: Supervisor, options: dict[str, Any]
) -> None:
    try:
        group = Group(directory, boss, **options)
    except Exception as exc:
        wire.send(exc)
        return
    wire.send("joined")
    while True:
        act, args = wire.recv()
        try:
            wire.send(act(group, *args))
        except Exception as exc:
            wire.send(exc)


# What a peer can be told to do


def begin(group: Group, nonce: str = NONCE) -> bool:
    request = begin_request(nonce)
    return group.transact(lambda life: life.begin(request, time.monotonic()))


def resume(group: Group, nonce: str = NONCE) -> bool:
    return group.transact(lambda life: life.resume(nonce))


def phase(group: Group) -> tuple[str, int, int]:
    generation, lifecycle = group.read()
    return str(lifecycle.phase), generation, group.gate[0]


def gate(group: Group) -> int:
    """What admission sees, without a look at the record."""
    return group.gate[0]


def others(group: Group) -> list[Worker]:
    return group.others()


def publish(group: Group, worker: Worker) -> None:
    group.publish(worker)


def publish_flat_out(group: Group) -> None:
    """Words whose every part is the same number, for ever."""
    number = 0
    while True:
        number += 1
        group.publish(
            Worker(
                pid=os.getpid(),
                born=float(number),
                published=float(number),
                generation=number,
                settled=bool(number % 2),
                counts=(number, number, number, number),
                admitted=number,
                refused=number,
                last_admitted=float(number),
                last_refused=float(number),
                who=str(number),
                error=str(number),
            )
        )


class DyingGate:
    """A gate whose worker is killed before it can write it."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __getitem__(self, index: int) -> int:
        return self._value

    def __setitem__(self, index: int, value: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_gate(group: Group) -> None:
    group.gate = DyingGate(group.gate[0])
    begin(group)


def fork_a_child(group: Group) -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def keep_the_lock(group: Group, seconds: float) -> None:
    with group._locked():
        time.sleep(seconds)


def begin_many_times(group: Group, times: int) -> int:
    """Begin and resume, against others that do the same; how often it was us."""
    won = 0
    for number in range(times):
        nonce = f"{os.getpid():x}.{number}".replace(".", "_").ljust(43, "x")
        try:
            begin(group, nonce)
        except Exception:
            continue
        won += 1
        resume(group, nonce)
    return won
