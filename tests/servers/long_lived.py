"""Streams and WebSockets of the sample app, each with the policy it has."""

from __future__ import annotations

import asyncio
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from drainmw import Drain, Policy

GOES_ON = 1.0  # seconds that what finishes by itself goes on after the begin
RETURNS = 2.0  # seconds after the begin at which a handler returns that is not told
CLEANS = 1.0  # seconds of clean-up after a disconnect
DECIDES = 0.5  # seconds after the begin at which a WebSocket is accepted or not
GRACE = 0.3  # seconds, of what is given a short one
LONG_GRACE = 4.0  # seconds, of what is closed as soon as its turn ends
PIECES = 5  # of one answer
PAUSE = 0.05  # seconds between two events

did: Counter[str] = Counter()
"""The side effects, so that a test can see what never happened."""

drain = Drain(
    policies={
        "/echo": "finish",
        "/events": "finish",
        "/patient": "finish",
        "/hushed": Policy("end", grace=GRACE),
        "/gush": Policy("end", grace=GRACE),
        "/stubborn": Policy("end", grace=GRACE),
        "/told/*": Policy("end", grace=GRACE),
        "/turn": Policy("close", grace=LONG_GRACE),
        "/long-turn": Policy("close", grace=GRACE),
        "/ticker": Policy("close", grace=GRACE),
        "/queue": Policy("close", grace=GRACE),
        "/pushed": Policy("close", grace=GRACE),
        "/flood": Policy("close", grace=GRACE),
    }
)


# Streams of events


def _event(data: object) -> str:
    return f"data: {data}\n\n"


def _stream(events: AsyncIterator[str] | AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream")


async def _ticks() -> AsyncIterator[str]:
    while True:
        yield _event("tick")
        await asyncio.sleep(PAUSE)


async def ticks(request: Request) -> StreamingResponse:
    """Events for as long as the client listens, or the policy lets it."""
    did["streams"] += 1
    await asyncio.sleep(float(request.query_params.get("seconds", "0")))
    return _stream(_ticks())


async def hushed(request: Request) -> StreamingResponse:
    """One event, and nothing ever after."""

    async def once() -> AsyncIterator[str]:
        yield _event("hush")
        await asyncio.Event().wait()

    return _stream(once())


async def gush(request: Request) -> StreamingResponse:
    """More events than any buffer takes."""

    async def many() -> AsyncIterator[bytes]:
        for _ in range(FLOOD // len(WAVE)):
            yield WAVE
        await asyncio.Event().wait()

    return _stream(many())


async def patient(request: Request) -> StreamingResponse:
    """Go on for a while after the begin, and end by itself."""

    async def until_told() -> AsyncIterator[str]:
        while not drain.begun:
            yield _event("tick")
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(GOES_ON)
        yield _event("bye")

    return _stream(until_told())


async def told(request: Request) -> StreamingResponse:
    """Say when it learns of the drain, in monotonic seconds; then be quiet."""
    learns = {"handler": _here, "task": _in_a_task, "state": _from_the_state}
    learn = learns[request.path_params["where"]]

    async def news() -> AsyncIterator[str]:
        yield _event("waiting")
        yield _event(await learn(request))
        await asyncio.Event().wait()

    return _stream(news())


async def _here(request: Request) -> float:
    await drain.begun
    return time.monotonic()


async def _in_a_task(request: Request) -> float:
    return await asyncio.create_task(_here(request))


async def _from_the_state(request: Request) -> float | None:
    found = request.scope.get("state", {}).get("drainmw")
    if found is None:
        return None
    await found.begun
    return time.monotonic()


async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
    """A stream that is not to be stopped, until the drain has been resumed."""
    begun = drain.epoch + 1
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while drain.epoch <= begun:
        try:
            body = _event("still here").encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(PAUSE)
        except CancelledError:
            did["ignored"] += 1


# WebSockets


async def chat(websocket: WebSocket) -> None:
    """Echo."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def late(websocket: WebSocket) -> None:
    """Echo, or refuse to; which of both is decided only after the begin."""
    await drain.begun
    await asyncio.sleep(DECIDES)
    if "refuse" in websocket.query_params:
        await websocket.close()
    else:
        await chat(websocket)


async def cleaning(websocket: WebSocket) -> None:
    """Clean up after the client has gone."""
    await websocket.accept()
    async for _ in websocket.iter_text():
        pass
    await asyncio.sleep(CLEANS)
    did["cleaned"] += 1


async def turn(websocket: WebSocket) -> None:
    """Answer a number of seconds in that time, piece by piece."""
    await websocket.accept()
    async for text in websocket.iter_text():
        for number in range(PIECES):
            await websocket.send_text(str(number))
            await asyncio.sleep(float(text) / PIECES)
        await websocket.send_text("done")


async def pushed(websocket: WebSocket) -> None:
    """Send from one task, and receive in another."""

    async def push() -> None:
        while True:
            await websocket.send_text("tick")
            await asyncio.sleep(PAUSE)

    await websocket.accept()
    async with asyncio.TaskGroup() as group:
        group.create_task(push())
        while True:
            await websocket.receive_text()


async def ticker(scope: Scope, receive: Receive, send: Send) -> None:
    """Send every 100 ms, and never receive; note what ends it."""
    await receive()
    await send({"type": "websocket.accept"})
    try:
        while True:
            await send({"type": "websocket.send", "text": "tick"})
            await asyncio.sleep(0.1)
    except Exception as exc:
        error = "OSError" if isinstance(exc, OSError) else type(exc).__name__
        did[f"ticker ended by {error}"] += 1
        raise


async def queue(websocket: WebSocket) -> None:
    """Wait for a letter that comes long after the begin, and never receive."""
    letters: asyncio.Queue[str] = asyncio.Queue()

    async def bring() -> None:
        await drain.begun
        await asyncio.sleep(RETURNS)
        letters.put_nowait("late")

    await websocket.accept()
    bringing = asyncio.create_task(bring())
    await letters.get()
    await bringing


async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    """Send more than any buffer takes."""
    await receive()
    await send({"type": "websocket.accept"})
    for _ in range(FLOOD // len(WAVE)):
        await send({"type": "websocket.send", "bytes": WAVE})
    did["flooded"] += 1
    while (await receive())["type"] != "websocket.disconnect":
        pass


WAVE = bytes(2**16)
FLOOD = 24 * 2**20  # bytes

STARLETTE = [
    Route("/ticks", ticks),
    Route("/hushed", hushed),
    Route("/gush", gush),
    Route("/patient", patient),
    Route("/told/{where}", told),
    WebSocketRoute("/chat", chat),
    WebSocketRoute("/mute", chat),
    WebSocketRoute("/gone", chat),
    WebSocketRoute("/late", late),
    WebSocketRoute("/cleaning", cleaning),
    WebSocketRoute("/turn", turn),
    WebSocketRoute("/long-turn", turn),
    WebSocketRoute("/pushed", pushed),
    WebSocketRoute("/queue", queue),
]
PLAIN: dict[str, ASGIApp] = {
    "/stubborn": stubborn,
    "/ticker": ticker,
    "/flood": flood,
}
"""Apps by their paths, which must see the messages as they are."""
