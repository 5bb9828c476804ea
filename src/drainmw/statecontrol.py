"""The control endpoints of a handoff, on both sides.

An observer of workers has no state itself: it lets one of them answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drainmw.bodies import (
    AcknowledgeRequest,
    ConfirmRequest,
    NonceRequest,
    OfferRequest,
    StateBeginRequest,
    parse_json,
)
from drainmw.contract import (
    ACKNOWLEDGE_PATH,
    CONFIRM_PATH,
    DISCARD_PATH,
    HANDOFFS_PATH,
    OFFER_PATH,
    SEAL_PATH,
    STATE_BEGIN_PATH,
    STATE_EXPORT_PATH,
    STATE_STATUS_PATH,
    HandoffsReport,
    Offered,
)
from drainmw.core.envelope import Export
from drainmw.core.handoff import Recipient
from drainmw.errors import DrainError, StateRequestInvalid
from drainmw.offering import Offer
from drainmw.origin import lives
from drainmw.problems import problem
from drainmw.reading import bounded, queried
from drainmw.release import Drain
from drainmw.state import phase_of

FORWARD_PATIENCE = 90.0  # seconds for a worker to answer; an export has sixty
ACKNOWLEDGEMENT_MAXIMUM = 1024  # bytes

Endpoint = Callable[[Request], Awaitable[Response]]
Body = Callable[[Request], Awaitable[bytes]]


class StateControl:
    """Those endpoints of one `Drain`; `body` reads that of a POST."""

    def __init__(self, drain: Drain, body: Body) -> None:
        self._drain = drain
        self._body = body
        routes: dict[str, tuple[str, Endpoint]] = {
            SEAL_PATH: ("POST", self._seal),
            OFFER_PATH: ("POST", self._offer),
            ACKNOWLEDGE_PATH: ("POST", self._acknowledge),
            CONFIRM_PATH: ("POST", self._confirm),
            DISCARD_PATH: ("POST", self._discard),
            HANDOFFS_PATH: ("GET", self._handoffs),
            STATE_EXPORT_PATH: ("GET", self._export),
            STATE_BEGIN_PATH: ("POST", self._begin),
            STATE_STATUS_PATH: ("GET", self._status),
        }
        self.routes = {
            path: (method, self._by_a_worker(endpoint))
            for path, (method, endpoint) in routes.items()
        }

    def _by_a_worker(self, endpoint: Endpoint) -> Endpoint:
        if not self._drain.is_observer:
            return endpoint

        async def forwarded(request: Request) -> Response:
            content = await self._body(request) if request.method == "POST" else b""
            query = request.scope.get("query_string", b"").decode("latin-1")
            path = request.scope["path"]
            answer = await self._drain.handoffs.forward(
                request.method,
                f"{path}?{query}" if query else path,
                content,
                FORWARD_PATIENCE,
            )
            return Response(
                answer.content,
                answer.status_code,
                media_type=answer.headers.get("content-type"),
            )

        return forwarded

    # The old side

    async def _seal(self, request: Request) -> Response:
        body = NonceRequest.parse(parse_json(await self._body(request)))
        await self._drain.handoffs.seal(body.nonce)
        drain = self._drain
        return JSONResponse({"phase": str(drain.phase), "epoch": drain.epoch})

    async def _export(self, request: Request) -> Response:
        export = await self._drain.handoffs.export(
            queried(request, "protocol"),
            queried(request, "sourceRevision") or "",
            queried(request, "targetRevision") or "",
        )
        return _exported(export)

    async def _offer(self, request: Request) -> Response:
        """Open a listener for one fetch; refused at once where there is no state."""
        body = OfferRequest.parse(await self._json(request))
        revisions, nonce = (body.source_revision, body.target_revision), body.nonce
        taker, within = body.taker or None, body.timeout_ms / 1000
        to = Recipient(nonce, taker, within, lives) if nonce is not None else None
        adapter = self._drain.handoffs.check(body.protocol, *revisions, to)
        is_copy = phase_of(adapter) == "serving"
        epoch = None if is_copy else self._drain.epoch

        async def export(_request: Request) -> Response:
            try:
                export = self._drain.handoffs.export(adapter.protocol, *revisions, to)
                return _exported(await export)
            except DrainError as exc:
                return problem(exc)

        async def acknowledge(request: Request) -> Response:
            try:
                content = await bounded(request, ACKNOWLEDGEMENT_MAXIMUM)
                told = AcknowledgeRequest.parse(parse_json(content))
                if (told.nonce, told.protocol) != (nonce, adapter.protocol):
                    raise StateRequestInvalid("this is the offer of another handoff")
                if epoch is not None:
                    self._drain.handoffs.acknowledge(told, epoch, taker)
                return Response(status_code=200)
            except DrainError as exc:
                return problem(exc)

        offer = Offer(export, acknowledge if nonce is not None else None)
        port = await offer.open(within)
        base = f"http://127.0.0.1:{port}"
        answer: Offered = {
            "protocol": adapter.protocol,
            "schemaVersion": adapter.schema_version,
            "sourceRevision": body.source_revision,
            "targetRevision": body.target_revision,
            "source": {
                "url": f"{base}{STATE_EXPORT_PATH}",
                "authorization": f"Bearer {offer.token}",
            },
        }
        if nonce is not None:
            answer["origin"] = {
                "acknowledge": f"{base}{ACKNOWLEDGE_PATH}",
                "epoch": epoch,
                "timeoutMs": body.timeout_ms,
                "process": self._drain.handoffs.identity(),
            }
        return JSONResponse(answer)

    async def _acknowledge(self, request: Request) -> Response:
        told = AcknowledgeRequest.parse(await self._json(request))
        self._drain.handoffs.acknowledge(told, self._drain.epoch, told.taker or None)
        drain = self._drain
        return JSONResponse({"phase": str(drain.phase), "epoch": drain.epoch})

    # The new side

    async def _begin(self, request: Request) -> Response:
        body = StateBeginRequest.parse(await self._json(request))
        duplicate = self._drain.handoffs.begin(body)
        return JSONResponse({"accepted": True, "duplicate": duplicate}, 202)

    async def _status(self, request: Request) -> Response:
        return JSONResponse(self._drain.handoffs.status(queried(request, "nonce")))

    async def _confirm(self, request: Request) -> Response:
        body = ConfirmRequest.parse(await self._json(request))
        return JSONResponse(await self._drain.handoffs.confirm(body))

    async def _discard(self, request: Request) -> Response:
        body = NonceRequest.parse(await self._json(request))
        return JSONResponse(await self._drain.handoffs.discard(body.nonce))

    # Both

    async def _handoffs(self, _request: Request) -> Response:
        report: HandoffsReport = self._drain.handoffs.report()
        return JSONResponse(report)

    async def _json(self, request: Request) -> Any:
        return parse_json(await self._body(request), StateRequestInvalid)


def _exported(export: Export) -> Response:
    return Response(export.body, media_type="application/json")
