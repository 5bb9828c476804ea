"""Every worker of a release as one, on every server that has several."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, suppress
from threading import Barrier

from tests.gate import Gate
from tests.servers.listeners import Ending, Seen, drained, listen_many
from tests.servers.server import CLOSE_WINDOW, IDLE, OWN, new_nonce
from tests.servers.wire import Answer, ask
from tests.workers.crowd import RESPAWNS_WITHIN, Crowd

CONNECTIONS = 200
LEAVES_WITHIN = 2.0  # seconds, of the work of a worker that was killed


def spread(release: Crowd, number: int = CONNECTIONS) -> Counter[int]:
    """Which worker answers how many of that many new connections."""
    server = release.server
    asked = [server.in_background(server.get, "/pid") for _ in range(number)]
    return Counter(int(future.result().body) for future in asked)


def test_a_request_of_one_worker_is_seen_through_all(release: Crowd) -> None:
    server = release.server
    with Gate() as gate:
        pid, held = release.holding(gate)
        nonce = server.begin()
        for _ in range(60):
            status = server.status(nonce)
            assert (status["status"], status["inFlight"]["http"]) == ("draining", 1)
        gate.open()
        while not held.done():
            status = server.status(nonce)
            assert (status["status"], status["inFlight"]["http"]) in (
                ("draining", 1),
                ("draining", 0),  # its last byte is on its way, the verdict not yet out
                ("drained", 0),
            )
    assert int(held.result().body) == pid
    assert server.outcome(nonce)["inFlight"] == IDLE
    assert {server.status(nonce)["status"] for _ in range(20)} == {"drained"}


def test_from_the_begin_on_no_worker_admits_anything(release: Crowd) -> None:
    server = release.server
    assert set(spread(release)) == release.pids()
    before = server.report()
    nonce = server.begin()
    assert release.refusals(CONNECTIONS) == CONNECTIONS
    after = server.report()
    assert after["admittedTotal"] == before["admittedTotal"]
    assert after["refusedTotal"] == before["refusedTotal"] + CONNECTIONS
    assert server.outcome(nonce)["status"] == "drained"


async def _closed(release: Crowd) -> tuple[Seen, list[Ending]]:
    """Open WebSockets until two workers have some, and drain."""
    listeners = []

    def holders() -> int:
        return sum(w["inFlight"]["websocket"] > 0 for w in release.workers())

    while await asyncio.to_thread(holders) < 2:
        listeners += await listen_many(release.server, "/chat", 20)
    seen = await asyncio.to_thread(drained, release.server, 5.0)
    return seen, [await listener.ending() for listener in listeners]


def test_the_websockets_of_all_workers_are_closed(release: Crowd) -> None:
    seen, endings = asyncio.run(_closed(release))
    assert {ending.code for ending in endings} == {1012}
    moments = sorted(ending.at - seen.began for ending in endings)
    assert 0.25 < moments[0] < moments[-1] < 0.25 + CLOSE_WINDOW + 0.5
    assert (seen.outcome["status"], seen.outcome["inFlight"]) == ("drained", IDLE)


def test_connections_that_were_kept_are_refused_too(release: Crowd) -> None:
    server = release.server
    with ExitStack() as opened:
        kept = [opened.enter_context(server.connect()) for _ in range(60)]
        seen = {int(connection.ask("GET", "/pid").body) for connection in kept}
        assert seen <= release.pids()  # not always all: the kernel spreads them
        nonce = server.begin()
        assert server.outcome(nonce)["status"] == "drained"
        assert all(connection.ask("GET", "/pid").is_refusal for connection in kept)
    assert server.status(nonce)["inFlight"] == IDLE


def test_fifty_begins_at_once_in_all_workers_are_one_drain(release: Crowd) -> None:
    server = release.server
    nonce, gate = new_nonce(), Barrier(50)

    def begin() -> Answer:
        gate.wait()
        return server.try_begin(nonce)

    answers = [f.result() for f in [server.in_background(begin) for _ in range(50)]]
    assert [answer.status for answer in answers] == [202] * 50
    assert [answer.json()["duplicate"] for answer in answers].count(False) == 1
    assert server.outcome(nonce)["status"] == "drained"


def test_of_many_begins_in_all_workers_one_wins(release: Crowd) -> None:
    server = release.server
    nonces = [new_nonce() for _ in range(16)]
    tried = [server.in_background(server.try_begin, nonce) for nonce in nonces]
    answers = [future.result().status for future in tried]
    assert Counter(answers) == {202: 1, 409: 15}
    winner = nonces[answers.index(202)]
    assert server.outcome(winner)["status"] == "drained"
    for nonce in nonces:
        assert server.try_status(nonce).status == (200 if nonce == winner else 404)


def test_a_resume_opens_all_workers_and_retires_the_nonce_in_all(
    release: Crowd,
) -> None:
    server = release.server
    old = server.begin()
    epoch = server.report()["epoch"]
    server.outcome(old)
    assert server.resume(old) == epoch + 1
    assert sum(spread(release, 60).values()) == 60
    for _ in range(12):
        assert server.try_status(old).status == 404
        again = server.try_begin(old)
        assert (again.status, again.json()["code"]) == (409, "RUNTIME_DRAIN_RESUMED")
    new = server.begin()
    assert server.report()["epoch"] == epoch + 2
    assert server.outcome(new)["status"] == "drained"


def test_a_cordon_is_seen_in_all_workers(release: Crowd) -> None:
    server = release.server
    server.control("POST", f"{OWN}/cordon")
    assert {server.get("/readyz").status for _ in range(12)} == {503}
    answers = [server.get("/pid") for _ in range(12)]
    assert {(answer.status, answer.closes) for answer in answers} == {(200, True)}
    server.control("POST", f"{OWN}/uncordon")
    assert {server.get("/readyz").status for _ in range(12)} == {200}


def test_a_worker_that_was_stopped_keeps_the_drain_waiting(release: Crowd) -> None:
    server = release.server
    pid = max(release.pids())
    os.kill(pid, signal.SIGSTOP)
    try:
        server.patience = 0.5  # it may be the stopped one that got the connection
        nonce = _begin_somewhere(release)
        seen = _ask_for(release, nonce, seconds=6.0, enough=3)
        assert seen
        for answer in seen:
            assert answer.status == 503
            assert answer.json()["code"] == "RUNTIME_DRAIN_COUNTERS_UNKNOWN"
            assert f"worker {pid}" in answer.json()["detail"]
    finally:
        os.kill(pid, signal.SIGCONT)
    server.patience = 10.0
    server.until(lambda: server.try_status(nonce).status == 200)
    assert server.outcome(nonce)["status"] == "drained"


def test_a_worker_whose_loop_is_blocked_is_unknown_until_it_answers(
    release: Crowd,
) -> None:
    server = release.server
    with Gate() as gate:
        path = f"/block?gate={gate.port}"
        blocked = server.in_background(ask, server.port, "GET", path)
        gate.until_reached()
        server.patience = 0.4  # on granian it may be the blocked one's connection
        nonce = _begin_somewhere(release)
        seen = _ask_for(release, nonce, seconds=6.0, enough=3)
    assert seen
    assert {answer.status for answer in seen} == {503}
    server.patience = 10.0
    pid = int(blocked.result().body)
    assert all(f"worker {pid}" in answer.json()["detail"] for answer in seen)
    server.until(lambda: server.try_status(nonce).status == 200)
    assert server.outcome(nonce)["status"] == "drained"


def _begin_somewhere(release: Crowd) -> str:
    """Begin through whichever worker answers."""
    nonce = new_nonce()
    for _ in range(20):
        with suppress(TimeoutError):
            assert release.server.try_begin(nonce, 20).status == 202
            return nonce
    raise AssertionError("nobody has answered")


def _ask_for(
    release: Crowd, nonce: str, seconds: float, enough: int = 1000
) -> list[Answer]:
    """Ask for the status through whoever answers, for that long or that often."""
    deadline = time.monotonic() + seconds
    seen: list[Answer] = []
    while time.monotonic() < deadline and len(seen) < enough:
        with suppress(TimeoutError):
            seen.append(release.server.try_status(nonce))
    return seen


# Workers that die


def test_a_worker_that_is_killed_takes_its_work_with_it(mortal: Crowd) -> None:
    server = mortal.server
    held: Counter[int] = Counter()
    with Gate() as gate:
        while not (victims := [p for p in mortal.victims() if held[p] == 3]):
            held[mortal.holding(gate)[0]] += 1
        nonce = server.begin(timeout=30)
        os.kill(victims[0], signal.SIGKILL)
        killed = time.monotonic()
        gone = server.until(lambda: _http(mortal) == held.total() - 3)
        assert gone - killed < LEAVES_WITHIN
        mortal.until_whole()
        assert victims[0] not in mortal.pids()
        assert _http(mortal) == held.total() - 3  # a new worker brings none back
    server.until(lambda: server.status(nonce)["status"] == "drained")


def _http(release: Crowd) -> int | None:
    with suppress(OSError, ValueError):
        return release.server.report()["inFlight"]["http"]  # type: ignore[no-any-return]
    return None


def test_a_worker_born_in_a_drain_refuses_from_its_first_request(
    mortal: Crowd,
) -> None:
    server = mortal.server
    nonce = server.begin()
    before = server.report()
    victim = max(mortal.victims())
    os.kill(victim, signal.SIGKILL)
    until = time.monotonic() + RESPAWNS_WITHIN
    while not (_pids(mortal) - {w["pid"] for w in before["workers"]}):
        assert time.monotonic() < until
        with suppress(OSError, ValueError):  # it was to be the dead one's
            assert server.get("/pid").is_refusal
    mortal.until_whole()
    after = server.report()
    assert (after["epoch"], after["nonce"]) == (before["epoch"], nonce)
    assert mortal.refusals(CONNECTIONS) == CONNECTIONS
    assert server.outcome(nonce)["status"] == "drained"


def test_a_child_of_a_worker_does_not_keep_its_place(mortal: Crowd) -> None:
    server = mortal.server
    children = []
    while True:
        pid, child = map(int, server.get("/fork").body.split())
        children.append(child)
        if pid in mortal.victims():
            break
    # On granian it keeps the listener of its worker, and with it connections.
    server.patience = 0.2
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        gone = server.until(lambda: _pids(mortal) and pid not in _pids(mortal))
        assert gone - killed < LEAVES_WITHIN
        os.kill(child, 0)  # it lives
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def _pids(release: Crowd) -> set[int]:
    with suppress(OSError, ValueError):
        return release.pids()
    return set()


def test_a_reload_in_a_drain_admits_nothing(reloading: Crowd) -> None:
    release = reloading
    server = release.server
    before = release.pids()
    nonce = server.begin(timeout=30)
    os.kill(release.supervisor, signal.SIGHUP)
    until = time.monotonic() + 15
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            assert server.get("/pid").is_refusal
        now = _pids(release)
        if len(now) == release.crew.workers and not now & before:
            break
    assert not release.pids() & before
    assert release.refusals(60) == 60
    assert server.outcome(nonce)["status"] == "drained"
