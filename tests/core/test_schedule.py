"""Acts come out in the order of their moments, and none before its own."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.core.schedule import Schedule

MANY = 1_000_000


def act_of(log: list[str], name: str) -> Callable[[], None]:
    return lambda: log.append(name)


def scheduled(*moments: float) -> tuple[Schedule, list[str]]:
    """One act for each moment, and the log in which they leave their names."""
    schedule, log = Schedule(), []  # type: tuple[Schedule, list[str]]
    for number, moment in enumerate(moments):
        schedule.add(moment, act_of(log, f"{number}"))
    return schedule, log


def carry_out(schedule: Schedule, now: float, most: int = MANY) -> int:
    return sum(1 for act in schedule.due(now, most) for _ in (act(),))


def test_an_empty_schedule_has_nothing_to_do_and_nothing_to_wait_for() -> None:
    schedule = Schedule()
    assert len(schedule) == 0
    assert list(schedule.due(float("inf"), MANY)) == []
    assert schedule.pause(0.0) is None


def test_acts_come_in_the_order_of_their_moments() -> None:
    schedule, log = scheduled(3.0, 1.0, 2.0)
    assert carry_out(schedule, 9.0) == 3
    assert log == ["1", "2", "0"]


def test_equal_moments_come_as_they_were_added() -> None:
    schedule, log = scheduled(2.0, 1.0, 1.0, 2.0, 1.0)
    carry_out(schedule, 9.0)
    assert log == ["1", "2", "4", "0", "3"]


@pytest.mark.parametrize(
    ("now", "done"), [(0.9, []), (1.0, ["0"]), (1.9, ["0"]), (2.0, ["0", "1"])]
)
def test_an_act_is_due_at_its_moment_and_not_before(
    now: float, done: list[str]
) -> None:
    schedule, log = scheduled(1.0, 2.0)
    carry_out(schedule, now)
    assert log == done
    assert len(schedule) == 2 - len(done)


def test_nothing_is_done_a_second_time() -> None:
    schedule, log = scheduled(1.0)
    assert (carry_out(schedule, 1.0), carry_out(schedule, 1.0)) == (1, 0)
    assert log == ["0"]


@pytest.mark.parametrize(("most", "done"), [(0, 0), (1, 1), (2, 2), (4, 3)])
def test_no_more_than_so_many_are_taken_out(most: int, done: int) -> None:
    schedule, log = scheduled(1.0, 2.0, 3.0)
    assert carry_out(schedule, 9.0, most) == done
    assert log == ["0", "1", "2"][:done]
    assert len(schedule) == 3 - done


def test_who_stops_taking_leaves_the_others_in() -> None:
    schedule, _ = scheduled(1.0, 2.0, 3.0)
    next(schedule.due(9.0, MANY))
    assert len(schedule) == 2
    assert schedule.pause(1.0) == 1.0


def test_what_an_act_adds_is_due_in_its_turn() -> None:
    schedule, log = scheduled(1.0, 3.0)

    def adds() -> None:
        schedule.add(2.0, act_of(log, "added"))
        schedule.add(7.0, act_of(log, "later"))

    schedule.add(0.0, adds)
    carry_out(schedule, 5.0)
    assert log == ["0", "added", "1"]
    assert schedule.pause(5.0) == 2.0


@pytest.mark.parametrize(
    ("now", "pause"), [(0.0, 5.0), (4.5, 0.5), (5.0, 0.0), (8.0, 0.0)]
)
def test_the_pause_is_up_to_the_next_moment_and_never_negative(
    now: float, pause: float
) -> None:
    schedule, _ = scheduled(9.0, 5.0)
    assert schedule.pause(now) == pause


def test_an_earlier_act_shortens_the_pause() -> None:
    schedule, log = scheduled(9.0)
    schedule.add(2.0, act_of(log, "early"))
    assert schedule.pause(0.0) == 2.0


@given(
    st.lists(st.integers(0, 9), max_size=30),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=10),
)
def test_a_walk_does_each_act_once_and_none_too_early(
    moments: list[int], steps: list[tuple[int, int]]
) -> None:
    schedule, log = scheduled(*moments)
    for now, most in sorted(steps):
        before = len(log)
        done = carry_out(schedule, now, most)
        assert done == len(log) - before <= most
        assert all(moments[int(name)] <= now for name in log)
        overdue = sum(moment <= now for moment in moments) - len(log)
        assert done == most or overdue == 0
    carry_out(schedule, 10)
    assert sorted(log, key=int) == [str(n) for n in range(len(moments))]


@given(st.lists(st.floats(0, 100), max_size=30))
def test_one_walk_is_a_stable_sort(moments: list[float]) -> None:
    schedule, log = scheduled(*moments)
    carry_out(schedule, 100.0)
    order = sorted(range(len(moments)), key=lambda number: moments[number])
    assert log == [str(number) for number in order]
