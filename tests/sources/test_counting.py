"""What sources answer: whole numbers, and pieces of work in their form."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from drainmw.errors import CountersInvalid
from drainmw.sources.base import Running
from drainmw.sources.counting import running_of, whole
from drainmw.testing import ManualSource


@pytest.mark.parametrize("value", [0, 1, 2**70, 3.0])
def test_a_whole_number_is_read(value: Any) -> None:
    assert (whole(value, "x"), type(whole(value, "x"))) == (value, int)


@pytest.mark.parametrize(
    "value", [-1, -0.5, 0.5, True, None, "1", float("nan"), float("inf"), [], 1j]
)
def test_what_is_not_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(CountersInvalid, match="x reports"):
        whole(value, "x")


# Together


def test_of_many_jobs_the_oldest_are_named() -> None:
    """As of ten thousand that an executor has accepted."""
    named: list[int] = []

    class Busy(ManualSource):
        def running(self) -> Iterator[Running]:
            for number in range(10_000):
                named.append(number)
                yield Running(f"job {number}", float(number))

    ids = [piece.id for piece in running_of(Busy())]
    assert ids == [f"job {number}" for number in range(100)]
    assert len(named) == 100


@pytest.mark.parametrize(
    ("piece", "named"),
    [(Running(cast(Any, 5), 1.0), ["5"]), (Running("x", cast(Any, None)), [])],
)
def test_a_piece_out_of_form_breaks_no_report(piece: Running, named: list[str]) -> None:
    class Odd(ManualSource):
        def running(self) -> list[Running]:
            return [piece]

    assert [piece.id for piece in running_of(Odd())] == named
