"""Every error drainmw raises, by whose fault it is.

DrainError
├── Refused              the request is right, this release will not have it now
│   ├── IntakeRefused        new work after intake has closed
│   │   └── IntakePaused         new work while the app itself has paused intake
│   ├── WorkStopped          work of a key that is stopped
│   ├── SlotOccupied         work of a schedule whose last piece is not over
│   ├── ResultElsewhere      the work goes on, or has run, in another release
│   ├── ConnectionClosed     a message on a connection that we have closed
│   ├── AlreadyStarted       another drain runs, or stands
│   ├── RevisionMismatch     the drain is meant for another release
│   ├── DrainResumed         this nonce was retired by a resume
│   ├── DrainDetached        ownership has moved, nothing may reopen
│   ├── DrainNotFound        no drain of that nonce
│   ├── PhaseConflict        the phase has no such transition
│   ├── Superseded           another worker has moved on meanwhile
│   ├── StateAdapterNotFound no adapter of that protocol
│   ├── StateNotExportable   its adapter is not exported in this phase
│   ├── StateAlreadyStarted  another handoff of that protocol runs, or has ended
│   ├── StateNotFound        no handoff of that nonce
│   ├── StateNotImportable   this release drains itself
│   ├── StateNotPending      that handoff has ended
│   ├── StateNotProvisional  that handoff cannot be confirmed, or discarded, any more
│   ├── StateProvisional     what is to go over may go back to the release before
│   ├── StateNotDiscardable  its adapter cannot undo an import
│   ├── StateNotDetached     ownership has not moved by that drain
│   ├── StateNotCombined     its adapter cannot make one state of several workers'
│   ├── StateSealRefused     the app does not let its state be fixed
│   ├── HandedOver           another release has the state already
│   ├── LeaseHeld            whoever may run schedules lives
│   └── LeaseLost            another process may run schedules since
├── Misuse               fix the code or the configuration
│   ├── SettingsError        a setting that is not usable
│   ├── InstalledTwice       two middlewares in one chain
│   ├── GroupError           the workers of a release cannot act as one
│   ├── HandlerUnknown       keyed work of a handler that is not registered
│   ├── StateAdapterInvalid  a state adapter that cannot be registered
│   └── LeaseCrowded         more schedules than a lease remembers
├── RequestInvalid       the peer sent something that is not in the contract
│   ├── StateRequestInvalid  a begin of a handoff is not in its form
│   │   └── StateVersionUnknown  a version of state that no adapter reads
│   ├── StateSourceInvalid   its source is not on this host, or not clearly so
│   └── StateRevisionInvalid a revision is not 40 lower-case hex digits
├── SourceError          an adapter's system failed
│   ├── SourceUnavailable    no answer: the count is unknown, never zero
│   │   └── NotConverging        work in flight goes on starting more
│   ├── CountersInvalid      a counter is not a whole number of at least 0
│   ├── CountersUnknown      somebody was asked and has not answered
│   └── OwnershipUnavailable nobody can tell who may run schedules
└── StateError           state cannot go over
    ├── StateValueInvalid    it is not JSON
    ├── StateExportInvalid   it does not pass its adapter's own check
    ├── StateExportTooLarge  it is more than its adapter's maximum
    └── StateFetchError      the new release could not take it from the old one
        ├── StateSourceUnreachable   no connection, or it broke
        ├── StateSourceRedirected    the source points elsewhere
        ├── StateSourceFailed        the source answers with an error
        ├── StateSourceTooLarge      more arrives than the adapter's maximum
        ├── StateEnvelopeInvalid     what arrived is not the envelope asked for
        ├── StateDigestMismatch      what arrived is not what was sent
        ├── StateTimeout             the time of the handoff is over
        ├── StateWorkerLost          a worker came or went while it was imported
        └── StateDiscarded           the new release gave up what it had imported
"""

from __future__ import annotations

from typing import Literal


class DrainError(Exception):
    """Base of every error that drainmw raises."""

    code = "RUNTIME_DRAIN_ERROR"
    """The name of this error on the wire."""


class Refused(DrainError):
    """Raised when a well-formed request is not allowed in the present phase."""


class IntakeRefused(Refused):
    """Raised when new work is offered after intake has closed.

    Nothing of the work has run; it is safe to offer it to another release.
    """

    code = "RUNTIME_DRAIN_INTAKE_REFUSED"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is refused: this release is draining"


class IntakePaused(IntakeRefused):
    """Raised when new work is offered to a queue whose intake the app has paused."""

    code = "RUNTIME_WORK_INTAKE_PAUSED"

    def __str__(self) -> str:
        return f"{self.what} is refused: intake is paused"


