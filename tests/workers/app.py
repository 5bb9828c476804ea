"""An app that says which worker answered, and can be a bad one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from drainmw import DrainMiddleware


def _me() -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


async def pid(request: Request) -> PlainTextResponse:
    return _me()


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(float(request.query_params["seconds"]))
    return _me()


async def block(request: Request) -> PlainTextResponse:
    """Leave a mark, and keep the event loop from everything else."""
    Path(request.query_params["mark"]).touch()  # noqa: ASYNC240  # on purpose
    time.sleep(float(request.query_params["seconds"]))  # noqa: ASYNC251  # on purpose
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
            Route("/slow", slow),
            Route("/block", block),
            Route("/fork", fork),
            WebSocketRoute("/chat", chat),
        ]
    )
)
