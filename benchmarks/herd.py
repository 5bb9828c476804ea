"""A simulation of clients that come back after a drain. It measures nothing.

A fleet of processes is drained, and as many new ones take the clients. A balancer
sends each client to one of the new processes at random, so that all of these see
the same. A few are watched, with every client that comes to them; one that gives
up there comes back to any of those, in the place of those that come from the rest.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import log
from random import Random
from typing import NamedTuple

SEED = 1012
HANDSHAKE_TIMEOUT = 10.0  # seconds; that of the `websockets` library
PATIENCE = 1.0  # seconds in which a client is to be answered
HOPELESS = 300.0  # seconds after the last close, when nobody looks any more

Clients = Callable[[int, Random], float]
"""Seconds that a client waits, after so many tries that failed."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Processes that are drained, and those that take their clients."""

    processes: int = 1000
    sockets: int = 10_000  # of each process
    receivers: int = 1000
    watched: int = 4  # of the receivers

    @property
    def expected(self) -> float:
        """Clients that come to one receiver."""
        return self.processes * self.sockets / self.receivers


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fleet is drained; a window of 0 closes all at once."""

    window: float
    batch: int  # processes at a time
    pause: float = 0.0  # seconds from the end of a window to the next batch

    def batches(self, processes: int) -> int:
        return -(-processes // self.batch)

    def begin(self, process: int) -> float:
        """Seconds until that process is drained."""
        return process // self.batch * (self.window + self.pause)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a simulation depends on."""

    fleet: Fleet
    plan: Plan
    clients: Clients
    rate: float  # handshakes a second that one receiver answers
    seed: int = SEED


# Clients


def stubborn(tries: int, chance: Random) -> float:
    """10 ms, always."""
    return 0.01


def backing_off(tries: int, chance: Random) -> float:
    """Exponential backoff from 1 s to 30 s, with full jitter."""
    return chance.uniform(0, min(30.0, 2.0**tries))


def hinted(retry: float) -> Clients:
    """The hint of the close reason, `retry` to twice that; backoff if a try fails."""

    def wait(tries: int, chance: Random) -> float:
        if tries:
            return backing_off(tries, chance)
        return chance.uniform(retry, 2 * retry)

    return wait


# What happens


class Attempt(NamedTuple):
    """A client asks a receiver for a handshake."""

    client: int
    receiver: int
    at: float
    wait: float  # seconds until the answer; the client may have gone by then

    @property
    def is_wasted(self) -> bool:
        return self.wait > HANDSHAKE_TIMEOUT


def closes(fleet: Fleet, plan: Plan, chance: Random) -> Iterator[float]:
    """When each client that will come to a watched receiver is closed.

    As the drain does it: a slice of the window for each socket of a process, and
    a place at random within the slice.
    """
    share = fleet.watched / fleet.receivers
    for process in range(fleet.processes):
        begin = plan.begin(process)
        for number in _chosen(fleet.sockets, share, chance):
            yield begin + (number + chance.random()) / fleet.sockets * plan.window


def _chosen(count: int, share: float, chance: Random) -> Iterator[int]:
    """Each of so many with that probability, by the gaps between them."""
    if share >= 1:
        yield from range(count)
        return
    number = -1
    while True:
        number += 1 + int(log(1 - chance.random()) / log(1 - share))
        if number >= count:
            return
        yield number


def attempts(scene: Scene, closed: list[float], chance: Random) -> Iterator[Attempt]:
    """All of them in the order of their time, until everybody is back.

    A receiver answers one after the other, `rate` a second in the mean; that some
    take longer (a session to look up, a TLS session that is not resumed) is an
    exponential distribution. It learns that a client has gone when it answers, so
    that an attempt which is wasted takes as long as another.
    """
    free = [0.0] * scene.fleet.watched
    due = [(at + scene.clients(0, chance), i, 0) for i, at in enumerate(closed)]
    heapify(due)
    while due:
        at, client, tries = heappop(due)
        receiver = int(chance.random() * scene.fleet.watched)
        free[receiver] = max(at, free[receiver]) + chance.expovariate(scene.rate)
        attempt = Attempt(client, receiver, at, free[receiver] - at)
        yield attempt
        if attempt.is_wasted:
            again = at + HANDSHAKE_TIMEOUT + scene.clients(tries + 1, chance)
            heappush(due, (again, client, tries + 1))


# What comes of it


@dataclass(slots=True)
class Outcome:
    """What the clients and the watched receivers have seen."""

    closed: list[float]
    back: list[float | None] = field(default_factory=list)  # by client
    waits: list[float] = field(default_factory=list)  # by attempt, until given up
    wasted: int = 0  # attempts
    peak: int = 0  # arrivals at one receiver within one 100 ms

    @property
    def returned(self) -> list[float]:
        """When each client came back, of those that did."""
        return [at for at in self.back if at is not None]

    @property
    def is_over(self) -> bool:
        """Everybody is back."""
        return len(self.returned) == len(self.closed)

    @property
    def away(self) -> list[float]:
        """For how long each client had no connection, of those that are back."""
        pairs = zip(self.back, self.closed, strict=True)
        return [back - closed for back, closed in pairs if back is not None]

    def away_at(self, seconds: Iterable[float]) -> list[float]:
        """The share of clients without a connection, at each of these moments."""
        left, returned = sorted(self.closed), sorted(self.returned)
        return [
            (bisect(left, second) - bisect(returned, second)) / len(left)
            for second in seconds
        ]


def simulate(scene: Scene) -> Outcome:
    """Follow the clients until they are back, or it is hopeless."""
    chance = Random(scene.seed)
    closed = list(closes(scene.fleet, scene.plan, chance))
    end = max(closed) + HOPELESS
    outcome = Outcome(closed, [None] * len(closed))
    arrivals: Counter[tuple[int, int]] = Counter()
    for attempt in attempts(scene, closed, chance):
        if attempt.at > end:
            break
        arrivals[attempt.receiver, int(attempt.at * 10)] += 1
        outcome.waits.append(min(attempt.wait, HANDSHAKE_TIMEOUT))
        if attempt.is_wasted:
            outcome.wasted += 1
        else:
            outcome.back[attempt.client] = attempt.at + attempt.wait
    outcome.peak = max(arrivals.values())
    return outcome


def one_in_a_thousand(seconds: list[float]) -> float:
    """What no more than one in a thousand exceeds."""
    return sorted(seconds)[-1 - len(seconds) // 1000]


def is_enough(scene: Scene) -> bool:
    """No more than one client in a thousand waits for longer than a second."""
    chance = Random(scene.seed)
    closed = list(closes(scene.fleet, scene.plan, chance))
    left = len(closed) // 1000
    for attempt in attempts(scene, closed, chance):
        left -= attempt.wait > PATIENCE
        if left < 0:
            return False
    return True


def smallest(scene_of: Callable[[float], Scene], unit: float) -> float:
    """The smallest number of seconds that is enough, to a hundredth of the unit.

    It lies between a hundredth of it and twice as much.
    """
    low, high = 0, 200
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(scene_of(middle * unit / 100)):
            high = middle
        else:
            low = middle
    return high * unit / 100
