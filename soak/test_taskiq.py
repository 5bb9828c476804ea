"""Receivers of Taskiq, held at random in their hundreds; the figures are printed."""

from __future__ import annotations

import pytest

pytest.importorskip("taskiq")

from tests.engines.conftest import journal, redis_url, valkey_port
from tests.engines.journal import Journal
from tests.engines.scenario import holds_at_random
from tests.engines.taskiqs import MakeBroker, here, on_a_list, on_a_stream

__all__ = ["journal", "redis_url", "valkey_port"]

pytestmark = pytest.mark.anyio

ROUNDS = 100  # for each seed: a thousand holds and more (J4)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("make", [on_a_list, on_a_stream])
@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_lost_and_nothing_runs_twice(
    make: MakeBroker,
    seed: int,
    redis_url: str,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with here(make, redis_url, journal, max_prefetch=seed) as engine:
        await holds_at_random(engine, journal, rounds=ROUNDS, seed=seed)
        back = engine.source.handed_back
    with capsys.disabled():
        print(
            f"\n{ROUNDS} holds, {len(journal.ended())} jobs, {back} handed back, "
            "none lost, none twice"
        )
