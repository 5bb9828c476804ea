"""The old side of a handoff: what is exported, and when it is fixed.

Each worker has a part of the state; the adapter makes one of them. A seal takes
all parts once and keeps the whole: whatever is fetched later is the same, also
where a worker has ended meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from drainmw.contract import AdapterReport, GivenReport
from drainmw.core.canonical import loads
from drainmw.core.drain import Lifecycle, Phase, Run
from drainmw.core.envelope import Export, Terms
from drainmw.core.handoff import Recipient
from drainmw.errors import (
    DrainError,
    GroupError,
    PhaseConflict,
    StateExportInvalid,
    StateNotCombined,
    StateNotExportable,
    StateProvisional,
    StateSealRefused,
)
from drainmw.flag import Flag, start_task
from drainmw.log import logger
from drainmw.siblings import (
    PART_PATH,
    SEAL_PATH,
    UNSEAL_PATH,
    SiblingFailed,
    Siblings,
)
from drainmw.sources.holds import together
from drainmw.state import (
    Adapters,
    Part,
    StateAdapter,
    called,
    export,
    hook_of,
    pair,
    part_of,
    phase_of,
    readable,
    wrapped,
)
from drainmw.text import failure_text

EXPORT_PATIENCE = 60.0  # seconds in which an adapter exports; others wait for it
SEAL_PATIENCE = 10.0  # seconds in which an adapter says yes or no
TAKEN_BACK = "it was taken back meanwhile; seal again"
CHANGED = "a worker has come or gone while the state was being sealed; seal again"
ORDER = ("serving", "draining", "drained")
"""Of the phases from which an adapter may be exported."""


class Exports:
    """What this release exports."""

    def __init__(
        self, adapters: Adapters, siblings: Siblings, clock: Callable[[], float]
    ) -> None:
        self._adapters = adapters
        self._siblings = siblings
        self._clock = clock
        self.sealed = Flag()
        self._sealed_here: int | None = None
        """The epoch whose seal the adapters of this worker know of."""
        self._unseals = 0
        """How often a seal was taken back here, also one that was under way."""
        self._turns: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[str, asyncio.Lock]
        ] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    # One export

    async def export(
        self,
        protocol: str | None,
        source_revision: str,
        target_revision: str,
        to: Recipient | None = None,
    ) -> Export:
        """The envelope of an adapter; one export of each at a time in a loop.

        It is noted that the handoff that asks, `to`, has the state.

        Raises:
            StateRevisionInvalid, StateAdapterNotFound: Nobody was asked.
            StateNotExportable, HandedOver: It may not be exported, or not to it.
            StateNotCombined: Several workers have a state each.
            StateError: The adapter exports what cannot go over.
            GroupError: A worker has not given its part.
        """
        adapter, terms = self.check(protocol, source_revision, target_revision, to)
        epoch = self._lifecycle.epoch
        if (run := self._lifecycle.run) is not None and run.sealed:
            kept = self._siblings.record.kept(_name(adapter, run))
            built = await asyncio.to_thread(wrapped, adapter, terms, Part.read(kept))
        else:
            turns = self._turns.setdefault(asyncio.get_running_loop(), {})
            async with turns.setdefault(adapter.protocol, asyncio.Lock()):
                self._check_phase(adapter, to)
                epoch = self._lifecycle.epoch
                exported = await self._gathered(adapter)
                built = await asyncio.to_thread(export, adapter, terms, exported)
        self._check_phase(adapter, to)  # a resume may have come meanwhile,
        if phase_of(adapter) != "serving":  # and a begin
            if self._lifecycle.epoch != epoch:
                raise StateNotExportable(
                    adapter.protocol, phase_of(adapter), "in another drain by now"
                )
            if to is not None:
                now = self._clock()
                self._siblings.record.transact(
                    lambda lifecycle: lifecycle.give(epoch, adapter.protocol, to, now)
                )
        self._tell(adapter, built)
        return built

    def check(
        self,
        protocol: str | None,
        source_revision: str,
        target_revision: str,
        to: Recipient | None = None,
    ) -> tuple[StateAdapter, Terms]:
        """What is meant, if it may be exported now, and to that new release.

        Raises:
            StateRevisionInvalid, StateAdapterNotFound, StateNotExportable, HandedOver,
            StateNotCombined: It may not.
        """
        adapter = self._adapters.find(protocol)
        terms = Terms(
            adapter.protocol, adapter.schema_version, source_revision, target_revision
        )
        self._check_phase(adapter, to)
        self._check_combined(adapter)
        return adapter, terms

    async def part(self, protocol: str) -> bytes:
        """What this worker has of that state, for a sibling that exports it."""
        adapter = self._adapters.find(protocol)
        exported = await self._exported(adapter)
        part = await asyncio.to_thread(part_of, adapter, exported)
        return part.written()

    async def _gathered(self, adapter: StateAdapter) -> object:
        """What all workers have, made one."""
        if self._siblings.count == 1:
            return await self._exported(adapter)
        combine = self._check_combined(adapter)
        try:
            own, others = await together(
                self._exported(adapter), self._others(adapter.protocol)
            )
        except SiblingFailed as exc:
            raise StateExportInvalid(f"another worker: {exc}") from exc

        def combined() -> object:
            parts = [(part.cursor, loads(part.text)) for part in others]
            return combine([pair(adapter, own), *parts])

        try:
            made = await asyncio.to_thread(combined)
            return await made if inspect.isawaitable(made) else made
        except DrainError:
            raise
        except Exception as exc:
            raise self._cannot(adapter, "combine", exc) from exc

    async def _others(self, protocol: str) -> Any:
        answers = await self._siblings.ask_all(
            PART_PATH, within=EXPORT_PATIENCE, params={"protocol": protocol}
        )
        return [Part.read(answer) for answer in answers.values()]

    async def _exported(self, adapter: StateAdapter) -> object:
        """What it exports; of what it raises only the kind goes over the wire."""
        try:
            async with asyncio.timeout(EXPORT_PATIENCE):
                exported: object = await called(adapter.export_state)
                return exported
        except Exception as exc:
            raise self._cannot(adapter, "export", exc) from exc

    def _cannot(
        self, adapter: StateAdapter, what: str, exc: Exception
    ) -> StateExportInvalid:
        kind, protocol = type(exc).__name__, adapter.protocol
        logger().error("export failed", protocol=protocol, error=kind, exc_info=True)
        return StateExportInvalid(f"{protocol} cannot {what}: {kind}")

    def _check_combined(self, adapter: StateAdapter) -> Any:
        """How it makes one state of several; nothing where there is one worker."""
        combine = hook_of(adapter, "combine")
        if combine is None and (count := self._siblings.count) > 1:
            run = self._lifecycle.run
            if run is None or not run.sealed:
                raise StateNotCombined(adapter.protocol, count)
        return combine

    def _check_phase(self, adapter: StateAdapter, to: Recipient | None) -> None:
        lifecycle, needed = self._lifecycle, phase_of(adapter)
        phase, run = lifecycle.phase, lifecycle.run
        if phase_of(adapter) != "serving":
            lifecycle.check_given(adapter.protocol, to, self._clock())
            _check_own(lifecycle, adapter.protocol)
        if phase is Phase.DETACHED and run is not None and run.sealed:
            return  # the new side may have ended right after; its nonce is needed
        reached = "serving" if phase is Phase.CORDONED else str(phase)
        if reached not in ORDER or ORDER.index(reached) < ORDER.index(needed):
            raise StateNotExportable(adapter.protocol, needed, str(phase))

    @property
    def _lifecycle(self) -> Lifecycle:
        return self._siblings.record.read()[1]

    # Sealing

    @property
    def is_sealed(self) -> bool:
        """By the record, which `sealed` follows in every worker."""
        run = self._lifecycle.run
        return run is not None and run.sealed

    async def seal(self, nonce: str) -> None:
        """Fix what goes over, in every worker. Idempotent.

        Every adapter is told, and may refuse; then everything is exported once.

        Raises:
            DrainNotFound, PhaseConflict: Nothing was fixed.
            StateSealRefused: An adapter does not have it; those told are told back.
            StateNotCombined, StateError, GroupError: As an export.
        """
        lifecycle = self._lifecycle
        run = lifecycle.find(nonce)
        if lifecycle.phase is not Phase.DRAINED:
            raise PhaseConflict(lifecycle.phase, "seal")
        if run.sealed:
            return
        record = self._siblings.record
        members, unseals = record.members(), run.unseals
        for adapter in self._adapters:
            self._check_combined(adapter)
            _check_own(lifecycle, adapter.protocol)
        try:
            await self.seal_here(run.epoch)
            await self._seal_others(run.epoch)
            parts: dict[str, bytes] = {}
            for adapter in self._adapters:
                exported = await self._gathered(adapter)
                part = await asyncio.to_thread(part_of, adapter, exported, whole=True)
                parts[_name(adapter, run)] = part.written()

            def fix(newest: Lifecycle) -> None:
                """Once: a resume may have come meanwhile, or another seal."""
                now = newest.find(nonce)
                if now.sealed:
                    return
                if (self._sealed_here, now.unseals) != (run.epoch, unseals):
                    raise StateSealRefused(TAKEN_BACK)
                if record.members() != members:
                    raise GroupError(CHANGED)
                for name, written in parts.items():
                    record.keep(name, written)
                newest.seal(nonce)

            record.transact(fix)
        except BaseException:
            if record.transact(lambda newest: newest.unseal(run.epoch)):
                await self._unseal_all(run.epoch)
            raise
        record.wake()
        self.follow(self._lifecycle)
        logger().info("state sealed", nonce=nonce, protocols=len(self._adapters))

    async def seal_here(self, epoch: int) -> None:
        """Tell the adapters of this worker.

        Raises:
            StateSealRefused: One does not have it.
        """
        if self._sealed_here == epoch:
            return
        told: list[StateAdapter] = []
        unseals = self._unseals
        for adapter in self._adapters:
            seal = hook_of(adapter, "seal")
            try:
                if seal is not None:
                    async with asyncio.timeout(SEAL_PATIENCE) as limit:
                        await called(seal)
            except Exception as exc:
                await self._unseal(told)
                late = f"it gave no answer in {SEAL_PATIENCE:g} s"
                why = late if limit.expired() else failure_text(exc)
                raise StateSealRefused(f"{adapter.protocol}: {why}") from exc
            told.append(adapter)
        if self._unseals != unseals:
            await self._unseal(told)
            raise StateSealRefused(TAKEN_BACK)
        self._sealed_here = epoch

    async def unseal_here(self, epoch: int) -> None:
        """Tell the adapters of this worker that their state may change again."""
        self._unseals += 1
        if self._sealed_here != epoch:
            return
        self._sealed_here = None
        await self._unseal(list(self._adapters))

    async def _unseal(self, adapters: list[StateAdapter]) -> None:
        for adapter in reversed(adapters):
            unseal, protocol = hook_of(adapter, "unseal"), adapter.protocol
            try:
                if unseal is not None:
                    async with asyncio.timeout(SEAL_PATIENCE):
                        await called(unseal)
            except Exception as exc:
                error = failure_text(exc)
                logger().error("unseal failed", protocol=protocol, error=error)

    async def _seal_others(self, epoch: int) -> None:
        params = {"epoch": epoch}
        try:
            await self._siblings.ask_all(SEAL_PATH, within=SEAL_PATIENCE, params=params)
        except SiblingFailed as exc:
            raise StateSealRefused(f"another worker: {exc}") from exc

    async def _unseal_all(self, epoch: int) -> None:
        params = {"epoch": epoch}
        await self.unseal_here(epoch)  # the others are told by a resume, too
        await self._siblings.tell_all(UNSEAL_PATH, within=SEAL_PATIENCE, params=params)

    def follow(self, lifecycle: Lifecycle) -> None:
        """Do here what the record says of a seal. From an event loop."""
        run, here = lifecycle.run, self._sealed_here
        if run is not None and run.sealed:
            self.sealed.set()
        else:
            self.sealed.clear()
        if here is not None and (run is None or run.epoch != here):
            unseal = start_task(self.unseal_here(here), name="drainmw unseal")
            self._tasks.add(unseal)
            unseal.add_done_callback(self._tasks.discard)

    # What is told of it

    def adapters(self) -> list[AdapterReport]:
        """Each kind of state, and from which phase on it is exported."""
        return [
            {
                "protocol": adapter.protocol,
                "schemaVersion": adapter.schema_version,
                "phase": phase_of(adapter),
                "reads": readable(adapter),
                "discards": hook_of(adapter, "discard") is not None,
            }
            for adapter in self._adapters
        ]

    def given(self) -> list[GivenReport]:
        """What was fetched, and whether it was acknowledged."""
        run = self._lifecycle.run
        return [
            {"protocol": g.protocol, "nonce": g.nonce, "acknowledged": g.acknowledged}
            for g in (run.given.values() if run else ())
        ]

    def warnings(self) -> Iterator[str]:
        """What an operator should know of it."""
        for given in self.given():
            if not given["acknowledged"]:
                yield (
                    f"{given['protocol']} was fetched by handoff {given['nonce']} and "
                    "is not acknowledged; this release keeps it"
                )

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


def _name(adapter: StateAdapter, run: Run) -> str:
    """Under which name the sealed state of an adapter is kept."""
    protocol = hashlib.sha256(adapter.protocol.encode()).hexdigest()[:16]
    return f"{run.epoch}-{protocol}"


def _check_own(lifecycle: Lifecycle, protocol: str) -> None:
    """Whether this release has that state for good, where it has taken it over.

    One that the old side never noted is not asked for: nobody would confirm it.

    Raises:
        StateProvisional: The release before it may still take its work back.
    """
    for handoff in lifecycle.handoffs:
        if handoff.protocol == protocol and handoff.epoch is not None:
            if handoff.is_provisional:
                raise StateProvisional(protocol, handoff.nonce)
