"""The new side of a handoff: provisional until ownership has moved, or undone.

The old side is a socket that answers as each test says. The workers of a release
are several drains of one record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from drainmw.bodies import StateBeginRequest
from drainmw.contract import (
    CONFIRM_PATH,
    DISCARD_PATH,
    HANDOFFS_PATH,
    STATE_BEGIN_PATH,
    StateStatus,
)
from drainmw.core.envelope import Terms
from drainmw.errors import StateAlreadyStarted, StateNotFound, StateTimeout
from drainmw.origin import identity
from drainmw.state import ImportContext
from drainmw.state import export as envelope
from drainmw.supervisor import Supervisor
from drainmw.testing import ManualClock
from tests.processes import free_port
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    SOURCE,
    TARGET,
    TOKEN,
    Release,
    begin_request,
    calm,
)
from tests.rooms import Rates, Rooms, Workers, release_with, until
from tests.rooms import workers as new_workers
from tests.test_handoff import source

pytestmark = pytest.mark.anyio

LIVING = identity()
DEAD = identity(Supervisor(1, "1"))
EPOCH = 1


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with new_workers() as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainmw.importing.TELL_PAUSE", 0.001)
    monkeypatch.setattr("drainmw.importing.WATCH_PAUSE", 0.005)
    monkeypatch.setattr("drainmw.importing.CANCEL_PATIENCE", 0.01)


class Old:
    """The old side: what it exports, and what it says to what it is told."""

    def __init__(self) -> None:
        terms = Terms("rooms/v1", 1, SOURCE, TARGET)
        exported = ("c-1", ["ann", "bob", "cid"])
        self.body = envelope(Rooms(), terms, exported).body
        self.url = ""
        self.told: list[str] = []
        self.answers: list[int | None] = []
        """To the next words of the new side; with `None` it hangs up."""
        self.is_told = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def begin(self, **members: Any) -> dict[str, Any]:
        """The body of a begin that takes the state from here."""
        origin = {
            "acknowledge": f"{self.url}/acknowledge",
            "epoch": EPOCH,
            "process": LIVING,
        }
        return {
            "protocol": "rooms/v1",
            "nonce": NONCE,
            "schemaVersion": 1,
            "sourceRevision": SOURCE,
            "targetRevision": TARGET,
            "source": {"url": self.url, "authorization": f"Bearer {TOKEN}"},
            "origin": origin | members.pop("origin", {}),
            "timeoutMs": 5000,
            **members,
        }

    async def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert f"authorization: bearer {TOKEN}\r\n" in head
        if head.startswith("get /state http"):
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + self.body)
            return
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        told = json.loads(await reader.readexactly(length))
        assert (told.pop("protocol"), told.pop("nonce")) == ("rooms/v1", NONCE)
        self.told.append(told.pop("status"))
        assert told == {}
        self.is_told.set()
        await self.may_answer.wait()
        status = self.answers.pop(0) if self.answers else 200
        if status is not None:
            line = f"HTTP/1.1 {status} Whatever\r\nconnection: close\r\n\r\n"
            writer.write(line.encode())


@asynccontextmanager
async def old_side() -> AsyncIterator[Old]:
    old = Old()
    async with source(old) as url:
        old.url = url
        yield old
        await until(lambda: "drainmw handoff" not in names_of_tasks())


def names_of_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


@pytest.fixture
async def old() -> AsyncIterator[Old]:
    async with old_side() as found:
        yield found


def begin(release: Release, body: dict[str, Any]) -> bool:
    return release.drain.handoffs.begin(StateBeginRequest.parse(body))


async def outcome(release: Release, nonce: str = NONCE) -> StateStatus:
    """The first status that is not `pending`, and whatever it leads to."""
    async with asyncio.timeout(5):
        while True:
            told = release.drain.handoffs.status(nonce)
            if told["status"] != "pending":
                await calm()
                return told
            await asyncio.sleep(0.001)


async def failure_of(release: Release) -> str | None:
    return (await outcome(release)).get("failure")


async def taken_over(release: Release, old: Old, **members: Any) -> None:
    """A handoff that went well."""
    begin(release, old.begin(**members))
    assert (await outcome(release))["status"] == "acknowledged"


async def confirm(release: Release, epoch: Any = EPOCH, **body: Any) -> httpx.Response:
    content = {"nonce": NONCE, "phase": "detached", "epoch": epoch, **body}
    return await release.client.control("POST", CONFIRM_PATH, json=content)


async def discard(release: Release, nonce: str = NONCE) -> httpx.Response:
    return await release.client.control("POST", DISCARD_PATH, json={"nonce": nonce})


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def taken(release: Release) -> dict[str, Any]:
    answer = await release.client.control("GET", HANDOFFS_PATH)
    [told] = answer.json()["taken"]
    found: dict[str, Any] = told
    return found


NOT_PROVISIONAL = (409, "RUNTIME_STATE_NOT_PROVISIONAL")
PROVISIONAL = (
    f"rooms/v1 is provisional until the old release of handoff {NONCE} is detached"
)


# Provisional


async def test_what_went_over_is_provisional_and_the_old_side_knows_of_it(
    old: Old,
) -> None:
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    assert (rooms.names, rooms.heard) == (["ann", "bob", "cid"], ["import"])
    [context] = rooms.contexts
    assert (context.index, context.count, context.provisional) == (0, 1, True)
    assert (context.nonce, context.cursor) == (NONCE, "c-1")
    assert old.told == ["acknowledged"]
    assert await taken(release) == {
        "protocol": "rooms/v1",
        "nonce": NONCE,
        "status": "acknowledged",
        "provisional": True,
    }
    assert release.drain.warnings() == [PROVISIONAL]


async def test_nothing_is_acknowledged_before_the_old_side_has_noted_it(
    old: Old,
) -> None:
    """A resume there would have two releases with the same state."""
    release = release_with(rooms := Rooms())
    old.may_answer.clear()
    begin(release, old.begin())
    await old.is_told.wait()
    assert rooms.heard == ["import"]
    assert release.drain.handoffs.status(NONCE)["status"] == "pending"
    assert release.drain.warnings() == []
    old.may_answer.set()
    assert (await outcome(release))["status"] == "acknowledged"


async def test_an_old_side_that_has_not_said_where_is_told_nothing(old: Old) -> None:
    """The plain contract: who drives it knows."""
    release = release_with(Rooms())
    body = old.begin()
    del body["origin"]
    begin(release, body)
    assert (await outcome(release))["status"] == "acknowledged"
    assert old.told == []
    assert (await confirm(release, 77)).status_code == 200


async def test_a_retry_imports_nothing_again(old: Old) -> None:
    release = release_with(rooms := Rooms())
    assert begin(release, old.begin()) is False
    assert begin(release, old.begin(timeoutMs=600)) is True
    await outcome(release)
    assert begin(release, old.begin()) is True
    await calm()
    assert rooms.heard == ["import"]
    with pytest.raises(StateAlreadyStarted):
        begin(release, old.begin(nonce=OTHER_NONCE))


# Confirm


async def test_the_detach_of_the_old_side_confirms_it_once(old: Old) -> None:
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    for _ in range(2):
        answer = await confirm(release)
        assert (answer.status_code, answer.json()) == (
            200,
            {"nonce": NONCE, "status": "acknowledged", "provisional": False},
        )
    assert rooms.heard == ["import", "confirm"]
    assert rooms.contexts[0] == rooms.contexts[1]
    assert (await taken(release))["provisional"] is False
    assert release.drain.warnings() == []


async def test_an_adapter_without_hooks_is_confirmed_too(old: Old) -> None:
    release = release_with(Rooms(confirm=None, discard=None))
    await taken_over(release, old)
    assert (await confirm(release)).json()["provisional"] is False


@pytest.mark.parametrize("epoch", [0, 2, 3])
async def test_the_detach_of_another_drain_confirms_nothing(
    old: Old, epoch: int
) -> None:
    """The old release was resumed meanwhile, and its state has changed."""
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    assert code_of(await confirm(release, epoch)) == (409, "RUNTIME_STATE_NOT_DETACHED")
    assert rooms.heard == ["import"]
    assert (await taken(release))["provisional"] is True


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"phase": "drained"}, 'phase must be exactly "detached"'),
        ({"epoch": None}, "epoch must be a whole number, as the detach answered"),
        ({"epoch": -1}, "epoch must be a whole number, as the detach answered"),
        ({"nonce": "x"}, "nonce must be 43 characters of base64url"),
    ],
)
async def test_what_no_detach_answers_confirms_nothing(
    old: Old, body: dict[str, Any], said: str
) -> None:
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    answer = await confirm(release, **body)
    assert code_of(answer) == (400, "RUNTIME_STATE_REQUEST_INVALID")
    assert said in answer.json()["detail"]
    assert rooms.heard == ["import"]


async def test_what_has_not_gone_over_is_neither_confirmed_nor_discarded(
    old: Old,
) -> None:
    release = release_with(rooms := Rooms())
    for act in (confirm, discard):
        assert code_of(await act(release)) == (404, "RUNTIME_STATE_NOT_FOUND")
    go = rooms.hold("import")
    begin(release, old.begin())
    await rooms.reached.wait()
    for act in (confirm, discard):
        assert code_of(await act(release)) == NOT_PROVISIONAL
    go.set()
    assert (await outcome(release))["status"] == "acknowledged"
    assert rooms.heard == ["import"]


async def test_a_confirm_that_its_adapter_fails_has_moved_ownership_all_the_same(
    old: Old,
) -> None:
    """And is not tried again; nobody is told to end the release that has the state."""
    release = release_with(rooms := Rooms())
    rooms.fails["confirm"] = RuntimeError("no disk")
    await taken_over(release, old)
    for _ in range(2):
        answer = await confirm(release)
        assert code_of(answer) == (500, "RUNTIME_STATE_ERROR")
        assert "rooms/v1: no disk" in answer.json()["detail"]
    assert rooms.heard == ["import", "confirm"]
    assert (await taken(release))["provisional"] is False
    [warning] = release.drain.warnings()
    assert warning == "rooms/v1 has moved here, and its confirm has failed: no disk"


@pytest.mark.parametrize("act", [confirm, discard])
async def test_an_adapter_that_does_not_come_back_is_an_answer_in_time(
    old: Old,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Release], Any],
) -> None:
    monkeypatch.setattr("drainmw.importing.SETTLE_PATIENCE", 0.05)
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    rooms.hold("confirm")
    rooms.hold("discard")
    answer = await act(release)
    assert code_of(answer) == (500, "RUNTIME_STATE_ERROR")
    assert "rooms/v1" in answer.json()["detail"]
    await calm()
    assert len(release.drain.warnings()) == 1


# Discard


async def test_what_is_discarded_is_undone_once_and_the_handoff_has_failed(
    old: Old,
) -> None:
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    for _ in range(2):
        answer = await discard(release)
        assert (answer.status_code, answer.json()) == (
            200,
            {"nonce": NONCE, "status": "failed", "provisional": False},
        )
    assert (rooms.heard, rooms.names) == (["import", "discard"], [])
    assert rooms.contexts[0] == rooms.contexts[1]
    assert await failure_of(release) == "RUNTIME_STATE_DISCARDED"
    assert (await taken(release))["failure"] == "RUNTIME_STATE_DISCARDED"
    assert code_of(await confirm(release)) == NOT_PROVISIONAL
    assert release.drain.warnings() == []


async def test_what_cannot_be_undone_is_not_discarded(old: Old) -> None:
    release = release_with(Rooms(discard=None))
    await taken_over(release, old)
    answer = await discard(release)
    assert code_of(answer) == (409, "RUNTIME_STATE_NOT_DISCARDABLE")
    assert "end this release instead" in answer.json()["detail"]
    assert (await taken(release))["provisional"] is True
    assert (await confirm(release)).status_code == 200


async def test_a_discard_that_fails_says_so_to_everybody_who_asks(old: Old) -> None:
    """Whoever resumes the old release would have the state twice."""
    release = release_with(rooms := Rooms())
    rooms.fails["discard"] = RuntimeError("no way back")
    await taken_over(release, old)
    for _ in range(2):
        answer = await discard(release)
        assert code_of(answer) == (500, "RUNTIME_STATE_ERROR")
        assert "not every worker has done it: rooms/v1: no way back" in answer.text
    assert rooms.heard == ["import", "discard"]
    [warning] = release.drain.warnings()
    assert warning == (
        "rooms/v1 was imported and is not undone: no way back; "
        "end this release and start a fresh one"
    )


async def test_nothing_is_discarded_once_ownership_has_moved(old: Old) -> None:
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    await confirm(release)
    answer = await discard(release)
    assert code_of(answer) == NOT_PROVISIONAL
    assert "ownership has moved here" in answer.json()["detail"]
    assert rooms.heard == ["import", "confirm"]


# What comes too late


class Stubborn(Rooms):
    """Its import takes no notice of being cancelled, once."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self.go = asyncio.Event()

    async def import_state(self, value: Any, context: ImportContext) -> None:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.heard.append("cancelled")
            async with asyncio.timeout(5):
                await self.go.wait()
        await super().import_state(value, context)


