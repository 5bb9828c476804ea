"""A browser that leaves one release for the next has every message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser.chromium import PROGRAM, Chromium, Page
from tests.browser.conftest import Feed
from tests.browser.switch import Switch
from tests.processes import until
from tests.servers.server import IDLE, Server
from tests.servers.wire import Connection

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium")

TEXT = b"from the last request of the old release"
FAULT = re.compile("Traceback|ERROR|CRITICAL|Exception")


class Transport:
    """One of the two connections that the page of the feed holds."""

    def __init__(self, page: Page, name: str) -> None:
        self._page = page
        self._name = name

    def received(self) -> list[int]:
        """The numbers that have come, in their order."""
        numbers: list[int] = self._page.evaluate(f"received.{self._name}")
        return numbers

    def story(self) -> list[dict[str, Any]]:
        """What has happened to it, with all the page knows of that."""
        told = self._page.evaluate("story")
        return [event for event in told if event["who"] == self._name]

    def happened(self) -> list[str]:
        """The same, a word each."""
        return [event["what"] for event in self.story()]

    def until_received(self, number: int) -> None:
        """Wait until that message has come, or a later one."""
        self._until(lambda: self.received()[-1:] >= [number], f"message {number}")

    def until_happened(self, *words: str) -> None:
        """Wait until its story has come so far."""
        told = list(words)
        self._until(lambda: self.happened()[: len(told)] == told, " ".join(told))

    def _until(self, met: Callable[[], object], what: str) -> None:
        try:
            until(met, what)
        except AssertionError as exc:
            exc.add_note(f"{self._name}: {self.story()}")
            raise


@contextmanager
def reading(browser: Chromium, port: int) -> Iterator[list[Transport]]:
    """The two transports of an open page, once both have messages."""
    with browser.page() as page:
        page.go(f"http://127.0.0.1:{port}/")
        until(lambda: page.evaluate("typeof received") == "object", "the page")
        transports = [Transport(page, name) for name in ("websocket", "eventsource")]
        for transport in transports:
            transport.until_received(1)
        yield transports
        assert page.exceptions() == []


@contextmanager
def publishing(server: Server) -> Iterator[Connection]:
    """A request in flight: a message to be published, whose text is not sent yet."""
    with server.connect() as connection:
        connection.send_head("POST", "/messages", content_length=str(len(TEXT)))
        server.until(lambda: server.in_flight()["http"] == 1)
        yield connection


def test_it_comes_back_to_the_old_release_then_to_the_new_and_misses_nothing(
    browser: Chromium, old: Server, new: Server, switch: Switch, feed: Feed
) -> None:
    with publishing(old) as slow, reading(browser, switch.port) as transports:
        websocket, eventsource = transports
        nonce = old.begin(timeout=20)
        websocket.until_happened("open", "close")
        eventsource.until_happened("open", "end")
        is_told_when_to_come_back(websocket.story()[1])

        # A refused handshake never opens; a refused stream does, and ends at once.
        websocket.until_happened("open", "close", "refused")
        eventsource.until_happened("open", "end", "open", "end")
        status = old.status(nonce)
        assert status["status"] == "draining"
        assert status["inFlight"] == IDLE | {"http": 1}

        switch.backend = new.port
        for transport in transports:
            transport.until_received(feed.newest())
        slow.send(TEXT)
        published = slow.answer().json()["id"]
        assert old.outcome(nonce)["status"] == "drained"

        last = feed.stop()
        for transport in transports:
            transport.until_received(last)
            assert transport.received() == list(range(1, last + 1))
        assert published in transport.received()
        # It would be "gave up" had the object ever been CLOSED.
        assert set(eventsource.happened()) == {"open", "end"}
        refusals = websocket.happened().count("refused")
        refusals += eventsource.happened().count("end") - 1
        assert old.report()["refusedTotal"] == refusals
    is_quiet(old)
    is_quiet(new)


def is_told_when_to_come_back(closed: dict[str, Any]) -> None:
    """The page waits for as long as the reason of the close says."""
    assert (closed["code"], closed["wasClean"]) == (1012, True)
    assert len(closed["reason"].encode()) <= 123
    assert closed["pause"] == json.loads(closed["reason"])["retry_ms"] > 0


def is_quiet(server: Server) -> None:
    """Nobody is there any more, and nothing was logged as an error."""
    server.until(lambda: server.in_flight() == IDLE)
    log = server.log.read_text()
    assert FAULT.search(log) is None, log
