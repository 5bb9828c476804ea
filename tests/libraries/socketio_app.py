"""A Socket.IO server of python-socketio: it adds numbers, and tells of new prices."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import socketio

from drainmw import DrainMiddleware

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("app")

# A poll is in flight until there is something to say, at the latest a ping; what
# is 25 s by default has to be shorter than a drain may last.
sio = socketio.AsyncServer(async_mode="asgi", ping_interval=1, ping_timeout=1)


@sio.event  # type: ignore[untyped-decorator]  # socketio has no types
async def connect(sid: str, environ: dict[str, Any]) -> None:
    logger.info("connected")


@sio.event  # type: ignore[untyped-decorator]  # socketio has no types
async def disconnect(sid: str, reason: str) -> None:
    logger.info("disconnected")


@sio.event  # type: ignore[untyped-decorator]  # socketio has no types
async def add(sid: str, numbers: list[int]) -> int:
    return sum(numbers)


@sio.event  # type: ignore[untyped-decorator]  # socketio has no types
async def prices(sid: str) -> None:
    async def tell() -> None:
        for number in count():
            await sio.emit("price", number, to="buyers")
            await sio.sleep(0.002)

    first = not any(sio.manager.get_participants("/", "buyers"))
    await sio.enter_room(sid, "buyers")
    if first:
        sio.start_background_task(tell)


app = DrainMiddleware(socketio.ASGIApp(sio))
