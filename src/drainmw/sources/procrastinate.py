"""Procrastinate: its workers in this process, or in processes of their own.

All that a worker does with its jobs goes through the job manager of its app. The
source takes that place: a job is leased from the fetch that brought it until its
outcome is stored. While it is held, workers fetch nothing and their heartbeats go
on. Where the workers run as tasks of the app's own event loop:

    drain.add_source(ProcrastinateWorkers(app))

Where `procrastinate worker` runs them, in the module of the Procrastinate app and
where the `Drain` is:

    drainable(app, "/run/shop/blue/procrastinate")
    drain.add_source(RemoteSource("procrastinate", "pull", "/run/shop/blue/..."))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from drainmw.agent import Agent
from drainmw.errors import Misuse, SourceUnavailable
from drainmw.flag import Pulse
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.doers import doers
from drainmw.sources.extras import extra
from drainmw.text import failure_text, kind_of

with extra("procrastinate"):
    from procrastinate import App
    from procrastinate.connector import BaseConnector
    from procrastinate.exceptions import ProcrastinateException
    from procrastinate.jobs import Job, Status
    from procrastinate.manager import JobManager, NotificationCallback
    from procrastinate.worker import Worker

_NEWEST_FIRE = (
    "SELECT max(defer_timestamp) AS newest FROM procrastinate_periodic_defers "
    "WHERE task_name = %(task_name)s AND periodic_id = %(periodic_id)s"
)


class ProcrastinateWorkers:
    """All workers of an app that run in this event loop.

    Periodic tasks count as schedules while they are put into the queue, which is
    all that their clock does. A job of a blocking function counts when the hold
    returns, and its thread may begin a moment later.
    """

    intake: Intake = "pull"

    def __init__(self, app: App, *, name: str = "procrastinate") -> None:
        """Call it before a worker runs: what was fetched before is not counted.

        Raises:
            Misuse: It is no app, a worker of it runs here already, or it has a job
                manager that is not Procrastinate's own.
        """
        if not isinstance(app, App):
            raise Misuse(f"this takes an App of Procrastinate, not {kind_of(app)}")
        if type(app.job_manager) is not JobManager:
            raise Misuse(
                f"the app's job manager must be Procrastinate's own, not "
                f"{type(app.job_manager).__name__}; an app has one source"
            )
        if any(worker.app is app for worker in doers(Worker)):
            raise Misuse("a worker of this app runs already; add the source before it")
        self.name = name
        self._gate = _Gate(app.job_manager.connector)
        app.job_manager = self._gate

    async def hold(self) -> None:
        """Fetch nothing more; what is being fetched has arrived, on return."""
        gate = self._gate
        gate.is_held = gate.was_held = True
        while gate.fetching:
            await gate.changed.after(gate.changed.count)
        await asyncio.sleep(0)  # in which the job that came last begins

    def count(self) -> Counts:
        """Jobs whose outcome is not stored, and fires that are being stored.

        Raises:
            SourceUnavailable: The database failed in the middle of a question.
        """
        gate = self._gate
        if gate.in_doubt:
            raise SourceUnavailable("the database may have jobs of ours in progress")
        return Counts(jobs=len(gate.leases) + gate.fetching, schedules=gate.firing)

    async def settled(self) -> None:
        """Return when no job is left, and what came without our knowledge is back.

        Raises:
            SourceUnavailable: The database cannot be asked.
        """
        gate = self._gate
        while True:
            seen = gate.changed.count
            try:
                await gate.resolve()
            except ProcrastinateException as exc:
                raise SourceUnavailable(failure_text(exc)) from None
            if not any(self.count()):
                return
            await gate.changed.after(seen)

    async def release(self) -> None:
        """Fetch again, at once where a worker listens for notifications."""
        self._gate.is_held = False
        self._gate.changed.beat()
        for wake in list(self._gate.listeners):
            await wake(channel="", notification={"type": "job_inserted", "job_id": 0})

    def running(self) -> Iterator[Running]:
        """The jobs that are not done, oldest first."""
        return iter([lease.running for lease in self._gate.leases.values()])

    @property
    def handed_back(self) -> int:
        """Jobs that were ours in the database only."""
        return self._gate.handed_back

    @property
    def overdue(self) -> int:
        """Fires that are withheld: one at most for each worker."""
        return self._gate.withheld


def drainable(app: App, directory: Path | str, name: str | None = None) -> App:
    """Let each process that runs workers of this app answer in that directory.

    Processes that only enqueue are not touched. `name` tells the workers in it
    apart; it is the process id if not given. Gives the app.

    Raises:
        Misuse: It is no app, it has a source already, or a worker of it runs here.
    """
    source = ProcrastinateWorkers(app)
    source._gate.new_agent = partial(Agent, source, directory, name)
    return app


@dataclass(slots=True)
class _Lease:
    """A job that was fetched here, until its outcome is stored."""

    job: Job  # the very object: its identity is the key
    worker: int
    running: Running
    outcome: Callable[[], Awaitable[None]] | None = None
    """What has to be stored, once that has failed."""


class _Gate(JobManager):
    """The job manager that knows what its workers have."""

    def __init__(self, connector: BaseConnector) -> None:
        super().__init__(connector)
        self.is_held = False
        self.was_held = False
        self.leases: dict[int, _Lease] = {}
        self.fetching = 0
        self.firing = 0
        self.withheld = 0
        self.handed_back = 0
        self.in_doubt: set[int] = set()
        """Workers whose last question to the database got no answer."""
        self.changed = Pulse()
        self.listeners: list[NotificationCallback] = []
        self.new_agent: Callable[[], Agent] | None = None
        self._agent: Agent | None = None
        self._workers = 0
        self._turn = asyncio.Lock()  # the first worker to start, or the last to end

    async def fetch_job(
        self, queues: Iterable[str] | None, worker_id: int
    ) -> Job | None:
        if self.is_held:
            return None
        with self._noted("fetching"):
            try:
                job = await super().fetch_job(queues, worker_id)
            except BaseException:
                self.in_doubt.add(worker_id)
                raise
            if job is not None:
                label = Running(f"{job.task_name}[{job.id}]", time.monotonic())
                self.leases[id(job)] = _Lease(job, worker_id, label)
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        await self._store(job, partial(super().finish_job, job, status, delete_job))

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        again = partial(super().retry_job, job, retry_at, priority, queue, lock)
        await self._store(job, again)

    async def defer_periodic_job(
        self, job: Job, periodic_id: str, defer_timestamp: int
    ) -> int | None:
        await self._open()
        with self._noted("firing"):
            # The database knows the newest fire only. Where another release went on
            # while we were held, what we catch up with has been fired by it.
            if self.was_held and defer_timestamp <= await self._newest(
                job.task_name, periodic_id
            ):
                return None
            return await super().defer_periodic_job(job, periodic_id, defer_timestamp)

    async def listen_for_jobs(
        self,
        *,
        on_notification: NotificationCallback,
        queues: Iterable[str] | None = None,
    ) -> None:
        self.listeners.append(on_notification)
        try:
            await super().listen_for_jobs(
                on_notification=on_notification, queues=queues
            )
        finally:
            self.listeners.remove(on_notification)

    async def register_worker(self) -> int:
        async with self._turn:
            if self.new_agent is not None and not self._workers:
                agent = self.new_agent()
                await agent.astart()
                self._agent = agent
            self._workers += 1
        return await super().register_worker()

    async def unregister_worker(self, worker_id: int) -> None:
        if worker_id in self.in_doubt:
            await self._resolve(worker_id)
        await super().unregister_worker(worker_id)
        async with self._turn:
            self._workers -= 1
            if self._agent is not None and not self._workers:
                await self._agent.aclose()
                self._agent = None

    async def resolve(self) -> None:
        """Ask again what is in doubt; while it is held, so nothing is under way."""
        for worker_id in list(self.in_doubt):
            if self.is_held and not self.fetching:
                await self._resolve(worker_id)

    async def _resolve(self, worker_id: int) -> None:
        """Store what could not be stored, give back what never arrived."""
        ours = {
            lease.job.id: lease
            for lease in self.leases.values()
            if lease.worker == worker_id
        }
        for job in await self.list_jobs_async(
            status=Status.DOING.value, worker_id=worker_id
        ):
            lease = ours.get(job.id)
            if lease is None:
                await super().retry_job(job)
                self.handed_back += 1
            elif lease.outcome is not None:
                await lease.outcome()
        self.in_doubt.discard(worker_id)
        for lease in ours.values():
            if lease.outcome is not None:
                self._forget(lease.job)

    async def _store(self, job: Job, outcome: Callable[[], Awaitable[None]]) -> None:
        try:
            await outcome()
        except BaseException:
            if (lease := self.leases.get(id(job))) is not None:
                lease.outcome = outcome
                self.in_doubt.add(lease.worker)
                self.changed.beat()
            raise
        self._forget(job)

    def _forget(self, job: Job) -> None:
        self.leases.pop(id(job), None)
        self.changed.beat()

    async def _open(self) -> None:
        self.withheld += 1
        try:
            while self.is_held:
                await self.changed.after(self.changed.count)
        finally:
            self.withheld -= 1

    async def _newest(self, task_name: str, periodic_id: str) -> int:
        row = await self.connector.execute_query_one_async(
            query=_NEWEST_FIRE, task_name=task_name, periodic_id=periodic_id
        )
        newest: int | None = row["newest"]
        return newest or 0

    @contextmanager
    def _noted(self, counter: str) -> Iterator[None]:
        setattr(self, counter, getattr(self, counter) + 1)
        try:
            yield
        finally:
            setattr(self, counter, getattr(self, counter) - 1)
            self.changed.beat()
