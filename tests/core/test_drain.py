"""The phase table: what is illegal changes nothing, what is legal tells a story."""

import json
from collections.abc import Callable
from dataclasses import fields
from itertools import product

import pytest

from drainmw.core.drain import TABLE, Event, Gate, Lifecycle, Phase, Run
from drainmw.core.handoff import Recipient
from drainmw.errors import (
    AlreadyStarted,
    DrainDetached,
    DrainError,
    DrainNotFound,
    DrainResumed,
    HandedOver,
    PhaseConflict,
    RevisionMismatch,
)
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    OTHER_REVISION,
    SOURCE,
    THIRD_NONCE,
    begin_request,
)

ZERO = {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0}
NOW = 100.0


def drained() -> Lifecycle:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.conclude(ZERO, NOW)
    return lifecycle


def draining() -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.begin(begin_request(), NOW)
    return lifecycle


def cordoned() -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.cordon()
    return lifecycle


def failed() -> Lifecycle:
    lifecycle = draining()
    lifecycle.fail("BROKER_GONE", NOW)
    return lifecycle


def detached() -> Lifecycle:
    lifecycle = drained()
    lifecycle.detach(NONCE)
    return lifecycle


IN_PHASE: dict[Phase, Callable[[], Lifecycle]] = {
    Phase.SERVING: Lifecycle,
    Phase.CORDONED: cordoned,
    Phase.DRAINING: draining,
    Phase.DRAINED: drained,
    Phase.FAILED: failed,
    Phase.DETACHED: detached,
}


def conclude(lifecycle: Lifecycle) -> None:
    lifecycle.close()
    lifecycle.conclude(ZERO, NOW)


CAUSE: dict[Event, Callable[[Lifecycle], object]] = {
    Event.CORDON: lambda lifecycle: lifecycle.cordon(),
    Event.UNCORDON: lambda lifecycle: lifecycle.uncordon(),
    Event.BEGIN: lambda lifecycle: lifecycle.begin(begin_request(OTHER_NONCE), NOW),
    Event.IDLE: conclude,
    Event.FAIL: lambda lifecycle: lifecycle.fail("BROKER_GONE", NOW),
    Event.RESUME: lambda lifecycle: lifecycle.resume(NONCE),
    Event.SEAL: lambda lifecycle: lifecycle.seal(NONCE),
    Event.DETACH: lambda lifecycle: lifecycle.detach(NONCE),
}

LEGAL = {
    ("serving", "cordon"): "cordoned",
    ("serving", "uncordon"): "serving",
    ("serving", "begin"): "draining",
    ("cordoned", "cordon"): "cordoned",
    ("cordoned", "uncordon"): "serving",
    ("cordoned", "begin"): "draining",
    ("draining", "idle"): "drained",
    ("draining", "fail"): "failed",
    ("draining", "resume"): "serving",
    ("drained", "resume"): "serving",
    ("drained", "seal"): "drained",
    ("drained", "detach"): "detached",
    ("failed", "resume"): "serving",
    ("failed", "detach"): "detached",
    ("detached", "detach"): "detached",
}

PAIRS = list(product(Phase, Event))
WRITTEN = [field.name for field in fields(Run)]


def state_of(lifecycle: Lifecycle) -> tuple[object, ...]:
    run = lifecycle.run
    written = () if run is None else tuple(str(getattr(run, name)) for name in WRITTEN)
    return lifecycle.phase, lifecycle.epoch, lifecycle.gate, written


def test_the_table_holds_these_pairs_and_no_others() -> None:
    assert {(str(p), str(e)): str(to) for (p, e), to in TABLE.items()} == LEGAL


@pytest.mark.parametrize(("phase", "event"), PAIRS)
def test_a_legal_pair_moves_and_an_illegal_one_changes_nothing(
    phase: Phase, event: Event
) -> None:
    lifecycle = IN_PHASE[phase]()
    assert lifecycle.phase is phase
    before = state_of(lifecycle)
    target = LEGAL.get((str(phase), str(event)))
    if target is None:
        with pytest.raises(DrainError):
            CAUSE[event](lifecycle)
        assert state_of(lifecycle) == before
        return
    CAUSE[event](lifecycle)
    assert lifecycle.phase == target


