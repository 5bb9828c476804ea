"""The old side of a handoff: what is fixed, what was given away, and what that bars.

In one process: the workers of a release are several drains of one record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from drainmw.contract import (
    ACKNOWLEDGE_PATH,
    DETACH_PATH,
    HANDOFFS_PATH,
    OFFER_PATH,
    RESUME_PATH,
    SEAL_PATH,
    STATE_EXPORT_PATH,
)
from drainmw.core.handoff import Recipient
from drainmw.errors import DrainNotFound, GroupError, HandedOver, StateNotExportable
from drainmw.record import LocalRecord
from drainmw.testing import ManualClock
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    SOURCE,
    TARGET,
    THIRD_NONCE,
    TOKEN,
    Release,
    begin_request,
    calm,
)
from tests.rooms import Rates, Rooms, Workers, drain_of, drained_with, release_with
from tests.rooms import workers as new_workers
from tests.test_handoff import export, fetched

pytestmark = pytest.mark.anyio

TO, AGAIN = "h" * 43, "i" * 43
"""The nonces of two handoffs."""


async def seal(release: Release, nonce: str = NONCE) -> httpx.Response:
    return await release.client.control("POST", SEAL_PATH, json={"nonce": nonce})


async def resume(release: Release, **body: Any) -> httpx.Response:
    content = {"nonce": NONCE, **body}
    return await release.client.control("POST", RESUME_PATH, json=content)


async def given(release: Release, nonce: str | None, protocol: str = "rooms/v1") -> Any:
    """The value that a handoff fetches."""
    to = None if nonce is None else Recipient(nonce)
    exported = await release.drain.handoffs.export(protocol, SOURCE, TARGET, to)
    return json.loads(exported.body)["value"]


async def report(release: Release) -> dict[str, Any]:
    answer = await release.client.control("GET", HANDOFFS_PATH)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


HANDED_OVER = (409, "RUNTIME_STATE_HANDED_OVER")
NOT_EXPORTABLE = (409, "RUNTIME_STATE_NOT_EXPORTABLE")


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with new_workers() as found:
        yield found


# Seal


async def test_a_seal_tells_the_adapters_and_exports_each_once() -> None:
    release = await drained_with(rooms := Rooms("ann"), rates := Rates("ten"))
    for _ in range(2):
        answer = await seal(release)
        assert (answer.status_code, answer.json()) == (
            200,
            {"phase": "drained", "epoch": 1},
        )
        assert (rooms.heard, rates.heard) == (["seal", "export"], ["seal", "export"])
        assert release.drain.sealed
    assert (await report(release))["sealed"] is True


async def test_an_adapter_without_hooks_is_sealed_too() -> None:
    release = await drained_with(rooms := Rooms("ann", seal=None, unseal=None))
    assert (await seal(release)).status_code == 200
    rooms.names.append("bob")
    assert (await export(release)).json()["value"] == ["ann"]
    assert (await resume(release)).status_code == 200


@pytest.mark.parametrize("phase", ["draining", "failed", "detached"])
async def test_only_what_nothing_changes_any_more_is_sealed(phase: str) -> None:
    clock = ManualClock()
    release = release_with(rooms := Rooms("ann"), clock=clock)
    job = release.drain.spawn(asyncio.sleep(60))
    await release.drain.begin(begin_request())
    if phase == "failed":
        clock.advance(6)
        await release.client.status()
    elif phase == "detached":
        job.cancel()
        await release.drain.ended
        release.drain.detach(NONCE)
    assert release.drain.phase == phase
    answer = await seal(release)
    assert code_of(answer) == (409, "RUNTIME_DRAIN_ALREADY_STARTED")
    assert answer.json()["detail"] == (
        f"state is sealed once drained, and this release is {phase}"
    )
    assert (rooms.heard, bool(release.drain.sealed)) == ([], False)
    job.cancel()


async def test_only_the_drain_that_stands_is_sealed() -> None:
    release = release_with(rooms := Rooms("ann"))
    assert code_of(await seal(release)) == (404, "RUNTIME_DRAIN_NOT_FOUND")
    await drain_of(release)
    assert (await seal(release, OTHER_NONCE)).status_code == 404
    assert rooms.heard == []


async def test_what_is_sealed_goes_out_the_same_whatever_the_app_does() -> None:
    """Byte by byte, and to who fetches it twice."""
    release = await drained_with(rooms := Rooms("ann"))
    before = (await export(release)).content
    await seal(release)
    rooms.names += ["bob", "cid"]
    rooms.fails["export"] = RuntimeError("the store is closed")
    for _ in range(2):
        answer = await export(release)
        assert (answer.status_code, answer.content) == (200, before)
    assert rooms.heard.count("export") == 2


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("protocol=rooms/v1&protocol=rates/v1", "RUNTIME_STATE_ADAPTER_NOT_FOUND"),
        ("protocol=rooms/v1&protocol=rooms/v1", "RUNTIME_STATE_ADAPTER_NOT_FOUND"),
        (f"sourceRevision={SOURCE}", "RUNTIME_STATE_REVISION_INVALID"),
    ],
)
async def test_what_a_query_names_twice_it_does_not_name(query: str, code: str) -> None:
    """Nobody can tell which was meant."""
    release = await drained_with(rooms := Rooms("ann"))
    revisions = f"sourceRevision={SOURCE}&targetRevision={TARGET}"
    path = f"{STATE_EXPORT_PATH}?{revisions}&{query}"
    answer = await release.client.control("GET", path)
    assert answer.json()["code"] == code
    assert rooms.heard == []


async def test_a_snapshot_is_sealed_with_the_rest() -> None:
    release = await drained_with(rooms := Rooms("ann", phase="serving"))
    await seal(release)
    rooms.names.append("bob")
    assert (await export(release)).json()["value"] == ["ann"]


async def test_an_adapter_that_comes_after_the_seal_has_nothing_fixed() -> None:
    release = await drained_with(Rooms("ann"))
    await seal(release)
    release.drain.add_state(Rates("ten"))
    assert (await export(release, protocol="rates/v1")).status_code == 503


async def test_an_adapter_may_refuse_and_those_told_before_are_told_back() -> None:
    order: list[str] = []
    one = Rates("ten", unseal=lambda: order.append("one"))  # it need not be async
    two = Rooms("x", protocol="more/v1", unseal=lambda: order.append("two"))
    stubborn, last = Rooms("ann"), Rooms(protocol="last/v1")
    stubborn.fails["seal"] = RuntimeError("somebody speaks")
    release = await drained_with(one, two, stubborn, last)
    answer = await seal(release)
    assert code_of(answer) == (409, "RUNTIME_STATE_SEAL_REFUSED")
    assert answer.json()["detail"] == "rooms/v1: somebody speaks"
    assert order == ["two", "one"]
    assert (stubborn.heard, last.heard) == (["seal"], [])
    assert not release.drain.sealed
    stubborn.fails.clear()
    assert (await seal(release)).status_code == 200
    assert last.heard == ["seal", "export"]


async def test_an_adapter_that_says_nothing_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drainmw.exporting.SEAL_PATIENCE", 0.01)
    release = await drained_with(rates := Rates("ten"), rooms := Rooms("ann"))
    rooms.hold("seal")
    assert code_of(await seal(release)) == (409, "RUNTIME_STATE_SEAL_REFUSED")
    assert rates.heard == ["seal", "unseal"]


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (
            {"fails": {"export": RuntimeError("secret")}},
            "RUNTIME_STATE_EXPORT_INVALID",
        ),
        ({"is_valid": False}, "RUNTIME_STATE_EXPORT_INVALID"),
        ({"names": ["x" * 5000]}, "RUNTIME_STATE_EXPORT_TOO_LARGE"),
        ({"names": [{1}]}, "RUNTIME_STATE_VALUE_INVALID"),
    ],
    ids=["raises", "not valid", "too large", "no JSON"],
)
async def test_what_cannot_go_over_is_not_sealed_and_may_change_again(
    members: dict[str, Any], code: str
) -> None:
    release = await drained_with(rates := Rates("ten"), rooms := Rooms(**members))
    answer = await seal(release)
    assert code_of(answer) == (500, code)
    assert "secret" not in answer.text
    assert rates.heard == ["seal", "export", "unseal"]
    assert rooms.heard == ["seal", "export", "unseal"]
    assert not release.drain.sealed
    rates.names.append("five")
    assert (await export(release, protocol="rates/v1")).json()["value"] == [
        "ten",
        "five",
    ]


async def test_an_unseal_that_fails_is_logged_and_keeps_no_other_from_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = await drained_with(rates := Rates("ten"), rooms := Rooms("ann"))
    rates.fails["unseal"] = RuntimeError("no way back")
    await seal(release)
    await resume(release)
    await calm()
    assert rooms.heard[-1] == "unseal"
    assert "unseal failed" in caplog.text
    assert "no way back" in caplog.text


async def test_a_resume_unseals_and_forgets() -> None:
    """R2: the next drain has its own state, and its own seal."""
    release = await drained_with(rooms := Rooms("ann"))
    await seal(release)
    assert (await resume(release)).json() == {"phase": "serving", "epoch": 2}
    await calm()
    assert rooms.heard == ["seal", "export", "unseal"]
    assert not release.drain.sealed
    assert (await release.client.get("/")).status_code == 200
    assert code_of(await export(release)) == NOT_EXPORTABLE
    assert code_of(await seal(release)) == (404, "RUNTIME_DRAIN_NOT_FOUND")
    rooms.names.append("bob")
    await drain_of(release, OTHER_NONCE)
    assert not release.drain.sealed
    assert (await export(release)).json()["value"] == ["ann", "bob"]
    assert code_of(await seal(release)) == (404, "RUNTIME_DRAIN_NOT_FOUND")
    assert (await seal(release, OTHER_NONCE)).json()["epoch"] == 3
    assert rooms.heard[3:] == ["export", "seal", "export"]


async def test_what_was_sealed_is_gone_after_a_resume() -> None:
    release = await drained_with(Rooms("ann"))
    await seal(release)
    assert [b"ann" in part for part in kept(release).values()] == [True]
    await resume(release)
    assert kept(release) == {}


def kept(release: Release) -> dict[str, bytes]:
    record = release.drain.handoffs.siblings.record
    assert isinstance(record, LocalRecord)
    return record._kept


@pytest.mark.parametrize("step", ["seal", "export"])
async def test_a_resume_in_the_middle_of_a_seal_wins(step: str) -> None:
    """Nothing stays sealed, kept, or held by an adapter."""
    release = await drained_with(rooms := Rooms("ann"))
    go = rooms.hold(step)
    sealing = asyncio.create_task(seal(release))
    await rooms.reached.wait()
    assert (await resume(release)).status_code == 200
    go.set()
    answer = await sealing
    assert code_of(answer) == (404, "RUNTIME_DRAIN_NOT_FOUND")
    assert answer.json()["resumed"] is True
    await calm()
    assert rooms.heard == ["seal", "export", "unseal"]
    assert not release.drain.sealed
    assert kept(release) == {}
    await drain_of(release, OTHER_NONCE)
    assert (await seal(release, OTHER_NONCE)).status_code == 200
    assert release.drain.sealed


class Turns(Rooms):
    """Whose first export waits, and is another one than its second."""

    turn = 0

    async def export_state(self) -> tuple[str, Any]:
        self.turn, turn = self.turn + 1, self.turn + 1
        if turn == 1:
            self.reached.set()
            await self.hold("first").wait()
            if "first" in self.fails:
                raise self.fails["first"]
        return f"turn-{turn}", [f"turn-{turn}"]


async def test_of_two_seals_at_once_the_first_to_end_counts_for_good() -> None:
    """Whoever has fetched between them has the same as who fetches later."""
    release = await drained_with(rooms := Turns())
    go = rooms.hold("first")
    slow = asyncio.create_task(seal(release))
    await rooms.reached.wait()
    assert (await seal(release)).status_code == 200
    between = (await export(release)).content
    go.set()
    assert (await slow).status_code == 200
    assert (await export(release)).content == between


async def test_a_seal_that_fails_takes_back_no_other_one_that_did_not() -> None:
    release = await drained_with(rooms := Turns())
    go = rooms.hold("first")
    rooms.fails["first"] = RuntimeError("busy")
    slow = asyncio.create_task(seal(release))
    await rooms.reached.wait()
    assert (await seal(release)).status_code == 200
    go.set()
    assert (await slow).status_code == 500
    assert release.drain.sealed
    assert "unseal" not in rooms.heard


async def test_a_seal_does_not_end_well_on_adapters_that_were_unsealed_meanwhile() -> (
    None
):
    """By another one, which has failed: what they change would not go over."""
    release = await drained_with(rooms := Turns())
    go = rooms.hold("first")
    slow = asyncio.create_task(seal(release))
    await rooms.reached.wait()
    rooms.is_valid = False
    assert (await seal(release)).status_code == 500
    rooms.is_valid = True
    go.set()
    answer = await slow
    assert code_of(answer) == (409, "RUNTIME_STATE_SEAL_REFUSED")
    assert "it was taken back meanwhile" in answer.json()["detail"]
    assert not release.drain.sealed
    assert kept(release) == {}
    assert (await seal(release)).status_code == 200


async def test_code_of_the_app_can_wait_for_the_seal() -> None:
    release = await drained_with(Rooms("ann"))

    async def sealed() -> str:
        await release.drain.sealed
        return "sealed"

    waiting = asyncio.create_task(sealed())
    await calm()
    assert not waiting.done()
    await seal(release)
    assert await waiting == "sealed"


# Of several workers


async def test_several_workers_export_one_state_and_seal_it_once(
    workers: Workers,
) -> None:
    one, two = Rooms("ann"), Rooms("bob", "cid")
    first, second = workers.add(one), workers.add(two)
    await workers.drained()
    live = (await export(first)).json()
    assert (live["cursor"], live["value"]) == ("of-1+of-2", ["ann", "bob", "cid"])
    assert (await seal(first)).status_code == 200
    assert [r.heard for r in (one, two)] == [["export", "seal", "export"]] * 2
    await calm()
    assert second.drain.sealed
    one.names.append("dan")
    two.names.append("eve")
    sealed = (await export(first)).content
    assert json.loads(sealed)["value"] == ["ann", "bob", "cid"]
    assert (await export(second)).content == sealed


async def test_what_is_sealed_does_not_end_with_its_worker(workers: Workers) -> None:
    """Nor does who has come up since change it."""
    first, second = workers.add(Rooms("ann")), workers.add(Rooms("bob"))
    await workers.drained()
    await seal(second)
    sealed = (await export(first)).content
    workers.end(second_pid := workers.alive[1])
    assert second_pid not in first.drain.handoffs.siblings.record.addresses()
    assert (await export(first)).content == sealed
    late = workers.add(Rooms("zoe"))
    assert (await export(late)).content == sealed


async def test_a_resume_asked_of_another_worker_unseals_all(workers: Workers) -> None:
    one, two = Rooms("ann"), Rooms("bob")
    first, second = workers.add(one), workers.add(two)
    await workers.drained()
    await seal(first)
    await resume(second)
    await calm()
    assert (one.heard[-1], two.heard[-1]) == ("unseal", "unseal")
    assert not first.drain.sealed
    assert not second.drain.sealed


async def test_one_worker_that_refuses_unseals_all(workers: Workers) -> None:
    one, two, three = Rooms("ann"), Rooms("bob"), Rooms("cid")
    two.fails["seal"] = RuntimeError("somebody speaks")
    first = workers.add(one)
    workers.add(two)
    workers.add(three)
    await workers.drained()
    answer = await seal(first)
    assert code_of(answer) == (409, "RUNTIME_STATE_SEAL_REFUSED")
    assert answer.json()["detail"] == "another worker: rooms/v1: somebody speaks"
    await calm()
    assert one.heard == ["seal", "unseal"]
    assert two.heard == ["seal"]
    assert three.heard[-1:] != ["seal"]
    assert not first.drain.sealed


async def test_a_worker_that_is_slow_to_seal_is_unsealed_though_nobody_waits(
    workers: Workers,
) -> None:
    """Another one has refused meanwhile; it would stay fixed for nothing."""
    slow, stubborn = Rooms("ann"), Rooms("bob")
    stubborn.fails["seal"] = RuntimeError("somebody speaks")
    go, waits = slow.hold("seal"), stubborn.hold("seal")
    first = workers.add(Rooms("cid"))
    workers.add(slow)
    workers.add(stubborn)
    await workers.drained()
    sealing = asyncio.create_task(seal(first))
    await slow.reached.wait()
    waits.set()
    assert code_of(await sealing) == (409, "RUNTIME_STATE_SEAL_REFUSED")
    go.set()
    await calm()
    assert slow.heard == ["seal", "unseal"]


async def test_a_worker_that_is_silent_lets_nothing_be_sealed_or_exported(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is unknown, and not empty."""
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.0)
    first = workers.add(rooms := Rooms("ann"))
    workers.add(Rooms("bob"), listens=False)
    await workers.drained()
    for answer in (await seal(first), await export(first)):
        assert code_of(answer) == (503, "RUNTIME_GROUP_UNAVAILABLE")
        assert f"worker {workers.alive[1]} is not reached" in answer.json()["detail"]
    assert rooms.heard == ["seal", "unseal", "export"]


