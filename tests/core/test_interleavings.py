"""D12: admission against begin, in every order or in very many.

`soak/test_interleavings.py` plays a million. Here, the small cases are played
in every order there is, and bigger ones in some thousands, the same each time.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from drainmw.core.ledger import Kind, Ledger, Ticket
from tests.interleaving import Fault, Scene, explore, wander

T = TypeVar("T", bound=Ticket)

ADMISSIONS = ("fast", "keeps", "probe", "websocket")


@pytest.mark.parametrize("kind", ADMISSIONS)
def test_one_admission_and_a_close_hold_in_every_order(kind: str) -> None:
    """D12: nothing admitted and uncounted, nothing counted and not admitted."""
    scene = Scene(kind, waits=False, spare=int(kind == "fast"))
    assert explore(scene, merge=False) > 1500


@pytest.mark.parametrize("kind", [*ADMISSIONS, "admitted"])
def test_one_admission_and_a_whole_drain_hold_in_every_order(kind: str) -> None:
    """D12: also where `admit` lets it in, and the drain waits to be woken."""
    assert explore(Scene(kind), merge=True) > 400


@pytest.mark.parametrize("kinds", [("fast", "fast"), ("fast", "websocket")])
def test_two_admissions_and_a_close_hold_in_every_order(kinds: tuple[str, str]) -> None:
    """D12: the two may hand a ticket on, or each have its own."""
    assert explore(Scene(*kinds, waits=False), merge=True) > 4000


@pytest.mark.parametrize(
    ("kinds", "seed"),
    [
        (("fast", "fast", "admitted"), 1),
        (("fast", "admitted", "websocket"), 2),
        (("keeps", "fast", "admitted"), 3),
    ],
)
def test_three_admissions_of_which_one_is_in_flight_hold_in_many_orders(
    kinds: tuple[str, ...], seed: int
) -> None:
    """D12: with `admit` while draining, and the verdict behind the closed gate."""
    wander(Scene(*kinds, in_flight=True), times=1000, seed=seed)


# The harness finds what is wrong


class OneLook(Ledger):
    """Does not look at the gate again once it has counted."""

    def enter(
        self,
        kind: Kind,
        scope: Any,
        now: float,
        new: Callable[[], T],
        *,
        at_most: int = 0,
    ) -> T | None:
        if self.gate[0] > at_most:
            return None
        ticket = new()
        self.entered[kind][ticket] = None
        ticket.scope = scope
        next(self._entries)
        return ticket


class PoolFirst(Ledger):
    """Reads the pool before the spare tickets."""

    def counts(self) -> dict[str, int]:
        pool = len(self.pool)
        return {
            "http": max(0, pool - len(self.spare)) + len(self.entered["http"]),
            "websocket": len(self.entered["websocket"]),
        }


class WakesEarly(Ledger):
    """Wakes before it uncounts."""

    def release(self, ticket: Ticket) -> None:
        if self.gate[0]:
            self.wake()
        for tickets in self.entered.values():
            tickets.pop(ticket, None)


class CountsLate(Ledger):
    """Counts only what has passed its second look."""

    def enter(
        self,
        kind: Kind,
        scope: Any,
        now: float,
        new: Callable[[], T],
        *,
        at_most: int = 0,
    ) -> T | None:
        if self.gate[0] > at_most or self.gate[0] > at_most:
            return None
        ticket = new()
        self.entered[kind][ticket] = None
        ticket.scope = scope
        next(self._entries)
        return ticket


@pytest.mark.parametrize(
    ("kinds", "wrong", "waits", "fault"),
    [
        (("probe",), OneLook, False, "after the drain|not counted|not seen"),
        (("websocket",), CountsLate, False, "after the drain|not counted|not seen"),
        (("fast", "fast"), PoolFirst, False, "has not seen"),
        (("websocket",), WakesEarly, True, "never is"),
    ],
)
def test_a_wrong_ledger_is_found_out(
    kinds: tuple[str, ...], wrong: type[Ledger], waits: bool, fault: str
) -> None:
    with pytest.raises(Fault, match=fault):
        explore(Scene(*kinds, waits=waits, make_ledger=wrong), merge=True)
