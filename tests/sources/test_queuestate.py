"""The work of a queue on its way from one release to the next."""

import asyncio
import time
from typing import Any

import pytest

from drainmw.core.canonical import canonical, loads
from drainmw.errors import (
    HandlerUnknown,
    IntakeRefused,
    Misuse,
    ResultElsewhere,
    StateAdapterInvalid,
    WorkStopped,
)
from drainmw.sources.queue import KeyedQueue
from drainmw.sources.queuestate import ENVELOPE, QueueState
from drainmw.state import ImportContext, StateAdapter, phase_of
from tests.rig import NONCE, OTHER_NONCE, calm
from tests.sources.handover import Load, context, hand_over, hold_and_release

pytestmark = pytest.mark.anyio


class Worker:
    """A queue of one worker of a release, and what it has run."""

    def __init__(
        self, *, handoff: bool = False, remembers: int = 1000, **options: Any
    ) -> None:
        self.queue = KeyedQueue("mail", handoff=handoff, remembers=remembers)
        self.state = QueueState(self.queue, **options)
        self.ran: list[Any] = []
        self.queue.handler("note")(self.note)
        self.queue.handler("steps")(self.steps)

    async def note(self, what: Any) -> str:
        self.ran.append(what)
        return f"{what} done"

    async def steps(self, number: int) -> Any:
        """So many steps, of which each parks if it is to."""
        current = self.queue.current
        for step in range(current.checkpoint or 0, number):
            self.ran.append((current.id, step))
            await asyncio.sleep(0)
            if current.must_park:
                return current.park(step + 1)
        return "stepped"

    async def hold(self) -> None:
        await self.queue.hold()
        await self.queue.settled()

    async def exported(self) -> Any:
        """What arrives of its export."""
        _, value = await self.state.export_state()
        return loads(canonical(value))

    async def idle(self) -> None:
        async with asyncio.timeout(1):
            await self.queue.when_idle()


def about(nonce: str = NONCE, **members: Any) -> ImportContext:
    return context({"cursor": "c", "digest": "d"}, nonce=nonce, **members)


async def full(*whats: Any, key: str = "k") -> Worker:
    """An old worker that has withdrawn these."""
    old = Worker(handoff=True)
    old.queue.pause(key)
    for what in whats:
        old.queue.run(key, "note", what, id=f"w-{what}")
    await old.hold()
    old.queue.resume(key)
    assert old.queue.handed_back == len(whats)
    return old


def test_it_is_a_state_adapter_of_what_changes_no_more() -> None:
    state = Worker().state
    assert isinstance(state, StateAdapter)
    assert (state.protocol, phase_of(state)) == ("queue/mail", "drained")
    assert QueueState(KeyedQueue(), protocol="own/v1").protocol == "own/v1"
    with pytest.raises(StateAdapterInvalid):
        QueueState(KeyedQueue("no spaces"))
    with pytest.raises(StateAdapterInvalid, match="maximum_bytes"):
        QueueState(KeyedQueue(), maximum_bytes=2**21)


# Out


async def test_what_was_withdrawn_goes_over_in_order_with_its_ids() -> None:
    old = await full("a", "b")
    cursor, value = await old.state.export_state()
    assert cursor == "withdrawn-2.parked-0"
    assert value["pieces"][0] == {
        "id": "w-a",
        "key": "k",
        "lane": "application",
        "handler": "note",
        "args": ["a"],
    }
    assert [piece["id"] for piece in value["pieces"]] == ["w-a", "w-b"]
    assert old.state.validate(value)
    assert await old.state.export_state() == (cursor, value)


async def test_what_has_been_run_goes_over_as_ids() -> None:
    old = Worker(handoff=True)
    for id in ("1", "2"):
        await old.queue.run("k", "note", id, id=id)
    await old.queue.run("k", "note", "of no name")
    await old.hold()
    assert (await old.exported())["ended"] == ["2", "1"]


async def test_of_the_ids_that_have_been_run_the_last_ones_go_over() -> None:
    old = Worker(handoff=True, maximum_bytes=ENVELOPE + 200)
    for n in range(100):
        await old.queue.run("k", "note", n, id=f"w-{n}")
    await old.hold()
    value = await old.exported()
    assert value["ended"] == [f"w-{n}" for n in range(99, 99 - len(value["ended"]), -1)]
    assert 100 < len(canonical(value["ended"])) <= 200


