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
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.importer import ImportFromStringError, import_from_string
from uvicorn.protocols.http.h11_impl import H11Protocol

from drainmw import socketfile
from drainmw.bodies import BeginRequest
from drainmw.contract import UNKNOWN_REVISION
from drainmw.control import Control
from drainmw.core.drain import Phase
from drainmw.errors import AlreadyStarted, Misuse, PhaseConflict, SettingsError
from drainmw.log import NAME, logger
from drainmw.middleware import DrainMiddleware, installed_drain
from drainmw.release import Drain
from drainmw.settings import PREFIX
from drainmw.text import failure_text, without_credentials
from drainmw.tokens import generate

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_PAUSE = 0.01  # seconds between two looks at the write buffers
RESUMED_PAUSE = 0.25  # seconds between two looks whether the drain was resumed
FORCED_PAUSE = 1.0  # seconds from a second signal to the end
FAILED_PAUSE = 2.0  # seconds beyond the graceful timeout, once a drain has failed
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


def run(options: Options) -> int:
    """Serve until a signal; 0 where everything that ran has ended, else 1.

    Raises:
        SettingsError: Before any listener opens, for anything not usable.
    """
    configure_logging()
    app, drain = load(options)
    with contextlib.ExitStack() as opened:
        control = None
        if options.control:
            control = socketfile.bind(options.control)
            own = socketfile.identity(options.control)
            opened.callback(socketfile.remove, options.control, control, own)
        if options.uds:
            listener = socketfile.bind_public(options.uds, BACKLOG)
            own = socketfile.identity(options.uds)
            opened.callback(socketfile.remove, options.uds, listener, own)
        else:
            listener = listen(options.host, options.port)
            opened.callback(listener.close)
        return _Release(options, app, drain, listener, control).run()


def load(options: Options) -> tuple[ASGIApp, Drain]:
    """Import the app and wrap it, unless it has wrapped itself.

    Raises:
        SettingsError: No such app, or a setting that cannot be used.
    """
    _export(options)
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
    if drain is not None:
        return app, drain
    drain = Drain(app=options.app)
    return DrainMiddleware(app, drain), drain


