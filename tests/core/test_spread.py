"""Many connections are closed one after another, in time, and do not come back at
once."""

import json
from itertools import pairwise
from math import nextafter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.core.spread import (
    Timing,
    close_reason,
    margin,
    milliseconds_to_retry,
    places,
    seconds_to_retry,
    window_for,
)

NEARLY_ONE = nextafter(1.0, 0.0)
TINY = 1e-9  # what floats may lose

settable = st.floats(0, 600)  # seconds, as in the settings
timeouts = st.floats(0.1, 600)  # seconds, as in a begin
timings = st.builds(Timing, notice=settable, grace=settable, window=settable)
numbers = st.integers(1, 300)
hints = st.integers(0, 3600)  # seconds, as in the settings


class Always(Random):
    """Chance that comes out the same every time."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


chances = st.one_of(
    st.integers(0, 2**32).map(Random),
    st.sampled_from([Always(0.0), Always(NEARLY_ONE)]),
)


# Windows and graces end before the deadline


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [(600, 0.5), (25, 0.5), (5, 0.5), (4, 0.4), (1, 0.1), (0.1, 0.01)],
)
def test_the_margin_is_half_a_second_or_a_tenth_of_the_timeout(
    timeout: float, seconds: float
) -> None:
    assert margin(timeout) == pytest.approx(seconds)


def longest(timing: Timing) -> float:
    """From the begin to the last close."""
    return max(timing.notice, timing.grace) + timing.window


@given(timings, timeouts)
def test_whatever_is_set_ends_before_the_margin(timing: Timing, timeout: float) -> None:
    cut = timing.cut(timeout)
    assert longest(cut) <= timeout - margin(timeout) + TINY
    assert longest(cut) < timeout


@given(timings, timeouts)
def test_no_part_is_longer_than_it_was_or_negative(
    timing: Timing, timeout: float
) -> None:
    cut = timing.cut(timeout)
    assert 0 <= cut.notice <= timing.notice
    assert 0 <= cut.grace <= timing.grace
    assert 0 <= cut.window <= timing.window


@given(timings, timeouts)
def test_what_fits_is_left_alone(timing: Timing, timeout: float) -> None:
    fits = longest(timing) <= timeout - margin(timeout)
    assert (timing.cut(timeout) is timing) is fits


def test_what_fits_exactly_is_left_alone_too() -> None:
    timing = Timing(notice=0.25, grace=2, window=5)
    assert timing.cut(7.5) is timing
    assert timing.cut(nextafter(7.5, 0)) is not timing


@given(timings, timeouts)
def test_a_grace_takes_no_more_than_half_of_the_time_from_the_window(
    timing: Timing, timeout: float
) -> None:
    left = timeout - margin(timeout)
    if longest(timing) <= left:
        return
    cut = timing.cut(timeout)
    assert cut.window >= min(timing.window, left / 2) - TINY
    assert longest(cut) <= left + TINY


def test_a_grace_that_is_far_too_long_leaves_the_window_alone() -> None:
    assert Timing(0.25, 300, 5).cut(25) == Timing(0.25, 19.5, 5)


@given(timings, timeouts)
def test_what_was_cut_is_not_cut_again(timing: Timing, timeout: float) -> None:
    cut = timing.cut(timeout)
    again = cut.cut(timeout)
    assert longest(again) == pytest.approx(longest(cut))


@pytest.mark.parametrize(
    ("timing", "timeout", "cut"),
    [
        (Timing(0.25, 2, 5), 25, Timing(0.25, 2, 5)),
        (Timing(0.25, 2, 5), 7.5, Timing(0.25, 2, 5)),
        (Timing(0.25, 2, 5), 4, Timing(0.25, 1.8, 1.8)),
        (Timing(3, 1, 1), 2.5, Timing(1.25, 1, 1)),
        (Timing(0, 0, 9), 10, Timing(0, 0, 9)),
        (Timing(0, 10, 0), 10, Timing(0, 9.5, 0)),
        (Timing(0, 0, 0), 0.1, Timing(0, 0, 0)),
    ],
)
def test_the_longer_of_notice_and_grace_counts_and_the_window_after_it(
    timing: Timing, timeout: float, cut: Timing
) -> None:
    found = timing.cut(timeout)
    assert found.notice == pytest.approx(cut.notice)
    assert found.grace == pytest.approx(cut.grace)
    assert found.window == pytest.approx(cut.window)


# A window, and the places in it


@pytest.mark.parametrize(
    ("connections", "longest", "window"),
    [
        *((0, 5.0, 0.0), (1, 5.0, 0.05), (20, 5.0, 1.0), (100, 5.0, 5.0)),
        *((101, 5.0, 5.0), (10_000, 5.0, 5.0), (10_000, 0.0, 0.0), (2, 0.01, 0.01)),
    ],
)
def test_few_connections_need_no_long_window(
    connections: int, longest: float, window: float
) -> None:
    assert window_for(connections, longest) == pytest.approx(window)


@given(st.integers(0, 100_000), settable)
def test_no_more_than_twenty_a_second_come_back_unless_the_window_is_at_its_longest(
    connections: int, longest: float
) -> None:
    window = window_for(connections, longest)
    assert 0 <= window <= longest
    assert window == longest or connections <= 20 * window + TINY


def test_nobody_needs_no_place() -> None:
    assert list(places(0, Random(1))) == []


@given(numbers, chances)
def test_each_slice_of_the_window_has_one_place(number: int, chance: Random) -> None:
    found = list(places(number, chance))
    assert len(found) == number
    for slice_, place in enumerate(found):
        assert slice_ / number <= place <= (slice_ + 1) / number


@given(numbers, chances)
def test_places_are_in_order_and_inside_of_the_window(
    number: int, chance: Random
) -> None:
    found = list(places(number, chance))
    assert all(before <= after for before, after in pairwise(found))
    assert found[0] >= 0
    # Up to rounding: the last float below 1 may come out of a sum as 1.
    assert found[-1] <= 1


@given(numbers, chances, st.floats(0, 1), st.floats(0, 1))
def test_no_interval_holds_more_than_two_above_its_share(
    number: int, chance: Random, start: float, length: float
) -> None:
    inside = sum(start <= place <= start + length for place in places(number, chance))
    assert inside <= number * length + 2 + TINY


@given(numbers, st.integers(0, 2**32))
def test_no_interval_between_two_places_holds_more_than_two_above_its_share(
    number: int, seed: int
) -> None:
    """The intervals that begin and end at a place are the fullest ones."""
    found = list(places(number, Random(seed)))
    for first in range(0, number, 1 + number // 20):
        for last in range(first, number):
            length = found[last] - found[first]
            assert last - first + 1 <= number * length + 2 + TINY


@given(numbers, chances)
def test_half_of_the_window_has_half_of_the_places(number: int, chance: Random) -> None:
    early = sum(place < 0.5 for place in places(number, chance))
    assert abs(early - number / 2) <= 1


def test_places_are_not_the_same_in_two_drains_but_with_the_same_chance_are() -> None:
    first, again, other = (list(places(50, Random(seed))) for seed in (1, 1, 2))
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_places_are_anywhere_in_their_slices() -> None:
    """Without jitter, clients of several workers would come back in step."""
    found = [place * 1000 % 1 for place in places(1000, Random(1))]
    for tenth in range(10):
        assert 60 < sum(tenth <= part * 10 < tenth + 1 for part in found) < 140


# When a client is asked to come back


@given(hints, st.randoms(use_true_random=False))
def test_a_hint_is_between_what_is_set_and_twice_that(
    least: int, chance: Random
) -> None:
    assert least <= seconds_to_retry(least, chance) <= 2 * least
    assert 1000 * least <= milliseconds_to_retry(least, chance) <= 2000 * least


def test_no_wait_stays_no_wait() -> None:
    chance = Random(1)
    assert {seconds_to_retry(0, chance) for _ in range(20)} == {0}
    assert {milliseconds_to_retry(0, chance) for _ in range(20)} == {0}


def test_hints_are_spread_over_their_whole_range() -> None:
    chance = Random(1)
    assert {seconds_to_retry(3, chance) for _ in range(200)} == {3, 4, 5, 6}
    fine = [milliseconds_to_retry(3, chance) for _ in range(1000)]
    assert len(set(fine)) > 800
    for tenth in range(10):
        low, high = 3000 + 300 * tenth, 3300 + 300 * tenth
        assert 60 < sum(low <= hint < high for hint in fine) < 140


@given(hints, st.randoms(use_true_random=False))
def test_a_close_reason_carries_the_hint_in_what_a_close_frame_holds(
    least: int, chance: Random
) -> None:
    """S12: at most 123 bytes, read by a machine."""
    hint = milliseconds_to_retry(least, chance)
    reason = close_reason(hint)
    assert len(reason.encode()) <= 123
    assert json.loads(reason) == {"retry_ms": hint}


def test_a_close_reason_as_it_stands_on_the_wire() -> None:
    assert close_reason(1234) == '{"retry_ms": 1234}'
    assert close_reason(7_200_000).isascii()
