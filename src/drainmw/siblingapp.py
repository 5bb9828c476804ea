"""What a worker answers to its siblings, on a socket in the directory of the group.

Only their owner can enter that directory, so no token is asked for. An observer
of the workers comes here, too, with what it was asked about state itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from drainmw.contract import FAILURE_MAXIMUM, STATE_BYTES_MAXIMUM
from drainmw.control import Control
from drainmw.errors import DrainError
from drainmw.flag import start_task
from drainmw.inner import InnerServer
from drainmw.log import logger
from drainmw.problems import problem
from drainmw.reading import bounded, queried
from drainmw.release import Drain
from drainmw.siblings import (
    IMPORT_PATH,
    PART_PATH,
    SEAL_PATH,
    SETTLE_PATH,
    UNSEAL_PATH,
)
from drainmw.state import failure_of

Endpoint = Callable[[Request], Awaitable[Response]]


class SiblingApp:
    """The app of one worker."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._control = Control(drain, trusted=True)
        self._serving: asyncio.Task[None] | None = None
        self._routes: dict[str, Endpoint] = {
            PART_PATH: self._part,
            SEAL_PATH: self._seal,
            UNSEAL_PATH: self._unseal,
            IMPORT_PATH: self._import,
            SETTLE_PATH: self._settle,
        }

    def serve(self, address: Path) -> None:
        """Serve there from now on, in the running loop. Idempotent."""
        loop = asyncio.get_running_loop()
        task = self._serving
        if task is not None and not task.done() and task.get_loop() is loop:
            return
        self._serving = start_task(self._served(address), name="drainmw siblings")

    async def _served(self, address: Path) -> None:
        try:
            listener = _bound(address)
        except OSError as exc:
            logger().error("siblings cannot ask", reason=str(exc))
            return
        with contextlib.closing(listener):
            await InnerServer(self).serve(sockets=[listener])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a sibling, or an observer."""
        if scope["type"] != "http":
            return
        endpoint = self._routes.get(scope["path"])
        if endpoint is None:
            await self._control(scope, receive, send)
            return
        try:
            response = await endpoint(Request(scope, receive))
        except ClientDisconnect:
            return
        except DrainError as exc:
            response = problem(exc)
        await response(scope, receive, send)

    async def _part(self, request: Request) -> Response:
        return Response(
            await self._drain.handoffs.exports.part(queried(request, "protocol") or "")
        )

    async def _seal(self, request: Request) -> Response:
        await self._drain.handoffs.exports.seal_here(_number(request, "epoch"))
        return Response()

    async def _unseal(self, request: Request) -> Response:
        await self._drain.handoffs.exports.unseal_here(_number(request, "epoch"))
        return Response()

    async def _import(self, request: Request) -> Response:
        body = await bounded(request, STATE_BYTES_MAXIMUM)
        index, count = _number(request, "index"), _number(request, "count")
        try:
            await self._drain.handoffs.imports.take(
                queried(request, "nonce") or "", index, count, body
            )
        except Exception as exc:
            failure = failure_of(exc)[:FAILURE_MAXIMUM]
            return JSONResponse({"detail": failure}, 500)
        return Response()

    async def _settle(self, request: Request) -> Response:
        await self._drain.handoffs.imports.settle(queried(request, "nonce") or "")
        return Response()


def _number(request: Request, name: str) -> int:
    return int(queried(request, name) or 0)


def _bound(address: Path) -> socket.socket:
    """In the place of what a worker that has ended left there."""
    address.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(address))
        finally:
            os.umask(before)
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
