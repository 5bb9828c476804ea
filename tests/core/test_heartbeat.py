"""Who lives, by numbers that grow; and who owns what another owns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drainmw.core.heartbeat import PATIENCE, Beat, Overlap, Peers, overlaps

REVISION = "a" * 40
OTHER = "b" * 40


def beat(instance: str, number: int = 1, **said: object) -> Beat:
    plain = Beat(instance, number, REVISION, 1, "host", {"reports": 1}, protected=False)
    return replace(plain, **said)  # type: ignore[arg-type]


def names(beats: list[Beat]) -> set[str]:
    return {beat.instance for beat in beats}


def test_a_peer_is_alive_once_its_number_has_grown_between_two_looks() -> None:
    peers = Peers()
    peers.look([beat("a", 7)])
    assert peers.alive() == []
    peers.look([beat("a", 8)])
    assert names(peers.alive()) == {"a"}


def test_an_entry_that_never_grows_is_never_alive() -> None:
    peers = Peers()
    for _ in range(10):
        peers.look([beat("a", 7)])
        assert peers.alive() == []


def test_a_number_that_gets_smaller_is_no_sign_of_life() -> None:
    peers = Peers()
    for number in (9, 8, 7, 8, 9):
        peers.look([beat("a", number)])
        assert peers.alive() == []
    peers.look([beat("a", 10)])
    assert names(peers.alive()) == {"a"}


def test_a_beat_that_comes_late_once_does_not_kill() -> None:
    """Two clocks of a second each do not tick in step."""
    peers = Peers()
    for number in (1, 2, 2, 4, 4, 6):
        peers.look([beat("a", number)])
        assert names(peers.alive()) == ({"a"} if number > 1 else set())


def test_a_peer_that_has_stopped_is_not_alive_after_two_looks() -> None:
    peers = Peers()
    for number in (1, 2):
        peers.look([beat("a", number)])
    seen = []
    for _ in range(3):
        peers.look([beat("a", 2)])
        seen.append(bool(peers.alive()))
    assert seen == [True, False, False]


def test_a_peer_that_has_left_is_not_alive() -> None:
    peers = Peers()
    peers.look([beat("a", 1)])
    peers.look([beat("a", 2)])
    peers.look([])
    assert peers.alive() == []


def test_what_a_peer_says_is_what_it_said_when_it_grew() -> None:
    peers = Peers()
    peers.look([beat("a", 1)])
    peers.look([beat("a", 2, owns={})])
    peers.look([beat("a", 2, owns={"reports": 3})])
    assert [b.owns for b in peers.alive()] == [{}]


def test_an_instance_is_gone_if_it_says_nothing_or_nothing_new_for_long() -> None:
    peers = Peers()
    assert not peers.is_gone("a", 3)  # nobody has looked yet
    peers.look([beat("a", 1)])
    assert peers.is_gone("b", 3)
    for _ in range(2):
        peers.look([beat("a", 1)])
        assert not peers.is_gone("a", 3)
    peers.look([beat("a", 1)])
    assert peers.is_gone("a", 3)
    peers.look([beat("a", 2)])
    for look in range(PATIENCE + 3):
        assert not peers.is_gone("a", 3), look
        peers.look([beat("a", 2)])
    assert peers.is_gone("a", 3)


# Overlaps


def test_two_of_one_release_that_own_the_same_overlap() -> None:
    found = overlaps([beat("a"), beat("b"), beat("c", owns={})])
    assert [(o.name, names(list(o.beats))) for o in found] == [("reports", {"a", "b"})]


@pytest.mark.parametrize("release", [REVISION, None])
def test_a_release_that_knows_no_revision_is_one_release(release: str | None) -> None:
    assert overlaps([beat("a", release=release), beat("b", release=release)])


def test_what_differs_does_not_overlap() -> None:
    assert overlaps([beat("a"), beat("b", owns={"mails": 1})]) == []
    assert overlaps([beat("a")]) == []


def test_two_releases_without_a_lease_may_both_own_while_one_goes() -> None:
    assert overlaps([beat("a"), beat("b", release=OTHER)]) == []


def test_two_releases_under_a_lease_must_not() -> None:
    old, new = beat("a", protected=True), beat("b", release=OTHER, protected=True)
    (found,) = overlaps([old, new])
    assert found.name == "reports"
    assert overlaps([old, replace(new, protected=False)]) == []


def test_only_those_are_named_who_should_not() -> None:
    found = overlaps([beat("a"), beat("b"), beat("c", release=OTHER)])
    assert [names(list(overlap.beats)) for overlap in found] == [{"a", "b"}]


def test_everybody_tells_an_overlap_in_the_same_words() -> None:
    one, two = beat("a", pid=12, host="left"), beat("b", pid=7, host="right")
    told = str(Overlap("reports", (one, two)))
    assert told == str(Overlap("reports", (two, one)))
    assert told == (
        "schedule overlap: reports is owned by each of process 12 on left, "
        "process 7 on right"
    )


def test_a_beat_survives_its_json() -> None:
    said = beat("a", 5, owns={"x": 3})
    assert Beat.restored(json.loads(json.dumps(said.snapshot()))) == said


@pytest.mark.parametrize(
    "wrong", [{"number": None}, {"number": "7"}, {"owns": None}, {"owns": 1}, {"x": 1}]
)
def test_what_is_no_beat_is_refused(wrong: dict[str, Any]) -> None:
    """One that was let in would keep everybody from looking after the lease."""
    with pytest.raises(TypeError):
        Beat.restored({**beat("blue", 7).snapshot(), **wrong})
