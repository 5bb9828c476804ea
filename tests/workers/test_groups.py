"""Which workers are one release, and which are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.servers.server import OWN
from tests.workers.conftest import needs
from tests.workers.crowd import CREWS, PRELOADED, crowd

UVICORN = CREWS[0]


def test_workers_of_an_app_loaded_before_the_fork_are_one(
    tmp_path: Path, runtime: Path
) -> None:
    needs(PRELOADED)
    with crowd(PRELOADED, tmp_path, runtime) as release:
        server = release.server
        assert len(release.pids()) == 2
        nonce = server.begin()
        assert release.refusals(60) == 60
        assert server.outcome(nonce)["status"] == "drained"
        os.kill(min(release.pids()), signal.SIGKILL)
        release.until_whole()
        assert release.refusals(60) == 60
        server.resume(nonce)
        assert release.refusals(60) == 0


def test_two_releases_of_one_user_and_one_name_do_not_meet(
    tmp_path: Path, runtime: Path
) -> None:
    (tmp_path / "blue").mkdir()
    (tmp_path / "green").mkdir()
    with (
        crowd(UVICORN, tmp_path / "blue", runtime, group="web") as blue,
        crowd(UVICORN, tmp_path / "green", runtime, group="web") as green,
    ):
        before = green.server.report()
        nonce = blue.server.begin()
        assert blue.server.outcome(nonce)["status"] == "drained"
        assert green.refusals(60) == 0
        assert {green.server.get("/readyz").status for _ in range(12)} == {200}
        after = green.server.report()
        assert (after["phase"], after["epoch"]) == ("serving", before["epoch"])
        assert green.server.try_status(nonce).status == 404
        assert not blue.pids() & green.pids()


def test_a_service_that_starts_again_under_its_name_serves(
    tmp_path: Path, runtime: Path
) -> None:
    with crowd(UVICORN, tmp_path, runtime, group="again") as first:
        nonce = first.server.begin()
        assert first.server.outcome(nonce)["status"] == "drained"
    with crowd(UVICORN, tmp_path, runtime, group="again") as second:
        assert second.refusals(30) == 0
        assert second.server.try_status(nonce).status == 404
        assert len(list(runtime.glob("group-*-again"))) == 1  # the old one is swept


def test_workers_that_cannot_be_one_say_so_loudly(
    tmp_path: Path, runtime: Path
) -> None:
    closed = tmp_path / "open to all"
    closed.mkdir(mode=0o755)
    (tmp_path / "log").mkdir()
    with crowd(UVICORN, tmp_path / "log", closed, whole=False) as release:
        server = release.server
        readiness = server.get("/readyz")
        assert readiness.status == 503
        assert "must be of mode 0700" in readiness.json()["detail"]
        assert server.get("/livez").status == 200
        assert server.get("/pid").status == 200
        for answer in (
            server.try_begin("n" * 43),
            server.try_status("n" * 43),
            server.control("POST", f"{OWN}/cordon"),
        ):
            assert (answer.status, answer.json()["code"]) == (
                503,
                "RUNTIME_GROUP_UNAVAILABLE",
            )
        assert server.get("/pid").status == 200
        assert "must be of mode 0700" in server.report()["warnings"][0]
        assert "group not joined" in server.log.read_text()
