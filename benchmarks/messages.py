"""What a WebSocket message costs behind the middleware, in and out.

    python -m benchmarks.messages [--rounds N]

A message is one that the app receives or one that it sends: an echo is two.
Four apps are timed behind each variant: one that receives what is there
already, one that has to wait for each message, one that sends, and one that
echoes. What the echo costs a message is held to the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Coroutine, Generator, Iterator
from random import shuffle
from statistics import median
from time import perf_counter_ns
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.table import table
from benchmarks.variants import BARE, LAYERS, LIGHT, OURS, OURS_WITH_ALL, own, quiet

LIMIT = 50.0  # nanoseconds a message over the bare app
MESSAGES = 2000  # each way
WARM_UP = 100


class Moment:
    """Awaited, it goes on as soon as whoever drives by hand says so."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Socket:
    """A server's side of one WebSocket: a connect, so many messages, the end."""

    def __init__(self, messages: int) -> None:
        self._messages = _messages(messages)

    async def receive(self) -> Message:
        """The next message, which is there already."""
        return next(self._messages)

    async def send(self, message: Message) -> None:
        """Throw it away."""


class Quiet(Socket):
    """The same, where every message is waited for."""

    async def receive(self) -> Message:
        """The next message."""
        await Moment()
        return next(self._messages)


def _messages(count: int) -> Iterator[Message]:
    yield {"type": "websocket.connect"}
    for _ in range(count):
        yield {"type": "websocket.receive", "text": "hello"}
    yield {"type": "websocket.disconnect", "code": 1000}


async def listen(scope: Scope, receive: Receive, send: Send) -> None:
    """Take whatever comes."""
    await receive()
    await send({"type": "websocket.accept"})
    start = perf_counter_ns()
    while (await receive())["type"] == "websocket.receive":
        pass
    scope["state"]["taken"] = perf_counter_ns() - start


async def talk(scope: Scope, receive: Receive, send: Send) -> None:
    """Send as much."""
    await receive()
    await send({"type": "websocket.accept"})
    start = perf_counter_ns()
    for _ in range(scope["state"]["messages"]):
        await send({"type": "websocket.send", "text": "hello"})
    scope["state"]["taken"] = perf_counter_ns() - start


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Send back whatever comes."""
    await receive()
    await send({"type": "websocket.accept"})
    start = perf_counter_ns()
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    scope["state"]["taken"] = perf_counter_ns() - start


ECHO = "echo, half of it"
# What is timed, the server's side of it, and the messages of one of its turns.
CASES: dict[str, tuple[ASGIApp, type[Socket], int]] = {
    "receive": (listen, Socket, 1),
    "wait and receive": (listen, Quiet, 1),
    "send": (talk, Socket, 1),
    ECHO: (echo, Socket, 2),
}

Taken = dict[str, dict[str, list[float]]]
"""Nanoseconds a message of each case, variant and round."""


def nanoseconds(app: ASGIApp, socket: Socket, messages: int) -> float:
    """Nanoseconds a turn of the app."""
    state = {"messages": messages, "taken": 0}
    scope = {"type": "websocket", "path": "/feed", "root_path": "", "state": state}
    call: Any = app(scope, socket.receive, socket.send)
    _drive(call)
    return state["taken"] / messages


def _drive(call: Coroutine[Any, Any, None]) -> None:
    try:
        while True:
            call.send(None)
    except StopIteration:
        pass


async def measure(rounds: int) -> Taken:
    """Time every case behind every variant, interleaved."""
    runs = [(case, name) for case in CASES for name in LIGHT]
    apps = {(case, name): LAYERS[name](own(CASES[case][0])) for case, name in runs}
    taken: Taken = {case: {name: [] for name in LIGHT} for case in CASES}
    for _ in range(rounds):
        shuffle(runs)
        gc.collect()
        gc.disable()
        for case, name in runs:
            _, socket, in_a_turn = CASES[case]
            nanoseconds(apps[case, name], socket(WARM_UP), WARM_UP)
            turn = nanoseconds(apps[case, name], socket(MESSAGES), MESSAGES)
            taken[case][name].append(turn / in_a_turn)
        gc.enable()
    return taken


def over(taken: dict[str, list[float]], name: str) -> float:
    """The median of a variant's differences to the bare app, round by round."""
    pairs = zip(taken[name], taken[BARE], strict=True)
    return median(mine - bare for mine, bare in pairs)


def main() -> int:
    """Print the table; 1 where a message costs more than the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    quiet()
    taken = asyncio.run(measure(options.rounds))
    bare = ("bare, in all", *(f"{median(taken[case][BARE]):.0f}" for case in CASES))
    rows = [
        (name, *(f"{over(taken[case], name):.1f}" for case in CASES))
        for name in LIGHT
        if name != BARE
    ]
    print(table(("a WebSocket message, ns over bare", *CASES), [bare, *rows]))
    dearest = max(over(taken[ECHO], name) for name in (OURS, OURS_WITH_ALL))
    print(f"\na message costs {dearest:+.1f} ns (limit {LIMIT:.0f})")
    return int(dearest > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
