"""What is made of an agent's answer, and of what is none."""

import json
from typing import Any

import pytest

from drainmw.sources.agentanswers import Counted, Failure, Held, Settled, understood

COUNTED = {"token": None, "counts": [2, 1]}


def as_line(**answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def test_a_count_is_understood_with_what_newer_agents_may_add() -> None:
    told = understood(
        as_line(**COUNTED, running=[["a", 1.5, "jobs"]], handedBack=3, mood="good"),
        Counted,
    )
    assert isinstance(told, Counted)
    assert (told.counts, told.running) == ((2, 1), [("a", 1.5, "jobs")])
    assert (told.overdue, told.handed_back) == (None, 3)


def test_a_failure_is_one_whatever_was_asked() -> None:
    told = understood(as_line(error="no broker", unavailable=True), Settled)
    assert told == Failure(error="no broker", unavailable=True)
    other = understood(as_line(error="no such question"), Counted)
    assert other == Failure(error="no such question", unavailable=False)


@pytest.mark.parametrize(
    ("answer", "where"),
    [
        ({"counts": [0, 0]}, "token"),
        ({"token": None}, "counts"),
        (COUNTED | {"counts": [-3, 0]}, "counts.0"),
        (COUNTED | {"counts": [0, -1]}, "counts.1"),
        (COUNTED | {"counts": [True, 0]}, "counts.0"),
        (COUNTED | {"counts": ["0", 0]}, "counts.0"),
        (COUNTED | {"counts": [float("nan"), 0]}, "counts.0"),
        (COUNTED | {"counts": [0, 0, 0]}, "counts"),
        (COUNTED | {"counts": None}, "counts"),
        (COUNTED | {"running": [[5, 1.0, "jobs"]]}, "running.0.0"),
        (COUNTED | {"running": [["a", float("inf"), "jobs"]]}, "running.0.1"),
        (COUNTED | {"running": [["a", 1.0, "http"]]}, "running.0.2"),
        (COUNTED | {"handedBack": "many"}, "handedBack"),
        (COUNTED | {"overdue": -1}, "overdue"),
    ],
)
def test_what_is_no_count_is_none(answer: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=rf"^{where}: "):
        understood(as_line(**answer), Counted)


@pytest.mark.parametrize(
    "line",
    [b"null", b"[1]", b'"x"', b"{", b"[" * 60_000, b"\xff", b'{"token": "\\ud800"}'],
)
def test_what_is_no_answer_is_none(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"^its answer: "):
        understood(line, Held)


@pytest.mark.parametrize("settled", ["false", "yes", 1, None])
def test_to_have_settled_is_said_plainly(settled: Any) -> None:
    with pytest.raises(ValueError, match="settled"):
        understood(as_line(settled=settled), Settled)
