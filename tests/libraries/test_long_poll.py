"""A long poll is a request like any other: it is answered, the next one refused."""

from __future__ import annotations

from tests.libraries.log import Log
from tests.libraries.matrix import Library
from tests.servers.server import Server

LIBRARY = Library("tests.libraries.long_poll_app:app", needs=("starlette",))


def test_a_poll_in_flight_is_answered_and_the_next_one_refused(
    server: Server, log: Log
) -> None:
    poll = server.start("/poll?wait=10")
    assert server.ask("POST", "/say", b"hello").status == 200
    assert poll.result().json() == ["hello"]
    poll = server.start("/poll?wait=0.5")
    nonce = server.begin(timeout=20)
    assert server.ask("POST", "/say", b"too late").is_refusal
    assert server.status(nonce)["status"] == "draining"
    answer = poll.result()
    assert (answer.status, answer.json(), answer.closes) == (200, [], True)
    assert server.outcome(nonce)["status"] == "drained"
    refused = server.get("/poll?wait=10")
    assert refused.is_refusal
    assert int(refused.headers["retry-after"]) >= 1
    assert log.faults() == []
