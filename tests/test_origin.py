"""Who the old release is, and when it is proven that nobody of it lives any more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainmw.errors import GroupError
from drainmw.origin import identity, is_dead, lives
from drainmw.supervisor import Supervisor, _start_time, itself
from tests.peer import peer
from tests.processes import until
from tests.rig import new_drain

GONE = Supervisor(2**22 - 1, "1")
"""A process that does not run: none has started that early."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private one with a short path: a socket's has 108 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="dr"))
    yield path
    shutil.rmtree(path)


def told(**members: Any) -> dict[str, Any]:
    """What a process has told that has ended since."""
    return identity(GONE) | members


# Who it is


def test_a_process_that_is_alone_names_itself() -> None:
    me = itself()
    named = identity()
    assert (named["pid"], named["started"]) == (me.pid, me.started)
    assert named["group"] is None
    assert named == new_drain().handoffs.identity()


def test_a_group_is_named_by_its_supervisor_and_its_directory(directory: Path) -> None:
    """The directory as everybody finds it."""
    (link := directory / "link").symlink_to(directory)
    named = identity(GONE, link)
    assert (named["pid"], named["started"]) == (GONE.pid, GONE.started)
    assert named["group"] == str(directory.resolve())


def test_where_a_start_cannot_be_told_nobody_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown() -> Supervisor:
        raise GroupError("the start of this process cannot be told")

    monkeypatch.setattr("drainmw.origin.itself", unknown)
    assert identity() == {}
    assert is_dead({}) is False


# That it is dead


def test_a_process_that_lives_is_not_dead() -> None:
    assert is_dead(identity()) is False
    assert is_dead(identity(Supervisor(1, "1"))) is True


def test_a_process_is_dead_once_it_has_ended() -> None:
    """Also before its parent has looked: nothing of it runs."""
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        named = identity(Supervisor(child.pid, str(_start_time(child.pid))))
        assert is_dead(named) is False
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(named) is True
    finally:
        child.kill()
        child.communicate()
    assert is_dead(named) is True


def test_a_pid_that_was_given_again_is_no_proof_of_life() -> None:
    """It is another process that runs under it now."""
    assert is_dead(identity(Supervisor(os.getpid(), "1"))) is True


@pytest.mark.parametrize(
    "host",
    [
        "",
        None,
        "other-boot pid:[1] mnt:[1]",
        5,
    ],
)
def test_elsewhere_nothing_is_proven(host: Any) -> None:
    """A pid of another namespace, or from before a restart, says nothing here."""
    assert is_dead(told()) is True
    assert is_dead(told(host=host)) is False


@pytest.mark.parametrize("what", ["_BOOT", "_NAMESPACES"])
def test_another_start_of_the_machine_and_another_namespace_are_elsewhere(
    monkeypatch: pytest.MonkeyPatch, directory: Path, what: str
) -> None:
    before = told()
    (directory / "boot_id").write_text("another")
    other: Any = {"_BOOT": directory / "boot_id", "_NAMESPACES": ("pid", "net")}
    monkeypatch.setattr(f"drainmw.origin.{what}", other[what])
    assert told()["host"] != before["host"]
    assert is_dead(told()) is True
    assert is_dead(before) is False


def test_without_namespaces_the_name_of_the_host_stands_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drainmw.origin._BOOT", Path("/no/such/file"))
    assert told()["host"] == os.uname().nodename


@pytest.mark.parametrize(
    "members",
    [
        {"pid": None},
        {"pid": "4194303"},
        {"pid": True},
        {"pid": 4194303.0},
        {"pid": 0},
        {"pid": -1},
        {"pid": 2**70},
        {"started": None},
        {"started": 1},
        {"group": 5},
        {"group": ["/tmp"]},
        {"group": ""},
        {"group": "relative/group"},
        {"group": "/etc/hostname"},
        {"group": "/\0"},
    ],
    ids=repr,
)
def test_what_is_not_in_its_form_proves_nothing(members: dict[str, Any]) -> None:
    assert is_dead(told(**members)) is False


@pytest.mark.parametrize("process", [None, {}, {"pid": GONE.pid, "started": "1"}])
def test_who_says_nothing_of_itself_may_live(process: Any) -> None:
    assert is_dead(process) is False


def test_a_process_that_is_hidden_from_here_may_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of another user, where /proc shows everybody their own (proc(5))."""

    def is_not_yours(_pid: int, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", is_not_yours)
    assert is_dead(told()) is False
    assert is_dead(told(pid=os.getppid())) is True  # one that is seen is another one


def test_who_is_of_this_host_lives_until_the_contrary_is_proven() -> None:
    assert lives(identity()) is True
    assert lives(told()) is False
    assert lives(identity() | {"host": "elsewhere"}) is None
    assert lives({}) is None


# Of a group


def test_a_group_lives_as_long_as_one_of_its_workers(directory: Path) -> None:
    """Whose supervisor was killed, and who has not noticed."""
    with peer(directory, GONE) as worker:
        named = identity(GONE, directory / f"group-{GONE.pid}-{GONE.started}")
        assert is_dead(named) is False
        worker.kill()
        until(lambda: is_dead(named), "nobody lives")


def test_a_group_lives_as_long_as_its_supervisor(directory: Path) -> None:
    """It may start workers again."""
    assert is_dead(identity(itself(), directory)) is False
    assert is_dead(identity(GONE, directory)) is True


def test_a_group_that_was_swept_is_dead(directory: Path) -> None:
    """Who has swept it has seen that nobody lived there."""
    assert is_dead(identity(GONE, directory / "gone")) is True


def test_a_group_that_cannot_be_looked_into_may_live(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers may belong to somebody else."""

    def closed(_path: object) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "scandir", closed)
        meanwhile.setattr(os, "listdir", closed)
        assert is_dead(identity(GONE, directory)) is False
