"""Litestar: wrapped, and in its own list, which lies inside its router."""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, MediaType, Request, Response, get, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.connection import WebSocket
from litestar.exceptions import WebSocketDisconnect
from litestar.response import Stream

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, still_open

did: Counter[str] = Counter()


@get("/hello", media_type=MediaType.TEXT)
async def hello() -> str:
    return "hello"


@get("/slow", media_type=MediaType.TEXT)
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slow"


@get("/stream")
async def stream(seconds: float) -> Stream:
    async def chunks() -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number} "
            await asyncio.sleep(seconds / 5)

    return Stream(chunks(), media_type="text/plain")


@get("/events")
async def events(seconds: float) -> Stream:
    return Stream(endless(seconds), media_type="text/event-stream")


@get("/open", media_type=MediaType.TEXT)
async def open_now() -> str:
    return str(await still_open())


@post("/upload", media_type=MediaType.TEXT)
async def upload(request: Request[Any, Any, Any]) -> str:
    did["uploads"] += len(await request.body())
    return "taken"


@get("/uploads", media_type=MediaType.TEXT)
async def uploads() -> str:
    return str(did["uploads"])


@get("/background", media_type=MediaType.TEXT)
async def background(seconds: float) -> Response[str]:
    return Response("later", background=BackgroundTask(asyncio.sleep, seconds))


@websocket("/echo")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except WebSocketDisconnect:
        pass


handlers = [
    *(hello, slow, stream, events, open_now),
    *(upload, uploads, background, echo),
]

_outside = Litestar(handlers, openapi_config=None)
wrapped = DrainMiddleware(_outside)

_listed: Any = functools.partial(DrainMiddleware, drain=Drain())
inside = Litestar(handlers, openapi_config=None, middleware=[_listed])