async def test_an_import_that_goes_on_after_its_deadline_is_undone_when_it_ends(
    old: Old,
) -> None:
    """The handoff fails at once, and the old side is told once it is undone."""
    release = release_with(rooms := Stubborn(), clock=ManualClock())
    begin(release, old.begin(timeoutMs=100))
    assert await failure_of(release) == "RUNTIME_STATE_TIMEOUT"
    assert (rooms.heard, old.told) == (["cancelled"], [])
    rooms.go.set()
    await calm()
    assert (rooms.heard, rooms.names) == (["cancelled", "import", "discard"], [])
    await until(lambda: old.told == ["discarded"])
    assert release.drain.warnings() == []


async def test_a_late_import_that_cannot_be_undone_is_a_warning(
    old: Old, caplog: pytest.LogCaptureFixture
) -> None:
    release = release_with(rooms := Stubborn(discard=None))
    begin(release, old.begin(timeoutMs=100))
    await outcome(release)
    rooms.go.set()
    await calm()
    [warning] = release.drain.warnings()
    assert "rooms/v1 was imported and is not undone: it has no discard" in warning
    assert "discard failed" in caplog.text


async def test_an_import_that_ends_when_it_is_cancelled_is_not_undone(old: Old) -> None:
    release = release_with(rooms := Rooms())
    rooms.hold("import")
    begin(release, old.begin(timeoutMs=100))
    assert await failure_of(release) == "RUNTIME_STATE_TIMEOUT"
    assert rooms.heard == ["import"]