async def test_a_part_that_cannot_go_over_is_told_by_its_kind(workers: Workers) -> None:
    first = workers.add(Rooms("ann"))
    workers.add(two := Rooms("bob"))
    two.fails["export"] = KeyError("secret")
    await workers.drained()
    answer = await export(first)
    assert code_of(answer) == (500, "RUNTIME_STATE_EXPORT_INVALID")
    assert answer.json()["detail"] == "another worker: rooms/v1 cannot export: KeyError"


async def test_parts_that_do_not_combine_are_told_by_their_kind(
    workers: Workers,
) -> None:
    first = workers.add(rooms := Rooms("ann"))
    workers.add(Rooms("bob"))
    rooms.fails["combine"] = KeyError("secret")
    await workers.drained()
    for answer in (await export(first), await seal(first)):
        assert code_of(answer) == (500, "RUNTIME_STATE_EXPORT_INVALID")
        assert answer.json()["detail"] == "rooms/v1 cannot combine: KeyError"


async def test_a_combine_may_be_async(workers: Workers) -> None:
    class Later(Rooms):
        async def combine(  # type: ignore[override]  # either is a hook
            self, parts: list[tuple[str, Any]]
        ) -> tuple[str, Any]:
            await asyncio.sleep(0)
            return super().combine(parts)

    first = workers.add(Later("ann"))
    workers.add(Later("bob"))
    await workers.drained()
    assert (await export(first)).json()["value"] == ["ann", "bob"]


