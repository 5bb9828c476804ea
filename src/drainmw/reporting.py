"""The oldest work in flight, as a report and a log line may show it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from drainmw.contract import Blocker, SourceReport
from drainmw.core.ledger import Kind, Ledger, Ticket
from drainmw.sources.base import Running
from drainmw.text import printable, shown_path

BLOCKERS_MAXIMUM = 20
_METHOD_MAXIMUM = 16  # characters
_ID_MAXIMUM = 128

Redactor = Callable[[str], str]


class Told(TypedDict):
    """What a worker tells for a report of all of them."""

    blockers: list[Blocker]
    warnings: list[str]
    sources: list[SourceReport]


def blockers(
    ledger: Ledger, running: Iterable[Running], now: float, redact: Redactor | None
) -> list[Blocker]:
    """At most twenty, oldest first."""
    found = [
        (ticket.started, _request(kind, ticket, now, redact))
        for kind, ticket in ledger.oldest(BLOCKERS_MAXIMUM)
    ]
    found += [(piece.started, _job(piece, now)) for piece in running]
    found.sort(key=lambda entry: entry[0])
    return [blocker for _, blocker in found[:BLOCKERS_MAXIMUM]]


def in_words(found: Iterable[Blocker], most: int = 3) -> str:
    """The first few blockers on one line."""
    words = []
    for blocker in list(found)[:most]:
        what = blocker["method"] or blocker["kind"]
        words.append(f"{what} {blocker['path']} {blocker['ageMs'] / 1000:.1f} s")
    return ", ".join(words)


def troubles(sources: Iterable[SourceReport]) -> dict[str, str]:
    """What keeps sources from an answer, as a fact of a log line; none if nothing."""
    told = dict.fromkeys(f"{s['name']}: {s['error']}" for s in sources if s["error"])
    return {"unknown": "; ".join(told)} if told else {}


def shown_id(id: str) -> str:
    """The id of a job, which whoever has made the job may have chosen."""
    return printable(id[:_ID_MAXIMUM])[:_ID_MAXIMUM]


def milliseconds(seconds: float) -> int:
    """Whole milliseconds."""
    return round(seconds * 1000)


def _request(
    kind: Kind, ticket: Ticket, now: float, redact: Redactor | None
) -> Blocker:
    scope: Any = ticket.scope or {}
    method = scope.get("method")
    return {
        "kind": kind,
        "method": shown_path(method)[:_METHOD_MAXIMUM] if method else None,
        "path": shown_path(_redacted(str(scope.get("path", "")), redact)),
        "ageMs": milliseconds(now - ticket.started),
        "worker": os.getpid(),
    }


def _redacted(path: str, redact: Redactor | None) -> str:
    """A redactor that fails must show nothing, and must not stop a report."""
    if redact is None:
        return path
    try:
        return str(redact(path))
    except Exception:
        return "/redacted"


def _job(piece: Running, now: float) -> Blocker:
    return {
        "kind": piece.kind,
        "method": None,
        "path": shown_id(piece.id),
        "ageMs": milliseconds(now - piece.started),
        "worker": os.getpid(),
    }