class WorkStopped(Refused):
    """Raised for work of a key that was stopped: what waited, and what is offered.

    Nothing of the work has run.
    """

    code = "RUNTIME_WORK_STOPPED"

    def __init__(self, id: str, key: str) -> None:
        super().__init__(id, key)
        self.id = id
        self.key = key

    def __str__(self) -> str:
        return f"{self.id} is not run: its key {self.key} is stopped until a resume"


class SlotOccupied(Refused):
    """Raised when a schedule's last piece of work runs, waits or is parked."""

    code = "RUNTIME_WORK_SLOT_OCCUPIED"

    def __init__(self, schedule: str) -> None:
        super().__init__(schedule)
        self.schedule = schedule

    def __str__(self) -> str:
        return f"the last piece of the schedule {self.schedule} is not over"


class ResultElsewhere(Refused):
    """Raised to who waits for work whose result is not to be had in this release.

    The work is not lost, and is not to be offered again.
    """

    code = "RUNTIME_WORK_ELSEWHERE"

    def __init__(self, id: str, where: Literal["next", "previous"]) -> None:
        super().__init__(id, where)
        self.id = id
        self.where = where

    def __str__(self) -> str:
        if self.where == "next":
            return (
                f"{self.id} has been withdrawn: it goes on in the next release, "
                "or here after a resume"
            )
        return f"{self.id} has run in the previous release, or is taken back by it"


class ConnectionClosed(Refused, OSError):
    """Raised out of an app's `send` on a WebSocket that the drain has closed.

    ASGI, version 2.4 of the HTTP and WebSocket specification: a send on a closed
    connection raises a subclass of `OSError`.
    """

    code = "RUNTIME_DRAIN_CONNECTION_CLOSED"

    def __str__(self) -> str:
        return "the drain of this release has closed the connection"


class AlreadyStarted(Refused):
    """Raised when a begin meets a drain that is not its own."""

    code = "RUNTIME_DRAIN_ALREADY_STARTED"

    def __init__(self, same_nonce: bool = False) -> None:
        super().__init__(same_nonce)
        self.same_nonce = same_nonce

    def __str__(self) -> str:
        if self.same_nonce:
            return (
                "this nonce's drain has begun with other revisions; it is untouched. "
                "Repeat them, or choose a new nonce once it was resumed"
            )
        return (
            "another drain has begun, or has ended and stands; it is untouched. "
            "Only a resume with its nonce ends it"
        )


class RevisionMismatch(Refused):
    """Raised when a request is meant for another release than this one."""

    code = "RUNTIME_DRAIN_REVISION_MISMATCH"

    def __init__(self, own: str, member: str = "sourceRevision") -> None:
        super().__init__(own, member)
        self.own = own
        self.member = member

    def __str__(self) -> str:
        return f"{self.member} must be the revision of this release, {self.own}"


class DrainResumed(Refused):
    """Raised when a nonce is used that a resume has retired."""

    code = "RUNTIME_DRAIN_RESUMED"

    def __str__(self) -> str:
        return "the drain of this nonce was resumed; begin with a new nonce"


class DrainDetached(Refused):
    """Raised when a resume comes after ownership has moved."""

    code = "RUNTIME_DRAIN_DETACHED"

    def __str__(self) -> str:
        return "the new release owns the work; the old one cannot serve again"


class DrainNotFound(Refused):
    """Raised when a nonce names no drain that stands here."""

    code = "RUNTIME_DRAIN_NOT_FOUND"

    def __init__(self, resumed: bool = False) -> None:
        super().__init__(resumed)
        self.resumed = resumed

    def __str__(self) -> str:
        if self.resumed:
            return "the drain of this nonce was resumed"
        return "no drain of this nonce"


class PhaseConflict(Refused):
    """Raised when the phase table has no such transition; nothing changed."""

    code = "RUNTIME_DRAIN_ALREADY_STARTED"

    def __init__(self, phase: str, event: str) -> None:
        super().__init__(phase, event)
        self.phase = phase
        self.event = event

    def __str__(self) -> str:
        if self.event == "seal":
            return f"state is sealed once drained, and this release is {self.phase}"
        if self.event == "detach":
            return f"a drain is detached once it has ended, and is {self.phase}"
        text = f"{self.event} is not possible while {self.phase}"
        resumable = self.phase in ("draining", "drained", "failed")
        return f"{text}; resume first" if resumable else text


class Superseded(Refused):
    """Raised when a transition was meant for an older record; it is dropped."""

    code = "RUNTIME_DRAIN_SUPERSEDED"


