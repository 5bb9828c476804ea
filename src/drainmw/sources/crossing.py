"""Keyed work on its way from one release to the next, as either side sees it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from drainmw.errors import IntakeRefused, ResultElsewhere
from drainmw.flag import loop_for
from drainmw.sources.handlers import Handlers
from drainmw.sources.ids import Ids
from drainmw.sources.lines import Lines
from drainmw.sources.pieces import Body, Piece, text_size
from drainmw.sources.runner import refuse


@dataclass(frozen=True, slots=True)
class Load:
    """What goes over."""

    pieces: list[Body]
    """In order; what was parked as the first of its key."""
    paused: list[str]
    """Keys of these pieces that are paused."""
    ended: list[str]
    """Ids that have been run, the last as the first; as many as there is room for."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one handoff has brought."""

    pieces: list[Piece]
    paused: list[str]
    ended: list[str]


class Crossing:
    """The two sides of one queue. Its lock is that of the queue."""

    def __init__(
        self,
        source: object,
        lines: Lines,
        ids: Ids,
        handlers: Handlers,
        lock: AbstractContextManager[Any],
        carry_on: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`carry_on` starts what may start, outside of the lock."""
        self.room: int | None = None
        """Bytes of work that may go over; `None` where nothing takes it there."""
        self.is_sealed = False
        """What goes over is fixed: nobody may offer work."""
        self.is_held = False
        self._source = source
        self._lines = lines
        self._ids = ids
        self._handlers = handlers
        self._lock = lock
        self._carry_on = carry_on
        self._clock = clock
        self._taken: dict[str, _Taken] = {}

    # The old side

    def leaving(self) -> Load:
        """What goes over now."""
        with self._lock:
            pieces = [piece.body for piece in self._lines.travellers() if piece.body]
            keys = {piece["key"] for piece in pieces} & self._lines.paused_keys
            room = self._lines.room if self._lines.travels else self.room or 0
            return Load(pieces, sorted(keys), list(_fitting(self._ids.ended(), room)))

    # The new side

    def take(self, nonce: str, load: Load, *, provisional: bool) -> None:
        """Put it before what waits here, save what is known by its id.

        What is provisional starts once it is confirmed.

        Raises:
            HandlerUnknown, IntakeRefused: Nothing was taken.
        """
        with self._lock:
            if self.is_held:
                raise IntakeRefused("state of a queue")
            pieces = [
                self._piece(body)
                for body in load.pieces
                if not self._ids.knows(body["id"], body.get("of", body["id"]))
            ]
            paused = [key for key in load.paused if key not in self._lines.paused_keys]
            for key in paused:
                self._lines.pause(key)
            for piece in pieces:
                self._ids.enter(piece, is_imported=True)
            self._lines.insert(pieces, "provisional")
            ended = self._ids.inherit(load.ended)
            self._taken[nonce] = _Taken(pieces, paused, ended)
        if not provisional:
            self.confirm(nonce)
        self._carry_on()

    def confirm(self, nonce: str) -> None:
        """What was taken with that nonce is ours. Idempotent."""
        with self._lock:
            taken = self._taken.pop(nonce, None)
            for piece in taken.pieces if taken else ():
                piece.freeze()  # this release may be held by now
            self._lines.confirm(taken.pieces if taken else ())
        self._carry_on()

    def discard(self, nonce: str) -> None:
        """What was taken provisionally with that nonce is not ours. Idempotent."""
        with self._lock:
            taken = self._taken.pop(nonce, None)
            if taken is None:
                return
            gone = self._lines.discard(taken.pieces)
            for piece in gone:
                self._ids.remove(piece)
            self._ids.disinherit(taken.ended)
            for key in taken.paused:
                self._lines.resume(key, also_stopped=False)
        for piece in gone:
            refuse(piece, partial(ResultElsewhere, piece.id, "previous"))
        self._carry_on()

    def _piece(self, body: Body) -> Piece:
        return Piece(
            source=self._source,
            id=body["id"],
            key=body["key"],
            lane=body["lane"],
            call=self._handlers.named(body["handler"]),
            handler=body["handler"],
            args=tuple(body["args"]),
            schedule=body.get("schedule"),
            of=body.get("of"),
            checkpoint=body.get("checkpoint"),
            loop=loop_for("an import"),
            context=contextvars.Context(),
            started=self._clock(),
        )


def _fitting(ids: Iterable[str], room: int) -> Iterator[str]:
    for id in ids:
        room -= text_size(id)
        if room < 0:
            return
        yield id
