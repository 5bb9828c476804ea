"""What an operator sees of a keyed queue at one instant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from drainmw.sources.lines import Line, Lines


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """The work of one key."""

    running: str | None
    """The id of the piece that runs."""
    waiting: int
    parked: int
    withdrawn: int
    provisional: int
    """Taken from the previous release, which may take it back."""
    is_paused: bool
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One queue."""

    intake: Literal["open", "paused", "held", "sealed"]
    is_paused: bool
    """All keys are."""
    is_stopped: bool
    keys: dict[str, KeySnapshot]
    """Those that have work, or are paused or stopped by themselves."""

    @classmethod
    def of(
        cls, lines: Lines, intake: Literal["open", "paused", "held", "sealed"]
    ) -> Snapshot:
        """That of these lines."""
        keys = {line.key: line for line in lines}
        gated = sorted((lines.paused_keys | lines.stopped_keys) - set(keys))
        empty = [Line(key, is_sifted=False) for key in gated]
        return cls(
            intake,
            lines.is_paused,
            lines.is_stopped,
            {line.key: _of_key(line, lines) for line in [*keys.values(), *empty]},
        )


def _of_key(line: Line, lines: Lines) -> KeySnapshot:
    places = Counter(piece.place for piece in line)
    return KeySnapshot(
        running=line.running.id if line.running else None,
        waiting=places["waiting"],
        parked=places["parked"],
        withdrawn=places["withdrawn"],
        provisional=places["provisional"],
        is_paused=line.key in lines.paused_keys,
        is_stopped=line.key in lines.stopped_keys,
    )
