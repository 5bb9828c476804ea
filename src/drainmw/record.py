"""Where the lifecycle of a release is kept, and who may change it.

Every transition goes through `transact`: it is applied to the newest state,
under one lock, and either changes it whole or not at all. The gate that
admission looks at is written last and only follows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from drainmw.core.drain import Lifecycle
from drainmw.core.ledger import GateByte
from drainmw.core.roster import Worker
from drainmw.errors import GroupError, Superseded
from drainmw.reporting import Told

T = TypeVar("T")

Hint = Literal["look", "ask", "tell"]


class Record(Protocol):
    """The lifecycle of a release, and what its other workers say."""

    gate: GateByte

    def read(self) -> tuple[int, Lifecycle]:
        """The newest generation and its lifecycle, which is not to be changed."""
        ...

    def transact(self, act: Callable[[Lifecycle], T], only_at: int | None = None) -> T:
        """Apply a transition; what it raises has changed nothing.

        Raises:
            Superseded: The record is of another generation than `only_at`.
        """
        ...

    def publish(self, worker: Worker) -> None:
        """Say what this worker runs."""
        ...

    def others(self) -> list[Worker]:
        """What every other live worker has said last."""
        ...

    def wake(self, hint: Hint = "look") -> None:
        """Make the others look, publish (`ask`), or write down what they tell."""
        ...

    def tell(self, told: Told) -> None:
        """Write down what this worker tells."""
        ...

    def told(self) -> list[Told]:
        """What the others have written down."""
        ...


class ReleaseRecord(Record, Protocol):
    """And what they share of state."""

    def members(self) -> list[int]:
        """Every live worker by its process id, in one order for all."""
        ...

    def addresses(self) -> dict[int, Path]:
        """Where every other live worker is asked, by its process id."""
        ...

    def keep(self, name: str, body: bytes) -> None:
        """Keep something for all workers, also those that are yet to come."""
        ...

    def kept(self, name: str) -> bytes:
        """What was kept under that name.

        Raises:
            GroupError: It is gone.
        """
        ...

    def forget(self) -> None:
        """Remove what was kept."""
        ...


class LocalRecord:
    """The record of a process that is alone."""

    def __init__(self, revision: str | None, gate: GateByte) -> None:
        self.gate = gate
        self._lock = threading.Lock()
        self._lifecycle = Lifecycle(revision)
        self._generation = 1
        self._kept: dict[str, bytes] = {}

    def read(self) -> tuple[int, Lifecycle]:
        """The one lifecycle there is."""
        return self._generation, self._lifecycle

    def transact(self, act: Callable[[Lifecycle], T], only_at: int | None = None) -> T:
        """Apply a transition; a pure one raises before it changes anything."""
        with self._lock:
            if only_at not in (None, self._generation):
                raise Superseded
            answer = act(self._lifecycle)
            self._generation += 1
            self.gate[0] = self._lifecycle.gate
            return answer

    def publish(self, worker: Worker) -> None:
        """Nobody listens."""

    def others(self) -> list[Worker]:
        """Nobody."""
        return []

    def wake(self, hint: Hint = "look") -> None:
        """Nobody sleeps."""

    def tell(self, told: Told) -> None:
        """Nobody asks."""

    def told(self) -> list[Told]:
        """Nothing."""
        return []

    def members(self) -> list[int]:
        """This process."""
        return [os.getpid()]

    def addresses(self) -> dict[int, Path]:
        """Nobody's."""
        return {}

    def keep(self, name: str, body: bytes) -> None:
        """Keep something, in memory."""
        self._kept[name] = body

    def kept(self, name: str) -> bytes:
        """What was kept under that name."""
        if name not in self._kept:
            raise GroupError("what was sealed is gone")
        return self._kept[name]

    def forget(self) -> None:
        """Remove what was kept."""
        self._kept.clear()
