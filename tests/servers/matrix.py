"""The servers, and what each of them can do: the one table of differences.

Everything in it is what a test expects, literally. What is not in it has to be
the same on every server. `docs/servers.md` says the same in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SAMPLE = "tests.servers.app:app"


@dataclass(frozen=True, slots=True)
class Kind:
    """One server, as it is started and as it behaves."""

    name: str
    needs: tuple[str, ...]
    """The modules without which it cannot be had."""
    module: str
    """What `python -m` runs."""
    options: tuple[str, ...]
    """Before the app; `{port}` is the port."""
    websocket_refusal: int = 503
    """How a refused handshake looks: 503 needs the denial response."""
    close_code: int = 1012
    """Of a WebSocket that is closed by a drain."""
    says_why: bool = True
    """Whether the reason of a close reaches the client."""
    waits_for_readers: bool = True
    """Whether a send waits while the client does not read."""
    closes_after_last_answer: bool = True
    """Whether `Connection: close` from an app closes the socket."""
    reads_bodies_first: bool = False
    """Whether the app is called only once a whole body has arrived."""
    says_continue: bool = False
    """Whether it answers `Expect: 100-continue` by itself, before the app."""
    ends_stream_within: float = 0.5
    """Seconds from a client's leaving to the end of the stream it read."""
    lifespan: bool = True
    h2c: bool = False
    """Whether it speaks HTTP/2 without TLS, to a client that just starts so."""

    def arguments(self, port: int, app: str = SAMPLE) -> Sequence[str]:
        """What follows `python -m`."""
        return [self.module, *(o.format(port=port) for o in self.options), app]


def _uvicorn(http: str, ws: str, loop: str, *needs: str) -> Kind:
    # Trusting every proxy header is the worst case for the doors.
    trusting = ("--proxy-headers", "--forwarded-allow-ips", "*")
    made_of = ("--http", http, "--ws", ws, "--loop", loop)
    bound = ("--host", "127.0.0.1", "--port", "{port}", "--timeout-keep-alive", "30")
    quiet = ("--no-access-log",)  # so that a report of a failure shows what matters
    return Kind(
        name=f"uvicorn-{http}-{ws}",
        needs=("uvicorn", *needs),
        module="uvicorn",
        options=(*bound, *quiet, *made_of, *trusting),
    )


def _gunicorn(name: str, worker: str, *needs: str) -> Kind:
    bound = ("--bind", "127.0.0.1:{port}", "--keep-alive", "30")
    alone = ("--no-control-socket",)  # it would lie in the home of the user
    return Kind(
        name=name,
        needs=("gunicorn", *needs),
        module="gunicorn",
        options=("-k", worker, *bound, *alone, "--forwarded-allow-ips", "*"),
        websocket_refusal=403 if worker == "asgi" else 503,
        closes_after_last_answer=worker != "asgi",
        ends_stream_within=4 if worker == "asgi" else 0.5,
    )


SERVERS = (
    _uvicorn("h11", "websockets", "asyncio", "h11", "websockets"),
    _uvicorn("httptools", "wsproto", "uvloop", "httptools", "wsproto", "uvloop"),
    Kind(
        name="hypercorn",
        needs=("hypercorn",),
        module="hypercorn",
        options=("--bind", "127.0.0.1:{port}", "--keep-alive", "30"),
        says_continue=True,
        h2c=True,
    ),
    Kind(
        name="granian",
        needs=("granian",),
        module="granian",
        options=("--interface", "asgi", "--host", "127.0.0.1", "--port", "{port}"),
        h2c=True,
    ),
    _gunicorn("gunicorn-asgi", "asgi"),
    _gunicorn("gunicorn-uvicorn", "uvicorn_worker.UvicornWorker", "uvicorn_worker"),
    Kind(
        name="daphne",
        needs=("daphne",),
        module="daphne",
        options=("-b", "127.0.0.1", "-p", "{port}", "--proxy-headers"),
        websocket_refusal=403,
        close_code=4012,
        says_why=False,
        waits_for_readers=False,
        closes_after_last_answer=False,
        reads_bodies_first=True,
        says_continue=True,
        lifespan=False,
    ),
)

WEBSOCKETS_ONLY = (_uvicorn("h11", "websockets-sansio", "asyncio", "websockets"),)
"""Differ from one above in nothing but their WebSockets."""
