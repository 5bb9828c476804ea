"""The control endpoints, and the doors before them.

The doors are tried in the order of `Control.__call__`; errors become answers by
the one table `STATUS`. Where no token is configured everything is closed: no
address, no header and no kind of socket opens it. Only `serve` makes a control
app without that door, for a listener of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from drainmw import metrics
from drainmw.answers import PROBLEM
from drainmw.bodies import (
    BeginRequest,
    NonceRequest,
    OfferRequest,
    StateBeginRequest,
    parse_json,
)
from drainmw.contract import (
    BEGIN_PATH,
    CORDON_PATH,
    DETACH_PATH,
    METRICS_PATH,
    OFFER_PATH,
    REPORT_PATH,
    RESUME_PATH,
    STATE_BEGIN_PATH,
    STATE_EXPORT_PATH,
    STATE_STATUS_PATH,
    STATUS_PATH,
    UNCORDON_PATH,
    Offered,
)
from drainmw.core.envelope import Export
from drainmw.errors import (
    AlreadyStarted,
    CountersInvalid,
    CountersUnknown,
    DrainDetached,
    DrainError,
    DrainNotFound,
    DrainResumed,
    GroupError,
    PhaseConflict,
    RequestInvalid,
    RevisionMismatch,
    StateAdapterNotFound,
    StateAlreadyStarted,
    StateExportInvalid,
    StateExportTooLarge,
    StateNotExportable,
    StateNotFound,
    StateRequestInvalid,
    StateRevisionInvalid,
    StateSourceInvalid,
    StateValueInvalid,
    StateVersionUnknown,
)
from drainmw.log import logger
from drainmw.offering import Offer
from drainmw.release import Drain

BODY_MAXIMUM = 16 * 1024  # bytes
DISCARD_MAXIMUM = 16 * 2**20  # bytes read of a body too large, so that 413 is seen
_PORT = re.compile(r"(?<=[^:]):[0-9]*$")
_LOCAL_NAME = re.compile(r"[a-z0-9_-]+|([a-z0-9_-]+\.)+(localhost|local|internal|test)")

Headers = Mapping[str, str]


class Forbidden(DrainError):
    """Raised when a request may not come here whatever it carries."""

    code = "RUNTIME_CONTROL_FORBIDDEN"


class Closed(Forbidden):
    """Raised when no token is configured, so that none can be right."""


class Unauthorized(DrainError):
    """Raised when the token is missing or wrong."""

    code = "RUNTIME_CONTROL_UNAUTHORIZED"


class MethodNotAllowed(DrainError):
    """Raised when an endpoint has no such method."""

    code = "RUNTIME_CONTROL_METHOD_NOT_ALLOWED"


class MediaType(DrainError):
    """Raised when a POST is not JSON."""

    code = "RUNTIME_CONTROL_MEDIA_TYPE"


class BodyTooLarge(DrainError):
    """Raised when a body is over its limit."""

    code = "RUNTIME_CONTROL_BODY_TOO_LARGE"


class BodyTooSlow(DrainError):
    """Raised when a body does not arrive in time."""

    code = "RUNTIME_CONTROL_BODY_TIMEOUT"


class NoSuchPath(DrainError):
    """Raised when a control app is asked for a path that it does not have."""

    code = "RUNTIME_CONTROL_NOT_FOUND"


STATUS: Mapping[type[DrainError], tuple[int, str]] = {
    Forbidden: (403, "Not from here"),
    Closed: (403, "Control is closed"),
    Unauthorized: (401, "The control token is needed"),
    NoSuchPath: (404, "No such endpoint"),
    MethodNotAllowed: (405, "No such method here"),
    MediaType: (415, "The body must be application/json"),
    BodyTooLarge: (413, "The body is too large"),
    BodyTooSlow: (408, "The body did not arrive in time"),
    RequestInvalid: (400, "The request is not in the form of the contract"),
    AlreadyStarted: (409, "Another drain has begun"),
    RevisionMismatch: (409, "Another release is meant"),
    DrainResumed: (409, "This drain was resumed"),
    DrainDetached: (409, "Ownership has moved"),
    GroupError: (503, "The workers cannot act as one"),
    PhaseConflict: (409, "Not possible in this phase"),
    DrainNotFound: (404, "No such drain"),
    CountersInvalid: (500, "A counter is not valid"),
    CountersUnknown: (503, "A counter is unknown"),
    StateRequestInvalid: (400, "The request is not in the form of the contract"),
    StateVersionUnknown: (400, "No adapter reads that version"),
    StateSourceInvalid: (400, "The source is not on this host"),
    StateRevisionInvalid: (400, "A revision is not in its form"),
    StateAdapterNotFound: (404, "No such state adapter"),
    StateNotFound: (404, "No such handoff"),
    StateNotExportable: (409, "Not exported in this phase"),
    StateAlreadyStarted: (409, "Another handoff has begun"),
    StateExportInvalid: (500, "The state does not pass its own check"),
    StateExportTooLarge: (500, "The state is too large"),
    StateValueInvalid: (500, "The state is not JSON"),
    metrics.MetricsUnavailable: (501, "Metrics are not installed"),
}

Endpoint = Callable[[Request], Awaitable[Response]]


class Control:
    """The control app of one `Drain`."""

    def __init__(self, drain: Drain, *, trusted: bool = False) -> None:
        """`trusted` leaves the token to the permissions of the socket file."""
        self._drain = drain
        self._trusted = trusted
        self._said_closed = False
        self._routes: dict[str, tuple[str, Endpoint]] = {
            BEGIN_PATH: ("POST", self._begin),
            STATUS_PATH: ("GET", self._status),
            REPORT_PATH: ("GET", self._report),
            METRICS_PATH: ("GET", self._metrics),
            CORDON_PATH: ("POST", self._cordon),
            UNCORDON_PATH: ("POST", self._uncordon),
            RESUME_PATH: ("POST", self._resume),
            DETACH_PATH: ("POST", self._detach),
            OFFER_PATH: ("POST", self._offer),
            STATE_EXPORT_PATH: ("GET", self._export),
            STATE_BEGIN_PATH: ("POST", self._begin_handoff),
            STATE_STATUS_PATH: ("GET", self._handoff_status),
        }

    @property
    def paths(self) -> frozenset[str]:
        """Every path that is answered here."""
        return frozenset(self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an app of its own; a path it does not have is a 404."""
        if scope["type"] == "http":
            await self.answer(scope["path"], scope, receive, send)

    async def answer(
        self, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one HTTP request as one of that path, whatever its scope says."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request, path)
        except ClientDisconnect:
            return
        except DrainError as exc:
            response = problem(exc)
        except Exception as exc:
            logger().error("control failed", error=type(exc).__name__, exc_info=True)
            response = problem(DrainError("this is a fault of drainmw"))
        response.headers["cache-control"] = "no-store"
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    async def _answer(self, request: Request, path: str) -> Response:
        method, endpoint = self._routes.get(path, (request.method, _nowhere))
        self._check_marks(request)
        if not (path == METRICS_PATH and self._drain.settings.metrics_public):
            self._check_token(request)
        if request.method not in (method, "HEAD" if method == "GET" else method):
            raise MethodNotAllowed(_allowed(method))
        return await endpoint(request)

    # Doors

    def _check_marks(self, request: Request) -> None:
        for name in ("origin", "sec-fetch-site"):
            if name in request.headers:
                raise Forbidden(f"a request with {name.title()} comes from a browser")
        hosts = request.headers.getlist("host")
        if len(hosts) > 1 or not all(self._is_known(host) for host in hosts):
            raise Forbidden(
                "this Host is not known here; allow its name in DRAINMW_CONTROL_HOSTS"
            )

    def _is_known(self, host: str) -> bool:
        """Not a name that somebody else could register and point here."""
        name = _PORT.sub("", host).lower().removesuffix(".")
        if name in self._drain.settings.control_hosts or _LOCAL_NAME.fullmatch(name):
            return True
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            return False
        return True

    def _check_token(self, request: Request) -> None:
        if self._trusted:
            return
        if not self._drain.tokens:
            raise Closed(
                "this app has no token: set DRAINMW_TOKEN or DRAINMW_TOKEN_FILE there"
            )
        given = request.headers.getlist("authorization")
        if len(given) != 1:
            raise Unauthorized(
                "send the control token once, as Authorization: Bearer <token>"
            )
        if not self._drain.tokens.accept(given[0].encode("latin-1")):
            raise Unauthorized("Authorization must be Bearer and the token of this app")

    # Endpoints

    async def _begin(self, request: Request) -> Response:
        body = BeginRequest.parse(await self._json(request))
        duplicate = await self._drain.begin(body)
        return JSONResponse({"accepted": True, "duplicate": duplicate}, 202)

    async def _status(self, request: Request) -> Response:
        return JSONResponse(await self._drain.status(_queried(request, "nonce")))

    async def _report(self, _request: Request) -> Response:
        return JSONResponse(await self._drain.report())

    async def _metrics(self, _request: Request) -> Response:
        text = metrics.render(await self._drain.report())
        return Response(text, media_type=metrics.MEDIA_TYPE)

    async def _cordon(self, request: Request) -> Response:
        await self._optional_json(request)
        return self._moved(self._drain.cordon())

    async def _uncordon(self, request: Request) -> Response:
        await self._optional_json(request)
        return self._moved(self._drain.uncordon())

    async def _resume(self, request: Request) -> Response:
        body = NonceRequest.parse(await self._json(request))
        return self._moved(await self._drain.resume(body.nonce))

    async def _detach(self, request: Request) -> Response:
        body = NonceRequest.parse(await self._json(request))
        self._drain.detach(body.nonce)
        return self._moved(self._drain.epoch)

    async def _offer(self, request: Request) -> Response:
        """Open a listener for one fetch; refused at once where there is no state."""
        content = parse_json(await self._body(request), StateRequestInvalid)
        body = OfferRequest.parse(content)
        revisions = (body.source_revision, body.target_revision)
        self._drain.check_export(body.protocol, *revisions)
        adapter = self._drain.states.find(body.protocol)

        async def export(_request: Request) -> Response:
            try:
                export = self._drain.export_state(adapter.protocol, *revisions)
                return _exported(await export)
            except DrainError as exc:
                return problem(exc)

        offer = Offer(export)
        port = await offer.open(body.timeout_ms / 1000)
        answer: Offered = {
            "protocol": adapter.protocol,
            "schemaVersion": adapter.schema_version,
            "sourceRevision": body.source_revision,
            "targetRevision": body.target_revision,
            "source": {
                "url": f"http://127.0.0.1:{port}{STATE_EXPORT_PATH}",
                "authorization": f"Bearer {offer.token}",
            },
        }
        return JSONResponse(answer)

    async def _export(self, request: Request) -> Response:
        export = await self._drain.export_state(
            _queried(request, "protocol"),
            _queried(request, "sourceRevision") or "",
            _queried(request, "targetRevision") or "",
        )
        return _exported(export)

    async def _begin_handoff(self, request: Request) -> Response:
        content = parse_json(await self._body(request), StateRequestInvalid)
        body = StateBeginRequest.parse(content)
        duplicate = self._drain.begin_handoff(body)
        return JSONResponse({"accepted": True, "duplicate": duplicate}, 202)

    async def _handoff_status(self, request: Request) -> Response:
        status = self._drain.handoffs.status(_queried(request, "nonce"))
        return JSONResponse(status)

    def _moved(self, epoch: int) -> Response:
        return JSONResponse({"phase": str(self._drain.phase), "epoch": epoch})

    # Bodies

    async def _optional_json(self, request: Request) -> None:
        """Read the body of an endpoint that needs none; it may be empty."""
        body = await self._body(request, needed=False)
        if body:
            parse_json(body)

    async def _json(self, request: Request) -> Any:
        return parse_json(await self._body(request))

    async def _body(self, request: Request, *, needed: bool = True) -> bytes:
        content_type = request.headers.get("content-type")
        media_type = (content_type or "").partition(";")[0].strip().lower()
        if media_type != "application/json" and (needed or content_type is not None):
            raise MediaType("send it with Content-Type: application/json")
        try:
            async with asyncio.timeout(self._drain.settings.control_body_timeout):
                return await _bounded(request)
        except TimeoutError:
            raise BodyTooSlow("send the whole body at once") from None


def _exported(export: Export) -> Response:
    return Response(export.body, media_type="application/json")


def _queried(request: Request, name: str) -> str | None:
    """A parameter of the query that is there once."""
    query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
    values = query.get(name, [])
    return values[0] if len(values) == 1 else None


async def _bounded(request: Request) -> bytes:
    body, seen = b"", 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > DISCARD_MAXIMUM:
            break
        if seen <= BODY_MAXIMUM:
            body += chunk
    if seen > BODY_MAXIMUM:
        raise BodyTooLarge(f"it must be at most {BODY_MAXIMUM} bytes")
    return body


async def _nowhere(_request: Request) -> Response:
    raise NoSuchPath("the control endpoints are in the README")


def problem(exc: DrainError) -> Response:
    """An error as an answer, by the table."""
    status, title = STATUS.get(type(exc), (500, "Internal error"))
    content: dict[str, Any] = {"title": title, "status": status, "code": exc.code}
    if str(exc):
        content["detail"] = str(exc)
    headers: dict[str, str] = {}
    if isinstance(exc, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(exc, MethodNotAllowed):
        headers["allow"] = str(exc)
        content["detail"] = f"allowed here: {exc}"
    elif isinstance(exc, CountersUnknown):
        headers["retry-after"] = "1"
    elif isinstance(exc, DrainNotFound) and exc.resumed:
        content["resumed"] = True
    return JSONResponse(content, status, headers, media_type=PROBLEM)


def _allowed(method: str) -> str:
    return "GET, HEAD" if method == "GET" else method
