"""Handoffs are driven by steps that may be repeated, and undone while they may."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from drainmw.client import ControlClient, Denied, Unreachable
from drainmw.errors import (
    DrainDetached,
    StateAdapterNotFound,
    StateAlreadyStarted,
    StateNotDiscardable,
    StateVersionUnknown,
)
from drainmw.handing import Handing, unclaimed
from tests.processes import free_port
from tests.rig import NONCE, OTHER_NONCE
from tests.rooms import Rates, Rooms
from tests.stage import Hosted, Stage, staged

TO, AGAIN = "h" * 43, "i" * 43


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainmw.client.POLL_FIRST", 0.002)
    monkeypatch.setattr("drainmw.offering.REGRET", 0.0)


class Driver:
    """Drives a handoff from one release to another, anew each time."""

    def __init__(self, source: ControlClient, target: ControlClient) -> None:
        self._source, self._target = source, target
        self.handing = self.anew()

    def anew(self) -> Handing:
        self.handing = Handing(self._source, self._target, timeout_ms=5000)
        return self.handing

    def hand_over(
        self, *protocols: str, nonce: str | None = None, again: bool = False
    ) -> dict[str, str]:
        """The last status of each protocol, as a run of its own."""
        told = self.anew().hand_over(protocols, nonce, again=again)
        return {status["protocol"]: status["status"] for status in told}

    def discard(self, *protocols: str, nonce: str | None = None) -> list[str]:
        told = self.anew().discard(protocols, nonce)
        return [taken["protocol"] for taken in told]


DriveOf = Callable[[Hosted, Hosted], Driver]


@pytest.fixture
def drive() -> Iterator[DriveOf]:
    clients: list[ControlClient] = []

    def drive(old: Hosted, new: Hosted) -> Driver:
        clients.extend((old.asked(), new.asked()))
        return Driver(*clients[-2:])

    yield drive
    for client in clients:
        client.close()


# Over


def test_what_is_drained_is_sealed_and_handed_over(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann")).drained()
    new = stage.host(come := Rooms())
    driver = drive(old, new)
    assert driver.hand_over() == {"rooms/v1": "acknowledged"}
    assert gone.heard == ["seal", "export"]
    assert (come.heard, come.names) == (["import"], ["ann"])
    assert driver.handing.nonces.keys() == {"rooms/v1"}
    assert old.drain.sealed
    assert old.given() == [True]


def test_a_snapshot_of_a_release_that_serves_is_handed_over_unsealed(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann", phase="serving"))
    new = stage.host(come := Rooms())
    assert drive(old, new).hand_over() == {"rooms/v1": "acknowledged"}
    assert (gone.heard, come.names) == (["export"], ["ann"])


def test_a_release_without_state_has_nothing_to_hand_over(
    stage: Stage, drive: DriveOf
) -> None:
    with pytest.raises(StateAdapterNotFound):
        drive(stage.host().drained(), stage.host(Rooms())).hand_over()


@pytest.mark.parametrize("nonce", [None, TO], ids=["without a nonce", "with its nonce"])
def test_a_run_that_is_repeated_does_nothing_again(
    stage: Stage, drive: DriveOf, nonce: str | None
) -> None:
    old, new = stage.host(gone := Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over(nonce=nonce)
    nonces = dict(driver.handing.nonces)
    assert driver.hand_over(nonce=nonce) == {"rooms/v1": "acknowledged"}
    assert driver.handing.nonces == nonces
    assert nonces["rooms/v1"] == nonce or nonce is None
    assert (gone.heard, come.heard) == (["seal", "export"], ["import"])


def test_a_run_with_another_nonce_is_another_handoff_and_refused(
    stage: Stage, drive: DriveOf
) -> None:
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over(nonce=TO)
    with pytest.raises(Denied, match="RUNTIME_STATE_HANDED_OVER"):
        driver.hand_over(nonce=AGAIN)
    assert come.heard == ["import"]


def test_a_failed_handoff_is_found_to_have_failed(stage: Stage, drive: DriveOf) -> None:
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    come.fails["import"] = RuntimeError("no room")
    driver = drive(old, new)
    for _ in range(2):
        assert driver.hand_over() == {"rooms/v1": "failed"}
    assert come.heard == ["import"]
    assert old.given() == [False]


def test_a_fresh_release_takes_the_place_of_one_that_has_ended_by_word_alone(
    stage: Stage, drive: DriveOf
) -> None:
    """It has the same, under the same nonce, also once the old one is detached."""
    old = stage.host(gone := Rooms("ann")).drained()
    first = drive(old, stage.host(Rooms()))
    first.hand_over()
    gone.names.append("bob")
    second = drive(old, stage.host(come := Rooms()))
    with pytest.raises(Denied, match="RUNTIME_STATE_HANDED_OVER"):
        second.hand_over()
    assert second.hand_over(again=True) == {"rooms/v1": "acknowledged"}
    assert second.handing.nonces == first.handing.nonces
    assert come.names == ["ann"]
    with old.asked() as client:
        client.detach(NONCE)
    third = drive(old, stage.host(last := Rooms()))
    assert third.hand_over(again=True) == {"rooms/v1": "acknowledged"}
    assert last.names == ["ann"]


# Of several kinds


def test_each_kind_of_state_goes_over_by_a_nonce_of_its_own(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    both = {"rooms/v1": "acknowledged", "rates/v1": "acknowledged"}
    assert driver.hand_over(nonce=TO) == both
    nonces = dict(driver.handing.nonces)
    assert len({TO, *nonces.values()}) == 3
    assert all(re.fullmatch("[A-Za-z0-9_-]{43}", nonce) for nonce in nonces.values())
    for nonce in (TO, None):
        assert driver.hand_over(nonce=nonce) == both
        assert driver.handing.nonces == nonces
    assert (rooms.names, rates.names) == (["ann"], ["ten"])
    assert (rooms.heard, rates.heard) == (["import"], ["import"])


def test_only_what_was_named_goes_over(stage: Stage, drive: DriveOf) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    assert driver.hand_over("rates/v1", nonce=TO) == {"rates/v1": "acknowledged"}
    assert driver.handing.nonces == {"rates/v1": TO}
    assert (rooms.heard, rates.names) == ([], ["ten"])
    known = "the old release has no state adapter of 'other/v1'; it has rooms/v1"
    with pytest.raises(StateAdapterNotFound, match=known):
        driver.hand_over("other/v1")


def test_what_the_new_release_cannot_take_is_found_before_anything_goes(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms())
    with pytest.raises(StateAdapterNotFound, match=r"the new release has no .*rates"):
        drive(old, new).hand_over()
    other = stage.host(Rooms(), Rates(schema_version=2))
    with pytest.raises(StateVersionUnknown, match=r"of version 1; .* reads 2"):
        drive(old, other).hand_over()
    assert (rooms.heard, "seal" in gone.heard) == ([], False)


def test_all_of_it_is_discarded_or_nothing(stage: Stage, drive: DriveOf) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), Rates(discard=None))
    driver = drive(old, new)
    driver.hand_over()
    with pytest.raises(StateNotDiscardable, match="rates/v1"):
        driver.discard()
    assert rooms.names == ["ann"]
    assert driver.discard("rooms/v1") == ["rooms/v1"]


def test_what_would_end_with_the_old_release_is_known(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(
        Rooms("ann"), Rates("ten"), Rates(protocol="copy/v1", phase="serving")
    )
    old.drained()
    new = stage.host(Rooms(), Rates(), Rates(protocol="copy/v1", phase="serving"))
    driver = drive(old, new)
    with old.asked() as client:
        assert unclaimed(client) == ["rooms/v1", "rates/v1"]
        driver.hand_over("rooms/v1")
        assert unclaimed(client) == ["rates/v1"]
        driver.hand_over("rates/v1")
        assert unclaimed(client) == []


def test_the_first_that_fails_ends_the_run(stage: Stage, drive: DriveOf) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    rooms.fails["import"] = RuntimeError("no room")
    assert drive(old, new).hand_over() == {"rooms/v1": "failed"}
    assert rates.heard == []


def test_what_was_interrupted_between_two_is_finished(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    for told in driver.anew().hand_over([], None):
        if told["status"] == "acknowledged":
            break
    first = driver.handing.nonces["rooms/v1"]
    assert (rooms.heard, rates.heard) == (["import"], [])
    assert driver.hand_over() == {
        "rooms/v1": "acknowledged",
        "rates/v1": "acknowledged",
    }
    assert driver.handing.nonces["rooms/v1"] == first
    assert (rooms.heard, rates.heard) == (["import"], ["import"])
    assert gone.heard == ["seal", "export"]


# Confirmed


def test_every_handoff_of_a_run_is_confirmed(stage: Stage, drive: DriveOf) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    driver.hand_over()
    with old.asked() as client:
        moved = client.detach(NONCE)
    for _ in range(2):
        driver.handing.confirm(moved)
        assert (rooms.heard[1:], rates.heard[1:]) == (["confirm"], ["confirm"])


# Discarded


def test_what_is_discarded_goes_back_to_the_old_release(
    stage: Stage, drive: DriveOf
) -> None:
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over()
    assert old.given() == [True]
    for _ in range(2):
        assert driver.discard() == ["rooms/v1"]
        assert (come.heard, come.names) == (["import", "discard"], [])
        assert old.given() == [False]
    with old.asked() as client:
        assert client.resume(NONCE)["phase"] == "serving"


def test_an_old_release_that_serves_already_has_nothing_to_take_back(
    stage: Stage, drive: DriveOf
) -> None:
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over()
    with old.asked() as client:
        client.resume(NONCE, force=True)
    assert driver.discard() == ["rooms/v1"]
    assert come.names == []


def test_what_was_named_is_discarded_and_nothing_else(
    stage: Stage, drive: DriveOf
) -> None:
    """By its protocol, by the nonce of the run that handed it over, or by its own."""
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    driver.hand_over(nonce=TO)
    own = driver.handing.nonces["rates/v1"]
    assert driver.discard(nonce=AGAIN) == []
    assert driver.discard("other/v1") == []
    assert driver.discard("rooms/v1", nonce=own) == []
    assert (rooms.heard, rates.heard) == (["import"], ["import"])
    assert driver.discard("rates/v1", nonce=TO) == ["rates/v1"]
    assert driver.discard(nonce=own) == ["rates/v1"]
    assert (rooms.heard, rates.heard) == (["import"], ["import", "discard"])
    assert old.given() == [True, False]
    assert driver.discard(nonce=TO) == ["rooms/v1", "rates/v1"]
    assert old.given() == [False, False]


def test_what_could_not_be_undone_is_not_given_back_however_often_one_asks(
    stage: Stage, drive: DriveOf
) -> None:
    """The old release would serve with a state that the new one still has."""
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    come.fails["discard"] = RuntimeError("no way back")
    driver = drive(old, new)
    driver.hand_over()
    for _ in range(2):
        with pytest.raises(Denied, match="no way back"):
            driver.discard()
        assert old.given() == [True]
    assert come.heard == ["import", "discard"]


def test_what_has_failed_or_is_confirmed_is_not_discarded(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    new = stage.host(rooms := Rooms(), rates := Rates())
    driver = drive(old, new)
    driver.hand_over("rooms/v1")
    handing = driver.handing
    rates.fails["import"] = RuntimeError("no room")
    driver.hand_over("rates/v1")
    handing.confirm({"phase": "detached", "epoch": 1})
    assert driver.discard() == []
    assert (rooms.heard, rates.heard) == (["import", "confirm"], ["import"])


def test_nothing_is_discarded_once_the_old_release_is_detached(
    stage: Stage, drive: DriveOf
) -> None:
    """The new one may not know yet that it owns the state; nobody else has it."""
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over()
    with old.asked() as client:
        client.detach(NONCE)
    with pytest.raises(DrainDetached):
        driver.discard()
    assert (come.heard, come.names) == (["import"], ["ann"])


def test_nothing_is_discarded_while_the_old_release_does_not_answer(
    stage: Stage, drive: DriveOf
) -> None:
    old, new = stage.host(Rooms("ann")).drained(), stage.host(come := Rooms())
    driver = drive(old, new)
    driver.hand_over()
    silent = ControlClient(url=f"http://127.0.0.1:{free_port()}")
    with silent, new.asked() as target, pytest.raises(Unreachable):
        list(Handing(silent, target, timeout_ms=5000).discard([], None))
    assert come.heard == ["import"]


def test_a_later_drain_of_the_old_release_hands_its_own_state_over(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann")).drained()
    first = drive(old, stage.host(Rooms()))
    first.hand_over()
    first.discard()
    with old.asked() as client:
        client.resume(NONCE)
    gone.names.append("bob")
    old.drained(OTHER_NONCE)
    second = drive(old, stage.host(come := Rooms()))
    assert second.hand_over() == {"rooms/v1": "acknowledged"}
    assert come.names == ["ann", "bob"]


def test_what_came_from_another_release_is_not_taken_for_this_ones(
    stage: Stage, drive: DriveOf
) -> None:
    one, two = (stage.host(Rooms(name)).drained() for name in ("ann", "bob"))
    new = stage.host(come := Rooms())
    assert drive(one, new).hand_over() == {"rooms/v1": "acknowledged"}
    with pytest.raises(StateAlreadyStarted, match="A fresh process can"):
        drive(two, new).hand_over()
    assert come.names == ["ann"]
    with two.asked() as client:
        assert unclaimed(client) == ["rooms/v1"]


def test_what_an_earlier_drain_gave_is_not_taken_for_this_ones(
    stage: Stage, drive: DriveOf
) -> None:
    old = stage.host(gone := Rooms("ann")).drained()
    driver = drive(old, stage.host(Rooms()))
    driver.hand_over()
    with old.asked() as client:
        client.resume(client.report()["nonce"] or "", force=True)
    gone.names.append("late")
    old.drained(OTHER_NONCE)
    with pytest.raises(StateAlreadyStarted):
        driver.hand_over()


def test_what_is_provisional_does_not_go_on(stage: Stage, drive: DriveOf) -> None:
    """The release before may take it back."""
    old, middle = stage.host(Rooms("ann")).drained(), stage.host(Rooms())
    new = stage.host(last := Rooms())
    first = drive(old, middle)
    first.hand_over()
    middle.drained()
    second = drive(middle, new)
    with pytest.raises(Denied, match="RUNTIME_STATE_PROVISIONAL"):
        second.hand_over()
    with old.asked() as client:
        first.handing.confirm(client.detach(client.report()["nonce"] or ""))
    assert second.hand_over() == {"rooms/v1": "acknowledged"}
    assert last.names == ["ann"]