async def test_an_import_that_fails_is_not_undone(old: Old) -> None:
    """It has left everything as it was: that is its part of the contract."""
    release = release_with(rooms := Rooms())
    rooms.fails["import"] = RuntimeError("no room")
    begin(release, old.begin())
    assert await failure_of(release) == "no room"
    await until(lambda: old.told == ["discarded"])
    assert rooms.heard == ["import"]


async def test_who_asks_after_the_deadline_reads_that_it_has_failed(old: Old) -> None:
    """Whatever its worker still does; that is undone as soon as it is done."""
    clock = ManualClock()
    release = release_with(rooms := Rooms(), clock=clock)
    go = rooms.hold("import")
    begin(release, old.begin())
    await rooms.reached.wait()
    clock.advance(4.999)
    assert release.drain.handoffs.status(NONCE)["status"] == "pending"
    clock.advance(0.001)
    told = release.drain.handoffs.status(NONCE)
    assert told["failure"] == "RUNTIME_STATE_TIMEOUT"
    go.set()
    await until(lambda: rooms.heard[-1] == "discard")
    assert release.drain.handoffs.status(NONCE) == told


# What the old side says to it


async def test_an_old_side_that_will_not_have_it_fails_it(old: Old) -> None:
    """It was resumed meanwhile: what was imported is undone, and taken back."""
    release = release_with(rooms := Rooms())
    old.answers = [409]
    begin(release, old.begin())
    assert await failure_of(release) == "RUNTIME_STATE_SOURCE_HTTP_409"
    assert (rooms.heard, rooms.names) == (["import", "discard"], [])
    await until(lambda: len(old.told) == 2)
    assert old.told == ["acknowledged", "discarded"]


