"""What a store of ownership can do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease
from drainmw.errors import OwnershipUnavailable
from drainmw.text import failure_text, printable

T = TypeVar("T")
V = TypeVar("V")

PATIENCE = 2.0  # seconds for one answer over the network
LASTS = 6.0  # seconds that a lease stands there without a renewal
PAUSE = 1.0  # seconds between two looks there
TRIES = 20  # of a write that others keep overtaking
STEP_ASIDE = 0.002  # seconds at random, ever more, so that not all try again at once
LONG_DEAD = 3600  # seconds by the clock of a store, after which nobody beats again
HIDDEN = "***"


class Store(Protocol):
    """All of it is called in one event loop; each raises `OwnershipUnavailable`."""

    where: str
    """For people, without credentials."""
    lasts: float | None
    """Seconds that a lease stands without a renewal; `None` where the death of its
    holder is known at once."""
    pause: float
    """Seconds between two looks of who waits for a lease."""

    async def open(self, instance: str) -> None:
        """Begin to use it, as that instance; sweep what is long dead."""
        ...

    async def take(self, name: str) -> bool:
        """Whether a lease may be taken, as far as death is known here."""
        ...

    async def drop(self, name: str) -> None:
        """Undo `take`. Idempotent."""
        ...

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        """Change a lease, whole or not at all; `act` may be called again.

        Raises:
            Exception: What `act` raised; nothing changed.
        """
        ...

    async def beat(self, beat: Beat) -> list[Beat]:
        """Say what this instance is, and hear what all others have said last."""
        ...

    async def close(self) -> None:
        """Remove this instance, and use it no more. Idempotent."""
        ...


async def replaced(
    read: Callable[[], Awaitable[tuple[V, Lease]]],
    replace: Callable[[V, Lease], Awaitable[bool]],
    act: Callable[[Lease], T],
) -> T:
    """Apply an act to the newest lease, where the store compares and swaps.

    No lock is held while the network is waited for, so who stops in the middle of
    it stops nobody else.
    """
    for number in range(TRIES):
        version, lease = await read()
        before = lease.snapshot()
        answer = act(lease)
        if lease.snapshot() == before or await replace(version, lease):
            return answer
        await asyncio.sleep(random.uniform(0, STEP_ASIDE * number))
    raise OwnershipUnavailable("too many processes write at once")


def lease_from(state: str | bytes | None) -> Lease:
    """A lease as it was stored; a new one where there is none."""
    if state is None:
        return Lease()
    try:
        return Lease.restored(json.loads(state))
    except (ValueError, KeyError, TypeError) as exc:
        why = f"{type(exc).__name__}: {exc}"
        raise OwnershipUnavailable(f"a lease cannot be read: {why}") from None


def beats_from(said: Iterable[str | bytes]) -> list[Beat]:
    """Heartbeats as they were stored, save those of another version of drainmw."""
    found = []
    for text in said:
        with contextlib.suppress(ValueError, TypeError):
            found.append(Beat.restored(json.loads(text)))
    return found


class Address:
    """A URL with credentials, which are never shown."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2] + parts.path
        self.shown = printable(f"{parts.scheme}://{place}")
        password = parts.password or ""
        more = {v for name, v in parse_qsl(parts.query) if "pass" in name.lower()}
        self._secrets = {password, unquote(password), *more} - {""}

    def explain(self, exc: BaseException) -> str:
        """What has failed, in words that hold none of them."""
        text = failure_text(exc).replace(self.url, self.shown)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return f"{self.shown}: {text}"
