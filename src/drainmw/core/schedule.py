"""What is to be done when: a heap of moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

Act = Callable[[], None]


class Schedule:
    """Acts in the order of their moments, equal ones as they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, moment: float, act: Act) -> None:
        """Have it done at that moment."""
        heappush(self._heap, (moment, next(self._numbers), act))

    def due(self, now: float, most: int) -> Iterator[Act]:
        """Take out what is due, at most so many."""
        while self._heap and self._heap[0][0] <= now and most > 0:
            most -= 1
            yield heappop(self._heap)[2]

    def pause(self, now: float) -> float | None:
        """Seconds until the next moment; `None` where nothing is scheduled."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None
