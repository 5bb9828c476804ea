"""A handoff of almost 1 MiB: its time, what it keeps event loops from, its memory.

    python -m benchmarks.handoff [--rounds N] [STATE ...]

Both releases are processes of uvicorn and started for each handoff, so that it is
the first of either: a release takes state over once in its life. The old one is
drained, seals its state and offers it, the new one fetches it. Every 1 ms the
event loop of each is to run a timer, and notes how late it does, and how much of
that was for want of a CPU: others use them as well. Needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import random
from secrets import token_urlsafe
from statistics import median
from time import monotonic, process_time

import httpx
from starlette.types import Receive, Scope, Send

from benchmarks.lateness import Lateness, Told, without_cpu
from benchmarks.states import STATES, fitting
from benchmarks.table import table
from benchmarks.variants import TOKEN, hello, quiet
from drainmw import Drain, DrainMiddleware
from drainmw.client import ControlClient
from drainmw.contract import STATE_BYTES_MAXIMUM, STATE_STATUS_PATH

ROUNDS = 3
TIMEOUT_MS = 10_000
CALM = 0.5  # seconds before it
AFTERMATH = 0.5  # seconds in which what it has held is given up
POLL = 0.01  # seconds
TIME_LIMIT = 300.0  # milliseconds
STALL_LIMIT = 25.0
MEMORY_LIMIT = 4.0  # times the most bytes that may go over
REVISIONS = ("0" * 40, "1" * 40)


@dataclass(frozen=True)
class Side:
    """What one release has shown."""

    late: float
    """Milliseconds by which its event loop was late at most."""
    own: float
    """What of that was work of the process, on whichever thread, and not that it
    had no CPU."""
    calm: float
    """How late it was before, with nothing to do."""
    collection: float
    """Milliseconds of the garbage collector's longest full run."""
    memory: float
    """The most bytes that it took over those that it had."""


@dataclass(frozen=True)
class Found:
    """What one handoff has shown."""

    taken: float
    """Milliseconds from the begin until a client sees it acknowledged."""
    old: Side
    new: Side


# The releases


async def serve(fd: int, state: str, size: int) -> None:
    """What a server process does."""
    import uvicorn

    quiet()
    lateness = Lateness(process_time, without_cpu())
    drain = Drain(token=TOKEN)
    drain.add_state(STATES[state].adapter(size))
    drained = DrainMiddleware(hello, drain)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] == "/lateness"
        await (lateness if is_ours else drained)(scope, receive, send)

    config = uvicorn.Config(app, lifespan="off", ws="none", log_level="error")
    watching = asyncio.create_task(lateness.watch())
    await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=fd)])
    watching.cancel()


@dataclass(frozen=True)
class Release:
    """One of them, from outside."""

    pid: int
    url: str

    def look(self) -> Told:
        """What its event loop has noted."""
        answer = httpx.get(f"{self.url}/lateness", trust_env=False, timeout=30)
        return Told(**answer.json())

    def forget_peak(self) -> int:
        """Let the peak of its memory begin anew; the bytes that it has."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.memory("VmRSS")

    def memory(self, name: str) -> int:
        """Bytes: `VmRSS` that it has, `VmHWM` that it had at most."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None, "Linux tells it"
        return int(found[1]) * 1024