async def test_an_answer_that_is_lost_is_asked_for_again(old: Old) -> None:
    release = release_with(rooms := Rooms())
    old.answers = [None, None]
    await taken_over(release, old)
    assert old.told == ["acknowledged"] * 3
    assert rooms.heard == ["import"]


@pytest.mark.parametrize("process", [LIVING, None, {}, DEAD | {"host": "elsewhere"}])
async def test_an_old_side_that_is_not_reached_and_may_live_fails_it(
    old: Old, process: Any
) -> None:
    """It may serve again, and nobody would know."""
    release = release_with(rooms := Rooms())
    nowhere = f"http://127.0.0.1:{free_port()}/acknowledge"
    origin = {"acknowledge": nowhere, "process": process}
    begin(release, old.begin(origin=origin))
    assert await failure_of(release) == "RUNTIME_STATE_SOURCE_UNREACHABLE"
    assert rooms.heard == ["import", "discard"]


async def test_an_old_side_that_is_proven_dead_has_nothing_to_say(
    old: Old,
) -> None:
    """It went down between the fetch and the word; ownership has moved by that."""
    release = release_with(rooms := Rooms())
    nowhere = f"http://127.0.0.1:{free_port()}/acknowledge"
    await taken_over(release, old, origin={"acknowledge": nowhere, "process": DEAD})
    assert rooms.heard == ["import", "confirm"]
    assert (await taken(release))["provisional"] is False


