"""Closes the long-lived connections of one event loop, each at its moment.

At begin a walker makes a schedule of what is in flight in its loop, and walks
it: one task, whatever the number of connections. Only while a close is being
sent there is a second one, since a server may wait for the client's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, TypeVar

from drainmw.core.drain import Run
from drainmw.core.ledger import Ledger, Ticket
from drainmw.core.policy import Policy
from drainmw.core.schedule import Schedule
from drainmw.core.spread import (
    Timing,
    close_reason,
    margin,
    milliseconds_to_retry,
    places,
    window_for,
)
from drainmw.exchange import Exchange, tickets
from drainmw.flag import Pulse, running_loop, start_task
from drainmw.log import logger
from drainmw.policies import Policies
from drainmw.settings import Settings
from drainmw.sockets import QUIET, Socket
from drainmw.text import failure_text, shown_path

T = TypeVar("T")

CHUNK = 50  # connections that are looked at, or closed, before others get a turn
TURN = 0.002  # seconds of work before others get a turn
TICK = 0.005  # seconds between two rounds of the walk, at least
CROWD = 1000  # let in, before those that have ended are looked for
FIRST_LOOK = 1.0  # seconds after its end, whether a stream goes on all the same
NEXT_LOOK = 0.25
LEAST_PATIENCE = 0.05  # seconds for a close that is sent just before the deadline


class Walker:
    """One loop's schedule in one drain. It belongs to that loop."""

    def __init__(
        self,
        run: Run,
        settings: Settings,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        chance: Random,
        workers: int = 1,
    ) -> None:
        """`workers` is how many processes share the window."""
        self._run = run
        self._settings = settings
        self._policies = Policies(settings)
        self._ledger = ledger
        self._clock = clock
        self._chance = chance
        self._workers = workers
        self._timeout = run.deadline - run.begun_at
        self._last_moment = run.deadline - margin(self._timeout)
        self._schedule = Schedule()
        self._added = Pulse()
        self._sockets: dict[Socket, None] = {}
        self._let_in: set[Ticket] = set()
        self._crowd = CROWD
        self._tasks: dict[Ticket, asyncio.Task[Any]] = {}
        self._sought: list[Exchange] = []
        """To be ended, once its task is known."""
        self._held: list[Any] = []
        """The senders of responses in flight: so none of them is recycled."""
        self._walk: asyncio.Task[None] | None = None
        self._done: Counter[str] = Counter()
        self._shortened: dict[str, str] = {}
        """What does not fit before the deadline, and what is left of it."""

    def start(self) -> None:
        """Begin to walk; once."""
        self._schedule.add(self._last_moment, self._end_let_in)
        self._walk = start_task(self._walked(), name="drainmw walker")

    def stop(self) -> None:
        """Leave every connection that is not closed yet as it is."""
        if self._walk is not None:
            self._walk.cancel()
        for ticket in (*self._sockets, *self._let_in):
            if isinstance(ticket, Socket):
                ticket.stay()
        if self._done:
            logger().info("connections closed", **self._done)

    # The schedule

    def let_in(self, ticket: Ticket) -> None:
        """One that `admit` has let in: it may finish here until time runs out."""
        self._let_in.add(ticket)
        if len(self._let_in) > self._crowd:
            self._let_in = {t for t in self._let_in if self._ledger.runs(t)}
            self._crowd = max(CROWD, 2 * len(self._let_in))

    def add_response(self, exchange: Exchange) -> None:
        """One that has started during the drain."""
        if exchange in self._let_in and self._clock() < self._last_moment:
            return
        policy = self._policy_of(exchange)
        if policy is None or policy.waits:
            return
        self._held.append(exchange.sender)
        grace = self._timing(policy, 1).grace
        self._add(self._clock() + grace, self._end, exchange)

    def _end_let_in(self) -> None:
        """Time has run out."""
        for ticket in filter(self._ledger.runs, self._let_in):
            if isinstance(ticket, Exchange):
                self._end_by_policy(ticket)
            elif isinstance(ticket, Socket):
                if not self._policies.of_websocket(ticket.scope).waits:
                    self._add(self._last_moment, self._close, ticket)

    def _end_by_policy(self, exchange: Exchange) -> None:
        policy = self._policy_of(exchange)
        if policy is not None and not policy.waits:
            self._add(self._last_moment, self._end, exchange)

    async def _plan(self) -> None:
        """Schedule all that is in flight here."""
        sockets = await self._leaving_sockets()
        responses = await self._leaving_responses()
        number = len(sockets) + len(responses)
        place = places(number, self._chance)
        turn = _Turn()
        for socket, policy in sockets:
            self._add_socket(socket, self._timing(policy, number), next(place))
            await turn.give_way()
        for exchange, policy in responses:
            timing = self._timing(policy, number)
            moment = self._run.begun_at + timing.grace + next(place) * timing.window
            self._add(moment, self._end, exchange)
            await turn.give_way()
        if self._shortened:
            logger().warning(
                "closes brought forward",
                **self._shortened,
                remedy="begin with a longer timeout",
            )

    def _add_socket(self, socket: Socket, timing: Timing, place: float) -> None:
        self._sockets[socket] = None
        moment = self._run.begun_at + place * timing.window
        self._add(moment + timing.notice - QUIET, Socket.watch, socket)
        self._add(moment + timing.notice, self._leave, socket)
        self._add(moment + max(timing.notice, timing.grace), self._close, socket)

    def _add(self, moment: float, act: Callable[[T], None], on: T) -> None:
        self._schedule.add(min(moment, self._last_moment), partial(act, on))
        self._added.beat()

    def _timing(self, policy: Policy, connections: int) -> Timing:
        longest = self._settings.close_window
        window = window_for(connections * self._workers, longest)
        notice = policy.notice
        if notice is None:
            notice = self._settings.close_notice
        timing = Timing(notice, policy.grace or 0.0, window)
        cut = timing.cut(self._timeout)
        for name in ("window", "grace"):
            wanted, got = getattr(timing, name), getattr(cut, name)
            if got < wanted:
                self._shortened[name] = f"{got:.1f} s of {wanted:.1f} s"
        return cut

    async def _leaving_sockets(self) -> list[tuple[Socket, Policy]]:
        turn = _Turn()
        found: list[tuple[Socket, Policy]] = []
        for ticket in list(self._ledger.entered["websocket"]):
            if isinstance(ticket, Socket) and self._is_ours(ticket):
                policy = self._policies.of_websocket(ticket.scope)
                if not policy.waits:
                    found.append((ticket, policy))
            await turn.give_way()
        return found

    def _is_ours(self, socket: Socket) -> bool:
        here = socket.loop is asyncio.get_running_loop()
        return here and socket not in self._let_in

    async def _leaving_responses(self) -> list[tuple[Exchange, Policy]]:
        if not any(exchange.can_end for exchange in self._in_flight()):
            return []  # those that start later are told of
        await self._look_up_tasks()
        turn = _Turn()
        found: list[tuple[Exchange, Policy]] = []
        for exchange in list(self._in_flight()):
            if exchange in self._tasks and exchange not in self._let_in:
                self._held.append(exchange.sender)
                policy = self._policy_of(exchange)
                if policy is not None and not policy.waits:
                    found.append((exchange, policy))
            await turn.give_way()
        return found

    def _in_flight(self) -> Iterator[Exchange]:
        tickets = [*self._ledger.pool, *self._ledger.entered["http"]]
        for ticket in tickets:
            if isinstance(ticket, Exchange) and ticket.scope is not None:
                yield ticket

    def _policy_of(self, exchange: Exchange) -> Policy | None:
        """Of a response that can be ended; `None` where it cannot."""
        if not exchange.can_end:
            return None
        return self._policies.of_response(
            exchange.scope, is_event_stream=exchange.is_event_stream
        )

    async def _look_up_tasks(self) -> None:
        turn = _Turn()
        for task in asyncio.all_tasks():
            for ticket in tickets(task):
                self._tasks[ticket] = task
            await turn.give_way()

    # The walk

    async def _walked(self) -> None:
        await self._plan()
        while True:
            beats = self._added.count
            for act in self._schedule.due(self._clock(), CHUNK):
                self._carry_out(act)
            if self._sought:
                await self._end_sought()
            await asyncio.sleep(TICK)  # what else is due by then goes with it
            pause = self._schedule.pause(self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._added.after(beats)

    def _carry_out(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as exc:  # one connection must not keep the others open
            logger().error("close failed", error=failure_text(exc), exc_info=True)

    def _leave(self, socket: Socket) -> None:
        if socket.leave(self._send_close):
            self._add(self._clock() + QUIET, self._leave, socket)

    def _close(self, socket: Socket) -> None:
        socket.leave(self._send_close)
        socket.close()

    def _send_close(self, socket: Socket) -> None:
        hint = milliseconds_to_retry(self._settings.retry_after, self._chance)
        closing = start_task(
            socket.send_close(
                self._settings.close_code, close_reason(hint), self._patience()
            ),
            name="drainmw close",
        )
        socket.closing = closing
        closing.add_done_callback(partial(self._noted, socket))

    def _noted(self, socket: Socket, closing: asyncio.Task[bool]) -> None:
        self._sockets.pop(socket, None)
        if closing.cancelled() or closing.exception() is not None:
            return
        self._done["websockets"] += 1
        if not closing.result():
            self._done["given_up"] += 1
            path = shown_path(socket.scope["path"])
            logger().warning(
                "connection given up", path=path, reason="it does not take the close"
            )

    def _end(self, exchange: Exchange) -> None:
        if exchange.is_ended or not exchange.can_end:
            return
        if not self._ledger.runs(exchange):
            return
        task = self._tasks.get(exchange)
        if task is None:
            self._sought.append(exchange)
            return
        exchange.end(task, self._patience())
        self._done["streams"] += 1
        self._insist_later(exchange, task, FIRST_LOOK)

    def _insist_later(
        self, exchange: Exchange, task: asyncio.Task[Any], pause: float
    ) -> None:
        insist = partial(self._insist, exchange, task)
        self._schedule.add(self._clock() + pause, insist)

    def _insist(self, exchange: Exchange, task: asyncio.Task[Any]) -> None:
        if self._ledger.runs(exchange) and exchange.insist(task):
            self._insist_later(exchange, task, NEXT_LOOK)

    async def _end_sought(self) -> None:
        """Look for the tasks of all that have come since we last did."""
        sought, self._sought = self._sought, []
        await self._look_up_tasks()
        for exchange in sought:
            self._carry_out(partial(self._end, exchange))
        for exchange in self._sought:
            path = shown_path(exchange.scope["path"])
            logger().warning("stream not ended", path=path, reason="no task")
        self._sought.clear()

    def _patience(self) -> float:
        """Seconds that a client has; less just before the deadline."""
        left = (self._run.deadline - self._clock()) / 2
        return min(self._settings.close_timeout, max(left, LEAST_PATIENCE))


class _Turn:
    """A turn of the loop, which is given away when it has lasted long enough."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._steps = 0

    async def give_way(self) -> None:
        """Let others run, if they have waited. Called after each step."""
        self._steps += 1
        if self._steps >= CHUNK or time.monotonic() - self._since > TURN:
            await asyncio.sleep(0)
            self._since = time.monotonic()
            self._steps = 0


class Walkers:
    """The walkers of a release: one in each loop that has connections."""

    def __init__(self, make: Callable[[Run], Walker]) -> None:
        self._make = make
        self._run: Run | None = None
        self._loops: dict[asyncio.AbstractEventLoop, Walker | None] = {}
        self._lock = threading.RLock()

    def note(self) -> Walker | None:
        """The walker of the running loop, from now on also known to have work."""
        loop = running_loop()
        if loop is None:
            return None
        with self._lock:
            if loop not in self._loops:
                self._forget_closed()
            walker = self._loops.setdefault(loop, None)
            if walker is None and self._run is not None:
                walker = self._loops[loop] = self._make(self._run)
                walker.start()
            return walker

    def begin(self, run: Run, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        """Walk in every loop that is known, and in these."""
        with self._lock:
            self._run = run
            for loop in {*self._loops, *loops}:
                self._loops[loop] = walker = self._make(run)
                self._call(loop, walker.start)

    def end(self) -> None:
        """Stop walking; what is not closed stays open."""
        with self._lock:
            self._run = None
            for loop, walker in list(self._loops.items()):
                if walker is not None:
                    self._loops[loop] = None
                    self._call(loop, walker.stop)

    def _forget_closed(self) -> None:
        for loop in [loop for loop in self._loops if loop.is_closed()]:
            del self._loops[loop]

    def _call(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if loop is running_loop():
            call()
            return
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed, and its connections with it
            del self._loops[loop]
