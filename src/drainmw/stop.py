"""The stop of a release: cordon, drain, end; and the signals that ask for it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from drainmw.bodies import BeginRequest
from drainmw.contract import UNKNOWN_REVISION
from drainmw.errors import AlreadyStarted, DrainNotFound, PhaseConflict
from drainmw.log import logger
from drainmw.release import Drain
from drainmw.tokens import generate

SIGNALS = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))
RESUMED_PAUSE = 0.25  # seconds between two looks whether the drain was resumed


async def drained(drain: Drain) -> bool:
    """Cordon for the lame-duck time, then drain, or join the drain that runs.

    Returns once it has ended; false if it was resumed instead.
    """
    # 1. Readiness says no; whoever balances load looks elsewhere.
    with contextlib.suppress(PhaseConflict):  # a drain has begun already
        drain.cordon()
        await _lame_duck(drain)
    # 2. No new work; what runs may end.
    with contextlib.suppress(AlreadyStarted):
        await drain.begin(_request(drain))
    if await _ended(drain):
        return True
    _given_up()
    return False


def final(drain: Drain) -> bool | None:
    """Let nothing open again; whether the drain ended well, `None` if resumed.

    What is served after a resume would be cut by a stop that goes on.
    """
    try:
        return drain.detach()
    except (DrainNotFound, PhaseConflict):
        _given_up()
        return None


def _given_up() -> None:
    logger().warning("stop given up", reason="the drain was resumed")


async def _lame_duck(drain: Drain) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain.settings.lame_duck):
            await drain.begun


async def _ended(drain: Drain) -> bool:
    """Wait for the verdict; false if the drain was resumed instead."""
    while drain.begun:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESUMED_PAUSE):
                await drain.ended
        if drain.ended:
            return True
        drain.follow()
    return False


def _request(drain: Drain) -> BeginRequest:
    settings = drain.settings
    return BeginRequest(
        protocol="forgezero-drain/v1",
        nonce=generate(),
        sourceRevision=drain.revision or UNKNOWN_REVISION,
        targetRevision=UNKNOWN_REVISION,
        timeoutMs=round(settings.timeout * 1000),
    )


@contextlib.contextmanager
def handled_signals(
    handle: Callable[[int, FrameType | None], None],
) -> Iterator[None]:
    """Take the signals of a stop; give them back at the end."""
    ignored = {n for n in SIGNALS if signal.getsignal(n) == signal.SIG_IGN}  # nohup
    before = {n: signal.signal(n, handle) for n in {*SIGNALS} - ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_within(seconds: float) -> None:
    """End this process then, whatever hangs: a thread, a lifespan, the loop."""
    signal.signal(signal.SIGALRM, _end_now)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _end_now(_number: int, _frame: FrameType | None) -> None:
    os._exit(1)


@atexit.register  # before the app's are, and so called after them
def _let_python_go() -> None:
    """All that can hang has ended, and the alarm would kill what has its exit code:
    Python goes without its signal handlers."""
    if signal.getsignal(signal.SIGALRM) is _end_now:
        signal.setitimer(signal.ITIMER_REAL, 0)
