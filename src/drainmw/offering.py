"""A listener of its own for one fetch of state, open for one who has its token.

So the control token is never given to the new release, and a public port that
has changed hands already is never taken for the old one. Who has fetched says
there, too, what has become of it.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from drainmw.contract import ACKNOWLEDGE_PATH, STATE_EXPORT_PATH
from drainmw.flag import start_task
from drainmw.inner import InnerServer
from drainmw.log import logger
from drainmw.tokens import generate

BACKLOG = 8
MOST = 8  # listeners at once; a newer one closes the oldest
GONE = 0.5  # seconds in which the last answer leaves
REGRET = 2.0  # seconds in which an acknowledgement may be taken back

Answers = Callable[[Request], Awaitable[Response]]


class Offer:
    """One offer of state. `open` it in the event loop that is to serve it."""

    def __init__(self, export: Answers, acknowledge: Answers | None = None) -> None:
        """`export` is asked for whoever has the token, until it answers 200.

        With `acknowledge` it stands until that is told what became of the state.
        """
        self.token = generate()
        self._export = export
        self._acknowledge = acknowledge
        self._is_asked = False
        self._taken = asyncio.Event()
        self._done = asyncio.Event()

    async def open(self, within: float) -> int:
        """Listen on loopback for so many seconds, or until it is done; the port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        port: int = listener.getsockname()[1]
        server = InnerServer(self._app)
        serving = start_task(server.serve(sockets=[listener]), name="drainmw offer")
        closing = start_task(
            self._close(server, serving, within), name="drainmw offer's end"
        )
        _open.append((self, closing))
        closing.add_done_callback(lambda _done: _open.remove((self, closing)))
        if len(_open) > MOST:  # the oldest are not waited for any more
            _open[-MOST - 1][0].withdraw()
        return port

    def withdraw(self) -> None:
        """Close it, done or not."""
        self._taken.set()
        self._done.set()

    async def _close(
        self,
        server: InnerServer,
        serving: asyncio.Task[None],
        within: float,
    ) -> None:
        try:
            async with asyncio.timeout(within):
                await self._done.wait()
        except TimeoutError:
            event = "not acknowledged" if self._taken.is_set() else "not taken"
            logger().warning(
                f"offer of state {event}",
                within=f"{within:g} s",
                consequence="this release keeps its state",
            )
        else:
            if self._acknowledge is not None:
                await asyncio.sleep(REGRET)
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
        if self._taken.is_set() and self._acknowledge is None:
            self._done.set()

    async def _answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            return Response(status_code=401, headers={"www-authenticate": "Bearer"})
        path, method = request.scope["path"], request.method
        if (method, path) == ("GET", STATE_EXPORT_PATH) and not self._is_asked:
            return await self._exported(request)
        if (method, path) == ("POST", ACKNOWLEDGE_PATH) and self._acknowledge:
            response = await self._acknowledge(request)
            if response.status_code == 200:
                self._done.set()
            return response
        return Response(status_code=404)

    async def _exported(self, request: Request) -> Response:
        self._is_asked = True
        try:
            response = await self._export(request)
            self._is_asked = response.status_code == 200
        except BaseException:
            self._is_asked = False
            raise
        if self._is_asked:
            self._taken.set()
        return response


_open: list[tuple[Offer, asyncio.Task[None]]] = []
