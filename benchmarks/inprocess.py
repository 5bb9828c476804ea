"""One event loop, no server: nanoseconds a request over the bare app."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import shuffle
from statistics import median
from time import perf_counter_ns

from starlette.types import ASGIApp, Scope

from benchmarks.variants import Layer, Server, hello, http_scopes, own

Drive = Callable[[ASGIApp, list[Scope], Server], Awaitable[None]]

WARM_UP = 100
BATCH = 4  # scopes made at once: as warm in the cache as a server's
SLOW = 10_000  # nanoseconds; above it, a tenth of the requests is enough


async def drive(app: ASGIApp, scopes: list[Scope], server: Server) -> None:
    """Call the app for each scope in turn."""
    for scope in scopes:
        await app(scope, server.receive, server.send)


@dataclass
class Runner:
    """One variant, and what each round of it took."""

    app: ASGIApp
    drive: Drive
    requests: int
    rounds: list[float]

    @classmethod
    def of(cls, layer: Layer, requests: int) -> Runner:
        """A variant with code of its own."""
        return cls(layer(own(hello)), own(drive), requests, [])

    async def run(self) -> float:
        """Nanoseconds a request, in one slice."""
        server = Server()
        await self.drive(self.app, http_scopes(WARM_UP), server)
        taken = 0
        for _ in range(self.requests // BATCH):
            scopes = http_scopes(BATCH)
            start = perf_counter_ns()
            await self.drive(self.app, scopes, server)
            taken += perf_counter_ns() - start
        return taken / self.requests


async def measure(
    layers: Mapping[str, Layer], *, rounds: int, requests: int = 1000
) -> dict[str, list[float]]:
    """Nanoseconds a request for each variant and round, interleaved."""
    runners = {name: Runner.of(layer, requests) for name, layer in layers.items()}
    for runner in runners.values():
        if await runner.run() > SLOW:
            runner.requests = max(BATCH, requests // 10)
    order = list(runners.values())
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        for runner in order:
            runner.rounds.append(await runner.run())
        gc.enable()
        shuffle(order)
    return {name: runner.rounds for name, runner in runners.items()}


def over(rounds: Mapping[str, list[float]], base: str) -> dict[str, float]:
    """The median of each variant's differences to `base`, round by round."""
    return {
        name: median(a - b for a, b in zip(mine, rounds[base], strict=True))
        for name, mine in rounds.items()
    }


def main_run(
    layers: Mapping[str, Layer], *, rounds: int, requests: int = 1000
) -> dict[str, list[float]]:
    """`measure` in a loop of its own."""
    return asyncio.run(measure(layers, rounds=rounds, requests=requests))
