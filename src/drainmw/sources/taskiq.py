"""Taskiq: receivers on a Redis list or a Redis stream, here or in their own processes.

They differ from Taskiq's in how they listen. A hold ends the pull and gives back
what has not started: a pop from a list is waited for and put back, what a stream has
delivered ahead is sent to it again. A message counts from the pull until its
callback has returned, which acknowledges it; and as long as its call goes on in a
thread or a process, which no timeout of Taskiq's ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from drainmw.agent import Agent
from drainmw.errors import Misuse, SourceUnavailable
from drainmw.flag import Pulse
from drainmw.log import logger
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.doers import doers
from drainmw.sources.extras import extra
from drainmw.sources.taskiqcalls import Calls, current_lease
from drainmw.sources.taskiqqueues import Message, Pull, Step, data_of, queue_of
from drainmw.text import failure_text

with extra("taskiq"):
    from taskiq.abc.broker import AsyncBroker
    from taskiq.receiver import Receiver

RENEWAL = 0.25  # of a lease, after which it is renewed: three attempts may fail
LEAST = 0.05  # seconds between two renewals


class TaskiqWorkers:
    """All receivers of one broker in this event loop."""

    intake: Intake = "pull"

    def __init__(self, broker: AsyncBroker, *, name: str = "taskiq") -> None:
        """`broker` is a RedisStreamBroker or a ListQueueBroker.

        Raises:
            Misuse: It is another, of which a drain could not tell what it has leased.
        """
        self.name = name
        self.handed_back = 0
        self._broker = broker
        self._queue = queue_of(broker)
        self._open, self._shut = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._leases: dict[object, _Lease] = {}
        self._waiting: set[object] = set()  # leases that have not started
        self._pulling: set[object] = set()  # receivers to whom something may come
        self._trouble: Exception | None = None
        self._changes = Pulse()
        self._listeners = 0
        self._keeper: asyncio.Task[None] | None = None  # renews the leases

    @property
    def receiver(self) -> type[Receiver]:
        """The class of receivers to listen with, in this process."""
        return type("DrainReceiver", (_Receiver,), {"workers": self})

    def receiver_with_agent(
        self, directory: Path | str, name: str | None = None
    ) -> type[Receiver]:
        """The class of receivers for a process of its own, with an agent in there."""
        members = {"workers": self, "agent": (directory, name)}
        return type("DrainReceiver", (_Receiver,), members)

    async def hold(self) -> None:
        """Start nothing more: whatever has not started goes back.

        Raises:
            Misuse: A receiver of Taskiq's own listens here, which cannot be held.
        """
        self._open.clear()
        self._shut.set()
        others = [r for r in doers(Receiver) if not isinstance(r, _Receiver)]
        if any(receiver.broker is self._broker for receiver in others):
            raise Misuse(
                "a receiver of this broker is not of this source: "
                "give run_receiver_task receiver_cls=workers.receiver"
            )

    def count(self) -> Counts:
        """The messages whose callback has not returned.

        Raises:
            SourceUnavailable: A receiver has died, and none has listened since.
        """
        if self._trouble is not None:
            why = failure_text(self._trouble)
            raise SourceUnavailable(f"a receiver of {self.name} has died: {why}")
        return Counts(jobs=len(self._leases))

    async def settled(self) -> None:
        """Return when no message is left, and none is on its way here.

        Raises:
            SourceUnavailable: A receiver has died, and none has listened since.
        """
        await self._changes.until(lambda: not (any(self.count()) or self._pulling))

    async def release(self) -> None:
        """Listen again."""
        self._shut.clear()
        self._open.set()
        self._changes.beat()

    def running(self) -> Iterator[Running]:
        """The messages that are here, oldest first, by the ids of their tasks."""
        for message, since in list(self._leases.values()):
            with contextlib.suppress(Exception):  # one that cannot be parsed
                task = self._broker.formatter.loads(data_of(message))
                yield Running(task.task_id, since)

    # What the receivers tell

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Leases are renewed meanwhile, held or not, and until the last task ended."""
        self._listeners += 1
        is_kept = self._keeper is not None and not self._keeper.done()
        if self._queue.lease is not None and not is_kept:
            keeping = self._keep(self._queue.lease)
            self._keeper = asyncio.create_task(keeping, name="drainmw taskiq leases")
        try:
            yield
        finally:
            self._listeners -= 1
            self._let_go()

    async def _keep(self, lease: float) -> None:
        while True:
            await asyncio.sleep(max(LEAST, lease * RENEWAL))
            try:
                await self._queue.renew()
            except Exception as exc:  # of any kind: the next one may succeed
                logger().warning("leases not renewed", error=failure_text(exc))

    def _let_go(self) -> None:
        """Renew no more, once nobody listens and nothing runs."""
        if not (self._listeners or self._leases):
            self._queue.forget()
            if self._keeper is not None:
                self._keeper.cancel()
                self._keeper = None

    @contextlib.asynccontextmanager
    async def _pull(self) -> AsyncIterator[Pull]:
        """A pull; afterwards nothing is on its way here, and nothing waits here."""
        key = object()
        self._pulling.add(key)
        try:
            async with self._queue.pull() as pull:
                yield pull
            await self._changes.until(lambda: not self._waiting or self._open.is_set())
            await self._clear_up()
        finally:
            self._pulling.discard(key)
            self._changes.beat()

    async def _clear_up(self) -> None:
        """Give back what nobody has pulled, also of a receiver that died."""
        self.handed_back += await self._queue.give_back_unread()
        self._trouble = None
        self._changes.beat()

    def _take(self, message: Message) -> object:
        lease = object()
        self._leases[lease] = _Lease(message, time.monotonic())
        self._waiting.add(lease)
        return lease

    def _may_start(self, lease: object) -> bool:
        if not self._open.is_set():
            return False
        self._waiting.discard(lease)
        self._changes.beat()
        return True

    def _end(self, lease: object) -> None:
        self._waiting.discard(lease)
        self._queue.ended(self._leases.pop(lease).message)
        self._changes.beat()
        self._let_go()

    async def _give_back(self, message: Message) -> None:
        self.handed_back += await self._queue.give_back(message)

    def _fail(self, exc: Exception) -> None:
        self._trouble = exc
        self._changes.beat()


