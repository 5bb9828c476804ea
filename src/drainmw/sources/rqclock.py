"""RQ's clocks: its cron, and the scheduler that a worker runs beside itself.

Both look from time to time what is due, and enqueue it. Here they ask before each
look, in the keys of their release, and while it is held they leave what is due
where it is. A scheduler also lets go of its locks then, so that the workers of
another release may schedule.

    cron = DrainableCron(connection=Redis.from_url(...))  # then register, and start

and where the `Drain` is:

    drain.add_source(RQClock(Redis.from_url(...), "blue", expected=1))
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from drainmw.sources.base import Counts
from drainmw.sources.extras import extra
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

# What of RQ and redis-py is put aside for a checker below has no types there.
with extra("rq"):
    from redis import Redis
    from redis.client import PubSub
    from rq import cron_job_registry
    from rq.cron import CronJob, CronScheduler
    from rq.defaults import RQ_KEY_PREFIX
    from rq.scheduler import SCHEDULER_KEY_TEMPLATE, RQScheduler
    from rq.utils import now

HELD_PAUSE = 0.2  # seconds between two looks of a cron that is held
CATCH_UP = timedelta(hours=1)
"""What a cron expression was overdue by more, as its cron came up, is given up."""

LOCK_PAUSE = 5.0  # seconds between two looks for a lock that another one has
LOOK_PATIENCE = 0.5  # seconds that a hold waits for a look that is under way


class DrainableCron(CronScheduler):
    """RQ's own cron, which can be held."""

    release: str | None = None
    """A subclass may set it, instead of the variable."""

    _own: _Post | None = None

    def register_birth(self) -> None:
        """Be known before anything is enqueued.

        Raises:
            Misuse: Nobody has told of which release it is.
        """
        self._own = _Post(self.name, self.release or os.environ.get(VARIABLE, ""))
        super().register_birth()
        self._own.take(self.connection)

    def register_death(self, pipeline: Any = None) -> None:
        """Leave in order."""
        super().register_death(pipeline)
        self._post.leave(self.connection)

    def enqueue_jobs(self) -> list[CronJob]:
        """Enqueue what is due, if it is not held."""
        was_held = self._post.is_held
        overdue = sum(job.should_run() for job in self.get_jobs())
        if not self._post.may_look(self.connection, overdue):
            return []
        try:
            if was_held:
                self._take_over()
            return super().enqueue_jobs()
        finally:
            self._post.has_looked(self.connection)

    def calculate_sleep_interval(self) -> float:
        """As RQ's own; while it is held, what is due makes it no busy loop."""
        if self._post.is_held:
            return HELD_PAUSE
        return super().calculate_sleep_interval()

    def _take_over(self) -> None:
        """Go on from what any release has enqueued last, where a name tells that."""
        names = Counter(job.name for job in self.get_jobs())
        for job in self.get_jobs():
            last = self._last(job.name) if names[job.name] == 1 else None
            if last is None or (job.latest_enqueue_time or last) > last:
                continue
            job.set_enqueue_time(last)
            due = job.next_enqueue_time
            if job.cron and due and self.created_at - due > CATCH_UP:
                job.set_enqueue_time(self.created_at)

    def _last(self, name: str) -> datetime | None:
        last = self.connection.zscore(cron_job_registry.get_registry_key(), name)
        if last is None:
            return None
        return min(datetime.fromtimestamp(last, UTC), now())  # a clock may be ahead

    @property
    def _post(self) -> _Post:
        if self._own is None:
            raise AssertionError("a cron is born before it works")
        return self._own


