"""Stores across hosts: time is theirs, and what fails is told without secrets."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from typing import Any

import pytest

from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease
from drainmw.errors import OwnershipUnavailable
from drainmw.stores.base import Address, Store
from tests.processes import free_port
from tests.stores.conftest import NewStore, new_postgres, new_redis

pytestmark = pytest.mark.anyio

PASSWORD = "s3cret%21"
NEW = {"redis": new_redis, "postgresql": new_postgres}


def unreachable(scheme: str) -> Store:
    return NEW[scheme](f"{scheme}://user:{PASSWORD}@127.0.0.1:{free_port()}/0")


@pytest.mark.parametrize("scheme", NEW)
async def test_a_server_that_is_not_there_is_unavailable(scheme: str) -> None:
    store = unreachable(scheme)
    for ask in (
        lambda: store.open("blue"),
        lambda: store.transact("x", Lease.snapshot),
        lambda: store.beat(Beat("blue", 1, None, 1, "host")),
    ):
        with pytest.raises(OwnershipUnavailable) as failed:
            await ask()
        assert f"{scheme}://127.0.0.1:" in str(failed.value)
        assert "s3cret" not in str(failed.value)
    with pytest.raises(OwnershipUnavailable):
        await store.close()
    await store.close()


@pytest.mark.parametrize("scheme", NEW)
async def test_a_server_that_says_nothing_is_unavailable_in_time(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(
        f"drainmw.stores.{'redis' if scheme == 'redis' else 'postgres'}"
    )
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    server = await asyncio.start_server(_say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        store = NEW[scheme](f"{scheme}://127.0.0.1:{port}/0")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        with pytest.raises(OwnershipUnavailable):
            await store.transact("x", Lease.snapshot)
        assert loop.time() - asked < 1.5


async def _say_nothing(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while await reader.read(1024):
        pass
    writer.close()


async def test_a_server_that_was_away_is_used_again(redis_url: str) -> None:
    store: Any = new_redis(redis_url)
    await store.transact("x", lambda lease: lease.take("blue"))
    for connection in store._client.connection_pool._available_connections:
        await connection.disconnect()
    assert (await store.transact("x", Lease.snapshot))["holder"] == "blue"
    await store.close()


async def test_a_connection_that_the_server_has_ended_is_made_anew(
    postgres_url: str,
) -> None:
    import psycopg

    store: Any = new_postgres(postgres_url)
    await store.open("blue")
    await store.transact("x", lambda lease: lease.take("blue"))
    async with await psycopg.AsyncConnection.connect(
        postgres_url, autocommit=True
    ) as other:
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    with pytest.raises(OwnershipUnavailable):
        await store.transact("x", Lease.snapshot)
    assert (await store.transact("x", Lease.snapshot))["holder"] == "blue"
    await store.close()


async def test_a_server_that_stands_still_is_unavailable_in_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its driver waits longer for the end of what it has cancelled."""
    monkeypatch.setattr("drainmw.stores.postgres.PATIENCE", 0.2)
    store: Any = new_postgres(postgres_url)
    await store.open("blue")
    await store.transact("x", lambda lease: lease.take("blue"))
    backend = store._connection.info.backend_pid
    loop = asyncio.get_running_loop()
    os.kill(backend, signal.SIGSTOP)
    try:
        asked = loop.time()
        with pytest.raises(OwnershipUnavailable):
            await store.transact("x", Lease.snapshot)
        assert loop.time() - asked < 1.5
        assert (await store.transact("x", Lease.snapshot))["holder"] == "blue"
    finally:
        os.kill(backend, signal.SIGCONT)
    async with asyncio.timeout(2):
        await asyncio.gather(*store._late, return_exceptions=True)
    await store.close()


@pytest.mark.parametrize("new_store", ["redis", "postgres"], indirect=True)
async def test_instances_that_are_long_dead_are_swept_at_the_start(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = new_store()
    await dead.open("dead")
    await dead.beat(Beat("dead", 1, None, 1, "host"))
    alive = new_store()
    await alive.open("alive")
    assert [b.instance for b in await alive.beat(Beat("alive", 1, None, 1, "h"))] == [
        "dead"
    ]
    monkeypatch.setattr(importlib.import_module(type(dead).__module__), "LONG_DEAD", -1)
    late = new_store()
    await late.open("late")
    assert await late.beat(Beat("late", 1, None, 1, "host")) == []


async def test_tables_are_made_by_many_at_once(postgres_url: str) -> None:
    stores = [new_postgres(postgres_url) for _ in range(8)]
    await asyncio.gather(*(store.open(f"i{n}") for n, store in enumerate(stores)))
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cret@host:1/2", "redis://host:1/2"),
        ("redis://host", "redis://host"),
        ("postgresql://host/db?password=s3cret&x=1", "postgresql://host/db"),
        ("unix:///run/redis.sock?password=s3cret", "unix:///run/redis.sock"),
    ],
)
def test_an_address_shows_no_secret(url: str, shown: str) -> None:
    address = Address(url)
    assert address.shown == shown
    told = address.explain(OSError(f"{url} refused; s3cret is wrong, password=s3cret"))
    assert told.startswith(f"{shown}: ")
    assert "s3cret" not in told or "s3cret" not in url