class _Lease(NamedTuple):
    message: Message
    since: float  # monotonic seconds


class _Receiver(Receiver):
    """Listens while its source is open. Taskiq makes it, and runs it."""

    workers: ClassVar[TaskiqWorkers]
    agent: ClassVar[tuple[Path | str, str | None] | None] = None

    def __init__(
        self, broker: AsyncBroker, executor: Executor | None = None, **options: Any
    ) -> None:
        super().__init__(broker, executor, **options)
        self.executor = self._calls = Calls(executor or ThreadPoolExecutor())

    async def listen(self, finish_event: asyncio.Event) -> None:
        """As Taskiq's own, but for holds."""
        async with contextlib.AsyncExitStack() as ends:
            if self.agent is not None:
                directory, name = self.agent
                await ends.enter_async_context(Agent(self.workers, directory, name))
            ends.enter_context(self.workers._listening())
            try:
                if self.run_startup:
                    await self.broker.startup()
                await self._listen(finish_event)
            except Exception as exc:
                self.workers._fail(exc)
                raise
        if self.on_exit is not None:
            self.on_exit(self)

    async def _listen(self, finish: asyncio.Event) -> None:
        tasks: set[asyncio.Task[None]] = set()
        most = self.max_tasks_to_execute
        taken = 0
        while not finish.is_set() and (not most or taken < most):
            if not self.workers._open.is_set():  # it may have been held at its birth
                await self.workers._clear_up()
                async with _first(finish, self.workers._open) as go:
                    await go
                continue
            async with _first(finish, self.workers._shut) as stop:
                room = None if not most else most - taken
                taken += await self._pull_until(stop, tasks, room)
        if tasks:
            await asyncio.wait(tasks, timeout=self.wait_tasks_timeout)

    async def _pull_until(
        self,
        stop: asyncio.Task[None],
        tasks: set[asyncio.Task[None]],
        most: int | None,
    ) -> int:
        """Start a task for each message; how many there were."""
        number = 0
        step: Step | None = None
        async with self.workers._pull() as pull:
            try:
                while number != most and await _acquired(self.sem_prefetch, stop):
                    step = asyncio.create_task(pull.step())
                    await _either(step, stop)
                    if not step.done():
                        break
                    message, step = step.result(), None
                    lease = self.workers._take(message)
                    task = asyncio.create_task(self._work(lease, message))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    number += 1
            finally:
                if step is not None:
                    self.sem_prefetch.release()
                    await _whole(self._close(pull, step))
        return number

    async def _close(self, pull: Pull, step: Step) -> None:
        late = await pull.close(step)
        if late is not None:
            await self.workers._give_back(late)

    async def _work(self, lease: object, message: Message) -> None:
        current_lease.set(lease)  # in this task, which has a context of its own
        if self.sem is None:  # no bound on what runs: the other is on what waits
            self.sem_prefetch.release()
        try:
            if not await self._has_slot():
                await self.workers._give_back(message)
                return
            try:
                if self.workers._may_start(lease):
                    await self.callback(message)
                else:
                    await self.workers._give_back(message)
            finally:
                if self.sem is not None:
                    self.sem.release()
        finally:
            if self.sem is not None:
                self.sem_prefetch.release()
            self._calls.after(lease, self.workers._end)

    async def _has_slot(self) -> bool:
        """Wait for one; false if it is not to start here any more."""
        if self.sem is None:
            return True
        async with _first(self.workers._shut) as stop:
            return await _acquired(self.sem, stop)


@contextlib.asynccontextmanager
async def _first(*events: asyncio.Event) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done once one of them is set."""

    async def wait() -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()

    task = asyncio.create_task(wait())
    try:
        yield task
    finally:
        task.cancel()


async def _acquired(room: asyncio.Semaphore, stop: asyncio.Task[None]) -> bool:
    """Whether there was room before the stop."""
    if stop.done():
        return False
    if not room.locked():
        return await room.acquire()
    entry = asyncio.ensure_future(room.acquire())
    await _either(entry, stop)
    if entry.done() and not stop.done():
        return True
    if not entry.cancel():
        room.release()
    return False


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Do it to the end; a cancellation is passed on afterwards."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait({task})


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> None:
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