@pytest.mark.parametrize(("phase", "event"), PAIRS)
def test_after_an_illegal_event_the_life_goes_on_as_without_it(
    phase: Phase, event: Event
) -> None:
    if (str(phase), str(event)) in LEGAL:
        return
    lifecycle, other = IN_PHASE[phase](), IN_PHASE[phase]()
    with pytest.raises(DrainError):
        CAUSE[event](lifecycle)
    for later in Event:
        outcomes = []
        for each in (lifecycle, other):
            try:
                outcomes.append((CAUSE[later](each), state_of(each)))
            except DrainError as exc:
                outcomes.append((type(exc), state_of(each)))
        assert outcomes[0] == outcomes[1], later


@pytest.mark.parametrize(
    ("phase", "gate"),
    [
        (Phase.SERVING, 0),
        (Phase.CORDONED, 1),
        (Phase.DRAINING, 2),
        (Phase.DRAINED, 3),
        (Phase.FAILED, 3),
        (Phase.DETACHED, 3),
    ],
)
def test_the_gate_follows_the_phase(phase: Phase, gate: int) -> None:
    assert IN_PHASE[phase]().gate == gate


def test_the_gate_is_closed_while_the_verdict_is_read_and_only_then() -> None:
    lifecycle = draining()
    assert lifecycle.gate == 2
    lifecycle.close()
    assert (lifecycle.phase, lifecycle.gate) == ("draining", 3)
    lifecycle.reopen()
    assert (lifecycle.phase, lifecycle.gate) == ("draining", 2)


def test_nothing_outside_can_set_the_gate() -> None:
    with pytest.raises(AttributeError):
        Lifecycle().gate = Gate.OPEN  # type: ignore[misc]  # there is no setter


# Begin


def test_a_begin_closes_intake_and_starts_an_epoch_and_a_deadline() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.begin(begin_request(timeoutMs=2500), NOW) is False
    assert (lifecycle.phase, lifecycle.epoch) == ("draining", 1)
    assert lifecycle.run is not None
    assert (lifecycle.run.begun_at, lifecycle.run.deadline) == (100.0, 102.5)


def test_the_same_begin_again_joins_and_its_timeout_is_ignored() -> None:
    lifecycle = draining()
    before = state_of(lifecycle)
    assert lifecycle.begin(begin_request(), NOW + 1) is True
    assert lifecycle.begin(begin_request(timeoutMs=600_000), NOW + 2) is True
    assert state_of(lifecycle) == before


@pytest.mark.parametrize("ended", [drained, failed, detached])
def test_the_same_begin_joins_also_a_drain_that_has_ended(
    ended: Callable[[], Lifecycle],
) -> None:
    lifecycle = ended()
    before = state_of(lifecycle)
    assert lifecycle.begin(begin_request(), NOW + 1000) is True
    assert state_of(lifecycle) == before


@pytest.mark.parametrize("phase", [draining, drained, failed, detached])
@pytest.mark.parametrize(
    "request_",
    [
        begin_request(OTHER_NONCE),
        begin_request(targetRevision=OTHER_REVISION),
        begin_request(sourceRevision=OTHER_REVISION),
    ],
    ids=["other nonce", "other target", "other source"],
)
def test_another_begin_is_refused_and_leaves_no_trace(
    phase: Callable[[], Lifecycle], request_: object
) -> None:
    """D6: the second is a 409 and leaves no trace, now or later."""
    lifecycle = phase()
    before = state_of(lifecycle)
    with pytest.raises(AlreadyStarted):
        lifecycle.begin(request_, NOW)  # type: ignore[arg-type]  # of parametrize
    assert state_of(lifecycle) == before
    with pytest.raises(DrainNotFound):
        lifecycle.find(OTHER_NONCE)


