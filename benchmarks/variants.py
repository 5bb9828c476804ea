"""What is measured: an app that says hello, bare and behind each middleware.

CPython adapts code to what it meets, so two variants that shared a code object
would spoil each other: each has an app, and a caller, of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainmw import Drain, DrainMiddleware

F = TypeVar("F", bound=Callable[..., Any])
Layer = Callable[[ASGIApp], ASGIApp]

TOKEN = "benchmark-token-benchmark-token-benchmark-t"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def own(function: F) -> F:
    """The same function over a code object of its own."""
    copied = cast(FunctionType, function)
    code = copied.__code__.replace()
    return cast(F, FunctionType(code, copied.__globals__, copied.__name__))


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """The raw app: two messages, no framework."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", b"text/plain"),
                (b"content-length", b"5"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": b"hello"})


async def fastapi_hello() -> dict[str, str]:
    """The route of the FastAPI app."""
    return {"hello": "world"}


def fastapi() -> ASGIApp:
    """A FastAPI app with one route."""
    from fastapi import FastAPI

    app = FastAPI()
    app.get("/items/{number}")(fastapi_hello)
    return app


class Server:
    """What a server hands to an app: methods bound afresh for each request."""

    async def receive(self) -> Message:
        """One empty body."""
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        """Throw it away."""


class NoOp:
    """The least that a middleware class can do."""

    __slots__ = ("app",)

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def bare(app: ASGIApp) -> ASGIApp:
    """No middleware."""
    return app


def ours(app: ASGIApp) -> ASGIApp:
    """Ours as it comes."""
    return DrainMiddleware(app, Drain())


def ours_with_all(app: ASGIApp) -> ASGIApp:
    """Ours with every option that a running app may have set."""
    drain = Drain(
        token=TOKEN,
        revision=REVISION,
        app="benchmark",
        refusal_headers={"access-control-allow-origin": "*"},
        control_hosts=["app.example.com"],
        metrics_public=True,
        admit=lambda scope: False,
        redact_path=str.upper,
        readiness_path="/health/ready",
        liveness_path="/health/live",
    )
    return DrainMiddleware(app, drain)


def base_http(app: ASGIApp) -> ASGIApp:
    """Starlette's BaseHTTPMiddleware with nothing to do."""
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import Response

    class DoesNothing(BaseHTTPMiddleware):
        async def dispatch(
            self, request: Request, call_next: RequestResponseEndpoint
        ) -> Response:
            return await call_next(request)

    return DoesNothing(app)


def prometheus(app: ASGIApp) -> ASGIApp:
    """The instrumentator, counting requests in progress."""
    from prometheus_client import CollectorRegistry
    from prometheus_fastapi_instrumentator.middleware import (
        PrometheusInstrumentatorMiddleware,
    )
    from starlette.applications import Starlette

    middleware: ASGIApp = PrometheusInstrumentatorMiddleware(
        app,
        should_instrument_requests_inprogress=True,
        registry=CollectorRegistry(),
    )
    routes = Starlette()  # it looks in there for the name of a route

    async def with_routes(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = routes
        await middleware(scope, receive, send)

    return with_routes


def opentelemetry(app: ASGIApp) -> ASGIApp:
    """OpenTelemetry with its SDK: active requests counted, spans not exported."""
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    return cast(
        ASGIApp,
        OpenTelemetryMiddleware(
            app,
            tracer_provider=TracerProvider(),
            meter_provider=MeterProvider([InMemoryMetricReader()]),
        ),
    )


BARE = "bare"
BARE_AGAIN = "bare again (A/A)"
NO_OP = "no-op class"
OURS = "drainmw"
OURS_WITH_ALL = "drainmw, every option"
PROMETHEUS = "prometheus-fastapi-instrumentator"
BASE_HTTP = "BaseHTTPMiddleware"
OPENTELEMETRY = "OpenTelemetry ASGI"

LAYERS: dict[str, Layer] = {
    BARE: bare,
    BARE_AGAIN: bare,
    NO_OP: NoOp,
    OURS: ours,
    OURS_WITH_ALL: ours_with_all,
    PROMETHEUS: prometheus,
    BASE_HTTP: base_http,
    OPENTELEMETRY: opentelemetry,
}
LIGHT = (BARE, BARE_AGAIN, NO_OP, OURS, OURS_WITH_ALL)
COUNTING_PEERS = (PROMETHEUS, OPENTELEMETRY)


def http_scopes(count: int) -> list[Scope]:
    """Scopes as uvicorn makes them: strings that nobody has hashed yet."""
    return [_http_scope(number) for number in range(count)]


def _http_scope(number: int) -> Scope:
    raw_path = b"/items/%d" % number
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000 + number % 10000),
        "scheme": "http",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"accept", b"*/*")],
        "state": {},
        "method": b"GET".decode(),
        "path": raw_path.decode(),
        "raw_path": raw_path,
        "query_string": b"",
    }


def quiet() -> None:
    """Keep remarks about open settings out of the tables."""
    logging.getLogger("drainmw").setLevel(logging.ERROR)
