"""RQ: workers in processes of their own, each of which forks to run a job.

They are reached by keys that a release has to itself, in the Redis that RQ is on.
A worker is here of one of these states, and each change is one script in Redis that
looks whether the release is held:

    out      it has no job, and must ask before it takes one
    pulling  it waits for a job; what it gets while held goes back to the front
    busy     it has started a job
    left     it has ended in order

So from the moment in which a hold is written, nothing starts. Who is busy or pulls
and does not listen to its channel any more may have died; what it had is unknown,
which is never zero, until RQ itself has forgotten that worker.

    RQ_RELEASE=blue rq worker --worker-class drainmw.sources.rq.DrainableWorker

and where the `Drain` is:

    drain.add_source(RQWorkers(Redis.from_url(...), "blue"))
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.exceptions import DequeueTimeout
from rq.job import Job

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts, Running
from drainmw.sources.threaded import ThreadedSource
from drainmw.text import failure_text

VARIABLE = "RQ_RELEASE"
"""Tells a worker of which release it is."""

LONGEST_PULL = 5  # seconds, where a server would not let us end one
PAUSE = 0.05  # seconds between two looks of a worker that is held, or of a drain
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_ASK = """
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[2], ARGV[1], 'out')
    return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""
_START = """
if redis.call('HGET', KEYS[2], ARGV[1]) == 'out' then
    return 0 -- asked once more, because the first answer got lost
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('LREM', KEYS[4], 1, ARGV[3])
    redis.call('LPUSH', KEYS[3], ARGV[3])
    redis.call('INCR', KEYS[5])
    redis.call('HSET', KEYS[2], ARGV[1], 'out')
    return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""


class _Keys:
    """The keys of one release."""

    def __init__(self, release: str) -> None:
        if not _NAME.fullmatch(release):
            raise Misuse(
                f"the release of RQ workers is up to 64 letters, digits and _.-, "
                f"not {release!r}; a worker is told by {VARIABLE}"
            )
        self.holds = f"drainmw:rq:{release}:holds"
        """A field for each process that wants a hold."""
        self.workers = f"drainmw:rq:{release}:workers"
        self.back = f"drainmw:rq:{release}:back"


class DrainableWorker(Worker):
    """RQ's own worker, which can be held."""

    release: str | None = None
    """A subclass may set it, instead of the variable."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        asking = (_GatedQueue, self.queue_class)
        # A class that is made here is none that a checker can know.
        self.queue_class = type("Queue", asking, {"gate": self})  # type: ignore[assignment]
        self._own: _Keys | None = None
        self._is_busy = False

    def register_birth(self) -> None:
        """Be known before there is work.

        Raises:
            Misuse: Nobody has told of which release it is.
        """
        self._own = _Keys(self.release or os.environ.get(VARIABLE, ""))
        # RQ has no types for these two.
        super().register_birth()  # type: ignore[no-untyped-call]
        self.connection.hset(self._own.workers, self.name, "out")

    def register_death(self) -> None:
        """Leave in order; what still has a job leaves no proof of the contrary."""
        super().register_death()  # type: ignore[no-untyped-call]
        if not self._is_busy:
            self.connection.hset(self._keys.workers, self.name, "left")

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Have a job until its outcome is stored."""
        super().execute_job(job, queue)
        self.connection.hset(self._keys.workers, self.name, "out")
        self._is_busy = False

    def may_pull(self) -> bool:
        """Whether it is not held; then it counts as one that pulls."""
        state = f"pulling {self.connection.client_id()}"
        keys = [self._keys.holds, self._keys.workers]
        return bool(self.connection.eval(_ASK, len(keys), *keys, self.name, state))

    def may_start(self, job: Job, queue: Queue) -> bool:
        """Whether it is not held; otherwise the job is back."""
        own = self._keys
        queues = [queue.key, queue.intermediate_queue_key]
        keys = [own.holds, own.workers, *queues, own.back]
        state = f"busy {time.time():.3f} {job.id}"
        asked = (self.name, state, job.id)
        self._is_busy = bool(self.connection.eval(_START, len(keys), *keys, *asked))
        return self._is_busy

    @property
    def _keys(self) -> _Keys:
        if self._own is None:
            raise AssertionError("a worker is born before it works")
        return self._own


class _GatedQueue(Queue):
    """The queue class of one worker, which asks that worker."""

    gate: DrainableWorker

    @classmethod
    def dequeue_any(
        cls, queues: Iterable[Queue], timeout: int | None, *args: Any, **options: Any
    ) -> tuple[Job, Queue] | None:
        queues = list(queues)
        wait = None if timeout is None else min(timeout, LONGEST_PULL)
        if cls.gate.may_pull():
            pulled = super().dequeue_any(queues, wait, *args, **options)
            if pulled is None or cls.gate.may_start(*pulled):
                return pulled
        if timeout is None:  # a burst: it leaves, as if there were nothing to do
            return None
        time.sleep(PAUSE)
        raise DequeueTimeout(timeout, [queue.key for queue in queues])


