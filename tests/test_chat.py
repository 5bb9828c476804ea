"""The example whose memory goes over: what it holds, and the app in this process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from drainmw import Drain, ImportContext, ModelState
from drainmw.state import export
from drainmw.testing import ManualClock
from examples import chat
from examples.memory import BURST, GRACE, MOST, RATE, Limiter, Rooms
from tests.rig import NONCE, SOURCE, TARGET, begin_request
from tests.test_modelstate import handed_over, terms

CONTEXT = ImportContext(SOURCE, TARGET, "snapshot", "sha256:", NONCE, 1)


def with_ann(passed: float = 0.0) -> Rooms:
    """Rooms in which she was that long ago."""
    rooms = Rooms()
    rooms.beat("lobby", "ann")
    rooms.pass_time(passed)
    return rooms


def is_gone_after(rooms: Rooms, seconds: float) -> bool:
    """Whether it is after that time, and not a moment before, that she is gone."""
    rooms.pass_time(seconds - 0.25)
    assert rooms.present("lobby") == ["ann"]
    rooms.pass_time(0.25)
    return rooms.present("lobby") == []


# Who is there


def test_who_gives_no_sign_of_life_is_gone_after_the_grace() -> None:
    assert is_gone_after(with_ann(), GRACE)


def test_a_heartbeat_begins_the_grace_anew() -> None:
    rooms = with_ann(passed=GRACE - 1)
    rooms.beat("lobby", "ann")
    assert is_gone_after(rooms, GRACE)


def test_who_leaves_is_gone_from_that_room_at_once() -> None:
    rooms = with_ann()
    rooms.beat("kitchen", "ann")
    rooms.leave("lobby", "ann")
    rooms.leave("lobby", "nobody")
    assert (rooms.present("lobby"), rooms.present("kitchen")) == ([], ["ann"])


@pytest.mark.anyio
async def test_people_go_over_with_the_grace_that_they_have_left() -> None:
    new = Rooms()
    await handed_over(with_ann(passed=4).state(), new.state())
    assert is_gone_after(new, GRACE - 4)


@pytest.mark.anyio
@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4)])
async def test_who_has_come_to_both_releases_keeps_the_longer_grace(
    old: float, new: float
) -> None:
    here = with_ann(passed=new)
    here.beat("lobby", "bob")
    await handed_over(with_ann(passed=old).state(), here.state())
    assert here.present("lobby") == ["ann", "bob"]
    here.leave("lobby", "bob")
    assert is_gone_after(here, GRACE - 2)


@pytest.mark.anyio
async def test_a_grace_is_never_longer_than_that_of_the_new_release() -> None:
    new = Rooms()
    value = {"rooms": {"lobby": {"ann": GRACE * 5}}}
    await new.state().import_state(value, CONTEXT)
    assert is_gone_after(new, GRACE)


def test_where_all_is_full_only_those_who_are_there_may_stay() -> None:
    rooms = Rooms()
    for number in range(MOST):
        assert rooms.beat("lobby", str(number))
    assert rooms.beat("lobby", "0")
    assert not rooms.beat("lobby", "ann")
    rooms.leave("lobby", "0")
    assert rooms.beat("kitchen", "ann")


# How much each client may ask


def spent(limiter: Limiter, client: str = "c") -> int:
    """How many requests it gets through until it has to wait."""
    number = 0
    while not limiter.spend(client):
        number += 1
    return number


def test_a_client_may_ask_at_once_as_often_as_its_burst_and_then_by_the_rate() -> None:
    clock = ManualClock()
    limiter = Limiter(clock)
    assert spent(limiter) == BURST
    assert limiter.spend("c") == 1 / RATE
    assert spent(limiter, "another") == BURST
    clock.advance(3 / RATE)
    assert spent(limiter) == 3
    clock.advance(2 * BURST / RATE)
    assert spent(limiter) == BURST


@pytest.mark.anyio
async def test_a_budget_goes_over_whatever_the_clocks_say() -> None:
    old, new = Limiter(ManualClock(1e6)), Limiter(ManualClock(7.0))
    for _ in range(4):
        old.spend("c")
    await handed_over(old.state(), new.state())
    assert spent(new) == BURST - 4


@pytest.mark.anyio
async def test_what_was_spent_in_the_new_release_already_counts_too() -> None:
    old, new = Limiter(ManualClock()), Limiter(ManualClock())
    for limiter, number in ((old, 4), (new, 3)):
        for _ in range(number):
            limiter.spend("c")
    spent(old, "greedy")
    spent(new, "greedy")
    await handed_over(old.state(), new.state())
    assert (spent(new), spent(new, "greedy")) == (BURST - 7, 0)


@pytest.mark.anyio
async def test_a_budget_is_never_more_than_the_burst_of_the_new_release() -> None:
    new = Limiter(ManualClock())
    new.spend("c")
    await new.state().import_state({"left": {"c": BURST * 5}}, CONTEXT)
    assert spent(new) == BURST - 1


@pytest.mark.anyio
async def test_a_full_bucket_does_not_go_over() -> None:
    clock = ManualClock()
    limiter = Limiter(clock)
    limiter.spend("c")
    clock.advance(0.5 / RATE)
    limiter.spend("d")
    clock.advance(0.5 / RATE)
    _, value = await limiter.state().export_state()
    assert value == {"left": {"d": BURST - 0.5}}


def test_where_all_is_full_a_new_client_waits_for_an_old_one() -> None:
    clock = ManualClock()
    limiter = Limiter(clock)
    for number in range(MOST):
        assert not limiter.spend(str(number))
    assert limiter.spend("c") == 1 / RATE
    assert not limiter.spend("0")
    clock.advance(1 / RATE)
    limiter.forget_full()
    assert not limiter.spend("c")


STEPS = st.lists(st.one_of(st.just("ask"), st.just("move"), st.floats(0, 5)))


@pytest.mark.anyio
@given(steps=STEPS)
async def test_no_client_gets_more_through_than_its_limit_however_often_it_moves(
    steps: list[Any],
) -> None:
    clock, through = ManualClock(), 0
    limiter = Limiter(clock)
    for step in steps:
        if step == "ask":
            through += spent(limiter)
        elif step == "move":
            new = Limiter(clock)
            await handed_over(limiter.state(), new.state())
            limiter = new
        else:
            clock.advance(step)
    assert through <= BURST + RATE * (clock.now - ManualClock().now) + 1e-6


# Both


NAMES = [f"{'n' * 25}{number:07}" for number in range(MOST)]
LEFT = 10 / 3  # with as many digits as there can be


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("memory", "value"),
    [
        (Rooms(), {"rooms": {name: {name: LEFT} for name in NAMES}}),
        (Limiter(ManualClock()), {"left": dict.fromkeys(NAMES, LEFT)}),
    ],
    ids=["rooms", "limiter"],
)
async def test_as_much_as_fits_in_memory_fits_into_the_state(
    memory: Rooms | Limiter, value: Any
) -> None:
    """With the longest names, and each person in a room of its own."""
    state: ModelState[Any] = memory.state()
    await state.import_state(value, CONTEXT)
    built = export(state, terms(state), await state.export_state())
    assert len(built.body) > 32 * MOST
    assert not built.is_over


# The app


@pytest.fixture
def client() -> TestClient:
    return TestClient(chat.app)


def present(client: TestClient, room: str, api_key: str = "test") -> list[str]:
    answer = client.get(f"/rooms/{room}", headers={"api-key": api_key})
    assert answer.status_code == 200, answer.text
    there: list[str] = answer.json()["present"]
    return there


@pytest.mark.parametrize("code", [1000, 1006, 1012])
def test_the_end_of_a_connection_is_no_leave(client: TestClient, code: int) -> None:
    """Whether a drain has ended it, or the network."""
    with client.websocket_connect(f"/rooms/closed-{code}?name=ann") as websocket:
        assert websocket.receive_json() == ["ann"]
        websocket.close(code)
    assert present(client, f"closed-{code}") == ["ann"]


def test_who_says_so_has_left(client: TestClient) -> None:
    with client.websocket_connect("/rooms/left?name=ann") as websocket:
        websocket.receive_json()
        websocket.send_text("leave")
        with pytest.raises(WebSocketDisconnect):
            websocket.receive_json()
    assert present(client, "left") == []


def test_each_message_is_a_heartbeat_and_is_answered(client: TestClient) -> None:
    with client.websocket_connect("/rooms/beating?name=ann") as websocket:
        websocket.receive_json()
        chat.rooms.leave("beating", "ann")
        chat.rooms.beat("beating", "bob")
        websocket.send_bytes(b"of any kind")
        assert websocket.receive_json() == ["ann", "bob"]


@pytest.mark.parametrize("path", ["odd?name=", "odd", "odd?name=a%20b", "%21?name=a"])
def test_an_odd_name_is_not_let_in(client: TestClient, path: str) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(f"/rooms/{path}"),
    ):
        pass
    assert refused.value.code == 1008


def test_where_all_is_full_a_person_may_try_again_later(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.memory.MOST", 0)
    with client.websocket_connect("/rooms/full?name=ann") as websocket:
        with pytest.raises(WebSocketDisconnect) as closed:
            websocket.receive_json()
    assert closed.value.code == 1013


def test_a_client_over_its_limit_is_told_when_to_ask_again(client: TestClient) -> None:
    for _ in range(BURST):
        present(client, "limited", "greedy")
    answer = client.get("/rooms/limited", headers={"api-key": "greedy"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert present(client, "limited", "modest") == []


@pytest.mark.parametrize("headers", [{}, {"api-key": ""}, {"api-key": "a b"}])
def test_a_client_without_a_name_is_told_what_one_is(
    client: TestClient, headers: dict[str, str]
) -> None:
    answer = client.get("/rooms/odd", headers=headers)
    assert answer.status_code == 400
    assert "api-key" in answer.json()["error"]


@pytest.mark.anyio
async def test_no_grace_runs_while_the_release_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is let in meanwhile, so nobody could come back."""
    drain = Drain()
    monkeypatch.setattr(chat, "drain", drain)
    monkeypatch.setattr(chat, "rooms", with_ann())
    chat.pass_time(1)
    await drain.begin(begin_request())
    chat.pass_time(GRACE)
    await drain.resume(NONCE)
    chat.pass_time(GRACE - 1.5)
    assert chat.rooms.present("lobby") == ["ann"]
    chat.pass_time(1)
    assert chat.rooms.present("lobby") == []


def test_clients_that_have_all_their_budget_again_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that their number is bounded by those that ask."""
    clock = ManualClock()
    monkeypatch.setattr("examples.memory.MOST", 1)
    monkeypatch.setattr(chat, "limiter", Limiter(clock))
    chat.limiter.spend("c")
    clock.advance(1 / RATE)
    chat.pass_time(chat.TICK)
    assert not chat.limiter.spend("another")


def test_it_hands_over_both() -> None:
    protocols = [adapter.protocol for adapter in chat.drain.handoffs.adapters]
    assert protocols == ["chat.presence", "chat.budgets"]
