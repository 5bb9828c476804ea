"""Ten thousand WebSockets of one process, closed over a window of ten seconds.

    python -m benchmarks.sockets [--sockets N] [--window SECONDS] [--ws NAME]

The server is uvicorn on uvloop, in a process of its own; an app accepts, and
waits for messages that never come. Every 1 ms its event loop is to run a timer,
and notes how late it does: a loop that stalls is late for each of those ticks.
The clients, in this process, note when their close frames come. The lateness
is looked at with nothing to do as well, since the machine has a noise, too.

Python's garbage collector stops everything for half a second with so many
connections, whenever their number has grown by a quarter. It is let run before
the drain, since it would be chance in which seconds it does; should the drain
make it run again, that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_urlsafe
from statistics import quantiles
from time import monotonic
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from benchmarks.holders import Close, hold
from benchmarks.lateness import Lateness, Told
from benchmarks.served import cpu_ns
from benchmarks.table import table
from benchmarks.variants import TOKEN, quiet
from drainmw import Drain, DrainMiddleware
from drainmw.client import ControlClient

SOCKETS = 10_000
WINDOW = 10.0  # seconds
CLOSE_CODE = 1012
TIMEOUT = 30.0  # seconds of the drain
CALM = 3.0  # seconds with nothing to do
AFTERMATH = 0.5  # seconds in which what a drain has held is given up
SPELL = 0.1  # seconds
CROWD_LIMIT = 3.0  # times the mean, in any spell of that length
LATE_LIMIT = 5.0  # milliseconds, 99 of 100
OTHER_FILES = 100  # descriptors that a process needs besides


@dataclass(frozen=True)
class Found:
    """What one run has shown."""

    begun: float
    """Monotonic seconds at the begin's answer."""
    closes: list[Close]
    """In the order in which they came."""
    calm: list[float]
    """Milliseconds that the loop was late before the begin."""
    busy: list[float]
    """The same from the begin to the end of the drain."""
    own: list[float]
    """What of that was its own work, and not that of other processes."""
    collections: tuple[float, float]
    """Milliseconds of the garbage collector's longest full run, before and then."""
    cpu: float
    """Microseconds of the server a close, over those of an idle one."""
    status: str
    """What the drain came to."""