async def test_an_old_side_that_takes_too_long_fails_it_and_is_told(
    old: Old,
) -> None:
    """It may have noted it: that is taken back."""
    release = release_with(rooms := Rooms())
    old.may_answer.clear()
    begin(release, old.begin(timeoutMs=150))
    await old.is_told.wait()
    assert await failure_of(release) == "RUNTIME_STATE_TIMEOUT"
    assert rooms.heard == ["import", "discard"]
    old.may_answer.set()
    await until(lambda: len(old.told) == 2)
    assert old.told == ["acknowledged", "discarded"]


class Deaths:
    """Whether the old side is dead, as the test says."""

    def __init__(self) -> None:
        self.dead = False
        self.looks = 0

    def __call__(self, process: object) -> bool:
        self.looks += 1
        return self.dead


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    found = Deaths()
    monkeypatch.setattr("drainmw.importing.is_dead", found)
    return found


async def looked(deaths: Deaths) -> None:
    """Once more than until now, and one more to be sure."""
    before = deaths.looks
    await until(lambda: deaths.looks > before + 1)


async def test_the_death_of_the_old_side_confirms_what_is_provisional(
    old: Old, deaths: Deaths, caplog: pytest.LogCaptureFixture
) -> None:
    release = release_with(rooms := Rooms())
    with caplog.at_level("INFO"):
        await taken_over(release, old)
        await looked(deaths)
        assert rooms.heard == ["import"]
        deaths.dead = True
        await until(lambda: len(rooms.heard) > 1)
    assert rooms.heard == ["import", "confirm"]
    assert "handoff confirmed" in caplog.text
    assert (await confirm(release)).status_code == 200
    assert rooms.heard == ["import", "confirm"]


