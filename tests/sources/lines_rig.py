"""Pieces of keyed work, and lines that a test drives by hand or at random."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from drainmw.sources.lines import Lines
from drainmw.sources.pieces import COUNTED, Body, Lane, Piece, Place

_loop = asyncio.new_event_loop()  # never run: a piece has to name one
_loop.close()


def piece(id: str, key: str = "k", **members: Any) -> Piece:
    """One of the handler `work`, which can go over."""
    return Piece(
        **{
            "source": None,
            "id": id,
            "key": key,
            "lane": "application",
            "call": len,
            "handler": "work",
            "args": (),
            "loop": _loop,
            "context": contextvars.Context(),
            **members,
        }
    )


class Started:
    """Lines, and what they have started, as a queue takes it from them."""

    def __init__(self, lines: Lines | None = None) -> None:
        self.lines = lines or Lines()
        self.log: list[str] = []

    @contextmanager
    def starts(self, *ids: str) -> Iterator[None]:
        """Exactly these are started meanwhile, in that order."""
        yield
        assert self.take() == list(ids)

    def take(self) -> list[str]:
        """What was started since the last time."""
        started, self.lines.starting = self.lines.starting, []
        for each in started:
            each.in_flight = each.has_run = True
        self.log += [each.id for each in started]
        return [each.id for each in started]

    def travel(self, room: int = 1_000_000) -> None:
        for each in self.lines.travel(room):
            each.freeze()
        self.lines.sift()


class Wanderer:
    """A random life of lines, checked at every step against what must hold.

    It goes from release to release: `cut` brings what is on its way to new lines.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lines = Lines()
        self.running: list[Piece] = []
        self.accepted: dict[str, tuple[str, Lane]] = {}
        self.ended: list[str] = []
        self.given_up: list[str] = []
        self.begun: dict[str, list[str]] = {}
        """By key, what was started for the first time, in order."""
        self._numbers = count()
        self._names: dict[str, str] = {}

    def wander(self, steps: int) -> None:
        moves = [self.add] * 6 + [self.end] * 6 + [self.park, self.travel, self.stay]
        moves += [self.pause, self.resume, self.cut]
        for _ in range(steps):
            self.chance.choice(moves)()
            self._follow()
        self.finish()

    def finish(self) -> None:
        """Let everything that was accepted come to its end."""
        self.lines.stay()
        for key in self.lines.paused_keys:
            self.lines.resume(key)
        self.lines.resume(None)
        self._follow()
        while self.running:
            self.end()
            self._follow()
        assert self.lines.counts == (0, 0)
        assert list(self.lines) == []
        assert sorted(self.ended) == sorted(self.accepted)
        self._check_order()

    # Moves

    def add(self) -> None:
        id, key = f"w{next(self._numbers)}", self.chance.choice("abc")
        lanes: list[Lane] = ["application", "application", "lifecycle"]
        lane = self.chance.choice(lanes)
        self.accepted[id] = key, lane
        new = piece(id, key, lane=lane, handler=self._handler())
        if self.running and self.chance.random() < 0.3:
            new.feeder = self.chance.choice(self.running)
        new.schedule = self.chance.choice([None, None, "nightly"])
        if self.lines.travels:
            new.freeze()
        self.lines.add(new)

    def end(self) -> None:
        if self.running:
            done = self.running.pop(self.chance.randrange(len(self.running)))
            self.ended.append(done.of or done.id)
            self._over(done)
            self.lines.end(done)

    def park(self) -> None:
        asked = [each for each in self.running if self.lines.asks(each)]
        if asked:
            left = self.chance.choice(asked)
            self.running.remove(left)
            self._over(left)
            left.of = left.of or left.id
            left.checkpoint = self.chance.choice([1, {"at": 2}, object()])
            left.freeze()
            self.lines.park(left)

    def travel(self) -> None:
        for each in self.lines.travel(self.chance.choice([0, 400, 10**6])):
            each.freeze()
        self.lines.sift()

    def stay(self) -> None:
        self.lines.stay()

    def pause(self) -> None:
        self.lines.pause(self.chance.choice(["a", "b", None]))

    def resume(self) -> None:
        self.lines.resume(self.chance.choice(["a", "b", None]))

    def cut(self) -> None:
        """The next release, once all that has to end here has ended."""
        if not self.lines.travels:
            return
        for key in (*self.lines.paused_keys, None):
            self.lines.resume(key)
        self._follow()
        while self.running:
            self.end()
            self._follow()
        bodies = [each.body for each in self.lines.travellers() if each.body]
        assert self.lines.counts == (0, 0)
        assert len(bodies) == self.lines.leaving
        self.lines = Lines()
        pieces = [self._brought(body) for body in bodies]
        places: list[Place] = ["waiting", "provisional"]
        place = self.chance.choice(places)
        self.lines.insert(pieces, place)
        if place == "provisional":
            assert self.lines.starting == []
            self.lines.confirm(pieces)

    # What must hold

    def _follow(self) -> None:
        started, self.lines.starting = self.lines.starting, []
        for each in started:
            assert each.place == "running"
            if not each.of:
                self.begun.setdefault(each.key, []).append(each.id)
            each.in_flight = each.has_run = True
            self.running.append(each)
        keys = Counter(each.key for each in self.running)
        assert max(keys.values(), default=0) <= 1
        everything = [each for line in self.lines for each in line] + self.running
        counted = [each for each in everything if each.place in COUNTED]
        assert sum(self.lines.counts) == len(counted)
        assert self.lines.leaving == len(everything) - len(counted)
        slots = sum(each.schedule is not None for each in everything)
        assert self.lines.occupies("nightly") == bool(slots)
        if not self.lines.travels:
            assert self.lines.leaving == 0
        assert self.lines.room >= 0
        for line in self.lines:
            places = [each.place for each in line]
            gone = [n for n, place in enumerate(places) if place != "waiting"]
            if gone:  # what has to end here is never behind what goes
                assert "waiting" not in places[gone[0] :]

    def _check_order(self) -> None:
        """Within a key and a lane, first accepted is first begun."""
        for key, begun in self.begun.items():
            for lane in ("lifecycle", "application"):
                ids = [id for id in begun if self.accepted[id] == (key, lane)]
                assert ids == sorted(ids, key=lambda id: int(id[1:]))

    # Small things

    def _handler(self) -> str | None:
        return self.chance.choice(["work", "work", "work", None])

    def _over(self, done: Piece) -> None:
        done.over()
        self.lines.sift_anew()

    def _brought(self, body: Body) -> Piece:
        return piece(
            body["id"],
            body["key"],
            lane=body["lane"],
            schedule=body.get("schedule"),
            of=body.get("of"),
            checkpoint=body.get("checkpoint"),
        )
