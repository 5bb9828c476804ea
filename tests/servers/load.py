"""Steady load on a server, over new connections and over kept ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException
from threading import Event
from typing import Self

from tests.servers.server import Server
from tests.servers.wire import Answer, Connection

CLIENTS = 4  # of each sort, side by side
NEW_A_SECOND = 100
KEPT_A_SECOND = 50
POOL = 12  # kept connections a client, each of which is idle for a second


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one request."""

    sent: float
    """Monotonic seconds."""
    kept: bool
    """Whether its connection had been used before."""
    answer: Answer | None
    """None where it failed."""
    failure: str = ""


class Load:
    """Clients that go on asking, at their pace, as long as it is entered.

    One sort opens a connection for each request. The other has a pool of kept
    ones, uses them in turn, and replaces one whose answer was its last.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = Event()
        self._clients: list[Future[None]] = []
        self.seen: deque[Seen] = deque()
        """In the order of their ends."""

    def __enter__(self) -> Self:
        for number in range(CLIENTS):
            for client in (self._ask_on_new, self._ask_on_kept):
                self._clients.append(self._server.in_background(client, number))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        for client in self._clients:
            client.result()

    def goes_on(self, requests: int) -> None:
        """Wait until so many more have ended."""
        enough = len(self.seen) + requests
        self._server.until(lambda: len(self.seen) >= enough)

    def _ask_on_new(self, number: int) -> None:
        def ask() -> None:
            with self._server.connect() as connection:
                # Long enough for some to be in flight at any moment.
                self._ask(connection, "/slow?seconds=0.02", kept=False)

        self._steadily(NEW_A_SECOND, number, ask)

    def _ask_on_kept(self, number: int) -> None:
        pool: deque[Connection | None] = deque([None] * POOL)

        def ask() -> None:
            kept = pool.popleft()
            connection = kept or self._server.connect()
            answer = self._ask(connection, "/hello", kept=kept is not None)
            if answer is None or answer.closes:
                connection.close()
                pool.append(None)
            else:
                pool.append(connection)

        self._steadily(KEPT_A_SECOND, number, ask)
        for connection in filter(None, pool):
            connection.close()

    def _steadily(self, a_second: int, number: int, ask: Callable[[], None]) -> None:
        """One client's share of that many, between those of the others."""
        due = time.monotonic() + number / a_second
        while not self._over.wait(max(0.0, due - time.monotonic())):
            ask()
            due += CLIENTS / a_second

    def _ask(self, connection: Connection, path: str, *, kept: bool) -> Answer | None:
        sent = time.monotonic()
        answer, failure = None, ""
        try:
            answer = connection.ask("GET", path)
        except (OSError, HTTPException) as exc:
            failure = repr(exc)
        self.seen.append(Seen(sent, kept, answer, failure))
        return answer
