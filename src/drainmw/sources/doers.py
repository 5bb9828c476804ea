"""Who works in this event loop without our knowledge.

An engine's worker that a source does not stand before takes work that is not
counted, so its source has to refuse. Such a worker runs in tasks, or is awaited by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def doers(kind: type[T]) -> list[T]:
    """The objects of a class whose methods the running loop is in, if any."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs here
        return []
    bound = (doer for task in tasks for doer in _awaited(task.get_coro()))
    return [doer for doer in bound if isinstance(doer, kind)]


def _awaited(call: object) -> Iterator[object]:
    """Whose methods a coroutine awaits, and those that these await."""
    while (frame := getattr(call, "cr_frame", None)) is not None:
        if "self" in frame.f_code.co_varnames:
            yield frame.f_locals.get("self")
        call = getattr(call, "cr_await", None)
