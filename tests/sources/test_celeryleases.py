"""When a Celery worker renews which leases; on a broker: tests/engines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from drainmw.sources.celeryleases import LEAST, Leases


class Worker:
    """What is used of Celery's consumer, with a timer that never rings by itself."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(driver_type="redis")
        self.connection = SimpleNamespace(transport=self.transport)
        self.task_consumer = SimpleNamespace(channel=Channel())
        self.timer = self
        self.timers: list[Timer] = []

    def call_repeatedly(self, pause: float, act: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(pause, act))
        return self.timers[-1]

    @property
    def pauses(self) -> list[float]:
        return [timer.pause for timer in self.timers if not timer.canceled]


class Timer:
    def __init__(self, pause: float, act: Callable[[], None]) -> None:
        self.pause = pause
        self.act = act
        self.canceled = False

    def cancel(self) -> None:
        self.canceled = True


class Channel:
    ack_emulation = True
    visibility_timeout = 3600
    unacked_index_key = "unacked_index"
    connection_errors = (ConnectionError,)

    def __init__(self) -> None:
        self.renewed: list[list[str]] = []
        self.is_away = False

    @contextmanager
    def conn_or_acquire(self) -> Iterator["Channel"]:
        yield self

    def zadd(self, key: str, scores: dict[str, float], *, xx: bool) -> None:
        if self.is_away:
            raise ConnectionError("redis://:secret@host is away")
        assert (key, xx) == (self.unacked_index_key, True)
        self.renewed.append(sorted(scores))


def request(tag: str, *, acknowledged: bool = False) -> Any:
    return SimpleNamespace(
        acknowledged=acknowledged, message=SimpleNamespace(delivery_tag=tag)
    )


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_leases_are_renewed_four_times_in_their_time(worker: Worker) -> None:
    Leases(worker, list).start()
    assert worker.pauses == [900.0]


def test_a_lease_of_no_time_keeps_no_worker_busy(worker: Worker) -> None:
    worker.task_consumer.channel.visibility_timeout = 0
    Leases(worker, list).start()
    assert worker.pauses == [LEAST]


def test_one_timer_is_left_when_the_connection_comes_back(worker: Worker) -> None:
    leases = Leases(worker, list)
    leases.start()
    leases.start()
    assert len(worker.pauses) == 1
    leases.stop()
    leases.stop()
    assert worker.pauses == []


@pytest.mark.parametrize("without", ["redis", "emulation"])
def test_a_broker_without_such_leases_is_left_alone(
    worker: Worker, without: str
) -> None:
    if without == "redis":
        worker.transport.driver_type = "amqp"
        worker.task_consumer.channel = SimpleNamespace()
    else:
        worker.task_consumer.channel.ack_emulation = False
    Leases(worker, list).start()
    assert worker.timers == []


def test_what_is_acknowledged_is_no_lease_any_more(worker: Worker) -> None:
    held = [request("a"), request("b", acknowledged=True), request("c")]
    channel = worker.task_consumer.channel
    Leases(worker, lambda: held).renew()
    assert channel.renewed == [["a", "c"]]
    Leases(worker, lambda: [held[1]]).renew()
    assert channel.renewed == [["a", "c"]]


def test_a_broker_that_is_away_is_told_of_and_asked_again(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    channel = worker.task_consumer.channel
    channel.is_away = True
    leases = Leases(worker, lambda: [request("a")])
    leases.renew()
    assert "leases not renewed leases=1" in caplog.text
    assert "secret" not in caplog.text
    channel.is_away = False
    leases.renew()
    assert channel.renewed == [["a"]]
