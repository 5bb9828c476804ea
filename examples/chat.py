"""A chat that knows who is in which room and how often each client has asked, and
forgets neither when the next release takes over.

    drainmw serve examples.chat:app --control run/blue.sock

A WebSocket to `/rooms/ROOM?name=NAME` is a person in a room. Each of its messages
is a heartbeat, and is answered with who is there; the message `leave` is the leave.
`GET /rooms/ROOM` tells the same to a client that names itself in the header
`api-key`, as often as its budget allows.

What goes over is in `memory.py` beside this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator
from typing import TypeGuard

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from drainmw import Drain, DrainMiddleware
from examples.memory import NAME, Limiter, Rooms

TICK = 0.5  # seconds

rooms = Rooms()
limiter = Limiter()
drain = Drain()
drain.add_state(rooms.state())
drain.add_state(limiter.state())


async def chat(websocket: WebSocket) -> None:
    """A person in a room."""
    room, person = websocket.path_params["room"], websocket.query_params.get("name")
    if not (is_name(room) and is_name(person)):
        await websocket.close(1008)  # not accepted: a 403
        return
    await websocket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        while rooms.beat(room, person):
            await websocket.send_json(rooms.present(room))
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return  # which is no leave: see `Rooms`
            if message.get("text") == "leave":
                rooms.leave(room, person)
                await websocket.close()
                return
        await websocket.close(1013)


async def who(request: Request) -> JSONResponse:
    """Who is in a room, within the budget of the client that asks."""
    room, client = request.path_params["room"], request.headers.get("api-key")
    if not (is_name(room) and is_name(client)):
        return JSONResponse({"error": f"a room and an api-key are {NAME}"}, 400)
    if wait := limiter.spend(client):
        headers = {"Retry-After": str(math.ceil(wait))}
        return JSONResponse({"error": "too many requests"}, 429, headers)
    return JSONResponse({"present": rooms.present(room)})


def is_name(text: str | None) -> TypeGuard[str]:
    return re.fullmatch(NAME, text or "") is not None


def pass_time(seconds: float) -> None:
    """Nobody's grace runs while this release drains and lets nobody come back; it
    goes on in the next one, or here after a resume."""
    limiter.forget_full()
    if not drain.begun:
        rooms.pass_time(seconds)


async def keep_time() -> None:
    while True:
        await asyncio.sleep(TICK)
        pass_time(TICK)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    clock = asyncio.create_task(keep_time())
    yield
    clock.cancel()


app = DrainMiddleware(
    Starlette(
        lifespan=lifespan,
        routes=[
            Route("/rooms/{room}", who),
            WebSocketRoute("/rooms/{room}", chat),
        ],
    ),
    drain,
)
