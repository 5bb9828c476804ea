"""Calls the handlers of keyed work, each in its event loop, and tells who waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from drainmw.errors import Misuse, ResultElsewhere
from drainmw.flag import running_loop
from drainmw.sources.feeding import current
from drainmw.sources.lines import Lines
from drainmw.sources.pieces import LEAVING, Outcome, Parked, Piece


class Runner:
    """What runs of one queue."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        ended: Callable[[Piece, Outcome], None],
        loop_ends: Callable[[asyncio.AbstractEventLoop], None],
        lost: Callable[[Piece], None],
    ) -> None:
        """`ended` and `loop_ends` are called in the loop of a piece: once it has
        returned or failed, and before that where the loop has cancelled all it has.
        `lost` is called in any thread, where a piece is to be started anew."""
        self.running: dict[Piece, None] = {}
        """Oldest first."""
        self._clock = clock
        self._ended = ended
        self._loop_ends = loop_ends
        self._lost = lost

    def start(self, piece: Piece) -> bool:
        """Call a piece, from any thread; here if its own loop is no more. False if
        there is no loop here either."""
        here = running_loop()
        if piece.loop is not here:
            call = _Call(piece, self._call, self._lost)
            try:
                piece.loop.call_soon_threadsafe(call)
                return True
            except RuntimeError:  # it has been closed
                call.is_over = True
                if here is None:
                    return False
        piece.loop = here
        self._call(piece)
        return True

    def _call(self, piece: Piece) -> None:
        piece.in_flight = piece.has_run = True
        piece.was_asked = False
        piece.started = self._clock()
        self.running[piece] = None
        piece.context.run(current.set, piece)
        piece.task = piece.loop.create_task(
            _result(piece), name=f"drainmw work {piece.id}", context=piece.context
        )
        piece.task.add_done_callback(partial(self._done, piece))

    def _done(self, piece: Piece, task: asyncio.Task[Any]) -> None:
        del self.running[piece]
        piece.task = None
        piece.over()
        if task.cancelled():
            if task.cancelling() and _is_ending(piece.loop):
                self._loop_ends(piece.loop)
            outcome = Outcome(is_cancelled=True)
        elif (failure := task.exception()) is not None:
            outcome = Outcome(failure=failure)
        else:
            outcome = Outcome(task.result())
        self._ended(piece, outcome)


class _Call:
    """A piece on its way to its loop, which drops this where it is closed before."""

    __slots__ = ("_call", "_lost", "_piece", "is_over")

    def __init__(
        self, piece: Piece, call: Callable[[Piece], None], lost: Callable[[Piece], None]
    ) -> None:
        self._piece = piece
        self._call = call
        self._lost = lost
        self.is_over = False

    def __call__(self) -> None:
        self.is_over = True
        self._call(self._piece)

    def __del__(self) -> None:
        if not self.is_over:
            self._lost(self._piece)


class Current:
    """The piece of work in which a handler runs, as the handler sees it."""

    __slots__ = ("_lines", "_piece")

    def __init__(self, lines: Lines, piece: Piece) -> None:
        self._lines = lines
        self._piece = piece

    @property
    def id(self) -> str:
        """Its id; another one in the next release, if it was parked."""
        return self._piece.id

    @property
    def key(self) -> str:
        """Its key."""
        return self._piece.key

    @property
    def checkpoint(self) -> Any:
        """Where it is to go on, as it was parked; `None` from the start."""
        return self._piece.checkpoint

    @property
    def must_park(self) -> bool:
        """Whether it should return `park(…)` at its next safe boundary.

        Nothing is done to one that does not: the drain waits for it.
        """
        piece = self._piece
        asks = piece.place == "running" and self._lines.asks(piece)
        piece.was_asked = piece.was_asked or asks
        return asks

    def park(self, checkpoint: Any = None) -> Any:
        """What to return so that the handler is called again with that checkpoint.

        That is in the next release, or here: after a resume, or at once where the
        checkpoint is not JSON or has no room. Who waits for the result waits on.
        """
        return Parked(checkpoint)


async def _result(piece: Piece) -> Any:
    result = piece.call(*piece.args)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Parked) and not piece.was_asked:
        raise Misuse("a handler may park once must_park has said so")
    return result


def _is_ending(loop: asyncio.AbstractEventLoop) -> bool:
    """As `asyncio.run` ends one: by a cancellation of all that it has left."""
    return all(task.cancelling() for task in asyncio.all_tasks(loop))


# Who waits for a result


def join(future: asyncio.Future[Any], id: str, found: Piece | Outcome | None) -> None:
    """Tell one more, now or later, of a piece whose id is known already."""
    if not isinstance(found, Piece):
        deliver(future, found or ResultElsewhere(id, "previous"))
    elif found.place in LEAVING:
        deliver(future, ResultElsewhere(id, "next"))
    else:
        found.futures.append(future)


def publish(piece: Piece, outcome: Outcome) -> None:
    """Tell everybody who waits how it ended; a failure that nobody hears of is
    told to the event loop, as that of a task is."""
    futures, piece.futures = piece.futures, []
    is_heard = any(not future.done() for future in futures)
    for future in futures:
        deliver(future, outcome)
    if outcome.failure is not None and not is_heard:
        piece.loop.call_exception_handler(
            {"message": f"work {piece.id} failed", "exception": outcome.failure}
        )


def refuse(piece: Piece, refusal: Callable[[], Exception]) -> None:
    """Tell everybody who waits that its result does not come; none need look."""
    futures, piece.futures = piece.futures, []
    for future in futures:
        deliver(future, refusal())


def deliver(future: asyncio.Future[Any], outcome: Outcome | Exception) -> None:
    """Set a future in its own loop, where that still runs."""
    if future.get_loop() is running_loop():
        _set(future, outcome)
        return
    with suppress(RuntimeError):  # closed; nobody waits there
        future.get_loop().call_soon_threadsafe(_set, future, outcome)


def _set(future: asyncio.Future[Any], outcome: Outcome | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # so that nobody complains of one that is not looked at
    elif outcome.is_cancelled:
        future.cancel()
    elif outcome.failure is not None:
        future.set_exception(outcome.failure)
    else:
        future.set_result(outcome.result)
