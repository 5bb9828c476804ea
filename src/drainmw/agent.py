"""What runs in a worker process, so that the app's process can hold it.

A thread that answers on a Unix socket, without an event loop: it is as much at home
in a worker that forks or blocks as in one that runs a loop. One question a
connection, a line of JSON each way:

    {"ask": "hold", "token": "..."}     is answered once the hold has returned
    {"ask": "count"}                    with the token of the hold it is under
    {"ask": "settled", "token": "..."}  once it has settled, or after a second
    {"ask": "release", "token": "..."}  undoes that hold and no later one

A hold outlives the connection it came by, and the process that asked for it. The
socket of a worker that has left in order is renamed, as a proof that it left
nothing behind; one that is still there and refuses is of a worker that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from drainmw import socketfile
from drainmw.errors import Misuse, SourceUnavailable
from drainmw.log import logger
from drainmw.reporting import shown_id
from drainmw.sources import mark
from drainmw.sources.base import BlockingSource, WorkSource
from drainmw.sources.counting import number_of, running_of, whole
from drainmw.sources.inloop import InLoop
from drainmw.sources.threaded import Lane
from drainmw.text import failure_text, kind_of

LIVE = ".sock"
LEFT = ".left"
"""The names of sockets end in one of them."""

LONGEST_POLL = 1.0  # seconds until "not settled" is an answer
PATIENCE = 5.0  # seconds for a question to arrive
MOST_AT_ONCE = 32  # connections
_LINE_MAXIMUM = 4096  # bytes of a question
_RUNNING_MAXIMUM = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


class Agent:
    """Serves the source of this process. A context manager, also an asynchronous one.

    In a process that runs an event loop, enter it by `async with`, in that loop.
    """

    def __init__(
        self,
        source: BlockingSource | WorkSource,
        directory: Path | str,
        name: str | None = None,
    ) -> None:
        """`directory` is one of its own, which only this user can enter.

        `name` tells the workers in it apart; it is the process id if not given.

        Raises:
            Misuse: It is no source, or the name cannot be that of a file.
        """
        self.name = str(os.getpid()) if name is None else name
        given: object = self.name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise Misuse(
                f"an agent's name is up to 64 letters, digits and _.@-, "
                f"not {self.name!r}"
            )
        self.path = Path(directory) / f"{self.name}{LIVE}"
        self._source = _blocking(source)
        self._has_started = False
        self._listener: socket.socket | None = None
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._turns = threading.Lock()  # hold and release take turns
        self._token: str | None = None  # of the hold that stands
        self._begun: str | None = None  # of the hold that was asked for
        self._settling = threading.Condition()
        self._settler: threading.Thread | None = None
        self._settled: str | None = None  # the hold that has settled
        self._trouble: Exception | None = None

    def start(self) -> None:
        """Answer. If the release drains already, the source is held on return.

        Call it before the engine takes work.

        Raises:
            SettingsError: The place is not private, or somebody answers there.
            Exception: What the source raised; it must not take work then.
        """
        if self._has_started:
            raise Misuse(f"the agent {self.name} has been started already")
        self._listener = socketfile.bind(self.path, "worker socket")
        self._listener.setblocking(True)
        self._left.unlink(missing_ok=True)
        self._has_started = True
        _agents.add(self)
        _thread(self._serve, "drainmw agent")
        # After it listens: who wants a hold first makes the mark, then looks for us.
        try:
            with self._turns:
                if token := mark.standing(self.path.parent):
                    self._hold(token)
        except BaseException:
            self._stop()
            raise

    async def astart(self) -> None:
        """As `start`, in the event loop in which the source lives."""
        if isinstance(self._source, InLoop):
            self._source.loop = asyncio.get_running_loop()
        await Lane("drainmw agent start").call(self.start)

    def close(self) -> None:
        """Leave. Call it once the engine has stopped.

        What still has work leaves no proof of the contrary.
        """
        if self._listener is None:
            return  # never started, closed, or a copy that came with a fork
        with contextlib.suppress(Exception):
            if not any(self._source.count()):
                self.path.rename(self._left)
        self._stop()

    async def aclose(self) -> None:
        """As `close`, in the event loop in which the source lives."""
        await Lane("drainmw agent close").call(self.close)

    def __enter__(self) -> Agent:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Agent:
        await self.astart()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def forked(self) -> None:
        """Be nobody in a child: its socket would outlive us there."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def _left(self) -> Path:
        return self.path.with_name(f"{self.name}{LEFT}")

    def _stop(self) -> None:
        """Stop listening, and wake the thread that waits for somebody."""
        listener, self._listener = self._listener, None
        _agents.discard(self)
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    # Connections

    def _serve(self) -> None:
        while (listener := self._listener) is not None:
            try:
                peer, _ = listener.accept()
            except OSError:  # closed, or there is no room for one more file
                time.sleep(0.05)
                continue
            if not self._room.acquire(blocking=False):
                peer.close()
                continue
            try:
                _thread(partial(self._converse, peer), "drainmw agent answer")
            except RuntimeError:  # there is no thread to be had
                peer.close()
                self._room.release()

    def _converse(self, peer: socket.socket) -> None:
        try:
            with peer, contextlib.suppress(OSError):
                peer.settimeout(PATIENCE)
                if socketfile.peer_is_owner(peer):
                    answer = self._answer(_line(peer))
                    peer.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            self._room.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            question = json.loads(line)
            ask = self._asks[question["ask"]]
            token = question.get("token") or ""
            if not isinstance(token, str):
                raise TypeError("a token is a text")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {"error": "no such question", "unavailable": False}
        try:
            return ask(self, token)
        except Exception as exc:
            unavailable = isinstance(exc, SourceUnavailable)
            return {"error": failure_text(exc), "unavailable": unavailable}

    # Answers

    def _held(self, token: str) -> dict[str, Any]:
        """A hold that has waited here for its turn may have been undone meanwhile."""
        with self._turns:
            if not token or mark.standing(self.path.parent) != token:
                raise SourceUnavailable("that hold is not wanted any more")
            self._hold(token)
        return {"token": token}

    def _counted(self, _token: str) -> dict[str, Any]:
        before = self._token
        jobs, schedules = self._source.count()
        return {
            "token": before if before == self._token else None,
            "counts": [whole(jobs, "jobs"), whole(schedules, "schedules")],
            "running": [
                (shown_id(piece.id), piece.started, piece.kind)
                for piece in islice(running_of(self._source), _RUNNING_MAXIMUM)
            ],
            "overdue": number_of(self._source, "overdue"),
            "handedBack": number_of(self._source, "handed_back"),
        }

    def _has_settled(self, token: str) -> dict[str, Any]:
        with self._settling:
            if self._token == token and self._settler is None:
                self._settled = self._trouble = None
                self._settler = _thread(partial(self._settle, token), "drainmw settle")
            self._settling.wait_for(lambda: self._settler is None, LONGEST_POLL)
            if self._trouble is not None:
                raise self._trouble
            return {"settled": self._settled == token == self._token}

    def _released(self, token: str) -> dict[str, Any]:
        with self._turns:
            if token == self._begun:
                self._token = None
                self._source.release()
                self._begun = None
                logger().info("worker released", agent=self.name)
        return {"token": self._token}

    _asks: ClassVar[dict[str, Callable[[Agent, str], dict[str, Any]]]] = {
        "hold": _held,
        "count": _counted,
        "settled": _has_settled,
        "release": _released,
    }

    # In turn, and in a thread of its own

    def _hold(self, token: str) -> None:
        self._begun = token
        if self._token is not None:  # one hold after another: it never let go
            self._token = token
            return
        self._source.hold()
        self._token = token
        logger().info("worker held", agent=self.name)

    def _settle(self, token: str) -> None:
        trouble: Exception | None = None
        try:
            self._source.settle()
        except Exception as exc:
            trouble = exc
        with self._settling:
            self._settled = token if trouble is None else None
            self._trouble = trouble
            self._settler = None
            self._settling.notify_all()


def _blocking(source: BlockingSource | WorkSource) -> BlockingSource:
    if not isinstance(source, type):
        if inspect.iscoroutinefunction(getattr(source, "hold", None)):
            if isinstance(source, WorkSource):
                return InLoop(source)
        elif isinstance(source, BlockingSource):
            return source
    raise Misuse(
        f"{kind_of(source)} is no source: it needs hold, count, settled and "
        "release as coroutines, or hold, count, settle and release"
    )


def _line(peer: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _LINE_MAXIMUM:
        more = peer.recv(_LINE_MAXIMUM)
        if not more:
            break
        data += more
    return data


def _thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


_agents: weakref.WeakSet[Agent] = weakref.WeakSet()


def _forget_agents() -> None:
    for agent in list(_agents):
        agent.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_agents)
