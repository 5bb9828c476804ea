"""Starlette, with the middleware installed in each of its three ways."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, five_chunks, still_open
from tests.gate import wait_at

did: Counter[str] = Counter()
ORIGIN = "https://shop.example"


def _gate(request: Request) -> int:
    return int(request.query_params["gate"])


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def held(request: Request) -> PlainTextResponse:
    await wait_at(_gate(request))
    return PlainTextResponse("held")


async def stream(request: Request) -> StreamingResponse:
    chunks = five_chunks(_gate(request))
    return StreamingResponse(chunks, media_type="text/plain")


async def events(request: Request) -> StreamingResponse:
    events = endless(float(request.query_params["seconds"]))
    return StreamingResponse(events, media_type="text/event-stream")


async def open_now(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(await still_open()))


async def upload(request: Request) -> PlainTextResponse:
    did["uploads"] += len(await request.body())
    return PlainTextResponse("taken")


async def uploads(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(did["uploads"]))


async def background(request: Request) -> PlainTextResponse:
    task = BackgroundTask(wait_at, _gate(request))
    return PlainTextResponse("later", background=task)


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def readyz(request: Request) -> JSONResponse:
    return JSONResponse({"mine": True})


class Stamp(BaseHTTPMiddleware):
    """A middleware of the kind that streams every response through a queue."""

    async def dispatch(
        self, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        response = await call_next(request)
        response.headers["stamp"] = "inside"
        return response


def routes() -> list[BaseRoute]:
    return [
        Route("/hello", hello),
        Route("/held", held),
        Route("/stream", stream),
        Route("/events", events),
        Route("/open", open_now),
        Route("/upload", upload, methods=["POST"]),
        Route("/uploads", uploads),
        Route("/background", background),
        WebSocketRoute("/echo", echo),
    ]


cors: dict[str, Any] = {"allow_origins": [ORIGIN], "allow_methods": ["*"]}

# What is added last is the outermost; the refusal brings its own CORS headers.
added = Starlette(routes=routes())
added.add_middleware(Stamp)
added.add_middleware(CORSMiddleware, **cors)
added.add_middleware(
    DrainMiddleware,
    drain=Drain(
        refusal_headers={
            "access-control-allow-origin": ORIGIN,
            "access-control-allow-methods": "*",
        }
    ),
)

# What stands first is the outermost: here CORS, and its headers are on refusals.
listed = Starlette(
    routes=[*routes(), Route("/readyz", readyz)],
    middleware=[
        Middleware(CORSMiddleware, **cors),
        Middleware(DrainMiddleware, drain=Drain()),
        Middleware(Stamp),
    ],
)

wrapped = DrainMiddleware(Starlette(routes=routes(), middleware=[Middleware(Stamp)]))
