"""Who holds a Celery node that comes up: it asks, and who holds it answers.

A hold is known to the process that was told of it. One that starts while its
release drains, or starts anew, has to learn of it before it does anything. So
whoever wants a hold listens for that question as long as he wants it; with his
process the answer is gone, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from drainmw.sources.extras import extra

with extra("celery"):
    from kombu.exceptions import OperationalError

QUESTION = "drainmw_wanted"
BIRTH_PATIENCE = 0.3  # seconds that a node waits for an answer when it comes up
LISTEN_PAUSE = 0.5  # between two looks whether the hold is still wanted
CLOSE_TRIES = 10
_NAMES = "drainmw.holder."


def holders_of(app: Any, node: str) -> list[str]:
    """Everybody who wants that node to be held, at this moment."""
    replies = app.control.broadcast(
        QUESTION,
        {"node": node},
        pattern=f"{_NAMES}*",
        matcher="glob",
        reply=True,
        timeout=BIRTH_PATIENCE,
    )
    answers = [answer for reply in replies for answer in reply.values()]
    return [answer["holder"] for answer in answers if answer.get("holder")]


def failures(connection: Any) -> tuple[type[Exception], ...]:
    """What a broker that is away looks like."""
    its_own = (*connection.connection_errors, *connection.channel_errors)
    return (OperationalError, OSError, *its_own)


def close(connection: Any) -> None:
    """Close it, without a word to a broker that may be away.

    The channels of a process share one table of fanout queues on Redis, and one
    that closes goes through it; another may add to it meanwhile.
    """
    for _ in range(CLOSE_TRIES):
        with suppress(RuntimeError):
            connection.collect()
            return


class Standing:
    """One hold that is wanted, and answers for itself in a thread of its own."""

    def __init__(self, app: Any, holder: str, nodes: Iterable[str]) -> None:
        self._app = app
        self._holder = holder
        self._nodes = frozenset(nodes)
        self._over = threading.Event()
        name = f"drainmw holds {', '.join(sorted(self._nodes))}"
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """It is not wanted any more; nobody who asks is told of it."""
        self._over.set()

    def _answer(self, state: Any, node: str) -> dict[str, str]:
        is_meant = node in self._nodes and not self._over.is_set()
        return {"holder": self._holder if is_meant else ""}

    def _listen(self) -> None:
        while not self._over.is_set():
            connection = self._app.connection_for_read()
            try:
                self._listen_at(connection)
            except failures(connection):
                self._over.wait(LISTEN_PAUSE)
            finally:
                close(connection)

    def _listen_at(self, connection: Any) -> None:
        node = self._app.control.mailbox.Node(
            f"{_NAMES}{self._holder}",
            handlers={QUESTION: self._answer},
            channel=connection.channel(),
        )

        def handle(body: dict[str, Any], message: Any) -> None:
            if body.get("method") == QUESTION:  # what workers are asked is not for us
                node.handle_message(body, message)

        consumer = node.listen(callback=handle)
        while not self._over.is_set():
            try:
                connection.drain_events(timeout=LISTEN_PAUSE)
            except TimeoutError:  # nobody has asked
                continue
        consumer.cancel()
