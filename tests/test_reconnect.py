"""The simulation behind docs/reconnect.md, and that the page shows what it says."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Close

from benchmarks.herd import (
    Clients,
    Fleet,
    Plan,
    Scene,
    backing_off,
    closes,
    hinted,
    is_enough,
    simulate,
    stubborn,
)
from benchmarks.reconnect import (
    DEFAULT,
    DEFAULT_WINDOW,
    HINT,
    RATES,
    ROOM,
    TIMEOUT_MAXIMUM,
    batches,
    choose,
    longest,
    needed,
    plot,
    shares,
)
from drainmw.contract import TIMEOUT_MS_MAXIMUM
from drainmw.core.spread import MARGIN, places, window_for
from drainmw.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reconnect.md").read_text()
SMALL = Fleet(processes=20, sockets=500, receivers=20, watched=2)
RATE = 20  # handshakes a second: a herd of 500 takes 25 s, and clients give up after 10
AT_ONCE = Plan(0, SMALL.processes)
SPREAD = Plan(needed(SMALL, RATE), SMALL.processes)


def rows(first: str) -> list[list[str]]:
    """The rows of the table on the page whose first row begins with that."""
    lines = PAGE[PAGE.index(first) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def seconds(cell: str) -> float:
    return float(cell.removesuffix(" s"))


WINDOWS = rows("| 25/s ")
FOUND = [(rate, seconds(row[2])) for rate, row in zip(RATES, WINDOWS, strict=True)]


def per_100_ms(moments: list[float], offset: float) -> Counter[int]:
    return Counter(int((moment + offset) * 10) for moment in moments)


# The model


def test_a_seed_gives_the_same_outcome_and_another_seed_another() -> None:
    scene = Scene(SMALL, SPREAD, backing_off, RATE)
    assert simulate(scene) == simulate(scene)
    other = Scene(SMALL, SPREAD, backing_off, RATE, seed=7)
    assert simulate(scene).waits != simulate(other).waits


@pytest.mark.parametrize("offset", [0, 0.03, 0.07])
@pytest.mark.parametrize("window", [1, 10, 60])
def test_a_process_closes_at_most_three_times_the_mean_in_100_ms(
    window: int, offset: float
) -> None:
    """The whole of one process is seen: 1,200 sockets are good for 60 s."""
    one = Fleet(processes=1, sockets=1200, receivers=1, watched=1)
    moments = list(closes(one, Plan(window, 1), Random(3)))
    assert len(moments) == 1200
    assert 0 <= min(moments) and max(moments) < window
    assert max(per_100_ms(moments, offset).values()) <= 3 * 1200 / window / 10


def test_a_receiver_is_sent_its_share_of_every_process() -> None:
    fleet = Fleet(processes=200, sockets=1000, receivers=200, watched=4)
    moments = list(closes(fleet, Plan(1, 1), Random(3)))
    assert len(moments) == pytest.approx(4000, rel=0.05)
    assert set(Counter(int(moment) for moment in moments)) == set(range(200))


def test_clients_of_10_ms_that_are_closed_at_once_are_a_herd() -> None:
    """They wait until they give up, and what was done for them was in vain."""
    outcome = simulate(Scene(SMALL, AT_ONCE, stubborn, RATE))
    assert outcome.peak > 400
    assert outcome.wasted > len(outcome.closed)
    assert max(outcome.waits) == 10


@pytest.mark.parametrize("clients", [stubborn, DEFAULT, backing_off])
def test_the_same_clients_spread_over_the_window_are_no_herd(clients: Clients) -> None:
    outcome = simulate(Scene(SMALL, SPREAD, clients, RATE))
    assert outcome.wasted == 0
    assert outcome.is_over
    assert max(outcome.waits) < 2
    assert max(outcome.away) < 2 + 2 * HINT


def test_the_hint_spreads_as_the_window_does() -> None:
    """But its clients are away for longer."""
    outcome = simulate(Scene(SMALL, AT_ONCE, hinted(SPREAD.window), RATE))
    assert outcome.wasted == 0
    assert max(outcome.waits) < 2
    assert min(outcome.away) >= SPREAD.window


def test_who_is_away_is_counted_between_the_close_and_the_return() -> None:
    outcome = simulate(Scene(SMALL, AT_ONCE, stubborn, RATE))
    assert outcome.away_at([-1, 0]) == [0, 1]
    assert outcome.away_at([1])[0] == pytest.approx(1 - RATE / 500, abs=0.02)


# The rule


@pytest.mark.parametrize("rate", [50, 500, 2000])
def test_the_window_of_the_rule_is_enough(rate: int) -> None:
    fleet = Fleet(watched=2)
    assert is_enough(Scene(fleet, choose(fleet, rate), stubborn, rate))
    half = Plan(choose(fleet, rate).window / 2, fleet.processes)
    assert not is_enough(Scene(fleet, half, stubborn, rate))


def test_just_enough_is_no_more_than_the_page_says() -> None:
    """Sockets / (rate - 7); it asks for more than the rule only below 25 a second."""
    for rate, window in FOUND:
        assert 0.8 < window / (10_000 / (rate - 7)) <= 1
        assert window < needed(Fleet(), rate)


def test_what_needs_more_than_the_longest_window_is_drained_in_batches() -> None:
    """571 s are needed, and 10,000 sockets have a window of 500 at most."""
    assert choose(Fleet(), 25) == Plan(286, 500, 5)
    assert choose(Fleet(), 50) == Plan(286, 1000, 5)
    assert choose(Fleet(), 500, window=5) == Plan(5, 167, 5)


def test_the_figures_of_the_product_are_those_of_the_product() -> None:
    defaults = {name: each.default for name, each in Settings.model_fields.items()}
    assert defaults["close_window"] == DEFAULT_WINDOW
    assert defaults["retry_after"] == HINT
    assert defaults["close_notice"] <= defaults["websocket_grace"]
    ends = defaults["websocket_grace"] + defaults["close_timeout"] + MARGIN
    assert ends <= ROOM
    assert TIMEOUT_MS_MAXIMUM / 1000 == TIMEOUT_MAXIMUM
    assert longest(Fleet()) == window_for(10_000, TIMEOUT_MAXIMUM - ROOM) == 500


def test_closes_are_placed_as_the_product_places_them() -> None:
    one = Fleet(processes=1, sockets=1200, receivers=1, watched=1)
    moments = list(closes(one, Plan(60, 1), Random(3)))
    assert moments == [60 * place for place in places(1200, Random(3))]


# The page; soak/test_reconnect.py simulates every figure of it


def test_every_smallest_window_on_the_page_is_just_enough() -> None:
    """A hundredth of the shortest possible time less, and it is not."""
    fleet = Fleet()
    for rate, window in FOUND:
        less = window - fleet.expected / rate / 100
        plans = [Plan(each, fleet.processes) for each in (window, less)]
        enough = [is_enough(Scene(fleet, plan, stubborn, rate)) for plan in plans]
        assert enough == [True, False], rate


def test_what_the_page_chooses_is_the_rule() -> None:
    for rate, row in zip(RATES, WINDOWS, strict=True):
        plan = choose(Fleet(), rate)
        assert seconds(row[5]) == plan.window
        assert row[6] == f"{plan.batch:,}"
        assert seconds(row[8]) == plan.window + 5


def test_the_tables_of_batches_and_shares_are_what_is_printed() -> None:
    assert batches(Fleet()) in PAGE
    assert shares(Fleet()) in PAGE


def test_the_plot_is_what_is_drawn(tmp_path: Path) -> None:
    """With the smallest windows that stand on the page."""
    drawn = tmp_path / "reconnect.svg"
    drawn.write_text(plot(Fleet(), FOUND))
    assert drawn.read_bytes() == (DOCS / "reconnect.svg").read_bytes()


# The client on the page


def example() -> dict[str, Any]:
    found = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names


def test_the_client_on_the_page_takes_the_hint_or_draws_a_time() -> None:
    wait = example()["seconds"]
    assert wait(Close(1012, '{"retry_ms": 1234}')) == 1.234
    for other in (None, Close(1012, ""), Close(1012, "{}"), Close(1012, "5")):
        assert 0 <= wait(other) <= 1


@pytest.mark.anyio
async def test_the_client_on_the_page_comes_back() -> None:
    """Each connection says its number and closes with a hint; the third is enough."""
    heard: list[Any] = []
    enough = asyncio.Event()
    connections = iter(range(100))

    async def handler(socket: ServerConnection) -> None:
        await socket.send(str(next(connections)))
        await socket.close(1012, '{"retry_ms": 5}')

    async def handle(message: Any) -> None:
        heard.append(message)
        if len(heard) == 3:
            enough.set()

    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"ws://127.0.0.1:{port}"
        client = asyncio.create_task(example()["listen"](url, handle))
        await asyncio.wait_for(enough.wait(), timeout=10)
        client.cancel()
        await asyncio.wait([client])
    assert heard[:3] == ["0", "1", "2"]
