"""The control socket: who can reach it, and what stands in its way."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from drainmw import socketfile
from drainmw.errors import SettingsError
from tests.processes import control_socket, served

NOBODY = 65534

only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user"
)


@contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    listener = socketfile.bind(path)
    own = socketfile.identity(path)
    try:
        yield listener
    finally:
        socketfile.remove(path, listener, own)


@contextmanager
def as_nobody() -> Iterator[None]:
    """What another user does; the kernel tells our peer so."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def refusal(path: Path) -> str:
    """Why a socket cannot be bound there."""
    with pytest.raises(SettingsError) as raised:
        socketfile.bind(path)
    return str(raised.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_socket_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.sock"
    before = os.umask(0)
    try:
        with bound(path):
            assert (mode(path), mode(path.parent)) == (0o600, 0o700)
            assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_listener_is_ready_for_a_peer(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    with bound(path) as listener, closing(socket.socket(socket.AF_UNIX)) as peer:
        peer.connect(str(path))
        accepted, _ = listener.accept()
        with closing(accepted):
            assert socketfile.peer_is_owner(accepted)


@pytest.mark.parametrize("wide", [0o755, 0o710, 0o701, 0o770, 0o777])
def test_a_directory_that_others_can_enter_is_refused(
    tmp_path: Path, wide: int
) -> None:
    directory = tmp_path / "wide"
    directory.mkdir()
    directory.chmod(wide)
    assert refusal(directory / "c.sock") == (
        f"directory {directory} of the control socket must be of mode 0700; name a "
        f"directory of its own, such as {directory}/drainmw, which is made so "
        "if it does not exist"
    )


def test_the_directory_that_the_refusal_names_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    said = refusal(tmp_path / "c.sock")
    named = Path(said.split("such as ")[1].split(",")[0])
    with bound(named / "c.sock"):
        assert mode(named) == 0o700


def test_a_directory_without_a_parent_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "no" / "such"
    assert refusal(directory / "c.sock") == (
        f"directory {directory} of the control socket cannot be made: "
        f"{tmp_path}/no does not exist"
    )


def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "below"
    assert refusal(directory / "c.sock") == (
        f"directory {directory} of the control socket: Not a directory"
    )


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    control_socket(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "private")
    assert refusal(link / "c.sock") == f"{link} must be a directory, not a link"


@only_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    os.chown(path.parent, NOBODY, NOBODY)
    assert refusal(path) == (
        f"directory {path.parent} of the control socket must belong to this user"
    )


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    path.write_text("mine")
    assert refusal(path) == f"control socket {path}: a file of that name is there"
    assert path.read_text() == "mine"


def test_a_link_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    (target := tmp_path / "target").write_text("mine")
    path.symlink_to(target)
    assert refusal(path) == f"control socket {path}: a file of that name is there"
    assert path.is_symlink()


def test_a_socket_of_a_process_that_has_gone_is_replaced(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    with closing(socket.socket(socket.AF_UNIX)) as gone:
        gone.bind(str(path))
    assert stat.S_ISSOCK(path.lstat().st_mode)
    with bound(path), closing(socket.socket(socket.AF_UNIX)) as peer:
        peer.connect(str(path))


def test_a_socket_of_a_process_that_runs_is_left_alone(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    with bound(path):
        said = f"control socket {path}: another process listens there"
        assert refusal(path) == said
        with closing(socket.socket(socket.AF_UNIX)) as peer:
            peer.connect(str(path))


def test_a_path_too_long_is_refused(tmp_path: Path) -> None:
    path = control_socket(tmp_path).with_name("s" * 120)
    assert refusal(path) == f"control socket {path}: AF_UNIX path too long"


def test_a_socket_that_somebody_opened_wider_is_not_private(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    with bound(path):
        socketfile.check(path)
        path.chmod(0o660)
        with pytest.raises(SettingsError, match=r"is not private: it must be 0600$"):
            socketfile.check(path)


def test_removing_leaves_a_successor_alone(tmp_path: Path) -> None:
    path = control_socket(tmp_path)
    first = socketfile.bind(path)
    own = socketfile.identity(path)
    path.unlink()
    with bound(path):
        socketfile.remove(path, first, own)
        assert path.exists()
    socketfile.remove(path, first, own)  # harmless


# Under `drainmw serve`


def test_a_serving_process_opens_and_removes_its_socket(tmp_path: Path) -> None:
    with served(tmp_path) as release:
        assert release.wait_for_event("serving")["control"] == str(release.control)
        assert mode(release.control) == 0o600
        with pytest.raises(SettingsError, match="another process listens there"):
            socketfile.bind(release.control)
        assert release.report()["phase"] == "serving"
        release.signal()
        assert release.exit_code() == 0
        assert not release.control.exists()


def test_a_killed_process_leaves_a_socket_that_the_next_replaces(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as first:
        first.signal(signal.SIGKILL)
        first.exit_code()
        assert first.control.exists()
    with served(tmp_path) as second:
        assert second.report()["phase"] == "serving"


@only_root
def test_a_peer_of_another_user_is_dropped() -> None:
    folder = Path(tempfile.mkdtemp(prefix="d"))  # where others can come, once open
    try:
        with served(folder) as release:
            # Modes stop another user first, so they are opened for this test.
            for place in (folder, release.control.parent):
                place.chmod(0o755)
            release.control.chmod(0o666)
            with closing(socket.socket(socket.AF_UNIX)) as peer:
                with as_nobody():
                    peer.connect(str(release.control))
                with suppress(ConnectionError):  # it may be gone by now
                    peer.sendall(
                        b"POST /.drainmw/v1/cordon HTTP/1.1\r\nHost: localhost\r\n"
                        b"Content-Length: 0\r\n\r\n"
                    )
                    assert peer.recv(1) == b""
            refused = release.wait_for_event("control peer refused")
            assert refused["reason"] == "another user"
            assert release.report()["phase"] == "serving"
    finally:
        shutil.rmtree(folder)
