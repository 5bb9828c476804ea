"""From the end of the last work to `drained`: milliseconds, by event.

    python -m benchmarks.idle [--drains N]

Each drain begins with some requests in flight. The last of them takes the time
as its last act; whoever waits for the drain takes it again once the status says
`drained`. A resume follows, so that one process does it over and over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from statistics import median, quantiles
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.begin import begin_request
from benchmarks.table import table
from benchmarks.variants import Server, hello, http_scopes, quiet
from drainmw import Drain, DrainMiddleware

IN_FLIGHT = 10
LIMIT = 1.0  # milliseconds, of the median


async def measure(drains: int) -> list[float]:
    """Milliseconds of each drain."""
    drain, slow = Drain(), Slow()
    app = DrainMiddleware(slow, drain)
    return [await _one(drain, app, slow) for _ in range(drains)]


class Slow:
    """An app whose requests end when they are told to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_end.wait()
        await hello(scope, receive, send)
        self.ended_at = perf_counter()


async def _one(drain: Drain, app: ASGIApp, slow: Slow) -> float:
    server, request = Server(), begin_request()
    slow.may_end.clear()
    async with asyncio.TaskGroup() as running:
        for scope in http_scopes(IN_FLIGHT):
            running.create_task(_call(app, scope, server))
        await asyncio.sleep(0)
        await drain.begin(request)
        await asyncio.sleep(0.002)  # it waits now; nothing of the begin is left
        slow.may_end.set()
        await drain.ended
        status = await drain.status(request.nonce)
        seen_at = perf_counter()
    if status["status"] != "drained":
        raise SystemExit(f"not drained: {status}")
    await drain.resume(request.nonce)
    return (seen_at - slow.ended_at) * 1000


async def _call(app: ASGIApp, scope: Scope, server: Server) -> None:
    await app(scope, server.receive, server.send)


def main() -> int:
    """Print the table; 1 where the median is above the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drains", type=int, default=300)
    options = parser.parse_args()
    quiet()
    taken = asyncio.run(measure(options.drains))
    p99 = quantiles(taken, n=100)[-1]
    row = (f"{options.drains} drains", f"{median(taken):.3f}", f"{p99:.3f}")
    print(table(("last work to drained, ms", "median", "p99"), [row]))
    return int(median(taken) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
