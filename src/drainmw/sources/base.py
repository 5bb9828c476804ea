"""The protocol between a drain and a source of work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from drainmw.errors import Misuse
from drainmw.text import kind_of

Intake = Literal["clock", "pull", "push"]
"""What feeds a source. Clocks are held first, because a clock makes work; push
sources last, because admitted requests and jobs feed them."""


class Counts(NamedTuple):
    """What one source holds here, running and accepted."""

    jobs: int = 0
    schedules: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """One piece of work of a source, for the report."""

    id: str
    started: float  # monotonic seconds
    kind: Literal["jobs", "schedules"] = "jobs"
    """Which of its counters has it."""


@runtime_checkable
class WorkSource(Protocol):
    """An engine's adapter. All of it is called in the event loop of the drain.

    It can be held before its engine has started, which then starts held: a worker
    may be born while its release drains. For the report it may have `running`, and
    as whole numbers `handed_back`, the leases that went back to their broker
    unstarted, and `overdue`, the due fires that are withheld while it is held.
    """

    name: str
    intake: Intake

    async def hold(self) -> None:
        """Stop intake, as a barrier: when it returns, everything that can still
        start here is already in `count`. Idempotent; waits for no running work.

        Raises:
            SourceUnavailable: It cannot be reached and is to be asked again.
                Any other exception fails the drain at once.
        """
        ...

    def count(self) -> Counts | Awaitable[Counts]:
        """What it holds now. Has 250 ms to answer.

        Raises:
            SourceUnavailable: The count is unknown, which is never zero.
        """
        ...

    async def settled(self) -> None:
        """Return when the count is zero and unstarted work is handed back.

        Cancellable. Raises as `hold` does.
        """
        ...

    async def release(self) -> None:
        """Undo `hold`, also one that was done by half. Idempotent."""
        ...


@runtime_checkable
class BlockingSource(Protocol):
    """An adapter of an engine that blocks. Called in threads, never in an event loop.

    `hold` and `release` are called one at a time; `count` and `settle` also while
    another of these runs. It raises as a `WorkSource` does.
    """

    def hold(self) -> None:
        """Stop intake, as a barrier. Idempotent; waits for no running work."""
        ...

    def count(self) -> Counts:
        """What it holds now."""
        ...

    def settle(self) -> None:
        """Block until the count is zero and unstarted work is handed back.

        It has to return when `release` is called, too.
        """
        ...

    def release(self) -> None:
        """Undo `hold`, also one that was done by half. Idempotent."""
        ...


@runtime_checkable
class Explains(Protocol):
    """A source that can say what it still runs."""

    def running(self) -> Iterable[Running]:
        """Its work in flight, oldest first."""
        ...


@runtime_checkable
class Halts(Protocol):
    """A source whose engine has threads of its own, which an event loop that is
    about to call `hold` would come too late for."""

    def halt(self) -> None:
        """Begin to hold, on the spot; a `hold` or a `release` follows."""
        ...


@runtime_checkable
class Particular(Protocol):
    """A clock that has to be used in a certain way where several processes run it."""

    unowned: str | None
    """Why it cannot stand by for its owner, and what would be right."""


@runtime_checkable
class Fed(Protocol):
    """A push source that asks, while held, whether work in flight offers the work."""

    def fed_by(self, is_fed: Callable[[], bool]) -> None:
        """Take work, while held, where that says so.

        It is true while requests are in flight, and where it is called in a
        running piece of work of any source of the drain.
        """
        ...


def check_expected(number: int) -> None:
    """How many workers there are at least.

    Raises:
        Misuse: It is no such number.
    """
    given: object = number
    if not isinstance(given, int) or given < 0:
        raise Misuse(f"expected must be a whole number of at least 0, not {given!r}")


def check_owner(owner: object, who: str) -> None:
    """What tells whether this process may fire.

    Raises:
        Misuse: It is something else.
    """
    if isinstance(owner, type) or not hasattr(owner, "counts_overdue"):
        raise Misuse(
            f"{who} takes an owner, as drain.own(name) gives, not {kind_of(owner)}"
        )
