"""Holding many sources at once, and letting them go again.

Sources of one intake are held side by side. One that cannot be reached is asked
again, ever more slowly, until somebody stops asking; any other exception is
passed on at once. Nothing is released but by `release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.flag import Flag, own_cancellation_only, start_task
from drainmw.log import logger
from drainmw.sources.base import Counts, Halts, Intake, Running, WorkSource
from drainmw.sources.counting import (
    Seen,
    ask,
    counted,
    retrieve,
    running_of,
    total,
    waited,
)
from drainmw.sources.feeding import feeder
from drainmw.text import failure_text, kind_of

T = TypeVar("T")

RETRY_FIRST = 0.05  # seconds
RETRY_LAST = 1.0


@dataclass(slots=True)
class Entry:
    """One source and where it stands. Only `Holds` writes it."""

    source: WorkSource
    held: bool = False
    error: str | None = None
    touched: bool = False
    """A hold was started and no release has undone it since."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    holding: asyncio.Task[None] | None = None
    releasing: asyncio.Task[None] | None = None
    entered: Flag = field(default_factory=Flag)
    """The source has been called to hold, in the present drain."""


class Holds:
    """The sources of one release."""

    def __init__(self, count_timeout: float) -> None:
        self.entries: list[Entry] = []
        self.on_held: Callable[[], None] = lambda: None
        """Called whenever a source has been held."""
        self._count_timeout = count_timeout
        self._epoch = 0
        self._background: set[asyncio.Task[None]] = set()

    def add(self, source: WorkSource) -> Entry:
        """Register a source.

        Raises:
            Misuse: It lacks a part of the protocol, or its name is taken.
        """
        if isinstance(source, type) or not isinstance(source, WorkSource):
            raise Misuse(
                f"{kind_of(source)} is no work source: it needs name, intake, "
                "hold, count, settled and release; one that blocks goes into "
                "ThreadedSource"
            )
        name: object = source.name
        if not isinstance(name, str) or not name:
            raise Misuse(f"the name of {type(source).__name__} must be a text")
        if source.intake not in ("clock", "pull", "push"):
            raise Misuse(
                f"intake of {source.name} must be clock, pull or push, "
                f"not {source.intake!r}"
            )
        if any(entry.source.name == source.name for entry in self.entries):
            raise Misuse(
                f"there is a source or an owner of the name {source.name} already; "
                "add each once, under a name of its own"
            )
        entry = Entry(source)
        self.entries.append(entry)
        return entry

    def are_feeding(self) -> bool:
        """Whether this is called in a running piece of work of one of them."""
        work = feeder()
        return work is not None and any(e.source is work.source for e in self.entries)

    def start(self, epoch: int, *intakes: Intake) -> None:
        """Start the holds of those intakes, in that order, waiting for none."""
        self._epoch = epoch
        for entry in self._of(intakes):
            if entry.holding is None or (entry.holding.done() and not entry.held):
                if entry.releasing is not None:
                    entry.releasing.cancel()  # held anew; it need not let go first
                entry.entered.clear()
                entry.touched = True
                self._halt(entry)
                entry.holding = start_task(
                    self._hold(entry, epoch), name=f"drainmw hold {entry.source.name}"
                )
                entry.holding.add_done_callback(retrieve)

    def has_begun(self, intake: Intake) -> bool:
        """Whether a drain that stands has come to hold those: push sources last."""
        return intake != "push" or any(e.holding for e in self._of([intake]))

    async def held(self, *intakes: Intake) -> None:
        """Wait until the holds that were started have returned.

        Raises:
            Exception: The first that a hold raised, as soon as it raised it.
        """
        holding = [e.holding for e in self._of(intakes) if e.holding is not None]
        await together(*(asyncio.shield(task) for task in holding))

    async def entered(self, *intakes: Intake) -> None:
        """Wait until each of those sources has been called to hold."""
        for entry in self._of(intakes):
            await entry.entered

    async def settled(self, *intakes: Intake) -> None:
        """Wait until those sources hold no work any more.

        Raises:
            Exception: The first that a source raised, as soon as it raised it.
        """
        await together(
            *(self._insist(entry, entry.source.settled) for entry in self._of(intakes))
        )

    async def release(self, patience: float) -> None:
        """Undo every hold, and wait for that for so many seconds at most."""
        done = Flag()
        self.let_go(done.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await done

    def let_go(self, done: Callable[[], None]) -> None:
        """Start to undo every hold, side by side; `done` is called at the end.

        What has not answered goes on in the background and stands in the report
        meanwhile.
        """
        self._epoch = 0
        tasks = []
        for entry in reversed([e for e in self.entries if e.touched or e.holding]):
            if entry.holding is not None:
                entry.holding.cancel()
                entry.holding = None
            name = f"drainmw release {entry.source.name}"
            entry.releasing = start_task(self._release(entry), name=name)
            tasks.append(entry.releasing)
        watch = start_task(_when_done(tasks, done), name="drainmw release")
        self._background.add(watch)
        watch.add_done_callback(self._background.discard)

    def abandon(self) -> None:
        """Forget holds that were under way in a loop that has been closed."""
        for entry in self.entries:
            entry.holding = entry.releasing = None
            entry.lock = asyncio.Lock()

    @property
    def all_held(self) -> bool:
        """Every source is held."""
        return all(entry.held for entry in self.entries)

    def is_held(self, *intakes: Intake) -> bool:
        """Every source of those intakes is held."""
        return all(entry.held for entry in self._of(intakes))

    @property
    def stuck(self) -> list[str]:
        """The sources that a release has not let go of."""
        return [e.source.name for e in self.entries if e.touched]

    @property
    def errors(self) -> list[str]:
        """What keeps sources from answering, first registered first."""
        return [entry.error for entry in self.entries if entry.error is not None]

    async def ask(self) -> list[Seen]:
        """Ask every source for its count, side by side, each within its time."""
        return await ask(self.entries, self._count_timeout)

    async def counts(self) -> Counts:
        """The sum over all sources.

        Raises:
            CountersUnknown: Somebody gave no answer.
            CountersInvalid: Somebody reports what is not a whole number.
            Exception: What else a source raised.
        """
        return total(await self.ask())

    def counted(self) -> Counts | None:
        """The sum over all sources, for a log line; `None` if one has to be awaited."""
        return counted(self.entries)

    def running(self) -> list[Running]:
        """What the sources that can say so still run."""
        return [piece for e in self.entries for piece in running_of(e.source)]

    def _of(self, intakes: Iterable[Intake]) -> list[Entry]:
        return [e for i in intakes for e in self.entries if e.source.intake == i]

    def _halt(self, entry: Entry) -> None:
        """One that fails is noted: the hold tells what is to become of it."""
        if isinstance(entry.source, Halts):
            try:
                entry.source.halt()
            except Exception as exc:
                self._note(entry, exc)

    async def _hold(self, entry: Entry, epoch: int) -> None:
        async with entry.lock:
            entry.touched = True
            entry.entered.set()
            await self._insist(entry, entry.source.hold)
            entry.held = True
            self.on_held()
            if self._epoch == 0:  # resumed meanwhile, and nobody holds it anew
                await self._let_go(entry)

    async def _insist(self, entry: Entry, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask until there is an answer."""
        pause = RETRY_FIRST
        while True:
            try:
                with own_cancellation_only():
                    await _awaitable(entry, ask)
            except SourceUnavailable as exc:
                self._note(entry, exc)
            except Exception as exc:
                self._note(entry, exc)
                raise
            else:
                entry.error = None
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_LAST)

    async def _release(self, entry: Entry) -> None:
        async with entry.lock:
            await self._let_go(entry)

    async def _let_go(self, entry: Entry) -> None:
        try:
            await self._insist(entry, entry.source.release)
        except Exception as exc:
            self._note(entry, exc)
        else:
            entry.held = entry.touched = False
            entry.error = None

    def _note(self, entry: Entry, exc: Exception) -> None:
        error = failure_text(exc)
        if error != entry.error:
            logger().warning(
                "source failed", source=entry.source.name, error=error, held=entry.held
            )
        entry.error = error


async def _when_done(tasks: list[asyncio.Task[None]], done: Callable[[], None]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    done()


def _awaitable(entry: Entry, ask: Callable[[], Awaitable[None]]) -> Awaitable[None]:
    answer: object = ask()
    if inspect.isawaitable(answer):
        return answer
    step = getattr(ask, "__name__", "it")
    raise SourceError(f"{step} of {entry.source.name} must be a coroutine function")


async def together(*waits: Awaitable[T]) -> list[T]:
    """Wait for all; raise the first exception at once and stop the others."""
    tasks = [waited(wait) for wait in waits]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
