"""What is in flight: counted once, uncounted once, listed oldest first."""

import pytest

from drainmw.core.ledger import Kind, Ledger, Ticket

OPEN, CORDONED, DRAINING, CLOSED = 0, 1, 2, 3
SCOPE = {"type": "http", "path": "/"}
KINDS: tuple[Kind, Kind] = ("http", "websocket")


def admit(ledger: Ledger, started: float = 0.0) -> Ticket:
    """What the middleware does on its fast path, with the gate open."""
    try:
        ticket = ledger.spare.pop()
    except IndexError:
        ticket = ledger.fresh()
    ticket.scope = SCOPE
    ticket.send = object()
    ticket.started = started
    ticket.uses += 1
    return ticket


def entered(ledger: Ledger, kind: Kind = "http", now: float = 0.0) -> Ticket:
    ticket = ledger.enter(kind, SCOPE, now, Ticket, at_most=CORDONED)
    assert ticket is not None
    return ticket


class Woken:
    """Counts how often a ledger woke somebody."""

    def __init__(self, ledger: Ledger) -> None:
        self.times = 0
        ledger.wake = self

    def __call__(self) -> None:
        self.times += 1


def test_a_new_ledger_is_idle() -> None:
    ledger = Ledger()
    assert ledger.counts() == {"http": 0, "websocket": 0}
    assert ledger.is_idle
    assert (ledger.admitted_total, ledger.refused_total) == (0, 0)
    assert (ledger.last_admitted, ledger.last_refused) == (None, None)
    assert ledger.oldest(20) == []


@pytest.mark.parametrize("kind", KINDS)
def test_work_is_counted_by_its_kind_until_it_is_released(kind: Kind) -> None:
    ledger = Ledger()
    first, second = entered(ledger, kind), entered(ledger, kind)
    assert ledger.counts()[kind] == 2
    ledger.release(first)
    assert ledger.counts()[kind] == 1
    assert not ledger.is_idle
    ledger.release(second)
    assert ledger.is_idle


@pytest.mark.parametrize("kind", KINDS)
def test_a_ticket_that_is_released_twice_changes_nothing(kind: Kind) -> None:
    ledger = Ledger()
    ticket, other = entered(ledger, kind), entered(ledger, kind)
    for _ in range(3):
        ledger.release(ticket)
    assert ledger.counts()[kind] == 1
    ledger.release(other)
    assert ledger.counts() == {"http": 0, "websocket": 0}


def test_a_ticket_that_is_no_longer_known_hides_nothing_of_the_fast_path() -> None:
    ledger = Ledger()
    admit(ledger)
    ticket = entered(ledger)
    ledger.release(ticket)
    ledger.release(ticket)
    assert ledger.counts() == {"http": 1, "websocket": 0}


