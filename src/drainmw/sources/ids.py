"""The ids of keyed work: each is run once, also where it is offered again."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice

from drainmw.errors import Misuse
from drainmw.sources.pieces import SUCCESSOR, Outcome, Piece


class Ids:
    """The ids of one queue: of what is here, and of what was."""

    def __init__(self, remembers: int) -> None:
        """`remembers` so many that have ended, with how they did."""
        self._remembers = remembers
        self._here: dict[str, Piece] = {}
        self._ended: dict[str, Outcome | None] = {}
        """`None` where only the previous release knows how."""
        self._forgettable: deque[str] = deque()
        self._imported: set[str] = set()
        """Never forgotten: the same state may be brought once more."""
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)

    def new(self) -> str:
        """An id that no other process gives, a fork of this one neither."""
        return f"{self._prefix}-{os.getpid():x}-{next(self._numbers)}"

    def knows(self, *ids: str) -> bool:
        """Whether one of these is here or was."""
        return any(id in self._here or id in self._ended for id in ids)

    def find(self, id: str) -> Piece | Outcome | None:
        """The piece of an id that is known, or how it ended, if that is known."""
        return self._here.get(id) or self._ended[id]

    def enter(self, piece: Piece, *, is_imported: bool = False) -> None:
        """It is here."""
        self._here.update(dict.fromkeys(piece.ids, piece))
        if is_imported:
            self._imported.update(piece.ids)

    def remove(self, piece: Piece) -> None:
        """It has not been run, and may come again."""
        for id in piece.ids:
            self._here.pop(id, None)
            self._imported.discard(id)

    def end(self, piece: Piece, outcome: Outcome) -> None:
        """It has been run."""
        for id in piece.ids:
            self._here.pop(id, None)
            if piece.is_named:
                self._remember(id, outcome)

    def inherit(self, ids: Iterable[str]) -> list[str]:
        """The previous release has run these, the last as the first, and all of them
        before what was run here; gives those that are new, as many as are remembered.
        """
        room = max(0, self._remembers - len(self._forgettable))
        new = list(islice((id for id in ids if not self.knows(id)), room))
        self._ended = dict.fromkeys(reversed(new)) | self._ended
        self._forgettable.extendleft(new)
        return new

    def disinherit(self, ids: Iterable[str]) -> None:
        """Forget what was inherited."""
        gone = {id for id in ids if self._ended.get(id, self) is None}
        for id in gone:
            del self._ended[id]
        self._forgettable = deque(id for id in self._forgettable if id not in gone)

    def ended(self) -> Iterator[str]:
        """Those that have been run, the last as the first."""
        return reversed(list(self._ended))

    def _remember(self, id: str, outcome: Outcome | None) -> None:
        self._ended[id] = outcome
        if id in self._imported:
            return
        self._forgettable.append(id)
        if len(self._forgettable) > self._remembers:
            self._ended.pop(self._forgettable.popleft(), None)


def checked(id: str) -> str:
    """An id that somebody chose.

    Raises:
        Misuse: It is none.
    """
    given: object = id
    if not isinstance(given, str) or not given or SUCCESSOR.search(given):
        raise Misuse(
            f"an id of work must be a text, and not end in ~ and a number: {id!r}"
        )
    return id
