"""The phase table: where a release stands, and what may happen to it there.

Everything that affects a phase lives in this file. Time comes in as `now`
(monotonic seconds), nothing here waits, locks or logs. A pair of phase and
event that the table lacks is refused and changes nothing. Whether work is
admitted follows from the phase: `Lifecycle.gate` is derived, never set.

The life of one drain is a `Run`. It is `draining` from the accepted begin;
`closing` is its last step, in which nobody is admitted any more while the
counters of the verdict are read. `drained` and `failed` are final for the
nonce; only a resume ends them, and it retires the nonce for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from drainmw.bodies import BeginRequest
from drainmw.contract import COUNTERS_INVALID, FAILURE_MAXIMUM, NOT_IDLE, TIMEOUT
from drainmw.core.handoff import Given, Handoffs, Recipient
from drainmw.errors import (
    AlreadyStarted,
    DrainDetached,
    DrainNotFound,
    DrainResumed,
    HandedOver,
    PhaseConflict,
    RevisionMismatch,
)


class Phase(StrEnum):
    """Where this release stands."""

    SERVING = "serving"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    DETACHED = "detached"


class Event(StrEnum):
    """What can happen to a release."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    BEGIN = "begin"
    IDLE = "idle"
    FAIL = "fail"
    RESUME = "resume"
    SEAL = "seal"
    DETACH = "detach"


TABLE: Mapping[tuple[Phase, Event], Phase] = {
    (Phase.SERVING, Event.CORDON): Phase.CORDONED,
    (Phase.SERVING, Event.UNCORDON): Phase.SERVING,
    (Phase.SERVING, Event.BEGIN): Phase.DRAINING,
    (Phase.CORDONED, Event.CORDON): Phase.CORDONED,
    (Phase.CORDONED, Event.UNCORDON): Phase.SERVING,
    (Phase.CORDONED, Event.BEGIN): Phase.DRAINING,
    (Phase.DRAINING, Event.IDLE): Phase.DRAINED,
    (Phase.DRAINING, Event.FAIL): Phase.FAILED,
    (Phase.DRAINING, Event.RESUME): Phase.SERVING,
    (Phase.DRAINED, Event.RESUME): Phase.SERVING,
    (Phase.DRAINED, Event.SEAL): Phase.DRAINED,
    (Phase.DRAINED, Event.DETACH): Phase.DETACHED,
    (Phase.FAILED, Event.RESUME): Phase.SERVING,
    (Phase.FAILED, Event.DETACH): Phase.DETACHED,
    (Phase.DETACHED, Event.DETACH): Phase.DETACHED,
}


class Gate(IntEnum):
    """The one number that admission looks at; 0 is the fast path."""

    OPEN = 0
    CORDONED = 1
    DRAINING = 2
    """Refused, save what `admit` lets finish."""
    CLOSED = 3
    UNJOINED = 4
    """This process may be one of several and has not looked yet."""


_GATES = {
    Phase.SERVING: Gate.OPEN,
    Phase.CORDONED: Gate.CORDONED,
    Phase.DRAINING: Gate.DRAINING,
}


@dataclass(slots=True)
class Run:
    """One drain, named by its nonce. Only `Lifecycle` writes it."""

    request: BeginRequest
    epoch: int
    begun_at: float
    deadline: float
    closing: bool = False
    failure: str | None = None
    ended_at: float | None = None
    sealed: bool = False
    """The state that goes over is fixed."""
    unseals: int = 0
    """How often a seal has failed, and was taken back."""
    given: dict[str, Given] = field(default_factory=dict)
    """By protocol, the state that the next release has fetched."""

    @property
    def acknowledged(self) -> list[Given]:
        """What the next release has, and says so."""
        return [given for given in self.given.values() if given.acknowledged]


