"""What every store must do, each in its own place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drainmw.core import lease as lease_module
from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease, Outcome, Tick
from drainmw.errors import LeaseHeld, LeaseLost, OwnershipUnavailable
from drainmw.stores.base import Store
from drainmw.stores.memory import MemoryStore
from tests.stores.conftest import NewStore

pytestmark = pytest.mark.anyio


def beat(instance: str, number: int = 1) -> Beat:
    return Beat(instance, number, None, 7, "host", {"x": number})


async def opened(new_store: NewStore, instance: str) -> Store:
    store = new_store()
    await store.open(instance)
    return store


async def test_a_lease_is_seen_by_all_as_it_was_left(new_store: NewStore) -> None:
    blue, green = await opened(new_store, "blue"), await opened(new_store, "green")
    await blue.transact("x", lambda lease: lease.take("blue"))
    tick = Tick("x", 5, 1, "blue")
    assert await blue.transact("x", lambda lease: lease.claim(tick))
    seen = await green.transact("x", Lease.snapshot)
    assert Lease.restored(seen) == Lease(1, "blue", last={"x": 5}, running=[tick])
    assert await green.transact("another", Lease.snapshot) == Lease().snapshot()


async def test_an_act_that_raises_has_changed_nothing(new_store: NewStore) -> None:
    blue, green = await opened(new_store, "blue"), await opened(new_store, "green")
    await blue.transact("x", lambda lease: lease.take("blue"))

    def spoil(lease: Lease) -> None:
        lease.last["x"] = 99
        lease.take("green")

    with pytest.raises(LeaseHeld):
        await green.transact("x", spoil)
    seen = Lease.restored(await blue.transact("x", Lease.snapshot))
    assert (seen.holder, seen.last) == ("blue", {})


async def test_who_was_overtaken_is_refused(new_store: NewStore) -> None:
    blue, green = await opened(new_store, "blue"), await opened(new_store, "green")
    await blue.transact("x", lambda lease: lease.take("blue"))
    await green.transact("x", lambda lease: lease.take("green", dead=True))
    with pytest.raises(LeaseLost):
        await blue.transact("x", lambda lease: lease.claim(Tick("x", 5, 1, "blue")))
    with pytest.raises(LeaseLost):
        await blue.transact("x", lambda lease: lease.renew("blue", 1))


async def test_no_write_of_many_at_once_is_lost(new_store: NewStore) -> None:
    stores = [await opened(new_store, f"i{number}") for number in range(4)]

    async def write(number: int, store: Store) -> None:
        for due in range(15):
            tick = Tick(f"schedule {number}", due, 1, "blue")
            assert await store.transact("x", lambda lease, t=tick: lease.claim(t))  # type: ignore[misc]
            outcomes = {tick: Outcome.ENDED}
            await store.transact("x", lambda lease, o=outcomes: lease.settle(o))  # type: ignore[misc]

    await stores[0].transact("x", lambda lease: lease.take("blue"))
    await asyncio.gather(*(write(n, store) for n, store in enumerate(stores)))
    seen = Lease.restored(await stores[0].transact("x", Lease.snapshot))
    assert seen.last == {f"schedule {number}": 14 for number in range(4)}
    assert seen.running == []


async def test_one_tick_that_all_want_is_granted_once(new_store: NewStore) -> None:
    stores = [await opened(new_store, f"i{number}") for number in range(4)]
    await stores[0].transact("x", lambda lease: lease.take("blue"))

    async def claim(store: Store, due: int) -> bool:
        def act(lease: Lease) -> bool:
            tick = Tick("x", due, 1, "blue")
            return tick not in lease.running and lease.claim(tick)

        return await store.transact("x", act)

    for due in range(20):
        granted = await asyncio.gather(*(claim(store, due) for store in stores))
        assert sum(granted) == 1


async def test_every_instance_hears_the_others(new_store: NewStore) -> None:
    blue, green = await opened(new_store, "blue"), await opened(new_store, "green")
    assert await blue.beat(beat("blue")) == []
    assert await green.beat(beat("green")) == [beat("blue")]
    assert await blue.beat(beat("blue", 2)) == [beat("green")]
    assert await green.beat(beat("green", 2)) == [beat("blue", 2)]
    await blue.close()
    assert await green.beat(beat("green", 3)) == []


async def test_a_lease_of_another_version_is_not_misread(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(new_store, "blue")
    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "FORMAT", 2)
        await store.transact("x", lambda lease: lease.take("blue"))
    with pytest.raises(OwnershipUnavailable, match="format"):
        await store.transact("x", Lease.snapshot)
    assert (await store.transact("y", Lease.snapshot))["generation"] == 0


async def test_a_beat_of_another_version_is_passed_over(new_store: NewStore) -> None:
    blue, green = await opened(new_store, "blue"), await opened(new_store, "green")
    await green.beat(Strange("green", 1, None, 1, "host"))
    assert await blue.beat(beat("blue")) == []


class Strange(Beat):
    def snapshot(self) -> dict[str, Any]:
        return {"unheard": "of"}


async def test_it_can_be_used_again_after_its_end(new_store: NewStore) -> None:
    store = await opened(new_store, "blue")
    await store.transact("x", lambda lease: lease.take("blue"))
    await store.close()
    await store.close()
    await store.open("green")
    assert (await store.transact("x", Lease.snapshot))["generation"] == 1


async def test_memory_is_a_process_by_itself() -> None:
    store = MemoryStore()
    await store.open("blue")
    assert await store.take("x")
    await store.transact("x", lambda lease: lease.take("blue"))
    with pytest.raises(LeaseHeld):
        await store.transact("x", lambda lease: lease.take("green"))
    assert (await store.transact("x", Lease.snapshot))["generation"] == 1
    assert await store.beat(beat("blue")) == []
    await store.drop("x")
    await store.close()
