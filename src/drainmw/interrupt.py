"""Interrupting what an app waits for, without its task.

An app waits in a chain of coroutines, at whose end is a future. To cancel that
future is what `Task.cancel` does, except that nothing is asked of the task: so
it reaches exactly this wait, whichever task of the app is in it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

_INNER = ("cr_await", "gi_yieldfrom", "ag_await")


def is_waiting(awaitable: Any) -> bool:
    """Whether somebody waits in it right now; a server's own kind can be asked, too."""
    suspended: bool | None = getattr(awaitable, "cr_suspended", None)
    if suspended is not None:
        return suspended
    done = getattr(awaitable, "done", None)
    return done is not None and not done()


def interrupt(awaitable: Any) -> bool:
    """Let a `CancelledError` out of it; false where nothing could be found to cancel.

    Call it in the event loop of whoever waits.
    """
    if not is_waiting(awaitable):
        return False
    *_, innermost = chain(awaitable)
    if not hasattr(innermost, "cancel"):  # the iterator that stands before a future
        futures = filter(asyncio.isfuture, gc.get_referents(innermost))
        innermost = next(futures, None)
    return innermost is not None and bool(innermost.cancel())


def chain(awaitable: Any) -> Iterator[Any]:
    """What it waits for, and what that waits for, down to where it can be seen."""
    while awaitable is not None:
        yield awaitable
        inner = (getattr(awaitable, name, None) for name in _INNER)
        awaitable = next((found for found in inner if found is not None), None)
