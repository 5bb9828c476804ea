"""The app that the tests of `drainmw serve` serve.

A POST is in flight until its client has sent the whole body, so that a test
decides when it ends. A GET is answered at once.
"""

from starlette.types import Receive, Scope, Send

LARGE = 5 * 2**20  # bytes


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
    elif scope["method"] == "POST":
        await _until_the_body_has_come(receive, send)
    else:
        body = b"x" * LARGE if scope["path"] == "/large" else b"hello"
        length = (b"content-length", str(len(body)).encode())
        await _start(send, length)
        await send({"type": "http.response.body", "body": body})


async def _until_the_body_has_come(receive: Receive, send: Send) -> None:
    await _start(send)
    await send({"type": "http.response.body", "body": b"started", "more_body": True})
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.body", "body": b"finished"})


async def _start(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