class StateAdapterNotFound(Refused):
    """Raised when state is asked for and no adapter is registered for it."""

    code = "RUNTIME_STATE_ADAPTER_NOT_FOUND"

    def __init__(
        self, protocol: str | None, known: list[str], release: str = "this release"
    ) -> None:
        super().__init__(protocol, known, release)
        self.protocol = protocol
        self.known = known
        self.release = release

    def __str__(self) -> str:
        if not self.known:
            return f"{self.release} has no state adapter"
        names = ", ".join(self.known)
        if self.protocol is None:
            return f"{self.release} has several state adapters; name one of {names}"
        wanted = ascii(self.protocol[:128])
        return f"{self.release} has no state adapter of {wanted}; it has {names}"


class StateNotExportable(Refused):
    """Raised when state is asked for that may still change."""

    code = "RUNTIME_STATE_NOT_EXPORTABLE"

    def __init__(self, protocol: str, needed: str, phase: str) -> None:
        super().__init__(protocol, needed, phase)
        self.protocol = protocol
        self.needed = needed
        self.phase = phase

    def __str__(self) -> str:
        return (
            f"the state of {self.protocol} is exported once this release is "
            f"{self.needed}, and it is {self.phase}"
        )


class StateAlreadyStarted(Refused):
    """Raised when a begin meets a handoff that is not its own."""

    code = "RUNTIME_STATE_ALREADY_STARTED"

    def __str__(self) -> str:
        return (
            "another handoff of this protocol, or with this nonce, has begun; it is "
            "untouched. A fresh process can begin anew"
        )


class StateNotFound(Refused):
    """Raised when a nonce names no handoff of this process."""

    code = "RUNTIME_STATE_NOT_FOUND"

    def __str__(self) -> str:
        return "no handoff of this nonce"


class StateNotImportable(Refused):
    """Raised when a release that drains is to take state over."""

    code = "RUNTIME_STATE_NOT_IMPORTABLE"

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase

    def __str__(self) -> str:
        return (
            f"a release takes state over while it serves, and this one is {self.phase}"
        )


class StateNotPending(Refused):
    """Raised when a handoff has ended while somebody still worked on it."""

    code = "RUNTIME_STATE_NOT_PENDING"

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        return f"the handoff has ended already: {self.outcome}"


class StateNotProvisional(Refused):
    """Raised when what was imported is not, or is no longer, provisional."""

    code = "RUNTIME_STATE_NOT_PROVISIONAL"

    def __init__(self, status: str, wanted: str) -> None:
        super().__init__(status, wanted)
        self.status = status
        self.wanted = wanted

    def __str__(self) -> str:
        if self.status == "confirmed":
            return f"ownership has moved here; nothing can be {self.wanted} any more"
        return f"a handoff is {self.wanted} once acknowledged, and it is {self.status}"


class StateProvisional(Refused):
    """Raised when state is to go on that the release before may take back."""

    code = "RUNTIME_STATE_PROVISIONAL"

    def __init__(self, protocol: str, nonce: str) -> None:
        super().__init__(protocol, nonce)
        self.protocol = protocol
        self.nonce = nonce

    def __str__(self) -> str:
        return (
            f"{self.protocol} came here in handoff {self.nonce} and is provisional: "
            "detach the release before this one first, or discard it here"
        )


class StateNotDiscardable(Refused):
    """Raised when an adapter has no way to undo what it imported."""

    code = "RUNTIME_STATE_NOT_DISCARDABLE"

    def __init__(self, protocol: str) -> None:
        super().__init__(protocol)
        self.protocol = protocol

    def __str__(self) -> str:
        return (
            f"the adapter of {self.protocol} has no discard; end this release instead, "
            "then resume the old one with force"
        )


class StateNotDetached(Refused):
    """Raised when the detach that is to confirm a handoff is not that of its drain."""

    code = "RUNTIME_STATE_NOT_DETACHED"

    def __str__(self) -> str:
        return "the epoch is not that of the drain whose state was taken over"


class StateNotCombined(Refused):
    """Raised when several workers have a state each, and nothing makes them one."""

    code = "RUNTIME_STATE_NOT_COMBINED"

    def __init__(self, protocol: str, workers: int) -> None:
        super().__init__(protocol, workers)
        self.protocol = protocol
        self.workers = workers

    def __str__(self) -> str:
        return (
            f"{self.workers} workers have a state of {self.protocol} each, and its "
            "adapter has no combine to make them one"
        )


class StateSealRefused(Refused):
    """Raised when an adapter does not let its state be fixed; nothing is."""

    code = "RUNTIME_STATE_SEAL_REFUSED"


