"""What a worker answers to its siblings, and to who observes them all."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drainmw.contract import (
    HANDOFFS_PATH,
    OFFER_PATH,
    REPORT_PATH,
    SEAL_PATH,
    STATE_EXPORT_PATH,
)
from drainmw.siblingapp import SiblingApp
from drainmw.testing import AsgiDriver, http_scope, websocket_scope
from tests.rig import NONCE, SOURCE, TARGET, Client, Release, hello
from tests.rooms import Rooms, Workers, drained_with
from tests.rooms import workers as new_workers
from tests.test_handoff import fetched

pytestmark = pytest.mark.anyio


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with new_workers() as found:
        yield found


async def asked(address: Path, method: str, path: str, **how: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(address))
    async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
        return await client.request(method, path, **how)


# The socket


async def test_the_socket_is_for_its_owner_and_takes_the_place_of_an_old_one(
    workers: Workers,
) -> None:
    """Which a worker has left that was killed."""
    address = workers.address(os.getpid())
    address.write_text("left")
    before = os.umask(0o022)
    try:
        workers.add(Rooms("ann"))
        answer = await came_up(address)
    finally:
        os.umask(before)
    assert answer.status_code == 200
    assert stat.S_IMODE(address.stat().st_mode) == 0o600


async def came_up(address: Path) -> httpx.Response:
    async with asyncio.timeout(5):
        while True:
            try:
                return await asked(address, "GET", HANDOFFS_PATH)
            except httpx.ConnectError:
                await asyncio.sleep(0.005)


async def test_a_worker_that_is_told_twice_to_listen_listens_once(
    workers: Workers,
) -> None:
    """Every adapter that is added says so."""
    release = workers.add(Rooms("ann"))
    address = workers.address(os.getpid())
    await came_up(address)
    before = address.stat().st_ino
    [app] = workers._apps
    serving = app._serving
    app.serve(address)
    assert app._serving is serving
    await came_up(address)
    assert address.stat().st_ino == before
    assert release.drain.phase == "serving"


async def test_a_worker_that_cannot_listen_says_so_and_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = Release(hello)
    app = SiblingApp(release.drain)
    app.serve(tmp_path / "no" / "such" / "place.sock")
    assert app._serving is not None
    await app._serving
    assert "siblings cannot ask" in caplog.text
    assert (await release.client.get("/")).status_code == 200


# What is asked there


async def test_what_is_no_question_of_a_sibling_is_one_of_an_observer() -> None:
    """No token is needed: only its owner can come there."""
    release = await drained_with(Rooms("ann"))
    client = Client(SiblingApp(release.drain))
    answer = await client.get(HANDOFFS_PATH)
    assert answer.json()["adapters"][0]["protocol"] == "rooms/v1"
    assert (await client.get("/sibling/other")).status_code == 404


async def test_what_a_sibling_may_not_have_is_refused_by_its_code() -> None:
    release = await drained_with(rooms := Rooms("ann"))
    client = Client(SiblingApp(release.drain))
    answer = await client.http.post("/sibling/part", params={"protocol": "other"})
    assert answer.status_code == 404
    assert answer.json()["code"] == "RUNTIME_STATE_ADAPTER_NOT_FOUND"
    rooms.fails["seal"] = RuntimeError("somebody speaks")
    answer = await client.http.post("/sibling/seal", params={"epoch": 1})
    assert answer.status_code == 409
    assert answer.json()["detail"] == "rooms/v1: somebody speaks"


async def test_a_value_that_no_handoff_has_begun_is_not_imported() -> None:
    release = Release(hello)
    release.drain.add_state(rooms := Rooms())
    client = Client(SiblingApp(release.drain))
    answer = await client.http.post(
        "/sibling/import",
        params={"nonce": NONCE, "index": 0, "count": 1},
        content=b"{}",
    )
    assert (answer.status_code, answer.json()) == (
        500,
        {"detail": "no handoff of this nonce"},
    )
    answer = await client.http.post(
        "/sibling/import", params={"nonce": NONCE}, content=b"x" * 1_100_000
    )
    assert answer.status_code == 413
    assert rooms.heard == []


async def test_a_sibling_that_goes_away_is_not_answered() -> None:
    app = SiblingApp(Release(hello).drain)
    scope = http_scope("/sibling/import", "POST")
    async with AsgiDriver(app, scope) as call:
        await call.send_input({"type": "http.disconnect"})
        await call.wait()
        with pytest.raises(EOFError):
            await call.receive_output()


async def test_siblings_speak_http_alone() -> None:
    app = SiblingApp(Release(hello).drain)
    async with AsgiDriver(app, websocket_scope("/sibling/part")) as call:
        await call.wait()


# An observer of all


async def test_an_observer_lets_one_of_the_workers_answer(workers: Workers) -> None:
    """It has no state itself, and what it is asked goes over as it came."""
    workers.add(Rooms("ann"))
    workers.add(Rooms("bob"))
    observer = workers.observer()
    await workers.drained()
    client = observer.client
    query = {"sourceRevision": SOURCE, "targetRevision": TARGET}
    answer = await client.control("GET", STATE_EXPORT_PATH, params=query)
    assert answer.json()["value"] == ["ann", "bob"]
    answer = await client.control("POST", SEAL_PATH, json={"nonce": NONCE})
    assert answer.json() == {"phase": "drained", "epoch": 1}
    assert all(release.drain.sealed for release in workers.releases.values())
    answer = await client.control(
        "POST", OFFER_PATH, json=query | {"timeoutMs": 2000, "nonce": "h" * 43}
    )
    assert (await fetched(answer.json())).json()["value"] == ["ann", "bob"]
    told = (await client.control("GET", HANDOFFS_PATH)).json()
    assert [given["nonce"] for given in told["given"]] == ["h" * 43]


async def test_an_observer_passes_a_refusal_on(workers: Workers) -> None:
    workers.add(Rooms("ann"))
    observer = workers.observer()
    answer = await observer.client.control("POST", SEAL_PATH, json={"nonce": NONCE})
    assert answer.status_code == 404
    assert answer.json()["code"] == "RUNTIME_DRAIN_NOT_FOUND"
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_observer_has_its_own_doors(workers: Workers) -> None:
    workers.add(Rooms("ann"))
    observer = workers.observer()
    assert (await observer.client.get(HANDOFFS_PATH)).status_code == 401
    answer = await observer.client.control("GET", HANDOFFS_PATH)
    assert answer.status_code == 200
    assert (await observer.client.control("GET", REPORT_PATH)).status_code == 200


async def test_an_observer_of_nobody_says_so(workers: Workers) -> None:
    answer = await workers.observer().client.control("GET", HANDOFFS_PATH)
    assert answer.status_code == 503
    assert answer.json()["detail"] == "no worker has come up yet"
