"""`drainmw serve --workers N`: a parent and its workers.

The parent opens the listener, the control socket and the workers, and serves no
request itself. It alone acts on signals: a terminal's Ctrl-C and a supervisor's
SIGTERM may reach everybody, so workers ignore both. At the end of a drain it
tells the workers to end, which then send what is in their buffers and go. A
worker that dies is replaced. A worker whose parent dies drains the release and
ends, since nobody else would.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType

from drainmw.errors import GroupError
from drainmw.flag import start_task
from drainmw.log import logger
from drainmw.release import Drain
from drainmw.serve import (
    Options,
    Server,
    announce,
    control_server,
    export,
    load,
    main_server,
    opened,
    unsent,
)
from drainmw.servelog import configure_logging
from drainmw.stop import SIGNALS, drained, end_within, final, handled_signals
from drainmw.supervisor import itself

GOING_PAUSE = 2.0  # seconds beyond the graceful timeout, before a worker is killed
END = "end"  # what a worker is told when it is time
YOUNG = 1.0  # seconds; a worker that dies younger is replaced that much later
FLUSH_PAUSE = 0.01
JOIN_PAUSE = 0.05


def run(options: Options) -> int:
    """Serve with several workers until a signal; the exit code.

    Raises:
        SettingsError: Before any listener opens, for anything not usable.
    """
    configure_logging()
    export(options)
    with opened(options) as (listener, control):
        return asyncio.run(_Crew(options, listener, control).run())


class _Crew:
    """The parent of the workers."""

    def __init__(
        self,
        options: Options,
        listener: socket.socket,
        control: socket.socket | None,
    ) -> None:
        self._options = options
        self._listener = listener
        self._control_listener = control
        self._drain = Drain(observes=itself(), app=options.app)
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[SpawnProcess, float] = {}
        self._lifelines: dict[SpawnProcess, Connection] = {}
        self._came_up = False
        self._code: int | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve; the exit code."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        with handled_signals(self._take_signal):
            for _ in range(self._options.workers):
                self._start_worker()
            control = control_server(self._drain)
            serving = start_task(self._serve_control(control))
            await self._ended.wait()
            await self._end_workers()
            control.should_exit = True
            await serving
        return 1 if self._code is None else self._code

    async def _serve_control(self, control: Server) -> None:
        if self._control_listener is not None:
            await control.serve([self._control_listener])

    # Workers

    def _start_worker(self) -> None:
        ours, theirs = self._spawn.Pipe()
        worker = self._spawn.Process(
            target=work, args=(self._options, self._listener, theirs)
        )
        worker.start()
        theirs.close()
        self._workers[worker] = time.monotonic()
        self._lifelines[worker] = ours
        self._loop.add_reader(worker.sentinel, self._on_death, worker)
        self._loop.add_reader(ours.fileno(), self._on_word, worker)

    def _on_word(self, worker: SpawnProcess) -> None:
        """A worker says that it serves, or says nothing any more."""
        lifeline = self._lifelines[worker]
        self._loop.remove_reader(lifeline.fileno())
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv()
            if not self._came_up:
                self._came_up = True
                count = self._options.workers
                announce(self._options, self._listener, self._drain, workers=count)

    def _on_death(self, worker: SpawnProcess) -> None:
        self._loop.remove_reader(worker.sentinel)
        age = time.monotonic() - self._workers.pop(worker)
        lifeline = self._lifelines.pop(worker)
        self._loop.remove_reader(lifeline.fileno())
        lifeline.close()
        worker.join()
        if self._code is not None:
            return
        if not self._came_up:
            logger().error("app did not start", app=self._options.app)
            self._finish(1)
            return
        logger().warning("worker ended", pid=worker.pid, code=worker.exitcode)
        self._loop.call_later(max(0.0, YOUNG - age), self._replace_worker)

    def _replace_worker(self) -> None:
        if self._code is None:
            self._start_worker()

    async def _end_workers(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):  # it has just died
                self._lifelines[worker].send(END)
        patience = self._drain.settings.graceful_timeout + GOING_PAUSE
        until = time.monotonic() + patience
        while self._workers and time.monotonic() < until:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(JOIN_PAUSE)
        for worker in self._workers:
            worker.kill()

    # The stop

    def _take_signal(self, number: int, _frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(number).name)

    def _on_signal(self, name: str) -> None:
        if self._stopping is None:
            logger().info("stopping", signal=name)
            self._stopping = start_task(self._stop(), name="drainmw stop")
        else:
            logger().warning("stopping at once", signal=name)
            self._stopping.cancel()
            for worker in self._workers:
                worker.kill()
            self._finish(1)

    async def _stop(self) -> None:
        try:
            ended = await drained(self._drain)
            well = final(self._drain) if ended else None
        except GroupError as exc:
            logger().warning("stopping without a drain", reason=str(exc))
            self._finish(1)
            return
        if well is None:  # resumed
            self._stopping = None
            return
        self._finish(0 if well else 1)

    def _finish(self, code: int) -> None:
        self._code = code
        self._ended.set()


# A worker


def work(options: Options, listener: socket.socket, lifeline: Connection) -> None:
    """One worker: serve until the parent ends it, or is gone."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    configure_logging()
    app, drain = load(options)
    server = main_server(app, drain.settings)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_Worker(server, drain, listener, lifeline).run())


class _Worker:
    def __init__(
        self,
        server: Server,
        drain: Drain,
        listener: socket.socket,
        lifeline: Connection,
    ) -> None:
        self._server = server
        self._drain = drain
        self._listener = listener
        self._lifeline = lifeline
        self._going: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._lifeline.fileno(), self._on_word)
        self._server.started_hook = self._say_that_it_serves
        await self._server.serve([self._listener])
        await self._drain.ownership.stop()  # where the app has no lifespan

    def _say_that_it_serves(self) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; that is heard, too
            self._lifeline.send("serving")

    def _on_word(self) -> None:
        """The parent says that it is time to end, or says nothing any more."""
        asyncio.get_running_loop().remove_reader(self._lifeline.fileno())
        try:
            self._lifeline.recv()
        except (EOFError, OSError):
            logger().error("parent gone", consequence="draining, then ending")
            self._go(True)
        else:
            self._go(False)

    def _go(self, drains: bool) -> None:
        if self._going is None:
            self._going = start_task(self._leave(drains), name="drainmw stop")

    async def _leave(self, drains: bool) -> None:
        if drains:
            with contextlib.suppress(GroupError):  # alone, and so is its work
                await drained(self._drain)
        settings = self._drain.settings
        until = time.monotonic() + settings.graceful_timeout
        while unsent(self._server) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_PAUSE)
        end_within(settings.graceful_timeout + GOING_PAUSE)
        self._server.should_exit = True