class HandedOver(Refused):
    """Raised when the next release has the state, or is about to have it."""

    code = "RUNTIME_STATE_HANDED_OVER"

    def __init__(
        self, protocols: list[str], nonce: str, left: float | None = None
    ) -> None:
        """`left` seconds it has to say so, if it has not."""
        super().__init__(protocols, nonce, left)
        self.protocols = protocols
        self.nonce = nonce
        self.left = left

    def __str__(self) -> str:
        if self.left is not None:
            return (
                f"{', '.join(self.protocols)} is on its way in handoff {self.nonce}, "
                f"which has {self.left:.1f} s left"
            )
        return (
            f"the state of {', '.join(self.protocols)} has gone over in handoff "
            f"{self.nonce}: `drainmw handoff` goes on from here, with --again where "
            "the new release has ended, or with --discard, after which this one can "
            "be resumed; `drainmw resume --force` leaves both with that state"
        )


class LeaseHeld(Refused):
    """Raised when a lease is taken whose holder may live."""

    code = "RUNTIME_LEASE_HELD"

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder

    def __str__(self) -> str:
        return f"instance {self.holder} may run these schedules"


class LeaseLost(Refused):
    """Raised when something is written under a lease that another has taken."""

    code = "RUNTIME_LEASE_LOST"

    def __init__(self, generation: int, newest: int) -> None:
        super().__init__(generation, newest)
        self.generation = generation
        self.newest = newest

    def __str__(self) -> str:
        return (
            f"generation {self.generation} may not run these schedules any more; "
            f"the newest is {self.newest}"
        )


class Misuse(DrainError):
    """Raised when the calling code or the configuration has to be mended."""


class SettingsError(Misuse):
    """Raised when a setting cannot be used; names it and says what is right."""

    code = "RUNTIME_SETTINGS_INVALID"


class InstalledTwice(Misuse):
    """Raised when one chain of apps holds two drain middlewares."""

    def __str__(self) -> str:
        return (
            "DrainMiddleware is installed twice in one chain of apps; "
            "install it once, as the outermost layer"
        )


class GroupError(Misuse):
    """Raised when the workers of a release cannot act as one."""

    code = "RUNTIME_GROUP_UNAVAILABLE"


class HandlerUnknown(Misuse):
    """Raised for keyed work whose handler this release has not registered."""

    code = "RUNTIME_WORK_HANDLER_UNKNOWN"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"no handler is registered as {self.name}; there are: {known}"


class StateAdapterInvalid(Misuse):
    """Raised when a state adapter is registered that is not in the right form."""

    code = "RUNTIME_STATE_ADAPTER_INVALID"


class LeaseCrowded(Misuse):
    """Raised when a tick is of one schedule too many; it is not fired."""

    code = "RUNTIME_LEASE_CROWDED"

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return (
            f"one owner remembers {self.most} schedules that were due within a day; "
            "divide them between owners of several names"
        )


class RequestInvalid(DrainError):
    """Raised when a begin is not in the contract's form; nothing changed."""

    code = "RUNTIME_DRAIN_REQUEST_INVALID"


class StateRequestInvalid(RequestInvalid):
    """Raised when the begin of a handoff is not in the contract's form."""

    code = "RUNTIME_STATE_REQUEST_INVALID"


class StateVersionUnknown(StateRequestInvalid):
    """Raised when a handoff is begun of a version that its adapter cannot read."""

    def __init__(self, protocol: str, given: int, known: list[int]) -> None:
        super().__init__(protocol, given, known)
        self.protocol = protocol
        self.given = given
        self.known = known

    def __str__(self) -> str:
        known = " and ".join(str(version) for version in self.known)
        return (
            f"the state of {self.protocol} is of version {self.given}; "
            f"this release reads {known}"
        )


class StateSourceInvalid(RequestInvalid):
    """Raised when the source of a handoff is not plainly a URL of this host."""

    code = "RUNTIME_STATE_SOURCE_INVALID"

    def __str__(self) -> str:
        return (
            "source.url must be http://, then 127.0.0.1, [::1] or localhost, a port if "
            "it is not 80, a path, and no user, password or fragment"
        )


class StateRevisionInvalid(RequestInvalid):
    """Raised when state is asked for with something that is no revision."""

    code = "RUNTIME_STATE_REVISION_INVALID"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} must be 40 lower-case hex digits"


class SourceError(DrainError):
    """Raised when the system behind a source of work failed."""


class SourceUnavailable(SourceError):
    """Raised by a source that cannot be reached.

    Its count is then unknown, which is never zero: the drain asks again
    until its deadline.
    """

    code = "RUNTIME_DRAIN_SOURCE_UNAVAILABLE"