def test_a_refused_begin_says_what_would_help() -> None:
    lifecycle = draining()
    with pytest.raises(AlreadyStarted) as refused:
        lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    assert refused.value.same_nonce is False
    assert str(refused.value) == (
        "another drain has begun, or has ended and stands; it is untouched. "
        "Only a resume with its nonce ends it"
    )
    with pytest.raises(AlreadyStarted) as refused:
        lifecycle.begin(begin_request(targetRevision=OTHER_REVISION), NOW)
    assert refused.value.same_nonce is True
    assert str(refused.value) == (
        "this nonce's drain has begun with other revisions; it is untouched. "
        "Repeat them, or choose a new nonce once it was resumed"
    )


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (draining, "cordon is not possible while draining; resume first"),
        (drained, "cordon is not possible while drained; resume first"),
        (failed, "cordon is not possible while failed; resume first"),
        (detached, "cordon is not possible while detached"),
    ],
)
def test_a_resume_is_advised_where_one_is_possible(
    phase: Callable[[], Lifecycle], said: str
) -> None:
    with pytest.raises(PhaseConflict) as refused:
        phase().cordon()
    assert str(refused.value) == said


def test_the_revision_of_this_release_is_checked_where_it_is_known() -> None:
    lifecycle = Lifecycle(revision=OTHER_REVISION)
    with pytest.raises(RevisionMismatch, match=OTHER_REVISION):
        lifecycle.begin(begin_request(), NOW)
    assert (lifecycle.phase, lifecycle.run, lifecycle.epoch) == ("serving", None, 0)
    assert lifecycle.begin(begin_request(sourceRevision=OTHER_REVISION), NOW) is False


def test_a_known_revision_lets_its_own_drain_begin() -> None:
    assert Lifecycle(revision=SOURCE).begin(begin_request(), NOW) is False


def test_another_drain_is_told_before_a_wrong_revision() -> None:
    lifecycle = Lifecycle(revision=SOURCE)
    lifecycle.begin(begin_request(), NOW)
    with pytest.raises(AlreadyStarted):
        lifecycle.begin(begin_request(OTHER_NONCE, sourceRevision=OTHER_REVISION), NOW)


# The end of a drain


def test_all_zero_is_drained() -> None:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.conclude(ZERO, NOW + 1)
    assert lifecycle.phase == "drained"
    assert lifecycle.run is not None
    assert (lifecycle.run.failure, lifecycle.run.ended_at) == (None, 101.0)
    assert lifecycle.run.closing is False


@pytest.mark.parametrize("kind", ["http", "websocket", "jobs", "schedules"])
def test_one_counter_above_zero_is_not_idle(kind: str) -> None:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.conclude(ZERO | {kind: 1}, NOW)
    assert lifecycle.phase == "failed"
    assert lifecycle.find(NONCE).failure == "RUNTIME_DRAIN_NOT_IDLE"


def test_counters_that_are_not_valid_fail_the_drain() -> None:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.conclude(None, NOW)
    assert lifecycle.find(NONCE).failure == "RUNTIME_DRAIN_COUNTERS_INVALID"


def test_a_verdict_is_only_read_behind_the_closed_gate() -> None:
    lifecycle = draining()
    with pytest.raises(AssertionError):
        lifecycle.conclude(ZERO, NOW)
    assert lifecycle.phase == "draining"


def test_nothing_happens_before_the_deadline() -> None:
    lifecycle = draining()
    assert lifecycle.expire(NOW + 4.999) is False
    assert lifecycle.phase == "draining"


@pytest.mark.parametrize("late", [0.0, 0.001, 1000.0])
def test_at_the_deadline_the_drain_fails_with_a_timeout(late: float) -> None:
    """D11: `failed` with RUNTIME_DRAIN_TIMEOUT when the timeout has passed."""
    lifecycle = draining()
    assert lifecycle.expire(NOW + 5.0 + late) is True
    assert lifecycle.phase == "failed"
    assert lifecycle.find(NONCE).failure == "RUNTIME_DRAIN_TIMEOUT"
    assert lifecycle.expire(NOW + 5000) is False


def test_a_zero_first_seen_at_the_deadline_is_a_timeout() -> None:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.conclude(ZERO, NOW + 5.0)
    assert lifecycle.find(NONCE).failure == "RUNTIME_DRAIN_TIMEOUT"


def test_an_expired_drain_may_name_the_source_that_could_not_be_reached() -> None:
    lifecycle = draining()
    lifecycle.expire(NOW + 5.0, "broker is gone")
    assert lifecycle.find(NONCE).failure == "broker is gone"


