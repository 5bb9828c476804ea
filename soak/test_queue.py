"""A queue of ten thousand pieces is cut over in the middle, and nothing is lost."""

from __future__ import annotations

import time

import pytest

from tests.sources.handover import Load, hand_over, hold_and_release

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("seed", range(10))
async def test_ten_thousand_pieces_over_a_hundred_keys_are_handed_over(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order within each key is kept across the cut, and each is run once."""
    load, begun = Load(pieces=10_000, keys=100, seed=seed), time.monotonic()
    told = await hand_over(load)
    load.check()
    kinds = await load.kinds()
    assert kinds["ResultElsewhere"] > 0
    assert not told["cursor"].endswith("parked-0")
    with capsys.disabled():
        print(
            f"\n{told['ran']} steps in the old release, then {told['cursor']} in "
            f"{told['bytes']} bytes, {time.monotonic() - begun:.1f} s"
        )


@pytest.mark.parametrize("seed", range(100, 200))
async def test_a_queue_is_held_and_released_a_hundred_times(seed: int) -> None:
    load = Load(pieces=5_000, keys=20, seed=seed)
    await hold_and_release(load, cycles=100)
    load.check()