async def test_what_is_too_much_ends_in_the_old_release() -> None:
    """So the envelope always has room for it."""
    maximum = ENVELOPE + 1000
    old = Worker(handoff=True, maximum_bytes=maximum)
    for n in range(50):
        old.queue.run("k", "note", n, id=f"w-{n}")
    await old.hold()
    await calm()
    value = await old.exported()
    assert len(canonical(value)) < maximum
    assert len(canonical(value)) > 500
    assert len(old.ran) + len(value["pieces"]) == 50
    assert [piece["args"] for piece in value["pieces"]] == [
        [n] for n in range(len(old.ran), 50)
    ]


@pytest.mark.parametrize("text", ["é" * 9, "\ud800", '"\\\x00', "a" * 50])
async def test_the_room_is_measured_as_the_envelope_is_written(text: str) -> None:
    maximum = ENVELOPE + 2000
    old = Worker(handoff=True, maximum_bytes=maximum)
    for n in range(60):
        key = f"{text}{n % 3}"
        old.queue.pause(key)
        old.queue.run(key, "note", text, id=f"{text}-{n}")
    await old.queue.hold()
    value = await old.exported()
    assert value["pieces"]
    assert len(canonical(value)) < maximum
    old.queue.stop()


async def test_a_seal_takes_nothing_any_more_of_work_in_flight_neither() -> None:
    old = Worker(handoff=True)
    old.queue.fed_by(lambda: True)
    await old.hold()
    await old.state.seal()
    await old.state.seal()
    assert old.queue.snapshot().intake == "sealed"
    with pytest.raises(IntakeRefused):
        old.queue.run("k", "note", 1)
    await old.state.unseal()
    with pytest.raises(ResultElsewhere):
        await old.queue.run("k", "note", 1)
    await old.state.seal()
    await old.queue.release()
    await old.idle()
    assert await old.queue.run("k", "note", 2) == "2 done"
    assert old.ran == [1, 2]


# In


async def test_an_import_starts_nothing_before_it_is_confirmed() -> None:
    value = await (await full("a", "b")).exported()
    new = Worker()
    await new.state.import_state(value, about())
    own = new.queue.run("k", "note", "own")
    await calm()
    assert (new.ran, new.queue.count().jobs) == ([], 3)
    assert new.queue.snapshot().keys["k"].provisional == 2
    await new.state.confirm(about())
    await new.state.confirm(about())
    await own
    assert new.ran == ["a", "b", "own"]


async def test_an_import_that_is_not_provisional_starts_at_once() -> None:
    new = Worker()
    value = await (await full("a", "b")).exported()
    await new.state.import_state(value, about(provisional=False))
    await new.idle()
    assert new.ran == ["a", "b"]


async def test_a_discarded_import_leaves_no_trace() -> None:
    old = await full("a", "b")
    old.queue.pause("k")
    value = await old.exported() | {"ended": ["w-old"]}
    new = Worker()
    await new.state.import_state(value, about())
    assert new.queue.snapshot().keys["k"].is_paused
    joined = new.queue.run("k", "note", "a", id="w-a")
    new.queue.stop("k")
    await new.state.discard(about())
    await new.state.discard(about())
    await new.state.confirm(about())
    assert not new.queue.snapshot().keys["k"].is_paused
    with pytest.raises(ResultElsewhere, match="in the previous release, or is taken"):
        await joined
    with pytest.raises(WorkStopped):
        new.queue.run("k", "note", "x")
    new.queue.resume("k")
    assert await new.queue.run("k", "note", "a", id="w-a") == "a done"
    assert await new.queue.run("k", "note", "old", id="w-old") == "old done"
    assert new.queue.count().jobs == 0


async def test_a_key_that_was_paused_here_stays_so_after_a_discard() -> None:
    old, new = await full("a"), Worker()
    old.queue.pause("k")
    new.queue.pause("k")
    await new.state.import_state(await old.exported(), about())
    await new.state.discard(about())
    assert new.queue.snapshot().keys["k"].is_paused


async def test_a_successor_of_what_has_run_here_is_not_taken() -> None:
    old, new = Worker(handoff=True), Worker()
    old.queue.run("k", "steps", 4, id="w")
    await asyncio.sleep(0)
    await old.hold()
    await new.queue.run("k", "note", "own", id="w")
    await new.state.import_state(await old.exported(), about(provisional=False))
    await new.idle()
    assert new.ran == ["own"]


async def test_each_is_run_once_though_it_is_imported_twice() -> None:
    value = await (await full("a", "b")).exported()
    new = Worker(remembers=1)
    for nonce in (NONCE, OTHER_NONCE):
        await new.state.import_state(value, about(nonce))
    await new.state.confirm(about(NONCE))
    await new.idle()
    await new.state.confirm(about(OTHER_NONCE))
    await new.state.import_state(value, about(provisional=False))
    await new.idle()
    assert new.ran == ["a", "b"]


