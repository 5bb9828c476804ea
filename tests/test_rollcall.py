"""Asking everybody, and what counts as an answer."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

import pytest

from drainmw.core.ledger import Ledger, Ticket
from drainmw.core.roster import Worker
from drainmw.record import Hint
from drainmw.rollcall import RollCall
from drainmw.sources.holds import Holds
from drainmw.testing import ManualSource, http_scope
from tests.siblings import SharedRecord

PATIENCE = 0.15  # seconds

pytestmark = pytest.mark.anyio


class Scene:
    """This worker, and one sibling of pid 2 that answers as the test says."""

    def __init__(self) -> None:
        self.record = SharedRecord()
        self.ledger = Ledger(self.record.gate)
        self.holds = Holds(PATIENCE)
        self.rolls = RollCall(
            self.record,
            self.ledger,
            self.holds,
            clock=time.monotonic,
            patience=PATIENCE,
        )

    def sibling_speaks(self, **said: object) -> None:
        generation, _ = self.record.read()
        word = Worker(
            2, 0.0, time.monotonic(), generation, settled=True, counts=(0, 0, 0, 0)
        )
        self.record.siblings[2] = replace(word, **said)  # type: ignore[arg-type]
        self.rolls.stirred.beat()

    def sibling_answers(self, **said: object) -> None:
        self.record.siblings[2] = Worker(2, 0, 0, 0, False, (None,) * 4)

        def on_wake(_hint: Hint) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, lambda: self.sibling_speaks(**said))

        self.record.on_wake = on_wake


async def test_who_is_alone_hears_itself_at_once() -> None:
    scene = Scene()
    scene.ledger.enter("http", http_scope(), 1.0, Ticket)
    _, roll, workers = await scene.rolls.call()
    assert roll.known == {"http": 1, "websocket": 0, "jobs": 0, "schedules": 0}
    assert [w.pid for w in workers] == [os.getpid()]


async def test_a_call_waits_until_everybody_has_answered() -> None:
    scene = Scene()
    scene.sibling_answers(counts=(3, 0, 0, 0))
    scene.ledger.enter("http", http_scope(), 1.0, Ticket)
    began = time.monotonic()
    _, roll, _ = await scene.rolls.call()
    assert roll.counts["http"] == 4
    assert time.monotonic() - began < PATIENCE


async def test_who_does_not_answer_in_time_is_unknown() -> None:
    scene = Scene()
    scene.sibling_speaks()
    began = time.monotonic()
    _, roll, _ = await scene.rolls.call()
    assert time.monotonic() - began >= PATIENCE
    assert [w.pid for w in roll.unknown] == [2]
    assert roll.counts["http"] is None


async def test_who_dies_while_it_is_waited_for_is_not_missed() -> None:
    scene = Scene()
    scene.sibling_speaks()
    asyncio.get_running_loop().call_later(0.01, scene.record.siblings.clear)
    _, roll, _ = await scene.rolls.call()
    assert (roll.unknown, roll.is_idle) == ((), True)


async def test_whom_a_transition_has_overtaken_is_asked_anew() -> None:
    scene = Scene()
    scene.sibling_answers()

    def turn() -> None:
        scene.record.transact(lambda life: life.cordon())
        scene.sibling_speaks(generation=1)  # it had looked before
        asyncio.get_running_loop().call_later(0.01, scene.rolls.stirred.beat)

    asyncio.get_running_loop().call_later(0.005, turn)
    began = time.monotonic()
    generation, roll, _ = await scene.rolls.call()
    assert (generation, roll.unknown) == (2, ())
    assert time.monotonic() - began < PATIENCE
    assert scene.record.hints == ["ask", "ask"]


async def test_who_had_no_room_for_a_hint_is_asked_again() -> None:
    scene = Scene()
    scene.sibling_answers()
    answers, scene.record.on_wake = scene.record.on_wake, lambda _hint: None
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, lambda: setattr(scene.record, "on_wake", answers))
    began = time.monotonic()
    _, roll, _ = await scene.rolls.call()
    assert roll.unknown == ()
    assert time.monotonic() - began < PATIENCE


async def test_an_acknowledgement_of_an_older_generation_than_the_newest_counts() -> (
    None
):
    scene = Scene()
    scene.sibling_speaks(generation=1)
    scene.record.transact(lambda life: life.cordon())
    async with asyncio.timeout(PATIENCE):
        await scene.rolls.acknowledged(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await scene.rolls.acknowledged(2)


async def test_a_word_is_as_old_as_its_first_look() -> None:
    scene = Scene()
    source = ManualSource()
    source.block("count")
    scene.holds.add(source)
    asked = time.monotonic()
    asyncio.get_running_loop().call_later(0.05, source.unblock, "count")
    word = await scene.rolls.speak()
    assert asked <= word.published < asked + 0.04
    assert scene.record.published == [word]


async def test_a_source_that_is_not_held_keeps_its_worker_from_being_settled() -> None:
    scene = Scene()
    scene.rolls.settled = True
    assert (await scene.rolls.speak()).settled
    scene.holds.add(ManualSource())
    assert not (await scene.rolls.speak()).settled


async def test_a_counter_that_cannot_be_told_names_its_source() -> None:
    scene = Scene()
    source = ManualSource("redis")
    source.block("count")
    scene.holds.add(source)
    word = await scene.rolls.speak()
    assert word.counts == (0, 0, None, None)
    assert (word.who, word.valid) == ("redis", True)
    source.unblock("count")
    source.set_counts(jobs=-1)
    word = await scene.rolls.speak()
    assert (word.who, word.valid) == ("redis", False)
    source.fail("count", RuntimeError("boom"))
    word = await scene.rolls.speak()
    assert (word.who, word.error, word.fatal) == ("redis", "boom", True)


async def test_an_observer_hears_only_others() -> None:
    scene = Scene()
    scene.rolls._is_worker = False
    _, roll, workers = await scene.rolls.call()
    assert (roll.is_idle, workers) == (True, [])
    scene.sibling_answers(counts=(2, 0, 0, 0))
    _, roll, workers = await scene.rolls.call()
    assert roll.counts["http"] == 2
    assert [w.pid for w in workers] == [2]
