"""Prove that an ASGI release is done before it is stopped.

`Drain` owns the state of one release, `DrainMiddleware` puts it in front of
an ASGI app. Both are imported on first use, so that a command which needs
neither starts quickly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmw.core.drain import Phase
    from drainmw.core.policy import Policy
    from drainmw.errors import (
        ConnectionClosed,
        DrainError,
        IntakeRefused,
        ResultElsewhere,
        SettingsError,
        SourceUnavailable,
    )
    from drainmw.middleware import DrainMiddleware
    from drainmw.modelstate import ModelState
    from drainmw.owner import Owner
    from drainmw.release import Drain
    from drainmw.sources.base import Counts, WorkSource
    from drainmw.sources.clock import Clock
    from drainmw.sources.executors import ExecutorSource
    from drainmw.sources.owned import Owned
    from drainmw.sources.queue import KeyedQueue
    from drainmw.sources.queuestate import QueueState
    from drainmw.state import ImportContext, StateAdapter

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "drainmw counts with operations that are atomic under the interpreter lock, "
        "which this Python runs without; run it with the lock (PYTHON_GIL=1)"
    )

__version__ = "0.1.0"

__all__ = [
    "Clock",
    "ConnectionClosed",
    "Counts",
    "Drain",
    "DrainError",
    "DrainMiddleware",
    "ExecutorSource",
    "ImportContext",
    "IntakeRefused",
    "KeyedQueue",
    "ModelState",
    "Owned",
    "Owner",
    "Phase",
    "Policy",
    "QueueState",
    "ResultElsewhere",
    "SettingsError",
    "SourceUnavailable",
    "StateAdapter",
    "WorkSource",
    "__version__",
]

_HOME = {
    "Clock": "drainmw.sources.clock",
    "ConnectionClosed": "drainmw.errors",
    "Counts": "drainmw.sources.base",
    "Drain": "drainmw.release",
    "DrainError": "drainmw.errors",
    "DrainMiddleware": "drainmw.middleware",
    "ExecutorSource": "drainmw.sources.executors",
    "ImportContext": "drainmw.state",
    "IntakeRefused": "drainmw.errors",
    "KeyedQueue": "drainmw.sources.queue",
    "ModelState": "drainmw.modelstate",
    "Owned": "drainmw.sources.owned",
    "Owner": "drainmw.owner",
    "Phase": "drainmw.core.drain",
    "Policy": "drainmw.core.policy",
    "QueueState": "drainmw.sources.queuestate",
    "ResultElsewhere": "drainmw.errors",
    "SettingsError": "drainmw.errors",
    "SourceUnavailable": "drainmw.errors",
    "StateAdapter": "drainmw.state",
    "WorkSource": "drainmw.sources.base",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