@pytest.mark.parametrize(
    ("gate", "at_most", "admitted"),
    [
        (OPEN, OPEN, True),
        (OPEN, CORDONED, True),
        (OPEN, DRAINING, True),
        (CORDONED, OPEN, False),
        (CORDONED, CORDONED, True),
        (CORDONED, DRAINING, True),
        (DRAINING, OPEN, False),
        (DRAINING, CORDONED, False),
        (DRAINING, DRAINING, True),
        (CLOSED, OPEN, False),
        (CLOSED, CORDONED, False),
        (CLOSED, DRAINING, False),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_decides_who_enters(
    gate: int, at_most: int, admitted: bool, kind: Kind
) -> None:
    ledger = Ledger([gate])
    ticket = ledger.enter(kind, SCOPE, 1.0, Ticket, at_most=at_most)
    assert (ticket is not None) is admitted
    assert ledger.counts()[kind] == int(admitted)
    assert ledger.admitted_total == int(admitted)


class ClosesAfterOneLook:
    """A gate that is open at the first look and closed at the second."""

    def __init__(self) -> None:
        self.looks = 0

    def __getitem__(self, index: int) -> int:
        self.looks += 1
        return OPEN if self.looks == 1 else CLOSED

    def __setitem__(self, index: int, value: int) -> None:
        raise AssertionError("a ledger only reads its gate")


@pytest.mark.parametrize("kind", KINDS)
def test_work_that_finds_the_gate_closed_behind_it_backs_out(kind: Kind) -> None:
    ledger = Ledger(ClosesAfterOneLook())
    woken = Woken(ledger)
    assert ledger.enter(kind, SCOPE, 1.0, Ticket, at_most=DRAINING) is None
    assert ledger.is_idle
    assert (ledger.admitted_total, ledger.last_admitted) == (0, None)
    assert woken.times == 1


def test_a_closed_gate_is_looked_at_before_anything_is_counted() -> None:
    ledger = Ledger([CLOSED])
    woken = Woken(ledger)
    assert ledger.enter("http", SCOPE, 1.0, Ticket) is None
    assert woken.times == 0


# The fast path


def test_the_fast_path_counts_what_is_not_spare() -> None:
    ledger = Ledger()
    first = admit(ledger)
    assert ledger.counts() == {"http": 1, "websocket": 0}
    second = admit(ledger)
    assert ledger.counts()["http"] == 2
    ledger.put_back(first)
    assert ledger.counts()["http"] == 1
    ledger.put_back(second)
    assert ledger.is_idle


def test_a_ticket_is_recycled_without_what_it_stood_for() -> None:
    ledger = Ledger()
    ticket = admit(ledger)
    ledger.put_back(ticket)
    assert (ticket.scope, ticket.send) == (None, None)
    assert admit(ledger) is ticket
    assert len(ledger.pool) == 1


def test_a_ticket_whose_sender_is_kept_never_comes_back() -> None:
    ledger = Ledger()
    kept = admit(ledger, started=5.0)
    send = kept.send
    ledger.put_back(kept, recycle=False)
    assert ledger.is_idle
    assert (kept.scope, kept.send) == (SCOPE, send)
    assert kept not in ledger.pool
    assert admit(ledger) is not kept
    assert ledger.counts()["http"] == 1


def test_a_ticket_in_the_place_of_a_kept_one_keeps_the_totals() -> None:
    ledger = Ledger()
    for started in (1.0, 2.0, 3.0):
        ledger.put_back(admit(ledger, started), recycle=False)
    assert (ledger.admitted_total, ledger.last_admitted) == (3, 3.0)
    assert len(ledger.pool) == 1


def test_tickets_are_made_by_the_factory() -> None:
    class Other(Ticket):
        pass

    ledger = Ledger(new_ticket=Other)
    ticket = admit(ledger)
    assert type(ticket) is Other
    ledger.put_back(ticket, recycle=False)
    assert type(admit(ledger)) is Other


def test_both_ways_in_are_added_up() -> None:
    ledger = Ledger()
    admit(ledger)
    entered(ledger)
    entered(ledger, "websocket")
    assert ledger.counts() == {"http": 2, "websocket": 1}


class PoolThat(dict[Ticket, None]):
    """A pool in which somebody comes and backs out whenever it is counted."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __len__(self) -> int:
        seen = super().__len__()
        self.ledger.spare.append(self.ledger.fresh())
        return seen


def test_a_request_that_backs_out_while_it_is_counted_hides_none_that_runs() -> None:
    ledger = Ledger()
    ledger.pool = PoolThat(ledger)
    admit(ledger)
    for _ in range(3):
        assert ledger.counts()["http"] == 1


# Waking


@pytest.mark.parametrize(("gate", "times"), [(0, 0), (1, 1), (2, 1), (3, 1)])
@pytest.mark.parametrize("recycle", [True, False])
def test_the_fast_path_wakes_only_behind_a_gate_that_is_not_open(
    gate: int, times: int, recycle: bool
) -> None:
    ledger = Ledger()
    ticket = admit(ledger)
    woken = Woken(ledger)
    ledger.gate[0] = gate
    ledger.put_back(ticket, recycle=recycle)
    assert woken.times == times


@pytest.mark.parametrize(("gate", "times"), [(0, 0), (1, 1), (2, 1), (3, 1)])
def test_a_release_wakes_only_behind_a_gate_that_is_not_open(
    gate: int, times: int
) -> None:
    ledger = Ledger()
    ticket = entered(ledger)
    woken = Woken(ledger)
    ledger.gate[0] = gate
    ledger.release(ticket)
    assert woken.times == times


def test_the_count_is_down_before_anybody_is_woken() -> None:
    ledger = Ledger()
    ticket, fast = entered(ledger), admit(ledger)
    ledger.gate[0] = CLOSED
    seen: list[int] = []
    ledger.wake = lambda: seen.append(ledger.counts()["http"])
    ledger.put_back(fast)
    ledger.release(ticket)
    assert seen == [1, 0]


# Totals, and the oldest


def test_totals_and_times_of_both_ways_in() -> None:
    ledger = Ledger()
    ledger.put_back(admit(ledger, started=10.0))
    ledger.release(entered(ledger, "websocket", now=20.0))
    admit(ledger, started=15.0)
    assert (ledger.admitted_total, ledger.last_admitted) == (3, 20.0)
    admit(ledger, started=25.0)
    assert (ledger.admitted_total, ledger.last_admitted) == (4, 25.0)


def test_refusals_are_counted_and_the_last_is_remembered() -> None:
    ledger = Ledger()
    ledger.refuse(3.0)
    ledger.refuse(4.0)
    assert (ledger.refused_total, ledger.last_refused) == (2, 4.0)
    assert ledger.admitted_total == 0


def test_the_oldest_come_first_whichever_way_they_came_in() -> None:
    ledger = Ledger()
    second = admit(ledger, started=2.0)
    fourth = entered(ledger, "websocket", now=4.0)
    first = entered(ledger, now=1.0)
    third = admit(ledger, started=3.0)
    assert ledger.oldest(20) == [
        ("http", first),
        ("http", second),
        ("http", third),
        ("websocket", fourth),
    ]
    assert [ticket for _, ticket in ledger.oldest(2)] == [first, second]


def test_spare_tickets_are_not_listed() -> None:
    ledger = Ledger()
    admit(ledger)
    spare = admit(ledger)
    kept = admit(ledger)
    ledger.put_back(spare)
    ledger.put_back(kept, recycle=False)
    assert len(ledger.oldest(20)) == 1
