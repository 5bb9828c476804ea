"""A queue that is handed over, or held and released, while work keeps coming."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

from drainmw import IntakeRefused
from drainmw.contract import CONFIRM_PATH, DETACH_PATH, SEAL_PATH
from drainmw.sources.queue import KeyedQueue
from drainmw.sources.queuestate import QueueState
from drainmw.state import ImportContext
from tests.rig import NONCE, SOURCE, TARGET, Release, calm
from tests.test_handoff import begin, begin_json, outcome, says, source
from tests.test_release import ended

PROTOCOL = "queue/work"
STEPS = 4  # of a long piece, with a checkpoint after each


class Side:
    """One release with a queue, and what it has run."""

    def __init__(self, load: Load, *, handoff: bool) -> None:
        self.load = load
        self.release = Release()
        self.queue = KeyedQueue("work", handoff=handoff)
        self.state = QueueState(self.queue)
        self.release.drain.add_source(self.queue)
        self.release.drain.add_state(self.state)
        self.queue.handler("short")(self.short)
        self.queue.handler("long")(self.long)

    async def short(self, key: str, number: int) -> int:
        self.load.note(key, number)
        await self.load.moment()
        return number

    async def long(self, key: str, number: int) -> Any:
        current = self.queue.current
        for step in range(current.checkpoint or 0, STEPS):
            self.load.note(key, number, step)
            await self.load.moment()
            if step + 1 < STEPS and current.must_park:
                return current.park(step + 1)
        return number


class Load:
    """So many pieces over so many keys, each key offered in order."""

    def __init__(self, pieces: int, keys: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.each = pieces // keys
        self.keys = [f"user:{number}" for number in range(keys)]
        self.run: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By key, the pieces and steps that have been run, in order."""
        self.offered = 0
        self.results: list[asyncio.Future[Any]] = []
        self.is_long = {
            (key, number): self.chance.random() < 0.15
            for key in self.keys
            for number in range(self.each)
        }

    def note(self, key: str, number: int, step: int = 0) -> None:
        self.run[key].append((number, step))

    async def moment(self) -> None:
        """Some time, which is not the same for all."""
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def offer(self, *sides: Side) -> None:
        """All of it, to the first of them that takes it."""
        await asyncio.gather(*(self._offer(key, sides) for key in self.keys))

    async def _offer(self, key: str, sides: tuple[Side, ...]) -> None:
        for number in range(self.each):
            handler = "long" if self.is_long[key, number] else "short"
            taker = 0
            while True:
                try:
                    result = sides[taker % len(sides)].queue.run(
                        key, handler, key, number, id=f"{key}/{number}"
                    )
                except IntakeRefused:
                    taker += 1
                    await asyncio.sleep(0)
                    continue
                break
            self.results.append(result)
            self.offered += 1
            await self.moment()

    async def until_offered(self, part: float) -> None:
        """Return when that part of it has been accepted somewhere."""
        total = self.each * len(self.keys)
        while self.offered < total * part:  # noqa: ASYNC110 every turn matters
            await asyncio.sleep(0)

    def check(self) -> None:
        """Each piece, and each step of a long one, was run once and in its order."""
        assert sorted(self.run) == sorted(self.keys)
        for key, run in self.run.items():
            assert run == [
                (number, step)
                for number in range(self.each)
                for step in range(STEPS if self.is_long[key, number] else 1)
            ]

    async def kinds(self) -> Counter[str]:
        """How the results have ended that have."""
        done = [result for result in self.results if result.done()]
        told = await asyncio.gather(*done, return_exceptions=True)
        return Counter(type(one).__name__ for one in told)


async def hand_over(load: Load) -> dict[str, Any]:
    """Cut over in the middle; gives what went over."""
    old, new = Side(load, handoff=True), Side(load, handoff=False)
    new.queue.pause()  # so that nothing overtakes what is on its way
    offering = asyncio.create_task(load.offer(old, new))
    await load.until_offered(0.5)
    await old.release.client.begin(timeoutMs=60_000)
    assert await ended(old.release.drain, within=60) == "drained"
    ran_here = sum(len(run) for run in load.run.values())
    await told_by(old, SEAL_PATH, {"nonce": NONCE})
    exported = await old.release.drain.handoffs.export(PROTOCOL, SOURCE, TARGET)
    async with source(says(200, exported.body)) as url:
        await begin(new.release, begin_json(url, protocol=PROTOCOL))
        told = await outcome(new.release)
    assert told["status"] == "acknowledged", told
    assert new.queue.snapshot().keys  # taken, and nothing is run before it is ours
    await calm()
    assert sum(len(run) for run in load.run.values()) == ran_here
    new.queue.resume()
    detached = await told_by(old, DETACH_PATH, {"nonce": NONCE})
    moved = {"nonce": NONCE, "phase": detached["phase"], "epoch": detached["epoch"]}
    await told_by(new, CONFIRM_PATH, moved)
    await offering
    await new.queue.when_idle()
    assert sum(len(run) for run in load.run.values()) > ran_here > 0
    return {**told, "bytes": len(exported.body), "ran": ran_here}


async def told_by(side: Side, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a control endpoint of that release answers."""
    answer = await side.release.client.control("POST", path, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def context(told: dict[str, Any], **members: Any) -> ImportContext:
    """That of a handoff which has been acknowledged."""
    return ImportContext(
        **{
            "source_revision": SOURCE,
            "target_revision": TARGET,
            "cursor": told["cursor"],
            "digest": told["digest"],
            "nonce": NONCE,
            "schema_version": 1,
            **members,
        }
    )


async def hold_and_release(load: Load, cycles: int) -> Counter[str]:
    """Many drains that are resumed, some after a handoff that came to nothing."""
    side, other = Side(load, handoff=True), Side(load, handoff=False)
    plans = Counter[str]()
    offering = asyncio.create_task(load.offer(side))
    for _ in range(cycles):
        await load.moment()
        side.queue.handoff = load.chance.random() < 0.7
        await side.queue.hold()
        if load.chance.random() < 0.3:  # resumed before it has ended
            plans["broken off"] += 1
        else:
            await side.queue.settled()
            await settled(side, other, load, plans)
        await side.queue.release()
    side.queue.handoff = False
    await offering
    await side.queue.when_idle()
    return plans


async def settled(side: Side, other: Side, load: Load, plans: Counter[str]) -> None:
    """Nothing runs, and what would go over is put into another queue and back."""
    before = sum(len(run) for run in load.run.values())
    cursor, value = await side.state.export_state()
    assert side.state.validate(value)
    about = context({"cursor": cursor, "digest": ""})
    await other.state.import_state(value, about)
    assert other.queue.count().jobs == len(value["pieces"]) == side.queue.handed_back
    await calm()
    assert sum(len(run) for run in load.run.values()) == before
    await other.state.discard(about)
    assert other.queue.count().jobs == 0
    plans["parked" if any("of" in piece for piece in value["pieces"]) else "held"] += 1
