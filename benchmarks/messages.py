"""What a WebSocket message costs behind the middleware: nothing.

    python -m benchmarks.messages [--rounds N]

The app gets the very `receive` and `send` that the server made, which is
looked at first; then an echo of many messages is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from random import shuffle
from statistics import median
from time import perf_counter_ns

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.table import table
from benchmarks.variants import BARE, LAYERS, LIGHT, OURS, OURS_WITH_ALL, own, quiet

MESSAGES = 2000


class Socket:
    """A server's side of one WebSocket: so many messages, then a disconnect."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    async def receive(self) -> Message:
        """The next message."""
        self.left -= 1
        if self.left < 0:
            return {"type": "websocket.disconnect", "code": 1000}
        return {"type": "websocket.receive", "text": "hello"}

    async def send(self, message: Message) -> None:
        """Throw it away."""


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Send back whatever comes, and time it."""
    await send({"type": "websocket.accept"})
    start = perf_counter_ns()
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    scope["state"]["taken"] = perf_counter_ns() - start


def _scope() -> Scope:
    return {"type": "websocket", "path": "/echo", "root_path": "", "state": {}}


async def is_untouched(name: str) -> bool:
    """Whether the app gets the server's own `receive` and `send`."""
    got: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got.extend((receive, send))

    socket = Socket(0)
    receive, send = socket.receive, socket.send
    await LAYERS[name](app)(_scope(), receive, send)
    return got[0] is receive and got[1] is send


async def nanoseconds(app: ASGIApp, messages: int = MESSAGES) -> float:
    """Nanoseconds a message, there and back."""
    scope, socket = _scope(), Socket(messages)
    await app(scope, socket.receive, socket.send)
    return float(scope["state"]["taken"]) / messages


async def measure(rounds: int) -> dict[str, list[float]]:
    """Nanoseconds a message for each variant and round, interleaved."""
    apps = {name: LAYERS[name](own(echo)) for name in LIGHT}
    taken: dict[str, list[float]] = {name: [] for name in apps}
    order = list(apps)
    for _ in range(rounds):
        shuffle(order)
        gc.collect()
        gc.disable()
        for name in order:
            await nanoseconds(apps[name], 100)  # warm up
            taken[name].append(await nanoseconds(apps[name]))
        gc.enable()
    return taken


def main() -> int:
    """Print the table; 1 where something stands between server and app."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    quiet()
    untouched = {name: asyncio.run(is_untouched(name)) for name in LIGHT}
    taken = asyncio.run(measure(options.rounds))
    rows = []
    for name in LIGHT:
        pairs = zip(taken[name], taken[BARE], strict=True)
        over = median(mine - bare for mine, bare in pairs)
        same = "yes" if untouched[name] else "no"
        rows.append((name, same, f"{median(taken[name]):.0f}", f"{over:.1f}"))
    head = ("a WebSocket message, ns", "server's own send", "in all", "over bare")
    print(table(head, rows))
    return int(not (untouched[OURS] and untouched[OURS_WITH_ALL]))


if __name__ == "__main__":
    sys.exit(main())