async def test_nothing_makes_several_states_one_by_itself(workers: Workers) -> None:
    first = workers.add(rooms := Rooms("ann", combine=None))
    workers.add(Rooms("bob", combine=None))
    await workers.drained()
    for answer in (await export(first), await seal(first)):
        assert code_of(answer) == (409, "RUNTIME_STATE_NOT_COMBINED")
        assert answer.json()["detail"].startswith("2 workers have a state of rooms/v1")
    assert rooms.heard == []


async def test_what_one_worker_has_sealed_needs_no_combine_for_a_later_one(
    workers: Workers,
) -> None:
    first = workers.add(Rooms("ann", combine=None))
    await workers.drained()
    await seal(first)
    late = workers.add(Rooms("zoe", combine=None))
    assert (await export(late)).json()["value"] == ["ann"]


# Given away


async def test_what_was_acknowledged_goes_to_no_other_handoff() -> None:
    """Nor to who names none."""
    release = await drained_with(Rooms("ann"))
    assert await given(release, TO) == ["ann"]
    assert await given(release, AGAIN) == ["ann"]
    assert (await report(release))["given"] == [
        {"protocol": "rooms/v1", "nonce": AGAIN, "acknowledged": False}
    ]
    await noted(release, AGAIN)
    for other in (TO, None):
        with pytest.raises(HandedOver):
            await given(release, other)
    assert code_of(await export(release)) == HANDED_OVER
    assert await given(release, AGAIN) == ["ann"]
    assert (await report(release))["given"] == [
        {"protocol": "rooms/v1", "nonce": AGAIN, "acknowledged": True}
    ]