@pytest.mark.parametrize("phase", [Lifecycle, cordoned, drained, failed, detached])
def test_only_a_draining_release_can_expire(phase: Callable[[], Lifecycle]) -> None:
    lifecycle = phase()
    before = state_of(lifecycle)
    assert lifecycle.expire(1e9) is False
    assert state_of(lifecycle) == before


@pytest.mark.parametrize(
    ("length", "kept"), [(1, 1), (128, 128), (129, 128), (999, 128)]
)
def test_a_failure_is_cut_to_128_characters(length: int, kept: int) -> None:
    lifecycle = draining()
    lifecycle.fail("é" * length, NOW)
    assert lifecycle.find(NONCE).failure == "é" * kept


@pytest.mark.parametrize("ended", [drained, failed, detached])
def test_a_verdict_is_final(ended: Callable[[], Lifecycle]) -> None:
    lifecycle = ended()
    before = state_of(lifecycle)
    for late in (
        lifecycle.close,
        lifecycle.reopen,
        lambda: lifecycle.fail("late", NOW),
        lambda: lifecycle.conclude(ZERO, NOW),
    ):
        with pytest.raises(PhaseConflict):
            late()
    assert state_of(lifecycle) == before


# Find


def test_a_drain_is_found_by_its_nonce_alone() -> None:
    lifecycle = draining()
    assert lifecycle.find(NONCE) is lifecycle.run
    for other in (OTHER_NONCE, NONCE[:-1], NONCE + "\n", "", None):
        with pytest.raises(DrainNotFound) as refused:
            lifecycle.find(other)
        assert refused.value.resumed is False


def test_a_retired_nonce_is_not_found_and_says_why() -> None:
    lifecycle = draining()
    lifecycle.resume(NONCE)
    with pytest.raises(DrainNotFound) as refused:
        lifecycle.find(NONCE)
    assert refused.value.resumed is True
    assert str(refused.value) == "the drain of this nonce was resumed"


# Cordon


def test_a_cordon_and_its_end_can_be_asked_for_twice() -> None:
    lifecycle = Lifecycle()
    lifecycle.cordon()
    lifecycle.cordon()
    assert (lifecycle.phase, lifecycle.epoch) == ("cordoned", 0)
    lifecycle.uncordon()
    lifecycle.uncordon()
    assert (lifecycle.phase, lifecycle.epoch) == ("serving", 0)


def test_a_cordoned_release_goes_back_by_uncordon_alone() -> None:
    lifecycle = cordoned()
    with pytest.raises(DrainNotFound):
        lifecycle.resume(NONCE)
    assert lifecycle.phase == "cordoned"


def test_a_resume_serves_also_where_the_drain_began_cordoned() -> None:
    lifecycle = cordoned()
    lifecycle.begin(begin_request(), NOW)
    lifecycle.resume(NONCE)
    assert (lifecycle.phase, lifecycle.gate) == ("serving", 0)


# Resume


@pytest.mark.parametrize("phase", [draining, drained, failed])
def test_a_resume_serves_again_in_a_new_epoch(phase: Callable[[], Lifecycle]) -> None:
    lifecycle = phase()
    assert lifecycle.resume(NONCE) is False
    assert (lifecycle.phase, lifecycle.epoch, lifecycle.gate) == ("serving", 2, 0)
    assert lifecycle.run is None


def test_a_resume_while_the_verdict_is_read_opens_the_gate() -> None:
    lifecycle = draining()
    lifecycle.close()
    lifecycle.resume(NONCE)
    assert (lifecycle.phase, lifecycle.gate) == ("serving", 0)


def test_a_resume_retires_its_nonce_for_ever() -> None:
    """R2: the old nonce is never found and never begun again."""
    lifecycle = draining()
    lifecycle.resume(NONCE)
    for other in (OTHER_NONCE, THIRD_NONCE):
        with pytest.raises(DrainResumed):
            lifecycle.begin(begin_request(), NOW)
        lifecycle.begin(begin_request(other), NOW)
        with pytest.raises(DrainResumed):
            lifecycle.begin(begin_request(), NOW)
        with pytest.raises(DrainNotFound):
            lifecycle.find(NONCE)
        lifecycle.resume(other)
    assert (lifecycle.phase, lifecycle.epoch) == ("serving", 6)