@contextmanager
def serving(state: str, size: int) -> Iterator[Release]:
    """One that serves, with a state of so many parts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd, port = listener.fileno(), listener.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.handoff", state]
        command += ["--serve", str(fd), "--size", str(size)]
        process = subprocess.Popen(command, pass_fds=[fd])
    try:
        release = Release(process.pid, f"http://127.0.0.1:{port}")
        release.look()  # once it serves
        yield release
    finally:
        process.kill()
        process.wait()


# One handoff


def measure(state: str, size: int) -> Found:
    """Between two fresh processes."""
    with (
        serving(state, size) as old,
        serving(state, 0) as new,
        ControlClient(url=old.url, tokens=[TOKEN]) as source,
        ControlClient(url=new.url, tokens=[TOKEN]) as target,
    ):
        drain_nonce = drain(source)
        calms = monotonic()
        time.sleep(CALM)
        had = (old.forget_peak(), new.forget_peak())
        begins = monotonic()
        source.seal(drain_nonce)
        taken = hand_over(state, source, target, new)
        time.sleep(AFTERMATH)
        moments = (calms, begins, monotonic())
        sides = [_side(*each, *moments) for each in zip((old, new), had, strict=True)]
    return Found(taken, *sides)


def drain(client: ControlClient) -> str:
    """As a release is before its state goes over; the nonce."""
    nonce = token_urlsafe(32)
    client.begin(nonce, *REVISIONS, TIMEOUT_MS)
    *_, last = client.watch(nonce)
    assert last["status"] == "drained", last
    return nonce


def hand_over(
    state: str, source: ControlClient, target: ControlClient, new: Release
) -> float:
    """Milliseconds from the begin until it is acknowledged."""
    nonce = token_urlsafe(32)
    url = f"{new.url}{STATE_STATUS_PATH}?nonce={nonce}"
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(trust_env=False, headers=headers) as client:
        offered = source.offer(state, nonce, *REVISIONS, TIMEOUT_MS)
        start = monotonic()
        target.begin_handoff(offered, nonce, TIMEOUT_MS)
        while (told := client.get(url).json())["status"] == "pending":
            time.sleep(POLL)
        taken = monotonic() - start
    assert told["status"] == "acknowledged", told
    return taken * 1000


def _side(release: Release, had: int, calms: float, begins: float, ends: float) -> Side:
    memory = release.memory("VmHWM") - had
    told = release.look()
    return Side(
        late=max(told.late(begins, ends)),
        own=max(told.own_late(begins, ends)),
        calm=max(told.late(calms, begins)),
        collection=told.longest_collection(begins, ends),
        memory=memory,
    )


# All of them


@dataclass(frozen=True)
class Runs:
    """All handoffs of one kind of state."""

    state: str
    held: int
    """Bytes that a release holds that keeps it."""
    found: list[Found]

    @property
    def sides(self) -> Iterator[tuple[str, list[Side], int]]:
        """Both, and what each holds afterwards that it did not before."""
        yield f"{self.state}, old", [each.old for each in self.found], 0
        yield f"{self.state}, new", [each.new for each in self.found], self.held


def measure_all(states: list[str], rounds: int) -> list[Runs]:
    """So many of each kind, in a new random order each round."""
    fits = {state: fitting(STATES[state]) for state in states}
    runs = [Runs(state, held, []) for state, (_, held) in fits.items()]
    for _ in range(rounds):
        for each in sorted(runs, key=lambda _: random()):
            size, _ = fits[each.state]
            each.found.append(measure(each.state, size))
    return runs


def show(runs: list[Runs]) -> bool:
    """Print the tables; true where the limits are kept."""
    times = {each.state: [one.taken for one in each.found] for each in runs}
    rows = [
        (name, f"{median(taken):.0f}", f"{max(taken):.0f}", f"{TIME_LIMIT:.0f}")
        for name, taken in times.items()
    ]
    print(table(("begin to acknowledged, ms", "median", "most", "limit"), rows) + "\n")
    sides = [side for each in runs for side in each.sides]
    print(table(LATE_HEAD, [_late_row(name, side) for name, side, _ in sides]) + "\n")
    print(table(MEMORY_HEAD, [_memory_row(*each) for each in sides]))
    return (
        max(map(max, times.values())) < TIME_LIMIT
        and all(one.own <= STALL_LIMIT for _, side, _ in sides for one in side)
        and all(
            _besides(one, held) < MEMORY_LIMIT
            for _, side, held in sides
            for one in side
        )
    )


LATE_HEAD = (
    "the loop is late, ms",
    "median",
    "most",
    "of which its own",
    "limit",
    "calm, most",
    "collector, most",
)


def _late_row(name: str, side: list[Side]) -> tuple[str, ...]:
    return (
        name,
        f"{median(one.late for one in side):.1f}",
        f"{max(one.late for one in side):.1f}",
        f"{max(one.own for one in side):.1f}",
        f"{STALL_LIMIT:.0f}",
        f"{max(one.calm for one in side):.1f}",
        f"{max(one.collection for one in side):.1f}",
    )


MEMORY_HEAD = ("memory, x 1 MiB", "most", "besides the state", "limit")


def _memory_row(name: str, side: list[Side], held: int) -> tuple[str, ...]:
    return (
        name,
        f"{max(one.memory for one in side) / STATE_BYTES_MAXIMUM:.1f}",
        f"{max(_besides(one, held) for one in side):.1f}",
        f"{MEMORY_LIMIT:.0f}",
    )


def _besides(side: Side, held: int) -> float:
    return (side.memory - held) / STATE_BYTES_MAXIMUM


def main() -> int:
    """Measure and print; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("states", nargs="*", metavar="STATE", help=", ".join(STATES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        with asyncio.Runner(loop_factory=_uvloop) as runner:
            runner.run(serve(options.serve, options.states[0], options.size))
        return 0
    return int(not show(measure_all(options.states or list(STATES), options.rounds)))


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main())
