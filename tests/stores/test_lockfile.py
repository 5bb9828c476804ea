"""The store of one host: what the kernel tells, and what becomes of its files."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainmw.core.heartbeat import Beat, Peers
from drainmw.core.lease import Lease
from drainmw.errors import OwnershipUnavailable, SettingsError
from drainmw.locks import try_lock
from drainmw.stores.lockfile import LockFileStore, directory_of
from tests.processes import Process, running, until

pytestmark = pytest.mark.anyio

OTHER = """
import asyncio, os, sys
from pathlib import Path
from drainmw.core.heartbeat import Beat
from drainmw.stores.lockfile import LockFileStore

async def live():
    store = LockFileStore(Path(sys.argv[1]))
    await store.open("other")
    await store.beat(Beat("other", 1, None, 1, "host"))
    if await store.take("x"):
        await store.transact("x", lambda lease: lease.take("other"))
    print("taken", flush=True)
    await asyncio.Event().wait()

asyncio.run(live())
"""


def beat(instance: str = "own", number: int = 1) -> Beat:
    return Beat(instance, number, None, 7, "host")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "own"


@pytest.fixture
async def store(directory: Path) -> LockFileStore:
    store = LockFileStore(directory)
    await store.open("own")
    return store


@pytest.fixture
def other(directory: Path) -> Iterator[Process]:
    """Another process, which has the lease."""
    with running("-c", OTHER, str(directory)) as process:
        process.out.wait_for_text("taken")
        yield process


def files(directory: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in directory.glob(pattern))


async def taken_in_time(store: LockFileStore) -> None:
    async with asyncio.timeout(5):
        while not await store.take("x"):  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.01)


async def test_a_lease_is_free_the_moment_its_process_is_killed(
    other: Process, store: LockFileStore
) -> None:
    assert not await store.take("x")
    other.signal(signal.SIGKILL)
    await taken_in_time(store)
    seen = await store.transact("x", Lease.snapshot)
    assert (seen["holder"], seen["generation"]) == ("other", 1)


async def test_a_lease_of_a_process_that_was_stopped_is_not_free(
    other: Process, store: LockFileStore
) -> None:
    other.signal(signal.SIGSTOP)
    for _ in range(5):
        assert not await store.take("x")
    assert await store.take("y")


async def test_a_child_does_not_hold_what_its_parent_held(
    store: LockFileStore, directory: Path
) -> None:
    program = OTHER.replace(
        'print("taken", flush=True)',
        "child = os.fork()\n    if child:\n        print('forked', child, flush=True)",
    )
    with running("-c", program, str(directory)) as process:
        child = int(process.out.wait_for_text(r"forked \d+\n").split()[1])
        process.signal(signal.SIGKILL)
        await taken_in_time(store)
        os.kill(child, 0)  # it lives


async def test_two_in_one_process_do_not_both_have_it(
    store: LockFileStore, directory: Path
) -> None:
    second = LockFileStore(directory)
    await second.open("second")
    assert await store.take("x")
    assert not await second.take("x")
    await second.drop("x")
    assert not await second.take("x")
    await store.drop("x")
    assert await second.take("x")


async def test_one_that_nobody_has_any_more_holds_nothing(
    store: LockFileStore, directory: Path
) -> None:
    second = LockFileStore(directory)
    await second.open("second")
    assert await second.take("x")
    del second
    gc.collect()
    assert await store.take("x")


async def test_looking_at_others_costs_nobody_a_lock(
    store: LockFileStore, directory: Path
) -> None:
    """To close a second descriptor of a file lets go of its lock."""
    second = LockFileStore(directory)
    await second.open("second")
    await second.beat(beat("second"))
    assert await store.take("x")
    for number in range(3):
        assert [b.instance for b in await store.beat(beat("own", number))] == ["second"]
    with running("-c", OTHER, str(directory)) as process:
        process.out.wait_for_text("taken")
        assert (await store.transact("x", Lease.snapshot))["holder"] is None
        heard = {b.instance for b in await store.beat(beat("own", 9))}
        assert heard == {"second", "other"}
        # Theirs was a look at ours, and it has let go of nothing either.
        assert (directory / "own.beat.json").exists()
        assert (directory / "second.beat.json").exists()


async def test_the_dead_are_not_heard_and_swept_at_the_next_start(
    other: Process, store: LockFileStore, directory: Path
) -> None:
    assert [b.instance for b in await store.beat(beat())] == ["other"]
    other.signal(signal.SIGKILL)
    other.popen.wait()
    assert await store.beat(beat("own", 2)) == []
    assert (directory / "other.beat.json").exists()
    late = LockFileStore(directory)
    await late.open("late")
    assert files(directory, "other.*") == []
    assert files(directory, "own.*") == ["own.beat.json", "own.beat.lock"]


async def test_a_clean_end_removes_its_heartbeat(
    store: LockFileStore, directory: Path
) -> None:
    await store.beat(beat())
    await store.close()
    assert files(directory, "*.beat.*") == []


async def test_a_peer_whose_clock_runs_backwards_is_seen(
    store: LockFileStore, directory: Path
) -> None:
    """Its files get older from beat to beat; only its number tells."""
    second = LockFileStore(directory)
    await second.open("second")
    peers, now = Peers(), 2_000_000_000
    for number in range(3):
        await second.beat(beat("second", number))
        for name in files(directory, "second.*"):
            before = now - number * 1000
            os.utime(directory / name, (before, before))
        peers.look(await store.beat(beat("own", number)))
    assert [b.instance for b in peers.alive()] == ["second"]


async def test_a_directory_that_was_removed_is_begun_anew(
    store: LockFileStore, directory: Path, tmp_path: Path
) -> None:
    assert await store.take("x")
    await store.transact("x", lambda lease: lease.take("own"))
    os.rename(directory, tmp_path / "away")
    assert (await store.transact("x", Lease.snapshot))["generation"] == 0
    second = LockFileStore(directory)
    await second.open("second")
    assert await second.take("x")
    await store.beat(beat())
    assert [b.instance for b in await second.beat(beat("second"))] == ["own"]


async def test_a_directory_that_cannot_be_made_anew_is_tried_again(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no file that somebody else has opened meanwhile is taken for one of ours."""

    def fails(*_: object) -> None:
        raise PermissionError("not now")

    assert await store.take("x")
    shutil.rmtree(directory)
    with monkeypatch.context() as patch:
        patch.setattr("drainmw.stores.lockfile.check_directory", fails)
        for _ in range(2):
            with pytest.raises(OwnershipUnavailable, match="not now"):
                await store.beat(beat())
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        with pytest.raises(OwnershipUnavailable, match="not now"):
            await store.beat(beat())
    await store.beat(beat())
    assert await store.take("x")
    for file in others:
        os.close(file)


