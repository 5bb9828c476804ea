"""The handoffs of a new release: each has one end, and who is told it last counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from drainmw.core.handoff import Handoff, Handoffs
from drainmw.errors import (
    StateAlreadyStarted,
    StateNotFound,
    StateNotPending,
    StateNotProvisional,
    StateWorkerLost,
)
from tests.rig import NONCE, OTHER_NONCE, SOURCE, TARGET, THIRD_NONCE, TOKEN
from tests.test_state_begin import begin, source_json

NOW = 100.0
DIGEST = f"sha256:{'d' * 64}"
ORIGIN = {"acknowledge": "http://127.0.0.1:9/", "epoch": 3, "process": {"pid": 7}}


def pending(**members: Any) -> Handoffs:
    """One that worker 1 carries out."""
    handoffs = Handoffs()
    handoffs.begin(begin(**members), NOW, 1)
    return handoffs


def acknowledged() -> Handoffs:
    handoffs = pending()
    handoffs.arrived(NONCE, [1, 2], "c-1", DIGEST)
    handoffs.acknowledge(NONCE, [1, 2])
    return handoffs


def confirmed() -> Handoffs:
    handoffs = acknowledged()
    handoffs.confirm(NONCE)
    return handoffs


def failed() -> Handoffs:
    handoffs = pending()
    handoffs.fail(NONCE, "no disk")
    return handoffs


def discarded() -> Handoffs:
    handoffs = acknowledged()
    handoffs.discard(NONCE)
    return handoffs


ENDED = [acknowledged, confirmed, failed, discarded]


def state_of(handoffs: Handoffs) -> list[dict[str, Any]]:
    return [asdict(handoff) for handoff in handoffs]


# Begin


def test_a_handoff_is_pending_until_its_deadline_and_in_the_hands_of_its_worker() -> (
    None
):
    [handoff] = pending(origin=ORIGIN)
    assert (handoff.status, handoff.provisional) == ("pending", True)
    assert (handoff.deadline, handoff.carrier) == (105.0, 1)
    assert (handoff.origin, handoff.epoch) == ({"pid": 7}, 3)


def test_a_handoff_of_an_old_release_that_says_nothing_of_itself_has_no_origin() -> (
    None
):
    [handoff] = pending()
    assert (handoff.origin, handoff.epoch) == (None, None)


@pytest.mark.parametrize("state", [pending, *ENDED])
def test_the_same_begin_joins_whatever_has_become_of_it(
    state: Callable[[], Handoffs],
) -> None:
    """Its time may be another, and another worker may be asked."""
    handoffs = state()
    before = state_of(handoffs)
    assert handoffs.begin(begin(timeoutMs=600_000), NOW + 1000, 2) is True
    assert state_of(handoffs) == before


@pytest.mark.parametrize("state", [pending, *ENDED])
@pytest.mark.parametrize(
    "members",
    [
        {"nonce": OTHER_NONCE},
        {"source": source_json(url="http://127.0.0.1:8/state")},
        {"origin": ORIGIN},
        {"protocol": "rates/v1"},
    ],
    ids=["other nonce", "other source", "other origin", "other protocol"],
)
def test_a_protocol_and_a_nonce_have_one_handoff_for_good(
    state: Callable[[], Handoffs], members: dict[str, Any]
) -> None:
    handoffs = state()
    before = state_of(handoffs)
    with pytest.raises(StateAlreadyStarted):
        handoffs.begin(begin(**members), NOW, 1)
    assert state_of(handoffs) == before


def test_each_protocol_has_a_handoff_of_its_own() -> None:
    handoffs = pending()
    other = begin(protocol="rates/v1", nonce=OTHER_NONCE)
    assert handoffs.begin(other, NOW, 1) is False
    assert [h.protocol for h in handoffs] == ["sessions/v1", "rates/v1"]
    assert handoffs.find(OTHER_NONCE).protocol == "rates/v1"


@pytest.mark.parametrize("nonce", [OTHER_NONCE, "", NONCE + "\n", None])
def test_a_handoff_is_found_by_its_nonce_alone(nonce: str | None) -> None:
    handoffs = pending()
    assert handoffs.find(NONCE) is next(iter(handoffs))
    with pytest.raises(StateNotFound):
        handoffs.find(nonce)


# From pending to its end


def test_what_all_have_imported_is_acknowledged_and_provisional() -> None:
    handoffs = pending()
    handoffs.arrived(NONCE, [1, 2], "c-1", DIGEST)
    assert handoffs.find(NONCE).status == "pending"
    handoffs.acknowledge(NONCE, [2, 1])
    handoff = handoffs.find(NONCE)
    assert (handoff.status, handoff.provisional) == ("acknowledged", True)


@pytest.mark.parametrize("live", [[1], [1, 2, 3], [1, 3], []])
def test_what_another_set_of_workers_has_imported_is_not_acknowledged(
    live: list[int],
) -> None:
    """Whoever has come up meanwhile knows nothing of it, and who has ended no more."""
    handoffs = pending()
    handoffs.arrived(NONCE, [1, 2], "c-1", DIGEST)
    with pytest.raises(StateWorkerLost):
        handoffs.acknowledge(NONCE, live)
    assert handoffs.find(NONCE).status == "pending"


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (acknowledged, "acknowledged"),
        (failed, "no disk"),
        (discarded, "RUNTIME_STATE_DISCARDED"),
    ],
)
def test_an_end_is_final_for_who_still_works_on_it(
    state: Callable[[], Handoffs], outcome: str
) -> None:
    handoffs = state()
    before = state_of(handoffs)
    acts: list[Callable[[], object]] = [
        lambda: handoffs.arrived(NONCE, [1], "c-2", DIGEST),
        lambda: handoffs.acknowledge(NONCE, [1, 2]),
    ]
    for late in acts:
        with pytest.raises(StateNotPending, match=outcome):
            late()
    assert handoffs.fail(NONCE, "late") is False
    assert handoffs.expire(1e9, []) is False
    assert state_of(handoffs) == before


@pytest.mark.parametrize(("length", "kept"), [(1, 1), (128, 128), (129, 128)])
def test_a_failure_is_cut_to_128_characters(length: int, kept: int) -> None:
    handoffs = pending()
    assert handoffs.fail(NONCE, "é" * length) is True
    assert handoffs.find(NONCE).failure == "é" * kept


@pytest.mark.parametrize(
    ("now", "live", "failure"),
    [
        (104.999, [1, 2], None),
        (105.0, [1, 2], "RUNTIME_STATE_TIMEOUT"),
        (1e9, [1, 2], "RUNTIME_STATE_TIMEOUT"),
        (104.0, [2], "RUNTIME_STATE_WORKER_LOST"),
        (104.0, [], "RUNTIME_STATE_WORKER_LOST"),
        (105.0, [2], "RUNTIME_STATE_TIMEOUT"),
    ],
)
def test_what_is_late_or_left_alone_fails(
    now: float, live: list[int], failure: str | None
) -> None:
    handoffs = pending()
    assert handoffs.expire(now, live) is (failure is not None)
    assert handoffs.find(NONCE).failure == failure


def test_only_the_one_that_is_late_expires() -> None:
    handoffs = pending()
    handoffs.begin(
        begin(protocol="rates/v1", nonce=OTHER_NONCE, timeoutMs=60_000), NOW, 1
    )
    assert handoffs.expire(104.0, iter([1])) is False
    assert handoffs.expire(105.0, iter([1])) is True
    assert [h.status for h in handoffs] == ["failed", "pending"]


# Confirm and discard


def test_a_confirm_is_news_once() -> None:
    handoffs = acknowledged()
    assert handoffs.confirm(NONCE) is True
    assert handoffs.confirm(NONCE) is False
    handoff = handoffs.find(NONCE)
    assert (handoff.status, handoff.provisional) == ("acknowledged", False)


def test_a_discard_is_news_once_and_a_failure_by_its_name() -> None:
    handoffs = acknowledged()
    assert handoffs.discard(NONCE) is True
    assert handoffs.discard(NONCE) is False
    handoff = handoffs.find(NONCE)
    assert (handoff.status, handoff.failure) == ("failed", "RUNTIME_STATE_DISCARDED")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (pending, "a handoff is confirmed once acknowledged, and it is pending"),
        (failed, "a handoff is confirmed once acknowledged, and it is failed"),
        (discarded, "a handoff is confirmed once acknowledged, and it is failed"),
    ],
)
def test_only_what_went_over_is_confirmed(
    state: Callable[[], Handoffs], said: str
) -> None:
    handoffs = state()
    before = state_of(handoffs)
    with pytest.raises(StateNotProvisional) as refused:
        handoffs.confirm(NONCE)
    assert str(refused.value) == said
    assert state_of(handoffs) == before


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (pending, "a handoff is discarded once acknowledged, and it is pending"),
        (confirmed, "ownership has moved here; nothing can be discarded any more"),
    ],
)
def test_only_what_is_provisional_is_discarded(
    state: Callable[[], Handoffs], said: str
) -> None:
    handoffs = state()
    before = state_of(handoffs)
    with pytest.raises(StateNotProvisional) as refused:
        handoffs.discard(NONCE)
    assert str(refused.value) == said
    assert state_of(handoffs) == before


def test_nothing_happens_to_a_handoff_that_is_not_there() -> None:
    handoffs = acknowledged()
    before = state_of(handoffs)
    for act in (
        lambda: handoffs.arrived(THIRD_NONCE, [1], "c", DIGEST),
        lambda: handoffs.acknowledge(THIRD_NONCE, [1]),
        lambda: handoffs.fail(THIRD_NONCE, "late"),
        lambda: handoffs.confirm(THIRD_NONCE),
        lambda: handoffs.discard(THIRD_NONCE),
    ):
        with pytest.raises(StateNotFound):
            act()
    assert state_of(handoffs) == before


# What is told and written of it


@pytest.mark.parametrize(
    ("state", "more"),
    [
        (pending, {"status": "pending"}),
        (acknowledged, {"status": "acknowledged", "cursor": "c-1", "digest": DIGEST}),
        (confirmed, {"status": "acknowledged", "cursor": "c-1", "digest": DIGEST}),
        (failed, {"status": "failed", "failure": "no disk"}),
        (discarded, {"status": "failed", "failure": "RUNTIME_STATE_DISCARDED"}),
    ],
)
def test_a_status_has_the_members_of_the_contract_and_no_others(
    state: Callable[[], Handoffs], more: dict[str, Any]
) -> None:
    [handoff] = state()
    assert handoff.told() == {
        "protocol": "sessions/v1",
        "nonce": NONCE,
        "schemaVersion": 1,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        **more,
    }


def test_a_status_tells_no_cursor_before_the_end() -> None:
    """It has arrived, and may fail yet."""
    handoffs = pending()
    handoffs.arrived(NONCE, [1], "c-1", DIGEST)
    assert not {"cursor", "digest"} & handoffs.find(NONCE).told().keys()


@pytest.mark.parametrize("state", [Handoffs, pending, *ENDED])
def test_what_was_written_is_what_comes_back(state: Callable[[], Handoffs]) -> None:
    handoffs = state()
    written = json.dumps(handoffs.snapshot())
    back = Handoffs.restored(json.loads(written))
    assert state_of(back) == state_of(handoffs)
    assert all(isinstance(handoff, Handoff) for handoff in back)


def test_what_is_written_is_another_one_than_what_is_worked_on() -> None:
    handoffs = pending(origin=ORIGIN)
    written = handoffs.snapshot()
    handoffs.arrived(NONCE, [1], "c-1", DIGEST)
    handoffs.find(NONCE).members.append(2)
    assert written[0]["members"] == []
    assert written[0]["cursor"] is None


def test_a_begin_is_known_again_by_who_has_read_it_back_and_holds_no_token() -> None:
    written = json.dumps(pending(origin=ORIGIN).snapshot())
    assert TOKEN not in written
    back = Handoffs.restored(json.loads(written))
    assert back.begin(begin(origin=ORIGIN), NOW, os.getpid()) is True
    other = source_json(authorization=f"Bearer {'u' * 43}")
    with pytest.raises(StateAlreadyStarted):
        back.begin(begin(origin=ORIGIN, source=other), NOW, 1)
