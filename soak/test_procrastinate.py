"""Procrastinate held and released at random under load; the figures are printed."""

from __future__ import annotations

import pytest

from tests.engines.conftest import folder, journal, postgres_port, postgres_url
from tests.engines.journal import Journal
from tests.engines.procrastinated import release
from tests.engines.scenario import holds_at_random
from tests.engines.test_procrastinate import Commanded, blue, commanded

__all__ = ["blue", "commanded", "folder", "journal", "postgres_port", "postgres_url"]

pytestmark = pytest.mark.anyio

ROUNDS = 100  # for each seed: a thousand holds and more (J4)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_and_nothing_runs_twice(
    postgres_url: str,
    journal: Journal,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with release(postgres_url, journal) as engine:
        engine.start(2)
        engine.start(2)
        await holds_at_random(engine, journal, rounds=ROUNDS, seed=seed)
    report(capsys, f"two workers in one loop, seed {seed}", journal)


async def test_nothing_is_lost_in_two_processes(
    commanded: Commanded, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    commanded.start(2)
    commanded.start(2)
    await holds_at_random(commanded, journal, rounds=ROUNDS)
    report(capsys, "two processes", journal)


def report(capsys: pytest.CaptureFixture[str], what: str, journal: Journal) -> None:
    with capsys.disabled():
        print(f"\n{what}: {ROUNDS} holds, {len(journal.started())} jobs, 0 lost")
