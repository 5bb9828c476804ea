"""What the middleware costs a request, beside what it is compared with.

    python -m benchmarks.overhead [--full] [in-process] [hello] [fastapi]

In process is one event loop that calls the app, with no server: the median of
the differences to the bare app, round by round, and their ratio to a class
that does nothing. Over uvicorn it is the CPU of the server process a request,
as a ratio to the bare app. "bare again" is the same thing twice: what it
differs from zero, or from one, is the noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median

from benchmarks import inprocess, served
from benchmarks.table import table
from benchmarks.variants import (
    BARE,
    BARE_AGAIN,
    BASE_HTTP,
    COUNTING_PEERS,
    LAYERS,
    LIGHT,
    NO_OP,
    OPENTELEMETRY,
    OURS,
    PROMETHEUS,
    quiet,
)

NO_OP_LIMIT = 3.5
PEER_LIMIT = 10
SERVED_LIMITS = {"hello": 1.05, "fastapi": 1.02}
HEAVY = {
    "hello": (PROMETHEUS, BASE_HTTP, OPENTELEMETRY),
    "fastapi": (BASE_HTTP, OPENTELEMETRY),  # the other one goes inside the app
}


def in_process(full: bool) -> bool:
    """Print the table; true where ours keeps to the limits."""
    light = {name: LAYERS[name] for name in LIGHT}
    rounds = inprocess.main_run(LAYERS, rounds=40 if full else 15)
    over = inprocess.over(rounds, BARE)
    # Beside slow neighbours the light ones would be measured with a cold cache.
    rounds |= inprocess.main_run(light, rounds=400 if full else 100)
    over |= inprocess.over({name: rounds[name] for name in light}, BARE)
    per_no_op = {name: cost / over[NO_OP] for name, cost in over.items()}
    rows = [
        (
            name,
            f"{median(rounds[name]):,.0f}",
            f"{over[name]:,.0f}",
            f"{per_no_op[name]:,.1f}",
        )
        for name in LAYERS
    ]
    print(table(("in process, ns a request", "in all", "over bare", "x no-op"), rows))
    cheapest = min(over[name] for name in COUNTING_PEERS) / over[OURS]
    print(f"\nThe cheapest peer that counts costs {cheapest:,.0f} times ours.\n")
    return per_no_op[OURS] <= NO_OP_LIMIT and cheapest >= PEER_LIMIT


def over_uvicorn(app: str, full: bool) -> bool:
    """Print the table; true where ours keeps to the limit, but for the noise."""
    slices = served.measure(app, [BARE, *HEAVY[app]], starts=1, rounds=20)
    ratios = served.ratios(slices, BARE)
    light = served.measure(app, LIGHT, starts=12 if full else 4, rounds=25)
    slices |= light
    ratios |= served.ratios(light, BARE)
    rows = [
        (name, f"{median(slices[name]):.1f}", f"{ratios[name]:.3f}")
        for name in (*LIGHT, *HEAVY[app])
    ]
    print(table((f"{app} over uvicorn, CPU", "µs a request", "x bare"), rows) + "\n")
    noise = abs(ratios[BARE_AGAIN] - 1)
    return ratios[OURS] <= SERVED_LIMITS[app] + noise


PARTS: dict[str, Callable[[bool], bool]] = {
    "in-process": in_process,
    "hello": lambda full: over_uvicorn("hello", full),
    "fastapi": lambda full: over_uvicorn("fastapi", full),
}


def main() -> int:
    """Print the tables asked for; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--full", action="store_true", help="more rounds")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"{sorted(unknown)[0]} is none of {', '.join(PARTS)}")
    quiet()
    kept = {part: PARTS[part](options.full) for part in options.parts or PARTS}
    for part, good in kept.items():
        print(f"{part}: {'within' if good else 'ABOVE'} the limits")
    return int(not all(kept.values()))


if __name__ == "__main__":
    sys.exit(main())