def test_an_exact_retry_of_a_resume_is_no_second_one() -> None:
    lifecycle = draining()
    lifecycle.resume(NONCE)
    assert lifecycle.resume(NONCE) is True
    assert lifecycle.resume(NONCE) is True
    assert (lifecycle.phase, lifecycle.epoch) == ("serving", 2)


def test_a_resume_is_retried_only_while_its_epoch_still_serves() -> None:
    lifecycle = draining()
    lifecycle.resume(NONCE)
    lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    with pytest.raises(DrainResumed):
        lifecycle.resume(NONCE)
    assert lifecycle.phase == "draining"
    lifecycle.resume(OTHER_NONCE)
    with pytest.raises(DrainResumed):
        lifecycle.resume(NONCE)
    assert lifecycle.resume(OTHER_NONCE) is True


def test_a_retry_of_a_resume_leaves_a_cordon_alone() -> None:
    lifecycle = draining()
    lifecycle.resume(NONCE)
    lifecycle.cordon()
    assert lifecycle.resume(NONCE) is True
    assert lifecycle.phase == "cordoned"


@pytest.mark.parametrize("phase", [Lifecycle, cordoned, draining, drained, failed])
def test_a_resume_of_a_nonce_that_never_was_here_is_not_found(
    phase: Callable[[], Lifecycle],
) -> None:
    lifecycle = phase()
    before = state_of(lifecycle)
    with pytest.raises(DrainNotFound) as refused:
        lifecycle.resume(OTHER_NONCE)
    assert refused.value.resumed is False
    assert state_of(lifecycle) == before


# Detach


def test_a_detached_release_never_serves_again() -> None:
    """R3: a resume that arrives after detach is refused; nothing opens."""
    lifecycle = detached()
    before = state_of(lifecycle)
    with pytest.raises(DrainDetached):
        lifecycle.resume(NONCE)
    with pytest.raises(DrainError):
        lifecycle.resume(OTHER_NONCE)
    assert state_of(lifecycle) == before
    assert (lifecycle.phase, lifecycle.gate) == ("detached", 3)


def test_a_failed_release_can_be_detached_and_stays_failed_to_read() -> None:
    lifecycle = failed()
    lifecycle.detach(NONCE)
    assert lifecycle.find(NONCE).failure == "BROKER_GONE"


def test_only_the_drain_that_stands_can_be_detached() -> None:
    lifecycle = drained()
    with pytest.raises(DrainNotFound):
        lifecycle.detach(OTHER_NONCE)
    assert lifecycle.phase == "drained"


# Seal


def sealed() -> Lifecycle:
    lifecycle = drained()
    lifecycle.seal(NONCE)
    return lifecycle


def test_a_seal_fixes_the_state_and_moves_nothing_and_may_be_asked_for_twice() -> None:
    lifecycle = drained()
    assert lifecycle.find(NONCE).sealed is False
    for _ in range(2):
        lifecycle.seal(NONCE)
        assert lifecycle.find(NONCE).sealed is True
        assert (lifecycle.phase, lifecycle.epoch, lifecycle.gate) == ("drained", 1, 3)


@pytest.mark.parametrize("phase", [draining, failed, detached])
def test_what_may_still_change_or_has_gone_is_not_sealed(
    phase: Callable[[], Lifecycle],
) -> None:
    lifecycle = phase()
    before = state_of(lifecycle)
    with pytest.raises(PhaseConflict, match=f"and this release is {lifecycle.phase}"):
        lifecycle.seal(NONCE)
    assert state_of(lifecycle) == before


def test_only_the_drain_that_stands_can_be_sealed() -> None:
    lifecycle = drained()
    with pytest.raises(DrainNotFound):
        lifecycle.seal(OTHER_NONCE)
    assert lifecycle.find(NONCE).sealed is False


def test_the_drain_after_a_resume_has_its_own_seal() -> None:
    lifecycle = sealed()
    lifecycle.resume(NONCE)
    with pytest.raises(DrainNotFound):
        lifecycle.seal(NONCE)
    lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    assert lifecycle.find(OTHER_NONCE).sealed is False


# What the next release has of it

OF, TO, AGAIN = "sessions/v1", "h" * 43, "i" * 43
Act = Callable[[], object]


