"""The lame-duck time under load: nobody fails, everybody is told to leave."""

from __future__ import annotations

import time

from tests.servers.load import CLIENTS, KEPT_A_SECOND, NEW_A_SECOND, POOL, Load
from tests.servers.server import OWN, Server

# The full time on two servers that differ in everything; elsewhere as long as
# each of the kept connections needs to be used once.
IN_FULL = ("uvicorn-h11-websockets", "hypercorn")
FULL, SHORT = 5.0, 1.0  # seconds
A_SECOND = NEW_A_SECOND + KEPT_A_SECOND


def test_under_steady_load_a_cordon_and_the_begin_after_it_fail_no_request(
    server: Server,
) -> None:
    before = server.report()
    with Load(server) as load:
        load.goes_on(A_SECOND)  # each of the kept connections has been used
        asked = time.monotonic()
        server.control("POST", f"{OWN}/cordon")
        cordoned = time.monotonic()
        time.sleep(FULL if server.kind.name in IN_FULL else SHORT)
        lasted = time.monotonic() - cordoned
        begins = time.monotonic()
        nonce = server.begin()
        begun = time.monotonic()
        outcome = server.outcome(nonce)
        load.goes_on(A_SECOND // 2)
    after = server.report()

    assert outcome["status"] == "drained"
    assert [seen for seen in load.seen if seen.answer is None] == []
    answers = [(seen, seen.answer) for seen in load.seen if seen.answer is not None]

    serving = [a for s, a in answers if a.at < asked]
    assert {(a.status, a.closes) for a in serving} == {(200, False)}

    lame = [(s, a) for s, a in answers if cordoned < s.sent and a.at < begins]
    assert {(a.status, a.closes) for _, a in lame} == {(200, True)}
    assert len(lame) > lasted * A_SECOND / 2
    assert CLIENTS * POOL / 2 < sum(s.kept for s, _ in lame) <= CLIENTS * POOL

    at_begin = [a for s, a in answers if s.sent < begun and begins < a.at]
    assert at_begin and all(a.closes for a in at_begin)
    assert all(a.status == 200 or a.is_refusal for a in at_begin)

    refused = [a for s, a in answers if begun < s.sent]
    assert refused and all(a.closes and a.is_refusal for a in refused)

    # What the clients have counted is what the release has counted.
    admitted = sum(a.status == 200 for _, a in answers)
    assert after["admittedTotal"] - before["admittedTotal"] == admitted
    assert after["refusedTotal"] - before["refusedTotal"] == len(answers) - admitted
