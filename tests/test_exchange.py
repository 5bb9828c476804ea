"""The tickets of HTTP requests, and how a response is ended from outside."""

from typing import Any

import pytest

from drainmw.core.drain import Gate
from drainmw.exchange import ticket_factory
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
