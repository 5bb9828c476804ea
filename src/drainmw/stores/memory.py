"""Ownership of a process that shares it with nobody: it has it by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from drainmw.core.heartbeat import Beat
from drainmw.core.lease import Lease

T = TypeVar("T")


class MemoryStore:
    """A store in which nobody else takes part. Gone with its process."""

    where = "this process alone"
    lasts: float | None = None
    pause = 1.0

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    async def open(self, instance: str) -> None:
        """Nothing to open."""

    async def take(self, name: str) -> bool:
        """There is nobody who could have it."""
        return True

    async def drop(self, name: str) -> None:
        """Nobody waits for it."""

    async def transact(self, name: str, act: Callable[[Lease], T]) -> T:
        """Change it; an act that raises has changed nothing."""
        lease = Lease.restored(self._leases.get(name, Lease()).snapshot())
        answer = act(lease)
        self._leases[name] = lease
        return answer

    async def beat(self, beat: Beat) -> list[Beat]:
        """Nobody hears it."""
        return []

    async def close(self) -> None:
        """Keep it, for a next start in this process."""