async def test_nobody_looks_any_more_once_it_is_settled(
    old: Old, deaths: Deaths
) -> None:
    """Nor does the death of the old side bring back what was discarded."""
    release = release_with(rooms := Rooms())
    await taken_over(release, old)
    await looked(deaths)
    await discard(release)
    deaths.dead = True
    imports = release.drain.handoffs.imports
    await until(lambda: not imports._watched)
    assert rooms.heard == ["import", "discard"]
    assert await failure_of(release) == "RUNTIME_STATE_DISCARDED"


async def test_what_has_no_origin_is_watched_by_nobody(
    old: Old, deaths: Deaths
) -> None:
    release = release_with(Rooms())
    body = old.begin()
    body["origin"]["process"] = None
    begin(release, body)
    await outcome(release)
    assert release.drain.handoffs.imports._watched == set()
    assert deaths.looks == 0


# A release that drains


@pytest.mark.parametrize("phase", ["draining", "drained", "detached"])
async def test_a_release_that_drains_takes_nothing_over(old: Old, phase: str) -> None:
    release = release_with(rooms := Rooms())
    job = release.drain.spawn(asyncio.sleep(60))
    await release.drain.begin(begin_request())
    if phase != "draining":
        job.cancel()
        await release.drain.ended
    if phase == "detached":
        release.drain.detach(NONCE)
    answer = await release.client.control("POST", STATE_BEGIN_PATH, json=old.begin())
    assert code_of(answer) == (409, "RUNTIME_STATE_NOT_IMPORTABLE")
    assert f"this one is {phase}" in answer.json()["detail"]
    with pytest.raises(StateNotFound):
        release.drain.handoffs.status(NONCE)
    assert rooms.heard == []
    job.cancel()


async def test_a_release_that_is_cordoned_takes_over(old: Old) -> None:
    release = release_with(Rooms())
    release.drain.cordon()
    await taken_over(release, old)


async def test_a_begin_that_was_taken_is_joined_also_once_the_release_drains(
    old: Old,
) -> None:
    release = release_with(rooms := Rooms(), Rates())
    await taken_over(release, old)
    await release.drain.begin(begin_request())
    assert begin(release, old.begin()) is True
    with pytest.raises(StateAlreadyStarted):
        begin(release, old.begin(protocol="rates/v1"))
    assert rooms.heard == ["import"]


# Of several workers


async def test_every_worker_imports_the_same_and_knows_its_place(
    old: Old, workers: Workers
) -> None:
    rooms = [Rooms(), Rooms(), Rooms()]
    first, *_ = [workers.add(each) for each in rooms]
    await taken_over(first, old)
    assert [each.heard for each in rooms] == [["import"]] * 3
    assert [each.names for each in rooms] == [["ann", "bob", "cid"]] * 3
    contexts = [context for each in rooms for context in each.contexts]
    assert [(c.index, c.count) for c in contexts] == [(0, 3), (1, 3), (2, 3)]
    assert {(c.nonce, c.digest) for c in contexts} == {(NONCE, contexts[0].digest)}
    assert old.told == ["acknowledged"]


@pytest.mark.parametrize(("act", "heard"), [(confirm, "confirm"), (discard, "discard")])
async def test_every_worker_is_settled_whichever_is_asked(
    old: Old, workers: Workers, act: Callable[[Release], Any], heard: str
) -> None:
    rooms = [Rooms(), Rooms()]
    first, second = (workers.add(each) for each in rooms)
    await taken_over(first, old)
    for asked in (second, first):
        assert (await act(asked)).status_code == 200
        assert [each.heard for each in rooms] == [["import", heard]] * 2


