"""Instructions a request under valgrind: the gate that repeats exactly.

    python -m benchmarks.instructions [--limit RATIO]

Each variant runs twice in a process of its own, with 1,000 and with 4,000
requests; what the difference says of one request knows no start-up and no
warm-up. The hash seed is fixed and the collector is off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from benchmarks.table import table
from benchmarks.variants import (
    BARE,
    LAYERS,
    NO_OP,
    OURS,
    OURS_WITH_ALL,
    Server,
    hello,
    http_scopes,
    own,
    quiet,
)

NAMES = (BARE, NO_OP, OURS, OURS_WITH_ALL)
FEW, MANY = 1000, 4000
LIMIT = 3.5  # times the no-op class, over bare
_TOTAL = re.compile(r"I\s+refs:\s+([\d,]+)")


def instructions(name: str) -> float:
    """Instructions a request of one variant."""
    with ThreadPoolExecutor(2) as runs:
        few, many = runs.map(_run, *zip(*product([name], (FEW, MANY)), strict=True))
    return (many - few) / (MANY - FEW)


def _run(name: str, requests: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    command += ["--cachegrind-out-file=/dev/null", sys.executable]
    command += ["-m", "benchmarks.instructions", "--child", name, str(requests)]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    found = _TOTAL.search(done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{name} under valgrind failed:\n{done.stderr}")
    return int(found[1].replace(",", ""))


async def _serve(name: str, requests: int) -> None:
    app, server = LAYERS[name](own(hello)), Server()
    for _ in range(requests // 10):
        for scope in http_scopes(10):
            await app(scope, server.receive, server.send)


def main() -> int:
    """Print the table; 1 where ours is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "REQUESTS"))
    options = parser.parse_args()
    if options.child:
        quiet()
        gc.disable()
        asyncio.run(_serve(options.child[0], int(options.child[1])))
        return 0
    if shutil.which("valgrind") is None:
        print(
            "instructions: skipped, since there is no valgrind (apt install valgrind)"
        )
        return 0
    found = {name: instructions(name) for name in NAMES}
    over = {name: count - found[BARE] for name, count in found.items()}
    ratio = {name: count / over[NO_OP] for name, count in over.items()}
    print(
        table(
            ("instructions a request", "in all", "over bare", "x no-op"),
            [
                (n, f"{found[n]:,.0f}", f"{over[n]:,.0f}", f"{ratio[n]:.2f}")
                for n in NAMES
            ],
        )
    )
    return int(ratio[OURS] > options.limit)


if __name__ == "__main__":
    sys.exit(main())
