"""Celery: its workers and its beat, in processes of their own.

They are reached by Celery's remote control, so by the broker and by name: of two
releases on one broker, each is asked for itself. In the Celery app:

    app = drainable(Celery("shop", broker=...))

and where the `Drain` is:

    drain.add_source(CeleryWorkers(app, ["blue@host"]))
    drain.add_source(CeleryBeat(app, "celerybeat@blue"))
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.sources import celerybeat, celeryworker
from drainmw.sources.base import Counts, Running
from drainmw.sources.celeryholds import Standing, close, failures
from drainmw.sources.threaded import ThreadedSource
from drainmw.text import kind_of

ANSWER_PATIENCE = 0.5  # seconds for what changes something
COUNT_PATIENCE = 0.25  # no drain waits for a count any longer
SETTLE_PAUSE = 0.05  # between two questions whether all has ended, at first
SETTLE_SHARE = 0.02  # of the time waited so far, which is what that costs at most
SETTLE_LAST = 1.0
START_PATIENCE = 0.1  # for what a pool was given the moment before a hold
START_PAUSE = 0.005
TWIN_PATIENCE = 0.1  # for a second answer under one name
_ANY_NUMBER = 1_000_000  # of replies; answers to earlier questions are among them

Answer = dict[str, Any]


def drainable(app: Any) -> Any:
    """Let workers and beat of this Celery app be held; gives the app.

    One line where the app is made, so that every process of it runs it.

    Raises:
        Misuse: It is no Celery app.
    """
    _check(app)
    app.steps["consumer"].add(celeryworker.GateStep)
    celerybeat.connect()
    return app


class CeleryWorkers(ThreadedSource):
    """Workers of a Celery app, each by its node name.

    Every job that they have leased counts: what runs, what waits for a slot, for
    its ETA or for its rate limit. A worker that gives no answer is unknown.
    """

    def __init__(self, app: Any, nodes: Iterable[str], *, name: str = "celery") -> None:
        """`nodes` are those of this release alone, such as `blue@host`.

        Raises:
            Misuse: There is none, one is no node name, or it is no Celery app.
        """
        super().__init__(name, "pull", _Nodes(app, nodes))


class CeleryBeat(ThreadedSource):
    """The beat of a Celery app, by its node name."""

    def __init__(self, app: Any, node: str, *, name: str = "celery beat") -> None:
        """`node` is that of `celery beat -n`.

        Raises:
            Misuse: It is no node name.
        """
        super().__init__(name, "clock", _Nodes(app, [node], celerybeat.mailbox_name))


class _Nodes:
    """Some nodes of an app's remote control, asked together. It blocks."""

    def __init__(
        self,
        app: Any,
        nodes: Iterable[str],
        mailbox_name: Callable[[str], str] = str,
    ) -> None:
        _check(app)
        self.overdue: int | None = None
        self.handed_back: int | None = None
        self._app = app
        self._nodes = [mailbox_name(node) for node in _checked(nodes)]
        self._identity = uuid.uuid4().hex
        self._running: list[Running] = []
        self._known: dict[str, Answer] = {}  # the last answers since they were held
        self._replaced: set[str] = set()  # processes that others have followed
        self._standing: Standing | None = None  # the hold that is wanted
        self._asking = threading.Lock()  # for what changes whether it is held
        self._let_go = threading.Event()
        self._connections: list[Any] = []  # that nobody uses at present
        weakref.finalize(self, _close, self._connections).atexit = False
        # Imports the broker's client now: a hold has no time for that.
        failures(app.connection_for_write())
        if not app.conf.worker_enable_remote_control:
            raise Misuse("worker_enable_remote_control must be on")

    def hold(self) -> None:
        """Hold all; give what a pool is starting the time to start."""
        with self._asking:
            self._let_go.clear()
            if self._standing is None:
                self._standing = Standing(self._app, self._holder, self._nodes)
            answers = self._ask_to_hold()
            self._replies("drainmw_count", TWIN_PATIENCE, is_each_enough=False)
        deadline = time.monotonic() + START_PATIENCE
        while any(a.get("starting") for a in answers) and time.monotonic() < deadline:
            time.sleep(START_PAUSE)
            answers = self._ask("drainmw_count", COUNT_PATIENCE)

    def count(self) -> Counts:
        """The sum over all nodes."""
        answers = self._ask("drainmw_count", COUNT_PATIENCE)
        if self._standing and not all(answer["held"] for answer in answers):
            raise SourceUnavailable(f"{self._who} must be held anew")
        return Counts(
            sum(answer["jobs"] for answer in answers),
            sum(answer["schedules"] for answer in answers),
        )

    def settle(self) -> None:
        """Wait until nothing is left, and nothing is on its way from the broker."""
        began = time.monotonic()
        while self._standing:
            answers = self._ask("drainmw_count", COUNT_PATIENCE)
            if not all(answer["held"] for answer in answers):
                self._hold_anew()
            elif not any(
                a["jobs"] or a["schedules"] or a.get("pulling") for a in answers
            ):
                return
            pause = max(SETTLE_PAUSE, SETTLE_SHARE * (time.monotonic() - began))
            self._let_go.wait(min(pause, SETTLE_LAST))

    def release(self) -> None:
        """Release all, of this process's hold."""
        self._let_go.set()
        with self._asking:
            if self._standing is not None:
                self._standing.end()
                self._standing = None
            self._known.clear()
            self._replaced.clear()
            self._ask("drainmw_release", ANSWER_PATIENCE, holder=self._holder)

    def running(self) -> Iterable[Running]:
        """What ran when they were asked last, oldest first."""
        return iter(self._running)

    @property
    def _holder(self) -> str:
        """Of this process: one that was forked holds for itself."""
        return f"{self._identity}-{os.getpid()}"

    @property
    def _who(self) -> str:
        return ", ".join(self._nodes)

    def _hold_anew(self) -> None:
        """A worker has started anew, and knows of no hold."""
        with self._asking:
            if self._standing:
                self._ask_to_hold()

    def _ask_to_hold(self) -> list[Answer]:
        return self._ask("drainmw_hold", ANSWER_PATIENCE, holder=self._holder)

    def _ask(self, command: str, patience: float, **arguments: str) -> list[Answer]:
        """The answer of every node.

        Raises:
            SourceUnavailable: Somebody gave none, or a name is not of one alone.
            SourceError: Somebody knows no such question.
        """
        found = self._replies(command, patience, arguments)
        answers = [self._understood(node, found[node]) for node in self._nodes]
        self._remember(answers)
        return answers

    def _replies(
        self,
        command: str,
        patience: float,
        arguments: dict[str, str] | None = None,
        *,
        is_each_enough: bool = True,
    ) -> dict[str, Answer]:
        """What each has said; or, all the time, what more comes than that."""
        found: dict[str, Answer] = {}

        def note(reply: dict[str, Answer]) -> None:
            for node, answer in reply.items():
                first = found.setdefault(node, answer)
                if first.get("process") != answer.get("process"):
                    raise _twins(node)
            if is_each_enough and len(found) == len(self._nodes):
                raise _AllAnswered

        with self._connection() as connection, suppress(_AllAnswered):
            self._app.control.broadcast(
                command,
                arguments or {},
                destination=self._nodes,
                connection=connection,
                reply=True,
                timeout=patience,
                limit=_ANY_NUMBER,
                callback=note,
            )
            if is_each_enough:
                silent = ", ".join(node for node in self._nodes if node not in found)
                raise SourceUnavailable(
                    f"no answer from {silent}; is it running, under that name?"
                )
        return found

    def _understood(self, node: str, answer: Answer) -> Answer:
        if "held" not in answer:
            raise _refusal(node, answer)
        if not _is_plain(answer):
            raise SourceUnavailable(f"{node} runs another version of drainmw")
        if answer["held"] and self._standing:
            known = self._known.setdefault(node, answer)
            if known["process"] != answer["process"]:
                if answer["process"] in self._replaced:
                    raise _twins(node)
                if known["jobs"]:
                    raise SourceUnavailable(
                        f"{node} died while it was held; what it ran is unknown"
                    )
                self._replaced.add(known["process"])
            self._known[node] = answer
        return answer

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """One of our own: the app's pool may be used up by those we wait for."""
        try:
            kept = self._connections.pop()
        except IndexError:
            kept = self._app.connection_for_write()
        try:
            # A broker that is away is named at once, and asked again by who asks us.
            kept.ensure_connection(max_retries=1, interval_start=0)
            yield kept
        except SourceUnavailable:
            close(kept)  # what comes too late comes to nobody
            raise
        except failures(kept) as exc:
            close(kept)
            raise SourceUnavailable(f"the broker of {self._who}: {exc}") from exc
        self._connections.append(kept)

    def _remember(self, answers: list[Answer]) -> None:
        now = time.monotonic()
        pieces = [piece for answer in answers for piece in answer.get("running", ())]
        self._running = [
            Running(id, now - age) for id, age in sorted(pieces, key=lambda p: -p[1])
        ]
        self.overdue = _total(answers, "overdue")
        self.handed_back = _total(answers, "handed_back")


