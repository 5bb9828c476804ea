"""Keyed work in lines: which piece is next, and which go over. Pure.

A line is the work of one key. One piece of it runs at a time; behind it wait
what has been parked, lifecycle work and application work, each in order. While
lines *travel*, the tail of each that can go over is withdrawn: it keeps its place
and is not started. What has to end here is never behind something that goes.

Every method changes all of it or nothing, in no time. What is to be started or
told afterwards stands in `starting` and `withdrawn`, for the queue to take.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from drainmw.sources.base import Counts
from drainmw.sources.pieces import COUNTED, LEAVING, Piece, Place

CHASES = 3
"""How deep work in flight may start more of a held queue before that is said."""


class Line:
    """The work of one key. Only `Lines` writes it."""

    __slots__ = ("is_sifted", "key", "queues", "running", "staying")

    def __init__(self, key: str, *, is_sifted: bool) -> None:
        self.key = key
        self.queues: tuple[deque[Piece], ...] = (deque(), deque(), deque())
        """By the rank of the pieces."""
        self.running: Piece | None = None
        self.is_sifted = is_sifted
        self.staying = 0
        """Pieces that have not started and have to end here, once it is sifted."""

    def __iter__(self) -> Iterator[Piece]:
        for queue in self.queues:
            yield from queue

    def __reversed__(self) -> Iterator[Piece]:
        for queue in reversed(self.queues):
            yield from reversed(queue)

    @property
    def is_busy(self) -> bool:
        """Something of it is to be done here."""
        return self.running is not None or any(p.place in COUNTED for p in self)

    @property
    def first(self) -> deque[Piece] | None:
        """The queue that holds the next piece."""
        return next((queue for queue in self.queues if queue), None)


class Lines:
    """The lines of one queue."""

    def __init__(self) -> None:
        self.starting: list[Piece] = []
        """They run from now on, and are still to be called."""
        self.withdrawn: list[Piece] = []
        """They were withdrawn, and nobody has been told; some may be back by now."""
        self.travels = False
        self.room = 0
        """Bytes that may still go over."""
        self._lines: dict[str, Line] = {}
        self._jobs = self._schedules = self._leaving = 0
        self._slots: Counter[str] = Counter()
        self._paused: set[str] = set()
        self._stopped: set[str] = set()
        self.is_paused = False
        self.is_stopped = False

    # What there is

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._lines.values()))

    @property
    def counts(self) -> Counts:
        """What is here to be done."""
        return Counts(self._jobs, self._schedules)

    @property
    def leaving(self) -> int:
        """How many pieces wait for the next release."""
        return self._leaving

    def find(self, key: str) -> Line | None:
        """The line of a key that has any work."""
        return self._lines.get(key)

    def pauses(self, key: str) -> bool:
        """Nothing of that key is started."""
        return self.is_paused or key in self._paused or self.stops(key)

    def stops(self, key: str) -> bool:
        """Nothing of that key is taken."""
        return self.is_stopped or key in self._stopped

    @property
    def paused_keys(self) -> set[str]:
        """Those that were paused by themselves."""
        return set(self._paused)

    @property
    def stopped_keys(self) -> set[str]:
        """Those that were stopped by themselves."""
        return set(self._stopped)

    def occupies(self, schedule: str) -> bool:
        """A piece of that schedule is not over, wherever it is to go on."""
        return self._slots[schedule] > 0

    # The life of a piece

    def add(self, piece: Piece) -> None:
        """Take a piece to the end of its queue."""
        line = self._line(piece.key)
        line.queues[piece.rank].append(piece)
        self._put(piece, "waiting")
        self._sift(line)
        self._advance(line)

    def end(self, piece: Piece) -> None:
        """It is over."""
        line = self._lines[piece.key]
        line.running = None
        self._put(piece, "out")
        self._advance(line)

    def park(self, piece: Piece) -> None:
        """It has stopped at its checkpoint: it leaves, or goes on here at once."""
        line = self._lines[piece.key]
        line.running = None
        line.queues[piece.rank].appendleft(piece)
        if self.asks(piece, line) and piece.body and piece.size <= self.room:
            self._put(piece, "parked")
            return
        self._keep(piece, line)
        self._advance(line)

    def asks(self, piece: Piece, line: Line | None = None) -> bool:
        """Whether that piece, which runs, should park."""
        line = line or self._lines[piece.key]
        can = piece.may_park and piece.handler is not None and not _is_awaited(piece)
        return self.travels and can and not line.staying

    # Gates

    def pause(self, key: str | None) -> None:
        """Start nothing more of that key, or of any."""
        if key is None:
            self.is_paused = True
        else:
            self._paused.add(key)

    def stop(self, key: str | None) -> list[Piece]:
        """Take and start nothing more; gives what waited, which is over."""
        if key is None:
            self.is_stopped = True
        else:
            self._stopped.add(key)
        return self.give_up(self._of(key), lambda piece: True)

    def give_up(
        self, lines: Iterable[Line], is_meant: Callable[[Piece], bool]
    ) -> list[Piece]:
        """Take out what waits there and is meant."""
        given_up = []
        for line in lines:
            waiting = {p for p in line if p.place == "waiting" and is_meant(p)}
            given_up += self._take_out(line, waiting)
        return given_up

    def resume(self, key: str | None, *, also_stopped: bool = True) -> None:
        """Undo a pause of that key, or that of all keys; and a stop."""
        if key is None:
            self.is_paused = self.is_stopped = False
        else:
            self._paused.discard(key)
            if also_stopped:
                self._stopped.discard(key)
        for line in self._of(key):
            self._advance(line)

    # Going over

    def travel(self, room: int) -> list[Piece]:
        """Start nothing before it is sifted; gives what is to be frozen for that."""
        if not self.travels:
            self.travels = True
            self.room = room
        return [piece for line in self for piece in line if piece.place == "waiting"]

    def sift(self) -> None:
        """Withdraw what can go over."""
        for line in self if self.travels else ():
            if not line.is_sifted:
                line.is_sifted = True
                self._sift(line)
                self._advance(line)

    def sift_anew(self) -> None:
        """Withdraw what could not go over and can now, where that was looked at."""
        for line in self:
            if line.staying:
                self._sift(line)
                self._advance(line)

    def stay(self) -> None:
        """Put everything back that has not gone over."""
        self.travels = False
        for line in self:
            line.is_sifted = False
            line.staying = 0
            for piece in line:
                piece.may_park = True
                if piece.place in LEAVING:
                    self._put(piece, "waiting")
            if line.running is not None:
                line.running.may_park = True
            self._advance(line)

    def travellers(self) -> list[Piece]:
        """What goes over, in the order of each line."""
        return [piece for line in self for piece in line if piece.place in LEAVING]

    # Coming over

    def insert(self, pieces: Iterable[Piece], place: Place) -> None:
        """Put pieces before what waits here, in their order."""
        groups: dict[tuple[str, int], list[Piece]] = {}
        for piece in pieces:
            groups.setdefault((piece.key, piece.rank), []).append(piece)
            self._put(piece, place)
        for (key, rank), group in groups.items():
            self._line(key).queues[rank].extendleft(reversed(group))
        self._wake({key for key, _ in groups})

    def confirm(self, pieces: Iterable[Piece]) -> None:
        """They are ours."""
        keys = set()
        for piece in pieces:
            if piece.place == "provisional":
                self._put(piece, "waiting")
                keys.add(piece.key)
        self._wake(keys)

    def discard(self, pieces: Iterable[Piece]) -> list[Piece]:
        """They are not ours after all; gives those that were here."""
        by_key: dict[str, set[Piece]] = {}
        for piece in pieces:
            if piece.place == "provisional":
                by_key.setdefault(piece.key, set()).add(piece)
        gone = []
        for key, group in by_key.items():
            gone += self._take_out(self._lines[key], group)
        return gone

    # Inside

    def _of(self, key: str | None) -> list[Line]:
        if key is None:
            return list(self)
        line = self._lines.get(key)
        return [] if line is None else [line]

    def _line(self, key: str) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, is_sifted=self.travels)
        return line

    def _put(self, piece: Piece, place: Place) -> None:
        before, piece.place = piece.place, place
        counted = (place in COUNTED) - (before in COUNTED)
        leaving = (place in LEAVING) - (before in LEAVING)
        occupied = (place != "out") - (before != "out")
        self._leaving += leaving
        self.room -= leaving * piece.size
        if piece.schedule is None:
            self._jobs += counted
            return
        self._schedules += counted
        self._slots[piece.schedule] += occupied
        if not self._slots[piece.schedule]:
            del self._slots[piece.schedule]

    def _advance(self, line: Line) -> None:
        """Start the next piece, if it is its time."""
        if line.running is not None or line.first is None:
            self._drop(line)
            return
        if self.pauses(line.key) or (self.travels and not line.is_sifted):
            return
        if line.first[0].place == "waiting":
            piece = line.running = line.first.popleft()
            line.staying -= bool(line.staying)
            self._put(piece, "running")
            self.starting.append(piece)

    def _drop(self, line: Line) -> None:
        if line.running is None and line.first is None:
            self._lines.pop(line.key, None)

    def _wake(self, keys: Iterable[str]) -> None:
        for key in keys:
            line = self._lines[key]
            self._sift(line)
            self._advance(line)

    def _take_out(self, line: Line, pieces: set[Piece]) -> list[Piece]:
        taken = [piece for piece in line if piece in pieces]
        for queue in line.queues:
            kept = [piece for piece in queue if piece not in pieces]
            queue.clear()
            queue.extend(kept)
        for piece in taken:
            self._put(piece, "out")
        self._sift(line)
        self._advance(line)
        return taken

    def _sift(self, line: Line) -> None:
        """Withdraw the longest tail that can go over; put back what is before it."""
        if not self.travels or not line.is_sifted:
            return
        line.staying = 0
        goes = True
        for piece in reversed(line):
            if piece.place == "provisional":
                continue
            if piece.place == "parked":
                if not goes:
                    self._keep(piece, line)
            else:
                goes = goes and self._may_go(piece)
                line.staying += not goes
                self._move(piece, "withdrawn" if goes else "waiting")

    def _move(self, piece: Piece, place: Place) -> None:
        if piece.place != place:
            self._put(piece, place)
            if place == "withdrawn":
                self.withdrawn.append(piece)

    def _may_go(self, piece: Piece) -> bool:
        """What work in flight may wait for ends with that work, unless this goes on
        and on."""
        if piece.body is None or _is_awaited(piece):
            return False
        return piece.place == "withdrawn" or piece.size <= self.room

    def _keep(self, piece: Piece, line: Line) -> None:
        """It goes on here, and is not asked again while lines travel."""
        piece.may_park = not self.travels
        line.staying += self.travels
        self._put(piece, "waiting")


def _is_awaited(piece: Piece) -> bool:
    """Work in flight has started it, and may wait for it."""
    feeder = piece.feeder
    return feeder is not None and feeder.in_flight and piece.depth <= CHASES
