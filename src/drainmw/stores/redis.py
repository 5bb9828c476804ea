"""Ownership across hosts, in Redis or what speaks its protocol.

A lease is a hash of a version and its state. A change is one script that
compares the version and replaces both, so a holder that was overtaken cannot
write. Redis replicates late: one that fails over may forget the last moment,
of which a process that lives reminds it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import redis.asyncio as client
from redis.exceptions import RedisError

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

_REPLACE = """
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'state', ARGV[3])
return 1
"""

# Time is the server's own, the only one that is ever compared.
_BEAT = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], redis.call('TIME')[1], ARGV[1])
return redis.call('HVALS', KEYS[1])
"""

_SWEEP = """
local latest = redis.call('TIME')[1] - ARGV[1]
for _, instance in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', latest)) do
    redis.call('HDEL', KEYS[1], instance)
    redis.call('ZREM', KEYS[2], instance)
end
return 1
"""


class RedisStore:
    """The store of one app in a Redis, by redis-py."""

    lasts: float | None = LASTS
    pause = PAUSE

    def __init__(self, url: str, app: str) -> None:
        """Name the place; nothing is connected yet."""
        self._address = Address(url)
        self.where = self._address.shown
        self._prefix = f"drainmw:{{{app}}}"  # one slot of a cluster
        self._beats = [f"{self._prefix}:beats", f"{self._prefix}:seen"]
        self._instance: str | None = None
        self._client: client.Redis | None = None

    async def open(self, instance: str) -> None:
        """Connect, and remove instances that are long dead."""
        self._instance = instance
        await self._ask(lambda r: r.eval(_SWEEP, 2, *self._beats, LONG_DEAD))

    async def take(self, name: str) -> bool:
        """Only time tells here whether a holder is dead."""
        return True

    async def drop(self, name: str) -> None:
        """There is nothing but the lease itself."""

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        """Change a lease by comparing and swapping."""
        key = f"{self._prefix}:lease:{name}"

        async def read() -> tuple[str, Lease]:
            version, state = await self._ask(lambda r: r.hmget(key, "version", "state"))
            return version or "0", lease_from(state)

        async def replace(version: str, lease: Lease) -> bool:
            values = version, str(int(version) + 1), json.dumps(lease.snapshot())
            return bool(await self._ask(lambda r: r.eval(_REPLACE, 1, key, *values)))

        return await replaced(read, replace, act)

    async def beat(self, beat: Beat) -> list[Beat]:
        """Write ours, and read all others."""
        said = json.dumps(beat.snapshot())
        answers = await self._ask(
            lambda r: r.eval(_BEAT, 2, *self._beats, beat.instance, said)
        )
        return [b for b in beats_from(answers) if b.instance != beat.instance]

    async def close(self) -> None:
        """Remove our heartbeat, and disconnect."""
        instance, self._instance = self._instance, None
        try:
            if instance is not None:
                beats, seen = self._beats
                await self._ask(lambda r: r.hdel(beats, instance))
                await self._ask(lambda r: r.zrem(seen, instance))
        finally:
            await self._disconnect()

    async def _ask(self, command: Callable[[client.Redis], Any]) -> Any:
        if self._client is None:
            self._client = client.Redis.from_url(
                self._address.url,
                decode_responses=True,
                socket_timeout=PATIENCE,
                socket_connect_timeout=PATIENCE,
            )
        try:
            async with asyncio.timeout(PATIENCE):
                return await cast(Awaitable[Any], command(self._client))
        except (RedisError, OSError, TimeoutError) as exc:
            await self._disconnect()
            raise OwnershipUnavailable(self._address.explain(exc)) from None

    async def _disconnect(self) -> None:
        connected, self._client = self._client, None
        if connected is not None:
            await connected.aclose()
