"""Who may run schedules, and which of their ticks have been fired.

A lease has a generation that only grows: each taking makes a new one, and
whatever is written under an older one is refused. Taking needs that the lease
was given up, or that its holder is known to be dead. How that is known is the
business of a store: the kernel let go of a lock, or a `Watch` has seen no
renewal for long enough by its own clock. No two clocks are ever compared.

A tick is named by its schedule and the moment at which it was due. It is
claimed before it is fired and ended afterwards. What was claimed is never
claimed again, unless whoever claimed it says that it has not begun. A tick
that nobody can end any more is *interrupted*: it may have run, in part or
whole, so it is reported and not repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from drainmw.core.timetable import moment
from drainmw.errors import LeaseCrowded, LeaseHeld, LeaseLost

FORMAT = 1
KEPT = 86_400_000  # milliseconds for which the last tick of a schedule is remembered
CROWDED = 1000  # schedules with a tick in that time
INTERRUPTED_MAXIMUM = 20
FORGOTTEN = "?"
"""The holder in a store that has lost its memory, until who holds it says so."""


class Outcome(StrEnum):
    """What became of a tick that was claimed."""

    ENDED = "ended"
    INTERRUPTED = "interrupted"
    UNSTARTED = "unstarted"


@dataclass(frozen=True, slots=True)
class Tick:
    """One moment of one schedule, as it was claimed."""

    schedule: str
    due: int  # milliseconds since 1970, UTC
    generation: int
    instance: str

    @property
    def moment(self) -> datetime:
        """When it was due."""
        return moment(self.due)


@dataclass(slots=True)
class Lease:
    """Changed under a store's transaction alone, which keeps it whole or not at all."""

    generation: int = 0
    holder: str | None = None
    renewals: int = 0
    last: dict[str, int] = field(default_factory=dict)
    """The newest tick of each schedule that was claimed, or passed by."""
    running: list[Tick] = field(default_factory=list)
    """Claimed and not ended, also those of holders that have given it up since."""
    interrupted: list[Tick] = field(default_factory=list)
    """The latest, oldest first."""
    interruptions: int = 0
    """How many there ever were."""

    # The holder

    def take(self, instance: str, *, dead: bool = False) -> list[Tick]:
        """Hold it under a new generation; gives what its dead holder was at.

        `dead` says that whoever holds it has died.

        Raises:
            LeaseHeld: Its holder may live.
        """
        if self.holder not in (None, instance) and not dead:
            raise LeaseHeld(str(self.holder))
        lost = {self.holder} - {None, instance}
        interrupted = self._interrupt([t for t in self.running if t.instance in lost])
        self.generation += 1
        self.holder = instance
        self.renewals = 0
        return interrupted

    def check(self, instance: str, generation: int) -> None:
        """Find that instance to hold it under that generation.

        Raises:
            LeaseLost: It is another's.
        """
        if (self.holder, self.generation) != (instance, generation):
            raise LeaseLost(generation, self.generation)

    def renew(self, instance: str, generation: int) -> None:
        """Show that its holder lives.

        Raises:
            LeaseLost: It is another's.
        """
        self.check(instance, generation)
        self.renewals += 1

    def give_up(self, instance: str, generation: int) -> None:
        """Let anybody take it; ticks that run go on and are ended later.

        Raises:
            LeaseLost: It is another's.
        """
        self.check(instance, generation)
        self.holder = None

    # Whoever has seen it

    def recall(self, known: Lease, instance: str, *, holds: bool) -> None:
        """Tell a store that has lost its memory what that instance has seen last.

        `holds` says that it relies on the lease under that generation: then it goes
        on. Else the holder is `FORGOTTEN` and may live, so that nobody takes the
        lease before all have told what they know of ticks.
        """
        if self.generation > known.generation:
            return
        if self.generation < known.generation:
            self.generation, self.holder = known.generation, FORGOTTEN
        if holds and self.holder == FORGOTTEN:
            self.holder = instance
        elif self.holder != (instance if holds else FORGOTTEN):
            return
        for schedule, due in known.last.items():
            self.last[schedule] = max(due, self.last.get(schedule, due))
        noted = [*self.running, *self.interrupted]
        own = [tick for tick in known.running if tick.instance == instance]
        self.running += [tick for tick in own if tick not in noted]

    # The ticks

    def claim(self, tick: Tick) -> bool:
        """Whether that tick is to be fired by who claims it. Idempotent.

        Raises:
            LeaseLost: The lease is another's.
            LeaseCrowded: It remembers too many schedules.
        """
        self.check(tick.instance, tick.generation)
        if tick in self.running:  # the answer to the first try was lost
            return True
        if tick.due <= self.last.get(tick.schedule, self._forgotten(tick)):
            return False
        self._make_room(tick)
        self.last[tick.schedule] = tick.due
        self.running.append(tick)
        return True

    def since(
        self,
        instance: str,
        generation: int,
        schedule: str,
        due: int,
        *,
        anew: bool = False,
    ) -> int:
        """The newest tick of a schedule; a new one begins after `due`.

        `anew` says that others may have fired what is not noted here, so that one
        which is known begins there, too.

        Raises:
            LeaseLost, LeaseCrowded: As `claim` says.
        """
        self.check(instance, generation)
        if anew or schedule not in self.last:
            tick = Tick(schedule, due, generation, instance)
            self._make_room(tick)
            last = self.last.get(schedule, self._forgotten(tick))
            self.last[schedule] = max(due, last)
        return self.last[schedule]

    def settle(self, outcomes: Mapping[Tick, Outcome]) -> list[Tick]:
        """Note what became of ticks; gives those that are interrupted by it.

        One that has not begun can be claimed again, as long as nobody has taken
        the lease since and no later one was fired.
        """
        interrupted = []
        if any(
            o is Outcome.UNSTARTED for t, o in outcomes.items() if t not in self.running
        ):
            self.renewals += 1  # a claim that is still under way finds another version
        for tick in [t for t in self.running if t in outcomes]:
            outcome = outcomes[tick]
            if outcome is Outcome.UNSTARTED and self._may_withdraw(tick):
                self.last[tick.schedule] = tick.due - 1
            elif outcome is not Outcome.ENDED:
                interrupted.append(tick)
                continue
            self.running.remove(tick)
        return self._interrupt(interrupted)

    def reap(self, gone: Collection[str]) -> list[Tick]:
        """Interrupt the ticks of instances that are gone; gives them."""
        return self._interrupt([t for t in self.running if t.instance in gone])

    # As JSON

    def snapshot(self) -> dict[str, Any]:
        """Everything, in the form of JSON."""
        return {
            "format": FORMAT,
            "generation": self.generation,
            "holder": self.holder,
            "renewals": self.renewals,
            "last": dict(self.last),
            "running": [asdict(tick) for tick in self.running],
            "interrupted": [asdict(tick) for tick in self.interrupted],
            "interruptions": self.interruptions,
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Lease:
        """What `snapshot` took.

        Raises:
            ValueError: Another version of drainmw made it.
            KeyError, TypeError: It is no snapshot.
        """
        whole = dict(snapshot)
        if whole.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        for ticks in ("running", "interrupted"):
            whole[ticks] = [Tick(**tick) for tick in whole[ticks]]
        return cls(**whole)

    # Inside

    def _forgotten(self, tick: Tick) -> int:
        """Up to when a schedule that is not remembered may have been fired."""
        return max(self.last.values(), default=tick.due + KEPT - 1) - KEPT

    def _make_room(self, tick: Tick) -> None:
        if tick.schedule in self.last or len(self.last) < CROWDED:
            return
        newest = max(tick.due, *self.last.values())
        self.last = {s: due for s, due in self.last.items() if due > newest - KEPT}
        if len(self.last) >= CROWDED:
            raise LeaseCrowded(CROWDED)

    def _may_withdraw(self, tick: Tick) -> bool:
        newest = self.last.get(tick.schedule)
        return (self.generation, newest) == (tick.generation, tick.due)

    def _interrupt(self, ticks: Iterable[Tick]) -> list[Tick]:
        found = list(ticks)
        for tick in found:
            self.running.remove(tick)
        self.interruptions += len(found)
        self.interrupted = [*self.interrupted, *found][-INTERRUPTED_MAXIMUM:]
        return found


class Watch:
    """Whether a holder goes on renewing, by the clock of who watches alone."""

    def __init__(self, lasts: float) -> None:
        """`lasts`: seconds without a renewal after which a holder is dead."""
        self._lasts = lasts
        self._seen: tuple[int, str | None, int] | None = None
        self._since = 0.0

    def is_over(self, lease: Lease, now: float) -> bool:
        """Whether the holder has not renewed for that long. Ask again and again."""
        seen = (lease.generation, lease.holder, lease.renewals)
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= self._lasts
