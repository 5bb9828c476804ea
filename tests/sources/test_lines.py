"""Keyed work in lines: what is next, what goes over, what comes back. No loop."""

import pytest

from drainmw.sources.feeding import Work
from drainmw.sources.lines import CHASES, Lines
from tests.sources.lines_rig import Started, Wanderer, piece


def test_keys_go_side_by_side_and_one_key_in_order() -> None:
    queue = Started()
    first, second, other = piece("1", "a"), piece("2", "a"), piece("3", "b")
    with queue.starts("1", "3"):
        for each in (first, second, other):
            queue.lines.add(each)
    assert queue.lines.counts == (3, 0)
    with queue.starts("2"):
        queue.lines.end(first)
    assert queue.lines.counts == (2, 0)


def test_lifecycle_work_goes_before_application_work() -> None:
    queue = Started()
    pieces = [piece("1"), piece("2"), piece("3", lane="lifecycle")]
    pieces += [piece("4", lane="lifecycle")]
    for each in pieces:
        queue.lines.add(each)
    for id in ("3", "4", "2"):
        queue.lines.end(next(p for p in pieces if p.place == "running"))
        queue.take()
        assert [p.id for p in pieces if p.place == "running"] == [id]


def test_a_line_without_work_is_not_kept() -> None:
    queue = Started()
    only = piece("1")
    queue.lines.add(only)
    assert [line.key for line in queue.lines] == ["k"]
    queue.lines.end(only)
    assert list(queue.lines) == []


@pytest.mark.parametrize("key", ["k", None], ids=["of one key", "of all"])
def test_a_pause_starts_nothing_more_until_a_resume(key: str | None) -> None:
    queue = Started()
    first, second = piece("1"), piece("2")
    queue.lines.add(first)
    queue.take()
    queue.lines.pause(key)
    with queue.starts():
        queue.lines.add(second)
        queue.lines.end(first)
    with queue.starts("2"):
        queue.lines.resume(key)


def test_a_key_that_was_paused_by_itself_stays_so() -> None:
    queue = Started()
    queue.lines.pause("k")
    queue.lines.pause(None)
    queue.lines.add(piece("1"))
    with queue.starts():
        queue.lines.resume(None)
    with queue.starts("1"):
        queue.lines.resume("k")


def test_a_stop_gives_up_what_waits_and_nothing_else() -> None:
    queue = Started()
    running, waiting, other = piece("1"), piece("2"), piece("3", "other")
    for each in (running, waiting, other):
        queue.lines.add(each)
    assert queue.lines.stop("k") == [waiting]
    assert (running.place, waiting.place) == ("running", "out")
    assert (queue.lines.stops("k"), queue.lines.stops("other")) == (True, False)
    assert queue.lines.counts == (2, 0)


def test_work_of_a_schedule_counts_as_such_and_takes_its_slot() -> None:
    queue = Started()
    tick = piece("1", schedule="nightly")
    queue.lines.add(tick)
    assert (queue.lines.counts, queue.lines.occupies("nightly")) == ((0, 1), True)
    queue.lines.end(tick)
    assert (queue.lines.counts, queue.lines.occupies("nightly")) == ((0, 0), False)


# Going over


def test_what_has_not_started_is_withdrawn_and_comes_back_in_its_place() -> None:
    queue = Started()
    pieces = [piece(str(n)) for n in range(4)]
    for each in pieces:
        queue.lines.add(each)
    queue.take()
    queue.travel()
    assert [each.place for each in pieces] == ["running"] + ["withdrawn"] * 3
    assert (queue.lines.counts, queue.lines.leaving) == ((1, 0), 3)
    assert [each.id for each in queue.lines.travellers()] == ["1", "2", "3"]
    with queue.starts():
        queue.lines.end(pieces[0])
    with queue.starts("1"):
        queue.lines.stay()
    assert [each.place for each in pieces[2:]] == ["waiting"] * 2


def test_what_has_to_end_here_is_never_behind_what_goes() -> None:
    """Or the order of its key would be another one."""
    queue = Started()
    ends_here = piece("2", handler=None)
    for each in (piece("0"), piece("1"), ends_here, piece("3")):
        queue.lines.add(each)
    queue.travel()
    assert [each.id for each in queue.lines.travellers()] == ["3"]
    late = piece("4", handler=None)
    late.freeze()
    queue.lines.add(late)
    assert queue.lines.travellers() == []


