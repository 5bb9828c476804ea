"""A keyed queue in memory: side by side across keys, in order within one.

Work that has been accepted is run, once for each id. A drain waits for it; one
that goes with a handoff withdraws what has not started, so that the next release
runs it, and asks what runs to park at a checkpoint of its own. Both come back in
their places after a resume. Nobody who offers work ever waits for a gate: a
closed one refuses by a named error.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from drainmw.errors import (
    IntakePaused,
    IntakeRefused,
    Misuse,
    NotConverging,
    ResultElsewhere,
    SlotOccupied,
    WorkStopped,
)
from drainmw.flag import Pulse, loop_for
from drainmw.log import logger
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.crossing import Crossing
from drainmw.sources.feeding import Feeders, depth, feeder
from drainmw.sources.handlers import H, Handler, Handlers
from drainmw.sources.ids import Ids, checked
from drainmw.sources.lines import CHASES, Lines
from drainmw.sources.pieces import Lane, Outcome, Parked, Piece
from drainmw.sources.runner import Current, Runner, join, publish, refuse
from drainmw.sources.snapshot import Snapshot

REMEMBERS = 10_000
BATCH = 100  # pieces that are frozen at once, some 10 us each


class KeyedQueue:
    """A push source that runs handlers, of any number of event loops."""

    intake: Intake = "push"

    def __init__(
        self,
        name: str = "queue",
        *,
        handoff: bool | Callable[[], bool] = False,
        remembers: int = REMEMBERS,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] | None = None,
    ) -> None:
        """Make one; give it to `Drain.add_source`.

        `handoff` is asked at each hold whether the drain goes with one; it needs a
        `QueueState`. True where none follows, work is lost with the process.
        `remembers` so many ids that have been run.
        """
        self.name = name
        self.handoff = handoff
        self._clock = clock
        self._feeders = Feeders(self, is_fed)
        self._lines = Lines()
        self._ids = Ids(remembers)
        self._handlers = Handlers()
        self._runner = Runner(
            clock, ended=self._ended, loop_ends=self._loop_ends, lost=self._lost
        )
        self._overruns = 0
        self._overrun_by = ""
        self._intake_paused = False
        self._changed = Pulse()
        self._lock = threading.RLock()
        self.crossing = Crossing(
            self,
            self._lines,
            self._ids,
            self._handlers,
            self._lock,
            self._carry_on,
            clock,
        )
        """For its `QueueState`."""

    # What the app uses

    def handler(self, name: str) -> Callable[[H], H]:
        """Register a handler, so that its work can go over: `@queue.handler("x")`.

        Raises:
            Misuse: The name is taken, or there is none.
        """
        return self._handlers.under(name)

    def run(
        self,
        key: str,
        handler: str | Handler,
        *args: Any,
        id: str | None = None,
        lane: Lane = "application",
        schedule: str | None = None,
    ) -> asyncio.Future[Any]:
        """Accept a piece of work; awaits its result. Who gives up ends nothing.

        An `id` that is known is not run again: this gives the result of its piece.
        `schedule` makes it work of a clock, one piece at a time. A handler that is
        not registered, or an argument that JSON would change, keeps it here.

        Raises:
            IntakeRefused: The queue is held, and this is no work in flight;
                `IntakePaused` where the app has paused its intake.
            WorkStopped: The key is stopped.
            SlotOccupied: The last piece of the schedule is not over.
            HandlerUnknown, Misuse: Mend the call.
        """
        call, name = self._handlers.found(handler)
        given: object = key
        if not isinstance(given, str) or lane not in ("lifecycle", "application"):
            raise Misuse("key must be a text, and lane lifecycle or application")
        piece = Piece(
            source=self,
            id=self._ids.new() if id is None else checked(id),
            key=key,
            lane=lane,
            call=call,
            handler=name,
            args=args,
            is_named=id is not None,
            schedule=schedule,
            feeder=feeder(),
            loop=loop_for("run"),
            context=contextvars.copy_context(),
            started=self._clock(),
        )
        future: asyncio.Future[Any] = piece.loop.create_future()
        try:
            with self._lock:
                if self._ids.knows(piece.id):
                    join(future, piece.id, self._ids.find(piece.id))
                else:
                    self._accept(piece)
                    piece.futures.append(future)
        finally:
            self._carry_on()
        return future

    @property
    def current(self) -> Current:
        """The piece of work in which this is called.

        Raises:
            Misuse: It is called outside of one.
        """
        work = feeder()
        if not isinstance(work, Piece) or work.source is not self:
            raise Misuse(f"current is for handlers that {self.name} runs")
        return Current(self._lines, work)

    def is_occupied(self, schedule: str) -> bool:
        """Whether a piece of that schedule runs, waits, or is to go on elsewhere."""
        return self._lines.occupies(schedule)

    # Gates of the app

    def pause_intake(self) -> None:
        """Refuse new work; what is accepted goes on, and may start more."""
        with self._lock:
            self._intake_paused = True

    def resume_intake(self) -> None:
        """Undo `pause_intake`."""
        with self._lock:
            self._intake_paused = False

    async def when_idle(self, key: str | None = None) -> None:
        """Return at an instant at which no accepted work is left, of that key or any.

        Behind a `pause_intake` that is so until `resume_intake`.

        Raises:
            NotConverging: What was accepted goes on starting more.
        """
        overruns = self._overruns
        while True:
            beat = self._changed.count
            if self._is_idle(key):
                return
            if self._lines.starting:  # by somebody who had no loop
                self._carry_on()
            if self._overruns != overruns:
                raise NotConverging(self.name, self._overrun_by)
            await self._changed.after(beat)

    def pause(self, key: str | None = None) -> None:
        """Start nothing more of that key, or at all; what runs goes on."""
        with self._lock:
            self._lines.pause(key)

    def stop(self, key: str | None = None) -> None:
        """Give up what waits, and take nothing more; what runs goes on.

        What is on its way to another release is not given up.
        """
        with self._lock:
            given_up = self._lines.stop(key)
            for piece in given_up:
                self._ids.remove(piece)
        for piece in given_up:
            refuse(piece, partial(WorkStopped, piece.id, piece.key))
        self._carry_on()

    def snapshot(self) -> Snapshot:
        """Where everything stands, key by key."""
        with self._lock:
            return Snapshot.of(self._lines, self._intake)

    def resume(self, key: str | None = None) -> None:
        """Undo `pause` and `stop` of that key, or those of all at once."""
        with self._lock:
            self._lines.resume(key)
        self._carry_on()

    # What the drain asks

    def fed_by(self, is_fed: Callable[[], bool]) -> None:
        """Take work, while held, also where that says so."""
        self._feeders.add(is_fed)

    async def hold(self) -> None:
        """Refuse what work in flight does not offer; with a handoff, withdraw."""
        with self._lock:
            self.crossing.is_held = True
        goes = self.handoff() if callable(self.handoff) else self.handoff
        if goes and self.crossing.room is not None:
            await self.withdraw()
            return
        if goes:
            logger().warning("no QueueState", source=self.name, withdrawn=0)
        self._stay()  # where the drain before went with a handoff

    async def withdraw(self) -> None:
        """Let go over what can, while held; `release` takes it back. Idempotent.

        What has not started is withdrawn: who waits for it gets `ResultElsewhere`.
        What work in flight has started, and may wait for, ends with that work.

        Raises:
            Misuse: It is not held, or has no `QueueState`.
        """
        with self._lock:
            if not self.crossing.is_held or self.crossing.room is None:
                raise Misuse(f"{self.name} must be held and have a QueueState")
            waiting = self._lines.travel(self.crossing.room)
        for number, piece in enumerate(waiting, 1):
            piece.freeze()
            if number % BATCH == 0:
                await asyncio.sleep(0)
        with self._lock:
            self._lines.sift()
        self._carry_on()

    def count(self) -> Counts:
        """What is accepted and not over, save what goes over."""
        with self._lock:  # no piece is between its admission and its count
            return self._lines.counts

    @property
    def handed_back(self) -> int:
        """How many pieces wait for the next release."""
        return self._lines.leaving

    async def settled(self) -> None:
        """Return when nothing is left to be done here.

        Raises:
            NotConverging: Work in flight goes on starting more; ask again.
        """
        await self.when_idle()

    async def release(self) -> None:
        """Take work of anybody, and what has not gone over goes on here."""
        with self._lock:
            self.crossing.is_held = self.crossing.is_sealed = False
        self._stay()

    def running(self) -> Iterator[Running]:
        """What is waited for, oldest first: what runs, else the first of each key."""
        with self._lock:
            pieces = list(self._runner.running)
            if not pieces and any(self._lines.counts):
                pieces = [line.first[0] for line in self._lines if line.first]
        return (Running(piece.id, piece.started) for piece in pieces)

    # Inside

    @property
    def _intake(self) -> Literal["open", "paused", "held", "sealed"]:
        if self.crossing.is_sealed:
            return "sealed"
        if self.crossing.is_held:
            return "held"
        return "paused" if self._intake_paused else "open"

    def _accept(self, piece: Piece) -> None:
        self._check_intake(piece)
        piece.depth = depth(self._intake != "open")
        if piece.feeder is not None:
            piece.feeder.watchers.add(self._feeder_over)
        if self._lines.travels:
            piece.freeze()
        self._ids.enter(piece)
        self._lines.add(piece)
        if piece.depth > CHASES and piece.place != "withdrawn":
            self._overruns += 1
            self._overrun_by = piece.id

    def _check_intake(self, piece: Piece) -> None:
        if self.crossing.is_held and not self._feeders.may_feed():
            raise IntakeRefused(f"work {piece.id}")
        if self.crossing.is_sealed:
            raise IntakeRefused(f"work {piece.id}")
        if self._intake_paused and not self._feeders.are_own():
            raise IntakePaused(f"work {piece.id}")
        if self._lines.stops(piece.key):
            raise WorkStopped(piece.id, piece.key)
        if piece.schedule is not None and self._lines.occupies(piece.schedule):
            raise SlotOccupied(piece.schedule)

    def _stay(self) -> None:
        with self._lock:
            self._lines.stay()
        self._carry_on()

    def _is_idle(self, key: str | None) -> bool:
        if key is None:
            return self.count() == (0, 0)
        line = self._lines.find(key)
        return line is None or not line.is_busy

    def _ended(self, piece: Piece, outcome: Outcome) -> None:
        left = outcome.result
        with self._lock:
            if isinstance(left, Parked):
                piece.of = piece.of or piece.id
                piece.checkpoint = left.checkpoint
                piece.freeze()
                self._lines.park(piece)
            else:
                piece.feeder = None  # or a chain of work would keep all of it
                self._ids.end(piece, outcome)
                self._lines.end(piece)
        if not isinstance(left, Parked):
            publish(piece, outcome)
        self._carry_on()

    def _lost(self, piece: Piece) -> None:
        """Its loop was closed before it was called."""
        with self._lock:
            self._lines.starting.append(piece)
        self._carry_on()

    def _loop_ends(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what waits for a loop that has cancelled all of its tasks."""
        with self._lock:
            waiting = self._lines.give_up(self._lines, lambda p: p.loop is loop)
            for piece in waiting:
                self._ids.remove(piece)
        for piece in waiting:
            publish(piece, Outcome(is_cancelled=True))

    def _feeder_over(self) -> None:
        """What it has started need not end here any more."""
        if self._lines.travels:
            with self._lock:
                self._lines.sift_anew()
            self._carry_on()

    def _carry_on(self) -> None:
        """Do outside of the lock what the lines have decided."""
        while True:
            with self._lock:
                starting, self._lines.starting = self._lines.starting, []
                withdrawn, self._lines.withdrawn = self._lines.withdrawn, []
                withdrawn = [p for p in withdrawn if p.place == "withdrawn"]
            for piece in withdrawn:
                refuse(piece, partial(ResultElsewhere, piece.id, "next"))
            late = [piece for piece in starting if not self._runner.start(piece)]
            with self._lock:
                self._lines.starting += late
            if len(late) == len(starting):
                break
        self._changed.beat()
