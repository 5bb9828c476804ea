"""Ownership across hosts, in Postgres.

A lease is a row with a version. A change is one statement that replaces the
row where its version is still the one that was read; no transaction is left
open while a process thinks, so none that stops there keeps others out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease
from drainmw.errors import OwnershipUnavailable
from drainmw.stores.base import (
    LASTS,
    LONG_DEAD,
    PATIENCE,
    PAUSE,
    Address,
    beats_from,
    lease_from,
    replaced,
)

T = TypeVar("T")

GRACE = 0.1  # seconds for what was cancelled to end in; else it ends by itself

# Two that make the tables at once would fail over each other.
_TABLES = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('drainmw'));
    CREATE TABLE IF NOT EXISTS drainmw_lease (
        app text, name text, version bigint NOT NULL, state text NOT NULL,
        PRIMARY KEY (app, name)
    );
    CREATE TABLE IF NOT EXISTS drainmw_beat (
        app text, instance text, beat text NOT NULL, seen timestamptz NOT NULL,
        PRIMARY KEY (app, instance)
    );
END $$
"""
_MISSING = "SELECT to_regclass('drainmw_beat') IS NULL"
_READ = "SELECT version, state FROM drainmw_lease WHERE app = %s AND name = %s"
_INSERT = """
INSERT INTO drainmw_lease (state, app, name, version) VALUES (%s, %s, %s, %s + 1)
ON CONFLICT DO NOTHING RETURNING version
"""
_REPLACE = """
UPDATE drainmw_lease SET state = %s, version = version + 1
WHERE app = %s AND name = %s AND version = %s RETURNING version
"""
_BEAT = """
INSERT INTO drainmw_beat (app, instance, beat, seen) VALUES (%s, %s, %s, now())
ON CONFLICT (app, instance) DO UPDATE SET beat = excluded.beat, seen = excluded.seen
"""
_OTHERS = "SELECT beat FROM drainmw_beat WHERE app = %s AND instance <> %s"
_LEAVE = "DELETE FROM drainmw_beat WHERE app = %s AND instance = %s"
# Time is the server's own, the only one that is ever compared.
_SWEEP = """
DELETE FROM drainmw_beat WHERE app = %s AND seen < now() - make_interval(secs => %s)
"""


class PostgresStore:
    """The store of one app in a Postgres, by psycopg; one connection."""

    lasts: float | None = LASTS
    pause = PAUSE

    def __init__(self, url: str, app: str) -> None:
        """Name the place; nothing is connected yet."""
        self._address = Address(url)
        self.where = self._address.shown
        self._app = app
        self._instance: str | None = None
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()
        self._late: set[asyncio.Future[Any]] = set()
        """Given up, and not over yet."""

    async def open(self, instance: str) -> None:
        """Connect, make the tables, and remove instances that are long dead."""
        self._lock = asyncio.Lock()
        self._instance = instance
        ((missing,),) = await self._ask(_MISSING)
        if missing:
            await self._ask(_TABLES)
        await self._ask(_SWEEP, self._app, LONG_DEAD)

    async def take(self, name: str) -> bool:
        """Only time tells here whether a holder is dead."""
        return True

    async def drop(self, name: str) -> None:
        """There is nothing but the lease itself."""

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        """Change a lease by comparing and swapping."""

        async def read() -> tuple[int, Lease]:
            found = await self._ask(_READ, self._app, name)
            return (found[0][0], lease_from(found[0][1])) if found else (0, Lease())

        async def replace(version: int, lease: Lease) -> bool:
            state = json.dumps(lease.snapshot())
            statement = _REPLACE if version else _INSERT
            return bool(await self._ask(statement, state, self._app, name, version))

        return await replaced(read, replace, act)

    async def beat(self, beat: Beat) -> list[Beat]:
        """Write ours, and read all others."""
        said = json.dumps(beat.snapshot())
        await self._ask(_BEAT, self._app, beat.instance, said)
        rows = await self._ask(_OTHERS, self._app, beat.instance)
        return beats_from(said for (said,) in rows)

    async def close(self) -> None:
        """Remove our heartbeat, and disconnect."""
        instance, self._instance = self._instance, None
        try:
            if instance is not None:
                await self._ask(_LEAVE, self._app, instance)
        finally:
            await self._disconnect()

    async def _ask(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """In time, also where psycopg waits for a server to hear of a cancellation."""
        async with self._lock:
            asked = asyncio.ensure_future(self._asked(statement, values))
            try:
                done, _ = await asyncio.wait([asked], timeout=PATIENCE)
            finally:
                if not asked.done():
                    self._connection = None
                    self._late.add(asked)
                    asked.add_done_callback(self._is_over)
                    asked.cancel()
                    await asyncio.wait([asked], timeout=GRACE)
        try:
            if not done:
                raise TimeoutError
            return asked.result()
        except (psycopg.Error, OSError, TimeoutError) as exc:
            raise OwnershipUnavailable(self._address.explain(exc)) from None

    async def _asked(
        self, statement: str, values: Sequence[Any]
    ) -> Sequence[tuple[Any, ...]]:
        connection = await self._connected()
        try:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []
        except BaseException:
            if self._connection is connection:
                self._connection = None
            await connection.close()
            raise

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._address.url,
                autocommit=True,
                prepare_threshold=None,  # a pooler in between may not know them
            )
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _is_over(self, late: asyncio.Future[Any]) -> None:
        self._late.discard(late)
        if not late.cancelled():
            late.exception()  # nobody waits for it any more
