"""The handoffs of a release, on both sides: what was given, and what is taken over.

On the new side a handoff is `pending` until every worker has imported the state
and the old side has noted that it has; then it is `acknowledged`, and provisional
until ownership has moved: the old side was detached, or is dead. Until then it may
be discarded, which is a failure like any other, and final.

Time comes in as `now` (monotonic seconds); nothing here waits or locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from drainmw.bodies import StateBeginRequest
from drainmw.contract import FAILURE_MAXIMUM, StateStatus
from drainmw.errors import (
    StateAlreadyStarted,
    StateDiscarded,
    StateNotFound,
    StateNotPending,
    StateNotProvisional,
    StateTimeout,
    StateWorkerLost,
)


@dataclass(slots=True)
class Given:
    """State of one protocol that the old side has given away."""

    protocol: str
    nonce: str
    """Of the handoff."""
    acknowledged: bool = False
    taker: dict[str, Any] | None = None
    """Which process the new side is, where it has said so."""
    until: float = 0.0
    """When the time is over in which it may be acknowledged."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who is to have state: a handoff, by its nonce, in a new release."""

    nonce: str
    process: dict[str, Any] | None = None
    """Which process that release is, where it has said so."""
    within: float = 0.0
    """How many seconds it has, from the fetch on, to say that it has it."""
    lives: Callable[[dict[str, Any]], bool | None] = lambda _process: None
    """Whether a process lives; `None` where that is unknown."""


@dataclass(slots=True)
class Handoff:
    """One on the new side. Only `Handoffs` writes it."""

    protocol: str
    nonce: str
    schema_version: int
    source_revision: str
    target_revision: str
    fingerprint: str
    """Of everything in its begin but the time; the token stands in no record."""
    deadline: float
    carrier: int
    """The worker that carries it out, by process id."""
    origin: dict[str, Any] | None = None
    """Which process the old side is, where it has said so."""
    epoch: int | None = None
    """Of the drain that it was taken from, where ownership moves with it."""
    status: Literal["pending", "acknowledged", "failed"] = "pending"
    provisional: bool = True
    members: list[int] = field(default_factory=list)
    """The workers that import, in their order, by process id."""
    cursor: str | None = None
    digest: str | None = None
    failure: str | None = None

    @property
    def is_provisional(self) -> bool:
        """Whether the old release may still take its work back, or has to give it."""
        return self.status == "acknowledged" and self.provisional

    def told(self) -> StateStatus:
        """The answer to a status."""
        answer: StateStatus = {
            "protocol": self.protocol,
            "nonce": self.nonce,
            "schemaVersion": self.schema_version,
            "sourceRevision": self.source_revision,
            "targetRevision": self.target_revision,
            "status": self.status,
        }
        if self.failure is not None:
            answer["failure"] = self.failure
        elif self.status == "acknowledged":
            answer |= {"cursor": str(self.cursor), "digest": str(self.digest)}
        return answer


class Handoffs:
    """Those of a new release: one for each protocol, for as long as it lives."""

    def __init__(self) -> None:
        self._by_protocol: dict[str, Handoff] = {}

    def __iter__(self) -> Iterator[Handoff]:
        return iter(self._by_protocol.values())

    def begin(self, request: StateBeginRequest, now: float, carrier: int) -> bool:
        """Begin a handoff, or join it; true for a duplicate.

        Raises:
            StateAlreadyStarted: Another one of that protocol or nonce has begun.
        """
        begun = self._by_protocol.get(request.protocol)
        fingerprint = request.fingerprint
        if begun is not None and begun.fingerprint == fingerprint:
            return True
        if begun is not None or any(h.nonce == request.nonce for h in self):
            raise StateAlreadyStarted
        origin = request.origin
        self._by_protocol[request.protocol] = Handoff(
            protocol=request.protocol,
            nonce=request.nonce,
            schema_version=request.schema_version,
            source_revision=request.source_revision,
            target_revision=request.target_revision,
            fingerprint=fingerprint,
            deadline=now + request.within,
            carrier=carrier,
            origin=None if origin is None else origin.process,
            epoch=None if origin is None else origin.epoch,
        )
        return False

    def find(self, nonce: str | None) -> Handoff:
        """The handoff of that nonce.

        Raises:
            StateNotFound: There is none.
        """
        for handoff in self:
            if handoff.nonce == nonce:
                return handoff
        raise StateNotFound

    def arrived(
        self, nonce: str, members: Iterable[int], cursor: str, digest: str
    ) -> None:
        """The state is here, and those workers are to import it.

        Raises:
            StateNotPending: It has failed meanwhile.
        """
        handoff = self._pending(nonce)
        handoff.members = list(members)
        handoff.cursor, handoff.digest = cursor, digest

    def acknowledge(self, nonce: str, live: Iterable[int]) -> None:
        """All of them have imported it.

        Raises:
            StateNotPending: It has failed meanwhile.
            StateWorkerLost: Others live here now than those who have imported.
        """
        handoff = self._pending(nonce)
        if set(live) != set(handoff.members):
            raise StateWorkerLost
        handoff.status = "acknowledged"

    def fail(self, nonce: str, failure: str) -> bool:
        """End a handoff that is pending; false where it has ended."""
        handoff = self.find(nonce)
        if handoff.status != "pending":
            return False
        handoff.status, handoff.failure = "failed", failure[:FAILURE_MAXIMUM]
        return True

    def expire(self, now: float, live: Iterable[int]) -> bool:
        """Fail what is late, or whose worker is gone; true if any has."""
        living = set(live)
        expired = False
        for handoff in self:
            if now >= handoff.deadline:
                expired |= self.fail(handoff.nonce, StateTimeout.code)
            elif handoff.carrier not in living:
                expired |= self.fail(handoff.nonce, StateWorkerLost.code)
        return expired

    def confirm(self, nonce: str) -> bool:
        """Ownership has moved here; true if that is news. Idempotent.

        Raises:
            StateNotProvisional: It has not been acknowledged, or was discarded.
        """
        handoff = self.find(nonce)
        if handoff.status != "acknowledged":
            raise StateNotProvisional(handoff.status, "confirmed")
        news, handoff.provisional = handoff.provisional, False
        return news

    def discard(self, nonce: str) -> bool:
        """Give up what was imported; true if that is news. Idempotent.

        What has failed was given up then.

        Raises:
            StateNotProvisional: It is pending, or ownership has moved here.
        """
        handoff = self.find(nonce)
        if handoff.status == "failed":
            return False
        if not handoff.is_provisional:
            status = "confirmed" if handoff.status == "acknowledged" else handoff.status
            raise StateNotProvisional(status, "discarded")
        handoff.status, handoff.failure = "failed", StateDiscarded.code
        return True

    def snapshot(self) -> list[dict[str, Any]]:
        """Everything, in the form of JSON."""
        return [asdict(handoff) for handoff in self]

    @classmethod
    def restored(cls, snapshot: Iterable[Mapping[str, Any]]) -> Handoffs:
        """What `snapshot` took."""
        handoffs = cls()
        for members in snapshot:
            handoff = Handoff(**members)
            handoffs._by_protocol[handoff.protocol] = handoff
        return handoffs

    def _pending(self, nonce: str) -> Handoff:
        handoff = self.find(nonce)
        if handoff.status != "pending":
            raise StateNotPending(handoff.failure or handoff.status)
        return handoff
