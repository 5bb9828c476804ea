"""One drain as this worker carries it out.

1. At begin the gate has closed and the holds of clock and pull sources start.
2. Requests and WebSockets reach zero while those sources settle.
3. Push sources are held, and settle; this worker says so.
4. Once every live worker has said so the release is closing: nobody at all is
   admitted any more.
5. Every live worker acknowledges that with its counters, and the verdict is
   written, once, by whoever comes first. A counter that is not zero after all
   sends everybody back to waiting.

There is no leader: each worker runs the same course and watches the same
deadline, so the one that took the begin may die.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from drainmw.core.drain import Lifecycle, Phase, Run
from drainmw.core.ledger import Ledger
from drainmw.core.roster import Roll
from drainmw.errors import GroupError, Superseded
from drainmw.flag import start_task
from drainmw.rollcall import RollCall
from drainmw.sources.base import Intake
from drainmw.sources.holds import Holds, together
from drainmw.text import failure_text

VERDICTS = 3  # readings that may find a late counter before it counts
SILENCE = 0.1  # seconds before who has not answered is asked again
PATROL = 0.25  # seconds between two looks at who lives, while others are waited for


class Course:
    """The tasks of one drain. Start it in the loop that is to carry them."""

    def __init__(
        self,
        run: Run,
        *,
        rolls: RollCall,
        ledger: Ledger,
        holds: Holds,
        clock: Callable[[], float],
        expire: Callable[[], None],
        ended: Callable[[], None],
        narrate: Callable[[Run], Coroutine[Any, Any, None]],
    ) -> None:
        """`expire` applies the deadline, `ended` looks at a new verdict."""
        self.run = run
        self.unknown: str | None = None
        """What somebody who does not answer has said, if anything."""
        self._rolls = rolls
        self._record = rolls.record
        self._ledger = ledger
        self._holds = holds
        self._clock = clock
        self._expire = expire
        self._ended = ended
        self._narrate = narrate
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the holds of clock and pull sources, and the tasks.

        Nothing where it was resumed before this loop came to it.
        """
        loop = asyncio.get_running_loop()
        self.loop = loop
        if not self._is_newest():
            return
        self._rolls.settled = False
        self._holds.start(self.run.epoch, "clock", "pull")
        if not self._stands():  # born after the verdict: only hold
            self._holds.start(self.run.epoch, "push")
            return
        self._tasks = [
            start_task(self._carry_out(), name="drainmw drain"),
            start_task(self._watch_deadline(), name="drainmw deadline"),
            start_task(self._narrate(self.run), name="drainmw narrator"),
        ]

    def hold(self, intake: Intake) -> None:
        """Hold a source that has come late, unless it was resumed meanwhile."""
        if self._is_newest():
            self._holds.start(self.run.epoch, intake)

    def stop(self) -> None:
        """End the tasks; what is held stays held. From any thread."""
        tasks, self._tasks = self._tasks, []
        if self.loop is None or self.loop.is_closed():
            return
        for task in tasks:
            with contextlib.suppress(RuntimeError):  # closed this instant
                self.loop.call_soon_threadsafe(task.cancel)

    async def first_steps(self, patience: float) -> None:
        """Let a drain end that only lacked a loop to end in."""
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=patience)

    # The steps

    async def _carry_out(self) -> None:
        self._late = self._admitted = 0
        while True:
            try:
                while self._stands():
                    await self._step()
                return
            except GroupError as exc:  # somebody was stopped who has the lock
                self.unknown = str(exc)
                await asyncio.sleep(SILENCE)

    async def _step(self) -> None:
        """From waiting to a verdict, or back to waiting."""
        try:
            await self._settle()
            if not await self._all_settled() or not self._close():
                return
            generation, roll, workers = await self._rolls.call()
            if roll.fatal and roll.error:
                self._fail(roll.error)
            elif roll.unknown and roll.valid:
                await self._wait_for_answer(roll, generation)
            elif roll.is_idle and not roll.settled:
                self._reopen(generation)  # somebody has come who may still start
            else:
                admitted = sum(worker.admitted for worker in workers)
                if admitted != self._admitted:  # nobody is late who came meanwhile
                    self._admitted, self._late = admitted, 0
                self._late += 1
                heard = {worker.pid for worker in workers}
                self._conclude(roll, generation, heard, final=self._late == VERDICTS)
        except GroupError:
            raise
        except Exception as exc:
            self._fail(failure_text(exc))

    async def _settle(self) -> None:
        """Steps 2 and 3, here."""
        holds, epoch = self._holds, self.run.epoch
        self._rolls.settled = False
        holds.start(epoch, "clock", "pull")
        await holds.held("clock", "pull")
        await together(self._requests_idle(), holds.settled("clock", "pull"))
        holds.start(epoch, "push")
        await holds.held("push")
        while True:
            await holds.settled("push")
            if self._ledger.is_idle:
                break
            await self._requests_idle()  # `admit` let somebody in, who may spawn
        self._rolls.settled_after = self._ledger.admitted_total
        self._rolls.settled = holds.all_held

    async def _requests_idle(self) -> None:
        """Return at an instant at which no request is in flight here."""
        stirred = self._rolls.stirred
        while True:
            beats = stirred.count
            if self._ledger.is_idle:
                return
            await stirred.after(beats)

    async def _all_settled(self) -> bool:
        """Wait until every live worker has settled; false if we have not."""
        told = 0
        while self._stands() and self._rolls.is_settled:
            beats = self._rolls.stirred.count
            if not self._record.others():
                return True
            generation, roll, _ = await self._rolls.overheard()
            if told != generation:  # the others wait for us as we wait for them
                self._record.wake()
                told = generation
            if roll.settled:
                return True
            try:
                async with asyncio.timeout(PATROL):
                    await self._rolls.stirred.after(beats)
            except TimeoutError:
                self._record.wake("ask")
        return False

    def _close(self) -> bool:
        """Step 4; false where the drain has ended or a new source is not held."""
        if not self._holds.all_held:
            return False
        if is_closing(self._record.read()[1], self.run):  # somebody was first
            return True

        def close(lifecycle: Lifecycle) -> bool:
            if not stands(lifecycle, self.run):
                return False
            lifecycle.close()
            return True

        return self._record.transact(close)

    async def _wait_for_answer(self, roll: Roll, generation: int) -> None:
        self.unknown = roll.error or f"no answer from {', '.join(roll.who)}"
        self._reopen(generation)
        await asyncio.sleep(SILENCE)

    def _conclude(
        self, roll: Roll, generation: int, heard: set[int], *, final: bool
    ) -> None:
        """Step 5; late counters, or somebody new, lead back to waiting."""
        now = self._clock()
        counts = roll.known if roll.valid else None
        if counts is not None and not roll.is_idle and not final:
            self._reopen(generation)
            return
        self.unknown = None

        def conclude(lifecycle: Lifecycle) -> None:
            if not is_closing(lifecycle, self.run):  # somebody has reopened it
                return
            # Who is born takes the same lock, and from now on finds a verdict.
            if {worker.pid for worker in self._record.others()} <= heard:
                lifecycle.conclude(counts, now)

        if self._record.read()[0] != generation:  # without waiting for the lock
            return
        with contextlib.suppress(Superseded):
            self._record.transact(conclude, only_at=generation)
            self._record.wake("ask")
            self._ended()

    def _reopen(self, generation: int) -> None:
        def reopen(lifecycle: Lifecycle) -> None:
            if stands(lifecycle, self.run):
                lifecycle.reopen()

        with contextlib.suppress(Superseded):
            self._record.transact(reopen, only_at=generation)
            self._record.wake()

    def _fail(self, failure: str) -> None:
        def fail(lifecycle: Lifecycle) -> None:
            if stands(lifecycle, self.run):
                lifecycle.fail(failure, self._clock())

        self._record.transact(fail)
        self._record.wake("ask")
        self._ended()

    async def _watch_deadline(self) -> None:
        while self._stands():
            left = self.run.deadline - self._clock()
            if left > 0:
                await asyncio.sleep(left)
                continue
            try:
                self._expire()
            except GroupError:  # asked again until it is written
                await asyncio.sleep(SILENCE)

    def _is_newest(self) -> bool:
        """Whether it has not been resumed, ended or not."""
        run = self._record.read()[1].run
        return run is not None and run.epoch == self.run.epoch

    def _stands(self) -> bool:
        return stands(self._record.read()[1], self.run)


def stands(lifecycle: Lifecycle, run: Run) -> bool:
    """Whether that very drain is still waited for."""
    current = lifecycle.run
    return (
        current is not None
        and current.epoch == run.epoch
        and lifecycle.phase is Phase.DRAINING
    )


def is_closing(lifecycle: Lifecycle, run: Run) -> bool:
    """Whether it is, and the counters of its verdict are being read."""
    current = lifecycle.run
    return stands(lifecycle, run) and current is not None and current.closing
