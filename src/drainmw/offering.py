"""A listener of its own for one fetch of state, open for one who has its token.

So the control token is never given to the new release, and a public port that
has changed hands already is never taken for the old one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from drainmw.log import logger
from drainmw.tokens import generate

BACKLOG = 8
MOST = 8  # listeners at once; a newer one closes the oldest
GONE = 0.5  # seconds in which the last answer leaves

Answers = Callable[[Request], Awaitable[Response]]


class _Server(uvicorn.Server):
    """A server in a server: signals are for the one outside."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class _Config(uvicorn.Config):
    """A configuration for it: the loggers are those of the process around it."""

    def configure_logging(self) -> None:
        """Leave them alone."""


class Offer:
    """One offer of state. `open` it in the event loop that is to serve it."""

    def __init__(self, answers: Answers) -> None:
        """`answers` is asked for whoever has the token, until it answers 200."""
        self.token = generate()
        self._answers = answers
        self._is_asked = False
        self._taken = asyncio.Event()

    async def open(self, within: float) -> int:
        """Listen on loopback for so many seconds, or until it is taken; the port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        port: int = listener.getsockname()[1]
        config = _Config(
            self._app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        server = _Server(config)
        serving = asyncio.create_task(
            server.serve(sockets=[listener]), name="drainmw offer"
        )
        closing = asyncio.create_task(
            self._close(server, serving, listener, within), name="drainmw offer's end"
        )
        _open.append((self, closing))
        closing.add_done_callback(lambda _done: _open.remove((self, closing)))
        if len(_open) > MOST:  # the oldest are not waited for any more
            _open[-MOST - 1][0].withdraw()
        return port

    def withdraw(self) -> None:
        """Close it, taken or not."""
        self._taken.set()

    async def _close(
        self,
        server: uvicorn.Server,
        serving: asyncio.Task[None],
        listener: socket.socket,
        within: float,
    ) -> None:
        with contextlib.closing(listener):
            try:
                async with asyncio.timeout(within):
                    await self._taken.wait()
            except TimeoutError:
                logger().warning("offer of state not taken", within=f"{within:g} s")
            server.should_exit = True
            await asyncio.wait((serving,), timeout=GONE + within)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        response.headers["cache-control"] = "no-store"
        response.headers["connection"] = "close"
        await response(scope, receive, send)
        if response.status_code == 200:
            self._taken.set()

    async def _answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            return Response(status_code=401, headers={"www-authenticate": "Bearer"})
        if request.method != "GET" or self._is_asked:
            return Response(status_code=404)
        self._is_asked = True
        try:
            response = await self._answers(request)
            self._is_asked = response.status_code == 200
        except BaseException:
            self._is_asked = False
            raise
        return response


_open: list[tuple[Offer, asyncio.Task[None]]] = []
