"""Ids of keyed work: each is run once, also where it is offered again."""

import os
from typing import Any

import pytest

from drainmw.errors import Misuse
from drainmw.sources.ids import Ids, checked
from drainmw.sources.pieces import Outcome
from tests.sources.lines_rig import piece

DONE = Outcome("done")


def test_what_has_ended_is_remembered_up_to_a_number() -> None:
    ids = Ids(remembers=2)
    for id in ("1", "2", "3"):
        one = piece(id)
        ids.enter(one)
        assert ids.find(id) is one
        ids.end(one, DONE)
    assert [ids.knows(id) for id in ("1", "2", "3")] == [False, True, True]
    assert ids.find("3") is DONE
    assert list(ids.ended()) == ["3", "2"]


def test_what_was_not_named_by_its_caller_is_not_remembered() -> None:
    ids = Ids(remembers=2)
    one = piece("1", is_named=False)
    ids.enter(one)
    ids.end(one, DONE)
    assert not ids.knows("1")


def test_a_successor_is_known_by_the_first_id_as_well() -> None:
    ids = Ids(remembers=9)
    one = piece("1~1", of="1")
    ids.enter(one)
    assert ids.find("1") is ids.find("1~1") is one
    ids.end(one, DONE)
    assert ids.find("1") is ids.find("1~1") is DONE


def test_what_came_over_is_never_forgotten() -> None:
    """The same state may be brought once more, at any time."""
    ids = Ids(remembers=1)
    for id in ("1", "2", "3"):
        one = piece(id)
        ids.enter(one, is_imported=True)
        ids.end(one, DONE)
    assert ids.knows("1")


def test_what_was_removed_may_come_again() -> None:
    ids = Ids(remembers=9)
    one = piece("1~1", of="1")
    ids.enter(one, is_imported=True)
    ids.remove(one)
    assert not ids.knows("1", "1~1")


def test_what_was_removed_is_forgotten_like_any_other() -> None:
    ids = Ids(remembers=1)
    one = piece("1")
    ids.enter(one, is_imported=True)
    ids.remove(one)
    for each in (one, piece("2")):
        ids.enter(each)
        ids.end(each, DONE)
    assert list(ids.ended()) == ["2"]


def test_what_another_release_has_run_is_known_but_not_how_it_ended() -> None:
    ids = Ids(remembers=9)
    own = piece("own")
    ids.enter(own)
    ids.end(own, DONE)
    assert ids.inherit(["own", "old"]) == ["old"]
    assert (ids.knows("old"), ids.find("old")) == (True, None)
    ids.disinherit(["own", "old"])
    assert (ids.knows("old"), ids.find("own")) == (False, DONE)


def test_of_what_another_release_has_run_the_last_is_known_longest() -> None:
    ids = Ids(remembers=3)
    ids.inherit(["old 4", "old 3", "old 2", "old 1"])
    assert list(ids.ended()) == ["old 4", "old 3", "old 2"]
    one = piece("own")
    ids.enter(one)
    ids.end(one, DONE)
    assert list(ids.ended()) == ["own", "old 4", "old 3"]


def test_what_was_run_here_is_not_forgotten_for_what_is_inherited() -> None:
    ids = Ids(remembers=2)
    one = piece("own")
    ids.enter(one)
    ids.end(one, DONE)
    assert ids.inherit(["old 2", "old 1"]) == ["old 2"]
    assert ids.knows("own")


def test_what_was_disinherited_takes_no_room() -> None:
    ids = Ids(remembers=2)
    for _ in range(3):
        assert ids.inherit(["2", "1"]) == ["2", "1"]
        ids.disinherit(["2", "1"])
    assert ids.inherit(["4", "3"]) == ["4", "3"]
    assert list(ids.ended()) == ["4", "3"]


def test_no_two_processes_give_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has the same numbers ahead of it as the process that it came from."""
    ids = Ids(remembers=9)
    given = {ids.new(), ids.new(), Ids(remembers=9).new()}
    monkeypatch.setattr(ids, "_numbers", iter([1, 2]))
    monkeypatch.setattr(os, "getpid", lambda: 2**30)
    given |= {ids.new(), ids.new()}
    assert len(given) == 5
    assert [checked(id) for id in given] == list(given)


@pytest.mark.parametrize("wrong", ["", None, 5, "a~1", "a~1~22"])
def test_what_is_no_id_is_refused_and_its_right_form_is_told(wrong: Any) -> None:
    with pytest.raises(Misuse, match="must be a text, and not end in ~ and a number"):
        checked(wrong)


@pytest.mark.parametrize("right", ["a", "a~", "~", "a~1b", "ü", "a~1\n"])
def test_any_other_text_is_an_id(right: str) -> None:
    assert checked(right) == right
