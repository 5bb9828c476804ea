"""The inside of a Celery worker: a gate between its broker and its pool.

A worker fetches more than it can run at once, and Celery's own `cancel_consumer`
lets it run all of that. Here a hold closes the gate first, so that nothing passes
it any more, then ends consuming, and then gives back to the broker what the pool
has not begun: what waits for a slot, for its ETA or for its rate limit.

`drainmw.sources.celery.drainable` puts the gate into the workers of an app. It is
reached by Celery's remote control, as `drainmw_hold`, `drainmw_release` and
`drainmw_count`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from drainmw.sources.celeryholds import holders_of
from drainmw.sources.celeryleases import Leases
from drainmw.sources.extras import extra

with extra("celery"):
    from celery import bootsteps
    from celery.worker import state as worker
    from celery.worker.consumer.control import Control
    from celery.worker.consumer.tasks import Tasks
    from celery.worker.control import control_command, inspect_command

RUNNING_MAXIMUM = 20  # in an answer
NAME_MAXIMUM = 128  # characters of each there

Request = Any
"""Celery's `Request`: one message that this worker has leased."""


class Gate:
    """Who holds this worker, and what it has leased. One in a process.

    It is used in the worker's main thread. Where Celery has no event loop, its
    timer comes in a thread of its own.
    """

    def __init__(self, consumer: Any) -> None:
        self.handed_back = 0
        """Leases that went back unstarted, since the first of the present holders."""
        self._process = uuid.uuid4().hex  # a process id may come again
        self._consumer = consumer
        self._to_pool: Callable[[Request], object] = consumer.on_task_request
        self._holders: set[str] = set()
        self._queues: list[str] = []
        """What was consumed when the first hold came."""
        self._submitted: WeakKeyDictionary[Request, Any] = WeakKeyDictionary()
        """What the pool was given; its `Future` in a pool of threads, else `None`."""
        self._lock = threading.RLock()

    # In life, in this order

    def watch(self, pool: Any) -> None:
        """See what the pool is given, from now on."""
        apply: Callable[..., Any] = pool.on_apply

        def on_apply(*args: Any, accept_callback: Any = None, **options: Any) -> Any:
            result = apply(*args, accept_callback=accept_callback, **options)
            request = getattr(accept_callback, "__self__", None)
            if request is not None:
                self._submitted[request] = getattr(result, "f", None)
            return result

        pool.on_apply = on_apply

    def take(self, request: Request) -> None:
        """Where a request goes that has come: to the pool, or back."""
        with self._lock:
            if request.acknowledged:  # given back while its timer was about to ring
                worker.task_ready(request)
            elif self._holders:
                self._give_back(request)
                self._stop_consuming()  # of a queue that was added meanwhile
            else:
                self._to_pool(request)

    def hold(self, holders: Iterable[str]) -> None:
        """Close for them. What has been leased and not begun goes back at once."""
        with self._lock:
            if not self._holders:
                self.handed_back = 0
            self._holders.update(holders)
            if self._holders:
                self._stop_consuming()
                self._give_back_unbegun()

    def release(self, holder: str | None = None) -> None:
        """Open, once nobody else holds it; without a name for everybody."""
        with self._lock:
            if holder is None:
                self._holders.clear()
            self._holders.discard(holder or "")
            while self._queues and not self._holders:
                self._consumer.add_task_queue(self._queues[-1])
                self._queues.pop()

    def answer(self) -> dict[str, Any]:
        """What is told to whoever asks."""
        with self._lock:
            now = time.time()
            leased = self._leased()
            active = leased & set(_members(worker.active_requests))
            started = [(r.time_start or now, _named(r)) for r in active]
            oldest = sorted(started)[:RUNNING_MAXIMUM]
            return {
                "process": self._process,
                "held": bool(self._holders),
                "jobs": len(leased),
                "schedules": 0,
                "starting": sum(1 for _ in self._starting()),
                "pulling": self._is_pulling(),
                "handed_back": self.handed_back,
                "running": [[id, max(0.0, now - start)] for start, id in oldest],
            }

    # What it knows

    def leased(self) -> set[Request]:
        """All that would be lost, or come late, if the process died now."""
        with self._lock:
            return self._leased()

    def _leased(self) -> set[Request]:
        """Of what is in a thread only that knows the end.

        It acknowledges late tasks after Celery has forgotten them; and what has ended
        by an exception that is none to Celery, such as SystemExit, Celery never
        forgets.
        """
        threads = {r: f.done() for r, f in self._given() if f}
        known = {
            *_members(worker.reserved_requests),
            *_members(worker.active_requests),
            *_members(worker.scheduled_requests),
            *(request for bucket in self._buckets() for request in bucket),
            *threads,
        }
        return {request for request in known if not threads.get(request)}

    def _starting(self) -> Iterator[Request]:
        """What the pool has and has not begun."""
        active = set(_members(worker.active_requests))
        reserved = set(_members(worker.reserved_requests))
        return (r for r, _ in self._given() if r in reserved and r not in active)

    def _given(self) -> list[tuple[Request, Any]]:
        return list(self._submitted.items())

    def _buckets(self) -> list[list[Request]]:
        """What waits for its task's rate limit."""
        buckets = self._consumer.task_buckets.values()
        return [[r for r, _ in _members(b.contents)] for b in buckets if b]

    def _is_pulling(self) -> bool:
        """Whether the broker may still answer a fetch, as Redis does for a second.

        What it answers goes back; but it would be lost with the process.
        """
        return bool(getattr(self._consumer.task_consumer.channel, "_in_poll", None))

    # What it does

    def _stop_consuming(self) -> None:
        for queue in list(self._consumer.task_consumer.queues):
            if queue.name not in self._queues:
                self._queues.append(queue.name)
            self._consumer.cancel_task_queue(queue.name)

    def _give_back_unbegun(self) -> None:
        for bucket in list(self._consumer.task_buckets.values()):
            while bucket and bucket.contents:
                self._give_back(bucket.pop()[0])
        for request in _members(worker.scheduled_requests):
            self._consumer.timer.cancel(request._eta_timer_entry)
            self._consumer.qos.decrement_eventually()  # its ETA had incremented it
            self._give_back(request)
        self._empty_the_queue_for_slots()
        active = set(_members(worker.active_requests))
        submitted = dict(self._given())
        for request in set(_members(worker.reserved_requests)) - active:
            future = submitted.get(request)
            if request not in submitted or (future and future.cancel()):
                self._give_back(request)

    def _empty_the_queue_for_slots(self) -> None:
        """Those who wait for a process are known as reserved and not submitted."""
        semaphore = self._consumer.controller.semaphore
        if semaphore is not None:
            free = semaphore.value
            semaphore.clear()  # which frees all slots, the taken ones too
            semaphore.value = free

    def _give_back(self, request: Request) -> None:
        if not request.acknowledged:
            request.reject(requeue=True)
            self.handed_back += 1
        worker.task_ready(request)


