"""Those who use the chat while it moves, and what they have seen.

They behave as clients should: who is closed with 1012 comes back at the moment that
the reason names, and who is refused by a release that drains asks again.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from examples.memory import BURST, RATE
from examples.stage import Timeline, local_client
from examples.switch import Switch

PRESENT = {"kitchen": ["dan", "eve", "fay"], "lobby": ["ann", "bob", "cat", "zoe"]}
LOST = "zoe"  # whose connection breaks, and who has not left
LEFT = "yan"  # who has, and must not come back
CLIENTS = {"c1": "kitchen", "c2": "kitchen", "c3": "lobby", "c4": "lobby"}

BEAT = 0.2  # seconds between two heartbeats
PAUSE = 0.05  # seconds between two requests of a client


@dataclass
class Record:
    """What people and clients have seen."""

    complete: float = math.inf
    """From when on everybody is there."""
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    """Where somebody was missing, or was there who has left."""
    failed: list[str] = field(default_factory=list)
    refused: int = 0
    limited: int = 0
    started: dict[str, float] = field(default_factory=dict)
    through: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each client got its requests through."""

    def saw(self, room: str, present: list[str], asked: float) -> None:
        if asked >= self.complete:
            self.answers += 1
            if present != PRESENT[room]:
                self.wrong.append(f"in the {room}: {', '.join(present) or 'nobody'}")

    def allowed(self, client: str) -> int:
        """How many requests its limit lets through, up to its last that was."""
        passed = self.through[client][-1] - self.started[client]
        return math.floor(BURST + RATE * passed)

    def problems(self, switched: float) -> Iterator[str]:
        """What is not as promised."""
        yield from dict.fromkeys(self.wrong)
        yield from self.failed
        for client in CLIENTS:
            times = self.through[client]
            if not times or times[-1] < switched:
                yield f"{client} got nothing through after the change"
            elif len(times) > self.allowed(client):
                yield f"{client} got {len(times)} through of {self.allowed(client)}"

    def summary(self) -> str:
        shares = (
            f"{client} {len(times)} of {self.allowed(client)}"
            for client, times in sorted(self.through.items())
        )
        return (
            f"{self.answers} answers told who is there, {len(self.wrong)} wrong.\n"
            f"Requests let through, of those allowed: {', '.join(shares)}.\n"
            f"{self.limited} over the limit, {self.refused} refused and tried again, "
            f"{len(self.failed)} failed."
        )


class Person:
    """Is in a room, and comes back whenever the connection ends."""

    def __init__(self, name: str, room: str) -> None:
        self.name = name
        self.room = room
        self.is_here = asyncio.Event()
        self._told = ""

    async def stay(self, switch: Switch, record: Record, timeline: Timeline) -> None:
        while True:
            try:
                async with visiting(switch, self.room, self.name) as socket:
                    await self._beat(socket, record, timeline)
            except InvalidStatus as exc:
                headers = exc.response.headers
                if "drainmw-refused" not in headers:
                    return record.failed.append(f"{self.name}: {exc}")
                record.refused += 1
                await asyncio.sleep(int(headers["retry-after"]))
            except ConnectionClosed as exc:
                if exc.rcvd is None or exc.rcvd.code != 1012:
                    return record.failed.append(f"{self.name}: {exc}")
                self.is_here.clear()
                self._told = f"closed with {exc.rcvd.code} {exc.rcvd.reason}"
                await asyncio.sleep(json.loads(exc.rcvd.reason)["retry_ms"] / 1000)
            except (WebSocketException, OSError) as exc:
                return record.failed.append(f"{self.name}: {exc!r}")

    async def _beat(
        self, socket: ClientConnection, record: Record, timeline: Timeline
    ) -> None:
        asked = -math.inf
        while True:
            record.saw(self.room, json.loads(await socket.recv()), asked)
            if self._told and not self.is_here.is_set():
                timeline.say(self.name, f"{self._told}, is back now")
            self.is_here.set()
            await asyncio.sleep(BEAT)
            asked = time.monotonic()
            await socket.send("beat")


async def leave(switch: Switch) -> None:
    """Come and leave, as somebody who must not be there afterwards."""
    async with visiting(switch, "kitchen", LEFT) as socket:
        await socket.send("leave")
        await socket.wait_closed()


async def lose(switch: Switch) -> None:
    """Come and lose the connection, as somebody who must be there afterwards."""
    async with visiting(switch, "lobby", LOST) as socket:
        await socket.recv()
        socket.transport.abort()


def visiting(switch: Switch, room: str, name: str) -> connect:
    return connect(f"ws://{switch.address}/rooms/{room}?name={name}", proxy=None)


async def ask(client: str, switch: Switch, record: Record) -> None:
    """Be a client that does not care for its limit."""
    room = CLIENTS[client]
    async with local_client(f"http://{switch.address}", **{"api-key": client}) as http:
        record.started[client] = time.monotonic()
        while True:
            asked = time.monotonic()
            try:
                answer = await http.get(f"/rooms/{room}")
            except httpx.HTTPError as exc:
                return record.failed.append(f"{client}: {exc!r}")
            if answer.is_success:
                record.through[client].append(time.monotonic())
                record.saw(room, answer.json()["present"], asked)
            elif answer.status_code == 429:
                record.limited += 1
            elif "drainmw-refused" in answer.headers:
                record.refused += 1  # the app has not seen it
                await asyncio.sleep(int(answer.headers["retry-after"]))
                continue
            else:
                return record.failed.append(f"{client}: {answer}")
            await asyncio.sleep(PAUSE)
