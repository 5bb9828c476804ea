"""The tickets of HTTP requests, and how a response is ended from outside."""

import asyncio
from typing import Any

import pytest

from drainmw.core.drain import Gate
from drainmw.exchange import Exchange, runs_exchanges, ticket_factory, tickets
from drainmw.testing import http_scope
from tests.rig import headers_of

pytestmark = pytest.mark.anyio

Messages = list[dict[str, Any]]


def start_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


@pytest.mark.parametrize("gate", Gate)
async def test_the_sender_looks_at_the_gate_when_the_response_starts(
    gate: Gate,
) -> None:
    value = [0]
    ticket = ticket_factory(value)()
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    ticket.scope, ticket.send = http_scope(), send
    value[0] = gate
    body = {"type": "http.response.body", "body": b"x"}
    await ticket.sender(start_of())
    await ticket.sender(body)
    assert ("connection" in headers_of(sent[0])) is (gate is not Gate.OPEN)
    assert sent[1] is body


def test_each_ticket_has_one_sender_and_no_other_attributes() -> None:
    ticket = ticket_factory([0])()
    assert ticket.sender is ticket.sender
    with pytest.raises(AttributeError):
        ticket.more = 1  # type: ignore[attr-defined]  # slots, for their memory


# What a response is, and its end


EVENTS = (b"Content-Type", b"Text/Event-Stream; charset=utf-8")


def heard(*messages: dict[str, Any]) -> Exchange:
    """A ticket whose app has sent these messages while the release served."""
    ticket = ticket_factory([0])()
    ticket.scope, ticket.send = http_scope(), None
    for message in messages:
        ticket.send = lambda _message: None
        ticket.sender(message)
    return ticket


def body_of(body: bytes = b"x", **more: Any) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, **more}


MORE = body_of(more_body=True)
LAST = body_of(more_body=False)


@pytest.mark.parametrize(
    ("messages", "can_end"),
    [
        ([], False),
        ([start_of(EVENTS)], True),
        ([start_of(EVENTS), MORE], True),
        ([start_of(EVENTS), MORE, MORE], True),
        ([start_of(EVENTS), LAST], False),
        ([start_of(EVENTS), body_of()], False),
        ([start_of(EVENTS), MORE, LAST], False),
        ([start_of(EVENTS), {"type": "http.response.pathsend", "path": "/x"}], False),
        ([start_of((b"content-length", b"5")), MORE], False),
        ([{"type": "http.response.start", "status": 200}, MORE], True),
        ([{"type": "http.response.early_hint", "links": []}], False),
    ],
)
def test_what_can_be_ended(messages: list[dict[str, Any]], can_end: bool) -> None:
    """Started, not complete, and no promised length."""
    assert heard(*messages).can_end is can_end


@pytest.mark.parametrize(
    ("headers", "is_event_stream"),
    [
        ([EVENTS], True),
        ([(b"content-type", b"text/event-stream")], True),
        ([[bytearray(b"content-type"), bytearray(b"text/event-stream ; x=y")]], True),
        ([(b"content-type", b"text/event-streams")], False),
        ([(b"content-type", b"application/json")], False),
        ([], False),
    ],
)
def test_what_is_an_event_stream(headers: Any, is_event_stream: bool) -> None:
    assert heard(start_of(*headers)).is_event_stream is is_event_stream


async def test_what_starts_behind_a_closed_gate_is_told_of() -> None:
    gate = [0]
    factory = ticket_factory(gate)
    told: list[Exchange] = []
    factory.call_at_start(told.append)
    ticket = factory()
    ticket.scope, ticket.send = http_scope(), lambda _message: None
    gate[0] = Gate.DRAINING
    ticket.sender(start_of(EVENTS))
    assert told == [ticket]
    assert ticket.is_event_stream
    ticket.sender(LAST)
    assert (ticket.is_complete, told) == (True, [ticket])


async def ended(ticket: Exchange, within: float = 1.0) -> Messages:
    """End a ticket whose app waits, as a server's task would see it."""
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)
        if within < 1:
            await asyncio.Event().wait()

    async def call() -> None:
        ticket.send = send
        try:
            await asyncio.Event().wait()
        except BaseException as exc:
            assert ticket.explains(exc)
        await ticket.complete()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    ticket.end(task, within)
    await task
    assert task.cancelling() == 0
    return sent


async def test_what_is_missing_is_sent() -> None:
    final = {"type": "http.response.body", "body": b"", "more_body": False}
    assert await ended(heard(start_of(EVENTS), MORE)) == [final]
    assert await ended(heard(start_of(EVENTS), LAST)) == []


async def test_trailers_that_were_promised_come_after_it() -> None:
    sent = await ended(heard({**start_of(EVENTS), "trailers": True}, MORE))
    kinds = [message["type"] for message in sent]
    assert kinds == ["http.response.body", "http.response.trailers"]


async def test_a_client_that_reads_nothing_does_not_keep_the_end() -> None:
    assert len(await ended(heard(start_of(EVENTS), MORE), within=0.02)) == 1


async def test_the_task_of_a_call_is_found_wherever_it_waits() -> None:
    """Also below other layers, and in another task than it came in with."""
    ticket = heard()

    @runs_exchanges
    async def middleware(_send: Any) -> None:
        ticket = _send
        await asyncio.Event().wait()
        del ticket

    async def layer() -> None:
        async with asyncio.timeout(5):
            await asyncio.wait_for(middleware(ticket), 5)

    outer = asyncio.create_task(layer())
    for _ in range(3):
        await asyncio.sleep(0)
    found = {each: task for task in asyncio.all_tasks() for each in tickets(task)}
    assert ticket in found
    found[ticket].cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
