"""ASGI admission: what is counted, what is refused, what is answered here.

The fast path is for an HTTP request while the gate is open. It is written out
in one function, since every call in it would be paid by every request; the
order of its steps is the promise that `core.ledger` explains. Everything else
goes through `_Other`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from sys import getrefcount
from typing import Any, TypeVar, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainmw.answers import PROBLEM, Refusal, answer, last_answer
from drainmw.control import Control
from drainmw.core.drain import Gate, Phase
from drainmw.core.ledger import GateByte, Kind, Ticket
from drainmw.errors import GroupError, InstalledTwice, Misuse
from drainmw.exchange import Exchange, runs_exchanges
from drainmw.log import logger
from drainmw.release import Drain
from drainmw.settings import unknown_variables
from drainmw.siblingapp import SiblingApp
from drainmw.sockets import Socket
from drainmw.text import route_path

_LAYERS_MAXIMUM = 100  # an app may hold itself
PROBE_METHODS = frozenset(("GET", "HEAD"))
_QUALNAME = "DrainMiddleware.<locals>.drain_middleware"
PATIENCE_PAST_DEADLINE = 1.0  # seconds a refused body is read past the deadline


T = TypeVar("T", bound=Ticket)

AnyApp = Callable[[Any, Any, Any], Awaitable[None]]
"""An app of whichever framework; each has types of its own for scope and messages."""


def DrainMiddleware(app: AnyApp, drain: Drain | None = None) -> ASGIApp:
    """Wrap an app, as the outermost layer of it.

    Counts its requests and WebSockets, refuses new ones once a drain begins,
    answers the control endpoints and completes the probes. Without `drain` it
    makes one from the `DRAINMW_*` variables. What it returns has `app` and
    `drain` as attributes; it is a function, since a call of a plain coroutine
    function costs half of one through a class.

    Raises:
        SettingsError: Names each variable that cannot be used.
        Misuse: The two arguments are not an app and a drain.
        InstalledTwice: The app, or the app that is being built, has one already.
    """
    given: tuple[object, object] = (app, drain)
    if not callable(given[0]) or not isinstance(given[1], Drain | None):
        raise Misuse("DrainMiddleware takes the app first: DrainMiddleware(app, drain)")
    drain = drain or Drain()
    _check_alone(app, drain)
    other = _Other(app, drain)
    drain.open_to_siblings = SiblingApp(drain).serve
    for name, meant in unknown_variables():
        logger().warning("unknown variable", variable=name, meant=meant)
    if not drain.tokens:
        logger().warning(
            "control endpoints closed",
            reason="no token is configured",
            remedy="set DRAINMW_TOKEN or DRAINMW_TOKEN_FILE, as `drainmw token` makes "
            "one; the control socket of `drainmw serve` needs none",
        )
    ledger = drain.ledger
    gate = ledger.gate
    exempt = other.exempt
    # What its factory makes, which the ledger need not know.
    spare = cast(list[Exchange], ledger.spare)
    fresh = cast(Callable[[], Exchange], ledger.fresh)
    clock = drain.clock

    def rebind(other_gate: GateByte) -> None:
        nonlocal gate
        gate = other_gate

    drain.use_gate(rebind)

    # Bytecodes are what it costs; docs/performance.md has the price of each step.
    async def drain_middleware(scope: Scope, receive: Receive, send: Send) -> None:
        ticket: Exchange | None
        try:
            if (
                gate[0]
                or scope["type"] != "http"
                or scope["path"] in exempt
                or (scope["root_path"] and route_path(scope) in exempt)
            ):
                ticket = None
            else:
                ticket = spare.pop()
        except IndexError:  # every ticket is in use
            ticket = fresh()
        except KeyError:  # the root path is optional, and lifespan has no path
            ticket = None
        if ticket is None:
            if gate[0] == Gate.UNJOINED:
                drain.join()
            if scope["type"] != "websocket":
                return await other(scope, receive, send)
            socket = other.admit_websocket(scope)
            if socket is None:
                return await other.refuse_websocket(scope, receive, send)
            try:
                return await app(scope, *socket.open(receive, send))
            except BaseException as exc:
                if not socket.explains(exc):
                    raise
                return None
            finally:
                try:
                    await socket.end()
                finally:
                    ledger.release(socket)
        if gate[0]:
            ledger.put_back(ticket)
            return await other(scope, receive, send)
        ticket.scope = scope
        ticket.send = send
        ticket.started = clock()
        ticket.uses += 1.0
        try:
            await app(scope, receive, ticket.sender)
        except BaseException as exc:
            if not (ticket.is_ended and ticket.explains(exc)):
                raise
        finally:
            if getrefcount(ticket.sender) > _UNSHARED:
                try:
                    if ticket.is_ended:
                        await ticket.complete()
                finally:
                    ledger.put_back(ticket, recycle=False)
            else:
                ticket.scope = ticket.send = ticket.start = ticket.last = None
                spare.append(ticket)
                if gate[0]:
                    ledger.wake()

    vars(drain_middleware).update(app=app, drain=drain)
    return runs_exchanges(drain_middleware)


def _references_of_an_unshared_sender() -> int:
    """How many references `getrefcount` finds where nobody else holds one."""
    ticket = Ticket()
    ticket.sender = ticket.__init__  # type: ignore[misc]  # any bound method
    return getrefcount(ticket.sender)


_UNSHARED = _references_of_an_unshared_sender()


class _Other:
    """Every way in but the fast path."""

    def __init__(self, app: AnyApp, drain: Drain) -> None:
        settings = drain.settings
        self._app = app
        self._drain = drain
        self._ledger = drain.ledger
        self._new_exchange = drain.new_exchange
        self._control = Control(drain)
        self._readiness = settings.readiness_path
        self._liveness = settings.liveness_path
        self._refusal = Refusal(
            retry_after=settings.retry_after,
            chance=drain.chance,
            streams=settings.event_stream_refusal == 200,
            extra=settings.refusal_headers,
            body_bytes=settings.refused_body_bytes,
            body_readers=settings.refused_body_readers,
        )
        probes = {self._readiness, self._liveness} - {None}
        self.exempt = self._control.paths | probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._drain.walkers.note()
        if scope["type"] == "http":
            self._drain.ownership.start()  # where there is no lifespan to tell
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on; an app that turns out to be wrapped twice must not start.

        A server takes any other exception for an app without lifespan. What the
        state holds at startup is in the scope of every request that follows.
        Schedules may run once the app has started, and no more once it has ended.
        """
        if isinstance(state := scope.get("state"), dict):
            state["drainmw"] = self._drain
        ownership, has_lifespan = self._drain.ownership, False

        async def sender(message: Message) -> None:
            nonlocal has_lifespan
            has_lifespan = has_lifespan or message["type"].startswith("lifespan.")
            if message["type"] == "lifespan.startup.complete":
                ownership.start()
            elif message["type"].startswith("lifespan.shutdown."):
                await ownership.stop()
            await send(message)

        await self._drain.held_at_birth()
        try:
            await self._app(scope, receive, sender)
        except InstalledTwice as exc:
            logger().error("app not started", reason=str(exc))
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
        except Exception:
            if not has_lifespan:
                ownership.start()
            raise

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if path in self._control.paths:
            await self._control.answer(path, scope, receive, self._closing(scope, send))
        elif path == self._readiness and scope["method"] in PROBE_METHODS:
            await self._readiness_probe(scope, receive, self._closing(scope, send))
        elif path == self._liveness and scope["method"] in PROBE_METHODS:
            await self._liveness_probe(scope, receive, self._closing(scope, send))
        elif (ticket := self._admit("http", scope, self._new_exchange)) is not None:
            await self._run(ticket, scope, receive, send)
        else:
            self._ledger.refuse(self._drain.clock())
            await self._refusal.http(
                scope, receive, send, phase=self._phase(), patience=self._patience()
            )

    @runs_exchanges
    async def _run(
        self, ticket: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        ticket.send = send
        try:
            await self._app(scope, receive, ticket.sender)
        except BaseException as exc:
            if not (ticket.is_ended and ticket.explains(exc)):
                raise
        finally:
            try:
                if ticket.is_ended:
                    await ticket.complete()
            finally:
                self._ledger.release(ticket)

    def admit_websocket(self, scope: Scope) -> Socket | None:
        """A ticket, where it is let in."""
        return self._admit("websocket", scope, Socket)

    async def refuse_websocket(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Refuse a handshake; the app is not called."""
        self._ledger.refuse(self._drain.clock())
        await self._refusal.websocket(scope, receive, send, phase=self._phase())

    # Admission

    def _admit(self, kind: Kind, scope: Scope, new: Callable[[], T]) -> T | None:
        """A ticket where the gate, or the app's own predicate, lets it in."""
        enter = partial(self._ledger.enter, kind, scope, self._drain.clock())
        ticket = enter(new, at_most=Gate.CORDONED)
        if ticket is not None:
            return ticket
        if self._ledger.gate[0] != Gate.DRAINING or not self._asked(scope):
            return None
        ticket = enter(new, at_most=Gate.DRAINING)
        walker = self._drain.walkers.note()
        if walker is not None and ticket is not None:
            walker.let_in(ticket)
        return ticket

    def _asked(self, scope: Scope) -> bool:
        admit = self._drain.settings.admit
        if admit is None:
            return False
        try:
            answer: object = admit(dict(scope))
            if inspect.isawaitable(answer):
                raise TypeError("admit must answer at once, not by a coroutine")
            return bool(answer)
        except Exception as exc:
            logger().error("admit failed", error=type(exc).__name__, exc_info=True)
            return False

    def _phase(self) -> str:
        phase = self._drain.phase
        return str(Phase.DRAINING if phase is Phase.SERVING else phase)

    def _known_phase(self) -> str | None:
        """For probes, which are answered whatever has become of the group."""
        try:
            return str(self._drain.phase)
        except GroupError:
            return None

    def _patience(self) -> float:
        """Seconds in which a refused body may be read."""
        remaining = self._drain.remaining or 0.0
        limit = self._drain.settings.refused_body_timeout
        return min(limit, remaining + PATIENCE_PAST_DEADLINE)

    # Probes

    async def _readiness_probe(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._drain.not_ready() is None and await self._passed_on(
            scope, receive, send, {"ready": True, "phase": str(Phase.SERVING)}
        ):
            return
        reason = self._drain.not_ready()
        if reason is None:  # resumed this instant
            await answer(scope, send, 200, {"ready": True, "phase": self._phase()})
            return
        await answer(
            scope,
            send,
            503,
            {
                "title": "Not ready",
                "status": 503,
                "code": "RUNTIME_NOT_READY",
                "detail": reason,
                "phase": self._known_phase(),
            },
            media_type=PROBLEM,
        )

    async def _liveness_probe(self, scope: Scope, receive: Receive, send: Send) -> None:
        alive = {"alive": True, "phase": self._known_phase()}
        if not await self._passed_on(scope, receive, send, alive):
            await answer(scope, send, 200, alive)

    async def _passed_on(
        self, scope: Scope, receive: Receive, send: Send, content: dict[str, Any]
    ) -> bool:
        """Ask the app, while serving; its 404 is replaced by our 200."""
        ticket = self._ledger.enter(
            "http", scope, self._drain.clock(), self._new_exchange
        )
        if ticket is None:
            return False
        probe = _Completed(scope, send, content)
        await self._run(ticket, scope, receive, probe)
        return True

    def _closing(self, scope: Scope, send: Send) -> Send:
        """A send for our own answers: it ends the connection, if the gate is not
        open by then."""
        ledger = self._ledger

        def sender(message: Message) -> Awaitable[None]:
            if ledger.gate[0] and message["type"] == "http.response.start":
                message = last_answer(message, scope)
            return send(message)

        return sender


class _Completed:
    """A send that puts our 200 in the place of the app's 404."""

    def __init__(self, scope: Scope, send: Send, content: dict[str, Any]) -> None:
        self._scope = scope
        self._send = send
        self._content = content
        self._replaces = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._replaces = message["status"] == 404
        if not self._replaces:
            await self._send(message)
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            await answer(self._scope, self._send, 200, self._content)


def installed_drain(app: AnyApp) -> Drain | None:
    """The drain of an app that has wrapped itself, in whichever usual way.

    Raises:
        Misuse: It will make a drain that nobody else can see.
    """
    for layer in _layers(app):
        if isinstance(drain := getattr(layer, "drain", None), Drain):
            return drain
        for planned in _planned(layer):
            if isinstance(drain := planned.kwargs.get("drain"), Drain):
                return drain
            raise Misuse(
                "the app adds DrainMiddleware without a drain; "
                "it must be app.add_middleware(DrainMiddleware, drain=drain)"
            )
    return None


def _check_alone(app: AnyApp, drain: Drain) -> None:
    """Refuse a second middleware in one chain, built already or being built."""
    for layer in _layers(app):
        if isinstance(getattr(layer, "drain", None), Drain) or _planned(layer):
            raise InstalledTwice
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_qualname == _QUALNAME:
            outer = frame.f_locals.get("ledger")
            if outer is drain.ledger:
                raise InstalledTwice
        frame = frame.f_back


def _layers(app: AnyApp) -> Iterator[Any]:
    """The apps inside an app, as far as they can be seen from outside."""
    layer: Any = app
    for _ in range(_LAYERS_MAXIMUM):
        if layer is None:
            return
        yield layer
        layer = getattr(layer, "app", None)


def _planned(layer: Any) -> list[Any]:
    """Middlewares of ours that a Starlette app will make on its first call."""
    planned = getattr(layer, "user_middleware", ())
    return [
        entry for entry in planned if getattr(entry, "cls", None) is DrainMiddleware
    ]
