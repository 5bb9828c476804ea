"""The one owner of a release's phase, ledger, sources and clock: `Drain`.

A drain goes in this order, because clocks make work and requests feed jobs:

1. at begin the gate closes and the holds of clock and pull sources are started;
2. requests and WebSockets reach zero while those sources settle;
3. push sources are held, and settle;
4. the release is closing: nobody at all is admitted any more;
5. the counters of the verdict are read.

The deadline is one monotonic instant. A timer applies it, and so does whoever
asks for the status.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from drainmw import settings as _settings
from drainmw.answers import ticket_factory
from drainmw.bodies import BeginRequest
from drainmw.contract import PROTOCOL, TIMEOUT, Blocker, Report, SourceReport, Status
from drainmw.core.drain import Lifecycle, Phase, Run
from drainmw.core.ledger import Ledger
from drainmw.errors import CountersInvalid, CountersUnknown
from drainmw.flag import Flag
from drainmw.log import logger
from drainmw.reporting import blockers, in_words, milliseconds
from drainmw.sources.base import Counts, WorkSource
from drainmw.sources.holds import Holds, Seen, running_of, together, total, whole
from drainmw.sources.tasks import TaskRegistry
from drainmw.text import failure_text, printable
from drainmw.tokens import Tokens

T = TypeVar("T")

RELEASE_PATIENCE = 0.5  # seconds a resume waits for its sources
VERDICTS = 3  # readings that may find a late counter before it counts
TAKE_OVER_PATIENCE = 0.05  # seconds for a drain that only lacked a loop to end
UNKNOWN_PAUSE = 0.1  # seconds before a silent source is asked again


class Drain:
    """One release: what it runs, and whether it is done.

    Every setting is a keyword, and a `DRAINMW_*` variable where it is not given.
    May be used from several event loops and threads.
    """

    begun: Flag
    """Set while a drain stands; await it in any loop, or read it."""
    ended: Flag
    """Set once that drain is `drained` or `failed`."""

    def __init__(
        self,
        *,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        """Read the settings; `ledger` and `clock` are for tests.

        Raises:
            SettingsError: Names each setting that cannot be used.
        """
        self.settings = _settings.load(**settings)
        self.tokens = Tokens(self.settings)
        self.begun = Flag()
        self.ended = Flag()
        gate = [0]
        self.ledger = ledger or Ledger(gate, new_ticket=ticket_factory(gate))
        self.ledger.wake = self._wake
        self.tasks = TaskRegistry(clock=clock, is_fed=lambda: not self.ledger.is_idle)
        self.clock = clock
        self._created = clock()
        self._lock = threading.Lock()
        self._lifecycle = Lifecycle(self.settings.revision)
        self._holds = Holds(self.settings.count_timeout)
        self._holds.add(self.tasks)
        self._stirred = Flag()
        self._home: asyncio.AbstractEventLoop | None = None
        self._work: list[asyncio.Task[None]] = []
        self._unknown: str | None = None

    # What the app uses

    @property
    def phase(self) -> Phase:
        """Where this release stands."""
        return self._lifecycle.phase

    @property
    def epoch(self) -> int:
        """Grows with every begin and every resume."""
        return self._lifecycle.epoch

    @property
    def remaining(self) -> float | None:
        """Seconds to the deadline, also negative; `None` outside a drain."""
        run = self._lifecycle.run
        return None if run is None else run.deadline - self.clock()

    def add_source(self, source: WorkSource) -> None:
        """Hold and count that source too, also where a drain has begun.

        Raises:
            Misuse: It is no source, or its name is taken.
        """
        self._holds.add(source)
        run = self._lifecycle.run
        if run is not None and not (source.intake == "push" and self._stands(run)):
            self._on_home(self._holds.start, run.epoch, source.intake)

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine as a job that the drain waits for.

        Raises:
            IntakeRefused: Push intake has closed; the coroutine is closed too.
        """
        return self.tasks.spawn(coro, name=name)

    # Transitions

    def cordon(self) -> int:
        """Say not ready, keep admitting; gives the epoch. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        return self._turn(self._lifecycle.cordon)

    def uncordon(self) -> int:
        """Take a cordon back; gives the epoch. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        return self._turn(self._lifecycle.uncordon)

    async def begin(self, request: BeginRequest) -> bool:
        """Begin a drain, or join it; true for a duplicate.

        When it returns, intake is closed and the holds of clock and pull
        sources have been started in this event loop.

        Raises:
            AlreadyStarted, DrainResumed, RevisionMismatch: Nothing changed.
        """
        with self._lock:
            duplicate = self._lifecycle.begin(request, self.clock())
            run = self._lifecycle.run
            if not duplicate:
                self._set_gate()
                self.begun.set()
        if run is None:
            raise AssertionError("an accepted begin has a run")
        if duplicate:
            await self._carry_on(run)
            return True
        self._log("drain begun", run)
        self._start(run)
        await asyncio.sleep(0)  # each hold gets to its first wait
        return False

    async def resume(self, nonce: str) -> int:
        """Serve again; retires the nonce and gives the new epoch.

        Sources are released side by side; one that takes longer than half a
        second goes on in the background and keeps readiness from saying yes.

        Raises:
            DrainNotFound, DrainResumed, DrainDetached: Nothing changed.
        """
        with self._lock:
            run = self._lifecycle.run
            retry = self._lifecycle.resume(nonce)
            epoch = self._lifecycle.epoch
            work = self._work
            if not retry:
                self.begun.clear()
                self.ended.clear()
                self._set_gate()
        if not retry and run is not None:
            self._log("drain resumed", run)
            await self._at_home(self._let_go(work, epoch))
        return epoch

    # Answers

    async def status(self, nonce: str | None) -> Status:
        """What the contract's status says of that nonce.

        Raises:
            DrainNotFound: No drain of that nonce stands here.
            CountersUnknown, CountersInvalid: A counter is not to be had.
        """
        self._expire()
        await self._carry_on(self._lifecycle.find(nonce))
        jobs, schedules = await self._counts()
        self._expire()
        with self._lock:
            run = self._lifecycle.find(nonce)
            phase = self._lifecycle.phase
            http, websocket = self._requests()
        answer: Status = {
            "protocol": PROTOCOL,
            "nonce": run.request.nonce,
            "sourceRevision": run.request.source_revision,
            "targetRevision": run.request.target_revision,
            "timeoutMs": run.request.timeout_ms,
            "status": _as_status(phase, run),
            "inFlight": {
                "http": http,
                "websocket": websocket,
                "jobs": jobs,
                "schedules": schedules,
            },
        }
        if run.failure is not None:
            answer["failure"] = run.failure
        return answer

    def not_ready(self) -> str | None:
        """Why no new traffic should come here; `None` where it may."""
        self._expire()
        phase = self.phase
        if phase is not Phase.SERVING:
            return str(phase)
        stuck = self._holds.stuck
        return f"not released: {', '.join(stuck)}" if stuck else None

    def warnings(self) -> list[str]:
        """What an operator should mend."""
        stuck = [f"source {name} is not released" for name in self._holds.stuck]
        return stuck if self.phase in (Phase.SERVING, Phase.CORDONED) else []

    async def report(self) -> Report:
        """Everything an operator wants to know. Unknown counters are null."""
        self._expire()
        seen = await self._holds.ask()
        now = self.clock()
        run = self._lifecycle.run
        request = run.request if run else None
        in_flight = self._in_flight(seen)
        remaining = self.remaining
        ledger = self.ledger
        return {
            "app": self.settings.app,
            "revision": self.settings.revision,
            "phase": str(self.phase),
            "epoch": self.epoch,
            "nonce": request.nonce if request else None,
            "sourceRevision": request.source_revision if request else None,
            "targetRevision": request.target_revision if request else None,
            "remainingMs": None if remaining is None else milliseconds(remaining),
            "inFlight": in_flight,
            "admittedTotal": ledger.admitted_total,
            "refusedTotal": ledger.refused_total,
            "lastAdmittedAgoMs": _ago(now, ledger.last_admitted),
            "lastRefusedAgoMs": _ago(now, ledger.last_refused),
            "failure": run.failure if run else None,
            "blockers": self.blockers(),
            "sources": [_source(answer) for answer in seen],
            "workers": [
                {
                    "pid": os.getpid(),
                    "ageMs": milliseconds(now - self._created),
                    "phase": str(self.phase),
                    "epoch": self.epoch,
                    "inFlight": in_flight,
                    "lastSeenMs": 0,
                    "unknown": False,
                }
            ],
            "warnings": self.warnings(),
        }

    def blockers(self) -> list[Blocker]:
        """The twenty oldest pieces of work in flight here."""
        return blockers(
            self.ledger, self._holds.running(), self.clock(), self.settings.redact_path
        )

    def _in_flight(self, seen: list[Seen]) -> dict[str, int | None]:
        """The four counters; null is one that somebody did not tell."""
        try:
            sources: Counts | None = total(seen)
        except Exception:
            sources = None
        return {
            **self.ledger.counts(),
            "jobs": sources.jobs if sources else None,
            "schedules": sources.schedules if sources else None,
        }

    # The run

    def _start(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        self._home = loop
        self._unknown = None
        self._holds.start(run.epoch, "clock", "pull")
        self._work = [
            loop.create_task(self._carry_out(run), name="drainmw drain"),
            loop.create_task(self._watch_deadline(run), name="drainmw deadline"),
            loop.create_task(self._narrate(run), name="drainmw narrator"),
        ]

    async def _carry_on(self, run: Run) -> None:
        """Take the drain over where the loop that ran it has been closed."""
        home = self._home
        if home is not None and home.is_closed() and self._stands(run):
            self._holds.abandon()
            self._start(run)
            await asyncio.wait(self._work[:1], timeout=TAKE_OVER_PATIENCE)

    async def _carry_out(self, run: Run) -> None:
        """Steps 2 to 5, again and again until there is a verdict."""
        late = 0
        try:
            while self._stands(run):
                await self._settle(run)
                if not self._close(run):
                    continue
                try:
                    sources = await self._holds.counts()
                except CountersInvalid:
                    sources = None
                except CountersUnknown as exc:
                    await self._wait_for_answer(run, exc)
                    continue
                late += 1
                self._unknown = None
                if self._conclude(run, sources, final=late == VERDICTS):
                    return
        except Exception as exc:
            self._fail(run, failure_text(exc))

    async def _settle(self, run: Run) -> None:
        """Wait until everything has been held and has settled."""
        holds = self._holds
        holds.start(run.epoch, "clock", "pull")
        await holds.held("clock", "pull")
        await together(self._requests_idle(), holds.settled("clock", "pull"))
        holds.start(run.epoch, "push")
        await holds.held("push")
        await holds.settled("push")
        await self._requests_idle()

    async def _requests_idle(self) -> None:
        """Return at an instant at which no request is in flight."""
        while not self.ledger.is_idle:
            self._stirred.clear()
            if not self.ledger.is_idle:
                await self._stirred

    def _close(self, run: Run) -> bool:
        """Admit nobody any more; false if a source was added that is not held."""
        with self._lock:
            if not self._stands(run) or not self._holds.all_held:
                return False
            self._lifecycle.close()
            self._set_gate()
        return True

    async def _wait_for_answer(self, run: Run, exc: CountersUnknown) -> None:
        self._unknown = exc.why or str(exc)
        with self._lock:
            if self._stands(run):
                self._lifecycle.reopen()
                self._set_gate()
        await asyncio.sleep(UNKNOWN_PAUSE)

    def _conclude(self, run: Run, sources: Counts | None, *, final: bool) -> bool:
        """Write the verdict; false to go back to waiting, for late counters.

        The clock is read before the counters of requests, which are read last.
        """
        with self._lock:
            if not self._stands(run):
                return True
            now = self.clock()
            counts = self._all_counts(sources)
            if counts is not None and any(counts.values()) and not final:
                self._lifecycle.reopen()
                self._set_gate()
                return False
            self._lifecycle.conclude(counts, now)
            self._set_gate()
        self._finish(run)
        return True

    def _all_counts(self, sources: Counts | None) -> dict[str, int] | None:
        if sources is None:
            return None
        try:
            http, websocket = self._requests()
        except CountersInvalid:
            return None
        return {"http": http, "websocket": websocket, **sources._asdict()}

    def _fail(self, run: Run, failure: str) -> None:
        with self._lock:
            if not self._stands(run):
                return
            self._lifecycle.fail(failure, self.clock())
            self._set_gate()
        self._finish(run)

    def _expire(self) -> None:
        """Apply the deadline. Cheap, and safe from any thread."""
        run = self._lifecycle.run
        if run is None or self._lifecycle.phase is not Phase.DRAINING:
            return
        errors = [*self._holds.errors, self._unknown or TIMEOUT]
        with self._lock:
            expired = self._lifecycle.expire(self.clock(), errors[0])
            self._set_gate()
        if expired:
            self._finish(run)

    async def _watch_deadline(self, run: Run) -> None:
        while self._stands(run):
            left = run.deadline - self.clock()
            if left <= 0:
                self._expire()
                return
            await asyncio.sleep(left)

    async def _narrate(self, run: Run) -> None:
        while self._stands(run):
            await asyncio.sleep(self.settings.report_interval)
            report = await self.report()
            self._log(
                "drain waiting",
                run,
                remaining_ms=report["remainingMs"],
                **report["inFlight"],
                blockers=in_words(report["blockers"]),
            )

    def _finish(self, run: Run) -> None:
        self.ended.set()
        self._on_home(_cancel, self._work)
        failure = {} if run.failure is None else {"failure": run.failure}
        self._log("drain ended", run, **failure)

    async def _let_go(self, work: list[asyncio.Task[None]], epoch: int) -> None:
        """Undo a drain; its holds are those of the next one, if that has begun."""
        _cancel(work)
        if self.epoch == epoch:
            await self._holds.release(RELEASE_PATIENCE)

    # Small things

    def _stands(self, run: Run) -> bool:
        lifecycle = self._lifecycle
        return lifecycle.run is run and lifecycle.phase is Phase.DRAINING

    def _turn(self, transition: Callable[[], None]) -> int:
        with self._lock:
            before = self._lifecycle.phase
            transition()
            self._set_gate()
            epoch = self._lifecycle.epoch
            after = self._lifecycle.phase
        if after is not before:
            logger().info(str(after), phase=str(after), epoch=epoch, **self._counters())
        return epoch

    def _set_gate(self) -> None:
        """Let admission follow the phase. Under the lock."""
        self.ledger.gate[0] = self._lifecycle.gate

    def _wake(self) -> None:
        if self.ledger.is_idle:
            self._stirred.set()

    def _requests(self) -> tuple[int, int]:
        counts = self.ledger.counts()
        return whole(counts["http"], "http"), whole(counts["websocket"], "websocket")

    async def _counts(self) -> Counts:
        seen = await self._holds.ask()
        try:
            return total(seen)
        except (CountersInvalid, CountersUnknown):
            raise
        except Exception as exc:
            who = [answer.entry.source.name for answer in seen if answer.error is exc]
            raise CountersUnknown(who, failure_text(exc)) from exc

    def _counters(self) -> dict[str, int]:
        """What can be counted without waiting for anybody."""
        return {**self.ledger.counts(), **self._holds.counted()._asdict()}

    def _log(self, event: str, run: Run, **facts: Any) -> None:
        request = run.request
        counters = {} if "http" in facts else self._counters()
        logger().info(
            event,
            phase=str(self.phase),
            epoch=self.epoch,
            nonce=request.nonce,
            source_revision=request.source_revision,
            target_revision=request.target_revision,
            **counters,
            **facts,
        )

    def _on_home(self, callback: Callable[..., None], *args: Any) -> None:
        """Call in the loop of the drain, if it still runs."""
        if self._home is None:
            return
        try:
            self._home.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # closed; what ran there has ended with it
            return

    async def _at_home(self, work: Coroutine[Any, Any, None]) -> None:
        home = self._home
        if home is not None and home.is_closed():
            self._holds.abandon()
            self._work = []
            home = None
        if home is None or home is asyncio.get_running_loop():
            await work
            return
        done = Flag()  # a loop that is busy lets go as soon as it can
        asyncio.run_coroutine_threadsafe(work, home).add_done_callback(
            lambda _: done.set()
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_PATIENCE):
                await done


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _as_status(phase: Phase, run: Run) -> Literal["draining", "drained", "failed"]:
    """A detached release has ended as its verdict says."""
    if phase is Phase.DRAINING:
        return "draining"
    return "drained" if run.failure is None else "failed"


def _ago(now: float, then: float | None) -> int | None:
    return None if then is None else milliseconds(now - then)


def _source(seen: Seen) -> SourceReport:
    entry = seen.entry
    source = entry.source
    error = entry.error or (failure_text(seen.error) if seen.error else None)
    return {
        "name": source.name,
        "intake": source.intake,
        "held": entry.held,
        "jobs": seen.counts.jobs if seen.counts else None,
        "schedules": seen.counts.schedules if seen.counts else None,
        "overdue": getattr(source, "overdue", None),
        "handedBack": getattr(source, "handed_back", None),
        "error": error,
        "running": [printable(piece.id)[:128] for piece in running_of(source)],
    }
