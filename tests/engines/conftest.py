"""Servers for the engines, started when a test first asks, and a journal."""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

from tests.engines import brokers
from tests.engines.journal import Journal
from tests.engines.spooled import Workers

# scripts/test runs them in an environment of their own.
collect_ignore = [] if find_spec("arq") else ["redis5"]

_database = count(1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """What the jobs of one test have started and ended."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path that is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="dmw-") as path:
        yield Path(path)


@pytest.fixture
def workers(folder: Path, journal: Journal) -> Iterator[Workers]:
    """Of a release that drains: processes that agents answer for."""
    made = Workers(folder / "queue", folder / "sockets", journal)
    yield made
    made.end()


@pytest.fixture
def others(workers: Workers, folder: Path, journal: Journal) -> Iterator[Workers]:
    """Of the release that takes over, on the same queue."""
    made = Workers(workers.spool.folder, folder / "others", journal)
    yield made
    made.end()


@pytest.fixture(scope="session")
def valkey_port() -> Iterator[int]:
    try:
        with brokers.valkey() as port:
            yield port
    except brokers.NotHere as exc:
        pytest.skip(str(exc))


@pytest.fixture
def redis_url(valkey_port: int) -> str:
    """An empty database of the Valkey server, which no other test has."""
    return f"redis://127.0.0.1:{valkey_port}/{next(_database)}"


@pytest.fixture
def another_redis_url(valkey_port: int) -> str:
    """Another one of the same server."""
    return f"redis://127.0.0.1:{valkey_port}/{next(_database)}"


@pytest.fixture(scope="session")
def postgres_port() -> Iterator[int]:
    try:
        with brokers.postgres() as port:
            yield port
    except brokers.NotHere as exc:
        pytest.skip(str(exc))


@pytest.fixture
def postgres_url(postgres_port: int) -> str:
    """An empty database of the Postgres server, which no other test has."""
    import psycopg

    server = f"postgresql://postgres@127.0.0.1:{postgres_port}"
    name = f"test{next(_database)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server}/{name}"