def test_while_lines_are_looked_through_nothing_is_started() -> None:
    queue = Started()
    first, second = piece("1"), piece("2")
    for each in (first, second):
        queue.lines.add(each)
    queue.take()
    fresh = queue.lines.travel(10**6)
    assert fresh == [second]
    with queue.starts():
        queue.lines.end(first)
        queue.lines.sift_anew()
    for each in fresh:
        each.freeze()
    with queue.starts():
        queue.lines.sift()
    assert second.place == "withdrawn"


def test_what_has_no_room_ends_here() -> None:
    """So that an export is never too large."""
    queue = Started()
    pieces = [piece(str(n)) for n in range(10)]
    for each in pieces:
        queue.lines.add(each)
    pieces[1].freeze()
    queue.travel(room=3 * pieces[1].size)
    assert [each.id for each in queue.lines.travellers()] == ["7", "8", "9"]
    assert queue.lines.room == 0


def test_what_work_in_flight_has_started_ends_with_that_work() -> None:
    """It may wait for the result."""
    queue = Started()
    parent = Work(None)
    running, child = piece("1"), piece("2", feeder=parent)
    queue.lines.add(running)
    queue.lines.add(child)
    queue.travel()
    assert queue.lines.travellers() == []
    parent.over()
    queue.lines.sift_anew()
    assert queue.lines.travellers() == [child]


def test_what_is_started_on_and_on_goes_over_though_it_may_be_waited_for() -> None:
    queue = Started()
    running = piece("1")
    queue.lines.add(running)
    queue.travel()
    for deep in (CHASES, CHASES + 1):
        child = piece(f"deep-{deep}", feeder=Work(None), depth=deep)
        child.freeze()
        queue.lines.add(child)
    assert [each.id for each in queue.lines.travellers()] == [f"deep-{CHASES + 1}"]


def parked(queue: Started, id: str = "1") -> None:
    line = queue.lines.find("k")
    assert line is not None
    assert line.running is not None
    line.running.of = line.running.id
    line.running.freeze()
    queue.lines.park(line.running)


def test_what_is_parked_holds_its_slot_and_its_key_and_no_drain() -> None:
    queue = Started()
    first, second = piece("1", schedule="nightly"), piece("2")
    for each in (first, second):
        queue.lines.add(each)
    queue.take()
    assert not queue.lines.asks(first)
    queue.travel()
    assert queue.lines.asks(first)
    with queue.starts():
        parked(queue)
    assert (first.place, queue.lines.counts) == ("parked", (0, 0))
    assert queue.lines.occupies("nightly")
    assert [each.id for each in queue.lines.travellers()] == ["1", "2"]
    with queue.starts("1"):
        queue.lines.stay()


def test_what_is_parked_early_goes_on_if_it_is_in_the_way_after_all() -> None:
    """It is asked at once, and may park before its line has been looked through."""
    queue = Started()
    first = piece("1")
    for each in (first, piece("2", handler=None)):
        queue.lines.add(each)
    queue.take()
    assert [each.id for each in queue.lines.travel(10**6)] == ["2"]
    assert queue.lines.asks(first)
    with queue.starts():
        parked(queue)
    with queue.starts("1"):
        queue.lines.sift()


def test_two_that_were_parked_keep_their_order() -> None:
    queue = Started()
    first, second = piece("a~1", of="a"), piece("b~1", of="b")
    queue.lines.insert([first, second], "waiting")
    queue.take()
    queue.travel()
    first.freeze()
    queue.lines.park(first)
    assert queue.lines.travellers() == [first, second]


def test_what_had_to_end_here_may_park_once_it_is_the_last() -> None:
    queue = Started()
    parent = Work(None)
    first, child = piece("1"), piece("2", feeder=parent)
    for each in (first, child):
        queue.lines.add(each)
    queue.take()
    queue.travel()
    assert not queue.lines.asks(first)
    queue.lines.end(first)
    assert not queue.lines.asks(child)  # its parent may wait for it
    parent.over()
    assert queue.lines.asks(child)


def test_what_goes_on_at_once_does_not_hide_what_waits_behind_it() -> None:
    queue = Started()
    first, child = piece("1"), piece("2", feeder=Work(None))
    last = piece("3", handler=None)
    queue.lines.add(first)
    queue.take()
    queue.travel()
    for each in (child, last):
        each.freeze()
        queue.lines.add(each)
    with queue.starts("1"):
        parked(queue)
    with queue.starts("2"):
        queue.lines.end(first)
    assert not queue.lines.asks(child)


