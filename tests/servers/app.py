"""The app of every server in the matrix: plain Starlette behind the middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from drainmw import DrainMiddleware
from tests.gate import wait_at
from tests.servers.long_lived import PLAIN, STARLETTE, did, drain


async def _gate(request: Request | WebSocket, name: str = "gate") -> None:
    """Wait at the gate of the test, if it names one."""
    if port := request.query_params.get(name):
        await wait_at(int(port))


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def held(request: Request) -> PlainTextResponse:
    await _gate(request)
    return PlainTextResponse("held")


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(float(request.query_params["seconds"]))
    return PlainTextResponse("slow")


async def keep(request: Request) -> PlainTextResponse:
    """An answer that would rather keep its connection."""
    await _gate(request)
    return PlainTextResponse("kept", headers={"Connection": "keep-alive"})


async def stream(request: Request) -> StreamingResponse:
    """Five chunks, and a gate in the middle."""

    async def chunks() -> AsyncIterator[str]:
        for number in range(5):
            if number == 3:
                await _gate(request)
            yield f"{number} "

    return StreamingResponse(chunks(), media_type="text/plain")


async def events(request: Request) -> StreamingResponse:
    """Server-sent events for as long as the client listens."""

    async def endless() -> AsyncIterator[str]:
        while True:
            yield "data: tick\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(endless(), media_type="text/event-stream")


async def upload(request: Request) -> JSONResponse:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
    did["uploads"] += 1
    return JSONResponse({"size": size})


async def background(request: Request) -> PlainTextResponse:
    async def work() -> None:
        await _gate(request)
        did["background"] += 1

    return PlainTextResponse("later", background=BackgroundTask(work))


async def spawn(request: Request) -> PlainTextResponse:
    drain.spawn(_gate(request), name="a spawned job")
    return PlainTextResponse("spawned")


async def scope(request: Request) -> JSONResponse:
    told = ("path", "root_path", "client", "http_version", "extensions")
    return JSONResponse({name: request.scope.get(name) for name in told})


async def counters(request: Request) -> JSONResponse:
    return JSONResponse(did)


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    """End without a response, or in the middle of one: `/broken/HOW/WHEN`."""
    _, _, how, when = scope["path"].split("/")
    if when == "after":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
    if how == "raise":
        raise RuntimeError("the sample app is meant to fail here")
    task = asyncio.current_task()
    if task is not None:
        task.cancel()
    await asyncio.sleep(0)


async def echo(websocket: WebSocket) -> None:
    """Echo, with a gate before it is accepted and one in the clean-up."""
    did["sockets"] += 1
    await _gate(websocket, "accept")
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)
    await _gate(websocket, "cleanup")
    did["cleaned"] += 1


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    did["lifespans"] += 1
    yield


routes = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/hello", hello, methods=["GET", "POST"]),
        Route("/held", held),
        Route("/slow", slow),
        Route("/keep", keep),
        Route("/stream", stream),
        Route("/events", events),
        Route("/upload", upload, methods=["POST"]),
        Route("/background", background),
        Route("/spawn", spawn),
        Route("/scope", scope),
        Route("/counters", counters),
        WebSocketRoute("/echo", echo),
        *STARLETTE,
    ],
)


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope.get("path", "")
    if path.startswith("/broken/"):
        await broken(scope, receive, send)
    else:
        await PLAIN.get(path, routes)(scope, receive, send)


app = DrainMiddleware(inner, drain)
