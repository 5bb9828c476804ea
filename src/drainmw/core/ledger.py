"""What is in flight here, by kind, oldest first.

Admission, in the order that keeps the promise: look at the gate, count, look
at the gate again, without an `await` in between. Work that was counted and
then finds the gate closed backs out. So whoever closes the gate and then reads
a zero has seen all there is:

    admission        closes the gate
    ---------        ---------------
    gate open?
    count it         gate = closed
    gate still       read the count
      open?

Whichever way the two columns interleave, either the count is seen or the
second look sees the closed gate.

A ticket is one piece of work. Those of HTTP requests on the fast path are
recycled: `spare` holds the ones not in use, so that admitting is one `pop`,
putting back one `append`, and what is in flight is the difference of two
lengths. `spare` is read before `pool`: the other way round, a request that
backs out between the two readings would hide one that runs. All other work
stands in dictionaries and its tickets are used once. Every step is atomic
under the interpreter lock, so that the event loops of several threads may
share a ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import count, islice
from typing import Any, Literal, Protocol, TypeVar

Kind = Literal["http", "websocket"]


class GateByte(Protocol):
    """One number at index 0, zero while intake is open: a list, or a map."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Spare(Protocol):
    """The part of a list that `Ledger.spare` needs."""

    def pop(self) -> Ticket: ...

    def append(self, ticket: Ticket, /) -> None: ...

    def __len__(self) -> int: ...


class Ticket:
    """One admitted piece of work. Only its ledger and its holder write it."""

    __slots__ = ("scope", "send", "sender", "started", "uses")

    def __init__(self) -> None:
        self.scope: Any = None
        """What was admitted; `None` in a spare ticket."""
        self.send: Any = None
        """The server's send, where the ticket stands in for it."""
        self.sender: Any = None
        """The send that the app gets: made once, recycled with the ticket."""
        self.started = 0.0
        """Monotonic seconds."""
        self.uses = 0.0
        """How often it was used: whole, exact to 2**53, and cheaper than an `int`,
        since CPython keeps used floats and allocates every large int."""


T = TypeVar("T", bound=Ticket)


class Ledger:
    """The tickets of one process.

    `gate` is written by whoever owns the phase, and only read here. `wake` is
    called after a release while the gate is not open, from any thread.
    """

    def __init__(
        self,
        gate: GateByte | None = None,
        *,
        new_ticket: Callable[[], Ticket] = Ticket,
    ) -> None:
        self.gate: GateByte = [0] if gate is None else gate
        self.wake: Callable[[], None] = _nobody
        self.spare: Spare = []
        self.pool: dict[Ticket, None] = {}
        """Every ticket of the fast path, spare or in use."""
        self.entered: dict[Kind, dict[Ticket, None]] = {"http": {}, "websocket": {}}
        """Every other ticket in use."""
        self.last_refused: float | None = None
        self.new_ticket = new_ticket
        """Makes those of HTTP requests."""
        self._last_entered = 0.0
        self._entries = count()
        self._refusals = count()

    # The fast path: HTTP requests, while the gate is open

    def fresh(self) -> Ticket:
        """A new ticket of the fast path, counted from here on."""
        ticket = self.new_ticket()
        self.pool[ticket] = None
        return ticket

    def put_back(self, ticket: Ticket, *, recycle: bool = True) -> None:
        """Uncount a ticket of the fast path; call it once.

        Without `recycle`, which is for a ticket whose `sender` somebody still
        holds, another one takes its place: what they hold must never reach
        the next request.
        """
        if recycle:
            ticket.scope = None
            ticket.send = None
        else:
            ticket = self._successor(ticket)
        self.spare.append(ticket)
        if self.gate[0]:
            self.wake()

    def _successor(self, ticket: Ticket) -> Ticket:
        successor = self.fresh()
        successor.uses = ticket.uses
        successor.started = ticket.started
        del self.pool[ticket]
        return successor

    # Every other way in

    def enter(
        self,
        kind: Kind,
        scope: Any,
        now: float,
        new_ticket: Callable[[], T],
        *,
        at_most: int = 0,
    ) -> T | None:
        """Count one piece of work if the gate is at most at that number.

        Returns `None`, with nothing counted, where it is not. A ticket has to
        be released when its work has ended, whichever way it ended.
        """
        gate = self.gate
        if gate[0] > at_most:
            return None
        ticket = new_ticket()
        self.entered[kind][ticket] = None
        if gate[0] > at_most:
            self.release(ticket)
            return None
        ticket.scope = scope
        ticket.started = self._last_entered = now
        next(self._entries)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Uncount a ticket. A second time changes nothing."""
        for tickets in self.entered.values():
            tickets.pop(ticket, None)
        if self.gate[0]:
            self.wake()

    def runs(self, ticket: Ticket) -> bool:
        """Whether that piece of work is in flight."""
        if ticket.scope is None:
            return False
        return ticket in self.pool or any(ticket in t for t in self.entered.values())

    def refuse(self, now: float) -> None:
        """Take note of one refusal."""
        next(self._refusals)
        self.last_refused = now

    # Looking

    def counts(self) -> dict[str, int]:
        """What is in flight. A zero read behind a closed gate is all there is."""
        spare = len(self.spare)
        fast = max(0, len(self.pool) - spare)
        return {
            "http": fast + len(self.entered["http"]),
            "websocket": len(self.entered["websocket"]),
        }

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight."""
        return not any(self.counts().values())

    @property
    def admitted_total(self) -> int:
        """How many pieces of work were ever admitted."""
        return int(sum(t.uses for t in list(self.pool))) + _value(self._entries)

    @property
    def refused_total(self) -> int:
        """How many pieces of work were ever refused."""
        return _value(self._refusals)

    @property
    def last_admitted(self) -> float | None:
        """When work was last admitted, in monotonic seconds."""
        fast = max((t.started for t in list(self.pool)), default=0.0)
        return max(fast, self._last_entered) or None

    def oldest(self, most: int) -> list[tuple[Kind, Ticket]]:
        """The tickets in flight that started first."""
        running: list[tuple[Kind, Ticket]] = [("http", t) for t in list(self.pool)]
        for kind, tickets in self.entered.items():  # in the order they came
            running += [(kind, ticket) for ticket in list(islice(tickets, most))]
        seen = [entry for entry in running if entry[1].scope is not None]
        return nsmallest(most, seen, key=lambda entry: entry[1].started)


def _nobody() -> None:
    """Nobody waits for an idle ledger."""


def _value(counter: count[int]) -> int:
    """How often a counter was asked; its `repr` is the way to look at it."""
    return int(repr(counter)[len("count(") : -1])
