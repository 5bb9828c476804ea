"""Processes that share a directory, and nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drainmw.core.drain import Lifecycle
from drainmw.core.handoff import Recipient
from drainmw.core.roster import Worker
from drainmw.errors import AlreadyStarted, GroupError, SettingsError, Superseded
from drainmw.group import Group
from drainmw.settings import load
from drainmw.supervisor import (
    Supervisor,
    itself,
    may_be_one_of_several,
    runtime_directory,
    supervisor,
)
from tests import peer as told
from tests.peer import Peer, peer
from tests.processes import until
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    OTHER_REVISION,
    SOURCE,
    TOKEN,
    begin_request,
)
from tests.test_state_begin import begin as handoff_request

IDLE = Worker(7, 1.0, 2.0, 3, settled=True, counts=(0, 0, 0, 0))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private one with a short path: a socket's has 108 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="dr"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def group(directory: Path) -> Iterator[Group]:
    group = Group(directory, itself())
    yield group
    group.leave()


@pytest.fixture
def sibling(directory: Path, group: Group) -> Iterator[Peer]:
    with peer(directory, itself()) as sibling:
        yield sibling


# The record


def test_a_new_group_serves(group: Group) -> None:
    assert told.phase(group) == ("serving", 1, 0)


def test_a_begin_closes_the_gate_of_all_at_once(group: Group, sibling: Peer) -> None:
    told.begin(group)
    assert sibling.do(told.gate) == 2
    assert sibling.do(told.phase) == ("draining", 2, 2)


def test_a_resume_opens_the_gate_of_all(group: Group, sibling: Peer) -> None:
    sibling.do(told.begin)
    assert told.phase(group) == ("draining", 2, 2)
    told.resume(group)
    assert sibling.do(told.gate) == 0
    assert sibling.do(told.phase) == ("serving", 3, 0)


def test_a_transition_that_is_refused_changes_nothing(
    group: Group, sibling: Peer
) -> None:
    told.begin(group)
    with pytest.raises(AlreadyStarted):
        sibling.do(told.begin, OTHER_NONCE)
    assert told.phase(group) == ("draining", 2, 2)


def test_a_transition_that_changes_nothing_is_no_new_generation(group: Group) -> None:
    assert told.begin(group) is False
    assert told.begin(group) is True
    assert told.phase(group) == ("draining", 2, 2)


def test_a_transition_of_an_older_generation_is_dropped(
    group: Group, sibling: Peer
) -> None:
    told.begin(group)
    generation, _ = group.read()
    sibling.do(told.resume)
    with pytest.raises(Superseded):
        group.transact(lambda life: life.fail("late", 0.0), only_at=generation)
    assert told.phase(group) == ("serving", 3, 0)


def test_a_gate_that_was_not_written_is_repaired_by_who_looks(
    group: Group, sibling: Peer
) -> None:
    sibling.start(told.die_before_the_gate)
    until(lambda: "draining" in (group.path / "record.json").read_text(), "a begin")
    assert group.gate[0] == 0
    assert told.phase(group) == ("draining", 2, 2)


def test_a_record_of_the_same_inode_time_and_size_is_noticed(
    group: Group, sibling: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.begin(group)
    group.read()
    same = (group.path / "record.json").stat()
    sibling.do(told.resume)
    monkeypatch.setattr(os, "stat", lambda *_args, **_options: same)
    assert told.phase(group) == ("serving", 3, 0)


def test_two_that_begin_and_resume_all_the_time_never_disagree(
    group: Group, sibling: Peer
) -> None:
    sibling.start(told.begin_many_times, 100)
    mine = told.begin_many_times(group, 100)
    theirs = sibling._wire.recv()
    phase, generation, gate = told.phase(group)
    assert (phase, gate) == ("serving", 0)
    assert generation == 1 + 2 * (mine + theirs)
    assert sibling.do(told.phase) == (phase, generation, gate)


def test_a_lock_that_is_held_too_long_is_given_up(
    group: Group, sibling: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.group.LOCK_PATIENCE", 0.05)
    sibling.start(told.keep_the_lock, 0.5)
    until(lambda: not _lock_is_free(group), "a lock")
    with pytest.raises(GroupError, match="lock of the group"):
        told.begin(group)
    assert group.gate[0] == 0
    sibling._wire.recv()
    assert told.begin(group) is False


def test_who_dies_with_the_lock_lets_go_of_it(group: Group, sibling: Peer) -> None:
    sibling.start(told.keep_the_lock, 60)
    until(lambda: not _lock_is_free(group), "a lock")
    sibling.kill()
    assert told.begin(group) is False


def _lock_is_free(group: Group) -> bool:
    code = (
        "import fcntl, sys\nwith open(sys.argv[1], 'r+b') as f:\n"
        " fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    command = [sys.executable, "-c", code, str(group.path / "lock")]
    return subprocess.run(command, capture_output=True).returncode == 0


# Slots


def test_a_word_is_read_as_it_was_published(group: Group, sibling: Peer) -> None:
    word = replace(
        IDLE,
        counts=(1, None, 2**40, 0),
        valid=False,
        who="redis, ü",
        error="no answer",
        fatal=True,
        admitted=5,
        refused=6,
        last_admitted=7.5,
        last_refused=8.5,
    )
    sibling.do(told.publish, word)
    assert group.others() == [word]


def test_a_count_of_any_size_and_a_long_name_can_be_published(group: Group) -> None:
    with peer(group.path.parent, itself()) as sibling:
        sibling.do(told.publish, replace(IDLE, counts=(2**80, 0, 0, 0), who="é" * 99))
        (found,) = group.others()
    assert found.counts == (2**63 - 1, 0, 0, 0)
    assert found.who == "é" * 32


def test_a_newborn_is_there_by_its_pid_and_has_not_spoken(
    group: Group, sibling: Peer
) -> None:
    (found,) = group.others()
    assert (found.pid, found.generation) == (sibling.pid, 0)
    assert found.counts == (None, None, None, None)


def test_a_word_is_never_torn(group: Group, sibling: Peer) -> None:
    sibling.start(told.publish_flat_out)
    until(lambda: group.others()[0].generation, "a first word")
    last, read = 0, 0
    for _ in range(20_000):
        (word,) = group.others()
        if word.generation == 0:  # it was being written all the time
            continue
        number = word.generation
        assert word.counts == (number,) * 4
        assert (word.admitted, word.refused) == (number, number)
        assert (word.born, word.last_refused) == (number, number)
        assert (word.who, word.error) == (str(number), str(number))
        assert number >= last
        last, read = number, read + 1
    assert read > 10_000


def test_a_slot_that_stays_half_written_has_not_spoken(
    group: Group, sibling: Peer
) -> None:
    sibling.do(told.publish, IDLE)
    assert group.others()[0].generation == 3
    slot = 64 + 320 * 1
    (sequence,) = struct.unpack_from("<I", group._map, slot)
    struct.pack_into("<I", group._map, slot, sequence + 1)
    (found,) = group.others()
    assert (found.pid, found.generation, found.counts) == (7, 0, (None,) * 4)


# Who lives


def test_who_was_killed_is_gone(group: Group, sibling: Peer) -> None:
    assert len(group.others()) == 1
    sibling.kill()
    until(lambda: group.others() == [], "its end")


def test_a_child_does_not_keep_its_worker_alive(group: Group, sibling: Peer) -> None:
    child = sibling.do(told.fork_a_child)
    sibling.kill()
    try:
        until(lambda: group.others() == [], "its end")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_free_slot_is_taken_again_and_says_nothing_old(
    directory: Path, group: Group
) -> None:
    with peer(directory, itself()) as first:
        first.do(told.publish, replace(IDLE, counts=(3, 0, 0, 0)))
        (group.path / "w1.json").write_text(json.dumps({"blockers": []}))
        first.kill()
        until(lambda: group.others() == [], "its end")
        with peer(directory, itself()) as second:
            (found,) = group.others()
            assert (found.pid, found.generation) == (second.pid, 0)
            assert group.told() == []
            assert not (group.path / "w2.lock").exists()


def test_two_who_look_at_once_see_the_dead_as_dead(
    directory: Path, group: Group
) -> None:
    with peer(directory, itself()) as dead, peer(directory, itself()) as looker:
        dead.kill()
        until(lambda: len(group.others()) == 1, "its end")
        looker.start(_look, 3000)
        seen = {len(group.others()) for _ in range(3000)}
        assert seen == {1}
        assert looker._wire.recv() == {1}


def _look(group: Group, times: int) -> set[int]:
    return {len(group.others()) for _ in range(times)}


def test_a_second_drain_of_one_process_is_refused(
    directory: Path, group: Group
) -> None:
    with pytest.raises(GroupError, match="needs a name of its own"):
        Group(directory, itself())
    Group(directory, itself(), name="other").leave()
    with peer(directory, itself()) as sibling:
        assert len(sibling.do(told.others)) == 1  # our lock has not been let go


def test_a_group_that_was_left_can_be_joined_again(directory: Path) -> None:
    for _ in range(2):
        Group(directory, itself()).leave()


def test_a_full_group_takes_nobody_in(
    directory: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.slots.WORKERS_MAXIMUM", 0)
    with pytest.raises(GroupError, match="there are 0 workers already"):
        Group(directory, itself(), name="small")


# Wake-ups


def test_a_hint_says_who_asks_and_for_what(group: Group, sibling: Peer) -> None:
    sibling.do(_wake, "ask")
    sibling.do(_wake, "look")
    assert group.hints() == {"w1.sock": "ask"}
    sibling.do(_wake, "tell")
    sibling.do(_wake, "ask")
    assert group.hints() == {"w1.sock": "tell"}
    assert group.hints() == {}


def test_a_full_queue_counts_as_sent(group: Group, sibling: Peer) -> None:
    began = time.monotonic()
    for _ in range(2000):
        group.wake("ask")
    assert time.monotonic() - began < 5
    assert sibling.do(_hints) == {"w0.sock": "ask"}


def test_nobody_there_to_be_woken_is_no_error(group: Group, sibling: Peer) -> None:
    (group.path / "w1.sock").unlink()
    group.wake()
    sibling.kill()
    until(lambda: group.others() == [], "its end")
    group.wake()
    group.answer("w1.sock")


def _wake(group: Group, hint: str) -> None:
    group.wake(hint)  # type: ignore[arg-type]  # one of them


def _hints(group: Group) -> dict[str, str]:
    return group.hints()


def test_blockers_and_warnings_are_told(group: Group, sibling: Peer) -> None:
    sibling.do(_tell)
    (told,) = group.told()
    assert [blocker["kind"] for blocker in told["blockers"]] == ["http"]
    assert told["warnings"] == ["mend me"]


@pytest.mark.parametrize(
    ("written", "read"),
    [('{"warnings": ["mend me"]}', [["mend me"]]), ("[1]", []), ("{", [])],
)
def test_what_a_sibling_of_another_version_tells_is_read_as_far_as_it_goes(
    group: Group, sibling: Peer, written: str, read: list[list[str]]
) -> None:
    sibling.do(_tell)
    (group.path / "w1.json").write_text(written)
    assert [told["warnings"] for told in group.told()] == read
    assert not any(told["sources"] or told["blockers"] for told in group.told())


def _tell(group: Group) -> None:
    work = {"kind": "http"}
    group.tell({"blockers": [work], "warnings": ["mend me"], "sources": []})  # type: ignore[list-item]  # enough here


# An observer


def test_an_observer_needs_a_worker_and_may_try_again(directory: Path) -> None:
    for _ in range(2):
        with pytest.raises(GroupError, match="no worker has come up yet"):
            Group(directory, itself(), observer=True)
    with peer(directory, itself()) as worker:
        observer = Group(directory, itself(), observer=True)
        assert [w.pid for w in observer.others()] == [worker.pid]
        assert worker.do(told.others) == []
        told.begin(observer)
        assert worker.do(told.phase) == ("draining", 2, 2)
        worker.do(_wake, "look")
        assert observer.socket.recv(16) == b"look"
        observer.leave()


# Which processes are one


def test_another_revision_is_refused_and_told_what_to_do(
    directory: Path,
) -> None:
    first = Group(directory, itself(), revision=SOURCE)
    with pytest.raises(GroupError, match="DRAINMW_GROUP") as refused:
        with peer(directory, itself(), revision=OTHER_REVISION):
            pass
    assert SOURCE in str(refused.value)
    assert OTHER_REVISION in str(refused.value)
    with peer(directory, itself(), revision=SOURCE):
        assert len(first.others()) == 1
    first.leave()


def test_a_name_splits_and_never_joins(directory: Path, group: Group) -> None:
    with peer(directory, itself(), name="other") as other:
        told.begin(group)
        assert other.do(told.phase) == ("serving", 1, 0)
        assert group.others() == []


def test_another_supervisor_never_inherits(directory: Path, group: Group) -> None:
    told.begin(group)
    earlier = replace(itself(), started="1")
    with peer(directory, earlier) as stranger:
        assert stranger.do(told.phase) == ("serving", 1, 0)


def test_the_same_supervisor_always_inherits(directory: Path) -> None:
    with peer(directory, itself()) as first:
        first.do(told.begin)
    with peer(directory, itself()) as second:
        assert second.do(told.phase) == ("draining", 2, 2)
        second.do(told.resume)
    with peer(directory, itself()) as third:
        assert third.do(told.phase) == ("serving", 3, 0)


def test_what_is_left_of_a_supervisor_that_is_gone_is_swept(directory: Path) -> None:
    gone = replace(itself(), started="1")
    with peer(directory, gone) as survivor:
        with peer(directory, itself(), name="first"):
            assert survivor.do(told.phase)[0] == "serving"
        assert (directory / f"group-{gone.pid}-1").exists()  # somebody lives in it
    with peer(directory, itself(), name="second"):
        assert sorted(path.name for path in directory.iterdir()) == [
            f"group-{gone.pid}-{itself().started}-first",  # its supervisor lives
            f"group-{gone.pid}-{itself().started}-second",
        ]


def test_a_group_of_our_own_is_not_swept_by_us(directory: Path) -> None:
    gone = replace(itself(), started="1")
    ours = Group(directory, gone)
    Group(directory, itself(), name="other").leave()
    with peer(directory, gone) as sibling:
        assert len(sibling.do(told.others)) == 1
    ours.leave()


def test_this_process_is_alone() -> None:
    assert not may_be_one_of_several()
    assert supervisor({}) is None


def test_a_worker_of_gunicorn_is_one_of_several() -> None:
    found = supervisor({"SERVER_SOFTWARE": "gunicorn/27.0.1"})
    assert found is not None
    assert (found.pid, found.lives) == (os.getppid(), True)
    assert supervisor({"SERVER_SOFTWARE": "Werkzeug/3.0"}) is None


def test_a_child_of_multiprocessing_is_one_of_several() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(supervisor) == itself()


def test_a_reused_pid_is_another_supervisor() -> None:
    assert itself().lives
    assert not replace(itself(), started="1").lives
    assert not Supervisor(2**22 - 1, itself().started).lives


# The place


def test_an_empty_map_is_stamped_and_one_of_another_version_refused(
    directory: Path,
) -> None:
    first = Group(directory, itself())
    place, size = first.path / "group", (first.path / "group").stat().st_size
    assert place.read_bytes()[4:12] == b"DRMW\x03\x00\x00\x00"
    first.leave()
    place.write_bytes(b"\0\0\0\0DRMW\x04\0\0\0".ljust(size, b"\0"))
    with pytest.raises(GroupError, match="is of version 4, this drainmw makes 3"):
        Group(directory, itself())
    place.write_bytes(b"")
    Group(directory, itself()).leave()
    assert place.read_bytes()[4:12] == b"DRMW\x03\x00\x00\x00"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_enter_is_refused(
    directory: Path, mode: int
) -> None:
    directory.chmod(mode)
    with pytest.raises(SettingsError, match="must be of mode 0700"):
        Group(directory, itself())


def test_a_link_in_the_place_of_the_directory_is_refused(directory: Path) -> None:
    (directory / "real").mkdir(mode=0o700)
    (directory / "link").symlink_to("real")
    with pytest.raises(SettingsError, match="not a link"):
        Group(directory / "link", itself())


def test_a_link_in_the_place_of_the_group_is_refused(directory: Path) -> None:
    (directory / "real").mkdir(mode=0o700)
    boss = itself()
    (directory / f"group-{boss.pid}-{boss.started}").symlink_to("real")
    with pytest.raises(SettingsError, match="not a link"):
        Group(directory, boss)


@pytest.mark.parametrize("name", ["group", "lock", "w0.lock"])
def test_a_link_in_the_place_of_a_file_is_refused(directory: Path, name: str) -> None:
    boss = itself()
    place = directory / f"group-{boss.pid}-{boss.started}"
    place.mkdir(mode=0o700)
    (directory / "elsewhere").write_bytes(b"")
    (place / name).symlink_to(directory / "elsewhere")
    with pytest.raises(GroupError, match=name):
        Group(directory, boss)
    assert (directory / "elsewhere").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_directory_of_another_owner_is_refused(directory: Path) -> None:
    os.chown(directory, 65534, 65534)
    try:
        with pytest.raises(SettingsError, match="must belong to this user"):
            Group(directory, itself())
    finally:
        os.chown(directory, os.geteuid(), os.getegid())


def test_a_path_too_long_for_a_socket_is_a_clear_error(directory: Path) -> None:
    deep = directory / ("d" * 90)
    with pytest.raises(GroupError, match="too long"):
        Group(deep, itself())


def test_a_record_that_cannot_be_read_is_no_group(group: Group, sibling: Peer) -> None:
    (group.path / "record.json").write_text("{")
    for act in (told.phase, told.begin):
        with pytest.raises(GroupError, match="cannot be read"):
            sibling.do(act)
    (group.path / "record.json").unlink()
    with pytest.raises(GroupError, match="is gone"):
        sibling.do(told.phase)
    with pytest.raises(GroupError, match="cannot be read"):
        told.begin(group)


def test_where_groups_live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_directory(Path("/run/app")) == Path("/run/app")
    assert runtime_directory(None) == tmp_path / "drainmw"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    expected = Path(tempfile.gettempdir()) / f"drainmw-{os.geteuid()}"
    assert runtime_directory(None) == expected


def test_what_a_lifecycle_was_comes_back_from_its_snapshot(group: Group) -> None:
    told.begin(group)
    group.transact(lambda life: life.fail("boom", 5.0))
    told.resume(group)
    told.begin(group, OTHER_NONCE)
    group.transact(lambda life: life.close())
    _, kept = group.read()
    _, loaded = group._load()
    assert loaded.snapshot() == kept.snapshot()
    assert (loaded.epoch, loaded.gate, loaded.phase) == (3, 3, "draining")
    assert loaded.run is not None
    assert loaded.run.request == begin_request(OTHER_NONCE)
    with pytest.raises(Exception, match="resumed"):
        loaded.begin(begin_request(NONCE), 0.0)


# What is shared of state


def test_members_are_in_one_order_for_all_and_each_has_an_address(
    group: Group, sibling: Peer
) -> None:
    assert group.members() == [os.getpid(), sibling.pid]
    assert sibling.do(_members) == [os.getpid(), sibling.pid]
    assert group.addresses() == {sibling.pid: group.path / "s1.sock"}
    assert sibling.do(_addresses) == {os.getpid(): group.own_address}
    sibling.kill()
    until(lambda: group.members() == [os.getpid()], "it is gone")
    assert group.addresses() == {}


def test_an_observer_is_no_member_and_sees_them_all(
    directory: Path, group: Group
) -> None:
    with peer(directory, itself(), observer=True) as observer:
        assert group.members() == [os.getpid()]
        assert observer.do(_members) == [os.getpid()]
        assert observer.do(_addresses) == {os.getpid(): group.own_address}
        assert observer.do(_own_address) is None


def test_what_was_kept_is_there_until_it_is_forgotten(group: Group) -> None:
    """For its owner alone."""
    group.keep("1-a", b"one")
    group.keep("1-a", b"two")
    group.keep("1-b", b"")
    assert (group.kept("1-a"), group.kept("1-b")) == (b"two", b"")
    modes = {stat.S_IMODE(p.stat().st_mode) for p in group.path.glob("kept*")}
    assert modes == {0o600}
    group.forget()
    assert list(group.path.glob("kept*")) == []
    for name in ("1-a", "1-b", "2-a"):
        with pytest.raises(GroupError, match=f"kept-{name}: No such file"):
            group.kept(name)


def test_nothing_is_kept_through_a_link(group: Group, directory: Path) -> None:
    (group.path / f"kept.{os.getpid()}").symlink_to(directory / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        group.keep("1-a", b"one")
    assert not (directory / "elsewhere").exists()


def _members(group: Group) -> list[int]:
    return group.members()


def _addresses(group: Group) -> dict[int, Path]:
    return group.addresses()


def _own_address(group: Group) -> Path | None:
    return group.own_address


def test_a_record_holds_both_sides_of_a_handoff_and_no_token(group: Group) -> None:
    """Whoever comes up reads what was given away, and what was taken over."""

    def act(life: Lifecycle) -> None:
        life.handoffs.begin(handoff_request(), 1.0, os.getpid())
        life.begin(begin_request(), 1.0)
        life.close()
        life.conclude(dict.fromkeys(("http", "websocket", "jobs", "schedules"), 0), 2.0)
        life.seal(NONCE)
        life.acknowledge(1, "rooms/v1", Recipient(OTHER_NONCE))

    group.transact(act)
    written = (group.path / "record.json").read_text()
    assert TOKEN not in written
    _, loaded = group._load()
    assert loaded.run is not None
    assert loaded.run.sealed
    assert [g.nonce for g in loaded.run.acknowledged] == [OTHER_NONCE]
    assert loaded.handoffs.begin(handoff_request(), 9.0, 1) is True


def test_sockets_are_there_for_the_kernel_to_wake(group: Group) -> None:
    assert group.fileno() == group.socket.fileno()
    assert group.socket.type == socket.SOCK_DGRAM


# Its settings


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é", "web\n"])
def test_a_group_name_that_is_none_is_refused_at_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMW_GROUP", name)
    with pytest.raises(SettingsError, match="DRAINMW_GROUP must be 1 to 64 of"):
        load()
    with pytest.raises(SettingsError, match=r"^group must be 1 to 64 of"):
        load(group=name)


@pytest.mark.parametrize("name", ["web", "a.b-c_9", "x" * 64])
def test_a_group_name(name: str) -> None:
    assert load(group=name).group == name


def test_a_runtime_directory_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(SettingsError, match=r"^runtime_dir must be a directory"):
        load(runtime_dir=7)
    assert load(runtime_dir="/run/app").runtime_dir == Path("/run/app")
