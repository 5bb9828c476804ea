"""State goes from the workers of one release to those of the next."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from drainmw.contract import STATE_BEGIN_PATH, STATE_STATUS_PATH
from tests.nursery import Nursery, Serving, nursery
from tests.processes import Served, drainmw, served, until
from tests.rig import AUTHORIZED, NONCE, SOURCE, TARGET, TOKEN
from tests.servers.server import Server
from tests.workers.conftest import needs
from tests.workers.crowd import CREWS, crowd

APP = "tests.workers.share_app:app"
NAMES = {f"n{number}" for number in range(12)}

Release = Served | Serving


@pytest.fixture(scope="module")
def forked() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Where a test says what is to happen."""
    (files := tmp_path / "files").mkdir()
    return files


@contextmanager
def sharing(tmp_path: Path, runtime: Path, name: str, workers: int) -> Iterator[Served]:
    folder = tmp_path / name
    folder.mkdir()
    variables = {
        "DRAINMW_RUNTIME_DIR": str(runtime),
        "DRAINMW_TOKEN": TOKEN,
        "SHARE_FILES": str(tmp_path / "files"),
    }
    options = ("--workers", str(workers))
    with served(folder, *options, app=APP, environment=variables) as release:
        until(lambda: len(live(release)) == workers, "all workers")
        yield release
        assert "Traceback" not in release.err.text


@pytest.fixture
def single(forked: Nursery, tmp_path: Path, files: Path) -> Iterator[Serving]:
    """A release of one process."""
    folder = tmp_path / "single"
    yield (one := forked.serve(folder, APP, SHARE_FILES=str(files)))
    forked.end_all()
    assert "Traceback" not in one.text


def live(release: Served) -> list[int]:
    return [w["pid"] for w in release.report()["workers"] if not w["unknown"]]


def told(release: Release, workers: int = 1) -> dict[int, dict[str, Any]]:
    """What each worker knows and has heard, by its process id."""
    found: dict[int, dict[str, Any]] = {}

    def all_asked() -> bool:
        answer = httpx.get(f"{release.address}/who", timeout=5).json()
        found[answer["pid"]] = answer
        return len(found) == workers

    until(all_asked, "an answer of every worker")
    return found


def names(release: Release, kind: str, workers: int = 1) -> list[str]:
    """Who came to any of the workers."""
    found = told(release, workers).values()
    return sorted(name for one in found for name in one["here"][kind])


def heard(release: Release, kind: str, workers: int = 1) -> list[list[str]]:
    return sorted(one["heard"][kind] for one in told(release, workers).values())


def arrive(release: Release, names: set[str], workers: int) -> None:
    """Until every worker has met somebody."""
    for name in sorted(names):
        release.get(f"/arrive/{name}")
    everywhere(release, "/arrive/n0", workers)


def everywhere(release: Release, path: str, workers: int) -> None:
    """Until every worker has been asked for it."""
    met: set[int] = set()

    def all_met() -> bool:
        met.add(release.get(path).json()["pid"])
        return len(met) == workers

    until(all_met, "every worker")


def drain(release: Release) -> None:
    done = drainmw("begin", "--wait", "--control", str(release.control))
    assert done.exit_code == 0, done.output


def resume(release: Release) -> None:
    done = drainmw("resume", "--control", str(release.control))
    assert done.exit_code == 0, done.output


def between(old: Release, new: Release, *options: str) -> list[str]:
    """The words of the command."""
    targets = ("--from", str(old.control), "--to", str(new.control))
    return ["handoff", *targets, *options]


def reached(folder: Path, step: str) -> int:
    """The process that has come as far as that step."""
    found = f"{step}.*.reached"
    until(lambda: list(folder.glob(found)), step)
    return int(next(folder.glob(found)).name.split(".")[-2])


def test_what_the_workers_know_goes_over_as_one_and_is_shared_out(
    tmp_path: Path, runtime: Path
) -> None:
    with (
        sharing(tmp_path, runtime, "old", 2) as old,
        sharing(tmp_path, runtime, "new", 3) as new,
    ):
        arrive(old, NAMES, 2)
        drain(old)
        done = drainmw(*between(old, new, "--protocol", "shares"))
        assert done.exit_code == 0, done.output
        assert done.stdout == "shares handed over, cursor of-2\n"
        assert names(new, "shares", 3) == sorted(NAMES)
        assert heard(new, "shares", 3) == [[f"import {i}/3 True"] for i in range(3)]
        refused = drainmw("resume", "--control", str(old.control))
        assert refused.exit_code == 4
        assert "RUNTIME_STATE_HANDED_OVER" in refused.stderr
        done = drainmw(*between(old, new, "--detach"))
        assert done.exit_code == 0, done.output
        for kind in ("shares", "seats"):
            assert [told[1:] for told in heard(new, kind, 3)] == [["confirm"]] * 3


