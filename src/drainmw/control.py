"""The control endpoints, and the doors before them.

The doors are tried in the order of `Control.__call__`; errors become answers by
the one table `STATUS`. Where no token is configured everything is closed: no
address, no header and no kind of socket opens it. Only `serve` makes a control
app without that door, for a listener of its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from drainmw import metrics
from drainmw.bodies import BeginRequest, NonceRequest, ResumeRequest, parse_json
from drainmw.contract import (
    BEGIN_PATH,
    CORDON_PATH,
    DETACH_PATH,
    METRICS_PATH,
    REPORT_PATH,
    RESUME_PATH,
    STATUS_PATH,
    UNCORDON_PATH,
)
from drainmw.errors import DrainError
from drainmw.log import logger
from drainmw.problems import (
    Closed,
    Forbidden,
    MethodNotAllowed,
    NoSuchPath,
    Unauthorized,
    problem,
)
from drainmw.reading import body_of, queried
from drainmw.release import Drain
from drainmw.statecontrol import StateControl

_PORT = re.compile(r"(?<=[^:]):[0-9]*$")
_LOCAL_NAME = re.compile(r"[a-z0-9_-]+|([a-z0-9_-]+\.)+(localhost|local|internal|test)")

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
            **StateControl(drain, self._body).routes,
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
        return JSONResponse(await self._drain.status(queried(request, "nonce")))

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
        body = ResumeRequest.parse(await self._json(request))
        return self._moved(await self._drain.resume(body.nonce, force=body.force))

    async def _detach(self, request: Request) -> Response:
        body = NonceRequest.parse(await self._json(request))
        self._drain.detach(body.nonce)
        return self._moved(self._drain.epoch)

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
        return await body_of(
            request, within=self._drain.settings.control_body_timeout, needed=needed
        )


async def _nowhere(_request: Request) -> Response:
    raise NoSuchPath("the control endpoints are in the README")


def _allowed(method: str) -> str:
    return "GET, HEAD" if method == "GET" else method
