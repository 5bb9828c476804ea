"""Quart: wrapped, and in the place that its documentation has for middleware."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from quart import Quart, Response, request, websocket

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, still_open

did: Counter[str] = Counter()


def _seconds() -> float:
    return float(request.args.get("seconds", "0"))


def make(drain: Drain) -> Quart:
    app = Quart(__name__)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(_seconds())
        return "slow"

    @app.get("/stream")
    async def stream() -> Response:
        pause = _seconds() / 5

        async def chunks() -> AsyncIterator[bytes]:
            for number in range(5):
                yield b"%d " % number
                await asyncio.sleep(pause)

        return Response(chunks(), content_type="text/plain")

    @app.get("/events")
    async def events() -> Response:
        return Response(endless(_seconds()), content_type="text/event-stream")

    @app.get("/open")
    async def open_now() -> str:
        return str(await still_open())

    @app.post("/upload")
    async def upload() -> str:
        did["uploads"] += len(await request.get_data())
        return "taken"

    @app.get("/uploads")
    async def uploads() -> str:
        return str(did["uploads"])

    @app.get("/background")
    async def background() -> str:
        app.add_background_task(asyncio.sleep, _seconds())
        return "later"

    @app.get("/spawn")
    async def spawn() -> str:
        drain.spawn(asyncio.sleep(_seconds()))
        return "later"

    @app.websocket("/echo")
    async def echo() -> None:
        while True:
            await websocket.send(await websocket.receive())

    return app


_outside = Drain()
wrapped = DrainMiddleware(make(_outside), _outside)

_within = Drain()
added: Any = make(_within)  # a method is given another value
added.asgi_app = DrainMiddleware(added.asgi_app, _within)
