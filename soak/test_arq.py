"""A worker of arq, held at random in its hundreds; the figures are printed.

In the environment that has arq: .venv-redis5/bin/python -m pytest soak/test_arq.py
"""

from __future__ import annotations

import pytest

pytest.importorskip("arq")

from tests.engines.conftest import journal, redis_url, valkey_port
from tests.engines.journal import Journal
from tests.engines.redis5.arqs import here
from tests.engines.scenario import holds_at_random

__all__ = ["journal", "redis_url", "valkey_port"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning"),
]

ROUNDS = 100  # for each seed: a thousand holds and more (J4)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_and_nothing_runs_twice(
    redis_url: str,
    journal: Journal,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with here(redis_url, journal) as engine:
        await holds_at_random(engine, journal, rounds=ROUNDS, seed=seed)
    with capsys.disabled():
        print(f"\n{ROUNDS} holds, {len(journal.ended())} jobs, none lost, none twice")
