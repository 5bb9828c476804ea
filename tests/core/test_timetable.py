"""When a schedule is due; the same for everybody who works it out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.core.timetable import Every, Once, due_ms, moment, next_due, overdue
from drainmw.errors import Misuse

DAY = 86_400_000


@pytest.mark.parametrize(
    ("since", "due"), [(0, 200), (199, 200), (200, 400), (201, 400), (-1, 0)]
)
def test_an_interval_is_due_at_whole_numbers_of_periods(since: int, due: int) -> None:
    assert Every(200).after(since) == due


def test_an_offset_shifts_all_of_them() -> None:
    table = Every(1000, 300)
    assert [table.after(0), table.after(300), table.newest(1299)] == [300, 1300, 300]


@given(
    period=st.integers(1, DAY),
    offset=st.integers(0, DAY),
    now=st.integers(0, 2**42),
)
def test_the_newest_and_the_next_are_neighbours(
    period: int, offset: int, now: int
) -> None:
    table = Every(period, offset)
    assert table.newest(now) <= now < table.after(now)
    assert table.after(now) - table.newest(now) == period
    assert table.newest(table.after(now)) == table.after(now)


def test_a_single_moment_is_due_once() -> None:
    table = Once(500)
    assert [table.after(499), table.after(500)] == [500, None]
    assert [table.newest(499), table.newest(500)] == [None, 500]


def test_an_interval_begins_when_it_is_first_known_a_moment_before_itself() -> None:
    assert Every(200).start(1000) == 1000
    assert Once(500).start(1000) == 499


def following(table: Any, last: int, now: int, **more: Any) -> int | None:
    return next_due(table, last, now, **{"catch_up": DAY, "coalesce": False, **more})


def test_everything_that_is_overdue_is_due_in_order() -> None:
    table, last, seen = Every(200), 1000, []
    while (due := following(table, last, 1700)) is not None and due <= 1700:
        seen.append(due)
        last = due
    assert seen == [1200, 1400, 1600]


def test_what_is_overdue_for_too_long_is_passed_by() -> None:
    assert following(Every(200), 1000, 5000, catch_up=600) == 4400
    assert following(Every(200), 1000, 5000, catch_up=0) == 5000
    assert following(Every(200), 1000, 5001, catch_up=0) == 5200
    assert following(Once(1000), 999, 5000, catch_up=4000) == 1000
    assert following(Once(1000), 999, 5000, catch_up=3999) is None


def test_the_newest_stands_for_all_if_they_coalesce() -> None:
    assert following(Every(200), 1000, 5001, coalesce=True) == 5000
    assert following(Every(200), 5000, 5001, coalesce=True) == 5200


def test_what_is_due_and_not_claimed_is_counted() -> None:
    assert overdue(Every(200), 1000, 1000) == 0
    assert overdue(Every(200), 1000, 1599) == 2
    assert overdue(Every(200), 1001, 1600) == 3
    assert overdue(Every(200), 2000, 1000) == 0  # the time of day was set back
    assert [overdue(Once(500), 499, now) for now in (499, 500)] == [0, 1]
    assert overdue(Once(500), 500, 9000) == 0


def test_a_moment_is_named_by_its_milliseconds() -> None:
    when = datetime(2026, 11, 30, 12, 0, 0, 123_000, UTC)
    assert moment(due_ms(when)) == when
    assert due_ms(when) == due_ms(when.astimezone(timezone(timedelta(hours=3))))
    assert due_ms(when.timestamp()) == due_ms(when)
    assert due_ms(5) == 5000


@given(st.integers(0, 2**42))
def test_every_millisecond_survives_as_a_time(due: int) -> None:
    assert due_ms(moment(due)) == due
    assert due_ms(due / 1000) == due


@pytest.mark.parametrize("wrong", [True, float("nan"), float("inf"), "noon", None])
def test_what_is_no_moment_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match="no moment"):
        due_ms(wrong)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Misuse, match="needs a zone"):
        due_ms(datetime(2026, 11, 30))