def test_old_workers_refuse_and_are_killed(
    tmp_path: Path, runtime: Path, files: Path, single: Serving, forked: Nursery
) -> None:
    new = single
    with sharing(tmp_path, runtime, "old", 2) as old:
        arrive(old, NAMES, 2)

        # Their states cannot be made one.
        everywhere(old, "/arrive/loner", 2)
        drain(old)
        refused = drainmw(*between(old, new))
        assert refused.exit_code == 4
        assert "RUNTIME_STATE_NOT_COMBINED: 2 workers have a state" in refused.stderr
        resume(old)
        everywhere(old, "/leave/loner", 2)

        # One of them will not have it.
        stubborn = old.get("/arrive/stubborn").json()["pid"]
        drain(old)
        refused = drainmw(*between(old, new))
        assert refused.exit_code == 4
        assert "RUNTIME_STATE_SEAL_REFUSED" in refused.stderr
        assert "somebody is stubborn" in refused.stderr
        resume(old)
        for pid, one in told(old, 2).items():
            unsealed = [] if pid == stubborn else ["unseal"]
            assert one["heard"]["shares"] in ([], ["seal", *unsealed])
        everywhere(old, "/leave/stubborn", 2)

        # One is killed while it exports, and takes along who came to it.
        known = {pid: one["here"]["shares"] for pid, one in told(old, 2).items()}
        drain(old)
        (files / "export.hold").touch()
        command = forked.run(tmp_path / "command", *between(old, new))
        victim = max(known)
        until((files / f"export.{victim}.reached").exists, "its export")
        os.kill(victim, signal.SIGKILL)
        assert command.exit_code() == 4
        assert f"worker {victim}" in command.text
        (files / "export.hold").unlink()
        until(lambda: len(live(old)) == 2, "another worker")
        done = drainmw(*between(old, new, "--protocol", "shares"))
        assert done.exit_code == 0, done.output
        assert names(new, "shares") == known[min(known)]

        # What is sealed is kept, also where each that had a part is killed.
        for pid in live(old):
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(live(old)) == 2, "other workers")
        done = drainmw(*between(old, new, "--protocol", "seats"))
        assert done.exit_code == 0, done.output
        assert names(new, "seats") == known[min(known)]

        # It is dead once nobody of it lives, its parent and every worker.
        survivor, other = live(old)
        os.kill(survivor, signal.SIGSTOP)
        old.signal(signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)
        old.popen.wait()
        with pytest.raises(AssertionError, match="never"):
            until(lambda: heard(new, "seats") != [["import 0/1 True"]], "x", 1.2)
        os.kill(survivor, signal.SIGKILL)
        confirmed = [["import 0/1 True", "confirm"]]
        until(lambda: heard(new, "shares") == confirmed, "a proof of death")
        until(lambda: heard(new, "seats") == confirmed, "another one")


def test_new_workers_fail_and_are_killed(
    tmp_path: Path, runtime: Path, files: Path, single: Serving, forked: Nursery
) -> None:
    old = single
    with sharing(tmp_path, runtime, "new", 2) as new:
        for name in NAMES:
            old.get(f"/arrive/{name}")
        drain(old)

        # One cannot import it.
        (files / "shares.poison").touch()
        failed = drainmw(*between(old, new, "--protocol", "shares"))
        assert failed.exit_code == 1
        assert "cannot swallow it" in failed.stderr
        with new.asked() as client:
            (taken,) = client.handoffs()["taken"]
        answers = everyone_says(new, taken["nonce"])
        assert [a["failure"] for a in answers] == ["cannot swallow it"]
        nothing_is_left(new, "shares")

        # One is killed while it imports.
        (files / "seats.import.1.hold").touch()
        words = between(old, new, "--protocol", "seats")
        command = forked.run(tmp_path / "command", *words)
        victim = reached(files, "seats.import.1")
        os.kill(victim, signal.SIGKILL)

        # One is born while another imports.
        (files / "songs.import.0.hold").touch()
        words = between(old, new, "--protocol", "songs")
        late = forked.run(tmp_path / "late", *words)
        reached(files, "songs.import.0")
        until(lambda: len(live(new)) == 2, "another worker")
        (files / "songs.import.0.hold").unlink()
        assert (command.exit_code(), late.exit_code()) == (1, 1)
        assert f"worker {victim}" in command.text
        assert "RUNTIME_STATE_WORKER_LOST" in late.text
        for kind in ("seats", "songs"):
            nothing_is_left(new, kind)

        # Over the public port any of them is asked, and one of them is late.
        with old.asked() as client:
            offer = client.offer("spoons", NONCE, SOURCE, TARGET, 10_000)
        body = {**offer, "nonce": NONCE, "timeoutMs": 10_000}
        stopped = max(live(new))
        os.kill(stopped, signal.SIGSTOP)
        with suppress(httpx.TimeoutException):  # it may be asked that one
            begun(new, body)
        os.kill(stopped, signal.SIGCONT)
        assert {begun(new, body)["duplicate"] for _ in range(20)} == {True}
        until(lambda: everyone_says(new, NONCE)[0]["status"] != "pending", "an end")
        (answer,) = everyone_says(new, NONCE)
        assert (answer["status"], answer["cursor"]) == ("acknowledged", f"w-{old.pid}")
        assert names(new, "spoons", 2) == sorted(NAMES)
        token = offer["source"]["authorization"].removeprefix("Bearer ")
        assert token not in new.err.text + old.text
        written = [path.read_text() for path in runtime.rglob("*.json")]
        assert any(NONCE in text for text in written)
        assert not any(token in text for text in written)


