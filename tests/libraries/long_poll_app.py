"""A long poll of Starlette: an answer once there is news, or after some time."""

from __future__ import annotations

import asyncio
import logging

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from drainmw import DrainMiddleware

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

news: asyncio.Queue[str] = asyncio.Queue()


async def poll(request: Request) -> JSONResponse:
    try:
        async with asyncio.timeout(float(request.query_params["wait"])):
            return JSONResponse([await news.get()])
    except TimeoutError:
        return JSONResponse([])


async def say(request: Request) -> JSONResponse:
    news.put_nowait((await request.body()).decode())
    return JSONResponse({})


app = DrainMiddleware(
    Starlette(routes=[Route("/poll", poll), Route("/say", say, methods=["POST"])])
)
