"""State goes from one real server to another, over loopback."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainmw.client import ControlClient
from drainmw.contract import StateStatus
from tests.processes import Served, drainmw, served
from tests.processes import running as running_program
from tests.servers.matrix import SERVERS, Kind
from tests.servers.server import SOURCE, TARGET, Server, new_nonce, running
from tests.test_cli import INTERRUPTIBLE

APP = "tests.servers.presence_app:app"
STATE = "/.forgezero/runtime/state/v1"
QUERY = f"protocol=presence&sourceRevision={SOURCE}&targetRevision={TARGET}"
OF = {kind.name: kind for kind in SERVERS}
UVICORN = OF["uvicorn-httptools-wsproto"]


def begin_handoff(old: Server, new: Server, nonce: str) -> dict[str, Any]:
    content = {
        "protocol": "presence",
        "nonce": nonce,
        "schemaVersion": 1,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": 5000,
        "source": {
            "url": f"http://127.0.0.1:{old.port}{STATE}/export?{QUERY}",
            "authorization": f"Bearer {old.token}",
        },
    }
    answer = new.control("POST", f"{STATE}/begin", content)
    assert answer.status == 202, answer
    begun: dict[str, Any] = answer.json()
    return begun


def handoff(new: Server, nonce: str) -> dict[str, Any]:
    """The first status that is not `pending`."""

    def status() -> dict[str, Any]:
        answer = new.control("GET", f"{STATE}/status?nonce={nonce}")
        assert answer.status == 200, answer
        told: dict[str, Any] = answer.json()
        return told

    new.until(lambda: status()["status"] != "pending")
    return status()


@pytest.mark.parametrize(
    ("old_kind", "new_kind"),
    [(UVICORN, OF["hypercorn"]), (OF["granian"], UVICORN)],
    ids=["uvicorn to hypercorn", "granian to uvicorn"],
)
def test_the_new_release_knows_what_the_old_one_knew(
    old_kind: Kind, new_kind: Kind, tmp_path: Path
) -> None:
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with (
        running(old_kind, folders[0], app=APP) as old,
        running(new_kind, folders[1], app=APP) as new,
    ):
        for name in ("ann", "bob"):
            assert old.get(f"/arrive/{name}").status == 200
        assert new.get("/who").json() == {}
        early = old.control("GET", f"{STATE}/export?{QUERY}")
        assert early.status == 409
        assert early.json()["code"] == "RUNTIME_STATE_NOT_EXPORTABLE"
        assert old.outcome(old.begin())["status"] == "drained"
        nonce = new_nonce()
        assert begin_handoff(old, new, nonce) == {"accepted": True, "duplicate": False}
        told = handoff(new, nonce)
        assert told["status"] == "acknowledged", told
        assert begin_handoff(old, new, nonce)["duplicate"] is True
        assert new.get("/who").json() == {"ann": 1.5, "bob": 1.5}
        for server in (old, new):
            assert str(old.token) not in server.log.read_text()


def arrive(release: Served, *names: str) -> None:
    for name in names:
        assert release.get(f"/arrive/{name}").status_code == 200


def test_one_command_hands_over_and_detaches_the_old_release(tmp_path: Path) -> None:
    """Over their control sockets; neither has a token."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with served(folders[0], app=APP) as old, served(folders[1], app=APP) as new:
        arrive(old, "ann", "bob")
        targets = ("--from", str(old.control), "--to", str(new.control))
        itself = drainmw(
            "handoff", "--from", str(old.control), "--to", str(old.control)
        )
        assert itself.exit_code == 2
        early = drainmw("handoff", *targets)
        assert early.exit_code == 4
        assert "RUNTIME_STATE_NOT_EXPORTABLE" in early.stderr
        assert drainmw("begin", "--wait", "--control", str(old.control)).exit_code == 0
        done = drainmw("handoff", *targets, "--detach")
        assert done.exit_code == 0, done.stderr
        assert (
            done.stdout
            == "presence handed over, cursor snapshot\ndetached  (epoch 1)\n"
        )
        assert new.get("/who").json() == {"ann": 1.5, "bob": 1.5}
        again = drainmw("resume", "--control", str(old.control))
        assert again.exit_code == 4
        assert "RUNTIME_DRAIN_DETACHED" in again.stderr


def test_a_handoff_that_fails_leaves_the_old_release_resumable(tmp_path: Path) -> None:
    """The new one does not read that state; the old one keeps it."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with served(folders[0], app=APP) as old, served(folders[1]) as new:
        arrive(old, "ann")
        drainmw("begin", "--wait", "--control", str(old.control))
        targets = ("--from", str(old.control), "--to", str(new.control))
        refused = drainmw("handoff", *targets, "--detach")
        assert refused.exit_code == 4
        assert "the new release has no state adapter" in refused.stderr
        assert drainmw("resume", "--control", str(old.control)).exit_code == 0
        assert old.get("/who").json() == {"ann": 1.5}


def test_only_the_drain_whose_state_went_over_is_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who resumes the old release meanwhile, and drains it again, keeps it."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    acknowledged = ControlClient.handoff
    with served(folders[0], app=APP) as old, served(folders[1], app=APP) as new:
        control = ("--control", str(old.control))

        def overtaken(client: ControlClient, nonce: str) -> Iterator[StateStatus]:
            yield from acknowledged(client, nonce)
            drainmw("resume", "--force", *control)
            drainmw("begin", "--wait", *control)

        monkeypatch.setattr(ControlClient, "handoff", overtaken)
        targets = ("--from", str(old.control), "--to", str(new.control))
        early = drainmw("handoff", *targets, "--detach")
        assert (early.exit_code, early.stderr) == (
            4,
            "drainmw: no drain has begun there; `drainmw begin` begins one\n",
        )
        drainmw("begin", "--wait", *control)
        late = drainmw("handoff", *targets, "--detach")
        assert late.exit_code == 4, late.output
        assert old.report()["phase"] == "drained"


SLOW = """
import asyncio
from tests.servers import presence_app
from tests.servers.presence_app import app

[adapter] = presence_app.drain.handoffs.adapters

async def import_state(value, context):
    await asyncio.sleep(60)

adapter.import_state = import_state
"""


def test_who_stops_watching_a_handoff_reads_that_it_goes_on(tmp_path: Path) -> None:
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "slow.py").write_text(SLOW)
    nonce = new_nonce()
    with (
        served(folders[0], app=APP) as old,
        served(folders[1], app="slow:app", cwd=folders[1]) as new,
    ):
        drainmw("begin", "--wait", "--control", str(old.control))
        targets = ("--from", str(old.control), "--to", str(new.control))
        watch = ("handoff", "--json", "--nonce", nonce, *targets)
        with running_program("-c", INTERRUPTIBLE, *watch) as process:
            process.out.wait_for_text("pending")
            process.signal(signal.SIGINT)
            assert process.exit_code() == 130
        assert process.err.lines == [f"drainmw: the handoff {nonce} goes on"]
