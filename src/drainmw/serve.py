"""`drainmw serve`: an app under uvicorn, with a control socket and a stop that
drains.

At SIGTERM or SIGINT, in this order:

1. cordon for the lame-duck time: readiness says no, everything is served;
2. drain, or join the drain that runs;
3. wait until the bytes of the last answers have left this process;
4. let uvicorn stop, with a graceful timeout.

A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.importer import ImportFromStringError, import_from_string
from uvicorn.protocols.http.h11_impl import H11Protocol

from drainmw import socketfile
from drainmw.control import Control
from drainmw.errors import Misuse, SettingsError
from drainmw.flag import start_task
from drainmw.log import logger
from drainmw.middleware import DrainMiddleware, installed_drain
from drainmw.release import Drain
from drainmw.servelog import configure_logging
from drainmw.settings import PREFIX, Settings
from drainmw.stop import drained, end_within, final, handled_signals
from drainmw.text import failure_text

FLUSH_PAUSE = 0.01  # seconds between two looks at the write buffers
RESUMED_PAUSE = 0.25  # seconds between two looks whether the drain was resumed
FORCED_PAUSE = 1.0  # seconds from a second signal to the end
LAST_PAUSE = 2.0  # seconds beyond the graceful timeout, for lifespan to end in
FAREWELL = 0.3  # seconds in which who watches over the control socket reads the end
BACKLOG = 2048
FLAGS = {
    "revision": "--revision",
    "lame_duck": "--lame-duck",
    "timeout": "--drain-timeout",
    "graceful_timeout": "--graceful-timeout",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What `serve` is told; durations are seconds, `None` is not given."""

    app: str
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    control: Path | None = None
    revision: str | None = None
    lame_duck: float | None = None
    timeout: float | None = None
    graceful_timeout: float | None = None
    workers: int = 1


def run(options: Options) -> int:
    """Serve until a signal; 0 where everything that ran has ended, else 1.

    Raises:
        SettingsError: Before any listener opens, for anything not usable.
    """
    configure_logging()
    app, drain = load(options)
    with opened(options) as (listener, control):
        return _Release(options, app, drain, listener, control).run()


@contextlib.contextmanager
def opened(options: Options) -> Iterator[tuple[socket.socket, socket.socket | None]]:
    """The public listener and, if there is one, the control socket.

    Raises:
        SettingsError: One of them cannot be had.
    """
    with contextlib.ExitStack() as stack:
        control = None
        if options.control:
            control = socketfile.bind(options.control)
            own = socketfile.identity(options.control)
            stack.callback(socketfile.remove, options.control, control, own)
        if options.uds:
            listener = socketfile.bind_public(options.uds, BACKLOG)
            own = socketfile.identity(options.uds)
            stack.callback(socketfile.remove, options.uds, listener, own)
        else:
            listener = listen(options.host, options.port)
            stack.callback(listener.close)
        yield listener, control


def load(options: Options) -> tuple[ASGIApp, Drain]:
    """Import the app and wrap it, unless it has wrapped itself.

    Raises:
        SettingsError: No such app, or a setting that cannot be used.
    """
    export(options)
    sys.path.insert(0, os.getcwd())
    try:
        app = import_from_string(options.app)
    except ImportFromStringError as exc:
        raise SettingsError(str(exc)) from None
    except Misuse:
        raise
    except Exception as exc:
        logger().error("app not imported", app=options.app, exc_info=True)
        why = f"{type(exc).__name__}: {failure_text(exc)}"
        raise SettingsError(f"{options.app} cannot be imported: {why}") from None
    if not callable(app):
        raise SettingsError(
            f"{options.app} must be an ASGI app, not of type {type(app).__name__}"
        )
    drain = installed_drain(app)
    if drain is None:
        drain = Drain(app=options.app)
        app = DrainMiddleware(app, drain)
    return app, drain


def export(options: Options) -> None:
    """Flags win over variables, also for a `Drain` that the app makes itself."""
    given = {name: getattr(options, name) for name in FLAGS}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        os.environ[f"{PREFIX}{name.upper()}"] = str(value)
    try:
        Drain()  # says what is wrong before the app is imported
    except SettingsError as exc:
        message = str(exc)
        for name in given:
            message = message.replace(f"{PREFIX}{name.upper()} ", f"{FLAGS[name]} ")
        raise SettingsError(message) from None