class RQWorkers(ThreadedSource):
    """All workers of one release on one Redis."""

    def __init__(
        self,
        connection: Redis,
        release: str,
        *,
        expected: int = 1,
        name: str = "rq",
    ) -> None:
        """`expected` is how many workers there are at least: with fewer of them the
        count is unknown.

        Raises:
            Misuse: The release cannot be part of a key.
        """
        if expected < 0:
            raise Misuse(f"expected must be at least 0, not {expected}")
        super().__init__(name, "pull", _Release(connection, release, expected))


class _Release:
    """The blocking side: what is asked of Redis."""

    def __init__(self, connection: Redis, release: str, expected: int) -> None:
        self._redis = connection
        self._keys = _Keys(release)
        self._expected = expected
        self._token = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._is_held = False
        self._released = threading.Event()
        self._known: set[str] = set()  # who was there since the hold
        self._back_before = 0
        self._running: list[Running] = []
        self.handed_back = 0

    def hold(self) -> None:
        """Write it. From then on nothing starts."""
        with _unavailable():
            if not self._is_held:
                self._known.clear()
                self._released.clear()
                self._back_before = int(self._redis.get(self._keys.back) or 0)
            self._is_held = True
            self._redis.hset(self._keys.holds, self._token, f"{time.time():.0f}")
            self._states()

    def count(self) -> Counts:
        """The busy ones; while held, also those that may have a job to give back."""
        with _unavailable():
            states = self._states()
        busy = [state for state in states if state[0] == "busy"]
        self._running = [_told(state) for state in busy]
        pulling = [state[1] for state in states if state[0] == "pulling"]
        return Counts(jobs=len(busy) + (len(pulling) if self._is_held else 0))

    def settle(self) -> None:
        """Wait until all are out."""
        while not self._released.is_set() and any(self.count()):
            self._released.wait(PAUSE)

    def release(self) -> None:
        """Take our part of the hold away, and forget who has left meanwhile."""
        with _unavailable():
            self._redis.hdel(self._keys.holds, self._token)
            self._is_held = False
            self._released.set()

    def running(self) -> list[Running]:
        """What the workers ran when they were last counted, oldest first."""
        return sorted(self._running, key=lambda piece: piece.started)

    def _states(self) -> list[list[str]]:
        """What each worker that lives is doing; those that wait for a job are woken."""
        with self._redis.pipeline() as ask:
            ask.hgetall(self._keys.workers)
            ask.hexists(self._keys.holds, self._token)
            ask.get(self._keys.back)
            told, stands, back = ask.execute()
        self.handed_back = int(back or 0) - self._back_before
        if self._is_held and not stands:
            self._redis.hset(self._keys.holds, self._token, f"{time.time():.0f}")
            raise SourceUnavailable("Redis had lost the hold, and may have let jobs in")
        there = self._present({_text(n): _text(state) for n, state in told.items()})
        if len(there) < self._expected:
            where = self._keys.workers
            raise SourceUnavailable(
                f"{len(there)} of {self._expected} workers answer at {where}"
            )
        for state, *rest in there:
            if self._is_held and state == "pulling":
                self._redis.client_unblock(int(rest[0]))
        return there

    def _present(self, states: dict[str, str]) -> list[list[str]]:
        """Who lives, or has left in order since the hold."""
        living = self._living(states)
        if self._is_held:
            self._known |= living
        there = []
        for name, state in states.items():
            is_out = state in ("out", "left")
            if name in living or (is_out and name in self._known):
                there.append(state.split(" ", 2))
            elif not is_out and (name in self._known or self._is_kept(name)):
                raise SourceUnavailable(f"worker {name} has died, and had a job")
            else:
                self._redis.hdel(self._keys.workers, name)
        return there

    def _living(self, names: Iterable[str]) -> set[str]:
        """Who listens to its channel: the kernel tells Redis of a death."""
        channels = {PUBSUB_CHANNEL_TEMPLATE % name: name for name in names}
        heard = self._redis.pubsub_numsub(*channels) if channels else []
        return {channels[_text(channel)] for channel, number in heard if number}

    def _is_kept(self, name: str) -> bool:
        """Whether RQ still takes it for one that works."""
        return bool(self._redis.exists(f"{Worker.redis_worker_namespace_prefix}{name}"))


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except RedisError as exc:
        raise SourceUnavailable(failure_text(exc)) from None


def _told(state: list[str]) -> Running:
    """A job by its id, and when it started by the clock of this process."""
    ago = max(0.0, time.time() - float(state[1]))
    return Running(state[2], time.monotonic() - ago)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