class Lifecycle:
    """The phase of one release and its drain. Not thread-safe: one owner."""

    def __init__(self, revision: str | None = None) -> None:
        self.revision = revision
        self.phase = Phase.SERVING
        self.epoch = 0
        self.run: Run | None = None
        self.handoffs = Handoffs()
        """What this release takes over, as a new one."""
        self._on_their_way: dict[str, Given] = {}
        """By protocol, what had been fetched, and no more, when this was resumed."""
        self._retired: set[str] = set()
        self._resumed: tuple[str, int] | None = None

    @property
    def gate(self) -> Gate:
        """What admission has to obey now."""
        if self.run is not None and self.run.closing:
            return Gate.CLOSED
        return _GATES.get(self.phase, Gate.CLOSED)

    def cordon(self) -> None:
        """Say not ready, keep admitting. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        self._move(Event.CORDON)

    def uncordon(self) -> None:
        """Take a cordon back. Idempotent.

        Raises:
            PhaseConflict: Once a drain has begun.
        """
        self._move(Event.UNCORDON)

    def begin(self, request: BeginRequest, now: float) -> bool:
        """Close intake, or join the drain that runs; true for a duplicate.

        Raises:
            DrainResumed: The nonce was retired.
            AlreadyStarted: Another nonce, or this one with other revisions.
            RevisionMismatch: The source is not this release.
        """
        if request.nonce in self._retired:
            raise DrainResumed
        if self.run is not None:
            if _identity(self.run.request) == _identity(request):
                return True
            same_nonce = request.nonce == self.run.request.nonce
            raise AlreadyStarted(same_nonce=same_nonce)
        if self.revision not in (None, request.source_revision):
            raise RevisionMismatch(str(self.revision))
        self._move(Event.BEGIN)
        self.epoch += 1
        deadline = now + request.timeout_ms / 1000
        self.run = Run(request, self.epoch, begun_at=now, deadline=deadline)
        return False

    def find(self, nonce: str | None) -> Run:
        """The drain of that nonce.

        Raises:
            DrainNotFound: No drain, another's nonce, or a retired one.
        """
        if self.run is None or self.run.request.nonce != nonce:
            raise DrainNotFound(resumed=nonce in self._retired)
        return self.run

    def expire(self, now: float, because: str = TIMEOUT) -> bool:
        """Fail the drain if its deadline has passed; true if it just did.

        Call it before the counters are read: a zero first seen at or after
        the deadline is a timeout. `because` is for a source that could not be
        reached until then.
        """
        run = self.run
        if run is None or self.phase is not Phase.DRAINING or now < run.deadline:
            return False
        self.fail(because, now)
        return True

    def close(self) -> None:
        """Stop asking `admit`; the counters of the verdict come next."""
        self._draining().closing = True

    def reopen(self) -> None:
        """Go back to waiting: `admit` let somebody in before the close."""
        self._draining().closing = False

    def conclude(self, counts: Mapping[str, int] | None, now: float) -> None:
        """Write the verdict, once; `None` are counters that are not valid.

        Everything has reported that it settled. All zero is `drained`,
        anything else `failed`. At or after the deadline it is a timeout.
        """
        if self.expire(now):
            return
        if not self._draining().closing:
            raise AssertionError("a verdict is only read while closing")
        if counts is None:
            self.fail(COUNTERS_INVALID, now)
        elif any(counts.values()):
            self.fail(NOT_IDLE, now)
        else:
            self._end(Event.IDLE, now)

    def fail(self, failure: str, now: float) -> None:
        """End the drain as failed. What is held stays held until a resume."""
        self._draining().failure = failure[:FAILURE_MAXIMUM]
        self._end(Event.FAIL, now)

    def resume(self, nonce: str, *, force: bool = False) -> bool:
        """Serve again and retire the nonce; true for an exact retry.

        `force` resumes also where the next release has acknowledged the state.

        Raises:
            DrainDetached: Ownership has moved.
            HandedOver: The next release has the state, and has not discarded it.
            DrainResumed: A nonce that an earlier resume retired.
            DrainNotFound: A nonce that never named a drain here.
        """
        if self.run is None or nonce != self.run.request.nonce:
            if self._resumed == (nonce, self.epoch) and self.run is None:
                return True
            if nonce in self._retired:
                raise DrainResumed
            raise DrainNotFound
        if self.phase is Phase.DETACHED:
            raise DrainDetached
        if self.run.acknowledged and not force:
            protocols = [given.protocol for given in self.run.acknowledged]
            raise HandedOver(protocols, self.run.acknowledged[0].nonce)
        for given in self.run.given.values():
            if not given.acknowledged:
                self._on_their_way[given.protocol] = given
        self._retired.add(nonce)
        self._move(Event.RESUME)
        self.epoch += 1
        self.run = None
        self._resumed = (nonce, self.epoch)
        return False

    def seal(self, nonce: str) -> None:
        """Fix the state that goes over. Idempotent.

        Raises:
            DrainNotFound: Not the drain that stands.
            PhaseConflict: It has not ended as `drained`, or ownership has moved.
        """
        run = self.find(nonce)
        self._move(Event.SEAL)
        run.sealed = True

    def unseal(self, epoch: int) -> bool:
        """A seal has failed; false where another one has not, meanwhile.

        Others that are under way fail, too: their adapters are told that what was
        to be fixed may change again.
        """
        if self.run is not None and self.run.epoch == epoch:
            self.run.unseals += not self.run.sealed
            return not self.run.sealed
        return True

    def give(self, epoch: int, protocol: str, to: Recipient, now: float = 0.0) -> None:
        """The next release has fetched that state.

        Raises:
            DrainResumed: The drain of that epoch does not stand any more.
            HandedOver: As `check_given` says.
        """
        run = self._of_epoch(epoch)
        self.check_given(protocol, to, now)
        given = run.given.get(protocol)
        if given is None or given.nonce != to.nonce:
            given = run.given[protocol] = Given(protocol, to.nonce)
        given.taker = to.process or given.taker
        given.until = now + to.within

    def check_given(
        self, protocol: str, to: Recipient | None, now: float = 0.0
    ) -> None:
        """Whether that state may go there; `None` is nobody in particular.

        Raises:
            HandedOver: Another handoff was acknowledged, and not discarded, or still
                has time for that; or the same one in another release, which lives.
        """
        given = self.run.given.get(protocol) if self.run else None
        nonce, process = (to.nonce, to.process) if to else (None, None)
        for one in filter(None, (given, self._on_their_way.get(protocol))):
            is_other = bool(process and one.taker and process != one.taker)
            lives = to.lives(one.taker) if to and one.taker else None
            if one.acknowledged:
                if one.nonce != nonce or (is_other and lives):
                    raise HandedOver([protocol], one.nonce)
            elif to and now < one.until and (one.nonce != nonce or is_other):
                if lives is not False:
                    raise HandedOver([protocol], one.nonce, one.until - now)

    def acknowledge(
        self, epoch: int, protocol: str, to: Recipient, now: float = 0.0
    ) -> None:
        """The next release says that it has the state. Idempotent.

        From here on a resume has to be forced.

        Raises:
            DrainResumed: The drain of that epoch does not stand any more.
            HandedOver: As `check_given` says.
        """
        self.give(epoch, protocol, to, now)
        self._of_epoch(epoch).given[protocol].acknowledged = True

    def take_back(
        self, epoch: int, nonce: str, taker: dict[str, Any] | None = None
    ) -> bool:
        """The next release has discarded what that handoff gave it. Idempotent.

        False where the drain of that epoch gave nothing under that nonce.

        Raises:
            DrainDetached: Ownership has moved.
            HandedOver: A later release has it, under the same nonce.
        """
        for late in list(self._on_their_way.values()):
            if late.nonce == nonce and late.taker in (None, taker):
                del self._on_their_way[late.protocol]
        run = self.run if self.run and self.run.epoch == epoch else None
        taken = [g for g in run.given.values() if g.nonce == nonce] if run else []
        if taken and self.phase is Phase.DETACHED:
            raise DrainDetached
        for given in taken:
            if taker and given.taker not in (None, taker):
                raise HandedOver([given.protocol], nonce)
        for given in taken:
            given.acknowledged, given.until = False, 0.0
        return bool(taken)

    def detach(self, nonce: str) -> None:
        """Give ownership away for good. Idempotent.

        Raises:
            DrainNotFound: Not the drain that stands.
            PhaseConflict: It has not ended.
        """
        self.find(nonce)
        self._move(Event.DETACH)

    def snapshot(self) -> dict[str, Any]:
        """Everything, in the form of JSON, for processes that share it."""
        run = self.run
        return {
            "revision": self.revision,
            "phase": str(self.phase),
            "epoch": self.epoch,
            "onTheirWay": [asdict(given) for given in self._on_their_way.values()],
            "retired": sorted(self._retired),
            "resumed": self._resumed,
            "run": run
            and {
                "request": run.request.model_dump(by_alias=True),
                "epoch": run.epoch,
                "begun_at": run.begun_at,
                "deadline": run.deadline,
                "closing": run.closing,
                "failure": run.failure,
                "ended_at": run.ended_at,
                "sealed": run.sealed,
                "unseals": run.unseals,
                "given": [asdict(given) for given in run.given.values()],
            },
            "handoffs": self.handoffs.snapshot(),
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Lifecycle:
        """What `snapshot` took."""
        lifecycle = cls(snapshot["revision"])
        lifecycle.phase = Phase(snapshot["phase"])
        lifecycle.epoch = snapshot["epoch"]
        for late in snapshot["onTheirWay"]:
            lifecycle._on_their_way[late["protocol"]] = Given(**late)
        lifecycle._retired = set(snapshot["retired"])
        if snapshot["resumed"] is not None:
            nonce, epoch = snapshot["resumed"]
            lifecycle._resumed = (nonce, epoch)
        if snapshot["run"] is not None:
            run = dict(snapshot["run"])
            request = BeginRequest.parse(run.pop("request"))
            given = {g["protocol"]: Given(**g) for g in run.pop("given")}
            lifecycle.run = Run(request, **run, given=given)
        lifecycle.handoffs = Handoffs.restored(snapshot["handoffs"])
        return lifecycle

    def _of_epoch(self, epoch: int) -> Run:
        if self.run is None or self.run.epoch != epoch:
            raise DrainResumed
        return self.run

    def _draining(self) -> Run:
        if self.run is None or self.phase is not Phase.DRAINING:
            raise PhaseConflict(self.phase, "a verdict")
        return self.run

    def _end(self, event: Event, now: float) -> None:
        run = self._draining()
        self._move(event)
        run.closing = False
        run.ended_at = now

    def _move(self, event: Event) -> None:
        target = TABLE.get((self.phase, event))
        if target is None:
            raise PhaseConflict(self.phase, event)
        self.phase = target


def _identity(request: BeginRequest) -> tuple[str, str, str]:
    return request.nonce, request.source_revision, request.target_revision
