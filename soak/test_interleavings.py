"""D12 at length: a million random orders, and every order of bigger cases."""

from itertools import combinations_with_replacement

import pytest

from tests.interleaving import Scene, explore, wander

KINDS = ("fast", "keeps", "probe", "websocket", "admitted")
SCENES = list(combinations_with_replacement(KINDS, 3))
PAIRS = list(combinations_with_replacement(KINDS[:4], 2))
ORDERS = 1_000_000


@pytest.mark.parametrize("kinds", SCENES, ids="+".join)
def test_a_million_orders_hold(kinds: tuple[str, ...]) -> None:
    """D12: the million is shared out over the scenes, half of them in flight."""
    each = ORDERS // len(SCENES) // 2 + 1
    wander(Scene(*kinds, in_flight=True), times=each, seed=1)
    wander(Scene(*kinds, spare=1), times=each, seed=2)


@pytest.mark.parametrize("kinds", PAIRS, ids="+".join)
def test_two_admissions_and_a_whole_drain_hold_in_every_order(
    kinds: tuple[str, str],
) -> None:
    assert explore(Scene(*kinds), merge=True) > 10_000