async def noted(release: Release, nonce: str, status: str = "acknowledged") -> None:
    """As an operator says it, who has the control token."""
    body = {"nonce": nonce, "protocol": "rooms/v1", "status": status}
    answer = await release.client.control("POST", ACKNOWLEDGE_PATH, json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("nonce", [TO, None], ids=["a handoff", "nobody"])
async def test_an_acknowledgement_that_comes_during_an_export_bars_it(
    nonce: str | None,
) -> None:
    """Two were given it, and one has said that it has it."""
    release = await drained_with(rooms := Rooms("ann"))
    go = rooms.hold("export")
    late = asyncio.create_task(given(release, nonce))
    await rooms.reached.wait()
    await noted(release, AGAIN)
    go.set()
    with pytest.raises(HandedOver):
        await late


async def test_a_snapshot_of_a_release_that_serves_may_go_to_anybody() -> None:
    release = release_with(Rooms("ann", phase="serving"))
    for nonce in (TO, AGAIN, None):
        assert await given(release, nonce) == ["ann"]
    assert (await report(release))["given"] == []


async def test_a_snapshot_of_a_release_that_drains_is_given_as_any_other() -> None:
    release = release_with(Rooms("ann", phase="draining"))
    job = release.drain.spawn(asyncio.sleep(60))
    await release.drain.begin(begin_request())
    assert await given(release, TO) == ["ann"]
    await noted(release, TO)
    with pytest.raises(HandedOver):
        await given(release, AGAIN)
    job.cancel()


async def test_what_went_over_unsealed_cannot_be_fetched_after_a_detach() -> None:
    release = await drained_with(Rooms("ann"))
    await given(release, TO)
    release.drain.detach(NONCE)
    with pytest.raises(StateNotExportable):
        await given(release, TO)


async def test_what_was_sealed_can_be_fetched_again_after_a_detach_by_who_has_it() -> (
    None
):
    """Its new release may have ended right after; a fresh one takes its place."""
    release = await drained_with(rooms := Rooms("ann"))
    await seal(release)
    await given(release, TO)
    await noted(release, TO)
    release.drain.detach(NONCE)
    rooms.names.append("bob")
    assert await given(release, TO) == ["ann"]
    for other in (AGAIN, None):
        with pytest.raises(HandedOver):
            await given(release, other)


async def test_a_state_that_is_gone_is_not_taken_for_an_empty_one() -> None:
    release = await drained_with(Rooms("ann"))
    await seal(release)
    release.drain.handoffs.siblings.record.forget()
    with pytest.raises(GroupError, match="what was sealed is gone"):
        await given(release, TO)


# Resume


async def test_who_has_given_its_state_away_resumes_by_force_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = await drained_with(rooms := Rooms("ann"))
    await seal(release)
    await given(release, TO)
    await noted(release, TO)
    answer = await resume(release)
    assert code_of(answer) == HANDED_OVER
    assert f"rooms/v1 has gone over in handoff {TO}" in answer.json()["detail"]
    assert (release.drain.phase, release.drain.ledger.gate[0]) == ("drained", 3)
    assert release.drain.sealed
    assert "resume forced" not in caplog.text
    assert (await resume(release, force="yes")).status_code == 400
    assert (await resume(release, force=True)).json() == {
        "phase": "serving",
        "epoch": 2,
    }
    assert "resume forced" in caplog.text
    assert f"rooms/v1 by {TO}" in caplog.text
    await calm()
    assert rooms.heard[-1] == "unseal"
    assert (await release.client.get("/")).status_code == 200


async def test_a_force_that_was_not_needed_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = await drained_with(Rooms("ann"))
    await given(release, TO)
    assert (await resume(release, force=True)).status_code == 200
    assert "resume forced" not in caplog.text


async def test_a_release_that_was_told_of_the_discard_resumes() -> None:
    release = await drained_with(Rooms("ann"))
    await given(release, TO)
    await noted(release, TO)
    await noted(release, TO, "discarded")
    assert (await resume(release)).status_code == 200


async def test_a_resume_while_a_job_hangs_leaves_no_state_to_fetch() -> None:
    """R1: it answers at once, and intake is open."""
    release = release_with(rooms := Rooms("ann", phase="draining"))
    job = release.drain.spawn(asyncio.sleep(60))
    await release.drain.begin(begin_request())
    assert await given(release, TO) == ["ann"]
    async with asyncio.timeout(1):
        assert (await resume(release)).status_code == 200
    assert (await release.client.get("/")).status_code == 200
    assert code_of(await export(release)) == NOT_EXPORTABLE
    assert (await report(release))["given"] == []
    assert "seal" not in rooms.heard
    job.cancel()


@pytest.mark.parametrize("force", [False, True])
async def test_after_a_detach_nothing_opens_and_nothing_is_taken_back(
    force: bool,
) -> None:
    """R3: whatever has become of the state."""
    release = await drained_with(rooms := Rooms("ann"))
    await seal(release)
    await given(release, TO)
    await noted(release, TO)
    client = release.client
    for _ in range(2):
        answer = await client.control("POST", DETACH_PATH, json={"nonce": NONCE})
        assert answer.json() == {"phase": "detached", "epoch": 1}
    body = {"nonce": TO, "protocol": "rooms/v1", "status": "discarded"}
    for answer in (
        await resume(release, force=force),
        await client.control("POST", ACKNOWLEDGE_PATH, json=body),
    ):
        assert code_of(answer) == (409, "RUNTIME_DRAIN_DETACHED")
    assert (await client.get("/")).status_code == 503
    assert (release.drain.phase, release.drain.ledger.gate[0]) == ("detached", 3)
    assert release.drain.sealed
    assert "unseal" not in rooms.heard
    assert (await report(release))["given"][0]["acknowledged"] is True


async def test_a_word_of_a_drain_that_was_resumed_is_refused() -> None:
    """By its epoch: the next drain is another one."""
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    await resume(release)
    await drain_of(release, OTHER_NONCE)
    answer = await told(offer)
    assert code_of(answer) == (409, "RUNTIME_DRAIN_RESUMED")
    with pytest.raises(DrainNotFound):
        await release.drain.handoffs.seal(NONCE)
    assert (await report(release))["given"] == []


# An offer to a handoff


async def offered(release: Release, **members: Any) -> httpx.Response:
    body = {
        "nonce": TO,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 2000,
        **members,
    }
    return await release.client.control("POST", OFFER_PATH, json=body)


async def told(
    offer: dict[str, Any], token: str | None = None, **members: Any
) -> httpx.Response:
    """What the listener of an offer says to who tells it of the handoff."""
    body = {
        "nonce": TO,
        "protocol": "rooms/v1",
        "status": "acknowledged",
        **members,
    }
    authorization = f"Bearer {token}" if token else offer["source"]["authorization"]
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(
            offer["origin"]["acknowledge"],
            json=body,
            headers={"authorization": authorization},
        )


async def test_an_offer_to_a_handoff_is_acknowledged_where_it_was_fetched() -> None:
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    assert offer["origin"]["epoch"] == 1
    assert offer["origin"]["process"] == release.drain.handoffs.identity()
    assert (await fetched(offer)).json()["value"] == ["ann"]
    assert (await fetched(offer)).status_code == 404
    for token in (TOKEN, "w" * 43):
        assert (await told(offer, token)).status_code == 401
    assert (await report(release))["given"][0]["acknowledged"] is False
    for _ in range(2):
        answer = await told(offer)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["cache-control"] == "no-store"
    assert (await report(release))["given"][0]["acknowledged"] is True
    assert code_of(await resume(release)) == HANDED_OVER


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"nonce": AGAIN}, "this is the offer of another handoff"),
        ({"protocol": "rates/v1"}, "this is the offer of another handoff"),
        ({"status": "pending"}, 'status must be "acknowledged" or "discarded"'),
        ({"nonce": 5}, "nonce must be 43 characters of base64url"),
    ],
)
async def test_an_offer_hears_of_its_own_handoff_alone(
    members: dict[str, Any], said: str
) -> None:
    release = await drained_with(Rooms("ann"), Rates("ten"))
    offer = (await offered(release, protocol="rooms/v1")).json()
    answer = await told(offer, **members)
    assert code_of(answer) == (400, "RUNTIME_STATE_REQUEST_INVALID")
    assert said in answer.json()["detail"]
    assert (await report(release))["given"] == []


