"""One place of each kind, in which any number of stores can be opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from drainmw.stores.base import Store
from drainmw.stores.lockfile import LockFileStore
from tests.engines.conftest import (
    postgres_port,
    postgres_url,
    redis_url,
    valkey_port,
)

__all__ = ["postgres_port", "postgres_url", "redis_url", "valkey_port"]

NewStore = Callable[[], Store]


def new_redis(url: str, app: str = "shop:app") -> Store:
    pytest.importorskip("redis", reason="redis is not installed")
    from drainmw.stores.redis import RedisStore

    return RedisStore(url, app)


def new_postgres(url: str, app: str = "shop:app") -> Store:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    from drainmw.stores.postgres import PostgresStore

    return PostgresStore(url, app)


@pytest.fixture(params=["file", "redis", "postgres"])
async def new_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[NewStore]:
    """Makes stores of one place, as processes would that share it."""
    made: list[Store] = []

    def new() -> Store:
        if request.param == "file":
            made.append(LockFileStore(tmp_path / "runtime" / "own"))
        elif request.param == "redis":
            made.append(new_redis(request.getfixturevalue("redis_url")))
        else:  # one database for all: each test is another app
            port = request.getfixturevalue("postgres_port")
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            made.append(new_postgres(url, request.node.name))
        return made[-1]

    yield new
    for store in made:
        await store.close()
