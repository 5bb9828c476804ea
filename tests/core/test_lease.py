"""Who holds a lease, and which ticks may still be fired."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress

import pytest

from drainmw.core.lease import (
    CROWDED,
    INTERRUPTED_MAXIMUM,
    KEPT,
    Lease,
    Outcome,
    Tick,
    Watch,
)
from drainmw.errors import LeaseCrowded, LeaseHeld, LeaseLost

BLUE, GREEN = "blue", "green"


def taken(by: str = BLUE) -> Lease:
    lease = Lease()
    lease.take(by)
    return lease


def tick(due: int, *, generation: int = 1, by: str = BLUE, of: str = "x") -> Tick:
    return Tick(of, due, generation, by)


# The holder


def test_each_taking_makes_a_new_generation() -> None:
    lease = taken()
    assert (lease.holder, lease.generation) == (BLUE, 1)
    lease.give_up(BLUE, 1)
    assert (lease.holder, lease.generation) == (None, 1)
    lease.take(GREEN)
    assert (lease.holder, lease.generation) == (GREEN, 2)
    lease.take(GREEN)
    assert lease.generation == 3


def test_a_lease_is_not_taken_from_who_may_live() -> None:
    lease = taken()
    before = lease.snapshot()
    with pytest.raises(LeaseHeld, match="blue"):
        lease.take(GREEN)
    assert lease.snapshot() == before
    lease.take(GREEN, dead=True)
    assert (lease.holder, lease.generation) == (GREEN, 2)


def test_whoever_was_overtaken_writes_nothing_any_more() -> None:
    lease = taken()
    lease.take(GREEN, dead=True)
    before = lease.snapshot()
    for write in (
        lambda: lease.check(BLUE, 1),
        lambda: lease.renew(BLUE, 1),
        lambda: lease.give_up(BLUE, 1),
        lambda: lease.claim(tick(5)),
        lambda: lease.since(BLUE, 1, "x", 5),
    ):
        with pytest.raises(LeaseLost, match=r"generation 1 .* newest is 2"):
            write()
    assert lease.snapshot() == before


def test_a_generation_of_before_is_refused_to_the_same_holder_too() -> None:
    lease = taken()
    lease.take(BLUE)
    with pytest.raises(LeaseLost):
        lease.claim(tick(5, generation=1))
    assert lease.claim(tick(5, generation=2))


def remembered() -> Lease:
    """What blue has seen last, when it held the lease and a tick ran."""
    known = taken()
    known.generation = 7
    known.claim(tick(5, generation=7))
    return known


def test_a_store_that_has_lost_its_memory_is_told_by_who_holds_it() -> None:
    lease = Lease()
    lease.recall(remembered(), BLUE, holds=True)
    lease.renew(BLUE, 7)
    assert not lease.claim(tick(4, generation=7))
    assert lease.running == [tick(5, generation=7)]
    assert lease.claim(tick(6, generation=7))


def test_what_was_forgotten_is_not_taken_before_its_holder_could_tell() -> None:
    lease, known = Lease(), remembered()
    lease.recall(known, GREEN, holds=False)
    with pytest.raises(LeaseHeld):
        lease.take(GREEN)
    lease.recall(known, BLUE, holds=False)  # it relies on it no more
    with pytest.raises(LeaseLost):
        lease.check(BLUE, 7)
    with pytest.raises(LeaseHeld):
        lease.take(BLUE)
    lease.take(GREEN, dead=True)
    assert lease.generation == 8
    assert not lease.claim(tick(5, generation=8, by=GREEN))


def test_whoever_knows_less_is_corrected_by_the_holder() -> None:
    lease, known = Lease(), remembered()
    less = Lease.restored(known.snapshot())
    less.last["x"] = 3
    lease.recall(less, GREEN, holds=False)
    lease.recall(known, BLUE, holds=True)
    lease.check(BLUE, 7)
    assert lease.last == {"x": 5}


def test_an_older_state_of_the_same_holder_is_corrected_by_it() -> None:
    known = remembered()
    older = Lease.restored(known.snapshot())
    older.last["x"] = 3
    older.running.clear()
    older.recall(known, BLUE, holds=True)
    assert (older.last, older.running) == (known.last, known.running)


def test_who_was_overtaken_reminds_nobody() -> None:
    lease = Lease(generation=8, holder=GREEN)
    lease.recall(remembered(), BLUE, holds=True)
    assert lease == Lease(generation=8, holder=GREEN)


def test_what_was_noted_as_interrupted_is_not_noted_again() -> None:
    known = remembered()
    lease = Lease.restored(known.snapshot())
    lease.settle({tick(5, generation=7): Outcome.INTERRUPTED})
    lease.recall(known, BLUE, holds=True)
    assert (lease.running, lease.interruptions) == ([], 1)


def test_a_store_that_remembers_is_not_told_of_what_was_withdrawn() -> None:
    lease = taken()
    lease.claim(tick(5))
    known = Lease.restored(lease.snapshot())
    lease.settle({tick(5): Outcome.UNSTARTED})
    lease.recall(known, GREEN, holds=False)
    lease.give_up(BLUE, 1)
    lease.recall(known, GREEN, holds=False)
    lease.take(GREEN)
    assert lease.claim(tick(5, generation=2, by=GREEN))


# Ticks


def test_a_tick_is_claimed_once_and_none_before_it() -> None:
    lease = taken()
    assert lease.claim(tick(5))
    lease.settle({tick(5): Outcome.ENDED})
    for due in (5, 4):
        assert not lease.claim(tick(due))
    assert lease.claim(tick(6))
    assert lease.claim(tick(5, of="y"))


def test_a_claim_whose_answer_was_lost_is_granted_again() -> None:
    lease = taken()
    assert lease.claim(tick(5))
    assert lease.claim(tick(5))
    assert lease.running == [tick(5)]


def test_the_next_holder_fires_what_came_due_in_between_and_nothing_twice() -> None:
    lease = taken()
    lease.claim(tick(1))
    lease.settle({tick(1): Outcome.ENDED})
    lease.give_up(BLUE, 1)
    lease.take(GREEN)
    granted = [
        due for due in (1, 2, 3) if lease.claim(tick(due, generation=2, by=GREEN))
    ]
    assert granted == [2, 3]


def test_a_tick_that_ran_when_the_lease_was_given_up_ends_later() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.give_up(BLUE, 1)
    assert lease.take(GREEN) == []
    assert not lease.claim(tick(5, generation=2, by=GREEN))
    assert lease.settle({tick(5): Outcome.ENDED}) == []
    assert (lease.running, lease.interruptions) == ([], 0)


def test_what_a_dead_holder_was_at_is_interrupted_and_not_fired_again() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.claim(tick(7, of="y"))
    lease.settle({tick(7, of="y"): Outcome.ENDED})
    assert lease.take(GREEN, dead=True) == [tick(5)]
    assert (lease.running, lease.interrupted) == ([], [tick(5)])
    assert not lease.claim(tick(5, generation=2, by=GREEN))


def test_an_end_that_comes_after_its_interruption_changes_nothing() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.take(GREEN, dead=True)
    before = lease.snapshot()
    assert lease.settle({tick(5): Outcome.ENDED}) == []
    assert lease.snapshot() == before


def test_ticks_of_instances_that_are_gone_are_interrupted() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.give_up(BLUE, 1)
    lease.take(GREEN)
    assert lease.reap({"red"}) == []
    assert lease.reap({BLUE}) == [tick(5)]
    assert lease.reap({BLUE}) == []
    assert lease.interruptions == 1


def test_a_tick_that_was_cut_is_interrupted() -> None:
    lease = taken()
    lease.claim(tick(5))
    assert lease.settle({tick(5): Outcome.INTERRUPTED}) == [tick(5)]
    assert lease.interrupted == [tick(5)]


def test_a_tick_that_has_not_begun_is_fired_by_whoever_is_next() -> None:
    lease = taken()
    lease.claim(tick(5))
    assert lease.settle({tick(5): Outcome.UNSTARTED}) == []
    assert lease.running == []
    lease.give_up(BLUE, 1)
    lease.take(GREEN)
    assert lease.claim(tick(5, generation=2, by=GREEN))


def test_what_has_not_begun_is_given_back_as_long_as_nobody_has_taken_over() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.give_up(BLUE, 1)
    assert lease.settle({tick(5): Outcome.UNSTARTED}) == []
    lease.take(GREEN)
    assert lease.claim(tick(5, generation=2, by=GREEN))


def test_what_has_not_begun_is_not_given_back_under_another_generation() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.give_up(BLUE, 1)
    lease.take(GREEN)
    assert lease.settle({tick(5): Outcome.UNSTARTED}) == [tick(5)]
    assert lease.last["x"] == 5


def test_what_has_not_begun_is_not_given_back_where_a_later_one_was_fired() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.claim(tick(6))
    assert lease.settle({tick(5): Outcome.UNSTARTED}) == [tick(5)]
    assert lease.last["x"] == 6


def test_a_schedule_that_nobody_knows_begins_where_it_is_said() -> None:
    lease = taken()
    assert lease.since(BLUE, 1, "x", 100) == 100
    assert lease.since(BLUE, 1, "x", 200) == 100
    assert not lease.claim(tick(100))
    assert lease.claim(tick(101))
    assert lease.since(BLUE, 1, "x", 200) == 101


def test_a_schedule_of_which_all_was_lost_begins_where_it_is_said() -> None:
    lease = taken()
    lease.claim(tick(5))
    assert lease.since(BLUE, 1, "x", 8, anew=True) == 8
    assert lease.since(BLUE, 1, "x", 6, anew=True) == 8
    assert not lease.claim(tick(8))


def test_the_latest_interrupted_ticks_are_kept_and_all_are_counted() -> None:
    lease = taken()
    many = INTERRUPTED_MAXIMUM + 5
    for due in range(many):
        lease.claim(tick(due))
        lease.settle({tick(due): Outcome.INTERRUPTED})
    assert lease.interruptions == many
    assert [t.due for t in lease.interrupted] == list(range(5, many))


def test_old_schedules_are_forgotten_and_never_fired_again() -> None:
    lease = taken()
    for number in range(CROWDED):
        once = tick(number, of=f"once {number}")
        lease.claim(once)
        lease.settle({once: Outcome.ENDED})
    with pytest.raises(LeaseCrowded, match="1000 schedules"):
        lease.claim(tick(KEPT - 1, of="one too many"))
    assert lease.claim(tick(KEPT + 9, of="a day later"))
    assert "once 9" not in lease.last and "once 10" in lease.last
    assert not lease.claim(tick(9, of="once 9"))
    assert lease.claim(tick(10, of="new"))
    assert lease.since(BLUE, 1, "once 8", 7) == 9
    assert not lease.claim(tick(8, of="once 8"))


# Liveness by renewals alone


def test_a_holder_that_does_not_renew_is_over_by_the_clock_of_who_watches() -> None:
    lease, watch = taken(), Watch(6.0)
    assert not watch.is_over(lease, 1000.0)
    assert not watch.is_over(lease, 1005.9)
    assert watch.is_over(lease, 1006.0)


def test_whoever_renews_is_never_over() -> None:
    lease, watch = taken(), Watch(6.0)
    for second in range(1000, 1100, 5):
        lease.renew(BLUE, 1)
        assert not watch.is_over(lease, float(second))


def test_another_holder_or_generation_is_watched_anew() -> None:
    lease, watch = taken(), Watch(6.0)
    watch.is_over(lease, 1000.0)
    lease.take(GREEN, dead=True)
    assert not watch.is_over(lease, 1006.0)
    lease.take(GREEN)
    assert not watch.is_over(lease, 1012.0)


# As JSON


def test_a_lease_survives_its_json() -> None:
    lease = taken()
    lease.claim(tick(5))
    lease.claim(tick(6))
    lease.settle({tick(5): Outcome.INTERRUPTED})
    lease.renew(BLUE, 1)
    restored = Lease.restored(json.loads(json.dumps(lease.snapshot())))
    assert restored == lease


def test_a_lease_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        Lease.restored(Lease().snapshot() | {"format": 2})


# Whatever several processes do, in any order

WALKS = 1500
STEPS = 80


class Processes:
    """Processes that claim, fire, die and come again, on one lease.

    What is fired is counted here, by who does it. The lease must never let it
    be more than once, nor lose a tick that is neither fired nor reported.
    """

    def __init__(self) -> None:
        self.lease = Lease()
        self.born = Counter[str]()
        self.generations: dict[str, int] = {}
        """What each process that lives takes for its own."""
        self.claimed: set[Tick] = set()
        """By processes that live, which have not begun with it."""
        self.running: set[Tick] = set()
        self.fired = Counter[int]()
        self.reported: set[int] = set()

    def instance(self, name: str) -> str:
        return f"{name}{self.born[name]}"

    @property
    def living(self) -> set[str]:
        return {self.instance(name) for name in "abc"}

    def settle(self, ticks: set[Tick], outcome: Outcome) -> None:
        self.report(self.lease.settle(dict.fromkeys(ticks, outcome)))

    def report(self, ticks: list[Tick]) -> None:
        self.reported |= {t.due for t in ticks}

    def of(self, name: str, ticks: set[Tick]) -> set[Tick]:
        return {t for t in ticks if t.instance == self.instance(name)}

    # What one of them does

    def take(self, name: str) -> None:
        holder, generation = self.lease.holder, self.lease.generation
        dead = holder is not None and holder not in self.living
        try:
            self.report(self.lease.take(self.instance(name), dead=dead))
        except LeaseHeld:
            assert holder in self.living
        else:
            assert dead or holder in (None, self.instance(name))
            assert self.lease.generation > generation
            self.generations[name] = self.lease.generation

    def claim(self, name: str) -> None:
        generation = self.generations.get(name)
        if generation is None:
            return
        due = self.lease.last.get("x", 0) + 1
        wanted = tick(due, generation=generation, by=self.instance(name))
        try:
            assert self.lease.claim(wanted)
        except LeaseLost:
            del self.generations[name]
        else:
            self.claimed.add(wanted)

    def begin(self, name: str) -> None:
        for begun in self.of(name, self.claimed):
            self.claimed.remove(begun)
            self.running.add(begun)
            self.fired[begun.due] += 1

    def think_better_of_it(self, name: str) -> None:
        own = self.of(name, self.claimed)
        self.claimed -= own
        self.settle(own, Outcome.UNSTARTED)

    def end(self, name: str) -> None:
        own = self.of(name, self.running)
        self.running -= own
        self.settle(own, Outcome.ENDED)

    def give_up(self, name: str) -> None:
        generation = self.generations.pop(name, None)
        if generation is not None:
            with suppress(LeaseLost):
                self.lease.give_up(self.instance(name), generation)

    def die(self, name: str) -> None:
        self.generations.pop(name, None)
        self.claimed -= self.of(name, self.claimed)
        self.running -= self.of(name, self.running)
        self.born[name] += 1

    def reap(self, name: str) -> None:
        gone = {t.instance for t in self.lease.running} - self.living
        self.report(self.lease.reap(gone))

    def check(self) -> None:
        noted = {t.due for t in self.lease.running}
        assert all(times == 1 for times in self.fired.values()), "fired twice"
        for due in range(1, self.lease.last.get("x", 0) + 1):
            assert due in self.fired or due in self.reported or due in noted, "lost"
        assert {t.due for t in self.running} <= noted | self.reported
        now = (str(self.lease.holder), self.lease.generation)
        believed = [(self.instance(n), g) for n, g in self.generations.items()]
        assert believed.count(now) <= 1, "two may write"


def test_no_order_of_events_fires_a_tick_twice_or_loses_one() -> None:
    for seed in range(WALKS):
        chance, scene = random.Random(seed), Processes()
        acts = [scene.take, scene.claim, scene.begin, scene.think_better_of_it]
        acts += [scene.claim, scene.end, scene.give_up, scene.die, scene.reap]
        story = []
        for _ in range(STEPS):
            act, name = chance.choice(acts), chance.choice("abc")
            story.append(f"{name} {act.__name__}")
            act(name)
            try:
                scene.check()
            except AssertionError as exc:
                exc.add_note(f"seed {seed}: {', '.join(story)}")
                raise
