"""What clients are told: the last answer on a connection, and the refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, MutableMapping
from random import Random
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from drainmw.contract import MARKER_HEADER
from drainmw.core.spread import milliseconds_to_retry, seconds_to_retry
from drainmw.errors import IntakeRefused

PROBLEM = "application/problem+json"  # RFC 9457
EVENT_STREAM = "text/event-stream"
CLOSE = (b"connection", b"close")
SERVICE_RESTART = 1012  # RFC 6455 registry: the service is restarting
TURNS_TO_CLOSE = 3
"""Of the event loop, in which uvicorn's `websockets-sansio` closes a connection that
was denied; it takes the app's return before that for an error of the app."""
_DIGITS_MAXIMUM = 18  # of a Content-Length; no body is as long as that
_PER_CONNECTION = frozenset((b"connection", b"keep-alive"))


def last_answer(message: Message, scope: Scope) -> Message:
    """The start of a response, as the last one of its HTTP/1 connection.

    RFC 9113, section 8.2.2: HTTP/2 and later know no such header.
    """
    if not is_http1(scope):
        return message
    headers = [pair for pair in message.get("headers", ()) if not _hop(pair)]
    return {**message, "headers": [*headers, CLOSE]}


def is_http1(scope: Scope) -> bool:
    """Whether the connection can be closed by a header."""
    return str(scope.get("http_version", "1.1")).startswith("1")


def _hop(pair: Iterable[bytes]) -> bool:
    name, _ = pair
    return bytes(name).lower() in _PER_CONNECTION


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    return next(
        (bytes(v) for k, v in scope["headers"] if bytes(k).lower() == name), None
    )


async def answer(
    scope: Scope,
    send: Send,
    status: int,
    content: MutableMapping[str, Any] | None,
    *,
    media_type: str = "application/json",
    headers: Iterable[tuple[bytes, bytes]] = (),
    close: bool = False,
) -> None:
    """Send one JSON answer of ours, without a body to a HEAD."""
    body = b"" if content is None else _encoded(content)
    start: Message = {
        "type": "http.response.start",
        "status": status,
        "headers": [*_described(body, media_type), *headers],
    }
    await send(last_answer(start, scope) if close else start)
    await send(
        {
            "type": "http.response.body",
            "body": b"" if scope.get("method") == "HEAD" else body,
        }
    )


