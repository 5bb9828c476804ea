"""A server inside of a server: signals and loggers are those of the one outside."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

_is_inner: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "drainmw_inner", default=False
)


class InnerServer(uvicorn.Server):
    """Serves an app in the running loop, until `should_exit`. Says nothing of it."""

    def __init__(self, app: ASGIApp, *, graceful: int = 1) -> None:
        """`graceful` is how many seconds open answers have at the end."""
        super().__init__(
            _Config(
                app,
                interface="asgi3",
                lifespan="off",
                ws="none",
                access_log=False,
                timeout_graceful_shutdown=graceful,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and close the sockets; to be called in a task of its own."""
        _is_inner.set(True)
        for name in ("uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).addFilter(_is_worth_it)  # once, however often
        try:
            await super().serve(sockets)
        finally:  # also where it was cancelled: the loop may not watch a closed socket
            for server in getattr(self, "servers", ()):
                server.close()
            for listener in sockets or ():
                listener.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class _Config(uvicorn.Config):
    def configure_logging(self) -> None:
        """Leave them alone."""


def _is_worth_it(record: logging.LogRecord) -> bool:
    """Not that an inner server starts, is asked, and stops."""
    return record.levelno >= logging.WARNING or not _is_inner.get()
