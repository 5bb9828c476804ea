"""What sources answer when they are asked for their counts, and what they say.

A count that is no whole number, or is not to be had, is an answer too, and never
zero.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from drainmw.errors import CountersInvalid, CountersUnknown, SourceUnavailable
from drainmw.flag import start_task
from drainmw.sources.base import Counts, Explains, Running
from drainmw.text import failure_text

if TYPE_CHECKING:
    from drainmw.sources.holds import Entry

T = TypeVar("T")

RUNNING_MAXIMUM = 100  # pieces of one source that a report may name


@dataclass(frozen=True, slots=True)
class Seen:
    """What one source answered when it was asked for its count."""

    entry: Entry
    counts: Counts | None
    error: Exception | None = None


async def ask(entries: Sequence[Entry], within: float) -> list[Seen]:
    """What each says, asked side by side; after that time it has not answered."""
    first = [_ask_now(entry) for entry in entries]
    waiting = {
        waited(answer): i
        for i, answer in enumerate(first)
        if not isinstance(answer, Seen)
    }
    if waiting:
        done, late = await asyncio.wait(waiting, timeout=within)
        for task in late:
            task.cancel()
            task.add_done_callback(retrieve)
        for task, i in waiting.items():
            first[i] = _answer(entries[i], task if task in done else None)
    return [answer for answer in first if isinstance(answer, Seen)]


def counted(entries: Iterable[Entry]) -> Counts | None:
    """The sum of what each says at once; `None` if one has to be awaited."""
    now = [_ask_now(entry) for entry in entries]
    for answer in now:
        if inspect.iscoroutine(answer):
            answer.close()
        elif isinstance(answer, asyncio.Future):
            answer.cancel()
            answer.add_done_callback(retrieve)
    seen = [answer.counts for answer in now if isinstance(answer, Seen)]
    known = [counts for counts in seen if counts is not None]
    if len(known) < len(now):
        return None
    return Counts(sum(c.jobs for c in known), sum(c.schedules for c in known))


def running_of(source: object) -> list[Running]:
    """The oldest that a source still runs; nothing where it does not say so."""
    if not isinstance(source, Explains):
        return []
    try:
        pieces = islice(source.running(), RUNNING_MAXIMUM)
        return [Running(str(p.id), float(p.started), p.kind) for p in pieces]
    except Exception:
        return []


def number_of(source: object, name: str) -> int | None:
    """A number that a source may tell; `None` where it does not, or cannot."""
    try:
        return whole(getattr(source, name), name)
    except Exception:
        return None


def total(answers: Iterable[Seen]) -> Counts:
    """The sum of what the sources answered.

    Raises:
        CountersUnknown: Somebody gave no answer.
        CountersInvalid: Somebody reports what is not a whole number.
        Exception: What else a source raised.
    """
    answers = list(answers)
    errors = [a for a in answers if a.error is not None]
    unknown = [
        a for a in errors if isinstance(a.error, SourceUnavailable | TimeoutError)
    ]
    for answer in errors:
        if answer not in unknown and answer.error is not None:
            raise answer.error
    if unknown:
        why = next((failure_text(a.error) for a in unknown if a.error), "")
        raise CountersUnknown([a.entry.source.name for a in unknown], why)
    known = [a.counts for a in answers if a.counts is not None]
    return Counts(sum(c.jobs for c in known), sum(c.schedules for c in known))


def whole(value: object, who: str) -> int:
    """A counter as a whole number of at least 0.

    Raises:
        CountersInvalid: It is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CountersInvalid(who)
    if isinstance(value, float) and not value.is_integer():
        raise CountersInvalid(who)
    if value < 0:
        raise CountersInvalid(who)
    return int(value)


def _ask_now(entry: Entry) -> Seen | Awaitable[Counts]:
    try:
        answer = entry.source.count()
    except Exception as exc:
        return Seen(entry, None, exc)
    if inspect.isawaitable(answer):
        return answer
    return _checked(entry, answer)


def _answer(entry: Entry, task: asyncio.Future[Counts] | None) -> Seen:
    if task is None:
        return Seen(entry, None, TimeoutError(f"{entry.source.name} gave no answer"))
    if task.cancelled():
        return Seen(
            entry, None, SourceUnavailable(f"{entry.source.name} was cancelled")
        )
    exc = task.exception()
    if isinstance(exc, Exception):
        return Seen(entry, None, exc)
    return _checked(entry, task.result())


def _checked(entry: Entry, answer: object) -> Seen:
    who = entry.source.name
    if not isinstance(answer, tuple) or len(answer) != 2:
        return Seen(entry, None, CountersInvalid(who))
    try:
        return Seen(entry, Counts(whole(answer[0], who), whole(answer[1], who)))
    except CountersInvalid as exc:
        return Seen(entry, None, exc)


def waited(wait: Awaitable[T]) -> asyncio.Future[T]:
    """A future of it, which leaves a turn to others before it is done."""
    if asyncio.iscoroutine(wait):
        return start_task(wait)
    return asyncio.ensure_future(wait)


def retrieve(task: asyncio.Future[Any]) -> None:
    """Look at its exception, so that nobody complains, or tells, that no one did."""
    if not task.cancelled():
        task.exception()