def _encoded(content: MutableMapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _described(body: bytes, media_type: str) -> list[tuple[bytes, bytes]]:
    uncached = (b"cache-control", b"no-store")
    if not body:
        return [uncached]
    return [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        uncached,
    ]


class Refusal:
    """How new work is refused: not touched, safe to retry, and it says so."""

    def __init__(
        self,
        *,
        retry_after: int,
        chance: Random,
        streams: bool,
        extra: Iterable[tuple[str, str]] = (),
        body_bytes: int,
        body_readers: int,
    ) -> None:
        self._retry_after = retry_after
        self._chance = chance
        self._streams = streams
        self._extra = [(name.encode(), value.encode()) for name, value in extra]
        self._answers_preflight = any(
            name == b"access-control-allow-origin" for name, _ in self._extra
        )
        self._body_bytes = body_bytes
        self._body_readers = body_readers
        self._reading: dict[object, None] = {}

    async def http(
        self, scope: Scope, receive: Receive, send: Send, *, phase: str, patience: float
    ) -> None:
        """503 with the headers of a refusal.

        The body is read first and thrown away, for `patience` seconds at most:
        a server that answers while a client still uploads resets the
        connection, and the client never sees the answer.
        """
        if not await self._read_body(scope, receive, patience):
            return
        if self._streams and _wants_event_stream(scope):
            return await self._event_stream(scope, send, phase)
        preflight = self._answers_preflight and _is_preflight(scope)
        await answer(
            scope,
            send,
            204 if preflight else 503,
            None if preflight else _problem(phase),
            media_type=PROBLEM,
            headers=self._headers(phase),
            close=True,
        )

    async def websocket(
        self, scope: Scope, receive: Receive, send: Send, *, phase: str
    ) -> None:
        """503 where the server has the denial response, else a plain close.

        The connect is received first and nothing follows the denial: servers
        were seen to end on a close before it, and to hang on what comes after.
        """
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": SERVICE_RESTART})
            return
        body = _encoded(_problem(phase))
        headers = [*_described(body, PROBLEM), *self._headers(phase)]
        start = {"type": "websocket.http.response.start", "status": 503}
        await send({**start, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    async def _event_stream(self, scope: Scope, send: Send, phase: str) -> None:
        """An empty stream: a browser's EventSource gives up upon anything but 200.

        WHATWG HTML, section 9.2: it comes back after as long as `retry` says.
        """
        hint = milliseconds_to_retry(self._retry_after, self._chance)
        body = b"retry: %d\n\n" % hint
        headers = [*_described(body, EVENT_STREAM), *self._headers(phase)]
        start: Message = {
            "type": "http.response.start",
            "status": 200,
            "headers": headers,
        }
        await send(last_answer(start, scope))
        await send({"type": "http.response.body", "body": body})

    def _headers(self, phase: str) -> list[tuple[bytes, bytes]]:
        hint = seconds_to_retry(self._retry_after, self._chance)
        return [
            (b"retry-after", str(hint).encode()),
            (MARKER_HEADER.encode(), phase.encode()),
            *self._extra,
        ]

    async def _read_body(self, scope: Scope, receive: Receive, patience: float) -> bool:
        """Read a refused body within its bounds; false if the client is gone."""
        if not _has_body(scope) or patience <= 0:
            return True
        declared = header(scope, b"content-length")
        if declared is not None and (
            len(declared) > _DIGITS_MAXIMUM or int(declared) > self._body_bytes
        ):
            return True
        if len(self._reading) >= self._body_readers:
            return True
        reader = object()
        self._reading[reader] = None
        try:
            async with asyncio.timeout(patience):
                return await discard(receive, self._body_bytes)
        except TimeoutError:
            return True
        finally:
            del self._reading[reader]


async def discard(receive: Receive, most: int) -> bool:
    """Read a body and keep nothing of it; false if the client is gone."""
    seen = 0
    while seen <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        seen += len(message.get("body", b""))
        if not message.get("more_body", False):
            return True
    return True


def _has_body(scope: Scope) -> bool:
    """Whether there is a body to read and the client is already sending it."""
    if (header(scope, b"expect") or b"").lower() == b"100-continue":
        return False
    declared = header(scope, b"content-length")
    if declared is not None:
        return declared.isdigit() and declared.strip(b"0") != b""
    return not is_http1(scope) or header(scope, b"transfer-encoding") is not None


def _wants_event_stream(scope: Scope) -> bool:
    """Whether a GET would rather have an event stream than anything else it names.

    RFC 9110, section 12.5.1; a range such as `*/*` may be as welcome.
    """
    if scope["method"] != "GET":
        return False
    wanted, others = 0.0, 0.0
    for name, value in scope["headers"]:
        if bytes(name).lower() == b"accept":
            for part in bytes(value).decode("latin-1").split(","):
                media_type, weight = _weighed(part)
                if media_type == EVENT_STREAM:
                    wanted = max(wanted, weight)
                elif media_type and not media_type.endswith("/*"):
                    others = max(others, weight)
    return wanted > others


def _weighed(part: str) -> tuple[str, float]:
    """A media type and its weight; one that makes no sense weighs nothing."""
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            return media_type, _quality(parameter[2:])
    return media_type, 1.0


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0


def _is_preflight(scope: Scope) -> bool:
    return (
        scope["method"] == "OPTIONS"
        and header(scope, b"origin") is not None
        and header(scope, b"access-control-request-method") is not None
    )


_IN_WORDS = {
    "draining": "it is draining",
    "drained": "it has drained",
    "failed": "its drain has failed",
    "detached": "its successor has taken over",
}


def _problem(phase: str) -> dict[str, Any]:
    return {
        "title": "This release takes no new work",
        "status": 503,
        "code": IntakeRefused.code,
        "detail": f"{_IN_WORDS.get(phase, phase)}; "
        "the request was not touched and is safe to retry",
    }