def test_new_workers_are_killed_with_what_the_old_release_has_noted(
    tmp_path: Path, runtime: Path, files: Path, single: Serving, forked: Nursery
) -> None:
    old = single
    with sharing(tmp_path, runtime, "new", 2) as new:
        for name in NAMES:
            old.get(f"/arrive/{name}")
        drain(old)

        # It is the one that carries it out, and nobody asks what has become of it.
        (files / "shares.import.0.hold").touch()
        (files / "carrier.kill").touch()
        words = between(old, new, "--protocol", "shares")
        command = forked.run(tmp_path / "command", *words)
        reached(files, "shares.import.0")
        command.kill()
        carrier = int((files / "carrier").read_text())
        (other,) = set(live(new)) - {carrier}
        (files / "shares.import.0.hold").unlink()
        until(lambda: carrier not in live(new), "a kill")
        until(lambda: heard_by(new, other)[1:] == ["discard"], "it is undone")
        refused = drainmw("resume", "--control", str(old.control))
        assert "RUNTIME_STATE_HANDED_OVER" in refused.stderr
        failed = drainmw(*words)
        assert failed.exit_code == 1
        assert "can be resumed" in failed.stderr
        resume(old)
        drain(old)

        # A share is lost, which is seen before the old release is detached.
        until(lambda: len(live(new)) == 2, "another worker")
        words = between(old, new, "--protocol", "seats")
        assert drainmw(*words).exit_code == 0
        os.kill(victim := max(live(new)), signal.SIGKILL)
        until(lambda: victim not in live(new), "a kill")
        failed = drainmw(*words, "--detach")
        assert failed.exit_code == 1
        assert f"worker {victim} has ended, and with it a share" in failed.stderr
        assert drainmw(*words, "--discard").exit_code == 0
        assert names(new, "seats", len(live(new))) == []
        resume(old)


def heard_by(new: Served, pid: int) -> list[str]:
    """What that worker has heard of shares."""
    while (answer := new.get("/who").json())["pid"] != pid:
        pass
    return list(answer["heard"]["shares"])


def test_workers_of_any_server_hand_over(tmp_path: Path, runtime: Path) -> None:
    with ExitStack() as started:
        found = []
        for name in ("uvicorn", "gunicorn-asgi"):
            crew = next(crew for crew in CREWS if crew.kind.name == name)
            needs(crew)
            folder = tmp_path / name
            folder.mkdir()
            crowded = crowd(crew, folder, runtime, group=name, app=APP, whole=False)
            found.append(started.enter_context(crowded))
        for release in found:
            release.server.until(release.is_up)
        old, new = (release.server for release in found)
        for name in NAMES:
            old.get(f"/arrive/{name}")
        assert old.outcome(old.begin())["status"] == "drained"
        done = drainmw(*words_of(old, new, tmp_path), "--protocol", "shares")
        assert done.exit_code == 0, done.output
        came: dict[str, list[str]] = {}
        while len(came) < 4:
            answer = new.get("/who").json()
            came[answer["pid"]] = answer["here"]["shares"]
        assert sorted(n for names in came.values() for n in names) == sorted(NAMES)


def words_of(old: Server, new: Server, folder: Path) -> list[str]:
    words = ["handoff"]
    for flag, server in (("--from", old), ("--to", new)):
        (file := folder / f"{server.port}").write_text(f"{server.token}\n")
        words += [flag, f"http://127.0.0.1:{server.port}", f"{flag}-token-file"]
        words.append(str(file))
    return words


def begun(new: Served, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(
        f"{new.address}{STATE_BEGIN_PATH}",
        json=body,
        headers=AUTHORIZED,
        timeout=1,
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def nothing_is_left(new: Served, kind: str) -> None:
    until(lambda: names(new, kind, 2) == [], "nothing left")
    for one in heard(new, kind, 2):
        assert one == [] or one[1:] == ["discard"]


def everyone_says(new: Served, nonce: str) -> list[dict[str, Any]]:
    """The different answers to a status, of 20 connections."""
    answers = [
        new.get(f"{STATE_STATUS_PATH}?nonce={nonce}", headers=AUTHORIZED)
        for _ in range(20)
    ]
    return [json.loads(text) for text in sorted({a.text for a in answers})]


def test_a_parent_that_nobody_has_asked_knows_its_workers(
    tmp_path: Path, runtime: Path
) -> None:
    """The first question to it may be about state."""
    folder = tmp_path / "parent"
    folder.mkdir()
    variables = {"DRAINMW_RUNTIME_DIR": str(runtime)}
    with served(folder, "--workers", "2", app=APP, environment=variables) as release:
        release.wait_for_event("serving")
        with release.asked() as client:
            protocols = [a["protocol"] for a in client.handoffs()["adapters"]]
    assert "shares" in protocols
