"""The inside of Celery's beat: its clock can be held.

Whatever scheduler beat runs with, its `tick` is what sends a due task; a held one
sends nothing. What came due meanwhile is sent once when it is released. Beat's own
mailbox answers a ping and no more, so there is a second one beside it, which
answers `drainmw_hold`, `drainmw_release` and `drainmw_count`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from drainmw.sources.celeryholds import holders_of
from drainmw.sources.extras import extra

with extra("celery"):
    from celery import signals
    from celery.beat import BeatPidbox

HELD_PAUSE = 0.2  # seconds between two looks of a held beat
OVERDUE_PAUSE = 1.0  # between two counts of what is due


class Clock:
    """Who holds this beat, and whether it sends something."""

    def __init__(self, scheduler: Any, now: Callable[[], float] = time.monotonic):
        self._process = uuid.uuid4().hex  # a process id may come again
        self._scheduler = scheduler
        self._send_due: Callable[..., Any] = scheduler.tick
        self._now = now
        self._holders: set[str] = set()
        self._is_sending = False
        self._overdue = 0
        self._counted = -OVERDUE_PAUSE
        self._lock = threading.Lock()

    def tick(self, *args: Any, **options: Any) -> Any:
        """What beat calls instead; the seconds until it calls again."""
        with self._lock:
            is_held = bool(self._holders)
            self._is_sending = not is_held
        if is_held:
            self._count_overdue()
            return HELD_PAUSE
        try:
            return self._send_due(*args, **options)
        finally:
            self._is_sending = False

    def hold(self, holders: Iterable[str]) -> None:
        """Send nothing more. What is being sent is counted."""
        with self._lock:
            self._holders.update(holders)

    def release(self, holder: str | None = None) -> None:
        """Send again, once nobody else holds it; without a name for everybody."""
        with self._lock:
            if holder is None:
                self._holders.clear()
            self._holders.discard(holder or "")

    def answer(self) -> dict[str, Any]:
        """What is told to whoever asks."""
        with self._lock:
            is_held = bool(self._holders)
            return {
                "process": self._process,
                "held": is_held,
                "jobs": 0,
                "schedules": int(self._is_sending),
                "overdue": self._overdue if is_held else 0,
            }

    def _count_overdue(self) -> None:
        """In beat's own thread: its schedule may be a database."""
        if self._now() - self._counted < OVERDUE_PAUSE:
            return
        entries = list(self._scheduler.schedule.values())
        self._overdue = sum(1 for entry in entries if self._is_due(entry))
        self._counted = self._now()

    def _is_due(self, entry: Any) -> bool:
        try:
            return bool(self._scheduler.is_due(entry)[0])
        except Exception:  # beat, too, leaves such an entry for later
            return False


class Mailbox(BeatPidbox):  # type: ignore[misc]  # Celery has no types
    """Answers for a clock, in a thread of its own."""

    def __init__(self, service: Any, clock: Clock) -> None:
        super().__init__(service)
        self._clock = clock
        self.node.hostname = mailbox_name(self.node.hostname)
        self.node.handlers = {
            "drainmw_hold": self._hold,
            "drainmw_release": self._release,
            "drainmw_count": self._count,
        }

    def _hold(self, state: Any, holder: str) -> dict[str, Any]:
        self._clock.hold([holder])
        return self._clock.answer()

    def _release(self, state: Any, holder: str | None = None) -> dict[str, Any]:
        self._clock.release(holder)
        return self._clock.answer()

    def _count(self, state: Any) -> dict[str, Any]:
        return self._clock.answer()


def mailbox_name(node: str) -> str:
    """The node name of the mailbox beside beat's own, which may be there too."""
    return f"drainmw.{node}"


def connect() -> None:
    """Make every beat of this process holdable."""
    signals.beat_init.connect(_put_in, dispatch_uid="drainmw", weak=False)


def _put_in(sender: Any, **options: Any) -> None:
    clock = Clock(sender.scheduler)
    sender.scheduler.tick = clock.tick
    mailbox = Mailbox(sender, clock)
    mailbox.start()
    clock.hold(holders_of(sender.app, mailbox.node.hostname))