class DrainableScheduler(RQScheduler):
    """The scheduler of a `DrainableWorker`, which can be held."""

    def __init__(self, queues: Any, release: str, **options: Any) -> None:
        super().__init__(queues, **options)
        self._post = _Post(self.name, release)
        self._let_go: set[str] = set()
        """Of which queues it had to, and has got no lock since."""
        self._looked_for_locks = 0.0

    def register_birth(self) -> None:
        """Be known before anything is enqueued."""
        super().register_birth()
        self._post.take(self.connection)

    def register_death(self) -> bool:
        """Leave in order."""
        self._post.leave(self.connection)
        return super().register_death()

    @property
    def should_reacquire_locks(self) -> bool:
        """Soon after a hold, but not while it lasts; of all queues."""
        if self._queue_names == self.acquired_locks:
            return False
        if self._post.still_is_held(self.connection):
            return False
        waited = time.monotonic() - self._looked_for_locks
        return bool(self._let_go) or waited >= LOCK_PAUSE

    def acquire_locks(self, auto_start: bool = False) -> set[str]:
        """As RQ's own."""
        self._looked_for_locks = time.monotonic()
        locks: set[str] = super().acquire_locks(auto_start)  # type: ignore[no-untyped-call]
        self._let_go -= locks
        return locks

    def enqueue_scheduled_jobs(self) -> None:
        """Enqueue what is due, if it is not held; else let another release do it."""
        if self._post.may_look(self.connection):
            try:
                super().enqueue_scheduled_jobs()  # type: ignore[no-untyped-call]
            finally:
                self._post.has_looked(self.connection)
        elif self.acquired_locks:
            self._let_go |= self.acquired_locks
            self.release_locks()  # type: ignore[no-untyped-call]


class RQClock(ThreadedSource):
    """The crons and schedulers of one release on one Redis."""

    def __init__(
        self,
        connection: Redis,
        release: str,
        *,
        expected: int = 0,
        name: str = "rq clock",
    ) -> None:
        """`expected` is how many there are at least: with fewer of them the count is
        unknown. Of the schedulers of workers there may be none, since one is enough.

        Raises:
            Misuse: The release cannot be part of a key, or that is no `Redis`.
        """
        check_redis(connection, "RQClock")
        super().__init__(name, "clock", _Clocks(connection, release, expected))


class _Clocks(Members):
    what = "clock"
    runs_as = "DrainableCron"

    def __init__(self, connection: Redis, release: str, expected: int) -> None:
        super().__init__(connection, _keys_of(release), expected)
        self.overdue = 0

    def hold(self) -> None:
        """Write it; a look that is under way has a moment to end in."""
        super().hold()
        deadline = time.monotonic() + LOOK_PATIENCE
        while any(self.count()) and time.monotonic() < deadline:
            self._released.wait(PAUSE)

    def count(self) -> Counts:
        """Those that are enqueuing what is due."""
        with unavailable():
            states = self.states()
        looking = [state for state in states if state[0] == BUSY]
        self._running = [told(state, kind="schedules") for state in looking]
        self.overdue = sum(
            int(n) for what, *more in states for n in more[:1] if what == OUT
        )
        return Counts(schedules=len(looking))

    def _kept(self, name: str) -> Iterable[str]:
        yield SCHEDULER_KEY_TEMPLATE % name
        yield f"{RQ_KEY_PREFIX}:cron_scheduler:{name}"


class _Post:
    """Where a clock tells what it does, and asks whether it may."""

    def __init__(self, name: str, release: str) -> None:
        self.is_held = True
        """As it was when it last asked."""
        self._name = name
        self._keys = _keys_of(release)
        self._presence: PubSub | None = None

    def take(self, redis: Redis) -> None:
        """Be there, as long as this process lives."""
        presence: PubSub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        presence.subscribe(self._keys.channel(redis, self._name))
        self._presence = presence
        # Not before: who is out and does not listen is forgotten.
        self._keys.tell(redis, self._name, OUT)

    def may_look(self, redis: Redis, overdue: int = 0) -> bool:
        """Whether it is not held; then it counts until it `has_looked`."""
        assert self._presence is not None, "a clock is born before it looks"
        self._presence.get_message(timeout=0)  # it connects anew where that was lost
        out = f"{OUT} {overdue}" if overdue else OUT
        started = busy(self._name)
        self.is_held = not self._keys.may_start(redis, self._name, started, out)
        return not self.is_held

    def has_looked(self, redis: Redis) -> None:
        """What was due has been enqueued."""
        self._keys.tell(redis, self._name, OUT)

    def still_is_held(self, redis: Redis) -> bool:
        """Ask, without a wish to look."""
        return bool(redis.exists(self._keys.holds))

    def leave(self, redis: Redis) -> None:
        """It enqueues nothing any more."""
        self._keys.tell(redis, self._name, LEFT)
        if self._presence is not None:
            self._presence.close()


def _keys_of(release: str) -> Keys:
    return Keys(release, "clock-holds", "clocks")
