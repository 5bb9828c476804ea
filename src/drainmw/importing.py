"""The new side of a handoff: it is fetched once, and imported once by each worker.

One worker carries it out: it fetches and checks, hands the value to all, and has
the old side note that it went over; only then it is acknowledged. A handoff that
has failed leaves its release as it was, and is final in it.

What was imported is provisional until ownership has moved: until somebody tells
that the old side was detached, or it is proven that nobody of it lives any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from drainmw.bodies import ConfirmRequest, StateBeginRequest, StateSource
from drainmw.contract import Settled, StateStatus, TakenReport
from drainmw.core.drain import Lifecycle, Phase
from drainmw.core.handoff import Handoff
from drainmw.errors import (
    DrainError,
    GroupError,
    StateAlreadyStarted,
    StateError,
    StateNotDetached,
    StateNotDiscardable,
    StateNotFound,
    StateNotImportable,
    StateNotPending,
    StateNotProvisional,
    StateSourceUnreachable,
    StateTimeout,
)
from drainmw.fetching import acknowledge, fetch
from drainmw.flag import Flag, start_task
from drainmw.log import logger
from drainmw.origin import is_dead
from drainmw.siblings import IMPORT_PATH, SETTLE_PATH, Siblings
from drainmw.sources.holds import together
from drainmw.state import (
    Adapters,
    ImportContext,
    StateAdapter,
    called,
    failure_of,
    hook_of,
    receive,
)
from drainmw.text import failure_text

Fetch = Callable[[StateSource, int], Awaitable[bytearray]]

CANCEL_PATIENCE = 0.25  # seconds for an import to end in, once it was cancelled
SETTLE_PATIENCE = 10.0  # seconds for an adapter to confirm or discard in
TELL_TRIES = 5
TELL_PAUSE = 0.1
TAKE_BACK_PATIENCE = 1.5
WATCH_PAUSE = 0.5  # seconds between two looks whether the old side lives


class _Here:
    """What this worker has imported of a handoff."""

    def __init__(self, adapter: StateAdapter, context: ImportContext) -> None:
        self.adapter = adapter
        self.context = context
        self.imported = False
        self.over = False
        """Nothing is left to be confirmed or discarded."""
        self.settled = Flag()
        self.what = ""
        """Which of both it was told."""
        self.error: str | None = None


class Imports:
    """What this release takes over: one handoff for each protocol, for good."""

    def __init__(
        self,
        adapters: Adapters,
        siblings: Siblings,
        *,
        clock: Callable[[], float],
        follow: Callable[[], None],
        fetch: Fetch = fetch,
    ) -> None:
        """`follow` does here what the record says, after it was changed."""
        self._adapters = adapters
        self._siblings = siblings
        self._clock = clock
        self._follow = follow
        self._fetch = fetch
        self._here: dict[str, _Here] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: set[str] = set()

    # From begin to acknowledged

    def begin(self, request: StateBeginRequest) -> bool:
        """Begin a handoff, or join it; true for a duplicate.

        Raises:
            StateRequestInvalid: No adapter takes that protocol and version.
            StateAlreadyStarted: Another one of that protocol or nonce has begun.
            StateNotImportable: This release drains itself.
        """
        adapter = self._adapters.chosen(request)

        def begin(lifecycle: Lifecycle) -> bool:
            now, carrier = self._clock(), os.getpid()
            serves = lifecycle.phase in (Phase.SERVING, Phase.CORDONED)
            if not serves and request.nonce not in {
                h.nonce for h in lifecycle.handoffs
            }:
                raise StateNotImportable(lifecycle.phase)
            return lifecycle.handoffs.begin(request, now, carrier)

        duplicate = self._siblings.record.transact(begin)
        if not duplicate:
            self._start(self._carry_out(request, adapter), "drainmw handoff")
        return duplicate

    async def _carry_out(
        self, request: StateBeginRequest, adapter: StateAdapter
    ) -> None:
        nonce = request.nonce
        told = {"protocol": request.protocol, "nonce": nonce}
        logger().info("handoff begun", **told, source=request.source.location.authority)
        limit = asyncio.timeout(request.within)
        try:
            async with limit:
                await self._taken_over(request, adapter)
                is_proven = await self._noted(request)
            self._conclude(nonce, is_proven)
        except BaseException as exc:
            failure = failure_of(StateTimeout() if limit.expired() else exc)
            self._fail(nonce, failure)
            logger().warning("handoff failed", **told, failure=failure)
            await self._take_back(request)
            if not isinstance(exc, Exception):
                raise
        else:
            logger().info("handoff acknowledged", **told)

    async def _taken_over(
        self, request: StateBeginRequest, adapter: StateAdapter
    ) -> None:
        """Fetch, check, and only then import; everywhere."""
        body = await self._fetch(request.source, adapter.maximum_bytes)
        value, envelope = await asyncio.to_thread(receive, adapter, request, body)
        record, own = self._siblings.record, os.getpid()
        members, nonce = record.members(), request.nonce

        def arrive(lifecycle: Lifecycle) -> None:
            cursor, digest = envelope.cursor, envelope.digest
            lifecycle.handoffs.arrived(nonce, members, cursor, digest)

        record.transact(arrive)
        imports: list[Awaitable[object]] = []
        count = len(members)
        content = bytes(body) if count > 1 else b""  # once for all of them
        for index, pid in enumerate(members):
            if pid == own:
                context = ImportContext.of(envelope, nonce, index=index, count=count)
                imports.append(self._import(adapter, value, context))
            else:
                imports.append(
                    self._siblings.ask(
                        pid,
                        IMPORT_PATH,
                        within=request.within,
                        params={"nonce": nonce, "index": index, "count": count},
                        content=content,
                    )
                )
        await together(*imports)

    async def take(self, nonce: str, index: int, count: int, body: bytes) -> None:
        """Import what a sibling has fetched.

        Raises:
            StateNotFound, StateError: Nothing was imported.
            Exception: What the adapter raised.
        """
        handoff = self._find(nonce)
        adapter = self._adapters.find(handoff.protocol)
        limit = asyncio.timeout(max(0.0, handoff.deadline - self._clock()))
        self._watch(handoff)  # who carries it out may end, and nobody ask for it
        try:
            async with limit:
                value, envelope = await asyncio.to_thread(
                    receive, adapter, handoff, body
                )
                context = ImportContext.of(envelope, nonce, index=index, count=count)
                await self._import(adapter, value, context)
        except TimeoutError:
            if limit.expired():
                raise StateTimeout from None
            raise

    async def _import(
        self, adapter: StateAdapter, value: Any, context: ImportContext
    ) -> None:
        """Once in this process, whoever asks."""
        if context.nonce in self._here:
            raise StateAlreadyStarted
        handoff = self._find(context.nonce)
        if handoff.status != "pending":
            raise StateNotPending(handoff.failure or handoff.status)
        here = self._here[context.nonce] = _Here(adapter, context)
        task = asyncio.ensure_future(called(adapter.import_state, value, context))
        task.add_done_callback(lambda done: self._imported(here, done))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_PATIENCE)
            raise

    def _imported(self, here: _Here, task: asyncio.Future[Any]) -> None:
        """Also where it came too late, or took no notice of its cancellation."""
        here.imported = not task.cancelled() and task.exception() is None
        here.over = not here.imported
        if here.over:
            here.settled.set()
        self._settle_if_due(here)

    async def _noted(self, request: StateBeginRequest) -> bool:
        """Have the old side note that it went over; true if it is proven dead.

        Raises:
            StateFetchError: It does not have it, or cannot be reached and may live.
        """
        origin = request.origin
        if origin is None:
            return False
        for left in reversed(range(TELL_TRIES)):
            try:
                await self._tell_source(request, "acknowledged")
                return False
            except StateSourceUnreachable:
                if is_dead(origin.process):
                    return True
                if not left:
                    raise
            await asyncio.sleep(TELL_PAUSE)
        raise AssertionError("the last try returns or raises")

    async def _take_back(self, request: StateBeginRequest) -> None:
        """The old side is told that it is not so; once, and in haste.

        Not before everything is undone, since it may serve again then, or give the
        state to another.
        """
        if request.origin is not None:
            with contextlib.suppress(DrainError, TimeoutError):
                async with asyncio.timeout(TAKE_BACK_PATIENCE):
                    await self._settle_all(request.nonce)
                    await self._tell_source(request, "discarded")

    async def _tell_source(self, request: StateBeginRequest, status: str) -> None:
        origin, source = request.origin, request.source
        if origin is not None:
            protocol, nonce = request.protocol, request.nonce
            await acknowledge(source, origin.acknowledge, protocol, nonce, status)

    def _conclude(self, nonce: str, is_confirmed: bool) -> None:
        record = self._siblings.record

        def acknowledge(lifecycle: Lifecycle) -> None:
            if self._clock() >= lifecycle.handoffs.find(nonce).deadline:
                raise StateTimeout  # the old side may have given it to another
            lifecycle.handoffs.acknowledge(nonce, record.members())
            if is_confirmed:
                lifecycle.handoffs.confirm(nonce)

        record.transact(acknowledge)
        record.wake()
        self._follow()

    def _fail(self, nonce: str, failure: str) -> None:
        record = self._siblings.record
        if record.transact(lambda newest: newest.handoffs.fail(nonce, failure)):
            record.wake()
        self._follow()

    # Confirm and discard

    async def confirm(self, request: ConfirmRequest) -> Settled:
        """Ownership has moved here, as the old side's detach has answered.

        Raises:
            StateNotFound, StateNotProvisional, StateNotDetached: It has not.
        """

        def confirm(lifecycle: Lifecycle) -> bool:
            handoff = lifecycle.handoffs.find(request.nonce)
            if handoff.epoch not in (None, request.epoch):
                raise StateNotDetached
            return lifecycle.handoffs.confirm(request.nonce)

        return await self._move(confirm, request.nonce)

    async def discard(self, nonce: str) -> Settled:
        """Undo what was imported, in every worker; the handoff has failed then.

        Raises:
            StateNotFound, StateNotProvisional, StateNotDiscardable: It stays.
            StateError: A worker could not, and says why.
        """
        handoff = self._find(nonce)
        adapter = self._adapters.find(handoff.protocol)
        if handoff.is_provisional and hook_of(adapter, "discard") is None:
            raise StateNotDiscardable(handoff.protocol)
        return await self._move(lambda newest: newest.handoffs.discard(nonce), nonce)

    async def _move(self, act: Callable[[Lifecycle], bool], nonce: str) -> Settled:
        record = self._siblings.record
        if record.transact(act):
            record.wake()
        self._follow()
        try:
            await self._settle_all(nonce)
        except DrainError as exc:
            raise StateError(f"not every worker has done it: {exc}") from exc
        handoff = self._find(nonce)
        return {
            "nonce": nonce,
            "status": handoff.status,
            "provisional": handoff.is_provisional,
        }

    async def _settle_all(self, nonce: str) -> None:
        params = {"nonce": nonce}
        others = self._siblings.ask_all(
            SETTLE_PATH, within=SETTLE_PATIENCE, params=params
        )
        await together(self.settle(nonce), others)

    async def settle(self, nonce: str) -> None:
        """Return once this worker has confirmed or discarded what it imported.

        An import that has failed has left nothing; one that still runs is waited for.

        Raises:
            StateError: Its adapter could not.
        """
        here = self._here.get(nonce)
        if here is None:
            return
        self._settle_if_due(here)
        try:
            async with asyncio.timeout(SETTLE_PATIENCE):
                await here.settled
        except TimeoutError:
            silent = f"no answer in {SETTLE_PATIENCE:g} s"
            raise StateError(f"{here.adapter.protocol}: {silent}") from None
        if here.error is not None:
            raise StateError(f"{here.adapter.protocol}: {here.error}")

    def follow(self, lifecycle: Lifecycle) -> None:
        """Do here what the record says. From an event loop."""
        for here in self._here.values():
            self._settle_if_due(here)
        for handoff in lifecycle.handoffs:
            if handoff.is_provisional and handoff.origin:
                self._watch(handoff)

    def _settle_if_due(self, here: _Here) -> None:
        if here.over or not here.imported:
            return
        with contextlib.suppress(StateNotFound):
            handoff = self._find(here.context.nonce)
            if handoff.status == "failed":
                here.over = True
                self._start(self._settle(here, "discard"), "drainmw discard")
            elif handoff.status == "acknowledged" and not handoff.provisional:
                here.over = True
                self._start(self._settle(here, "confirm"), "drainmw confirm")

    async def _settle(self, here: _Here, what: Any) -> None:
        protocol, hook = here.adapter.protocol, hook_of(here.adapter, what)
        here.what = what
        try:
            if hook is not None:
                async with asyncio.timeout(SETTLE_PATIENCE):
                    await called(hook, here.context)
            elif what == "discard":
                here.error = "it has no discard, so what was imported is still there"
        except Exception as exc:
            here.error = failure_text(exc)
        if here.error is not None:
            logger().error(f"{what} failed", protocol=protocol, error=here.error)
        here.settled.set()

    # Looking after what no event tells of

    def _watch(self, handoff: Handoff) -> None:
        if handoff.nonce not in self._watched:
            self._watched.add(handoff.nonce)
            self._start(self._look_after(handoff.nonce), "drainmw handoff watch")

    async def _look_after(self, nonce: str) -> None:
        try:
            while self._may_change(nonce):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(WATCH_PAUSE)
        finally:
            self._watched.discard(nonce)

    def _may_change(self, nonce: str) -> bool:
        """Fail it where it is late, confirm it where the old side is proven dead."""
        try:
            self._expire()
            handoff = self._find(nonce)
            if not handoff.is_provisional:
                return handoff.status == "pending"
            if not is_dead(handoff.origin):
                return handoff.origin is not None
            record = self._siblings.record
            is_news = record.transact(lambda newest: newest.handoffs.confirm(nonce))
        except StateNotProvisional:  # it was discarded this instant
            return False
        except GroupError:  # the record is not to be had now
            return True
        if is_news:
            record.wake()
            logger().info("handoff confirmed", nonce=nonce, proof="old side dead")
        self._follow()
        return False

    # What is told of it

    def status(self, nonce: str | None) -> StateStatus:
        """Where the handoff of that nonce stands.

        Raises:
            StateNotFound: There is none.
        """
        self._expire()
        return self._siblings.record.read()[1].handoffs.find(nonce).told()

    def taken(self) -> list[TakenReport]:
        """Every handoff of this release."""
        self._expire()
        found: list[TakenReport] = []
        for handoff in self._siblings.record.read()[1].handoffs:
            told: TakenReport = {
                "protocol": handoff.protocol,
                "nonce": handoff.nonce,
                "status": handoff.status,
                "provisional": handoff.is_provisional,
            }
            if handoff.failure is not None:
                told["failure"] = handoff.failure
            if lost := self._lost(handoff):
                told["lost"] = lost
            found.append(told)
        return found

    def warnings(self) -> Iterator[str]:
        """What an operator should know of it."""
        for handoff in self._siblings.record.read()[1].handoffs:
            if handoff.is_provisional:
                yield (
                    f"{handoff.protocol} is provisional until the old release of "
                    f"handoff {handoff.nonce} is detached"
                )
            if lost := self._lost(handoff):
                ended = ", ".join(f"worker {pid}" for pid in lost)
                yield f"{ended} has ended, and with it a share of {handoff.protocol}"
        for here in self._here.values():
            if here.error is not None and here.what == "confirm":
                yield (
                    f"{here.adapter.protocol} has moved here, and its confirm has "
                    f"failed: {here.error}"
                )
            elif here.error is not None:
                yield (
                    f"{here.adapter.protocol} was imported and is not undone: "
                    f"{here.error}; end this release and start a fresh one"
                )

    def _lost(self, handoff: Handoff) -> list[int]:
        """The workers that have imported what is provisional, and have ended."""
        if not handoff.is_provisional:
            return []
        live = self._siblings.record.members()
        return [pid for pid in handoff.members if pid not in live]

    def _expire(self) -> None:
        """Fail what is late, or whose carrier has ended; cheap if nothing is."""
        record = self._siblings.record
        now, handoffs = self._clock(), record.read()[1].handoffs
        pending = [handoff for handoff in handoffs if handoff.status == "pending"]
        if not pending:
            return
        live = record.members()
        if any(now >= h.deadline or h.carrier not in live for h in pending):
            record.transact(lambda newest: newest.handoffs.expire(now, live))
            record.wake()
            self._follow()

    def _find(self, nonce: str) -> Handoff:
        return self._siblings.record.read()[1].handoffs.find(nonce)

    def _start(self, work: Any, name: str) -> None:
        task = start_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            error = failure_text(exc)
            logger().error("handoff disturbed", task=task.get_name(), error=error)