def _export(options: Options) -> None:
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


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `_Release`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _PeerChecked(H11Protocol):
    """Drops a connection to the control socket that is not its owner's."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not socketfile.peer_is_owner(transport.get_extra_info("socket")):
            logger().warning("control peer refused", reason="another user")
            transport.abort()


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
        settings = drain.settings
        self._drain = drain
        self._options = options
        self._listener = listener
        self._control_listener = control
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # it would write query strings
            timeout_graceful_shutdown=math.ceil(settings.graceful_timeout),
        )
        self._factory = config.get_loop_factory()
        self._server = _Server(config)
        self._control = _Server(
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
        self._stopping: asyncio.Task[None] | None = None
        self._signals = 0

    def run(self) -> int:
        """Serve; the exit code."""
        with asyncio.Runner(loop_factory=self._factory) as runner:
            runner.run(self._serve())
        ended_well = self._drain.phase in (Phase.DRAINED, Phase.DETACHED)
        return 0 if ended_well else 1

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with _handled_signals(self._take_signal):
            control = self._loop.create_task(self._serve_control())
            try:
                if not self._server.config.loaded:
                    self._server.config.load()
                self._announce()
                await self._server.serve([self._listener])
            except SystemExit:  # lifespan failed, and uvicorn has said so
                logger().error("app did not start", app=self._options.app)
            finally:
                if self._control_listener is not None:
                    await asyncio.sleep(FAREWELL)
                self._control.should_exit = True
                await control

    async def _serve_control(self) -> None:
        if self._control_listener is not None:
            await self._control.serve([self._control_listener])

    def _announce(self) -> None:
        logger().info(
            "serving",
            address=str(self._options.uds or _url(self._listener)),
            control=str(self._options.control or "closed"),
            revision=self._drain.settings.revision or "unknown",
            pid=os.getpid(),
        )

    # The stop

    def _take_signal(self, number: int, _frame: FrameType | None) -> None:
        """In the main thread, and also while the event loop is blocked."""
        self._signals += 1
        if self._signals > 1:
            _end_within(FORCED_PAUSE)
        self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(number).name)

    def _on_signal(self, name: str) -> None:
        if self._stopping is None:
            logger().info("stopping", signal=name)
            self._stopping = asyncio.create_task(self._stop(), name="drainmw stop")
        else:
            logger().warning("stopping at once", signal=name)
            self._stopping.cancel()
            self._server.force_exit = self._server.should_exit = True

    async def _stop(self) -> None:
        drain = self._drain
        # 1. Readiness says no; whoever balances load looks elsewhere.
        with contextlib.suppress(PhaseConflict):  # a drain has begun already
            drain.cordon()
            await self._lame_duck()
        # 2. No new work; what runs may end.
        with contextlib.suppress(AlreadyStarted):
            await drain.begin(self._request())
        if not await self._ended():
            logger().warning("stop given up", reason="the drain was resumed")
            self._stopping = None
            self._signals = 0
            return
        # 3. The last answers leave our buffers.
        await self._flush()
        # 4. The server closes what is idle, and goes.
        if drain.phase is Phase.FAILED:
            _end_within(drain.settings.graceful_timeout + FAILED_PAUSE)
        self._server.should_exit = True

    async def _lame_duck(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain.settings.lame_duck):
                await self._drain.begun

    def _request(self) -> BeginRequest:
        settings = self._drain.settings
        return BeginRequest(
            protocol="forgezero-drain/v1",
            nonce=generate(),
            sourceRevision=settings.revision or UNKNOWN_REVISION,
            targetRevision=UNKNOWN_REVISION,
            timeoutMs=round(settings.timeout * 1000),
        )

    async def _ended(self) -> bool:
        """Wait for the verdict; false if the drain was resumed instead."""
        drain = self._drain
        while drain.begun:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESUMED_PAUSE):
                    await drain.ended
            if drain.ended:
                return True
        return False

    async def _flush(self) -> None:
        """Wait, within the deadline, until no connection has bytes to write."""
        # No event tells when a write buffer has become empty.
        while (self._drain.remaining or 0) > 0 and self._unsent():  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_PAUSE)

    def _unsent(self) -> bool:
        connections = list(self._server.server_state.connections)
        transports = [getattr(c, "transport", None) for c in connections]
        return any(t.get_write_buffer_size() for t in transports if t is not None)


@contextlib.contextmanager
def _handled_signals(
    handle: Callable[[int, FrameType | None], None],
) -> Iterator[None]:
    """Take the signals of a stop; give them back at the end."""
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_within(seconds: float) -> None:
    """End this process then, whatever hangs: a thread, a lifespan, the loop."""
    signal.signal(signal.SIGALRM, _end_now)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _end_now(_number: int, _frame: FrameType | None) -> None:
    os._exit(1)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configure_logging() -> None:
    """Log to standard error: readable on a terminal, JSON elsewhere."""
    terminal = sys.stderr.isatty()
    renderer: Any = structlog.processors.JSONRenderer()
    if terminal:  # and never the local variables of a traceback
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=plain)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso"),
            _take_facts,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _masked,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_is_no_access)


def _is_no_access(record: logging.LogRecord) -> bool:
    """uvicorn writes each WebSocket handshake here, with its query string."""
    return '"WebSocket %s"' not in str(record.msg)


def _masked(_logger: Any, _method: str, event: Any) -> Any:
    """Whoever logs it: no credentials of a URL in a message or a traceback."""
    for name in ("event", "exception"):
        if isinstance(event.get(name), str):
            event[name] = without_credentials(event[name])
    return event


def _take_facts(_logger: Any, _method: str, event: Any) -> Any:
    """Our own records carry their facts beside the text of the message."""
    facts = getattr(event["_record"], NAME, None)
    return {**event, **facts} if isinstance(facts, dict) else event