# Celery has no types: its classes and decorators are Any.


class GateStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Puts the gate in, before the worker consumes anything."""

    requires = (Tasks, Control)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        # Tasks reads `on_task_request` when it starts, which is later.
        self._gate = consumer.drainmw = Gate(consumer)
        consumer.on_task_request = self._gate.take
        self._leases = Leases(consumer, self._gate.leased)
        self._is_new = True

    def start(self, consumer: Any) -> None:
        """Called again whenever the connection to the broker was lost."""
        if self._is_new:
            self._gate.watch(consumer.pool)
            self._gate.hold(holders_of(consumer.app, consumer.hostname))
            self._is_new = False
        else:
            self._gate.hold(())  # what was held stays held
        self._leases.start()

    def stop(self, consumer: Any) -> None:
        """Called whenever the connection is lost, and at the end."""
        self._leases.stop()


@control_command(name="drainmw_hold", args=[("holder", str)], signature="HOLDER")  # type: ignore[untyped-decorator]
def hold(state: Any, holder: str) -> dict[str, Any]:
    """Start no task any more; give back what has not begun."""
    return _at(state, lambda gate: gate.hold([holder]))


@control_command(  # type: ignore[untyped-decorator]
    name="drainmw_release", args=[("holder", str)], signature="[HOLDER]"
)
def release(state: Any, holder: str | None = None) -> dict[str, Any]:
    """Start tasks again, once no holder is left."""
    return _at(state, lambda gate: gate.release(holder))


@inspect_command(name="drainmw_count")  # type: ignore[untyped-decorator]
def count(state: Any) -> dict[str, Any]:
    """What this worker has leased and not ended."""
    return _at(state, lambda gate: None)


def _at(state: Any, act: Callable[[Gate], object]) -> dict[str, Any]:
    gate = getattr(state.consumer, "drainmw", None)
    if gate is None:
        return {"missing": "drainable(app)"}
    act(gate)
    return dict(gate.answer())


def _named(request: Request) -> str:
    """For the report; whoever sends a task chooses its id."""
    return f"{request.name}[{request.id}]"[:NAME_MAXIMUM]


def _members(group: Iterable[Any]) -> list[Any]:
    """A copy; a pool's threads change it meanwhile."""
    while True:
        try:
            return list(group)
        except RuntimeError:  # it changed while it was copied
            continue