async def test_a_second_import_that_is_discarded_takes_nothing_of_the_first() -> None:
    value = await (await full("a")).exported()
    new = Worker()
    await new.state.import_state(value, about(NONCE))
    await new.state.import_state(value, about(OTHER_NONCE))
    await new.state.discard(about(OTHER_NONCE))
    await new.state.confirm(about(NONCE))
    await new.idle()
    assert new.ran == ["a"]


async def test_who_offers_it_again_in_the_new_release_gets_its_result() -> None:
    value = await (await full("a")).exported()
    new = Worker()
    await new.state.import_state(value, about())
    again = new.queue.run("k", "note", "a", id="w-a")
    await new.state.confirm(about())
    assert await again == "a done"
    assert new.ran == ["a"]


async def test_what_the_old_release_has_run_is_not_run_again() -> None:
    old = Worker(handoff=True)
    await old.queue.run("k", "note", "a", id="w-a")
    await old.hold()
    new = Worker()
    await new.state.import_state(await old.exported(), about())
    with pytest.raises(ResultElsewhere, match="w-a has run in the previous release"):
        await new.queue.run("k", "note", "a", id="w-a")
    assert new.ran == []


async def test_an_unknown_handler_takes_nothing_and_is_named() -> None:
    value = await (await full("a", "b")).exported()
    new = Worker()
    value["pieces"][1]["handler"] = "resize"
    with pytest.raises(HandlerUnknown, match="no handler is registered as resize"):
        await new.state.import_state(value, about())
    assert (new.queue.count().jobs, new.queue.snapshot().keys) == (0, {})
    await new.state.confirm(about())
    assert await new.queue.run("k", "note", "a", id="w-a") == "a done"


async def test_a_release_that_is_held_itself_takes_nothing() -> None:
    value = await (await full("a")).exported()
    new = Worker()
    await new.hold()
    with pytest.raises(IntakeRefused):
        await new.state.import_state(value, about())


async def test_what_is_confirmed_while_held_goes_on_to_the_next_but_one() -> None:
    value = await (await full("a", "b")).exported()
    middle, last = Worker(handoff=True), Worker()
    await middle.state.import_state(value, about())
    await middle.queue.hold()
    assert (middle.queue.count().jobs, middle.queue.handed_back) == (2, 0)
    await middle.state.confirm(about())
    await middle.queue.settled()
    assert middle.queue.handed_back == 2
    await last.state.import_state(await middle.exported(), about(provisional=False))
    await last.idle()
    assert (middle.ran, last.ran) == ([], ["a", "b"])


async def test_a_paused_key_stays_paused_in_the_new_release() -> None:
    old = await full("a")
    old.queue.pause("k")
    old.queue.pause("of no work")
    value = await old.exported()
    assert value["paused"] == ["k"]
    new = Worker()
    await new.state.import_state(value, about(provisional=False))
    await calm()
    assert new.ran == []
    new.queue.resume("k")
    await new.idle()
    assert new.ran == ["a"]


async def test_a_schedule_that_goes_over_has_its_slot_there() -> None:
    old, new = Worker(handoff=True), Worker()
    old.queue.pause("k")
    old.queue.run("k", "note", "tick", schedule="nightly")
    await old.hold()
    old.queue.resume("k")
    await new.state.import_state(await old.exported(), about())
    assert new.queue.is_occupied("nightly")
    assert new.queue.count() == (0, 1)
    await new.state.confirm(about())
    await new.idle()
    assert not new.queue.is_occupied("nightly")


# Parked


async def test_what_was_parked_goes_on_first_and_as_its_own_successor() -> None:
    old, middle, last = Worker(handoff=True), Worker(handoff=True), Worker()
    result = old.queue.run("k", "steps", 4, id="w")
    old.queue.run("k", "note", "after", lane="lifecycle")
    await asyncio.sleep(0)
    await old.hold()
    cursor, value = await old.state.export_state()
    assert cursor == "withdrawn-1.parked-1"
    assert value["pieces"][0] | {"lane": "", "handler": "", "args": []} == {
        "id": "w~1",
        "of": "w",
        "checkpoint": 1,
        "key": "k",
        "lane": "",
        "handler": "",
        "args": [],
    }
    await middle.state.import_state(value, about(provisional=False))
    await asyncio.sleep(0)
    await middle.hold()
    value = await middle.exported()
    assert value["pieces"][0]["id"] == "w~2"
    await last.state.import_state(value, about(provisional=False))
    assert await last.queue.run("k", "steps", 4, id="w") == "stepped"
    await last.idle()
    assert old.ran == [("w", 0)]
    assert middle.ran == [("w~1", 1)]
    assert last.ran == [("w~2", 2), ("w~2", 3), "after"]
    assert not result.done()
    result.cancel()