class NotConverging(SourceUnavailable):
    """Raised by a source whose work goes on starting more though intake is closed.

    It may yet end: a drain waits on, until its deadline, and then names it.
    """

    code = "RUNTIME_DRAIN_NOT_CONVERGING"

    def __init__(self, who: str, what: str) -> None:
        super().__init__(who, what)
        self.who = who
        self.what = what

    def __str__(self) -> str:
        return f"work of {self.who} goes on starting more: {self.what}"


class CountersInvalid(SourceError):
    """Raised when a counter is not a whole number of at least 0."""

    code = "RUNTIME_DRAIN_COUNTERS_INVALID"

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return (
            f"{self.who} reports something that is not Counts(jobs, schedules), "
            "whole numbers of at least 0"
        )


class CountersUnknown(SourceError):
    """Raised when somebody was asked for a count and gave no answer in time."""

    code = "RUNTIME_DRAIN_COUNTERS_UNKNOWN"

    def __init__(self, who: list[str], why: str = "") -> None:
        super().__init__(who, why)
        self.who = who
        self.why = why

    def __str__(self) -> str:
        because = f" ({self.why})" if self.why else ""
        return f"no count from {', '.join(self.who)}{because}"


class OwnershipUnavailable(SourceError):
    """Raised when the place where ownership is noted gives no answer.

    Nobody can tell then who may run schedules, so this process runs none.
    """

    code = "RUNTIME_OWNERSHIP_UNAVAILABLE"


class StateError(DrainError):
    """Raised when state cannot go over; the release that has it keeps it."""

    code = "RUNTIME_STATE_ERROR"


class StateValueInvalid(StateError):
    """Raised when a value is not JSON: NaN, a cycle, a type that JSON lacks."""

    code = "RUNTIME_STATE_VALUE_INVALID"


class StateExportInvalid(StateError):
    """Raised when what an adapter exports does not pass its own check."""

    code = "RUNTIME_STATE_EXPORT_INVALID"


class StateExportTooLarge(StateError):
    """Raised when what an adapter exports is more than it may be."""

    code = "RUNTIME_STATE_EXPORT_TOO_LARGE"

    def __init__(self, maximum: int) -> None:
        super().__init__(maximum)
        self.maximum = maximum

    def __str__(self) -> str:
        return f"the state is more than the {self.maximum} bytes of its adapter"


class StateFetchError(StateError):
    """Raised when the new release cannot take over what the old one exports."""


class StateSourceUnreachable(StateFetchError):
    """Raised when the source does not answer, or breaks off."""

    code = "RUNTIME_STATE_SOURCE_UNREACHABLE"


class StateSourceRedirected(StateFetchError):
    """Raised when the source answers with another address; nobody goes there."""

    code = "RUNTIME_STATE_SOURCE_REDIRECTED"


class StateSourceFailed(StateFetchError):
    """Raised when the source answers with a status that is no success."""

    code = "RUNTIME_STATE_SOURCE_HTTP"

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        self.code = f"RUNTIME_STATE_SOURCE_HTTP_{status}"

    def __str__(self) -> str:
        return f"the source answered with status {self.status}"


class StateSourceTooLarge(StateFetchError):
    """Raised when more arrives, or is announced, than the adapter takes."""

    code = "RUNTIME_STATE_SOURCE_TOO_LARGE"

    def __init__(self, maximum: int) -> None:
        super().__init__(maximum)
        self.maximum = maximum

    def __str__(self) -> str:
        return f"the source sends more than the {self.maximum} bytes of the adapter"


class StateEnvelopeInvalid(StateFetchError):
    """Raised when what arrived is not the envelope that was asked for."""

    code = "RUNTIME_STATE_ENVELOPE_INVALID"


class StateDigestMismatch(StateFetchError):
    """Raised when an envelope's digest is not that of its contents."""

    code = "RUNTIME_STATE_DIGEST_MISMATCH"

    def __str__(self) -> str:
        return "the digest is not that of what arrived"


class StateTimeout(StateFetchError):
    """Raised when a handoff is not done in its time."""

    code = "RUNTIME_STATE_TIMEOUT"


class StateWorkerLost(StateFetchError):
    """Raised when a worker ends, or comes up, while state is imported."""

    code = "RUNTIME_STATE_WORKER_LOST"

    def __str__(self) -> str:
        return "the workers of this release changed while they imported"


class StateDiscarded(StateFetchError):
    """Why a handoff has failed whose new release was told to give it up."""

    code = "RUNTIME_STATE_DISCARDED"
