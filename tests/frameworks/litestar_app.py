"""Litestar: wrapped, and in its own list, which lies inside its router."""

import functools
from collections import Counter
from typing import Any

from litestar import Litestar, MediaType, Request, Response, get, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.connection import WebSocket
from litestar.exceptions import WebSocketDisconnect
from litestar.response import Stream

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, five_chunks, still_open
from tests.gate import wait_at

did: Counter[str] = Counter()


@get("/hello", media_type=MediaType.TEXT)
async def hello() -> str:
    return "hello"


@get("/held", media_type=MediaType.TEXT)
async def held(gate: int) -> str:
    await wait_at(gate)
    return "held"


@get("/stream")
async def stream(gate: int) -> Stream:
    return Stream(five_chunks(gate), media_type="text/plain")


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
async def background(gate: int) -> Response[str]:
    return Response("later", background=BackgroundTask(wait_at, gate))


@websocket("/echo")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except WebSocketDisconnect:
        pass


handlers = [
    *(hello, held, stream, events, open_now),
    *(upload, uploads, background, echo),
]

_outside = Litestar(handlers, openapi_config=None)
wrapped = DrainMiddleware(_outside)

_listed: Any = functools.partial(DrainMiddleware, drain=Drain())
inside = Litestar(handlers, openapi_config=None, middleware=[_listed])