def listen(host: str, port: int) -> socket.socket:
    """Bind the public listener.

    Raises:
        SettingsError: The address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        # Python adds the address to the reason of a bind; not to one of a look-up.
        number = exc.errno or 0
        why = os.strerror(number) if number > 0 else exc.strerror or exc
        raise SettingsError(f"cannot listen on {host} port {port}: {why}") from None


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever runs it."""

    started_hook: Callable[[], None] | None = None
    """Called once it listens."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started and self.started_hook is not None:
            self.started_hook()


class _PeerChecked(H11Protocol):
    """Drops a connection to the control socket that is not its owner's."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not socketfile.peer_is_owner(transport.get_extra_info("socket")):
            logger().warning("control peer refused", reason="another user")
            transport.abort()


def main_server(app: ASGIApp, settings: Settings) -> Server:
    """The server of the app."""
    return Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # it would write query strings
            timeout_graceful_shutdown=math.ceil(settings.graceful_timeout),
        )
    )


def control_server(drain: Drain) -> Server:
    """The server of a control socket, which asks for no token."""
    return Server(
        uvicorn.Config(
            Control(drain, trusted=True),
            http=_PeerChecked,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )


def unsent(server: Server) -> bool:
    """Whether a connection has bytes that have not left this process."""
    connections = list(server.server_state.connections)
    transports = [getattr(c, "transport", None) for c in connections]
    return any(t.get_write_buffer_size() for t in transports if t is not None)


class _Release:
    """One serving process, from start to exit."""

    def __init__(
        self,
        options: Options,
        app: ASGIApp,
        drain: Drain,
        listener: socket.socket,
        control: socket.socket | None,
    ) -> None:
        self._drain = drain
        self._options = options
        self._listener = listener
        self._control_listener = control
        self._server = main_server(app, drain.settings)
        self._factory = self._server.config.get_loop_factory()
        self._control = control_server(drain)
        self._stopping: asyncio.Task[None] | None = None
        self._signals = 0
        self._ended_well: bool | None = None

    def run(self) -> int:
        """Serve; the exit code."""
        with asyncio.Runner(loop_factory=self._factory) as runner:
            runner.run(self._serve())
        return 0 if self._ended_well else 1

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with handled_signals(self._take_signal):
            control = start_task(self._serve_control())
            try:
                if not self._server.config.loaded:
                    self._server.config.load()
                self._server.started_hook = lambda: announce(
                    self._options, self._listener, self._drain
                )
                await self._server.serve([self._listener])
            except SystemExit:  # lifespan failed, and uvicorn has said so
                logger().error("app did not start", app=self._options.app)
            finally:
                await self._drain.ownership.stop()  # where the app has no lifespan
                if self._control_listener is not None:
                    await asyncio.sleep(FAREWELL)
                self._control.should_exit = True
                await control

    async def _serve_control(self) -> None:
        if self._control_listener is not None:
            await self._control.serve([self._control_listener])

    # The stop

    def _take_signal(self, number: int, _frame: FrameType | None) -> None:
        """In the main thread, and also while the event loop is blocked."""
        self._signals += 1
        if self._signals > 1:
            end_within(FORCED_PAUSE)
        self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(number).name)

    def _on_signal(self, name: str) -> None:
        if self._stopping is None:
            logger().info("stopping", signal=name)
            self._stopping = start_task(self._stop(), name="drainmw stop")
        else:
            logger().warning("stopping at once", signal=name)
            self._stopping.cancel()
            self._server.force_exit = self._server.should_exit = True

    async def _stop(self) -> None:
        # 1 and 2. Cordon, drain.
        if not await drained(self._drain):
            self._stopping = None
            self._signals = 0
            return
        # 3. The last answers leave our buffers.
        await self._flush()
        # 4. Nothing opens again; the server closes what is idle, and goes.
        self._ended_well = final(self._drain)
        if self._ended_well is None:
            self._stopping = None
            self._signals = 0
            return
        end_within(self._drain.settings.graceful_timeout + LAST_PAUSE)
        self._server.should_exit = True

    async def _flush(self) -> None:
        """Wait, within the deadline, until no connection has bytes to write."""
        # No event tells when a write buffer has become empty.
        while (self._drain.remaining or 0) > 0 and unsent(self._server):  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_PAUSE)


def announce(
    options: Options, listener: socket.socket, drain: Drain, **more: object
) -> None:
    """Say in the log where this release is served; who starts it waits for that."""
    logger().info(
        "serving",
        address=str(options.uds or _url(listener)),
        control=str(options.control or "closed"),
        revision=drain.settings.revision or "unknown",
        pid=os.getpid(),
        **more,
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
