"""FastAPI, with the middleware installed in each of its three ways."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import BackgroundTasks, FastAPI, Request, Response, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.middleware import Middleware

from drainmw import Drain, DrainMiddleware
from tests.frameworks.streams import endless, five_chunks, still_open
from tests.gate import block_at, wait_at

did: Counter[str] = Counter()


def make(**options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.middleware("http")
    async def stamp(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers["stamp"] = "inside"
        return response

    @app.get("/hello", response_class=PlainTextResponse)
    async def hello() -> str:
        return "hello"

    @app.get("/held", response_class=PlainTextResponse)
    def held(gate: int) -> str:
        block_at(gate)  # a plain function: FastAPI runs it in a thread
        return "held"

    @app.get("/stream")
    async def stream(gate: int) -> StreamingResponse:
        return StreamingResponse(five_chunks(gate), media_type="text/plain")

    @app.get("/events")
    async def events(seconds: float) -> StreamingResponse:
        return StreamingResponse(endless(seconds), media_type="text/event-stream")

    @app.get("/open", response_class=PlainTextResponse)
    async def open_now() -> str:
        return str(await still_open())

    @app.post("/upload", response_class=PlainTextResponse)
    async def upload(request: Request) -> str:
        did["uploads"] += len(await request.body())
        return "taken"

    @app.get("/uploads", response_class=PlainTextResponse)
    async def uploads() -> str:
        return str(did["uploads"])

    @app.get("/background", response_class=PlainTextResponse)
    async def background(gate: int, tasks: BackgroundTasks) -> str:
        tasks.add_task(wait_at, gate)
        return "later"

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    return app


added = make()
added.add_middleware(DrainMiddleware, drain=Drain())

listed = make(middleware=[Middleware(DrainMiddleware, drain=Drain())])


@listed.get("/readyz")
async def readyz() -> dict[str, bool]:
    return {"mine": True}


wrapped = DrainMiddleware(make())
