"""State on its way: what the old release exports, what the new one takes over.

The new release fetches it once for each protocol and imports it once, after
every check. A handoff that has failed leaves its release as it was, and is
final in that process.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from drainmw.bodies import StateBeginRequest, StateSource
from drainmw.contract import StateStatus
from drainmw.core.drain import Phase
from drainmw.core.envelope import Envelope, Export, Terms
from drainmw.errors import (
    StateAlreadyStarted,
    StateExportInvalid,
    StateNotExportable,
    StateNotFound,
    StateTimeout,
)
from drainmw.fetching import fetch
from drainmw.log import logger
from drainmw.state import (
    Adapters,
    ImportContext,
    StateAdapter,
    export,
    failure_of,
    phase_of,
    receive,
)

Fetch = Callable[[StateSource, int], Awaitable[bytearray]]

EXPORT_PATIENCE = 60.0  # seconds in which an adapter exports; others wait for it
ORDER = ("serving", "draining", "drained")
"""Of the phases from which an adapter may be exported."""


class Exports:
    """The old side."""

    def __init__(
        self,
        adapters: Adapters,
        phase: Callable[[], Phase],
        epoch: Callable[[], int] = int,
    ) -> None:
        self._adapters = adapters
        self._phase = phase
        self._epoch = epoch
        self._turns: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[str, asyncio.Lock]
        ] = WeakKeyDictionary()

    async def export(
        self, protocol: str | None, source_revision: str, target_revision: str
    ) -> Export:
        """The envelope of an adapter; one export of each at a time in a loop.

        Raises:
            StateRevisionInvalid, StateAdapterNotFound: Nobody was asked.
            StateNotExportable: It may not be exported in this phase.
            StateError: The adapter exports what cannot go over.
        """
        adapter, terms = self.check(protocol, source_revision, target_revision)
        turns = self._turns.setdefault(asyncio.get_running_loop(), {})
        async with turns.setdefault(adapter.protocol, asyncio.Lock()):
            self._check_phase(adapter)
            epoch = self._epoch()
            exported = await self._exported(adapter)
            built = await asyncio.to_thread(export, adapter, terms, exported)
        self._check_phase(adapter)  # a resume may have come meanwhile,
        if phase_of(adapter) != "serving" and self._epoch() != epoch:  # and a begin
            raise StateNotExportable(
                adapter.protocol, phase_of(adapter), "in another drain by now"
            )
        self._tell(adapter, built)
        return built

    def check(
        self, protocol: str | None, source_revision: str, target_revision: str
    ) -> tuple[StateAdapter, Terms]:
        """What is meant, if it may be exported now.

        Raises:
            StateRevisionInvalid, StateAdapterNotFound, StateNotExportable: It may not.
        """
        adapter = self._adapters.find(protocol)
        terms = Terms(
            adapter.protocol, adapter.schema_version, source_revision, target_revision
        )
        self._check_phase(adapter)
        return adapter, terms

    async def _exported(self, adapter: StateAdapter) -> object:
        """What it exports; of what it raises only the kind goes over the wire."""
        try:
            async with asyncio.timeout(EXPORT_PATIENCE):
                given: object = adapter.export_state()
                return await given if inspect.isawaitable(given) else given
        except Exception as exc:
            kind = type(exc).__name__
            protocol = adapter.protocol
            logger().error(
                "export failed", protocol=protocol, error=kind, exc_info=True
            )
            raise StateExportInvalid(f"{protocol} cannot export: {kind}") from exc

    def _check_phase(self, adapter: StateAdapter) -> None:
        needed, phase = phase_of(adapter), self._phase()
        reached = "serving" if phase is Phase.CORDONED else str(phase)
        if reached not in ORDER or ORDER.index(reached) < ORDER.index(needed):
            raise StateNotExportable(adapter.protocol, needed, str(phase))

    def _tell(self, adapter: StateAdapter, built: Export) -> None:
        told = {"protocol": adapter.protocol, "cursor": built.cursor}
        logger().info("state exported", **told, bytes=len(built.body))
        if built.is_over:
            logger().warning(
                "state over its maximum",
                **told,
                bytes=len(built.body),
                maximum=adapter.maximum_bytes,
                consequence="a new release of the same maximum does not take it",
            )
        if built.large:
            logger().warning("integers beyond 53 bits", **told, number=built.large)


class Handoff:
    """One on the new side."""

    def __init__(self, request: StateBeginRequest) -> None:
        self.request = request
        self.envelope: Envelope | None = None
        """Set once its value has been imported."""
        self.failure: str | None = None

    @property
    def status(self) -> StateStatus:
        """The answer to a status."""
        request = self.request
        answer: StateStatus = {
            "protocol": request.protocol,
            "nonce": request.nonce,
            "schemaVersion": request.schema_version,
            "sourceRevision": request.source_revision,
            "targetRevision": request.target_revision,
            "status": "pending",
        }
        if self.failure is not None:
            answer |= {"status": "failed", "failure": self.failure}
        elif self.envelope is not None:
            cursor, digest = self.envelope.cursor, self.envelope.digest
            answer |= {"status": "acknowledged", "cursor": cursor, "digest": digest}
        return answer


class Handoffs:
    """The new side: one handoff for each protocol, for as long as it lives."""

    def __init__(self, adapters: Adapters, *, fetch: Fetch = fetch) -> None:
        self._adapters = adapters
        self._fetch = fetch
        self._by_protocol: dict[str, Handoff] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()

    def begin(self, request: StateBeginRequest) -> bool:
        """Begin a handoff, or join it; true for a duplicate.

        Raises:
            StateRequestInvalid: No adapter takes that protocol and version.
            StateAlreadyStarted: Another one of that protocol or nonce has begun.
        """
        adapter = self._adapters.chosen(request)
        with self._lock:
            begun = self._by_protocol.get(request.protocol)
            if begun is not None and request.is_retry_of(begun.request):
                return True
            nonces = {handoff.request.nonce for handoff in self._by_protocol.values()}
            if begun is not None or request.nonce in nonces:
                raise StateAlreadyStarted
            handoff = self._by_protocol[request.protocol] = Handoff(request)
        task = asyncio.create_task(
            self._carry_out(handoff, adapter), name="drainmw handoff"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    def status(self, nonce: str | None) -> StateStatus:
        """Where the handoff of that nonce stands.

        Raises:
            StateNotFound: There is none.
        """
        for handoff in self._by_protocol.values():
            if handoff.request.nonce == nonce:
                return handoff.status
        raise StateNotFound

    async def _carry_out(self, handoff: Handoff, adapter: StateAdapter) -> None:
        request = handoff.request
        told = {"protocol": request.protocol, "nonce": request.nonce}
        logger().info("handoff begun", **told, source=request.source.location.authority)
        limit = asyncio.timeout(request.timeout_ms / 1000)
        try:
            async with limit:
                handoff.envelope = await self._taken_over(request, adapter)
        except BaseException as exc:
            handoff.failure = failure_of(StateTimeout() if limit.expired() else exc)
            logger().warning("handoff failed", **told, failure=handoff.failure)
            if not isinstance(exc, Exception):
                raise
        else:
            logger().info("handoff acknowledged", **told)

    async def _taken_over(
        self, request: StateBeginRequest, adapter: StateAdapter
    ) -> Envelope:
        """Fetch, check, and only then import."""
        body = await self._fetch(request.source, adapter.maximum_bytes)
        value, envelope = await asyncio.to_thread(receive, adapter, request, body)
        context = ImportContext.of(envelope, request.nonce)
        done: object = adapter.import_state(value, context)
        if inspect.isawaitable(done):
            await done
        return envelope
