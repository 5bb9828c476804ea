"""What the adapters of Celery take; what they do is in tests/engines."""

import threading
import time
from typing import Any, cast

import pytest
from celery import Celery

from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.sources.base import Counts, WorkSource
from drainmw.sources.celery import (
    TWIN_PATIENCE,
    CeleryBeat,
    CeleryWorkers,
    drainable,
)
from drainmw.sources.celeryworker import GateStep


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://")


def test_workers_are_pulled_from_and_a_beat_is_a_clock(app: Celery) -> None:
    workers = CeleryWorkers(app, ["blue@host", "blue2@host"])
    beat = CeleryBeat(app, "celerybeat@blue")
    assert [isinstance(source, WorkSource) for source in (workers, beat)] == [True] * 2
    assert (workers.name, workers.intake) == ("celery", "pull")
    assert (beat.name, beat.intake) == ("celery beat", "clock")


def test_one_name_is_enough_for_one_worker(app: Celery) -> None:
    assert CeleryWorkers(app, "blue@host", name="mails").name == "mails"


@pytest.mark.parametrize("nodes", [[], "blue", ["blue@host", "green"]])
def test_what_names_no_node_is_refused(app: Celery, nodes: list[str]) -> None:
    with pytest.raises(Misuse, match=r"(blue|green)@host"):
        CeleryWorkers(app, nodes)


@pytest.mark.parametrize("wrong", [None, "redis://", Celery])
def test_what_is_no_celery_app_is_refused(wrong: Any) -> None:
    makes = (drainable, lambda app: CeleryWorkers(app, "a@b"))
    for make in makes:
        with pytest.raises(Misuse, match=r"takes a Celery app.* not (None|str|the cl)"):
            make(wrong)


def test_a_beat_is_named_by_a_text(app: Celery) -> None:
    with pytest.raises(Misuse, match=r"such as blue@host, not \['beat@blue'\]"):
        CeleryBeat(app, cast(Any, ["beat@blue"]))


def test_nodes_that_nobody_can_ask_are_refused(app: Celery) -> None:
    app.conf.worker_enable_remote_control = False
    with pytest.raises(Misuse, match="worker_enable_remote_control must be on"):
        CeleryWorkers(app, "blue@host")


def test_a_broker_that_is_away_is_named_at_once() -> None:
    nowhere = Celery("shop", broker="redis://127.0.0.1:1")
    engine: Any = CeleryWorkers(nowhere, "blue@host").engine
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"broker of blue@host: .* refused"):
        engine.count()
    assert time.monotonic() - began < 3


def test_an_app_is_made_drainable_as_often_as_one_likes(app: Celery) -> None:
    assert drainable(drainable(app)) is app
    assert app.steps["consumer"] == {GateStep}


# What it makes of answers

IDLE = {"process": "1", "held": True, "jobs": 0, "schedules": 0}


class Node:
    """Answers what the test says, in turn, and the last of it for ever."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def broadcast(self, command: str, _: Any, *, callback: Any, **how: Any) -> None:
        assert how["destination"] == ["blue@host"]
        if how["timeout"] == TWIN_PATIENCE:  # who else answers under that name?
            return
        self.asked.append(command.removeprefix("drainmw_"))
        answers = self._answers
        callback({"blue@host": answers.pop(0) if len(answers) > 1 else answers[0]})


def asking(app: Celery, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> Any:
    node = Node(*answers)
    monkeypatch.setattr(app.control, "broadcast", node.broadcast)
    engine: Any = CeleryWorkers(app, "blue@host").engine
    return engine, node


def test_it_has_settled_once_the_broker_owes_no_answer(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling = IDLE | {"pulling": True}
    engine, node = asking(app, monkeypatch, IDLE, IDLE | {"jobs": 1}, pulling, IDLE)
    engine.hold()
    engine.settle()
    assert node.asked == ["hold", "count", "count", "count"]
    engine.release()


def test_a_hold_waits_for_what_the_pool_is_about_to_begin(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = IDLE | {"jobs": 1, "starting": 1}
    engine, node = asking(app, monkeypatch, starting, starting, IDLE | {"jobs": 1})
    engine.hold()
    assert node.asked == ["hold", "count", "count"]
    assert engine.count() == Counts(jobs=1)
    engine.release()


@pytest.mark.parametrize(
    "odd", [{"jobs": None}, {"jobs": -1}, {"schedules": True}, {"process": None}]
)
def test_what_is_no_plain_answer_is_unknown(
    app: Celery, monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    """Of a worker of another version."""
    engine, _ = asking(app, monkeypatch, IDLE | odd)
    with pytest.raises(SourceUnavailable, match="blue@host runs another version"):
        engine.count()


def test_it_stops_to_settle_when_it_is_released(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, node = asking(app, monkeypatch, IDLE | {"jobs": 1})
    engine.hold()
    settling = threading.Thread(target=engine.settle)
    settling.start()
    engine.release()
    settling.join(5)
    assert not settling.is_alive()
    assert node.asked[-1] in ("count", "release")


def test_a_worker_that_started_anew_is_held_anew(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, node = asking(app, monkeypatch, IDLE, IDLE | {"held": False}, IDLE)
    engine.hold()
    engine.settle()
    assert node.asked == ["hold", "count", "hold", "count"]
    engine.release()


def test_one_that_started_anew_while_it_had_jobs_is_unknown(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = asking(
        app, monkeypatch, IDLE | {"jobs": 1}, IDLE | {"process": "2"}, IDLE
    )
    engine.hold()
    with pytest.raises(SourceUnavailable, match="blue@host died while it was held"):
        engine.count()
    engine.release()


def test_one_that_is_asked_after_another_has_followed_it_has_a_twin(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two of one name any may answer first, and the other one may have jobs."""
    engine, _ = asking(app, monkeypatch, IDLE, IDLE | {"process": "2"}, IDLE)
    engine.hold()
    assert engine.count() == Counts()
    with pytest.raises(SourceUnavailable, match="two processes answer as blue@host"):
        engine.count()
    engine.release()
    assert engine.count() == Counts()


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ({"error": "KeyError('drainmw_count')"}, SourceError, "call drainable"),
        ({"missing": "drainable(app)"}, SourceError, "call drainable"),
        ({"error": "OSError(32)"}, SourceUnavailable, "blue@host: OSError"),
    ],
)
def test_a_node_that_cannot_be_held_says_why(
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, str],
    error: type[SourceError],
    why: str,
) -> None:
    engine, _ = asking(app, monkeypatch, answer)
    with pytest.raises(SourceError, match=why) as caught:
        engine.count()
    assert type(caught.value) is error
