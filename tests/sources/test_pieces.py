"""One piece of keyed work: what of it goes over, and under which id."""

from collections.abc import Iterator
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import pytest

from drainmw.core.canonical import canonical
from drainmw.sources.pieces import text_size
from tests.sources.lines_rig import piece


def test_what_goes_over_is_json_with_its_id_key_lane_handler_and_arguments() -> None:
    one = piece("7", "user:1", lane="lifecycle", args=("a", 1, [None]), schedule="s")
    one.freeze()
    assert one.body == {
        "id": "7",
        "key": "user:1",
        "lane": "lifecycle",
        "handler": "work",
        "args": ["a", 1, [None]],
        "schedule": "s",
    }


def test_what_was_parked_goes_over_under_the_id_of_a_successor() -> None:
    one = piece("7", of="7", checkpoint={"at": 3}, has_run=True)
    one.freeze()
    assert one.body is not None
    assert (one.body["id"], one.body["of"]) == ("7~1", "7")
    assert one.body["checkpoint"] == {"at": 3}


@pytest.mark.parametrize(
    ("id", "of", "successor"),
    [("7", None, "7~1"), ("7", "7", "7~1"), ("7~1", "7", "7~2"), ("7~9", "7", "7~10")],
)
def test_each_successor_is_counted(id: str, of: str | None, successor: str) -> None:
    assert piece(id, of=of).successor() == successor


def test_a_successor_that_has_not_started_keeps_its_id() -> None:
    one = piece("7~1", of="7", checkpoint=None)
    one.freeze()
    assert one.body is not None
    assert one.body["id"] == "7~1"
    assert one.ids == ("7~1", "7")


class Level(StrEnum):
    HIGH = "high"


class Odd(list[int]):
    """As an array of a library, which is no truth when it is compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("which of them?")

    __hash__ = None


class Sly(dict[str, int]):
    def __iter__(self) -> Iterator[str]:
        raise OSError("not to be read")


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "argument",
    [
        *((1, 2), {1: 2}, {1}, object(), float("nan"), 2**53, b"x", [[(1,)]]),
        *(Level.HIGH, {Level.HIGH: 1}, HTTPStatus.OK, Odd([1]), Sly(a=1)),
        *("\ud83d\ude00", deep(10_000), 10**5000),
    ],
    ids=[
        *("tuple", "int name", "set", "object", "nan", "big", "bytes", "inner tuple"),
        *("enum", "enum name", "status", "odd", "sly", "pair", "deep", "huge"),
    ],
)
def test_what_json_would_change_keeps_the_piece_here(argument: Any) -> None:
    one = piece("7", args=(argument,))
    one.freeze()
    assert one.body is None


@pytest.mark.parametrize(
    "argument",
    [None, True, 0, 1.5, 1.0, -0.0, 1e22, "é", [], {}, [1, {"a": [None, "\ud800"]}]],
    ids=str,
)
def test_what_json_leaves_as_it_is_goes_over(argument: Any) -> None:
    one = piece("7", args=(argument,))
    one.freeze()
    assert one.body is not None
    assert one.body["args"] == [argument]


def test_a_handler_without_a_name_keeps_the_piece_here() -> None:
    one = piece("7", handler=None)
    one.freeze()
    assert one.body is None


def test_what_goes_over_does_not_change_any_more() -> None:
    given: list[int] = []
    one = piece("7", args=(given,))
    one.freeze()
    given.append(1)
    assert one.body is not None
    assert one.body["args"] == [[]]


@pytest.mark.parametrize("text", ["", "a", "é", "\ud800", "\U0001f600", '"\\', "\x00"])
def test_the_size_of_a_text_is_never_too_small(text: str) -> None:
    assert text_size(text) >= len(canonical([text, text])) - len(canonical([text]))


@pytest.mark.parametrize("key", ["k", "é", "\ud800", "k" * 50])
def test_the_size_is_what_it_takes_in_an_envelope_at_most(key: str) -> None:
    """Among others, and with its key among the paused ones."""
    one = piece("7", key, args=(1.5, "ü"))
    one.freeze()
    body: Any = one.body
    small, large = ([body], [key]), ([body, body], [key, key])
    assert one.size >= len(canonical(large)) - len(canonical(small))
