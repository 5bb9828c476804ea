"""What this worker says of itself, and what it hears of the others.

A call asks every live worker to publish anew and waits, within its time, until
all have. Who has not by then is unknown. A worker that is alone hears itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from drainmw.core.ledger import Ledger
from drainmw.core.roster import Roll, Worker, fold
from drainmw.errors import CountersInvalid, CountersUnknown
from drainmw.flag import Pulse, start_task
from drainmw.record import Hint, Record
from drainmw.reporting import Told
from drainmw.sources.counting import Seen, total, whole
from drainmw.sources.holds import Holds
from drainmw.text import failure_text

AGAIN = 0.03  # seconds until who has not answered is asked again: its queue was full


Tell = Callable[[list[Seen]], Told]
"""What this worker tells for a report, after what its sources have answered."""


class Listener(Protocol):
    """A record that others hint at: a group's."""

    def fileno(self) -> int: ...

    def hints(self) -> dict[str, str]: ...

    def answer(self, address: str) -> None: ...


class RollCall:
    """This worker's voice and ears."""

    def __init__(
        self,
        record: Record,
        ledger: Ledger,
        holds: Holds,
        *,
        clock: Callable[[], float],
        patience: float,
        is_worker: bool = True,
    ) -> None:
        self.stirred = Pulse()
        """Beats whenever something may have changed, here or elsewhere."""
        self.settled = False
        """Everything here is held and has ended; written by the course."""
        self.settled_after = 0
        """How much had been admitted by then: who comes later may start more."""
        self.record = record
        self.home: asyncio.AbstractEventLoop | None = None
        """The loop of the drain, in which sources are called."""
        self._ledger = ledger
        self._holds = holds
        self._clock = clock
        self._patience = patience
        self._is_worker = is_worker
        self._born = clock()
        self._replies: set[asyncio.Task[None]] = set()

    @property
    def is_settled(self) -> bool:
        """Settled, idle, and nobody has been admitted since."""
        unchanged = self._ledger.admitted_total == self.settled_after
        return self.settled and unchanged and self._ledger.is_idle

    async def speak(self, told: Tell | None = None) -> Worker:
        """Publish what runs here, as of the newest generation; before it, what is
        told of it."""
        worker, answers = await self._own()
        if told is not None:
            self.record.tell(told(answers))
        self.record.publish(worker)
        return worker

    async def call(self, hint: Hint = "ask") -> tuple[int, Roll, list[Worker]]:
        """Ask everybody: the generation they answered for, and what they said."""
        since = self._clock()
        until = since + self._patience
        asked = 0
        while True:
            beats = self.stirred.count
            newest, _ = self.record.read()
            if asked != newest:  # who answered for an older one is asked again
                self.record.wake(hint)
                asked = newest
            generation, roll, workers = await self.overheard(since)
            left = until - self._clock()
            if not roll.unknown or left <= 0:
                return generation, roll, workers
            if self._is_worker and not workers[0].has_spoken(generation):
                continue  # the record has moved on while we spoke
            if len(workers) == self._is_worker:
                return generation, roll, workers
            if not await self._stirred(beats, min(left, AGAIN)):
                asked = 0

    async def acknowledged(self, generation: int) -> None:
        """Return once every other live worker has spoken of that generation."""
        self.record.wake("ask")
        while True:
            beats = self.stirred.count
            if all(w.has_spoken(generation) for w in self.record.others()):
                return
            if not await self._stirred(beats, AGAIN):
                self.record.wake("ask")

    async def _stirred(self, beats: int, within: float) -> bool:
        """Wait for a beat after that count; false if none came in time."""
        try:
            async with asyncio.timeout(within):
                await self.stirred.after(beats)
        except TimeoutError:
            return False
        return True

    async def overheard(self, since: float = 0.0) -> tuple[int, Roll, list[Worker]]:
        """What has been said so far, without asking anybody else."""
        workers = [await self.speak()] if self._is_worker else []
        workers += self.record.others()
        generation, _ = self.record.read()
        return generation, fold(workers, generation, since), workers

    # Ears

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        follow: Callable[[], None],
        told: Tell,
    ) -> None:
        """Listen for hints in that loop; `follow` applies a new record here."""

        def hear() -> None:
            asked = listener.hints()
            follow()
            self.stirred.beat()
            reply = start_task(self._reply(listener, asked, told), name="drainmw reply")
            self._replies.add(reply)
            reply.add_done_callback(self._replies.discard)

        loop.add_reader(listener.fileno(), hear)

    async def _reply(
        self,
        listener: Listener,
        asked: dict[str, str],
        told: Tell,
    ) -> None:
        await self.speak(told if "tell" in asked.values() else None)
        for address in asked:
            listener.answer(address)

    # Voice

    async def _own(self) -> tuple[Worker, list[Seen]]:
        # What it says is as old as the first look; only that is promised.
        published = self._clock()
        generation, _ = self.record.read()
        # Requests feed jobs: those in flight while jobs are read count, too.
        before = self._ledger.counts()
        answers = await self.ask()
        counts, trouble = self._counted(before, answers)
        complete = self._holds.all_held and len(answers) == len(self._holds.entries)
        own = Worker(
            pid=os.getpid(),
            born=self._born,
            published=published,
            generation=generation,
            settled=complete and self.is_settled,
            counts=counts,
            valid=trouble.valid,
            who=trouble.who,
            error=trouble.error,
            fatal=trouble.fatal,
            admitted=self._ledger.admitted_total,
            refused=self._ledger.refused_total,
            last_admitted=self._ledger.last_admitted or 0.0,
            last_refused=self._ledger.last_refused or 0.0,
        )
        return own, answers

    async def ask(self) -> list[Seen]:
        """Ask the sources in the loop of the drain, which is theirs."""
        home = self.home
        if home is None or home.is_closed() or home is asyncio.get_running_loop():
            return await self._holds.ask()
        asked = asyncio.run_coroutine_threadsafe(self._holds.ask(), home)
        try:
            async with asyncio.timeout(2 * self._patience):
                return await asyncio.wrap_future(asked)
        except TimeoutError as exc:
            return [Seen(entry, None, exc) for entry in self._holds.entries]

    def _counted(
        self, before: dict[str, int], answers: list[Seen]
    ) -> tuple[tuple[int | None, ...], _Trouble]:
        """The four counters, and what is wrong with them."""
        trouble = _Trouble()
        jobs: int | None = None
        schedules: int | None = None
        try:
            jobs, schedules = total(answers)
        except CountersInvalid as exc:
            trouble = _Trouble(valid=False, who=exc.who)
        except CountersUnknown as exc:
            trouble = _Trouble(who=", ".join(exc.who), error=exc.why)
        except Exception as exc:
            names = [seen.entry.source.name for seen in answers if seen.error is exc]
            text = failure_text(exc)
            trouble = _Trouble(who=", ".join(names), error=text, fatal=True)
        found: list[int | None] = []
        for kind, number in self._ledger.counts().items():
            try:
                found.append(max(whole(before[kind], kind), whole(number, kind)))
            except CountersInvalid:
                found.append(None)
                trouble = _Trouble(valid=False, who=kind)
        return (*found, jobs, schedules), trouble


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What keeps this worker from telling its counters."""

    valid: bool = True
    who: str = ""
    error: str | None = None
    fatal: bool = False
