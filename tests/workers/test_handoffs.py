"""State goes from the workers of one release to those of the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.processes import Served, drainmw, served, until

APP = "tests.workers.share_app:app"
NAMES = {f"n{number}" for number in range(12)}


@contextmanager
def sharing(
    tmp_path: Path, runtime: Path, name: str, workers: int
) -> Iterator[Served]:
    folder = tmp_path / name
    folder.mkdir()
    variables = {"DRAINMW_RUNTIME_DIR": str(runtime)}
    options = ("--workers", str(workers))
    with served(folder, *options, app=APP, environment=variables) as release:
        until(lambda: len(live(release)) == workers, "all workers")
        yield release


def live(release: Served) -> list[int]:
    return [w["pid"] for w in release.report()["workers"] if not w["unknown"]]


def told(release: Served, workers: int) -> dict[int, dict[str, Any]]:
    """What each worker knows and has heard, by its process id."""
    found: dict[int, dict[str, Any]] = {}

    def all_asked() -> bool:
        answer = httpx.get(f"{release.address}/who", timeout=5).json()
        found[answer["pid"]] = answer
        return len(found) == workers

    until(all_asked, "an answer of every worker")
    return found


def arrive(release: Served, names: set[str], workers: int) -> None:
    """Until every worker has met somebody."""
    met = {release.get(f"/arrive/{name}").json()["pid"] for name in sorted(names)}
    until(
        lambda: met.add(release.get("/arrive/n0").json()["pid"]) or len(met) == workers,
        "somebody at every worker",
    )


def test_what_the_workers_know_goes_over_as_one_and_is_shared_out(
    tmp_path: Path, runtime: Path
) -> None:
    with (
        sharing(tmp_path, runtime, "old", 2) as old,
        sharing(tmp_path, runtime, "new", 3) as new,
    ):
        arrive(old, NAMES, 2)
        assert drainmw("begin", "--wait", "--control", str(old.control)).exit_code == 0
        targets = ("--from", str(old.control), "--to", str(new.control))
        done = drainmw("handoff", *targets)
        assert done.exit_code == 0, done.output
        assert done.stdout == "shares handed over, cursor of-2\n"
        shares = told(new, 3)
        assert sorted(n for t in shares.values() for n in t["here"]) == sorted(NAMES)
        assert sorted(h for t in shares.values() for h in t["heard"]) == [
            f"import {index}/3 True" for index in range(3)
        ]
        refused = drainmw("resume", "--control", str(old.control))
        assert refused.exit_code == 4
        assert "RUNTIME_STATE_HANDED_OVER" in refused.stderr
        done = drainmw("handoff", *targets, "--detach")
        assert done.exit_code == 0, done.output
        for told_of in told(new, 3).values():
            assert told_of["heard"][1:] == ["confirm"]
