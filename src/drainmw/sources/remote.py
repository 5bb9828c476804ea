"""A source in other processes: workers that an `Agent` answers for.

Their sockets lie in one directory, and so does the mark that says whether they are
to be held. The mark is made before anybody is asked, and a worker listens before it
looks for the mark: so one that comes up meanwhile either is found or finds it.

Who was held and does not answer has died, unless its socket says that it left in
order; then what it still ran is unknown, which is never zero. It is known again
once another worker answers under that name.

Who is held by an app that has died is released as soon as the app is there again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import get_args

from drainmw import socketfile
from drainmw.agent import LEFT, LIVE, LONGEST_POLL
from drainmw.errors import Misuse, SourceError, SourceUnavailable
from drainmw.sources import mark
from drainmw.sources.agentanswers import (
    A,
    Counted,
    Failure,
    Held,
    Released,
    Settled,
    understood,
)
from drainmw.sources.base import Counts, Intake, Running, check_expected
from drainmw.text import failure_text

PATIENCE = 5.0  # seconds for an answer
PAUSE = 0.05  # seconds before those who have not settled are asked again
_LINE_MAXIMUM = 65536  # bytes of an answer


class RemoteSource:
    """All workers whose sockets lie in one directory, as one source."""

    def __init__(
        self, name: str, intake: Intake, directory: Path | str, *, expected: int = 1
    ) -> None:
        """`expected` is how many workers there are at least: with fewer of them the
        count is unknown.

        Raises:
            Misuse: There is no such intake, or no such number.
            SettingsError: The directory is not private.
        """
        check_expected(expected)
        if intake not in get_args(Intake):  # before a directory is made
            raise Misuse(
                f"intake of {name} must be clock, pull or push, not {intake!r}"
            )
        self.name = name
        self.intake: Intake = intake
        self.overdue: int | None = None
        self.handed_back: int | None = None
        self._directory = Path(directory)
        self._expected = expected
        self._mark: mark.Mark | None = None
        self._known: set[str] = set()  # who has answered under that mark
        self._running: list[Running] = []
        socketfile.check_directory(self._directory, f"source {name}")
        if self._clear_up():
            free = partial(asyncio.run, self._free())
            threading.Thread(target=free, name="drainmw free", daemon=True).start()

    async def hold(self) -> None:
        """Hold every worker, side by side, and those that come up from now on."""
        if self._mark is None or not self._mark.stands:
            self._forget()
            self._mark = self._wanted()
        answers = await self._ask_all(Held, self._mark.token)
        there = {name: a for name, a in answers.items() if a is not None}
        if len(there) < self._expected:  # else a count tells who has died
            self._check_present(there)

    async def count(self) -> Counts:
        """The sum over the workers."""
        answers = await self._ask_all(Counted)
        for name, answer in answers.items():
            if answer is not None and not self._is_as_wanted(answer):
                answers[name] = await self._put_right(name, answer)
        there = {name: a for name, a in answers.items() if a is not None}
        self._check_present(there)
        counts = [Counts(*answer.counts) for answer in there.values()]
        self._note(list(there.values()))
        return Counts(sum(c.jobs for c in counts), sum(c.schedules for c in counts))

    async def settled(self) -> None:
        """Return when every worker has settled, under the hold that stands."""
        while True:
            await self.count()  # who has died is not waited for
            if self._mark is None:
                raise SourceUnavailable(f"{self.name} is not held")
            answers = await self._ask_all(Settled, self._mark.token)
            settled = all(a is None or a.settled for a in answers.values())
            if settled and not any(await self.count()):
                return
            await asyncio.sleep(PAUSE)

    async def release(self) -> None:
        """Release every worker that lives."""
        if self._mark is None:
            return
        self._mark.remove()
        await self._ask_all(Released, self._mark.token)
        self._forget()

    def running(self) -> Iterable[Running]:
        """What the workers ran when they were last counted, oldest first."""
        return sorted(self._running, key=lambda piece: piece.started)

    # Who is there, and in which hold

    def _wanted(self) -> mark.Mark:
        try:
            return mark.take(self._directory)
        except OSError as exc:
            raise SourceUnavailable(f"{self._directory}: {exc.strerror}") from None

    def _is_as_wanted(self, answer: Counted) -> bool:
        """Held under our mark; or, where we want no hold, not left over from one."""
        if self._mark is not None:
            return answer.token == self._mark.token
        if answer.token is None:
            return True
        self._clear_up()
        return mark.standing(self._directory) is not None

    async def _put_right(self, name: str, answer: Counted) -> Counted | None:
        """Hold who is not held though we want it, release who is though nobody does."""
        if self._mark is None:
            await self._ask(name, Released, answer.token)
            return await self._ask(name, Counted)
        if not self._mark.stands:
            raise SourceUnavailable(f"{self.name} was released by another process")
        await self._ask(name, Held, self._mark.token)
        again = await self._ask(name, Counted)
        if again is not None and again.token != self._mark.token:
            raise SourceUnavailable(f"worker {name} of {self.name} is not held")
        return again

    def _left_in_order(self, there: Mapping[str, object]) -> int:
        """How many of those that were held have left, and were done."""
        gone = self._known - there.keys()
        for name in sorted(gone):
            path = self._directory / name
            if path.with_name(name + LIVE).exists() or not (
                path.with_name(name + LEFT).exists()
            ):
                raise SourceUnavailable(
                    f"worker {name} of {self.name} died while it was held"
                )
        return len(gone)

    def _check_present(self, there: Mapping[str, object]) -> None:
        """That nobody is missed, who was held or is expected."""
        number = len(there) + self._left_in_order(there)
        if number < self._expected:
            raise SourceUnavailable(
                f"{number} of {self._expected} workers of {self.name} answer "
                f"in {self._directory}; do they run, with that directory?"
            )

    def _clear_up(self) -> bool:
        """Remove the mark of a hold that nobody wants any more: its process died."""
        orphan = mark.orphan(self._directory)
        if orphan is None:
            return False
        orphan.remove()
        orphan.close()
        return True

    async def _free(self) -> None:
        """Release who is held by one that died: a count may be long in coming."""
        for name in self._names():
            with contextlib.suppress(SourceError):  # a count will tell
                answer = await self._ask(name, Counted)
                token = None if answer is None else answer.token
                if token is not None and mark.standing(self._directory) is None:
                    await self._ask(name, Released, token)

    def _forget(self) -> None:
        if self._mark is not None:
            self._mark.close()
        self._mark = None
        self._known.clear()

    def _note(self, answers: list[Counted]) -> None:
        self._running = [Running(*piece) for a in answers for piece in a.running]
        self.overdue = _sum(a.overdue for a in answers)
        self.handed_back = _sum(a.handed_back for a in answers)

    # Questions

    async def _ask_all(
        self, kind: type[A], token: str | None = None
    ) -> dict[str, A | None]:
        """Ask everybody, side by side; the first failure once all have answered."""
        names = self._names()
        asked = (self._ask(name, kind, token) for name in names)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told: dict[str, A | None] = {}
        if self._mark is not None:  # also who failed was there, and may have work
            pairs = zip(names, answers, strict=True)
            self._known.update(name for name, answer in pairs if answer is not None)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            told[name] = answer
        return told

    def _names(self) -> list[str]:
        try:
            files = os.listdir(self._directory)
        except OSError as exc:
            raise SourceUnavailable(f"{self._directory}: {exc.strerror}") from None
        return sorted(f.removesuffix(LIVE) for f in files if f.endswith(LIVE))

    async def _ask(
        self, name: str, kind: type[A], token: str | None = None
    ) -> A | None:
        """Its answer; `None` where nobody listens."""
        who = f"worker {name} of {self.name}"
        question = json.dumps({"ask": kind.ask, "token": token}).encode() + b"\n"
        patience = PATIENCE + (LONGEST_POLL if kind is Settled else 0.0)
        try:
            async with asyncio.timeout(patience):
                line = await _exchange(self._directory / f"{name}{LIVE}", question)
            if not line:
                raise SourceUnavailable(f"{who} broke off")
            answer = understood(line, kind)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except (OSError, ValueError) as exc:
            raise SourceUnavailable(f"{who}: {failure_text(exc)}") from None
        if isinstance(answer, Failure):
            error = SourceUnavailable if answer.unavailable else SourceError
            raise error(f"{who}: {answer.error}")
        return answer


async def _exchange(path: Path, question: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_MAXIMUM)
    try:
        writer.write(question)
        return await reader.readline()
    finally:
        writer.close()


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Over those who say; `None` if nobody does."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
