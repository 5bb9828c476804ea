"""What comes between the steps of a handoff, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from drainmw.errors import (
    GroupError,
    StateError,
    StateNotPending,
    StateSealRefused,
)
from tests.rig import NONCE
from tests.rooms import Rooms, Workers, until
from tests.rooms import workers as new_workers
from tests.test_importing import Old, begin, failure_of, old_side

pytestmark = pytest.mark.anyio


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with new_workers() as found:
        yield found


@pytest.fixture
async def old(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Old]:
    monkeypatch.setattr("drainmw.importing.TELL_PAUSE", 0.001)
    async with old_side() as found:
        yield found


# The old side


@pytest.mark.parametrize("what", ["ends", "comes up"])
async def test_a_worker_that_comes_or_goes_during_a_seal_has_nothing_sealed(
    workers: Workers, what: str
) -> None:
    """Who has ended has taken its state along, which is not to pass in silence."""
    first, second = Rooms("ann"), Rooms("bob")
    release = workers.add(first)
    workers.add(second)
    await workers.drained()
    go = second.hold("export")
    sealing = asyncio.create_task(release.drain.handoffs.seal(NONCE))
    await second.reached.wait()
    if what == "ends":
        workers.end(workers.alive[1])
    else:
        workers.add(Rooms("cid"))
    go.set()
    with pytest.raises(GroupError, match="a worker has come or gone"):
        await sealing
    assert not release.drain.handoffs.report()["sealed"]
    assert first.heard == ["seal", "export", "unseal"]
    await release.drain.handoffs.seal(NONCE)
    assert release.drain.handoffs.report()["sealed"]


async def test_a_seal_that_fails_fails_every_other_one_that_it_took_back(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that seals need not have heard of it."""
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.0)
    deaf, second, third = Rooms("ann"), Rooms("bob"), Rooms("cid")
    sealer = workers.add(deaf, listens=False)
    other = workers.add(second)
    workers.add(third)
    await workers.drained()
    go = deaf.hold("export")
    sealing = asyncio.create_task(sealer.drain.handoffs.seal(NONCE))
    await deaf.reached.wait()
    with pytest.raises(GroupError, match="is not reached"):
        await other.drain.handoffs.seal(NONCE)
    assert third.heard[-1] == "unseal"
    go.set()
    with pytest.raises(StateSealRefused, match="it was taken back meanwhile"):
        await sealing
    assert not sealer.drain.handoffs.report()["sealed"]


async def test_any_worker_says_at_once_that_the_state_is_sealed(
    workers: Workers,
) -> None:
    first, second = workers.add(Rooms("ann")), workers.add(Rooms("bob"))
    await workers.drained()
    await first.drain.handoffs.seal(NONCE)
    assert not second.drain.sealed  # which it hears of in a moment
    assert second.drain.handoffs.report()["sealed"]


# The new side


async def test_the_old_side_may_serve_again_once_everything_is_undone_and_not_before(
    old: Old, workers: Workers
) -> None:
    release = workers.add(rooms := Rooms())
    go = rooms.hold("discard")
    old.may_answer.clear()
    begin(release, old.begin())
    await old.is_told.wait()
    workers.add(Rooms())  # so that it fails, though the old side has noted it
    old.may_answer.set()
    await until(lambda: "discard" in rooms.heard)
    await asyncio.sleep(0.02)
    assert old.told == ["acknowledged"]
    go.set()
    await until(lambda: old.told == ["acknowledged", "discarded"])


async def test_an_old_side_is_not_told_of_a_discard_that_failed(
    old: Old, workers: Workers
) -> None:
    """Only by force it serves again then: the state is in both."""
    release = workers.add(rooms := Rooms())
    rooms.fails["discard"] = RuntimeError("it is stuck")
    old.may_answer.clear()
    begin(release, old.begin())
    await old.is_told.wait()
    workers.add(Rooms())
    old.may_answer.set()
    assert await failure_of(release) == "RUNTIME_STATE_WORKER_LOST"
    await until(lambda: "drainmw handoff" not in names())
    assert old.told == ["acknowledged"]
    with pytest.raises(StateError, match="it is stuck"):
        await release.drain.handoffs.discard(NONCE)


async def test_what_has_failed_is_not_imported_by_who_is_late(
    old: Old, workers: Workers
) -> None:
    first, second = Rooms(), Rooms()
    first.fails["import"] = RuntimeError("no room")
    release, late = workers.add(first), workers.add(second, listens=False)
    begin(release, old.begin())
    assert await failure_of(release) == "no room"
    with pytest.raises(StateNotPending, match="no room"):
        await late.drain.handoffs.imports.take(NONCE, 1, 2, bytes(old.body))
    assert second.heard == []


async def test_a_record_that_is_gone_is_told_and_leaves_no_task_behind(
    old: Old, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    release = workers.add(rooms := Rooms())
    go = rooms.hold("import")
    begin(release, old.begin())
    await rooms.reached.wait()

    def gone(*_: object) -> None:
        raise GroupError("the directory is gone")

    release.drain._record.transact = gone  # type: ignore[method-assign]
    go.set()
    await until(lambda: "handoff disturbed" in caplog.text)
    assert "the directory is gone" in caplog.text


def names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}