class _AllAnswered(Exception):
    """Ends a wait for replies."""


def _close(connections: list[Any]) -> None:
    while connections:
        close(connections.pop())


def _check(app: Any) -> None:
    if isinstance(app, type) or not hasattr(app, "connection_for_write"):
        raise Misuse(
            f"this takes a Celery app, such as Celery('shop'), not {kind_of(app)}"
        )


def _checked(nodes: Iterable[str]) -> list[str]:
    names = [nodes] if isinstance(nodes, str) else list(nodes)
    if not names:
        raise Misuse("name the nodes, such as blue@host: with none, nothing is held")
    for name in names:
        if not isinstance(name, str):
            raise Misuse(f"a node is named by a text such as blue@host, not {name!r}")
        if "@" not in name:
            raise Misuse(f"{name} is no node name, such as {name}@host")
    return names


def _is_plain(answer: Answer) -> bool:
    """Whether it tells what is needed, and nothing that is no count."""
    counts = answer.get("jobs"), answer.get("schedules")
    return (
        isinstance(answer["held"], bool)
        and isinstance(answer.get("process"), str)
        and all(type(count) is int and count >= 0 for count in counts)
    )


def _twins(node: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"two processes answer as {node}: start each with a name of its own, by -n"
    )


def _refusal(node: str, answer: Answer) -> SourceError:
    why = str(answer.get("error", ""))
    if "missing" in answer or "KeyError('drainmw_" in why:
        return SourceError(f"{node} cannot be held: call drainable(app) in its app")
    return SourceUnavailable(f"{node}: {why or answer}")


def _total(answers: list[Answer], name: str) -> int | None:
    known = [int(answer[name]) for answer in answers if name in answer]
    return sum(known) if known else None
