"""Quart: wrapped, and in the place that its documentation has for middleware."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quart import Quart, Response, request, websocket

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, five_chunks, still_open
from tests.gate import wait_at

did: Counter[str] = Counter()


def _gate() -> int:
    return int(request.args["gate"])


def make(drain: Drain) -> Quart:
    app = Quart(__name__)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.get("/held")
    async def held() -> str:
        await wait_at(_gate())
        return "held"

    @app.get("/stream")
    async def stream() -> Response:
        return Response(five_chunks(_gate()), content_type="text/plain")

    @app.get("/events")
    async def events() -> Response:
        events = endless(float(request.args["seconds"]))
        return Response(events, content_type="text/event-stream")

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
        app.add_background_task(wait_at, _gate())
        return "later"

    @app.get("/spawn")
    async def spawn() -> str:
        drain.spawn(wait_at(_gate()))
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
