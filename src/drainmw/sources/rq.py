"""RQ: workers in processes of their own, each of which forks to run a job.

They are reached by keys that a release has to itself, in the Redis that RQ is on.
A worker is here of one of these states:

    out      it has no job, and must ask before it takes one
    pulling  it waits for a job; what it gets while held goes back to the front
    busy     it has started a job
    left     it has ended in order

    RQ_RELEASE=blue rq worker --worker-class drainmw.sources.rq.DrainableWorker

and where the `Drain` is:

    drain.add_source(RQWorkers(Redis.from_url(...), "blue"))
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from drainmw.sources.base import Counts
from drainmw.sources.extras import extra
from drainmw.sources.rqclock import DrainableScheduler
from drainmw.sources.rqrelease import (
    BUSY,
    LEFT,
    OUT,
    PAUSE,
    VARIABLE,
    Keys,
    Members,
    busy,
    check_redis,
    told,
    unavailable,
)
from drainmw.sources.threaded import ThreadedSource

# What of RQ is put aside for a checker below has no types there.
with extra("rq"):
    from redis import Redis
    from rq import Queue, Worker
    from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
    from rq.exceptions import DequeueTimeout
    from rq.job import Job

LONGEST_PULL = 5  # seconds, where a server would not let us end one
PULLING = "pulling"

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


class _Keys(Keys):
    """Those of workers."""

    def __init__(self, release: str) -> None:
        super().__init__(release, "holds", "workers")
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
        self._looks_for_scheduler = True
        self._looked_for_scheduler = 0.0

    def register_birth(self) -> None:
        """Be known before there is work.

        Raises:
            Misuse: Nobody has told of which release it is.
        """
        self._own = _Keys(self._release())
        super().register_birth()  # type: ignore[no-untyped-call]
        self._own.tell(self.connection, self.name, OUT)

    def subscribe(self) -> None:
        """Listen also where the release looks for who lives."""
        super().subscribe()  # type: ignore[no-untyped-call]
        if self.pubsub is None:
            raise AssertionError("RQ has subscribed")
        channel = self._keys.channel(self.connection, self.name)
        self.pubsub.subscribe(**{channel: _heard})
        # Again: who is out and does not listen is forgotten.
        self._keys.tell(self.connection, self.name, OUT)

    def register_death(self) -> None:
        """Leave in order; what still has a job leaves no proof of the contrary."""
        super().register_death()  # type: ignore[no-untyped-call]
        if not self._is_busy:
            self._keys.tell(self.connection, self.name, LEFT)

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Have a job until its outcome is stored."""
        super().execute_job(job, queue)
        self._keys.tell(self.connection, self.name, OUT)
        self._is_busy = False

    def may_pull(self) -> bool:
        """Whether it is not held; then it counts as one that pulls."""
        self._look_for_scheduler()
        state = f"{PULLING} {self.connection.client_id()}"
        return self._keys.may_start(self.connection, self.name, state)

    def may_start(self, job: Job, queue: Queue) -> bool:
        """Whether it is not held; otherwise the job is back."""
        own = self._keys
        queues = [queue.key, queue.intermediate_queue_key]
        keys = [own.holds, own.members, *queues, own.back]
        asked = (self.name, busy(job.id), job.id)
        self._is_busy = bool(self.connection.eval(_START, len(keys), *keys, *asked))
        return self._is_busy

    def _start_scheduler(
        self,
        burst: bool = False,
        logging_level: str | None = "INFO",
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
    ) -> None:
        """As RQ's own does, but one that can be held."""
        self.scheduler = scheduler = DrainableScheduler(
            self.queues,
            self._release(),
            connection=self.connection,
            serializer=self.serializer,
            logging_level=self.log.level if logging_level is None else logging_level,
            date_format=date_format,
            log_format=log_format,
        )
        self._looks_for_scheduler = not burst
        if not scheduler.acquire_locks(auto_start=not burst) or not burst:
            return
        try:
            scheduler.register_birth()
            scheduler.enqueue_scheduled_jobs()
        finally:
            scheduler.release_locks()  # type: ignore[no-untyped-call]
            scheduler.register_death()

    def _look_for_scheduler(self) -> None:
        """Run one soon after another release has let go; RQ looks each ten minutes."""
        scheduler, now = self.scheduler, time.monotonic()
        if scheduler is None or not self._looks_for_scheduler:
            return
        if now - self._looked_for_scheduler < LONGEST_PULL:
            return
        self._looked_for_scheduler = now
        process = scheduler._process
        if process is None or not process.is_alive():
            scheduler.acquire_locks(auto_start=True)  # type: ignore[no-untyped-call]

    def _release(self) -> str:
        return self.release or os.environ.get(VARIABLE, "")

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
            Misuse: The release cannot be part of a key, or that is no `Redis`.
        """
        check_redis(connection, "RQWorkers")
        super().__init__(name, "pull", _Workers(connection, release, expected))


class _Workers(Members):
    what = "worker"
    runs_as = "DrainableWorker"

    def __init__(self, connection: Redis, release: str, expected: int) -> None:
        self._own = _Keys(release)
        super().__init__(connection, self._own, expected)
        self._back_before = 0
        self.handed_back = 0

    def count(self) -> Counts:
        """The busy ones; while held, also those that may have a job to give back."""
        with unavailable():
            states = self.states()
            self.handed_back = self._back() - self._back_before
        at_work = [state for state in states if state[0] == BUSY]
        self._running = [told(state) for state in at_work]
        pulling = [state for state in states if state[0] == PULLING]
        return Counts(jobs=len(at_work) + (len(pulling) if self._is_held else 0))

    def states(self) -> list[list[str]]:
        """Of all; those that wait for a job are woken while they are held."""
        there = super().states()
        for state, *rest in there:
            if self._is_held and state == PULLING:
                self._redis.client_unblock(int(rest[0]))
        return there

    def _begin(self) -> None:
        self._back_before, self.handed_back = self._back(), 0

    def _back(self) -> int:
        return int(self._redis.get(self._own.back) or 0)

    def _kept(self, name: str) -> Iterable[str]:
        return (f"{Worker.redis_worker_namespace_prefix}{name}",)


def _heard(_message: object) -> None:
    """Nobody says anything there: to listen is all."""
