"""RQ's workers held and released at random under load; the figures are printed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import pytest

from tests.engines.conftest import journal, redis_url, valkey_port
from tests.engines.journal import Journal
from tests.engines.rqs import Release
from tests.engines.scenario import Held, holds_at_random
from tests.engines.test_rq import blue

__all__ = ["blue", "journal", "redis_url", "valkey_port"]

pytestmark = pytest.mark.anyio

ROUNDS = 30
HOLDS = 1000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("queues", [("work",), ("work", "other")])
async def test_nothing_is_lost_and_nothing_runs_twice(
    blue: Release,
    journal: Journal,
    queues: Sequence[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    blue.start(4, queues=queues)
    await holds_at_random(blue, journal, rounds=ROUNDS, pause=0.1, may_start=True)
    with capsys.disabled():
        print(
            f"\nrq, queues {' '.join(queues)}: {ROUNDS} holds, "
            f"{len(journal.ended())} jobs, {backs(blue)} handed back, 0 lost, 0 twice"
        )


async def test_what_is_pulled_at_the_hold_comes_back(
    blue: Release, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """J4: jobs come in the very moment of each hold."""
    blue.start(2)
    held = Held(blue.source)
    holds, lags = [], []
    for number in range(HOLDS):
        await journal.until(lambda: not len(blue.queue), "the queue is empty")
        await blue.enqueue([f"{number}-a", f"{number}-b"], 0.0)
        asked = time.monotonic()
        holds.append(await held.hold() - asked)
        settled = await held.settled()
        lags.append(settled - asked)
        assert journal.started(since=settled) == []
        await held.release()
    await journal.until(lambda: len(journal.ended()) >= 2 * HOLDS, "all ended")
    assert len(journal.started()) == len(set(journal.started())) == 2 * HOLDS
    with capsys.disabled():
        print(
            f"\nrq: {HOLDS} holds, hold {median(holds) * 1e3:.1f} ms "
            f"(at most {max(holds) * 1e3:.1f}), settled after {median(lags) * 1e3:.0f} "
            f"ms (at most {max(lags) * 1e3:.0f}), {backs(blue)} handed back"
        )


def backs(one: Release) -> int:
    return int(one.redis.get(f"drainmw:rq:{one.release}:back") or 0)
