"""One release in this process, and the words that the tests share."""

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainmw import Drain, DrainMiddleware
from drainmw.bodies import BeginRequest
from drainmw.contract import BEGIN_PATH, PROTOCOL, REPORT_PATH, RESUME_PATH, STATUS_PATH
from drainmw.testing import AsgiDriver, http_scope

NONCE = "n" * 43
OTHER_NONCE = "m" * 43
THIRD_NONCE = "o" * 43
SOURCE = "a" * 40
TARGET = "b" * 40
OTHER_REVISION = "c" * 40
TOKEN = "t" * 43
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


def begin_json(nonce: str = NONCE, **members: Any) -> dict[str, Any]:
    """The body of a begin, with some members of another kind."""
    return {
        "protocol": PROTOCOL,
        "nonce": nonce,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 5000,
        **members,
    }


def begin_request(nonce: str = NONCE, **members: Any) -> BeginRequest:
    return BeginRequest.parse(begin_json(nonce, **members))


def new_drain(**settings: Any) -> Drain:
    return Drain(**{"token": TOKEN, **settings})


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    """The smallest app."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


class Waiting:
    """An app whose calls last until the test lets them go.

    It answers 200 when it has been let go, or at once if `answers_first`.
    """

    def __init__(self, *, answers_first: bool = False) -> None:
        self.go = asyncio.Event()
        self.calls: list[Scope] = []
        self._answers_first = answers_first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append(scope)
        if self._answers_first:
            await hello(scope, receive, send)
        await self.go.wait()
        if not self._answers_first:
            await hello(scope, receive, send)


async def calm() -> None:
    """Let every task of this loop get as far as it can."""
    for _ in range(60):
        await asyncio.sleep(0)


class Client:
    """Asks an app over HTTP, in this process and this event loop."""

    def __init__(self, app: ASGIApp, *, root_path: str = "") -> None:
        transport = httpx.ASGITransport(app, root_path=root_path)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, **options)

    async def begin(self, nonce: str = NONCE, **members: Any) -> httpx.Response:
        return await self.control("POST", BEGIN_PATH, json=begin_json(nonce, **members))

    async def status(self, nonce: str = NONCE) -> httpx.Response:
        return await self.control("GET", STATUS_PATH, params={"nonce": nonce})

    async def resume(self, nonce: str = NONCE) -> httpx.Response:
        return await self.control("POST", RESUME_PATH, json={"nonce": nonce})

    async def report(self) -> dict[str, Any]:
        answer = await self.control("GET", REPORT_PATH)
        assert answer.status_code == 200, answer.text
        report: dict[str, Any] = answer.json()
        return report

    async def control(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = AUTHORIZED | options.pop("headers", {})
        return await self.http.request(method, path, headers=headers, **options)


class Release:
    """An app, its drain, and a client of both."""

    def __init__(self, app: ASGIApp = hello, /, **settings: Any) -> None:
        self.drain = settings.pop("drain", None) or new_drain(**settings)
        self.app = DrainMiddleware(app, self.drain)
        self.client = Client(self.app)

    def call(self, scope: Scope | None = None) -> AsgiDriver:
        """A call that is driven by hand: `async with release.call() as call`."""
        return AsgiDriver(self.app, scope or http_scope())

    async def in_flight(self) -> dict[str, int]:
        answer = await self.client.report()
        counts: dict[str, int] = answer["inFlight"]
        return counts

    async def state(self, nonce: str = NONCE) -> str:
        answer = await self.client.status(nonce)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["status"])


def close_databases(scheduler: Any) -> None:
    """Those of an APScheduler that was shut down.

    One in a thread looks into its stores once more after that, and Python tells of
    an SQLite that nobody closes, from 3.13 on.
    """
    for store in scheduler._jobstores.values():
        if hasattr(store, "engine"):
            store.engine.dispose()


def headers_of(message: Message) -> dict[str, str]:
    """The headers of a response's start, by lower-case name."""
    pairs: Iterable[tuple[bytes, bytes]] = message["headers"]
    return {name.decode().lower(): value.decode() for name, value in pairs}
