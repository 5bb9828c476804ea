"""Event streams of sse-starlette, written as its README writes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from itertools import count

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from drainmw import DrainMiddleware

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("app")


async def numbers() -> AsyncIterator[dict[str, str]]:
    try:
        for number in count():
            yield {"id": str(number), "event": "number", "data": str(number)}
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        logger.info("numbers left")
        raise


async def news() -> AsyncIterator[dict[str, str]]:
    """One event, and then nothing happens."""
    try:
        yield {"event": "news", "data": "hello"}
        await asyncio.Event().wait()
    finally:
        logger.info("news left")


async def publish(channel: MemoryObjectSendStream[dict[str, str]]) -> None:
    async with channel:
        try:
            for number in count():
                await channel.send({"event": "pushed", "data": str(number)})
                await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():
            logger.info("publisher left")
            raise


async def generated(request: Request) -> EventSourceResponse:
    return EventSourceResponse(numbers())


async def quiet(request: Request) -> EventSourceResponse:
    return EventSourceResponse(news(), ping=30)


async def pushed(request: Request) -> EventSourceResponse:
    sending, receiving = anyio.create_memory_object_stream[dict[str, str]](10)
    publisher = partial(publish, sending)
    return EventSourceResponse(receiving, data_sender_callable=publisher)


app = DrainMiddleware(
    Starlette(
        routes=[
            Route("/generated", generated),
            Route("/quiet", quiet),
            Route("/pushed", pushed),
        ]
    )
)