async def test_a_directory_that_cannot_be_looked_at_keeps_its_locks(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.take("x")

    def fails(path: Path) -> None:
        raise PermissionError(f"not now: {path}")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fails)
        with pytest.raises(OwnershipUnavailable, match="not now"):
            await store.transact("x", Lease.snapshot)
    assert not await LockFileStore(directory).take("x")


async def test_a_lock_file_that_was_removed_is_not_trusted(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def remove_first(file: int) -> bool:
        (directory / "x.lease.lock").unlink(missing_ok=True)
        return try_lock(file)

    monkeypatch.setattr("drainmw.stores.lockfile.try_lock", remove_first)
    assert not await store.take("x")
    monkeypatch.undo()
    assert await store.take("x")


async def test_a_lock_that_is_removed_while_it_is_waited_for_is_not_trusted(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would make a new one, and write at the same time."""
    lock = directory / "lock"
    removals = iter([lock.unlink])

    def remove_first(file: int) -> bool:
        for remove in removals:
            remove()
        return try_lock(file)

    monkeypatch.setattr("drainmw.stores.lockfile.try_lock", remove_first)
    assert await store.transact("x", lambda _: lock.exists())


async def test_what_cannot_be_read_is_unavailable_and_named(
    store: LockFileStore, directory: Path
) -> None:
    for content in ("", "[]", "{}", json.dumps({"format": 1, "new": 2})):
        (directory / "x.lease.json").write_text(content)
        with pytest.raises(OwnershipUnavailable, match="a lease cannot be read"):
            await store.transact("x", Lease.snapshot)


async def test_a_lock_that_is_not_to_be_had_is_unavailable(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.stores.lockfile.LOCK_PATIENCE", 0.05)
    program = (
        "import fcntl, os, sys, time\n"
        "file = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    with running("-c", program, str(directory / "lock")) as process:
        process.out.wait_for_text("locked")
        with pytest.raises(OwnershipUnavailable, match="is not to be had"):
            await store.transact("x", Lease.snapshot)
    until(lambda: process.popen.poll() is not None, "its end")
    assert (await store.transact("x", Lease.snapshot))["generation"] == 0


async def test_a_claim_is_on_the_disk_before_it_is_granted(
    store: LockFileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(file: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))

    if not sys.platform.startswith("linux"):
        pytest.skip("looks into /proc")
    monkeypatch.setattr(os, "fsync", sync)
    await store.transact("x", lambda lease: lease.take("own"))
    assert synced == []
    await store.transact("x", lambda lease: lease.since("own", 1, "x", 5))
    assert synced == ["x.lease.draft", "own"]
    await store.beat(beat())
    assert len(synced) == 2


def test_a_directory_that_is_not_private_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    with pytest.raises(SettingsError, match="must be of mode 0700"):
        LockFileStore(open_to_all / "own")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="not a link"):
        LockFileStore(tmp_path / "link" / "own")


def test_apps_of_similar_names_do_not_meet(tmp_path: Path) -> None:
    names = ("shop:app", "shop-app", "shop/app", "Größe 1", "x" * 128, "../x")
    found = {directory_of(name, tmp_path) for name in names}
    assert len(found) == len(names)
    assert all(path.parent == tmp_path and len(path.name) < 64 for path in found)
    assert directory_of("shop:app", tmp_path).name.startswith("own-shop-app-")
