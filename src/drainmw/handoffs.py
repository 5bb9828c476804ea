"""State that changes hands, from the view of one release: `Handoffs`.

`Exports` and `Imports` know how; here is who may ask for it, and what a
release says of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import httpx

from drainmw.bodies import AcknowledgeRequest, ConfirmRequest, StateBeginRequest
from drainmw.contract import REVISION_FORM, HandoffsReport, Settled, StateStatus
from drainmw.core.drain import Lifecycle
from drainmw.core.envelope import Export
from drainmw.core.handoff import Recipient
from drainmw.errors import RevisionMismatch
from drainmw.exporting import Exports
from drainmw.flag import Flag
from drainmw.group import Group
from drainmw.importing import Imports
from drainmw.origin import identity, lives
from drainmw.record import ReleaseRecord
from drainmw.siblings import Siblings
from drainmw.state import Adapters, StateAdapter


class Tell(Protocol):
    """Writes one event of the release into its log."""

    def __call__(self, event: str, **facts: Any) -> None: ...


class Handoffs:
    """What a release gives to the next one, and takes over from the last one.

    `check_joined` raises `GroupError` where this worker cannot act for its
    siblings; every method raises what it does.
    """

    def __init__(
        self,
        *,
        record: Callable[[], ReleaseRecord],
        check_joined: Callable[[], None],
        clock: Callable[[], float],
        follow: Callable[[], None],
        tell: Tell,
    ) -> None:
        self._record = record
        self._check_joined = check_joined
        self._clock = clock
        self._tell = tell
        self.adapters = Adapters()
        self.siblings = Siblings(record)
        self.exports = Exports(self.adapters, self.siblings, clock)
        self.imports = Imports(self.adapters, self.siblings, clock=clock, follow=follow)

    @property
    def sealed(self) -> Flag:
        """Set while the state that goes over is fixed."""
        return self.exports.sealed

    def follow(self, lifecycle: Lifecycle) -> None:
        """Do here what the record says."""
        self.exports.follow(lifecycle)
        self.imports.follow(lifecycle)

    def warnings(self) -> Iterator[str]:
        """What an operator should mend."""
        yield from self.exports.warnings()
        yield from self.imports.warnings()

    # The old side

    async def export(
        self,
        protocol: str | None,
        source_revision: str,
        target_revision: str,
        to: Recipient | None = None,
    ) -> Export:
        """The envelope of one adapter's state, for the release that takes over.

        Raises:
            RevisionMismatch: Another release is meant as the source.
            StateError, Refused, RequestInvalid, GroupError: As `Exports.export` says.
        """
        asked = (protocol, source_revision, target_revision, to)
        self.check(*asked)
        return await self.exports.export(*asked)

    def check(
        self,
        protocol: str | None,
        source_revision: str,
        target_revision: str,
        to: Recipient | None = None,
    ) -> StateAdapter:
        """Whose state it is; raises what an export would raise before it asks."""
        self._check_joined()
        self._check_revision("sourceRevision", source_revision)
        asked = (protocol, source_revision, target_revision, to)
        return self.exports.check(*asked)[0]

    async def seal(self, nonce: str) -> None:
        """Fix the state that goes over, in every worker. Idempotent.

        Raises:
            DrainNotFound, PhaseConflict, Refused, StateError: As `Exports.seal` says.
        """
        self._check_joined()
        await self.exports.seal(nonce)

    def acknowledge(
        self, told: AcknowledgeRequest, epoch: int, taker: dict[str, Any] | None = None
    ) -> None:
        """Note what the new side says of a handoff from the drain of that epoch.

        `taker` is which process it is.

        Raises:
            DrainResumed, DrainDetached, HandedOver: Nothing was noted.
        """
        self._check_joined()

        now, of = self._clock(), Recipient(told.nonce, taker, lives=lives)

        def note(lifecycle: Lifecycle) -> None:
            if told.status == "acknowledged":
                lifecycle.acknowledge(epoch, told.protocol, of, now)
            else:
                lifecycle.take_back(epoch, told.nonce, taker)

        self._record().transact(note)
        event = f"handoff {told.status}"
        self._tell(event, protocol=told.protocol, handoff=told.nonce)

    def identity(self) -> dict[str, Any]:
        """Which process this release is, to prove one day that it is dead."""
        group = self._record()
        if isinstance(group, Group):
            return identity(group.boss, group.path)
        return identity()

    # The new side

    def begin(self, request: StateBeginRequest) -> bool:
        """Take state over from an old release, or join that; true for a duplicate.

        Raises:
            RevisionMismatch: Another release is meant as the target.
            StateRequestInvalid, Refused: As `Imports.begin` says.
        """
        self._check_joined()
        self._check_revision("targetRevision", request.target_revision)
        return self.imports.begin(request)

    def status(self, nonce: str | None) -> StateStatus:
        """Where the handoff of that nonce stands.

        Raises:
            StateNotFound: There is none.
        """
        self._check_joined()
        return self.imports.status(nonce)

    async def confirm(self, request: ConfirmRequest) -> Settled:
        """Ownership has moved here.

        Raises:
            Refused, StateError: As `Imports.confirm` says.
        """
        self._check_joined()
        return await self.imports.confirm(request)

    async def discard(self, nonce: str) -> Settled:
        """Undo what was imported.

        Raises:
            Refused, StateError: As `Imports.discard` says.
        """
        self._check_joined()
        return await self.imports.discard(nonce)

    async def forward(
        self, method: str, target: str, content: bytes, within: float
    ) -> httpx.Response:
        """Let a worker answer, where this is an observer of them.

        Raises:
            StateAdapterNotFound, GroupError: As `Siblings.forward` says.
        """
        self._check_joined()
        return await self.siblings.forward(method, target, content, within)

    def report(self) -> HandoffsReport:
        """What this release gives, and takes over."""
        self._check_joined()
        return {
            "phase": str(self._record().read()[1].phase),
            "sealed": self.exports.is_sealed,
            "process": self.identity(),
            "adapters": self.exports.adapters(),
            "given": self.exports.given(),
            "taken": self.imports.taken(),
        }

    def _check_revision(self, member: str, stated: str) -> None:
        own = self._record().read()[1].revision
        if own not in (None, stated) and re.fullmatch(REVISION_FORM, stated):
            raise RevisionMismatch(str(own), member)
