"""A record with siblings that exist only in the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from drainmw.core.drain import Lifecycle
from drainmw.core.ledger import GateByte
from drainmw.core.roster import Worker
from drainmw.record import Hint, LocalRecord
from drainmw.reporting import Told

T = TypeVar("T")


class SharedRecord:
    """One process's end of it; `siblings` is what the others have said last."""

    def __init__(self) -> None:
        self.gate: GateByte = [0]
        self.siblings: dict[int, Worker] = {}
        self.hints: list[Hint] = []
        self.on_wake: Callable[[Hint], None] = lambda _hint: None
        self.before: Callable[[], None] = lambda: None
        """Called before each transition, as by another worker that is quicker."""
        self.published: list[Worker] = []
        self._local = LocalRecord(None, self.gate)

    def read(self) -> tuple[int, Lifecycle]:
        return self._local.read()

    def transact(self, act: Callable[[Lifecycle], T], only_at: int | None = None) -> T:
        before, self.before = self.before, lambda: None
        before()
        return self._local.transact(act, only_at)

    def publish(self, worker: Worker) -> None:
        self.published.append(worker)

    def others(self) -> list[Worker]:
        return list(self.siblings.values())

    def wake(self, hint: Hint = "look") -> None:
        self.hints.append(hint)
        self.on_wake(hint)

    def tell(self, told: Told) -> None:
        """Nobody asks."""

    def told(self) -> list[Told]:
        return []