async def feed(scope: Scope, receive: Receive, send: Send) -> None:
    """The app: accept, and wait until it is over."""
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def serve(fd: int, ws: str, window: float) -> None:
    """What the server process does."""
    import uvicorn

    quiet()
    lateness = Lateness()
    drained = DrainMiddleware(feed, Drain(token=TOKEN, close_window=window))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] == "/lateness"
        await (lateness if is_ours else drained)(scope, receive, send)

    chosen: Any = ws
    config = uvicorn.Config(app, ws=chosen, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    watching = asyncio.create_task(lateness.watch())
    await server.serve(sockets=[socket.socket(fileno=fd)])
    watching.cancel()


@contextmanager
def serving(ws: str, window: float) -> Iterator[tuple[int, int]]:
    """A server; gives its process and its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        fd, port = listener.fileno(), listener.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.sockets", "--serve", str(fd)]
        command += ["--ws", ws, "--window", str(window)]
        process = subprocess.Popen(command, pass_fds=[fd])
    try:
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


async def measure(count: int, window: float, ws: str) -> Found:
    """Open them, wait, and drain."""
    with serving(ws, window) as (pid, port):
        started = monotonic()
        held = await hold(port, count)
        print(f"{count:,} opened in {monotonic() - started:.1f} s", flush=True)
        await asyncio.to_thread(ask_lateness, port, "POST")
        calms, before = monotonic(), cpu_ns(pid)
        await asyncio.sleep(CALM)
        begins, between_them = monotonic(), cpu_ns(pid)
        begun, status = await asyncio.to_thread(drain, port)
        with suppress(TimeoutError):  # what is on its way
            await asyncio.wait_for(held.are_over.wait(), 1)
        await asyncio.sleep(AFTERMATH)
        ended, after = monotonic(), cpu_ns(pid)
        told = await asyncio.to_thread(ask_lateness, port, "GET")
    idle = (between_them - before) / (begins - calms)
    used = after - between_them - idle * (ended - begins)
    return Found(
        begun=begun,
        closes=held.closes,
        calm=told.late(calms, begins),
        busy=told.late(begins, ended),
        own=told.own_late(begins, ended),
        collections=(
            told.longest_collection(started, calms),
            told.longest_collection(calms, ended),
        ),
        cpu=used / count / 1000,
        status=status,
    )


def drain(port: int) -> tuple[float, str]:
    """Begin, and wait for the end; gives when it had begun, and the outcome."""
    nonce, url = token_urlsafe(32), f"http://127.0.0.1:{port}"
    with ControlClient(url=url, tokens=[TOKEN]) as client:
        client.begin(nonce, "0" * 40, "1" * 40, round(TIMEOUT * 1000))
        begun = monotonic()
        *_, last = client.watch(nonce)
    return begun, last["status"]


def ask_lateness(port: int, method: str) -> Told:
    """What the server's loop has noted; with a POST it collects its garbage."""
    url = f"http://127.0.0.1:{port}/lateness"
    answer = httpx.request(method, url, trust_env=False, timeout=30)
    return Told(**answer.json())


def most_within(moments: Sequence[float], spell: float) -> int:
    """The most of them, which are in order, in any time of that length."""
    return max(
        (bisect_left(moments, at + spell) - i for i, at in enumerate(moments)),
        default=0,
    )


def is_as_promised(close: Close) -> bool:
    """With the code, and a hint when to come back."""
    return close.code == CLOSE_CODE and "retry_ms" in json.loads(close.reason)


def allow_files(count: int) -> None:
    """Let this process, and its children, hold that many connections."""
    needed = count + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(
            f"{count:,} WebSockets need {needed:,} file descriptors in each process, "
            f"and the hard limit is {hard:,} (ulimit -Hn): raise it, or give --sockets"
        )


def show(found: Found, count: int, window: float) -> bool:
    """Print the tables; true where the limits are kept."""
    moments = [close.at for close in found.closes]
    mean = count * SPELL / window
    most, crowd = most_within(moments, SPELL), CROWD_LIMIT * mean
    first, last = (
        f"{moments[i] - found.begun:.2f}" if moments else "-" for i in (0, -1)
    )
    rows = [
        ("mean over the window", f"{mean:.0f}", ""),
        ("most, in any", f"{most}", f"{crowd:.0f}"),
    ]
    print(table(("closes in 100 ms", "", "limit"), rows) + "\n")
    late = [
        ("before the begin", *_late(found.calm), ""),
        ("while it drains", *_late(found.busy), f"{LATE_LIMIT:.0f}"),
        ("of which its own work", *_late(found.own), ""),
    ]
    head = ("the loop is late, ms", "median", "99 of 100", "most", "limit of the 99")
    print(table(head, late))
    kept = sum(map(is_as_promised, found.closes))
    codes = dict(Counter(close.code for close in found.closes))
    print(f"\n{found.status}; close codes {codes}, {kept:,} with `retry_ms`;")
    before, during = found.collections
    print(f"full runs of the collector: {before:.0f} ms before, {during:.0f} ms then;")
    print(f"first after {first} s, last after {last} s; {found.cpu:.0f} µs of CPU each")
    is_complete = kept == count == len(found.closes) and found.status == "drained"
    return is_complete and most <= crowd and _rare(found.busy) < LATE_LIMIT


def _late(values: list[float]) -> tuple[str, str, str]:
    median = quantiles(values, n=2)[0]
    return (f"{median:.2f}", f"{_rare(values):.2f}", f"{max(values):.1f}")


def _rare(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def main() -> int:
    """Measure and print; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=SOCKETS)
    parser.add_argument("--window", type=float, default=WINDOW)
    parser.add_argument("--ws", default="websockets-sansio", help="of uvicorn")
    parser.add_argument("--serve", type=int, metavar="FD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=_uvloop) as runner:
        if options.serve is not None:
            runner.run(serve(options.serve, options.ws, options.window))
            return 0
        allow_files(options.sockets)
        found = runner.run(measure(options.sockets, options.window, options.ws))
    return int(not show(found, options.sockets, options.window))


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main())
