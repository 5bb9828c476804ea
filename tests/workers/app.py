"""An app that says which worker answered, and can be a bad one."""

from __future__ import annotations

import multiprocessing
import os
import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from drainmw import DrainMiddleware
from tests.gate import block_at, wait_at


def _me() -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


async def pid(request: Request) -> PlainTextResponse:
    return _me()


async def held(request: Request) -> PlainTextResponse:
    await wait_at(int(request.query_params["gate"]))
    return _me()


async def block(request: Request) -> PlainTextResponse:
    """Keep the event loop from everything else."""
    block_at(int(request.query_params["gate"]))
    return _me()


async def fork(request: Request) -> PlainTextResponse:
    """Leave a child behind, as a pool of processes does; say who it is."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    return PlainTextResponse(f"{os.getpid()} {child.pid}")


async def chat(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


app = DrainMiddleware(
    Starlette(
        routes=[
            Route("/pid", pid),
            Route("/held", held),
            Route("/block", block),
            Route("/fork", fork),
            WebSocketRoute("/chat", chat),
        ]
    )
)