# Several workers


async def test_several_workers_export_one_value_with_each_id_once() -> None:
    parts = []
    for whats in (("a", "b"), ("b", "c")):
        old = await full(*whats)
        parts.append(await old.state.export_state())
    parts[0][1]["ended"] = ["1", "w-c"]
    parts[1][1]["ended"] = ["2", "1"]
    parts[1][1]["paused"] = ["k"]
    state = Worker().state
    cursor, value = state.combine(parts)
    assert cursor == "withdrawn-2.parked-0"
    assert [piece["id"] for piece in value["pieces"]] == ["w-a", "w-b"]
    assert (value["ended"], value["paused"]) == (["1", "2", "w-c"], ["k"])
    assert state.validate(value)


async def test_several_workers_share_what_an_envelope_holds() -> None:
    maximum = 2 * 1000 + ENVELOPE
    parts = []
    for worker in range(2):
        old = Worker(handoff=True, maximum_bytes=maximum, workers=2)
        for n in range(50):
            old.queue.run("k", "note", n, id=f"{worker}-{n}")
        await old.hold()
        parts.append(await old.state.export_state())
    _, value = Worker().state.combine(parts)
    assert 1000 < len(canonical(value)) < 2 * 1000


async def test_each_worker_takes_the_keys_that_are_its_own() -> None:
    old = Worker(handoff=True)
    old.queue.pause()
    for n in range(40):
        old.queue.run(f"k{n % 10}", "note", n)
    await old.hold()
    old.queue.pause("k1")
    value = await old.exported()
    workers = [Worker() for _ in range(3)]
    for index, worker in enumerate(workers):
        shared = about(provisional=False, index=index, count=3)
        await worker.state.import_state(value, shared)
        worker.queue.resume("k1")
        await worker.idle()
    assert sorted(n for worker in workers for n in worker.ran) == list(range(40))
    keys = [{n % 10 for n in worker.ran} for worker in workers]
    assert all(keys)
    assert len(set.union(*keys)) == sum(len(own) for own in keys)


# What is no work


GOOD = {"id": "1", "key": "k", "lane": "application", "handler": "note", "args": []}


@pytest.mark.parametrize(
    "pieces",
    [
        None,
        [None],
        [{}],
        [GOOD | {"id": ""}],
        [GOOD | {"id": 1}],
        [GOOD | {"key": None}],
        [GOOD | {"lane": "fast"}],
        [GOOD | {"args": {}}],
        [GOOD | {"more": 1}],
        [GOOD, GOOD],
    ],
)
def test_what_is_no_work_is_no_value(pieces: Any) -> None:
    state = Worker().state
    try:
        answer = state.validate({"pieces": pieces, "paused": [], "ended": []})
    except Exception:
        answer = False
    assert not answer
    assert state.validate({"pieces": [GOOD], "paused": ["k"], "ended": ["0"]})


@pytest.mark.parametrize("value", [None, [], {}, {"pieces": []}])
def test_a_value_lacks_nothing(value: Any) -> None:
    with pytest.raises(ValueError):
        Worker().state.validate(value)


# Under load


@pytest.mark.parametrize("seed", range(3))
async def test_a_queue_is_handed_over_under_load(seed: int) -> None:
    """Order within each key is kept across the cut, and each is run once."""
    load = Load(pieces=600, keys=12, seed=seed)
    told = await hand_over(load)
    load.check()
    assert not told["cursor"].startswith("withdrawn-0")
    assert (await load.kinds())["ResultElsewhere"] > 0


@pytest.mark.parametrize("seed", range(10))
async def test_a_queue_is_held_and_released_under_load(seed: int) -> None:
    load = Load(pieces=400, keys=8, seed=seed)
    plans = await hold_and_release(load, cycles=25)
    load.check()
    assert set(plans) == {"broken off", "parked", "held"}


async def test_what_has_come_over_is_as_old_as_its_import() -> None:
    """The report tells for how long this release has had it."""
    value = await (await full("a")).exported()
    new = Worker()
    before = time.monotonic()
    await new.state.import_state(value, about())
    [waiting] = new.queue.running()
    assert waiting.started >= before


@pytest.mark.parametrize("wrong", ["mail", None, KeyedQueue])
def test_what_is_no_queue_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match=r"takes a KeyedQueue, not (str|None|the class K)"):
        QueueState(wrong)