def acknowledged() -> Lifecycle:
    lifecycle = sealed()
    lifecycle.acknowledge(1, OF, Recipient(TO))
    return lifecycle


def given_of(lifecycle: Lifecycle) -> list[tuple[str, str, bool]]:
    assert lifecycle.run is not None
    given = lifecycle.run.given.values()
    return [(g.protocol, g.nonce, g.acknowledged) for g in given]


def test_what_was_fetched_is_not_handed_over_yet() -> None:
    lifecycle = sealed()
    for _ in range(2):
        lifecycle.give(1, OF, Recipient(TO))
        assert given_of(lifecycle) == [(OF, TO, False)]
    lifecycle.resume(NONCE)
    assert lifecycle.phase == "serving"


def test_a_fetch_that_nobody_acknowledged_gives_way_to_the_next() -> None:
    lifecycle = sealed()
    lifecycle.give(1, OF, Recipient(TO))
    lifecycle.give(1, OF, Recipient(AGAIN))
    assert given_of(lifecycle) == [(OF, AGAIN, False)]
    lifecycle.acknowledge(1, OF, Recipient(TO))
    assert given_of(lifecycle) == [(OF, TO, True)]


def test_an_acknowledged_state_goes_to_no_other_handoff() -> None:
    lifecycle = acknowledged()
    before = state_of(lifecycle)
    acts: list[Act] = [
        lambda: lifecycle.give(1, OF, Recipient(AGAIN)),
        lambda: lifecycle.acknowledge(1, OF, Recipient(AGAIN)),
        lambda: lifecycle.check_given(OF, Recipient(AGAIN)),
        lambda: lifecycle.check_given(OF, None),
    ]
    for act in acts:
        with pytest.raises(HandedOver, match=f"{OF} has gone over in handoff {TO}"):
            act()
    assert state_of(lifecycle) == before


def test_the_handoff_that_has_it_may_fetch_and_acknowledge_it_again() -> None:
    lifecycle = acknowledged()
    lifecycle.check_given(OF, Recipient(TO))
    lifecycle.give(1, OF, Recipient(TO))
    lifecycle.acknowledge(1, OF, Recipient(TO))
    assert given_of(lifecycle) == [(OF, TO, True)]


def test_each_protocol_is_given_by_itself() -> None:
    lifecycle = acknowledged()
    lifecycle.check_given("rates/v1", Recipient(AGAIN))
    lifecycle.give(1, "rates/v1", Recipient(AGAIN))
    assert given_of(lifecycle) == [(OF, TO, True), ("rates/v1", AGAIN, False)]
    Lifecycle().check_given(OF, None)


def test_a_release_whose_state_has_gone_over_serves_again_by_force_alone() -> None:
    lifecycle = acknowledged()
    lifecycle.acknowledge(1, "rates/v1", Recipient(AGAIN))
    before = state_of(lifecycle)
    with pytest.raises(HandedOver) as refused:
        lifecycle.resume(NONCE)
    assert refused.value.protocols == [OF, "rates/v1"]
    assert state_of(lifecycle) == before
    assert lifecycle.resume(NONCE, force=True) is False
    assert (lifecycle.phase, lifecycle.epoch, lifecycle.gate) == ("serving", 2, 0)
    assert lifecycle.resume(NONCE) is True


def test_what_was_taken_back_needs_no_force() -> None:
    lifecycle = acknowledged()
    assert lifecycle.take_back(1, TO) is True
    assert lifecycle.take_back(1, TO) is True
    assert given_of(lifecycle) == [(OF, TO, False)]
    lifecycle.resume(NONCE)
    assert lifecycle.phase == "serving"


@pytest.mark.parametrize("phase", [Lifecycle, cordoned, draining, drained, detached])
def test_what_was_never_given_is_not_taken_back(phase: Callable[[], Lifecycle]) -> None:
    lifecycle = phase()
    before = state_of(lifecycle)
    assert lifecycle.take_back(1, TO) is False
    assert state_of(lifecycle) == before
    other = acknowledged()
    assert other.take_back(1, AGAIN) is False
    assert given_of(other) == [(OF, TO, True)]


