"""An app of long-lived connections: one route a policy."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from drainmw import Drain, DrainMiddleware

PAUSE = 0.01  # seconds between two events


async def numbered(lasts: float) -> AsyncIterator[str]:
    """Events with their number, for that long after a begin; at last the time."""
    ends = math.inf
    for number in count():
        if drain.begun:
            ends = min(ends, time.monotonic() + lasts)
        if time.monotonic() >= ends:
            break
        yield f"data: {number}\n\n"
        await asyncio.sleep(PAUSE)
    yield f"data: ends at {time.monotonic()}\n\n"


async def pinned(request: Request) -> StreamingResponse:
    """Finished by nobody but the app: `?seconds=` after the begin."""
    lasts = float(request.query_params["seconds"])
    return StreamingResponse(numbered(lasts), media_type="text/event-stream")


async def events(request: Request) -> StreamingResponse:
    """Never finished by the app."""
    return StreamingResponse(numbered(math.inf), media_type="text/event-stream")


async def echo(websocket: WebSocket) -> None:
    """Wait for messages."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def ticks(websocket: WebSocket) -> None:
    """Wait for messages, and send all the while."""
    await websocket.accept()

    async def send() -> None:
        with suppress(OSError):  # it has been closed
            for number in count():
                await websocket.send_text(str(number))
                await asyncio.sleep(PAUSE)

    sending = asyncio.create_task(send())
    async for _ in websocket.iter_text():
        pass
    sending.cancel()


drain = Drain(policies={"/pinned": "finish"})
app = DrainMiddleware(
    Starlette(
        routes=[
            Route("/pinned", pinned),
            Route("/events", events),
            WebSocketRoute("/echo", echo),
            WebSocketRoute("/ticks", ticks),
        ]
    ),
    drain,
)
