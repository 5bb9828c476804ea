"""What a control endpoint reads of a request: its bounded body, and its query."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from starlette.requests import Request

from drainmw.errors import DrainError

BODY_MAXIMUM = 16 * 1024  # bytes
DISCARD_MAXIMUM = 16 * 2**20  # bytes read of a body too large, so that 413 is seen


class MediaType(DrainError):
    """Raised when a POST is not JSON."""

    code = "RUNTIME_CONTROL_MEDIA_TYPE"


class BodyTooLarge(DrainError):
    """Raised when a body is over its limit."""

    code = "RUNTIME_CONTROL_BODY_TOO_LARGE"


class BodyTooSlow(DrainError):
    """Raised when a body does not arrive in time."""

    code = "RUNTIME_CONTROL_BODY_TIMEOUT"


async def body_of(request: Request, *, within: float, needed: bool = True) -> bytes:
    """The body of a POST, which is JSON; one that is not `needed` may be empty.

    Raises:
        MediaType, BodyTooSlow, BodyTooLarge: It is not read, or not whole.
    """
    content_type = request.headers.get("content-type")
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and (needed or content_type is not None):
        raise MediaType("send it with Content-Type: application/json")
    try:
        async with asyncio.timeout(within):
            return await bounded(request, BODY_MAXIMUM)
    except TimeoutError:
        raise BodyTooSlow("send the whole body at once") from None


async def bounded(request: Request, maximum: int) -> bytes:
    """A body of at most so many bytes.

    Raises:
        BodyTooLarge: There are more of them.
    """
    body, seen = bytearray(), 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > DISCARD_MAXIMUM:
            break
        if seen <= maximum:
            body += chunk
    if seen > maximum:
        raise BodyTooLarge(f"it must be at most {maximum} bytes")
    return bytes(body)


def queried(request: Request, name: str) -> str | None:
    """A parameter of the query; one that is there twice names nothing."""
    query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
    values = query.get(name)
    if values is None:
        return None
    return values[0] if len(values) == 1 else ""