def test_nothing_is_asked_to_park_before_what_has_to_end_here() -> None:
    queue = Started()
    first = piece("1")
    queue.lines.add(first)
    queue.take()
    queue.travel()
    late = piece("2", handler=None)
    late.freeze()
    queue.lines.add(late)
    assert not queue.lines.asks(first)


def test_what_is_parked_goes_on_when_it_turns_out_to_be_in_the_way() -> None:
    queue = Started()
    first = piece("1")
    queue.lines.add(first)
    queue.take()
    queue.travel()
    parked(queue)
    late = piece("2", handler=None)
    late.freeze()
    with queue.starts("1"):
        queue.lines.add(late)
    assert not queue.lines.asks(first)
    with queue.starts("2"):
        queue.lines.end(first)


def test_what_cannot_be_parked_goes_on_at_once_and_is_not_asked_again() -> None:
    queue = Started()
    first = piece("1")
    queue.lines.add(first)
    queue.take()
    queue.travel()
    first.checkpoint = object()
    with queue.starts("1"):
        parked(queue)
    assert not queue.lines.asks(first)
    queue.lines.stay()
    queue.travel()
    assert queue.lines.asks(first)  # in the next drain it is


def test_what_was_kept_and_waits_is_asked_in_the_next_drain() -> None:
    queue = Started()
    first = piece("1")
    queue.lines.add(first)
    queue.take()
    queue.travel()
    queue.lines.pause("k")
    first.checkpoint = object()
    parked(queue)
    queue.lines.stay()
    queue.lines.resume("k")
    queue.take()
    queue.travel()
    assert queue.lines.asks(first)


def test_what_had_to_end_here_is_in_nobodys_way_once_it_is_given_up() -> None:
    queue = Started()
    first = piece("1")
    for each in (first, piece("2", handler=None)):
        queue.lines.add(each)
    queue.travel()
    assert not queue.lines.asks(first)
    queue.lines.stop("k")
    assert queue.lines.asks(first)


def test_the_room_is_that_of_the_whole_drain() -> None:
    queue = Started()
    queue.lines.pause("k")
    queue.lines.add(piece("1"))
    queue.travel(room=1000)
    left = queue.lines.room
    queue.travel(room=1000)
    assert queue.lines.room == left < 1000


# Coming over


def test_what_comes_over_goes_before_what_waits_here() -> None:
    queue = Started()
    running = piece("run")
    for each in (running, piece("own"), piece("own-life", lane="lifecycle")):
        queue.lines.add(each)
    queue.take()
    came = [piece("p~1", of="p"), piece("life", lane="lifecycle"), piece("app")]
    queue.lines.insert(came, "waiting")
    order = []
    while (line := queue.lines.find("k")) and line.running:
        queue.lines.end(line.running)
        order += queue.take()
    assert order == ["p~1", "life", "own-life", "app", "own"]


def test_what_is_provisional_counts_and_starts_when_it_is_confirmed() -> None:
    queue = Started()
    came, own = piece("came"), piece("own")
    with queue.starts():
        queue.lines.insert([came], "provisional")
        queue.lines.add(own)
    assert queue.lines.counts == (2, 0)
    with queue.starts("came"):
        queue.lines.confirm([came])


def test_what_is_discarded_leaves_no_trace() -> None:
    queue = Started()
    came, own = piece("came", schedule="nightly"), piece("own")
    queue.lines.insert([came], "provisional")
    queue.lines.add(own)
    with queue.starts("own"):
        assert queue.lines.discard([came]) == [came]
    assert not queue.lines.occupies("nightly")
    assert queue.lines.counts == (1, 0)
    assert queue.lines.discard([came]) == []


def test_what_is_confirmed_is_not_discarded() -> None:
    queue = Started()
    came = piece("came")
    queue.lines.insert([came], "provisional")
    queue.lines.confirm([came])
    assert queue.lines.discard([came]) == []
    assert came.place == "running"


# At random


@pytest.mark.parametrize("seed", range(40))
def test_in_any_life_each_runs_once_and_in_order(seed: int) -> None:
    Wanderer(seed).wander(steps=250)


def test_lines_of_nothing_are_nothing() -> None:
    lines = Lines()
    lines.stay()
    lines.sift_anew()
    assert (lines.counts, lines.leaving, lines.travellers()) == ((0, 0), 0, [])
    assert lines.stop(None) == []
