"""The gate of a Celery worker, without the worker; with it: tests/engines."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from drainmw.sources.celeryworker import Gate, GateStep, count


class Request:
    """One message that was leased."""

    name = "work"
    time_start = None

    def __init__(self, id: str) -> None:
        self.id = id
        self.acknowledged = False
        self.rejected = 0

    def reject(self, requeue: bool) -> None:
        assert requeue
        self.acknowledged = True
        self.rejected += 1


class Worker:
    """What the gate knows of Celery's consumer; its pool runs nothing."""

    def __init__(self) -> None:
        self.to_pool: list[Request] = []
        self.on_task_request = self.to_pool.append
        self.queues = ["celery", "mails"]
        self.task_buckets: dict[str, Any] = {}
        self.controller = SimpleNamespace(semaphore=None)
        self.pool = SimpleNamespace(on_apply=None)
        self.app, self.hostname = "the app", "blue@host"
        self.channel = SimpleNamespace()
        transport = SimpleNamespace(driver_type="amqp")
        self.connection = SimpleNamespace(transport=transport)

    @property
    def task_consumer(self) -> Any:
        queues = [SimpleNamespace(name=name) for name in self.queues]
        return SimpleNamespace(queues=queues, channel=self.channel)

    def cancel_task_queue(self, name: str) -> None:
        self.queues.remove(name)

    def add_task_queue(self, name: str) -> None:
        self.queues.append(name)


@pytest.fixture
def worker() -> Iterator[Worker]:
    state.reset_state()
    yield Worker()
    state.reset_state()


@pytest.fixture
def gate(worker: Worker) -> Gate:
    return Gate(worker)


def reserved(id: str) -> Request:
    request = Request(id)
    state.task_reserved(request)
    return request


def test_an_open_gate_lets_through_what_comes(gate: Gate, worker: Worker) -> None:
    request = reserved("a")
    gate.take(request)
    assert worker.to_pool == [request]
    assert gate.answer()["jobs"] == 1


def test_what_comes_to_a_held_gate_goes_back(gate: Gate, worker: Worker) -> None:
    gate.hold(["blue"])
    request = reserved("a")
    gate.take(request)
    assert worker.to_pool == []
    assert (request.rejected, gate.handed_back) == (1, 1)
    assert gate.answer()["jobs"] == 0


def test_a_queue_that_is_added_to_a_held_gate_is_left_as_it_brings_something(
    gate: Gate, worker: Worker
) -> None:
    """By `celery control add_consumer`; what goes back would come back at once."""
    gate.hold(["blue"])
    worker.add_task_queue("extra")
    gate.take(reserved("a"))
    assert worker.queues == []
    gate.release("blue")
    assert sorted(worker.queues) == ["celery", "extra", "mails"]


def test_what_has_gone_back_goes_nowhere_else(gate: Gate, worker: Worker) -> None:
    """Its timer rings after all, in a thread of its own."""
    request = reserved("a")
    gate.hold(["blue"])
    gate.release("blue")
    state.task_reserved(request)
    gate.take(request)
    assert worker.to_pool == []
    assert (request.rejected, gate.handed_back) == (1, 1)
    assert gate.answer()["jobs"] == 0


def test_what_runs_stays_and_is_named_oldest_first(gate: Gate) -> None:
    requests = [reserved("a"), reserved("b")]
    for age, request in enumerate(requests):
        request.time_start = 1000.0 - age  # type: ignore[assignment]
        state.task_accepted(request)
    gate.hold(["blue"])
    answer = gate.answer()
    assert (answer["jobs"], answer["handed_back"]) == (2, 0)
    assert [id for id, _ in answer["running"]] == ["work[b]", "work[a]"]


def test_what_has_ended_in_a_thread_is_over_whatever_celery_remembers(
    gate: Gate, worker: Worker
) -> None:
    """After a SystemExit it takes a task for one that runs, for ever."""
    future: Future[None] = Future()
    result = SimpleNamespace(f=future)
    worker.pool.on_apply = lambda accept_callback: result
    gate.watch(worker.pool)
    request = reserved("a")
    state.task_accepted(request)
    worker.pool.on_apply(accept_callback=SimpleNamespace(__self__=request))
    assert gate.answer()["jobs"] == 1
    future.set_exception(SystemExit())
    assert (gate.answer()["jobs"], gate.answer()["running"]) == (0, [])


def test_who_waits_for_a_slot_goes_back_and_taken_slots_stay_taken(
    gate: Gate, worker: Worker
) -> None:
    semaphore = worker.controller.semaphore = LaxBoundedSemaphore(2)
    got: list[int] = []
    for number in range(3):
        semaphore.acquire(got.append, number)
    request = reserved("a")
    gate.hold(["blue"])
    assert (request.rejected, semaphore.value) == (1, 0)
    semaphore.release()
    assert (got, semaphore.value) == ([0, 1], 1)


def test_every_queue_is_left_and_comes_back(gate: Gate, worker: Worker) -> None:
    gate.hold(["blue"])
    assert worker.queues == []
    worker.queues.append("added meanwhile")
    gate.hold(["blue"])
    assert worker.queues == []
    gate.release("blue")
    assert sorted(worker.queues) == ["added meanwhile", "celery", "mails"]


def test_a_queue_that_cannot_come_back_is_tried_again(
    gate: Gate, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise OSError("no broker")

    gate.hold(["blue"])
    with monkeypatch.context() as away:
        away.setattr(worker, "add_task_queue", fail)
        with pytest.raises(OSError, match="no broker"):
            gate.release("blue")
    gate.release("blue")
    assert sorted(worker.queues) == ["celery", "mails"]


def test_the_count_of_handed_back_jobs_starts_with_the_first_holder(
    gate: Gate,
) -> None:
    reserved("a")
    gate.hold(["blue"])
    gate.hold(["other"])
    assert gate.answer()["handed_back"] == 1
    gate.release()
    gate.hold(["blue"])
    assert gate.answer()["handed_back"] == 0


def test_a_fetch_that_the_broker_may_still_answer_is_told(
    gate: Gate, worker: Worker
) -> None:
    assert gate.answer()["pulling"] is False
    worker.channel._in_poll = object()
    assert gate.answer()["pulling"] is True


def test_what_was_held_stays_held_when_the_connection_comes_back(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the first hold may have broken off with it, half done."""
    asked = []

    def holders_of(app: str, node: str) -> list[str]:
        asked.append((app, node))
        return ["blue"]

    monkeypatch.setattr("drainmw.sources.celeryworker.holders_of", holders_of)
    step = GateStep(worker)
    step.start(worker)
    assert worker.queues == []
    worker.queues.append("celery")
    step.start(worker)
    assert worker.queues == []
    assert asked == [("the app", "blue@host")]


def test_a_worker_without_a_gate_says_what_is_missing() -> None:
    answer = count(SimpleNamespace(consumer=SimpleNamespace()))
    assert answer == {"missing": "drainable(app)"}
