"""A `kill -9` at every step of a handoff: of either release, or of the command.

Whoever is left owns the state alone, or a fresh release can have it under the same
nonce; and no process imports it twice. What has not left a process that is killed
is lost with it, and then the new release has failed and holds nothing.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import Child, Nursery, Serving, nursery
from tests.processes import drainmw, until

APP = "tests.kept_app:app"
NAMES = ["ann", "bob"]

HOLDS = {"seal": "old", "export": "old", "import": "new", "imported": "new"}
"""Steps of an adapter, and in which release it stops there."""

EVENTS = {
    "sealed": "old.state sealed",
    "begun": "new.handoff begun",
    "fetched": "old.state exported",
    "noted": "old.handoff acknowledged",
    "acknowledged": "new.handoff acknowledged",
    "detached": "old.drain detached",
}
"""Moments that a release logs, and which kill who is to be killed at once."""

MOMENTS = (
    *("seal", "export", "sealed", "begun", "fetched"),
    *("import", "imported", "noted", "acknowledged", "detached", "confirm"),
)
LEFT = MOMENTS.index("import")
"""From then on the state has left the old release."""


@pytest.fixture(scope="module")
def forked() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


class Stage:
    """Two releases, and what happens to them."""

    def __init__(self, forked: Nursery, files: Path) -> None:
        self.forked = forked
        self.files = files
        self.releases: dict[str, Serving] = {}
        self.start("old", KEPT_HELD=" ".join(NAMES))
        self.start("new")
        self.nonce = ""

    def start(self, name: str, **environment: str) -> Serving:
        environment |= {"KEPT_NAME": name, "KEPT_FILES": str(self.files)}
        release = self.forked.serve(self.files / name, APP, **environment)
        self.releases[name] = release
        self.write(f"{name}.pid", str(release.pid))
        return release

    def write(self, name: str, text: str = "") -> None:
        (self.files / name).write_text(text)

    def hold(self, step: str) -> None:
        self.write(f"{step}.hold")

    def go(self, step: str) -> None:
        (self.files / f"{step}.hold").unlink(missing_ok=True)

    def until_at(self, step: str, times: int = 1) -> None:
        file = self.files / f"{step}.reached"
        until(lambda: file.exists() and file.stat().st_size >= times, step)

    def handoff(self, *options: str, to: str = "new") -> list[str]:
        releases = self.releases
        targets = ("--from", str(releases["old"].control))
        return ["handoff", *targets, "--to", str(releases[to].control), *options]

    def drain(self) -> None:
        for release in self.releases.values():
            release.until_event("serving")
        done = drainmw(
            "begin", "--wait", "--control", str(self.releases["old"].control)
        )
        assert done.exit_code == 0, done.output

    def told_by(self, name: str) -> list[dict[str, Any]]:
        """What that process has written into the journal."""
        pid = self.releases[name].pid
        journal = self.files / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        told = [json.loads(line) for line in lines]
        return [entry for entry in told if entry["pid"] == pid]

    def did(self, name: str) -> list[str]:
        return [entry["what"] for entry in self.told_by(name)]

    def taken(self, name: str) -> list[tuple[str, bool]]:
        """The status of each handoff of that new release, and if it is provisional."""
        with self.releases[name].asked() as client:
            taken = client.handoffs()["taken"]
        return [(one["status"], one["provisional"]) for one in taken]

    def names(self, name: str) -> list[str]:
        return list(self.releases[name].get("/names").json())

    def resume(self) -> int:
        """The exit code of a resume of the old release."""
        return drainmw(
            "resume", "--control", str(self.releases["old"].control)
        ).exit_code


@pytest.fixture
def stage(forked: Nursery, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(forked, tmp_path)
    stage.drain()
    yield stage
    for child in forked.end_all():
        for trouble in ("Traceback", "ResourceWarning", "never retrieved"):
            assert trouble not in child.text or not isinstance(child, Serving)


def interrupted(stage: Stage, victim: str, moment: str) -> Child:
    """A handoff during which somebody is killed; the command, which has ended."""
    if moment in EVENTS:
        stage.write(f"{EVENTS[moment]}.kill", victim)
    stage.hold("old.seal")
    command = stage.forked.run(stage.files / "command", *stage.handoff("--detach"))
    stage.write("command.pid", str(command.pid))
    stage.until_at("old.seal")
    killed = stage.releases.get(victim, command)
    if moment in EVENTS:
        stage.go("old.seal")
        until(lambda: not killed.lives, "a kill")
    else:
        step = f"{HOLDS.get(moment, 'new')}.{moment}"
        stage.hold(step)
        if moment != "seal":
            stage.go("old.seal")
        stage.until_at(step)
        killed.kill()
        stage.go(step)
    (stage.files / f"{EVENTS.get(moment)}.kill").unlink(missing_ok=True)
    if victim == "new":
        command.end()  # it would ask five seconds for the status
    until(lambda: not command.lives, "the end of the command")
    return command


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_command_is_killed_and_run_again(stage: Stage, moment: str) -> None:
    interrupted(stage, "command", moment)
    done = drainmw(*stage.handoff("--detach"))
    assert done.exit_code == 0, done.output
    assert stage.did("new") == ["import", "confirm"]
    assert (stage.names("new"), stage.taken("new")) == (
        NAMES,
        [("acknowledged", False)],
    )
    assert stage.resume() == 4


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_new_release_is_killed_and_a_fresh_one_has_it(
    stage: Stage, moment: str
) -> None:
    interrupted(stage, "new", moment)
    assert stage.did("new").count("import") <= 1
    stage.start("fresh").until_event("serving")
    done = drainmw(*stage.handoff("--detach", "--again", to="fresh"))
    assert done.exit_code == 0, done.output
    assert stage.did("fresh") == ["import", "confirm"]
    assert (stage.names("fresh"), stage.resume()) == (NAMES, 4)
    nonces = {entry["nonce"] for n in ("new", "fresh") for entry in stage.told_by(n)}
    assert len(nonces) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_old_release_is_killed(stage: Stage, moment: str) -> None:
    interrupted(stage, "old", moment)
    is_lost = MOMENTS.index(moment) < LEFT
    if is_lost:
        until(lambda: all(s == "failed" for s, _ in stage.taken("new")), "a failure")
        assert (stage.names("new"), stage.did("new")) == ([], [])
    else:
        done = ("acknowledged", False)
        until(lambda: stage.taken("new") == [done], "that it is confirmed")
        until(lambda: stage.did("new") == ["import", "confirm"], "that it is told")
        assert stage.names("new") == NAMES
    again = stage.forked.run(stage.files / "again", *stage.handoff("--detach"))
    assert again.exit_code() == (3 if is_lost else 0), again.text
    assert ("the new release owns the state" in again.text) is not is_lost


def test_a_release_that_lives_is_not_replaced(stage: Stage) -> None:
    """Two releases that both have it would be worse than none."""
    assert drainmw(*stage.handoff()).exit_code == 0
    stage.start("fresh").until_event("serving")
    refused = drainmw(*stage.handoff("--again", to="fresh"))
    assert refused.exit_code == 4
    assert "RUNTIME_STATE_HANDED_OVER" in refused.stderr
    assert (stage.names("fresh"), stage.did("fresh")) == ([], [])

    assert drainmw(*stage.handoff("--discard")).exit_code == 0
    assert drainmw(*stage.handoff("--again", to="fresh")).exit_code == 0
    late = drainmw(*stage.handoff("--discard"))
    assert late.exit_code == 4
    assert "RUNTIME_STATE_HANDED_OVER" in late.stderr
    assert (stage.names("fresh"), stage.resume()) == (NAMES, 4)
    assert stage.did("new") == ["import", "discard"]


@pytest.mark.parametrize("nonce", ["the same", "another"])
def test_what_is_on_its_way_to_one_release_goes_to_no_other(
    stage: Stage, nonce: str
) -> None:
    """Should the old one die now, both of them would own it."""
    stage.hold("new.import")
    first = stage.forked.run(stage.files / "first", *stage.handoff("--nonce", "n" * 43))
    stage.until_at("new.import")
    stage.start("fresh").until_event("serving")
    named = ("--nonce", ("n" if nonce == "the same" else "m") * 43)
    second = drainmw(*stage.handoff(*named, to="fresh"))
    assert second.exit_code == 4
    assert "is on its way in handoff nnn" in second.stderr
    stage.releases["old"].kill()
    stage.go("new.import")
    until(lambda: stage.taken("new") == [("acknowledged", False)], "a proof")
    assert (stage.taken("fresh"), stage.names("fresh")) == ([], [])
    first.end()


def test_a_release_that_fails_lets_another_one_have_it_at_once(stage: Stage) -> None:
    stage.write("new.import.fail")
    first = drainmw(*stage.handoff())
    assert first.exit_code == 1
    assert "no room; the old release keeps its state" in first.stderr
    stage.start("fresh").until_event("serving")
    assert drainmw(*stage.handoff("--detach", to="fresh")).exit_code == 0
    assert (stage.names("fresh"), stage.names("new")) == (NAMES, [])


def test_two_commands_at_once_are_one_handoff(stage: Stage) -> None:
    stage.hold("old.seal")
    commands = [
        stage.forked.run(stage.files / name, *stage.handoff("--detach"))
        for name in ("one", "two")
    ]
    stage.until_at("old.seal", times=2)
    stage.go("old.seal")
    assert [command.exit_code() for command in commands] == [0, 0]
    assert stage.did("new") == ["import", "confirm"]


def test_a_resume_before_it_is_noted_leaves_nothing_in_the_new_release(
    stage: Stage,
) -> None:
    stage.hold("new.import")
    command = stage.forked.run(stage.files / "command", *stage.handoff("--detach"))
    stage.until_at("new.import")
    assert stage.resume() == 0
    stage.go("new.import")
    assert command.exit_code() == 1
    assert stage.taken("new") == [("failed", False)]
    assert (stage.names("new"), stage.did("new")) == ([], ["import", "discard"])
    assert (stage.names("old"), stage.did("old")) == (NAMES, [])


def test_nothing_is_undone_while_it_is_imported(stage: Stage) -> None:
    stage.hold("new.import")
    command = stage.forked.run(stage.files / "command", *stage.handoff("--detach"))
    stage.until_at("new.import")
    refused = drainmw(*stage.handoff("--discard"))
    assert (refused.exit_code, stage.taken("new")) == (4, [("pending", False)])
    stage.go("new.import")
    assert command.exit_code() == 0
    assert stage.did("new") == ["import", "confirm"]
    refused = drainmw(*stage.handoff("--discard"))
    assert (refused.exit_code, stage.names("new")) == (4, NAMES)


def test_what_is_detached_before_it_has_arrived_is_not_lost(stage: Stage) -> None:
    stage.hold("new.import")
    command = stage.forked.run(stage.files / "command", *stage.handoff())
    stage.until_at("new.import")
    old = ("--control", str(stage.releases["old"].control))
    assert drainmw("detach", "--force", *old).exit_code == 0
    stage.releases["new"].kill()
    command.end()
    stage.start("fresh").until_event("serving")
    done = drainmw(*stage.handoff("--detach", "--again", to="fresh"))
    assert done.exit_code == 0, done.output
    assert (stage.names("fresh"), stage.did("fresh")) == (NAMES, ["import", "confirm"])


@pytest.mark.parametrize("moment", ["import", "acknowledged"])
@pytest.mark.parametrize("who", ["old", "new"])
def test_a_release_that_is_stopped_meanwhile_goes_in_peace(
    stage: Stage, who: str, moment: str
) -> None:
    """By SIGTERM: it ends well, and what it has begun has not."""
    if moment == "import":
        stage.hold("new.import")
        command = stage.forked.run(stage.files / "command", *stage.handoff())
        stage.until_at("new.import")
    else:
        command = stage.forked.run(stage.files / "command", *stage.handoff())
        assert command.exit_code() == 0
    stage.releases[who].signal(signal.SIGTERM)
    assert stage.releases[who].exit_code() == 0
    stage.go("new.import")
    if who == "old":
        until(lambda: stage.did("new") == ["import", "confirm"], "that it is proven")
        assert stage.names("new") == NAMES
        return
    command.end()
    stage.start("fresh").until_event("serving")
    done = drainmw(*stage.handoff("--detach", "--again", to="fresh"))
    assert done.exit_code == 0, done.output
    assert (stage.names("fresh"), stage.did("fresh")) == (NAMES, ["import", "confirm"])
