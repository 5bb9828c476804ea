"""The demo's second act, two releases: `chat.py` moves from blue to green under load,
and forgets neither who is there nor how much each client may still ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from examples.memory import BURST, RATE
from examples.stage import Release, Timeline, drainmw, local_client, serving
from examples.switch import Switch, switching
from examples.visitors import (
    CLIENTS,
    LEFT,
    LOST,
    PRESENT,
    Person,
    Record,
    ask,
    leave,
    lose,
)

TITLE = "A chat moves from one release to the next, and forgets nothing."
APP = "examples.chat:app"
BLUE, GREEN = "b1" * 20, "9e" * 20  # revisions
USUAL = 1.0  # seconds of load before the change, and after it
PATIENCE = 15.0  # seconds for everybody to be there


@contextlib.asynccontextmanager
async def load(
    switch: Switch, record: Record, timeline: Timeline
) -> AsyncIterator[list[Person]]:
    """People in their rooms, and clients that ask."""
    people = [
        Person(name, room)
        for room, names in PRESENT.items()
        for name in names
        if name != LOST
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(p.stay(switch, record, timeline)) for p in people]
        await everybody(people, record)
        await lose(switch)
        await leave(switch)
        record.complete = time.monotonic()
        tasks += [group.create_task(ask(client, switch, record)) for client in CLIENTS]
        yield people
        for task in tasks:
            task.cancel()


async def everybody(people: list[Person], record: Record) -> None:
    """Return once all are there; whoever is not in time has failed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            for person in people:
                await person.is_here.wait()
    absent = (person.name for person in people if not person.is_here.is_set())
    record.failed += [f"{name} is not there" for name in absent]


class Operator:
    """Types commands."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    async def drain(self, old: Path) -> None:
        await self._type("begin", "--wait", "--control", old)

    async def hand_over(self, old: Path, new: Path) -> None:
        """All of its state, and then its work for good."""
        await self._type("handoff", "--from", old, "--to", new, "--detach")

    async def _type(self, *arguments: str | Path) -> None:
        shown = (a.name if isinstance(a, Path) else a for a in arguments)
        say = self._timeline.say
        say("operator", f"$ drainmw {' '.join(shown)}")
        await drainmw(*map(str, arguments), show=lambda line: say("", line))


async def look(green: Release, record: Record, timeline: Timeline) -> None:
    """See whom it knows, before anybody has been there."""
    async with local_client(green.url, **{"api-key": "operator"}) as http:
        for room in PRESENT:
            asked = time.monotonic()
            present = (await http.get(f"/rooms/{room}")).json()["present"]
            record.saw(room, present, asked)
            timeline.say("green", f"knows in the {room}: {', '.join(present)}")


async def play(directory: Path) -> bool:
    """Whether everything went as promised."""
    timeline, record = Timeline(), Record()
    say, operator = timeline.say, Operator(timeline)
    async with contextlib.AsyncExitStack() as releases:
        # 1. Blue serves, behind a switch.
        start = releases.enter_async_context
        blue = await start(serving(APP, BLUE, directory / "blue.sock"))
        say("blue", f"serving on {blue.url}")
        switch = await start(switching(blue.url))
        say("switch", f"{switch.address} is blue")

        async with load(switch, record, timeline) as people:
            say("load", f"{len(people)} people beat, {LOST} lost hers, {LEFT} left")
            say("load", f"{len(CLIENTS)} clients may ask {BURST} times and {RATE:g}/s")
            await asyncio.sleep(USUAL)

            # 2. Green is there before blue stops taking work.
            green = await start(serving(APP, GREEN, directory / "green.sock"))
            say("green", f"serving on {green.url}, knows nobody")

            # 3. Blue finishes what it has, and green takes over what is left.
            begun = time.monotonic()
            await operator.drain(blue.control)
            await operator.hand_over(blue.control, green.control)
            await look(green, record, timeline)

            # 4. The traffic follows, and blue goes.
            switch.url, switched = green.url, time.monotonic()
            say("switch", f"is green; nobody was let in for {switched - begun:.1f} s")
            codes = [await blue.stop()]
            say("blue", f"stopped by SIGTERM, exit code {codes[0]}")
            await everybody(people, record)
            await asyncio.sleep(USUAL)
        codes.append(await green.stop())
        say("green", f"stopped by SIGTERM, exit code {codes[1]}")
    problems = list(record.problems(switched))
    print("", record.summary(), *problems[:10], sep="\n")
    return not problems and codes == [0, 0]
