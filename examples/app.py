"""An app with every kind of work: requests, a stream, a WebSocket, a background
task and a job. It listens to the drain and ends its long connections itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from drainmw import Drain, DrainMiddleware

drain = Drain()


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def invoice(request: Request) -> PlainTextResponse:
    """A slow request."""
    await asyncio.sleep(float(request.query_params.get("seconds", "1")))
    return PlainTextResponse("paid")


async def ticks(request: Request) -> StreamingResponse:
    """An event stream that ends itself with a last message once a drain begins."""

    async def events() -> AsyncIterator[str]:
        number = 0
        while not drain.begun:
            number += 1
            yield f"id: {number}\ndata: tick\n\n"
            await asyncio.sleep(0.1)
        yield "event: goodbye\ndata: come back\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def chat(websocket: WebSocket) -> None:
    """Echoes, and says goodbye once a drain begins."""

    async def farewell() -> None:
        await drain.begun
        await websocket.send_text("goodbye")
        await websocket.close(code=1012)

    await websocket.accept()
    leaving = asyncio.create_task(farewell())
    try:
        async for text in websocket.iter_text():
            await websocket.send_text(text)
    finally:
        leaving.cancel()


async def order(request: Request) -> JSONResponse:
    """Answers at once and confirms afterwards, which still counts as `http`."""
    confirm = BackgroundTask(asyncio.sleep, 1.5)
    return JSONResponse({"ordered": True}, 202, background=confirm)


async def shipment(request: Request) -> JSONResponse:
    """Starts a job, which counts as `jobs`."""
    drain.spawn(asyncio.sleep(3), name="shipment")
    return JSONResponse({"shipping": True}, 202)


app = DrainMiddleware(
    Starlette(
        routes=[
            Route("/", hello),
            Route("/invoice", invoice),
            Route("/ticks", ticks),
            Route("/orders", order, methods=["POST"]),
            Route("/shipments", shipment, methods=["POST"]),
            WebSocketRoute("/chat", chat),
        ]
    ),
    drain,
)