def test_the_word_of_an_earlier_drain_counts_for_no_later_one() -> None:
    """Who has fetched from the drain of epoch 1 knows nothing of that of epoch 3."""
    lifecycle = acknowledged()
    lifecycle.resume(NONCE, force=True)
    acts: list[Act] = [
        lambda: lifecycle.give(1, OF, Recipient(TO)),
        lambda: lifecycle.acknowledge(1, OF, Recipient(TO)),
        lambda: lifecycle.acknowledge(2, OF, Recipient(TO)),
    ]
    for act in acts:
        with pytest.raises(DrainResumed):
            act()
    lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    conclude(lifecycle)
    assert given_of(lifecycle) == []
    with pytest.raises(DrainResumed):
        lifecycle.acknowledge(1, OF, Recipient(TO))
    assert given_of(lifecycle) == []
    lifecycle.acknowledge(3, OF, Recipient(TO))
    assert lifecycle.take_back(1, TO) is False
    assert given_of(lifecycle) == [(OF, TO, True)]


def test_nothing_is_taken_back_once_ownership_has_moved() -> None:
    """R3: nor does force open anything."""
    lifecycle = acknowledged()
    lifecycle.detach(NONCE)
    before = state_of(lifecycle)
    with pytest.raises(DrainDetached):
        lifecycle.take_back(1, TO)
    with pytest.raises(DrainDetached):
        lifecycle.resume(NONCE, force=True)
    assert state_of(lifecycle) == before
    assert (lifecycle.phase, lifecycle.gate) == ("detached", 3)


def test_who_has_fetched_may_acknowledge_also_after_the_detach() -> None:
    lifecycle = sealed()
    lifecycle.give(1, OF, Recipient(TO))
    lifecycle.detach(NONCE)
    lifecycle.acknowledge(1, OF, Recipient(TO))
    assert given_of(lifecycle) == [(OF, TO, True)]


@pytest.mark.parametrize("phase", [sealed, acknowledged, draining, failed, detached])
def test_what_was_written_is_what_comes_back(phase: Callable[[], Lifecycle]) -> None:
    lifecycle = phase()
    back = Lifecycle.restored(json.loads(json.dumps(lifecycle.snapshot())))
    assert state_of(back) == state_of(lifecycle)
    assert back.snapshot() == lifecycle.snapshot()


def to(pid: int, lives: bool | None = True, nonce: str = TO) -> Recipient:
    """One of two new releases; of the other one it is known whether it lives."""
    return Recipient(nonce, {"pid": pid}, within=5.0, lives=lambda _process: lives)


def taken_by_the_first() -> Lifecycle:
    lifecycle = sealed()
    lifecycle.acknowledge(1, OF, to(1), NOW)
    return lifecycle


def test_a_new_release_that_lives_is_not_replaced_under_its_nonce() -> None:
    lifecycle = taken_by_the_first()
    before = state_of(lifecycle)
    acts: list[Act] = [
        lambda: lifecycle.check_given(OF, to(2), NOW + 9),
        lambda: lifecycle.give(1, OF, to(2), NOW + 9),
        lambda: lifecycle.acknowledge(1, OF, to(2), NOW + 9),
        lambda: lifecycle.take_back(1, TO, {"pid": 2}),
    ]
    for act in acts:
        with pytest.raises(HandedOver, match="has gone over"):
            act()
    assert state_of(lifecycle) == before
    lifecycle.acknowledge(1, OF, to(1), NOW)
    lifecycle.acknowledge(1, OF, Recipient(TO, within=5.0), NOW)  # it does not say
    assert state_of(lifecycle) == before


@pytest.mark.parametrize("lives", [False, None])
def test_a_new_release_that_need_not_live_is_replaced_and_has_no_say_any_more(
    lives: bool | None,
) -> None:
    lifecycle = taken_by_the_first()
    lifecycle.check_given(OF, to(2, lives), NOW)
    lifecycle.give(1, OF, to(2, lives), NOW)
    lifecycle.acknowledge(1, OF, to(2, lives), NOW)
    with pytest.raises(HandedOver):
        lifecycle.take_back(1, TO, {"pid": 1})
    assert given_of(lifecycle) == [(OF, TO, True)]
    assert lifecycle.take_back(1, TO, {"pid": 2}) is True
    assert given_of(lifecycle) == [(OF, TO, False)]


