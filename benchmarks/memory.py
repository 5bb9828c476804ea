"""What an idle WebSocket holds, and a begin that finds many of them.

    python -m benchmarks.memory [--sessions N]

The sessions are driven by hand: each is accepted and then waits for a message.
What Python allocates for one is counted by tracemalloc, so it repeats to the
byte; the bare app's own share is taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Coroutine, Generator
from statistics import median
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.begin import begin_request
from benchmarks.table import table
from benchmarks.variants import BARE, LAYERS, NO_OP, OURS, OURS_WITH_ALL, quiet
from drainmw import Drain, DrainMiddleware

LIMIT = 1500  # bytes a session over the bare app; a wait that can be ended is half
NAMES = (BARE, NO_OP, OURS, OURS_WITH_ALL)
REPEATS = 20

Session = Coroutine[Any, Any, None]


class Never:
    """Awaited, it waits for whoever drives by hand."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def receive() -> Message:
    """A connect first, in effect; then nothing, ever."""
    await Never()
    return {"type": "websocket.disconnect", "code": 1000}


async def send(message: Message) -> None:
    """Throw it away."""


async def idle(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and wait."""
    await send({"type": "websocket.accept"})
    await receive()


def open_sessions(app: ASGIApp, count: int) -> list[Session]:
    """So many sessions, each waiting for its first message."""
    sessions: list[Session] = []
    for number in range(count):
        call: Any = app(_scope(number), receive, send)
        call.send(None)
        sessions.append(call)
    return sessions


def close_sessions(sessions: list[Session]) -> None:
    """End them all, as a server does with a task it cancels."""
    for session in sessions:
        session.close()


def _scope(number: int) -> Scope:
    return {"type": "websocket", "path": f"/feed/{number}", "root_path": ""}


def bytes_a_session(name: str, count: int) -> float:
    """Bytes that one idle session holds behind that variant."""
    app = LAYERS[name](idle)
    close_sessions(open_sessions(app, 100))  # what is made only once
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sessions = open_sessions(app, count)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    close_sessions(sessions)
    return (after - before) / count


async def begin_and_report(count: int) -> tuple[float, float]:
    """Milliseconds of a begin and of a report with that many in flight."""
    drain = Drain()
    sessions = open_sessions(DrainMiddleware(idle, drain), count)
    request = begin_request()
    start = perf_counter()
    await drain.begin(request)
    begun = perf_counter()
    report = await drain.report()
    reported = perf_counter()
    if report["inFlight"]["websocket"] != count:
        raise SystemExit(f"not all were counted: {report['inFlight']}")
    close_sessions(sessions)
    await drain.ended
    return (begun - start) * 1000, (reported - begun) * 1000


async def drain_side(count: int) -> tuple[float, float]:
    """The medians of `begin_and_report`."""
    taken = [await begin_and_report(count) for _ in range(REPEATS)]
    return median(begin for begin, _ in taken), median(report for _, report in taken)


def main() -> int:
    """Print the tables; 1 where a session holds more than the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=10_000)
    count = parser.parse_args().sessions
    quiet()
    held = {name: bytes_a_session(name, count) for name in NAMES}
    rows = [(n, f"{held[n]:,.0f}", f"{held[n] - held[BARE]:,.0f}") for n in NAMES]
    print(table(("an idle WebSocket, bytes", "in all", "over bare"), rows) + "\n")
    begin, report = asyncio.run(drain_side(count))
    nobody_begin, nobody_report = asyncio.run(drain_side(0))
    rows = [
        ("nothing", f"{nobody_begin:.2f}", f"{nobody_report:.2f}"),
        (f"{count:,} WebSockets", f"{begin:.2f}", f"{report:.2f}"),
    ]
    print(table(("in flight, ms", "begin", "report"), rows))
    return int(held[OURS] - held[BARE] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
