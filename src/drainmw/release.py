"""The one owner of a release's phase, ledger, sources and clock: `Drain`.

The lifecycle itself lies in a record, which the workers of a group share. What
happens here follows it: `follow` compares the record with what this worker does,
and starts, ends or leaves the course of a drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from drainmw import settings as _settings
from drainmw.bodies import (
    BeginRequest,
)
from drainmw.contract import (
    TIMEOUT,
    Blocker,
    Report,
    Status,
)
from drainmw.core.drain import Gate, Lifecycle, Phase, Run
from drainmw.core.ledger import GateByte, Ledger
from drainmw.course import Course
from drainmw.errors import (
    GroupError,
    SettingsError,
)
from drainmw.exchange import Exchange, ticket_factory
from drainmw.fetching import prepare
from drainmw.flag import Flag, running_loop
from drainmw.group import Group
from drainmw.handoffs import Handoffs
from drainmw.log import logger
from drainmw.owner import Owner
from drainmw.ownership import Ownership
from drainmw.record import LocalRecord, ReleaseRecord
from drainmw.reporting import Told, blockers, in_words, troubles
from drainmw.rollcall import RollCall
from drainmw.sockets import Socket
from drainmw.sources.base import Counts, Fed, WorkSource
from drainmw.sources.counting import Seen
from drainmw.sources.holds import Holds
from drainmw.sources.tasks import TaskRegistry
from drainmw.state import StateAdapter
from drainmw.statement import report_of, source_report, status_of
from drainmw.supervisor import (
    Supervisor,
    may_be_one_of_several,
    runtime_directory,
    supervisor,
)
from drainmw.tokens import Tokens
from drainmw.walker import Walker, Walkers

T = TypeVar("T")

RELEASE_PATIENCE = 0.5  # seconds a resume waits for its sources
ACKNOWLEDGE_PATIENCE = 0.2  # seconds a begin waits for the other workers
BIRTH_PATIENCE = 1.0  # seconds a worker that is born in a drain waits for its holds
JOIN_PAUSE = 1.0  # seconds between two tries to join
TAKE_OVER_PATIENCE = 0.05  # seconds for a drain that only lacked a loop to end


class Drain:
    """One release: what it runs, and whether it is done.

    Every setting is a keyword, and a `DRAINMW_*` variable where it is not given.
    May be used from several event loops and threads. Workers of one supervisor
    act as one; a process finds out whether it is one on its first use.
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
        chance: random.Random | None = None,
        observes: Supervisor | None = None,
        **settings: Any,
    ) -> None:
        """Read the settings; `ledger`, `clock` and `chance` are for tests.

        With `observes` it is no worker, but sees and drains those of that
        supervisor.

        Raises:
            SettingsError: Names each setting that cannot be used.
        """
        self.settings = _settings.load(**settings)
        self.tokens = Tokens(self.settings)
        self.begun = Flag()
        self.ended = Flag()
        self.clock = clock
        self.chance = chance or random.Random()
        """Where every hint and every place in a window comes from."""
        self.unjoined: str | None = None
        """Why this process could not join the group it seems to belong to."""
        several = observes is None and may_be_one_of_several()
        gate: GateByte = [Gate.UNJOINED if several else Gate.OPEN]
        self.new_exchange = ticket_factory(gate)
        self.new_exchange.call_at_start(self._response_started)
        self.ledger = ledger or Ledger(gate, new_ticket=self.new_exchange)
        self.ledger.wake = self._wake
        self.tasks = TaskRegistry(clock=clock, is_fed=self._is_fed)
        self._observes = observes
        self._joined = not several and observes is None
        self._next_try = 0.0
        self._gate_users: list[Callable[[GateByte], None]] = [self.new_exchange.rebind]
        self._lock = threading.RLock()
        self._holds = Holds(self.settings.count_timeout)
        self._holds.add(self.tasks)
        self.ownership = Ownership(
            self.settings,
            clock=clock,
            may_fire=lambda: self.ledger.gate[0] <= Gate.CORDONED,
            may_own=self._may_own,
            clocks_held=lambda: self._holds.is_held("clock"),
            is_observer=observes is not None,
        )
        self._holds.on_held = self.ownership.stir
        self._keep(LocalRecord(self.settings.revision, self.ledger.gate))
        self._course: Course | None = None
        self.handoffs = Handoffs(
            record=lambda: self._record,
            check_joined=self._check_joined,
            clock=clock,
            follow=self.follow,
            tell=self._tell,
        )
        self.open_to_siblings: Callable[[Path], None] | None = None
        """Serves what they ask, at that address; set by who can."""
        self.walkers = Walkers(self._new_walker)
        self._released = Flag()
        self._released.set()
        self._home: asyncio.AbstractEventLoop | None = None
        _drains.add(self)

    # What the app uses

    @property
    def phase(self) -> Phase:
        """Where this release stands."""
        return self._record.read()[1].phase

    @property
    def epoch(self) -> int:
        """Grows with every begin and every resume."""
        return self._record.read()[1].epoch

    @property
    def hands_over(self) -> bool:
        """Whether who began the drain that stands has said that a handoff follows.

        Then a source may leave what has not started to the next release.
        """
        run = self._record.read()[1].run
        return run is not None and run.request.handoff

    @property
    def sealed(self) -> Flag:
        """Set while the state that goes over is fixed; await it, or read it."""
        return self.handoffs.sealed

    @property
    def is_observer(self) -> bool:
        """No worker, but one who sees and drains those of a supervisor."""
        return self._observes is not None

    @property
    def revision(self) -> str | None:
        """Of this release; `None` where nobody has said it."""
        return self._record.read()[1].revision

    @property
    def deadline(self) -> float | None:
        """Of the drain, in monotonic seconds; `None` outside of one."""
        run = self._record.read()[1].run
        return None if run is None else run.deadline

    @property
    def remaining(self) -> float | None:
        """Seconds to the deadline, also negative; `None` outside a drain."""
        deadline = self.deadline
        return None if deadline is None else deadline - self.clock()

    def add_source(self, source: WorkSource) -> None:
        """Hold and count that source too, also where a drain has begun.

        Raises:
            Misuse: It is no source, or its name is taken.
        """
        self._holds.add(source)
        if isinstance(source, Fed):
            source.fed_by(self._is_fed)
        with contextlib.suppress(RuntimeError):  # no loop yet; it joins later
            asyncio.get_running_loop()
            self.join()
        self._rolls.settled = False
        self._rolls.stirred.beat()
        course = self._course
        if course is not None and (self.ended or self._holds.has_begun(source.intake)):
            self._at_home(course.hold, source.intake)

    def own(self, name: str = "schedules") -> Owner:
        """Who may run the schedules of that name, over all releases of this app.

        Ask it before each tick, or give it to a `Clock` or an `Owned` source. The
        same name gives the same owner.

        Raises:
            Misuse: It cannot be a name, or a source has it.
            SettingsError: Ownership cannot be noted where it is configured.
        """
        owner, is_new = self.ownership.own(name)
        if is_new:
            self.add_source(owner)
        return owner

    def _may_own(self) -> bool:
        """Whether this worker may run schedules, as far as its release goes."""
        if not self._joined or self.unjoined is not None:
            return False
        try:
            return self.phase in (Phase.SERVING, Phase.CORDONED)
        except GroupError:
            return False

    async def held_at_birth(self) -> None:
        """Where a drain stands, wait for the holds of clock and pull sources, for a
        moment at most: the app is about to start their engines."""
        if self._home is not running_loop():
            return
        with contextlib.suppress(Exception):  # a hold that fails fails the drain
            async with asyncio.timeout(BIRTH_PATIENCE):
                await self._holds.held("clock", "pull")

    def add_state(self, adapter: StateAdapter) -> None:
        """Hand that state over, or take it over; one adapter for each protocol.

        Raises:
            StateAdapterInvalid: It is not in its form, or its protocol is taken.
        """
        self.handoffs.adapters.add(adapter)
        prepare()
        with contextlib.suppress(RuntimeError):  # no loop yet; it joins later
            asyncio.get_running_loop()
            self._open_to_siblings()

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine as a job that the drain waits for.

        Raises:
            IntakeRefused: Push intake has closed; the coroutine is closed too.
        """
        task = self.tasks.spawn(coro, name=name)
        self.join()  # a worker that has work is one of its release
        return task

    # Transitions

    def cordon(self) -> int:
        """Say not ready, keep admitting; gives the epoch. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        return self._turn(Lifecycle.cordon)

    def uncordon(self) -> int:
        """Take a cordon back; gives the epoch. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        return self._turn(Lifecycle.uncordon)

    async def begin(self, request: BeginRequest) -> bool:
        """Begin a drain, or join it; true for a duplicate.

        When it returns, intake is closed in every worker, and the holds of clock
        and pull sources have been started in all that answer.

        Raises:
            AlreadyStarted, DrainResumed, RevisionMismatch: Nothing changed.
            GroupError: This worker cannot act for its siblings.
        """
        self._check_joined()
        now = self.clock()
        duplicate = self._record.transact(
            lambda lifecycle: lifecycle.begin(request, now)
        )
        self.follow()
        if duplicate:
            await self._carry_on()
        else:
            self._log("drain begun")
            if warning := self._too_patient():
                logger().warning("kill grace too short", reason=warning)
        if self.phase is Phase.DRAINING:
            await self._all_told()
        return duplicate

    async def _all_told(self) -> None:
        """Wait until every worker has started its holds, for a moment at most."""
        try:
            async with asyncio.timeout(ACKNOWLEDGE_PATIENCE):
                await self._holds.entered("clock", "pull")
                await self._rolls.acknowledged(self._record.read()[0])
        except TimeoutError:
            _, roll, _ = await self._rolls.overheard()
            self._log("begin not acknowledged", by=", ".join(roll.who))

    async def resume(self, nonce: str, *, force: bool = False) -> int:
        """Serve again; retires the nonce and gives the new epoch.

        Sources are released side by side; one that takes longer than half a
        second goes on in the background and keeps readiness from saying yes.
        `force` resumes also where the next release has acknowledged the state:
        then both have it.

        Raises:
            DrainNotFound, DrainResumed, DrainDetached, HandedOver: Nothing changed.
            GroupError: This worker cannot act for its siblings.
        """
        self._check_joined()

        def resume(lifecycle: Lifecycle) -> tuple[Run | None, bool, int]:
            run = lifecycle.run
            return run, lifecycle.resume(nonce, force=force), lifecycle.epoch

        run, retry, epoch = self._record.transact(resume)
        if not retry:
            self.follow()
            self._record.wake()
            self._record.forget()
            self._tell("drain resumed", epoch=epoch, **_named(run))
            if run is not None and (given := run.acknowledged):
                logger().warning(
                    "resume forced",
                    handed_over=", ".join(f"{g.protocol} by {g.nonce}" for g in given),
                    consequence="two releases have that state",
                )
        elif self._holds.stuck and self._released:
            self._let_go()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_PATIENCE):
                await self._released
        return epoch

    def detach(self, nonce: str | None = None) -> bool:
        """Make the end of a drain final; true if it ended well. Idempotent.

        From here on nothing opens again, and a resume is refused: the next release
        owns the work, or this process is about to end. Without `nonce` it is the
        drain that stands.

        Raises:
            DrainNotFound: No such drain; it was resumed meanwhile.
            PhaseConflict: It has not ended.
            GroupError: This worker cannot act for its siblings.
        """
        if nonce is not None:
            self._check_joined()

        def detach(lifecycle: Lifecycle) -> tuple[bool, bool]:
            before = lifecycle.phase
            run = lifecycle.run if nonce is None else lifecycle.find(nonce)
            lifecycle.detach("" if run is None else run.request.nonce)
            well = run is not None and run.failure is None
            return well, lifecycle.phase is not before

        well, is_news = self._record.transact(detach)
        self._record.wake()
        if is_news and nonce is not None:
            self._log("drain detached")
        return well

    # Answers

    async def status(self, nonce: str | None) -> Status:
        """What the contract's status says of that nonce.

        Raises:
            DrainNotFound: No drain of that nonce stands here.
            CountersUnknown, CountersInvalid: A counter is not to be had.
            GroupError: This worker cannot speak for its siblings.
        """
        self._check_joined()
        self._expire()
        self.follow()
        self._record.read()[1].find(nonce)
        await self._carry_on()
        _, roll, _ = await self._rolls.call()
        self._expire()
        _, lifecycle = self._record.read()
        run = lifecycle.find(nonce)
        return status_of(run, lifecycle.phase, roll)

    def not_ready(self) -> str | None:
        """Why no new traffic should come here; `None` where it may."""
        try:
            self._expire()
            phase = self.phase
        except GroupError as exc:
            return f"not one with its siblings: {exc}"
        if self.unjoined is not None:
            return f"not one with its siblings: {self.unjoined}"
        if phase is not Phase.SERVING:
            return str(phase)
        stuck = self._holds.stuck
        return f"not released: {', '.join(stuck)}" if stuck else None

    def warnings(self) -> list[str]:
        """What an operator should mend."""
        told = (self.unjoined, self.tokens.complaint, self._too_patient())
        found = [warning for warning in told if warning is not None]
        if self.phase in (Phase.SERVING, Phase.CORDONED):
            found += [f"source {name} is not released" for name in self._holds.stuck]
        found += self.ownership.warnings()
        return [*found, *self.handoffs.warnings()]

    def _too_patient(self) -> str | None:
        """Where the supervisor is less patient than the drain that stands, or than
        the one that a signal would begin."""
        grace, run = self.settings.kill_grace, self._record.read()[1].run
        if grace is None:
            return None
        own = self.settings.lame_duck + self.settings.timeout
        timeout = own if run is None else run.request.timeout_ms / 1000
        if timeout <= grace:
            return None
        return (
            f"this process is killed {grace:g} s after SIGTERM, and a drain may take "
            f"{timeout:g} s; work may be cut"
        )

    async def report(self) -> Report:
        """Everything an operator wants to know. Unknown counters are null."""
        with contextlib.suppress(GroupError):  # then it is among the warnings
            self._check_joined()
        self._expire()
        seen = [] if self.is_observer else await self._rolls.ask()
        _, roll, workers = await self._rolls.call("tell")
        _, lifecycle = self._record.read()
        return report_of(
            lifecycle,
            workers,
            roll,
            [self._told(seen), *self._record.told()],
            app=self.settings.app,
            now=self.clock(),
        )

    def blockers(self) -> list[Blocker]:
        """The twenty oldest pieces of work in flight in this worker."""
        return blockers(
            self.ledger, self._holds.running(), self.clock(), self.settings.redact_path
        )

    def _told(self, seen: list[Seen]) -> Told:
        """What this worker has to tell, whichever of them is asked."""
        return {
            "blockers": self.blockers(),
            "warnings": self.warnings(),
            "sources": [source_report(answer) for answer in seen],
        }

    # Joining the others

    def use_gate(self, rebind: Callable[[GateByte], None]) -> None:
        """Give the gate to who looks at it, now and whenever it is another."""
        self._gate_users.append(rebind)
        rebind(self.ledger.gate)

    def join(self) -> None:
        """Find out whether this process is one of several, and act as one.

        Called in an event loop before anything is admitted. Idempotent.
        """
        with self._lock:
            if self._joined or time.monotonic() < self._next_try:
                return
            self._joined = True
            try:
                group = self._group()
            except SettingsError as exc:  # nor can a sibling have joined there
                self._stay_alone(str(exc))
                return
            except (GroupError, OSError) as exc:
                self._stay_out(str(exc))
                return
            self.unjoined = None
            self._keep(group)
        loop = asyncio.get_running_loop()
        self._live_in(loop)
        self._rolls.attach(loop, group, self.follow, self._told)
        self._open_to_siblings()
        self.follow()

    def _open_to_siblings(self) -> None:
        """Let them ask for the state here, if there is any. In an event loop."""
        group = self._record
        if self.open_to_siblings is None or not len(self.handoffs.adapters):
            return
        if isinstance(group, Group) and group.own_address is not None:
            self._at_home(self.open_to_siblings, group.own_address)

    def _group(self) -> Group:
        try:
            boss = self._observes or supervisor()
        except GroupError as exc:
            raise SettingsError(str(exc)) from None
        if boss is None:
            raise SettingsError(
                "this process seems to be one of several, but has no parent"
            )
        return Group(
            runtime_directory(self.settings.runtime_dir),
            boss,
            name=self.settings.group,
            revision=self.settings.revision,
            observer=self._observes is not None,
        )

    def _stay_out(self, reason: str) -> None:
        """Refuse everything and try again: siblings may have joined, and drain."""
        self._joined = False
        if self._observes is not None:
            raise GroupError(reason)
        if reason != self.unjoined:
            logger().error("group not joined", reason=reason, refusing="all")
        self.unjoined = reason
        self._next_try = time.monotonic() + JOIN_PAUSE
        self._keep(LocalRecord(self.settings.revision, [Gate.UNJOINED]))

    def _stay_alone(self, reason: str) -> None:
        if self._observes is not None:
            self._joined = False  # no worker has come up yet; look again later
            raise GroupError(reason)
        self.unjoined = reason
        logger().error("group not joined", reason=reason, readiness=503)
        self._keep(LocalRecord(self.settings.revision, [Gate.OPEN]))

    def _keep(self, record: ReleaseRecord) -> None:
        """Take a record as the truth from here on."""
        self._record = record
        self._rolls = RollCall(
            record,
            self.ledger,
            self._holds,
            clock=self.clock,
            patience=self.settings.count_timeout,
            is_worker=self._observes is None,
        )
        self.ledger.gate = record.gate
        for rebind in self._gate_users:
            rebind(record.gate)

    def _check_joined(self) -> None:
        if not self._joined:
            self.join()
        if self.unjoined is not None:
            raise GroupError(self.unjoined)

    def forked(self) -> None:
        """Forget the siblings of the process that this one was forked from."""
        self._lock = threading.RLock()
        self.ownership.forked()
        if self._observes is None and may_be_one_of_several():
            self._joined = False
            self._course = None
            self._home = None
            self.walkers = Walkers(self._new_walker)
            self._keep(LocalRecord(self.settings.revision, [Gate.UNJOINED]))
            self.ledger.gate[0] = Gate.UNJOINED

    # Following the record

    def follow(self) -> None:
        """Do here what the record says. From an event loop; cheap if nothing is new."""
        with self._lock:
            _, lifecycle = self._record.read()
            self.handoffs.follow(lifecycle)
            run, course = lifecycle.run, self._course
            if course is not None and (run is None or run.epoch != course.run.epoch):
                self._leave(course)
                course = None
            if run is None:
                return
            if course is None:
                self._enter(run)
            if lifecycle.phase is not Phase.DRAINING and not self.ended:
                self._end(run)

    def _enter(self, run: Run) -> None:
        self.begun.set()
        self._course = course = Course(
            run,
            rolls=self._rolls,
            ledger=self.ledger,
            holds=self._holds,
            clock=self.clock,
            expire=self._expire,
            ended=self.follow,
            narrate=self._narrate,
        )
        if self._home is None or self._home.is_closed():
            self._live_in(asyncio.get_running_loop())
        self._at_home(course.start)
        sockets = list(self.ledger.entered["websocket"])
        loops = {s.loop for s in sockets if isinstance(s, Socket) and s.loop}
        here = running_loop()  # an app that begins by itself may be all it has seen
        self.walkers.begin(run, loops | {here} if here else loops)

    def _leave(self, course: Course) -> None:
        """A resume: everything here opens again."""
        self.begun.clear()
        self.ended.clear()
        self.walkers.end()
        course.stop()
        self._course = None
        self._let_go()

    def _let_go(self) -> None:
        """Release the sources, in the loop of the drain if there still is one."""
        home = self._home
        if home is None or home.is_closed():
            self._holds.abandon()
            self._live_in(asyncio.get_running_loop())
        self._released = Flag()  # a loop that is busy lets go as soon as it can
        self._at_home(self._holds.let_go, self._released.set)

    def _live_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._home = self._rolls.home = loop

    def _end(self, run: Run) -> None:
        self.ended.set()
        self.walkers.end()
        if self._course is not None:
            self._course.stop()
        facts: dict[str, str] = {}
        if run.failure is not None:
            facts = {"failure": run.failure, "blockers": in_words(self.blockers())}
        self._log("drain ended", **facts)

    async def _carry_on(self) -> None:
        """Take the drain over where the loop that ran it has been closed."""
        home, course = self._home, self._course
        if home is None or course is None or not home.is_closed():
            return
        self._holds.abandon()
        self._live_in(asyncio.get_running_loop())
        course.start()
        await course.first_steps(TAKE_OVER_PATIENCE)

    def _expire(self) -> None:
        """Apply the deadline. Cheap, and safe from any thread."""
        _, lifecycle = self._record.read()
        run, now = lifecycle.run, self.clock()
        if run is None or lifecycle.phase is not Phase.DRAINING or now < run.deadline:
            return
        unknown = self._course.unknown if self._course else None
        because = [*self._holds.errors, unknown or TIMEOUT][0]
        if self._record.transact(lambda newest: newest.expire(now, because)):
            self._record.wake("ask")
        self.follow()

    async def _narrate(self, run: Run) -> None:
        while self.begun and not self.ended:
            await asyncio.sleep(self.settings.report_interval)
            report = await self.report()
            self._log(
                "drain waiting",
                remaining_ms=report["remainingMs"],
                **report["inFlight"],
                blockers=in_words(report["blockers"]),
                **troubles(report["sources"]),
            )

    # Long-lived connections

    def _new_walker(self, run: Run) -> Walker:
        return Walker(
            run,
            self.settings,
            self.ledger,
            clock=self.clock,
            chance=self.chance,
            workers=1 + len(self._record.others()),
        )

    def _response_started(self, exchange: Exchange) -> None:
        """One has started while the gate was not open."""
        walker = self.walkers.note()
        if walker is not None:
            walker.add_response(exchange)

    # Small things

    def _turn(self, transition: Callable[[Lifecycle], None]) -> int:
        self._check_joined()

        def turn(lifecycle: Lifecycle) -> tuple[Phase, Phase, int]:
            before = lifecycle.phase
            transition(lifecycle)
            return before, lifecycle.phase, lifecycle.epoch

        before, after, epoch = self._record.transact(turn)
        if after is not before:
            self._record.wake()
            self._tell(str(after), epoch=epoch)
        return epoch

    def _is_fed(self) -> bool:
        """Whether work in flight may offer this to a push source."""
        return not self.ledger.is_idle or self._holds.are_feeding()

    def _wake(self) -> None:
        if self.ledger.is_idle:
            self._rolls.stirred.beat()

    def _counters(self) -> dict[str, int | None]:
        """What can be counted here without waiting for anybody; unknown is null."""
        counted = self._holds.counted()
        if counted is None and self.phase is Phase.DRAINED:
            counted = Counts()  # it would not be, were they not zero
        of_sources = (
            dict.fromkeys(Counts._fields) if counted is None else counted._asdict()
        )
        return {**self.ledger.counts(), **of_sources}

    def _log(self, event: str, **facts: Any) -> None:
        _, lifecycle = self._record.read()
        run = lifecycle.run
        if run is None:  # resumed this instant
            return
        self._tell(
            event,
            epoch=lifecycle.epoch,
            **_named(run),
            **facts,
        )

    def _tell(self, event: str, **facts: Any) -> None:
        """One event in the log; an app's logger that fails must stop no drain."""
        with contextlib.suppress(Exception):
            phase = self.phase
            counters = {} if "http" in facts else self._counters()
            level = logger().warning if phase is Phase.FAILED else logger().info
            level(event, phase=str(phase), **facts, **counters)

    def _at_home(self, callback: Callable[..., None], *args: Any) -> None:
        """Call in the loop of the drain, if it still runs; at once, if it is ours."""
        home = self._home
        if home is None or home.is_closed():
            return
        if home is running_loop():
            callback(*args)
            return
        with contextlib.suppress(RuntimeError):  # closed this instant
            home.call_soon_threadsafe(callback, *args)


_drains: weakref.WeakSet[Drain] = weakref.WeakSet()


def _forget_siblings() -> None:
    for drain in list(_drains):
        drain.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_siblings)


def _named(run: Run | None) -> dict[str, str]:
    """Which drain a line in the log is about."""
    if run is None:
        return {}
    return {
        "nonce": run.request.nonce,
        "source_revision": run.request.source_revision,
        "target_revision": run.request.target_revision,
    }
