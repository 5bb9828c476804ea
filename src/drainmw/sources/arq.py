"""arq: the worker in this process, and the runner of one in a process of its own.

A worker starts work at two places: it takes ids from its queue and starts their
jobs, and it enqueues the cron jobs that are due. The source stands before both, on
the worker it was given. An id that is withheld stays in the queue, where any other
worker finds it; a fire that is withheld is enqueued after the release, unless
another release has done so meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from drainmw.agent import Agent
from drainmw.errors import Misuse, SourceUnavailable
from drainmw.flag import Pulse
from drainmw.log import logger
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.extras import extra
from drainmw.text import failure_text, kind_of

with extra("arq"):
    from arq.constants import in_progress_key_prefix
    from arq.cron import CronJob
    from arq.utils import to_unix_ms
    from arq.worker import Worker, create_worker
    from redis.exceptions import RedisError

FIRED = "drainmw:fired"
"""Keys of this beginning tell every release which cron jobs have been enqueued."""

FIRED_FOR = timedelta(days=1)
RENEWAL = 0.25  # of a lease, after which it is renewed


class ArqWorker:
    """A worker of this event loop. It counts its jobs, and a cron job as it fires."""

    intake: Intake = "pull"
    handed_back = 0
    """Nothing is leased ahead: what is not started was never taken."""

    def __init__(self, worker: Worker, *, name: str = "arq") -> None:
        """`worker` is one that has not been started.

        Raises:
            Misuse: It is no worker, or it runs already, so some of its work would
                not be counted.
        """
        if not isinstance(worker, Worker):
            raise Misuse(
                "ArqWorker takes a worker, such as arq.Worker(functions=[...]), "
                f"not {kind_of(worker)}"
            )
        if worker.main_task is not None or worker.tasks:
            raise Misuse("ArqWorker takes a worker before it runs")
        self.name = name
        self._worker = worker
        self._held = False
        self._turn = asyncio.Lock()  # whoever starts something, or wants a barrier
        self._starting: Counts = Counts()
        self._running: dict[asyncio.Task[Any], Running] = {}
        self._leased: set[asyncio.Task[Any]] = set()  # those that have not begun
        self._changes = Pulse()
        self._renewed = 0.0
        self._start, worker.start_jobs = worker.start_jobs, self._start_jobs
        self._fire, worker.run_cron = worker.run_cron, self._run_cron
        self._begin, worker.on_job_start = worker.on_job_start, self._on_job_start
        self._beat, worker.heart_beat = worker.heart_beat, self._heart_beat

    async def hold(self) -> None:
        """Start nothing more; what is being started has been, on return."""
        self._held = True
        async with self._turn:
            pass
        # A lease is a round trip ahead of its job, and cannot be given back.
        await self._changes.until(lambda: not (self._held and self._leased))

    def count(self) -> Counts:
        """Jobs whose outcome is not stored, and fires that are being enqueued.

        Raises:
            SourceUnavailable: The worker has died.
        """
        self._check_alive()
        starting = self._starting
        return starting._replace(jobs=starting.jobs + len(self._running))

    async def settled(self) -> None:
        """Return when no job is left.

        Raises:
            SourceUnavailable: The worker has died.
        """
        await self._changes.until(lambda: not any(self.count()))

    async def release(self) -> None:
        """Start work again, from the next poll of the worker."""
        self._held = False
        self._changes.beat()

    def running(self) -> Iterator[Running]:
        """The jobs that are not done, oldest first."""
        return iter(list(self._running.values()))

    @property
    def overdue(self) -> int:
        """Cron jobs that are due and withheld."""
        now = datetime.now(self._worker.timezone)
        return sum(
            self._held and job.next_run is not None and job.next_run <= now
            for job in self._worker.cron_jobs
        )

    def _check_alive(self) -> None:
        """It is dead, or dies at its next poll, if a job's outcome was not stored."""
        worker = self._worker
        for task in (worker.main_task, *worker.tasks.values()):
            if task is None or not task.done() or task.cancelled():
                continue
            if (exc := task.exception()) is not None:
                raise SourceUnavailable(f"the worker has died: {failure_text(exc)}")

    # In the place of the worker's own

    async def _start_jobs(self, ids: Sequence[bytes]) -> None:
        """One at a time, so that a hold waits for one at most."""
        for id in ids:
            async with self._turn:
                if self._held or self._worker.job_counter >= self._worker.max_jobs:
                    return
                self._starting = Counts(jobs=1)
                try:
                    await self._start([id])
                    self._note(id.decode())
                finally:
                    self._ended_starting()

    async def _run_cron(
        self, now: datetime, delay: float, num_windows: int = 2
    ) -> None:
        async with self._turn:
            if self._held:
                self._plan(now)
                return
            self._starting = Counts(schedules=1)
            try:
                before = _unique_fires(self._worker.cron_jobs)
                await self._skip_fired(before, now)
                before = _unique_fires(self._worker.cron_jobs)
                await self._fire(now, delay, num_windows)
                after = _unique_fires(self._worker.cron_jobs)
                for fired in before.keys() - after.keys():
                    await self._worker.pool.set(self._key(fired), 1, ex=FIRED_FOR)
            finally:
                self._ended_starting()

    async def _heart_beat(self) -> None:
        """Called at each poll, held or not."""
        lease = self._worker.in_progress_timeout_s
        if time.monotonic() - self._renewed >= RENEWAL * lease:
            self._renewed = time.monotonic()
            try:
                await self._renew(round(lease * 1000))
            except (RedisError, OSError) as exc:  # which is not to end the worker
                logger().warning("leases not renewed", error=failure_text(exc))
        await self._beat()

    async def _renew(self, milliseconds: int) -> None:
        """What has ended has no lease that could be made longer."""
        ids = [job.id for task, job in self._running.items() if not task.done()]
        async with self._worker.pool.pipeline(transaction=False) as leases:
            for id in ids:
                leases.pexpire(f"{in_progress_key_prefix}{id}", milliseconds)
            await leases.execute()

    def _plan(self, now: datetime) -> None:
        """Let one that was born held know its next fires, as arq would."""
        for job in self._worker.cron_jobs:
            if job.next_run is None and job.run_at_startup:
                job.next_run = now
            elif job.next_run is None:
                job.calculate_next(now)

    async def _skip_fired(self, fires: Mapping[str, CronJob], now: datetime) -> None:
        """Pass over what another release has enqueued while this one was held."""
        for fire, job in fires.items():
            while job.next_run <= now and await self._worker.pool.exists(
                self._key(fire)
            ):
                job.calculate_next(job.next_run)
                fire = _fire_of(job)

    def _note(self, id: str) -> None:
        task = self._worker.tasks.get(id)
        if task is not None and not task.done() and task not in self._running:
            self._running[task] = Running(id, time.monotonic())
            self._leased.add(task)
            task.add_done_callback(self._ended)

    async def _on_job_start(self, ctx: dict[str, Any]) -> None:
        self._leased.discard(asyncio.current_task())
        self._changes.beat()
        if self._begin is not None:
            await self._begin(ctx)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        self._leased.discard(task)
        self._changes.beat()

    def _ended_starting(self) -> None:
        self._starting = Counts()
        self._changes.beat()

    def _key(self, fire: str) -> str:
        return f"{FIRED}:{self._worker.queue_name}:{fire}"


def run_worker(
    settings: Any, directory: Path | str, *, name: str | None = None, **options: Any
) -> None:
    """Run a worker as arq's own command does, with an agent in that directory.

    `name` tells the workers in it apart; it is the process id if not given.
    `options` go to the worker, before those of the settings.

    Raises:
        SettingsError: The place is not private, or somebody answers there.
    """
    asyncio.run(_run(settings, directory, name, options))


async def _run(
    settings: Any, directory: Path | str, name: str | None, options: dict[str, Any]
) -> None:
    worker = create_worker(settings, **options)
    async with Agent(ArqWorker(worker), directory, name):
        try:
            await worker.async_run()
        except asyncio.CancelledError:
            # A signal cancels the task of the worker, and not this one.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            await worker.close()


def _unique_fires(jobs: Sequence[CronJob]) -> dict[str, CronJob]:
    """What each would enqueue next, of those that run once among all workers."""
    return {
        _fire_of(job): job
        for job in jobs
        if job.unique and job.job_id is None and job.next_run is not None
    }


def _fire_of(job: CronJob) -> str:
    """The id under which arq enqueues its next run."""
    return f"{job.name}:{to_unix_ms(job.next_run)}"
