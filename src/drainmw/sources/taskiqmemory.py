"""Taskiq's broker in memory: its tasks run where they are sent, as they are sent.

So it is fed by requests and jobs, and nobody else can take what it has accepted.
The source stands before the method that sends and the one that runs a task, of the
broker it was given.
"""

from __future__ import annotations

import contextvars
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from drainmw.errors import IntakeRefused, Misuse
from drainmw.sources.extras import extra
from drainmw.sources.feeding import Work, current
from drainmw.sources.jobs import JobSource
from drainmw.sources.taskiqcalls import Calls, current_lease
from drainmw.text import kind_of

with extra("taskiq"):
    from taskiq import InMemoryBroker
    from taskiq.abc.middleware import TaskiqMiddleware
    from taskiq.acks import AckableMessage
    from taskiq.message import BrokerMessage, TaskiqMessage

_accepted: contextvars.ContextVar[Work | None] = contextvars.ContextVar(
    "drainmw_taskiq_accepted", default=None
)
"""What is being sent, until its coroutine is made."""


class TaskiqInMemory(JobSource):
    """A push source of the tasks of one broker, from their sending until they ended."""

    def __init__(
        self,
        broker: InMemoryBroker,
        name: str = "taskiq in memory",
        *,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] | None = None,
    ) -> None:
        """`broker` is one to which nothing has been sent.

        Raises:
            Misuse: It is another broker, has a source, or runs tasks already.
        """
        if not isinstance(broker, InMemoryBroker):
            raise Misuse(
                f"TaskiqInMemory takes an InMemoryBroker, not {kind_of(broker)}"
            )
        if "kick" in vars(broker) or broker._running_tasks:
            raise Misuse("TaskiqInMemory takes a broker before anything is sent to it")
        super().__init__(name, clock=clock, is_fed=is_fed)
        self._unbegun: dict[Work, weakref.finalize[..., Any]] = {}
        self._send, self._run = broker.kick, broker.receiver.callback
        # Of this one broker; a subclass would have to be chosen by the user.
        broker.kick = self._kick  # type: ignore[method-assign]
        broker.receiver.callback = self._callback  # type: ignore[method-assign]
        broker.receiver.executor = self._calls = Calls(broker.executor)
        doorman = _Doorman(self)
        doorman.set_broker(broker)
        broker.middlewares.insert(0, doorman)

    def check(self, id: str) -> None:
        """Look whether a task may be sent now.

        Raises:
            IntakeRefused: The source is held, and this is no work in flight.
        """
        if self._held and not self._feeders.may_feed():
            raise IntakeRefused(f"job {id}")

    # In the place of the broker's own

    async def _kick(self, message: BrokerMessage) -> None:
        job = self._enter(message.task_id)
        token, own = current.set(job), _accepted.set(job)
        try:
            await self._send(message)
        finally:
            if _accepted.get() is job:  # it was not even made to run
                self._end(job)
            _accepted.reset(own)
            current.reset(token)

    def _callback(
        self, message: bytes | AckableMessage, raise_err: bool = False
    ) -> Coroutine[Any, Any, None]:
        job = _accepted.get()
        _accepted.set(None)
        coroutine = self._counted(job, message, raise_err)
        if job is not None:
            # One that is cancelled before its first step never comes to its end.
            unbegun = weakref.finalize(coroutine, self._forget, job)
            unbegun.atexit = False
            self._unbegun[job] = unbegun
        return coroutine

    def _forget(self, job: Work) -> None:
        del self._unbegun[job]
        self._end(job)

    async def _counted(
        self, job: Work | None, message: bytes | AckableMessage, raise_err: bool
    ) -> None:
        if job is None:
            return await self._run(message, raise_err)
        self._unbegun.pop(job).detach()
        own = current_lease.set(job)
        try:
            await self._run(message, raise_err)
        finally:
            self._calls.after(job, self._end)
            current_lease.reset(own)


class _Doorman(TaskiqMiddleware):
    """Refuses before other middlewares, and by our error: a `kiq` hides what the
    broker raises in one of its own."""

    def __init__(self, source: TaskiqInMemory) -> None:
        super().__init__()
        self._source = source

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        self._source.check(message.task_id)
        return message
