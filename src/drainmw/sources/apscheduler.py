"""APScheduler 3: a scheduler in the process of the app.

    drain.add_source(APSchedulerSource(scheduler))

It stands between the scheduler and its job stores and executors. While it is held
no due job leaves a store, so what comes due stays there, for a release or for
another release of the app; what an executor has accepted is counted until it has
ended. The scheduler's own `pause` and `resume` are left to the app, unless it
stands by for an owner:

    drain.add_source(Owned(APSchedulerSource(scheduler, standby=True), owner))
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from drainmw.errors import Misuse
from drainmw.flag import Pulse
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.extras import extra
from drainmw.text import kind_of

with extra("apscheduler"):
    from apscheduler.events import EVENT_SCHEDULER_STARTED
    from apscheduler.executors.asyncio import AsyncIOExecutor
    from apscheduler.executors.base import BaseExecutor
    from apscheduler.job import Job
    from apscheduler.jobstores.memory import MemoryJobStore
    from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, BaseScheduler

REMEMBERED = 100  # holds whose fires are still to be made up for
HORIZON = 3600.0  # seconds for which one look into a job store is good at most
_MUST_STAND_BY = "could fire before it is owned; make it with standby=True"
GLANCE = 0.1  # seconds between two looks at what an executor had before we came

Key = tuple[BaseExecutor, str]
"""An executor and the id of a job that it runs, perhaps several times at once."""


class APSchedulerSource:
    """A clock source around one scheduler, whatever its stores and executors.

    Make it before the scheduler has started, or after.
    """

    intake: Intake = "clock"

    def __init__(
        self,
        scheduler: BaseScheduler,
        *,
        name: str = "apscheduler",
        standby: bool = False,
    ) -> None:
        """`standby` is for an `Owned` scheduler: other processes have the same jobs.

        Then it is held from the start, and a release also resumes a scheduler that
        was started paused. What has come due meanwhile in a job store that only this
        process has is taken for fired by another one.

        Raises:
            Misuse: It is no scheduler of APScheduler 3.
        """
        if not isinstance(scheduler, BaseScheduler):
            raise Misuse(
                "APSchedulerSource takes a scheduler of APScheduler 3, "
                f"not {kind_of(scheduler)}"
            )
        self.name = name
        self.unowned = None if standby else _MUST_STAND_BY
        self._scheduler = scheduler
        self._standby = standby
        self._lock = threading.Lock()  # around what follows
        self._changed = Pulse()
        self._held = standby
        self._since = datetime.now(UTC)  # of the hold, if held
        self._holds: deque[tuple[datetime, datetime]] = deque(maxlen=REMEMBERED)
        self._is_handing_over = False  # a job, from its store to its executor
        self._accepted: dict[Key, deque[Running]] = {}
        self._inherited: set[Key] = set()
        """What ran before we came: its end may have begun where we cannot see it."""
        self._elsewhere = _Agenda()
        self._process_jobs = scheduler._process_jobs
        scheduler._process_jobs = self._pass
        with scheduler._executors_lock:
            scheduler._executors = _Watched(scheduler._executors, self._watch_executor)
        with scheduler._jobstores_lock:  # no pass is between a store and an executor
            scheduler._jobstores = _Watched(scheduler._jobstores, self._watch_store)
        if standby:
            scheduler.add_listener(self._on_start, EVENT_SCHEDULER_STARTED)

    def halt(self) -> None:
        """Let no job leave its store, from here on: its thread waits for no loop."""
        with self._lock:
            if not self._held:
                self._held, self._since = True, datetime.now(UTC)

    async def hold(self) -> None:
        """Let no job leave its store; wait for the one that does so right now."""
        self.halt()
        await self._until(lambda: not self._is_handing_over)
        self._elsewhere.look(self._stores())

    def count(self) -> Counts:
        """What the executors have accepted, from the store to the last listener."""
        with self._lock:
            self._forget_inherited()
            return Counts(schedules=sum(map(len, self._accepted.values())))

    async def settled(self) -> None:
        """Return when the executors have nothing."""
        await self._until(lambda: not any(self.count()))

    async def release(self) -> None:
        """Fire what has come due meanwhile, however late, and go on."""
        with self._lock:
            if self._held:
                self._holds.append((self._since, datetime.now(UTC)))
                self._held = False
        with contextlib.suppress(RuntimeError):  # its loop has been closed
            if self._scheduler.state == STATE_RUNNING:
                self._scheduler.wakeup()
            elif self._standby and self._scheduler.state == STATE_PAUSED:
                self._scheduler.resume()

    def running(self) -> list[Running]:
        """What the executors have accepted, oldest first."""
        with self._lock:
            pieces = [piece for some in self._accepted.values() for piece in some]
        return sorted(pieces, key=lambda piece: piece.started)

    @property
    def overdue(self) -> int | None:
        """Jobs that are due and withheld. `None` where a job store does not tell.

        A store in memory is looked at now, another one in a thread, for next time.
        """
        if not self._held:
            return 0
        stores, now = self._stores(), datetime.now(UTC).timestamp()
        here = [store for store in stores if isinstance(store, MemoryJobStore)]
        due = sum(moment <= now for store in here for moment in _moments(store))
        if len(here) == len(stores):
            return due
        self._elsewhere.look(stores)
        elsewhere = self._elsewhere.due(now)
        return None if elsewhere is None else due + elsewhere

    async def _until(self, met: Callable[[], bool]) -> None:
        while True:
            count = self._changed.count
            if met():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GLANCE if self._inherited else None):
                    await self._changed.after(count)

    def _stores(self) -> list[Any]:
        return list(self._scheduler._jobstores.values())

    def _on_start(self, _event: object) -> None:
        if self._scheduler.state == STATE_PAUSED and not self._held:
            self._scheduler.resume()  # the owner's turn came before the start

    # The way of a due job, in whatever thread the scheduler has

    def _pass(self) -> float | None:
        """One look of the scheduler for due jobs; gives the seconds to the next.

        Held there is no next one: it would come at once, for what is overdue.
        """
        if self._held:
            return None
        try:
            seconds: float | None = self._process_jobs()
            return seconds
        finally:
            self._is_handing_over = False
            self._changed.beat()

    def _watch_store(self, store: Any) -> None:
        store.get_due_jobs = partial(self._due_jobs, store.get_due_jobs)

    def _due_jobs(
        self, get_due_jobs: Callable[[datetime], Iterable[Job]], now: datetime
    ) -> Iterable[Job]:
        """Look into no store while held: some throw out what they cannot read."""
        return () if self._held else self._until_held(get_due_jobs(now))

    def _until_held(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            with self._lock:
                if self._held:
                    return
                self._is_handing_over = True
            try:
                yield job
            finally:
                self._is_handing_over = False
                self._changed.beat()

    def _watch_executor(self, executor: Any) -> None:
        with executor._lock or contextlib.nullcontext():  # it may not have started
            for id, number in executor._instances.items():
                self._inherited.add((executor, id))
                for _ in range(number):
                    self._begin(executor, id)
            executor._do_submit_job = partial(
                self._submit, executor, executor._do_submit_job
            )
            for name in ("_run_job_success", "_run_job_error"):
                end = partial(self._ended, executor, getattr(executor, name))
                setattr(executor, name, end)
        if isinstance(executor, AsyncIOExecutor):
            executor.shutdown = partial(_shut_down, executor, executor.shutdown)

    def _submit(
        self,
        executor: BaseExecutor,
        submit: Callable[[Job, list[datetime]], None],
        job: Job,
        run_times: list[datetime],
    ) -> None:
        self._begin(executor, job.id)
        try:
            submit(self._punctual(job, run_times), run_times)
        except BaseException:
            self._end(executor, job.id)
            raise

    def _ended(
        self,
        executor: BaseExecutor,
        end: Callable[..., None],
        job_id: str,
        *result: object,
        **more: object,
    ) -> None:
        key = executor, job_id
        with self._lock:
            if len(self._accepted.get(key, ())) == 1:
                self._inherited.discard(key)  # we see the end of all of them
        try:
            end(job_id, *result, **more)  # calls the listeners, too
        finally:
            self._end(executor, job_id)

    def _begin(self, executor: BaseExecutor, id: str) -> None:
        with self._lock:
            pieces = self._accepted.setdefault((executor, id), deque())
            pieces.append(Running(id, time.monotonic(), "schedules"))

    def _end(self, executor: BaseExecutor, id: str) -> None:
        with self._lock:
            pieces = self._accepted.get((executor, id))
            if pieces:
                pieces.popleft()  # of several it may have been another one
            if not pieces:
                self._accepted.pop((executor, id), None)
        self._changed.beat()

    def _forget_inherited(self) -> None:
        for executor, id in list(self._inherited):
            if executor._instances.get(id, 0) <= 0:
                self._inherited.discard((executor, id))
                self._accepted.pop((executor, id), None)

    # What is late because it was withheld

    def _punctual(self, job: Job, run_times: list[datetime]) -> Job:
        """The job, never too late for what a hold has withheld.

        A copy of it where the executor would drop it, since stores keep the job.
        """
        if job.misfire_grace_time is None or self._is_anothers(job):
            return job
        grace = timedelta(seconds=job.misfire_grace_time)
        with self._lock:
            withheld = any(
                since - grace <= moment <= until
                for since, until in self._holds
                for moment in run_times
            )
        if not withheld:
            return job
        copy = Job.__new__(Job)
        for name in Job.__slots__:
            if name != "__weakref__" and hasattr(job, name):
                setattr(copy, name, getattr(job, name))
        copy.misfire_grace_time = None
        return copy

    def _is_anothers(self, job: Job) -> bool:
        store = self._scheduler._jobstores.get(job._jobstore_alias)
        return self._standby and isinstance(store, MemoryJobStore)


class _Watched(dict[str, Any]):
    """The stores or executors of a scheduler, each told of before it can be used."""

    def __init__(self, known: dict[str, Any], watch: Callable[[Any], None]) -> None:
        super().__init__(known)
        self._watches = [*getattr(known, "_watches", []), watch]
        for value in known.values():
            watch(value)

    def __setitem__(self, alias: str, value: Any) -> None:
        for watch in self._watches:
            watch(value)
        super().__setitem__(alias, value)


class _Agenda:
    """When jobs are due in stores outside this process, as of the last look.

    It looks in a thread of its own: a store that gives no answer stalls nobody.
    """

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._moments: list[float] | None = None

    def look(self, stores: Iterable[Any]) -> None:
        """Begin to look, unless a look is under way."""
        stores = [store for store in stores if not isinstance(store, MemoryJobStore)]
        if not stores or not self._looking.acquire(blocking=False):
            return
        thread = threading.Thread(
            target=self._look, args=(stores,), name="drainmw overdue", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # there is no thread to be had
            self._moments = None
            self._looking.release()

    def due(self, now: float) -> int | None:
        """How many are due; `None` if nobody could look."""
        moments = self._moments
        return None if moments is None else sum(moment <= now for moment in moments)

    def _look(self, stores: list[Any]) -> None:
        try:
            self._moments = [m for store in stores for m in _moments(store)]
        except Exception:
            self._moments = None
        finally:
            self._looking.release()


def _moments(store: Any) -> list[float]:
    """When its jobs are due next, in seconds since 1970.

    It does not make jobs of what is in a database: what cannot be read, such as
    another release's, would be deleted there.

    Raises:
        LookupError: It is a store of a kind that is not known here.
    """
    if isinstance(store, MemoryJobStore):
        moments = [job.next_run_time for job in store.get_all_jobs()]
        return [moment.timestamp() for moment in moments if moment is not None]
    table = getattr(store, "jobs_t", None)
    if table is None:
        raise LookupError(f"{type(store).__name__} does not tell when jobs are due")
    moment = table.c.next_run_time
    until = datetime.now(UTC).timestamp() + HORIZON
    query = table.select().with_only_columns(moment).where(moment <= until)
    with store.engine.begin() as connection:
        return list(connection.execute(query).scalars())


def _shut_down(
    executor: Any, shut_down: Callable[[bool], None], wait: bool = True
) -> None:
    """Let what runs in threads end: cancelled, it would go on and not be counted."""
    pending = executor._pending_futures
    pending -= {future for future in pending if not isinstance(future, asyncio.Task)}
    shut_down(wait)
