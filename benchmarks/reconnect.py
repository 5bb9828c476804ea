"""What the window of a drain must be, so that clients come back in good order.

    python -m benchmarks.reconnect [--plot FILE.svg]

It simulates 1,000 processes of 10,000 WebSockets each, and prints the tables of
docs/reconnect.md. A seed stands in it: the figures are the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path

from benchmarks.herd import (
    HOPELESS,
    Clients,
    Fleet,
    Outcome,
    Plan,
    Scene,
    backing_off,
    hinted,
    one_in_a_thousand,
    simulate,
    smallest,
    stubborn,
)
from benchmarks.svg import Axis, Chart, Line, Point, drawing
from benchmarks.table import table

UTILISATION = 0.7  # of the accept rate: what the rule plans with
RATES = (25, 50, 100, 200, 500, 1000, 2000)  # handshakes a second, each receiver
HERD_RATES = (100, 500)
SHARES = (1.0, 1.2, 1.4, 1.6)  # of what a receiver gets in the mean

DEFAULT_WINDOW = 5.0  # `close_window`
SPACING = 0.05  # seconds a connection: no window is longer
TIMEOUT_MAXIMUM = 600.0  # seconds, of a drain
ROOM = 5.0  # seconds: grace 2, a client that does not answer 2, the margin 0.5
HINT = 1.0  # `retry_after`: the hint is one to two seconds

DEFAULT = hinted(HINT)
CLIENTS: dict[str, Clients] = {
    "10 ms": stubborn,
    "hint of 1 s": DEFAULT,
    "backoff": backing_off,
}


# The rule


def needed(fleet: Fleet, rate: float) -> float:
    """Seconds in which a fleet may be closed at that accept rate."""
    return fleet.expected / (UTILISATION * rate)


def longest(fleet: Fleet) -> float:
    """The longest window that a drain of such processes can have."""
    return min(TIMEOUT_MAXIMUM - ROOM, SPACING * fleet.sockets)


def choose(fleet: Fleet, rate: float, window: float | None = None) -> Plan:
    """As many processes at a time as the longest window allows, or a given one."""
    seconds = needed(fleet, rate)
    batches = ceil(seconds / (window or longest(fleet)))
    batch = ceil(fleet.processes / batches)
    rule = ceil(seconds * batch / fleet.processes)
    return Plan(window or rule, batch, ROOM)


# The tables


WINDOW_HEAD = (
    "accept rate, a process",
    "the fleet",
    "smallest window, 10 ms",
    "smallest window, hint of 1 s",
    "smallest hint, window of 5 s",
    "window by the rule",
    "processes at a time",
    "1 in 1,000 waits",
    "drain's timeout",
)


def windows(fleet: Fleet, rates: Iterable[int] = RATES) -> str:
    """What must be chosen, by accept rate."""
    return table(WINDOW_HEAD, [window_row(fleet, rate) for rate in rates])


def window_row(fleet: Fleet, rate: int) -> list[str]:
    """Of that table: what is just enough, and what is chosen."""
    plan = choose(fleet, rate)
    waits = simulate(Scene(fleet, plan, stubborn, rate)).waits
    hint = smallest_hint(fleet, rate)
    return [
        f"{rate:,}/s",
        f"{rate * fleet.receivers:,}/s",
        _exactly(smallest_window(fleet, stubborn, rate)),
        _exactly(smallest_window(fleet, DEFAULT, rate)),
        _exactly(hint) if hint > HINT else "the default",
        _exactly(plan.window),
        f"{plan.batch:,}",
        _roughly(one_in_a_thousand(waits)),
        _exactly(plan.window + ROOM),
    ]


@cache
def smallest_window(fleet: Fleet, clients: Clients, rate: float) -> float:
    """In which no more than one client in a thousand waits for over a second."""

    def scene(window: float) -> Scene:
        return Scene(fleet, Plan(window, fleet.processes), clients, rate)

    return smallest(scene, fleet.expected / rate)


def smallest_hint(fleet: Fleet, rate: float) -> float:
    """The same for the hint, where the window is left as it is."""
    plan = Plan(DEFAULT_WINDOW, fleet.processes)

    def scene(hint: float) -> Scene:
        return Scene(fleet, plan, hinted(hint), rate)

    return smallest(scene, fleet.expected / rate)


HERD_HEAD = (
    "accept rate, a process",
    "closed",
    "clients",
    "peak in 100 ms",
    "x mean of the window",
    "longest wait",
    "wasted tries a client",
    "1 in 1,000 is away",
    "all back after",
)


def herds(fleet: Fleet, rates: Iterable[int] = HERD_RATES) -> str:
    """All closed at once, as servers do at SIGTERM, and in the window of the rule."""
    return table(HERD_HEAD, [row for rate in rates for row in herd_rows(fleet, rate)])


def herd_rows(fleet: Fleet, rate: int) -> Iterator[list[str]]:
    """Of that table: both ways, with each kind of client."""
    window = choose(fleet, rate).window
    mean = fleet.expected / window / 10
    for seconds in (0, window):
        plan = Plan(seconds, fleet.processes)
        for name, clients in CLIENTS.items():
            outcome = simulate(Scene(fleet, plan, clients, rate))
            away = one_in_a_thousand(outcome.away)
            yield [
                f"{rate:,}/s",
                f"in {seconds:g} s" if seconds else "at once",
                name,
                f"{outcome.peak:,}",
                f"{outcome.peak / mean:,.1f}",
                _roughly(max(outcome.waits)),
                f"{outcome.wasted / len(outcome.closed):.1f}",
                _roughly(away) if outcome.is_over else f"over {HOPELESS:.0f} s",
                _end(outcome),
            ]


BATCH_HEAD = (
    "processes at a time",
    "window",
    "batches",
    "peak in 100 ms",
    "longest wait",
    "wasted tries a client",
    "all back after",
)


def batches(fleet: Fleet, rate: int = 500) -> str:
    """All processes at the same time, or so many after one another."""
    return table(BATCH_HEAD, [_batch_row(fleet, p, rate) for p in _plans(fleet, rate)])


def _plans(fleet: Fleet, rate: float) -> Iterator[Plan]:
    yield Plan(0, fleet.processes)
    yield choose(fleet, rate)
    yield choose(fleet, rate, DEFAULT_WINDOW)
    for batch in (fleet.processes // 10, fleet.processes // 100):
        yield Plan(DEFAULT_WINDOW, batch, ROOM)
        yield Plan(0, batch, ROOM)


def _batch_row(fleet: Fleet, plan: Plan, rate: int) -> list[str]:
    outcome = simulate(Scene(fleet, plan, stubborn, rate))
    return [
        f"{plan.batch:,}",
        _exactly(plan.window) if plan.window else "none",
        f"{plan.batches(fleet.processes):,}",
        f"{outcome.peak:,}",
        _roughly(max(outcome.waits)),
        f"{outcome.wasted / len(outcome.closed):.1f}",
        _end(outcome),
    ]


def shares(fleet: Fleet, rate: int = 500) -> str:
    """The window of the rule, where a process gets more than its share."""
    head = ("clients of a process, x its share", "1 in 1,000 waits", "longest wait")
    return table(head, [_share_row(fleet, share, rate) for share in SHARES])


def _share_row(fleet: Fleet, share: float, rate: int) -> list[str]:
    crowded = replace(fleet, receivers=round(fleet.receivers / share))
    waits = simulate(Scene(crowded, choose(fleet, rate), stubborn, rate)).waits
    return [
        f"{share:.1f}",
        _roughly(one_in_a_thousand(waits)),
        _roughly(max(waits)),
    ]


def _end(outcome: Outcome) -> str:
    if outcome.is_over:
        return _roughly(max(outcome.returned))
    share = len(outcome.returned) / len(outcome.closed)
    return f"{share:.0%} in {HOPELESS:.0f} s"


def _exactly(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _roughly(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


# The plot


def plot(fleet: Fleet, found: Iterable[Point]) -> str:
    """What must be chosen, and what it spares; with the smallest windows found."""
    return drawing([window_chart(fleet, found), away_chart(fleet)])


def window_chart(fleet: Fleet, found: Iterable[Point]) -> Chart:
    """The windows of the rule, beside the smallest of the simulation."""
    ends = (20, 2500)
    rule = f"the rule: {fleet.expected:,g} / ({UTILISATION:g} x rate)"
    most = longest(fleet)
    return Chart(
        f"Windows for {fleet.processes:,} processes of {fleet.sockets:,} sockets",
        Axis("handshakes a second that one new process takes", RATE_TICKS, True),
        Axis("window, seconds", WINDOW_TICKS, True),
        (
            Line(rule, [(rate, needed(fleet, rate)) for rate in ends]),
            Line("just enough, simulated", tuple(found), is_marked=True),
            Line(f"the longest: {most:g} s", [(rate, most) for rate in ends]),
            Line("the default: 5 s", [(rate, DEFAULT_WINDOW) for rate in ends]),
        ),
    )


RATE_TICKS = (20, 50, 100, 200, 500, 1000, 2500)
WINDOW_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def away_chart(fleet: Fleet, rate: int = 100) -> Chart:
    """Who has no connection, second by second, as one new process sees it."""
    window = choose(fleet, rate).window
    at_once, spread = Plan(0, fleet.processes), Plan(window, fleet.processes)
    lines = {
        "at once, clients back after 10 ms": (at_once, stubborn),
        "at once, clients with backoff": (at_once, backing_off),
        f"at once, hint of {window:g} s": (at_once, hinted(window)),
        f"in {window:g} s, hint of 1 s": (spread, DEFAULT),
    }
    one = replace(fleet, watched=1)
    return Chart(
        f"Clients without a connection, at {rate} handshakes a second and process",
        Axis("seconds since the begin", range(0, 301, 50)),
        Axis("clients away, %", range(0, 101, 20)),
        [
            Line(label, _away(Scene(one, plan, clients, rate)))
            for label, (plan, clients) in lines.items()
        ],
    )


def _away(scene: Scene) -> list[Point]:
    seconds = range(0, 301, 2)
    shares = simulate(scene).away_at(seconds)
    return [(at, 100 * share) for at, share in zip(seconds, shares, strict=True)]


# The command


def report(fleet: Fleet) -> Iterator[str]:
    """The tables."""
    yield windows(fleet)
    yield herds(fleet)
    yield batches(fleet)
    yield shares(fleet)


def main() -> int:
    """Print the tables; write the plot where one is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    fleet = Fleet()
    for each in report(fleet):
        print(f"{each}\n", flush=True)
    if options.plot:
        found = [(rate, smallest_window(fleet, stubborn, rate)) for rate in RATES]
        options.plot.write_text(plot(fleet, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
