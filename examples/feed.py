"""A feed whose clients move to another release without losing a message.

    drainmw serve examples.feed:app

Open it in a browser: the page holds a WebSocket and an EventSource. Nothing here
ends them; the default policies of a drain do. Each client comes back with the
number of the last message it has, and gets those that follow.

Alone it makes messages of its own, which are gone with the process. Two releases
have the same ones where `FEED_FILE` names one file for both; `messages.py` beside
this file fills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from drainmw import Drain, DrainMiddleware
from examples.messages import Messages, tick

FILE = os.environ.get("FEED_FILE")
PAGE = Path(__file__).with_name("feed.html").read_text()
LARGEST = 1000  # bytes of a message that is published
POLL = 0.02  # seconds between two looks for new messages
RETRY = (500, 1000)  # milliseconds in which a browser whose stream ended comes back

drain = Drain()
messages = Messages(FILE or ":memory:")


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse(PAGE)


async def following(last: int) -> AsyncIterator[dict[str, Any]]:
    """The messages behind that number, and then each new one."""
    while True:
        for number, text in messages.after(last):
            yield {"id": number, "text": text}
            last = number
        await asyncio.sleep(POLL)


async def events(request: Request) -> StreamingResponse:
    """An event stream; a browser that comes back names the last id it has."""
    last = request.headers.get("last-event-id") or request.query_params.get("after")

    async def stream() -> AsyncIterator[str]:
        # A time of its own for each client, so that not all come back at once.
        yield f"retry: {random.randint(*RETRY)}\n\n"
        async for message in following(as_number(last)):
            yield f"id: {message['id']}\ndata: {json.dumps(message)}\n\n"

    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


async def feed(websocket: WebSocket) -> None:
    """A WebSocket; a client that comes back asks for what is `after` its last one."""
    await websocket.accept()
    after = as_number(websocket.query_params.get("after"))
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send_following(websocket, after))
        # Waiting here is what lets a drain close it at once.
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
        sending.cancel()


async def send_following(websocket: WebSocket, last: int) -> None:
    with contextlib.suppress(WebSocketDisconnect):  # the receiver is told, too
        async for message in following(last):
            await websocket.send_json(message)


async def publish(request: Request) -> JSONResponse:
    """Append the body as a message."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            return JSONResponse({"error": f"more than {LARGEST} bytes"}, 413)
    return JSONResponse({"id": messages.append(body.decode(errors="replace"))}, 201)


def as_number(text: str | None) -> int:
    """What a client names as its last message; anything odd is the beginning."""
    if text is None or not text.isdecimal() or len(text) > 15:
        return 0
    return int(text)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Make messages, where no file names those of somebody else."""
    producer = None if FILE else asyncio.create_task(tick(messages))
    yield
    if producer is not None:
        producer.cancel()


app = DrainMiddleware(
    Starlette(
        lifespan=lifespan,
        routes=[
            Route("/", page),
            Route("/events", events),
            Route("/messages", publish, methods=["POST"]),
            WebSocketRoute("/feed", feed),
        ],
    ),
    drain,
)
