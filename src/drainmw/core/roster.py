"""Many workers' reports folded into the one answer of their release.

A worker publishes what it runs, and which generation of the release's record
it had seen when it did. Generations grow with every transition; so what a
worker published under an older one says nothing about the present, and a
worker that has not spoken is *unknown*, which is never zero.

A worker that has died took its work with it: it leaves the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KINDS = ("http", "websocket", "jobs", "schedules")


@dataclass(frozen=True, slots=True)
class Worker:
    """What one live worker has published last."""

    pid: int
    born: float
    """Monotonic seconds, the same clock in every process of a host."""
    published: float
    """When it spoke last, on that clock."""
    generation: int
    """Of the record that it had seen; 0 where it has never spoken."""
    settled: bool
    """All its sources are held and its own work has ended."""
    counts: tuple[int | None, ...]
    """By kind, in the order of `KINDS`; `None` where it cannot tell."""
    valid: bool = True
    """False where one of its counters is not a whole number of at least 0."""
    who: str = ""
    """Which of its sources cannot tell, or tells nonsense."""
    error: str | None = None
    """What keeps it from telling."""
    fatal: bool = False
    """That error fails the drain; the source is not merely out of reach."""
    admitted: int = 0
    refused: int = 0
    last_admitted: float = 0.0
    last_refused: float = 0.0
    """Monotonic seconds; 0 is never."""

    def has_spoken(self, generation: int, since: float = 0.0) -> bool:
        """Whether it speaks of that generation, and not before that time."""
        return self.generation >= generation and self.published >= since


@dataclass(frozen=True, slots=True)
class Roll:
    """The one answer."""

    counts: dict[str, int | None]
    """The sum by kind; `None` where a live worker did not tell."""
    unknown: tuple[Worker, ...]
    """Who has not spoken, or cannot tell."""
    silent: tuple[Worker, ...]
    """Those of them who have not spoken."""
    settled: bool
    """Every live worker has spoken, and its work and its sources have ended."""
    valid: bool
    """No counter is invalid."""
    who: tuple[str, ...]
    """Who did not tell, or told nonsense."""
    error: str | None
    """What somebody who cannot tell has said."""
    fatal: bool
    """That error fails the drain."""

    @property
    def known(self) -> dict[str, int] | None:
        """The sums, if every one of them is known."""
        known = {kind: n for kind, n in self.counts.items() if n is not None}
        return known if len(known) == len(self.counts) else None

    @property
    def is_idle(self) -> bool:
        """Every live worker has spoken, and nothing at all is in flight."""
        return self.valid and self.known == dict.fromkeys(KINDS, 0)


def fold(workers: Iterable[Worker], generation: int, since: float = 0.0) -> Roll:
    """Fold what live workers published into one answer.

    Only what they say of that generation counts, and only what they said at
    `since` or later.
    """
    live = list(workers)
    silent = [w for w in live if not w.has_spoken(generation, since)]
    spoken = [w for w in live if w.has_spoken(generation, since)]
    vague = [w for w in spoken if None in w.counts]
    counts: dict[str, int | None] = {}
    for index, kind in enumerate(KINDS):
        numbers = [w.counts[index] for w in spoken]
        known = [n for n in numbers if n is not None]
        complete = not silent and len(known) == len(numbers)
        counts[kind] = sum(known) if complete else None
    return Roll(
        counts=counts,
        unknown=(*silent, *vague),
        silent=tuple(silent),
        settled=not silent and all(w.settled for w in spoken),
        valid=all(w.valid for w in spoken),
        who=tuple(w.who or f"worker {w.pid}" for w in (*silent, *vague)),
        error=next((w.error for w in spoken if w.error), None),
        fatal=any(w.fatal for w in spoken),
    )
