"""A server inside of a server leaves signals and logs to the one around it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from drainmw.inner import InnerServer, _is_worth_it
from tests.rig import Waiting, hello

pytestmark = pytest.mark.anyio

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@asynccontextmanager
async def serving(app: ASGIApp, **options: int) -> AsyncIterator[tuple[str, _Inner]]:
    """Its address, and the server; ended as its owner ends it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Inner(app, **options)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.is_up.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 5)
        listener.close()


class _Inner(InnerServer):
    """Tells when it serves."""

    def __init__(self, app: ASGIApp, **options: int) -> None:
        super().__init__(app, **options)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


async def ask(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_signals_and_lifespan_are_those_of_the_server_around_it() -> None:
    """A second handler would end a release that only drains."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        await hello(scope, receive, send)

    before = [signal.getsignal(number) for number in SIGNALS]
    async with serving(app) as (url, _):
        assert [signal.getsignal(number) for number in SIGNALS] == before
        assert (await ask(url)).text == "hello"
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert seen == ["http"]


async def test_it_comes_and_goes_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """What the server around it says is still to be read, meanwhile too."""
    logger = logging.getLogger("uvicorn.error")
    with caplog.at_level("DEBUG"):
        logger.info("outer before")
        async with serving(hello) as (url, _):
            await ask(url)
            logger.info("outer meanwhile")
        logger.info("outer after")
    said = [r.getMessage() for r in caplog.records if r.name.startswith("uvicorn")]
    assert said == ["outer before", "outer meanwhile", "outer after"]


async def test_a_fault_of_its_app_is_not_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("this is a fault")

    async with serving(faulty) as (url, _):
        assert (await ask(url)).status_code == 500
    assert "this is a fault" in caplog.text


async def test_loggers_keep_the_form_that_they_were_given() -> None:
    """uvicorn would set its own handlers, and take those of the app away."""
    names = ("uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]

    def form() -> list[tuple[object, ...]]:
        return [(list(of.handlers), of.level, of.propagate) for of in loggers]

    before = form()
    async with serving(hello), serving(hello):
        assert form() == before
        assert [of.filters.count(_is_worth_it) for of in loggers] == [0, 1, 1]


async def test_an_answer_under_way_has_a_moment_at_the_end() -> None:
    app = Waiting()
    async with serving(app) as (url, server):
        asking = asyncio.create_task(ask(url))
        while not app.calls:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0)
        server.should_exit = True
        app.go.set()
        assert (await asking).status_code == 200


async def test_a_server_that_was_cancelled_is_not_asked_any_more() -> None:
    """The number of its socket is given again, and nobody may listen for it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Inner(hello)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_up.wait()
    number = listener.fileno()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    listener.close()
    assert asyncio.get_running_loop().remove_reader(number) is False
