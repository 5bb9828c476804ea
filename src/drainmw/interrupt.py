"""Interrupting what an app waits for, without its task.

An app waits in a chain of coroutines, at whose end is a future. To cancel that
future is what `Task.cancel` does, except that nothing is asked of the task: so
it reaches exactly this wait, whichever task of the app is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar

MOST = 16  # members of a collection that is looked into
LAYERS = 3  # functions around a function that are looked into
_INNER = ("cr_await", "gi_yieldfrom", "ag_await")
_OPAQUE = frozenset(
    (
        "anext_awaitable",
        "async_generator_asend",
        "async_generator_athrow",
        "coroutine_wrapper",
    )
)
"""The interpreter's own, which do not show what they stand before."""


F = TypeVar("F", bound=Callable[..., Any])


def returns_coroutine(function: F) -> F:
    """Mark a plain function as what it is to those who ask before they call it.

    asgiref does, before it calls a `send` from a thread. The mark is the same
    dictionary for all, since some functions are made for each connection.
    """
    function.__dict__ = _MARK
    return function


def is_coroutine_function(function: object) -> bool:
    """Whether a call of it gives a coroutine, by its kind or by such a mark."""
    if sys.version_info >= (3, 12):
        return inspect.iscoroutinefunction(function)
    return asyncio.iscoroutinefunction(function)


def _marked() -> dict[str, Any]:
    def example() -> None:
        """Takes the mark."""

    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(example)
    else:
        vars(example)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]
    return vars(example)


_MARK = _marked()


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


def frames(awaitable: Any) -> Iterator[FrameType]:
    """Where each coroutine of its chain stands, from the outermost on."""
    for link in chain(awaitable):
        frame = getattr(link, "cr_frame", None) or getattr(link, "gi_frame", None)
        if frame is not None:
            yield frame


def held_tasks(frame: FrameType) -> Iterator[asyncio.Task[Any]]:
    """The tasks that its variables hold, alone or in a small collection."""
    for value in frame.f_locals.values():
        if isinstance(value, asyncio.Task):
            yield value
        elif isinstance(value, list | tuple | set | frozenset) and len(value) <= MOST:
            yield from (each for each in value if isinstance(each, asyncio.Task))


def reaches(awaitable: Any, target: object) -> bool:
    """Whether a coroutine has that object at hand, or a function that wraps it."""
    return any(
        _wraps(value, target, LAYERS)
        for frame in frames(awaitable)
        for value in frame.f_locals.values()
    )


def _wraps(value: object, target: object, layers: int) -> bool:
    if value is target:
        return True
    if layers == 0 or not isinstance(value, FunctionType):
        return False
    return any(_wraps(found, target, layers - 1) for found in _enclosed(value))


def _enclosed(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents


CHUNK = 50  # tasks that are looked at before others get a turn


async def interrupt_calls(functions: Iterable[Any]) -> None:
    """Interrupt every call of these coroutine functions that is waited for here.

    Only of those that can be seen. All tasks of the loop are looked at, a few at a
    time; so ask for many functions at once.
    """
    wanted: dict[CodeType, list[set[int]]] = {}
    for code, bound in map(_unbound, functions):
        if code is not None:
            wanted.setdefault(code, []).append(set(map(id, bound)))
    for count, task in enumerate(asyncio.all_tasks()):
        for link in list(chain(task.get_coro())):
            if _is_one_of(wanted, link):
                interrupt(link)
        if count % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)


def can_be_seen(function: Any) -> bool:
    """Whether its calls can be found: not those of a server that is not in Python."""
    return isinstance(function, FunctionType | MethodType | partial)


def _is_one_of(wanted: dict[CodeType, list[set[int]]], link: Any) -> bool:
    bounds = wanted.get(getattr(link, "cr_code", None))  # type: ignore[arg-type]  # no coroutine has `None`
    if bounds is None or link.cr_frame is None:
        return False
    at_hand = set(map(id, link.cr_frame.f_locals.values()))
    return any(bound <= at_hand for bound in bounds)


def _unbound(function: Any) -> tuple[CodeType | None, list[object]]:
    """The code of a function, and what it is bound to."""
    bound: list[object] = []
    while not isinstance(function, FunctionType):
        if isinstance(function, MethodType):
            bound.append(function.__self__)
            function = function.__func__
        elif isinstance(function, partial):
            bound += function.args
            function = function.func
        else:
            return None, []
    return function.__code__, [*bound, *_enclosed(function)]


def chain(awaitable: Any) -> Iterator[Any]:
    """What it waits for, and what that waits for, down to where it can be seen."""
    while awaitable is not None:
        yield awaitable
        awaitable = _inner(awaitable)


def _inner(awaitable: Any) -> Any:
    if type(awaitable).__name__ in _OPAQUE:
        return next(filter(_can_wait, gc.get_referents(awaitable)), None)
    inner = (getattr(awaitable, name, None) for name in _INNER)
    return next((found for found in inner if found is not None), None)


def _can_wait(found: object) -> bool:
    return inspect.isasyncgen(found) or isinstance(found, Awaitable)
