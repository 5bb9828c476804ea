"""Which instances live, and which of them own what another owns, too.

A heartbeat carries a number that only grows. A peer is alive only where its
number has grown between two looks of ours, so no clock of it is ever read: one
that runs backwards changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

OVERLAP = "schedule overlap: "
"""What a warning of one begins with; metrics know it by that."""
PATIENCE = 2  # looks of ours without growth, after which a peer is not alive


@dataclass(frozen=True, slots=True)
class Beat:
    """What an instance says of itself."""

    instance: str
    number: int
    release: str | None
    """Its revision, where that is known."""
    pid: int
    host: str
    owns: Mapping[str, int] = field(default_factory=dict)
    """The names under which it runs schedules, each with the generation."""
    protected: bool = True
    """Whether it owns under a lease; or just so."""

    def snapshot(self) -> dict[str, Any]:
        """Everything, in the form of JSON."""
        return asdict(self)

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Beat:
        """What `snapshot` took.

        Raises:
            TypeError: It is no such thing, or another version of drainmw made it.
        """
        beat = cls(**snapshot)
        number, owns = snapshot["number"], snapshot.get("owns", {})
        if not isinstance(number, int) or not isinstance(owns, Mapping):
            raise TypeError("number must be a whole number, and owns name generations")
        return beat

    @property
    def who(self) -> str:
        """For people."""
        return f"process {self.pid} on {self.host}"


@dataclass(slots=True)
class _Seen:
    beat: Beat
    still: int
    """Looks since its number has grown; at first it has never grown."""


class Peers:
    """The other instances, as they were seen look by look."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._seen: dict[str, _Seen] = {}
        self._looks = 0

    def look(self, beats: Iterable[Beat]) -> None:
        """Take in what all of them say now. Call it once for each beat of ours."""
        self._looks += 1
        before, self._seen = self._seen, {}
        for beat in beats:
            known = before.get(beat.instance)
            if known is None:
                self._seen[beat.instance] = _Seen(beat, self._patience)
            elif beat.number > known.beat.number:
                self._seen[beat.instance] = _Seen(beat, 0)
            else:
                self._seen[beat.instance] = _Seen(known.beat, known.still + 1)

    def alive(self) -> list[Beat]:
        """Those whose number has grown lately, as they said then."""
        return [s.beat for s in self._seen.values() if s.still < self._patience]

    def is_gone(self, instance: str, after: int) -> bool:
        """Whether an instance says nothing, or has not grown for so many looks."""
        if not self._looks:
            return False
        seen = self._seen.get(instance)
        return seen is None or seen.still >= self._patience + after


@dataclass(frozen=True, slots=True)
class Overlap:
    """Instances that all run the schedules of one name."""

    name: str
    beats: tuple[Beat, ...]

    def __str__(self) -> str:
        who = ", ".join(sorted(beat.who for beat in self.beats))
        return f"{OVERLAP}{self.name} is owned by each of {who}"


def overlaps(alive: Iterable[Beat]) -> list[Overlap]:
    """Where several own what one should.

    Two releases without a lease both own while one replaces the other, which is
    how it must be; only of one release that is wrong. Under a lease it always is.
    """
    by_name: dict[str, list[Beat]] = {}
    for beat in alive:
        for name in beat.owns:
            by_name.setdefault(name, []).append(beat)
    found = []
    for name, owners in sorted(by_name.items()):
        wrong = {
            beat.instance: beat
            for pair in combinations(owners, 2)
            if pair[0].release == pair[1].release or all(b.protected for b in pair)
            for beat in pair
        }
        if wrong:
            found.append(Overlap(name, tuple(wrong.values())))
    return found
