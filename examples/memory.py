"""What the chat holds in memory, and the form in which it goes over to the next
release: durations and counts. A point in time would say nothing there, since the
clock of another process is another clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from drainmw import ImportContext, ModelState

GRACE = 30.0  # seconds without a heartbeat after which somebody has gone
BURST = 10  # requests that a client has at once,
RATE = 1.0  # and how many it gets back in a second
MOST = 10_000  # people, and clients: what surely fits into the 1 MiB of a state
NAME = "[A-Za-z0-9_-]{1,32}"

Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Left = Annotated[float, Field(ge=0)]


class Presence(BaseModel):
    """Who is in which room, with the seconds of grace that are left."""

    rooms: dict[Name, dict[Name, Left]]


class Rooms:
    """Who is there.

    The end of a connection is no leave. A drain closes every WebSocket with 1012,
    and its person comes back to the next release a moment later: who has not said
    `leave` is there until the grace is over.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, dict[str, float]] = {}

    def present(self, room: str) -> list[str]:
        return sorted(self._rooms.get(room, ()))

    def beat(self, room: str, person: str) -> bool:
        """Somebody is there, for the first time or still; false if all is full."""
        is_new = person not in self._rooms.get(room, ())
        if is_new and sum(map(len, self._rooms.values())) >= MOST:
            return False
        self._rooms.setdefault(room, {})[person] = GRACE
        return True

    def leave(self, room: str, person: str) -> None:
        self._rooms.get(room, {}).pop(person, None)

    def pass_time(self, seconds: float) -> None:
        """Forget whose grace is over by then."""
        for room in list(self._rooms):
            people = self._rooms.pop(room).items()
            left = {who: grace - seconds for who, grace in people if grace > seconds}
            if left:
                self._rooms[room] = left

    def state(self) -> ModelState[Presence]:
        """What the next release takes over."""
        return ModelState(
            Presence,
            protocol="chat.presence",
            schema_version=1,
            export=self._export,
            load=self._load,
        )

    def _export(self) -> Presence:
        return Presence(rooms=self._rooms)

    def _load(self, presence: Presence, _context: ImportContext) -> None:
        """Add those of the old release; who is here already stays."""
        for room, people in presence.rooms.items():
            here = self._rooms.setdefault(room, {})
            for person, grace in people.items():
                here[person] = max(here.get(person, 0), min(grace, GRACE))


class Budgets(BaseModel):
    """How many requests each client has left; who is not in it has all."""

    left: dict[Name, Left]


class Limiter:
    """A token bucket for each client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # what it held, and when

    def left(self, client: str) -> float:
        """How many requests it has."""
        now = self._clock()
        held, when = self._buckets.get(client, (BURST, now))
        return min(BURST, held + (now - when) * RATE)

    def spend(self, client: str) -> float:
        """Take one request off; otherwise the seconds until there is one."""
        left = self.left(client)
        if left < 1:
            return (1 - left) / RATE
        if client not in self._buckets and len(self._buckets) >= MOST:
            return 1 / RATE  # others may have a full bucket by then
        self._buckets[client] = left - 1, self._clock()
        return 0.0

    def forget_full(self) -> None:
        """A full bucket is as good as none."""
        for client in [c for c in self._buckets if self.left(c) >= BURST]:
            del self._buckets[client]

    def state(self) -> ModelState[Budgets]:
        """What the next release takes over."""
        return ModelState(
            Budgets,
            protocol="chat.budgets",
            schema_version=1,
            export=self._export,
            load=self._load,
        )

    def _export(self) -> Budgets:
        self.forget_full()
        return Budgets(left={client: self.left(client) for client in self._buckets})

    def _load(self, budgets: Budgets, _context: ImportContext) -> None:
        """Take the old release's budgets, less what was spent here already."""
        now = self._clock()
        for client, left in budgets.left.items():
            spent_here = BURST - self.left(client)
            self._buckets[client] = max(0.0, min(left, BURST) - spent_here), now