def test_what_a_new_release_has_discarded_goes_to_another_though_it_lives() -> None:
    lifecycle = taken_by_the_first()
    lifecycle.take_back(1, TO, {"pid": 1})
    lifecycle.acknowledge(1, OF, to(2), NOW)
    assert given_of(lifecycle) == [(OF, TO, True)]


def fetched_by_the_first() -> Lifecycle:
    lifecycle = sealed()
    lifecycle.give(1, OF, to(1), NOW)
    return lifecycle


@pytest.mark.parametrize("other", [to(2), to(2, None), to(2, nonce=AGAIN)])
def test_what_is_on_its_way_goes_nowhere_else_until_its_time_is_over(
    other: Recipient,
) -> None:
    """Should this release die meanwhile, whoever has fetched it owns it."""
    lifecycle = fetched_by_the_first()
    before = state_of(lifecycle)
    acts: list[Act] = [
        lambda: lifecycle.check_given(OF, other, NOW + 4.9),
        lambda: lifecycle.give(1, OF, other, NOW + 4.9),
        lambda: lifecycle.acknowledge(1, OF, other, NOW + 4.9),
    ]
    for act in acts:
        with pytest.raises(HandedOver, match=r"on its way .* has 0\.1 s left"):
            act()
    lifecycle.check_given(OF, None, NOW)
    lifecycle.give(1, OF, to(1), NOW)
    assert state_of(lifecycle) == before
    lifecycle.give(1, OF, other, NOW + 5)
    with pytest.raises(HandedOver):
        lifecycle.acknowledge(1, OF, to(1, nonce=THIRD_NONCE), NOW + 6)
    lifecycle.acknowledge(1, OF, other, NOW + 6)
    assert given_of(lifecycle) == [(OF, other.nonce, True)]


@pytest.mark.parametrize("nonce", [TO, AGAIN])
def test_who_has_died_on_the_way_is_not_waited_for(nonce: str) -> None:
    lifecycle = fetched_by_the_first()
    lifecycle.acknowledge(1, OF, to(2, False, nonce), NOW)
    assert given_of(lifecycle) == [(OF, nonce, True)]


def test_who_has_failed_on_the_way_is_not_waited_for() -> None:
    lifecycle = fetched_by_the_first()
    assert lifecycle.take_back(1, TO, {"pid": 1}) is True
    lifecycle.acknowledge(1, OF, to(2, nonce=AGAIN), NOW)
    assert given_of(lifecycle) == [(OF, AGAIN, True)]


def test_what_was_on_its_way_at_a_resume_bars_the_next_drain_for_its_time() -> None:
    """It is told of the resume when it wants to acknowledge, unless this release is
    dead by then: to another that had fetched from it, too, it would look the same."""
    lifecycle = fetched_by_the_first()
    lifecycle.resume(NONCE)
    with pytest.raises(DrainResumed):
        lifecycle.acknowledge(1, OF, to(1), NOW)
    lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    conclude(lifecycle)
    lifecycle = Lifecycle.restored(lifecycle.snapshot())
    with pytest.raises(HandedOver, match="on its way"):
        lifecycle.give(3, OF, to(2, nonce=AGAIN), NOW + 4.9)
    assert given_of(lifecycle) == []
    later = Lifecycle.restored(lifecycle.snapshot())
    later.acknowledge(3, OF, to(2, nonce=AGAIN), NOW + 5)
    lifecycle.take_back(1, TO, {"pid": 1})
    lifecycle.acknowledge(3, OF, to(2, nonce=AGAIN), NOW)
    assert given_of(lifecycle) == given_of(later) == [(OF, AGAIN, True)]


def test_a_seal_that_fails_is_counted_unless_another_one_has_not() -> None:
    lifecycle = drained()
    assert lifecycle.run is not None
    assert lifecycle.unseal(1) is True
    assert lifecycle.run.unseals == 1
    lifecycle.seal(NONCE)
    assert lifecycle.unseal(1) is False
    assert (lifecycle.run.unseals, lifecycle.run.sealed) == (1, True)
    lifecycle.resume(NONCE)
    assert lifecycle.unseal(1) is True
    lifecycle.begin(begin_request(OTHER_NONCE), NOW)
    assert lifecycle.unseal(1) is True
    assert lifecycle.run.unseals == 0