async def test_an_acknowledgement_of_any_size_is_a_bounded_refusal() -> None:
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    answer = await told(offer, more="x" * 2000)
    assert code_of(answer) == (413, "RUNTIME_CONTROL_BODY_TOO_LARGE")
    assert (await told(offer)).status_code == 200


async def test_an_acknowledgement_can_be_taken_back_for_a_moment() -> None:
    """The new release may fail at the very end."""
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    await fetched(offer)
    await told(offer)
    await asyncio.sleep(0.15)  # a server that was to end would have ended
    assert (await told(offer, status="discarded")).status_code == 200
    assert (await report(release))["given"][0]["acknowledged"] is False
    assert (await resume(release)).status_code == 200


async def test_an_offer_that_has_served_closes_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("drainmw.offering.REGRET", 0.0)
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    await told(offer)
    await until_closed(offer)
    assert "offer of state not" not in caplog.text


async def until_closed(offer: dict[str, Any]) -> None:
    with pytest.raises(httpx.TransportError):
        async with asyncio.timeout(5):
            while True:
                await told(offer, "w" * 43)


async def test_a_fetch_that_nobody_acknowledges_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log once its time is over, and in the report from the first."""
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release, timeoutMs=150)).json()
    assert (await fetched(offer)).status_code == 200
    warning = (
        f"rooms/v1 was fetched by handoff {TO} and is not acknowledged; "
        "this release keeps it"
    )
    assert warning in (await release.client.report())["warnings"]
    await until_closed(offer)
    assert "offer of state not acknowledged" in caplog.text
    assert warning in (await release.client.report())["warnings"]
    assert (await resume(release)).status_code == 200
    assert warning not in (await release.client.report())["warnings"]


async def test_an_acknowledged_state_is_no_warning() -> None:
    release = await drained_with(Rooms("ann"))
    await given(release, TO)
    await noted(release, TO)
    assert (await release.client.report())["warnings"] == []


async def test_an_offer_to_nobody_in_particular_hears_of_nothing() -> None:
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release, nonce=None)).json()
    assert "origin" not in offer
    url = offer["source"]["url"].replace(
        "/.forgezero/runtime/state/v1/export", ACKNOWLEDGE_PATH
    )
    assert (await told(offer | {"origin": {"acknowledge": url}})).status_code == 404
    assert (await report(release))["given"] == []


async def test_a_snapshot_is_acknowledged_and_binds_nobody() -> None:
    release = release_with(Rooms("ann", phase="serving"))
    offer = (await offered(release)).json()
    assert offer["origin"]["epoch"] is None
    assert (await fetched(offer)).status_code == 200
    assert (await told(offer)).status_code == 200
    await drain_of(release)
    assert (await resume(release)).status_code == 200


async def test_what_has_gone_over_is_not_offered_to_another() -> None:
    release = await drained_with(Rooms("ann"))
    await given(release, TO)
    await noted(release, TO)
    assert code_of(await offered(release, nonce=AGAIN)) == HANDED_OVER
    assert code_of(await offered(release, nonce=None)) == HANDED_OVER
    assert (await offered(release)).status_code == 200


async def test_an_offer_that_may_not_be_kept_any_more_says_so() -> None:
    release = await drained_with(Rooms("ann"))
    offer = (await offered(release)).json()
    await resume(release)
    assert code_of(await fetched(offer)) == NOT_EXPORTABLE


# What is told of it


async def test_a_release_tells_what_it_gives() -> None:
    release = release_with(
        Rooms("ann"), Rates("ten", phase="serving", schema_version=3)
    )
    assert await report(release) == {
        "phase": "serving",
        "sealed": False,
        "process": release.drain.handoffs.identity(),
        "adapters": [
            {
                "protocol": "rooms/v1",
                "schemaVersion": 1,
                "phase": "drained",
                "reads": [1],
                "discards": True,
            },
            {
                "protocol": "rates/v1",
                "schemaVersion": 3,
                "phase": "serving",
                "reads": [3],
                "discards": True,
            },
        ],
        "given": [],
        "taken": [],
    }


async def test_a_word_of_a_handoff_that_no_drain_gave_away_is_refused() -> None:
    release = release_with(Rooms("ann"))
    body = {"nonce": TO, "protocol": "rooms/v1", "status": "acknowledged"}
    answer = await release.client.control("POST", ACKNOWLEDGE_PATH, json=body)
    assert code_of(answer) == (409, "RUNTIME_DRAIN_RESUMED")
    await noted(release, THIRD_NONCE, "discarded")
    assert release.drain.phase == "serving"