async def test_one_worker_that_cannot_import_undoes_all(
    old: Old, workers: Workers
) -> None:
    rooms = [Rooms(), Rooms(), Rooms()]
    rooms[1].fails["import"] = RuntimeError("no room")
    first, *_ = [workers.add(each) for each in rooms]
    begin(first, old.begin())
    assert await failure_of(first) == "no room"
    for each in (rooms[0], rooms[2]):
        assert each.heard in (["import", "discard"], [])
        assert each.names == []
    assert rooms[1].heard == ["import"]
    await until(lambda: old.told == ["discarded"])


async def test_one_worker_that_cannot_undo_is_named_by_whoever_is_asked(
    old: Old, workers: Workers
) -> None:
    rooms = [Rooms(), Rooms()]
    rooms[1].fails["discard"] = RuntimeError("no way back")
    first, second = (workers.add(each) for each in rooms)
    await taken_over(first, old)
    for asked in (first, second):
        answer = await discard(asked)
        assert code_of(answer) == (500, "RUNTIME_STATE_ERROR")
        assert "rooms/v1: no way back" in answer.json()["detail"]
    assert first.drain.warnings() == []
    assert len(second.drain.warnings()) == 1


async def test_a_worker_that_comes_up_during_an_import_knows_nothing_of_it(
    old: Old, workers: Workers
) -> None:
    """So nothing has gone over, and those that have it undo it."""
    first = workers.add(rooms := Rooms())
    go = rooms.hold("import")
    begin(first, old.begin())
    await rooms.reached.wait()
    workers.add(late := Rooms())
    go.set()
    assert await failure_of(first) == "RUNTIME_STATE_WORKER_LOST"
    assert (rooms.heard, late.heard) == (["import", "discard"], [])


async def test_a_worker_that_ends_during_an_import_fails_it(
    old: Old, workers: Workers
) -> None:
    first, second = Rooms(), Rooms()
    release = workers.add(first)
    workers.add(second)
    go = first.hold("import")
    begin(release, old.begin())
    await first.reached.wait()
    await until(lambda: second.heard == ["import"])
    workers.end(workers.alive[1])
    go.set()
    assert await failure_of(release) == "RUNTIME_STATE_WORKER_LOST"
    assert first.heard == ["import", "discard"]


async def test_a_handoff_whose_worker_has_ended_has_failed(
    old: Old, workers: Workers
) -> None:
    """Whoever is asked sees it, and undoes what it has."""
    carrier, second = Rooms(), Rooms()
    first, other = workers.add(carrier), workers.add(second)
    go = carrier.hold("import")
    begin(first, old.begin())
    await until(lambda: second.heard == ["import"])
    workers.end(workers.alive[0])
    assert await failure_of(other) == "RUNTIME_STATE_WORKER_LOST"
    assert second.heard == ["import", "discard"]
    go.set()


async def test_a_value_is_imported_once_in_a_process_whoever_sends_it(
    old: Old, workers: Workers
) -> None:
    first = workers.add(Rooms())
    second = workers.add(rooms := Rooms())
    await taken_over(first, old)
    with pytest.raises(StateAlreadyStarted):
        await second.drain.handoffs.imports.take(NONCE, 1, 2, old.body)
    assert rooms.heard == ["import"]


async def test_what_a_sibling_sends_after_the_deadline_is_not_imported(
    old: Old,
) -> None:
    clock = ManualClock()
    release = release_with(rooms := Rooms(), clock=clock)
    go = rooms.hold("import")
    begin(release, old.begin())
    await rooms.reached.wait()
    other = release_with(late := Rooms(), clock=clock)
    other.drain._keep(release.drain.handoffs.siblings.record)
    clock.advance(5.0)
    with pytest.raises(StateTimeout):
        await other.drain.handoffs.imports.take(NONCE, 1, 2, old.body)
    assert late.heard == []
    go.set()
