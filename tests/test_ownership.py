"""This process's part in ownership: from settings to a warning."""

from __future__ import annotations

import asyncio
import builtins
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from drainmw import Clock, Drain, Owned, Owner, SettingsError
from drainmw import ownership as module
from drainmw.core.drain import Gate
from drainmw.core.heartbeat import Beat, Overlap
from drainmw.errors import Misuse, OwnershipUnavailable
from drainmw.stores.lockfile import LockFileStore
from drainmw.supervisor import itself, served_app
from drainmw.testing import ManualSource
from drainmw.tokens import generate
from tests.rig import Release, hello, new_drain

BEAT = 0.05  # seconds

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", BEAT)
    monkeypatch.setattr(LockFileStore, "pause", 0.01)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    found = [record.__dict__.get("drainmw", {}) for record in caplog.records]
    return [facts for facts in found if facts.get("event") == name]


@asynccontextmanager
async def owning(*drains: Drain) -> AsyncIterator[None]:
    for drain in drains:
        drain.ownership.start()
    try:
        yield
    finally:
        for drain in drains:
            await drain.ownership.stop()


async def until(met: Callable[[], object], within: float = 2.0) -> None:
    async with asyncio.timeout(within):
        while not met():  # noqa: ASYNC110  # many things, each for a moment
            await asyncio.sleep(0.002)


def files(runtime: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in runtime.glob(f"*/{pattern}"))


# Two releases of one app


class Pair:
    """Blue and green, with one schedule of 20 ms; `fired` says who fired what."""

    def __init__(self, runtime: Path, **settings: Any) -> None:
        shared = {"app": "shop", "runtime_dir": runtime} | settings
        self.blue, self.green = Release(**shared), Release(**shared)
        self.fired: list[tuple[str, datetime]] = []
        for name in ("blue", "green"):
            clock = Clock(self.owner(name))
            clock.every(0.02, name="often")(self.act(name))

    def owner(self, name: str) -> Owner:
        release: Release = getattr(self, name)
        return release.drain.own("reports")

    def act(self, name: str) -> Callable[[datetime], Any]:
        async def act(due: datetime) -> None:
            self.fired.append((name, due))

        return act

    def firing(self, name: str) -> Callable[[], bool]:
        """Whether it has fired since this was called."""
        before = len(self.fired)
        return lambda: any(who == name for who, _ in self.fired[before:])

    def check(self) -> None:
        """Every tick once, from the first to the last."""
        pairs = pairwise(due for _, due in self.fired)
        steps = {round((b - a).total_seconds(), 3) for a, b in pairs}
        assert steps == {0.02}


async def test_a_begin_hands_the_schedules_to_the_next_release(runtime: Path) -> None:
    pair = Pair(runtime)
    async with owning(pair.blue.drain):
        await until(pair.firing("blue"))
        async with owning(pair.green.drain):
            await asyncio.sleep(0.1)
            assert {who for who, _ in pair.fired} == {"blue"}
            await pair.blue.client.begin()
            last = len([who for who, _ in pair.fired if who == "blue"])
            await until(pair.firing("green"))
            await asyncio.sleep(0.05)
            assert len([who for who, _ in pair.fired if who == "blue"]) == last
            assert pair.owner("green").generation == 2
            assert await pair.blue.state() == "drained"
            await pair.blue.client.resume()
            await asyncio.sleep(0.05)
            assert not pair.owner("blue").is_mine
        await until(pair.firing("blue"))
        assert pair.owner("blue").generation == 3
    pair.check()
    assert files(runtime, "*.beat.*") == []


async def test_a_resume_without_another_release_fires_what_was_due(
    runtime: Path,
) -> None:
    pair = Pair(runtime)
    async with owning(pair.blue.drain):
        await until(pair.firing("blue"))
        await pair.blue.client.begin()
        await asyncio.sleep(0.1)
        assert pair.owner("blue").generation is None
        await pair.blue.client.resume()
        await until(pair.firing("blue"))
        assert pair.owner("blue").generation == 2
    pair.check()


async def test_the_lease_is_kept_until_every_clock_here_is_held(runtime: Path) -> None:
    pair = Pair(runtime)
    slow = ManualSource("engine", "clock", blocked=["hold"])
    pair.blue.drain.add_source(slow)
    async with owning(pair.blue.drain):
        await until(lambda: pair.owner("blue").is_mine)
        async with owning(pair.green.drain):
            await pair.blue.client.begin()
            await asyncio.sleep(0.1)
            assert pair.owner("blue").generation == 1
            assert not pair.owner("green").is_mine
            slow.unblock("hold")
            await until(lambda: pair.owner("green").is_mine)


async def test_an_owned_engine_is_released_where_it_is_owned(runtime: Path) -> None:
    pair, engines = Pair(runtime), {}
    for name in ("blue", "green"):
        engines[name] = ManualSource("engine", "clock")
        drain = getattr(pair, name).drain
        drain.add_source(Owned(engines[name], pair.owner(name)))
    async with owning(pair.blue.drain):
        await until(lambda: "release" in engines["blue"].calls)
        async with owning(pair.green.drain):
            await until(lambda: engines["green"].is_held)
            await pair.blue.client.begin()
            assert engines["blue"].is_held
            await until(lambda: not engines["green"].is_held)
            assert engines["blue"].is_held


async def test_a_tick_that_runs_holds_the_drain_and_is_named(runtime: Path) -> None:
    release = Release(app="shop", runtime_dir=runtime)
    owner, begun, go = release.drain.own(), asyncio.Event(), asyncio.Event()

    async def tick() -> None:
        await owner.gained
        async with owner.tick(5, "nightly") as mine:
            assert mine
            begun.set()
            await go.wait()

    async with owning(release.drain):
        running = asyncio.create_task(tick())
        await asyncio.wait_for(begun.wait(), 2)
        await release.client.begin()
        await asyncio.sleep(0.05)
        report = await release.client.report()
        assert (report["phase"], report["inFlight"]["schedules"]) == ("draining", 1)
        (source,) = [s for s in report["sources"] if s["name"] == "schedules"]
        assert source["running"] == ["nightly 1970-01-01T00:00:05+00:00"]
        go.set()
        await running
        async with asyncio.timeout(2):
            await release.drain.ended
        assert await release.state() == "drained"


async def test_a_release_that_drains_takes_nothing_over(runtime: Path) -> None:
    pair = Pair(runtime)
    await pair.green.client.begin()
    async with owning(pair.green.drain):
        await asyncio.sleep(0.1)
        assert pair.owner("green").generation is None
        await pair.green.client.resume()
        await until(pair.firing("green"))


async def test_a_cordoned_release_goes_on_with_its_schedules(runtime: Path) -> None:
    pair = Pair(runtime)
    pair.blue.drain.cordon()
    async with owning(pair.blue.drain):
        await until(pair.firing("blue"))


async def test_two_names_are_owned_by_themselves(runtime: Path) -> None:
    blue, green = (new_drain(app="shop", runtime_dir=runtime) for _ in range(2))
    reports, mails = blue.own("reports"), green.own("mails")
    async with owning(blue, green):
        await until(lambda: reports.is_mine and mails.is_mine)


async def test_two_apps_do_not_share(runtime: Path) -> None:
    drains = [new_drain(app=name, runtime_dir=runtime) for name in ("shop", "mail")]
    owners = [drain.own() for drain in drains]
    async with owning(*drains):
        await until(lambda: all(owner.is_mine for owner in owners))


# Lifespan


class Lifespan:
    """A server's side of it."""

    def __init__(self, app: Any) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.sent: asyncio.Queue[str] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {}, "state": {}}
        self.call = asyncio.ensure_future(app(scope, self.messages.get, self.send))

    async def send(self, message: Any) -> None:
        await self.sent.put(message["type"])

    async def ask(self, name: str) -> str:
        await self.messages.put({"type": f"lifespan.{name}"})
        return await asyncio.wait_for(self.sent.get(), 2)


async def spanning(scope: Any, receive: Any, send: Any) -> None:
    """An app with nothing but lifespan."""
    for name in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{name}.complete"})


async def test_schedules_run_from_the_startup_to_the_shutdown_of_the_app(
    runtime: Path,
) -> None:
    release = Release(spanning, app="shop", runtime_dir=runtime)
    owner = release.drain.own()
    for generation in (1, 2):
        lifespan = Lifespan(release.app)
        await asyncio.sleep(0.03)
        assert files(runtime, "*") == [] if generation == 1 else not owner.is_mine
        await lifespan.ask("startup")
        await until(lambda: owner.is_mine)
        assert owner.generation == generation
        assert await lifespan.ask("shutdown") == "lifespan.shutdown.complete"
        assert not owner.is_mine
        assert files(runtime, "*.beat.*") == []
        await lifespan.call


async def test_an_app_without_lifespan_has_started_once_it_says_so(
    runtime: Path,
) -> None:
    async def raises(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no lifespan here")

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.failed"})
        raise RuntimeError("no start")

    for app, starts in ((raises, True), (fails, False)):
        release = Release(app, app="shop", runtime_dir=runtime)
        owner = release.drain.own()
        with pytest.raises(RuntimeError):
            await Lifespan(release.app).call
        await asyncio.sleep(0.05)
        assert owner.is_mine is starts
        await release.drain.ownership.stop()


async def test_without_lifespan_the_first_probe_starts_them(runtime: Path) -> None:
    release = Release(app="shop", runtime_dir=runtime)
    owner = release.drain.own()
    await release.client.get("/readyz")
    await until(lambda: owner.is_mine)
    await release.drain.ownership.stop()


async def test_an_owner_that_comes_later_is_looked_after_too(runtime: Path) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    drain.ownership.start()
    first = await asyncio.to_thread(drain.own, "first")
    await until(lambda: first.is_mine)
    second = drain.own("second")
    seen: list[str] = []

    async def client() -> None:
        seen.append("runs")
        await asyncio.Event().wait()

    second.add_client(client)
    await until(lambda: second.is_mine and seen)
    assert seen == ["runs"]
    await drain.ownership.stop()


async def test_a_tick_that_is_cut_by_a_stop_is_told(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    clock, begun = Clock(drain.own()), asyncio.Event()

    async def hang(due: datetime) -> None:
        begun.set()
        await asyncio.Event().wait()

    clock.at(datetime.now(UTC), hang, name="once")
    async with owning(drain):
        await asyncio.wait_for(begun.wait(), 2)
    (told,) = events(caplog, "tick interrupted")
    assert told["schedule"] == "once"


@pytest.mark.parametrize("again", [False, True], ids=["ends", "goes on"])
async def test_a_tick_that_takes_no_notice_of_a_stop_does_not_keep_it(
    again: bool,
    runtime: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STOP_PATIENCE", 0.1)
    drain = new_drain(app="shop", runtime_dir=runtime)
    clock, begun, go = Clock(drain.own()), asyncio.Event(), asyncio.Event()

    @clock.every(0.001)
    async def stubborn(due: datetime) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if again:
            await go.wait()

    async with asyncio.timeout(5), owning(drain):
        await begun.wait()
    told = events(caplog, "schedules not stopped")
    assert [fact["count"] for fact in told] == ([1] if again else [])
    go.set()


async def test_a_store_that_fails_stops_no_shutdown(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the lock is let go of, though the process lives on."""
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner = drain.own()
    async with owning(drain):
        await until(lambda: owner.is_mine)

        async def fails(*_: object) -> None:
            raise OwnershipUnavailable("away")

        monkeypatch.setattr(LockFileStore, "transact", fails)
    assert [told["error"] for told in events(caplog, "ownership not given up")] == [
        "away"
    ]
    assert not owner.is_mine
    monkeypatch.undo()
    other = new_drain(app="shop", runtime_dir=runtime)
    async with owning(other):
        await until(lambda: other.own().is_mine)


def test_a_new_loop_begins_anew_and_other_threads_may_fire(runtime: Path) -> None:
    """A loop that is closed without a stop leaves the lease to the next one."""
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner = drain.own()

    async def own(stop: bool) -> int | None:
        drain.ownership.start()
        await until(lambda: owner.is_mine)
        fired = await asyncio.to_thread(lambda: asyncio.run(fire()))
        assert fired
        assert len(files(runtime, "*.beat.json")) == 1
        generation = owner.generation
        if stop:
            await drain.ownership.stop()
        return generation

    async def fire() -> bool:
        async with owner.tick(next(numbers), "x") as mine:
            return mine

    numbers, clients = count(), 0

    async def client() -> None:
        nonlocal clients
        clients += 1

    owner.add_client(client)
    assert asyncio.run(own(False)) == 1
    assert asyncio.run(own(True)) == 2
    assert asyncio.run(own(True)) == 3
    assert clients == 3
    with pytest.raises(OwnershipUnavailable, match="has not been started"):
        asyncio.run(drain.ownership.call(fire))


async def test_who_asks_a_loop_that_ends_is_told_so(runtime: Path) -> None:
    """And is not cancelled, since nobody has cancelled it."""
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner, asked, go = drain.own(), threading.Event(), threading.Event()

    async def own() -> None:
        drain.ownership.start()
        await until(lambda: owner.is_mine)
        await asyncio.to_thread(go.wait, 5)

    async def hangs() -> None:
        asked.set()
        await asyncio.Event().wait()

    ends = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(own())))
    await until(lambda: owner.is_mine)
    answer = asyncio.ensure_future(drain.ownership.call(hangs))
    await until(asked.is_set)
    go.set()
    with pytest.raises(OwnershipUnavailable, match="has ended"):
        await asyncio.wait_for(answer, 2)
    await ends


async def test_what_is_asked_of_the_store_runs_to_its_end(runtime: Path) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    drain.own()
    done = asyncio.Event()

    async def slow() -> None:
        await asyncio.sleep(0.02)
        done.set()

    async with owning(drain):
        asked = asyncio.create_task(drain.ownership.call(slow))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.wait_for(done.wait(), 2)


async def test_a_begin_is_followed_at_once(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only at the next look."""
    release = Release(app="shop", runtime_dir=runtime)
    owner = release.drain.own()
    async with owning(release.drain):
        await until(lambda: owner.is_mine)
        monkeypatch.setattr(LockFileStore, "pause", 30)
        monkeypatch.setattr(module, "BEAT", 30)
        await asyncio.sleep(3 * BEAT)  # the last look that comes soon
        await release.client.begin()
        await until(lambda: owner.generation is None)


async def test_a_gate_that_is_closed_by_a_sibling_stops_ticks_at_once(
    runtime: Path,
) -> None:
    release = Release(app="shop", runtime_dir=runtime)
    owner = release.drain.own()
    async with owning(release.drain):
        await until(lambda: owner.is_mine)
        release.drain.ledger.gate[0] = Gate.DRAINING
        assert not owner.is_mine
        release.drain.ledger.gate[0] = Gate.CORDONED
        assert owner.is_mine


def test_a_start_outside_of_a_loop_waits_for_one(runtime: Path) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner = drain.own()
    drain.ownership.start()

    async def own() -> None:
        async with owning(drain):
            await until(lambda: owner.is_mine)

    asyncio.run(own())


async def test_what_goes_wrong_in_a_look_is_logged_and_looked_at_again(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner = drain.own()
    look = owner.look
    failed: list[str] = []

    async def fails_once(**what: bool) -> None:
        if not failed:
            failed.append("once")
            raise RuntimeError("unheard of")
        await look(**what)

    monkeypatch.setattr(owner, "look", fails_once)

    async def fails() -> None:
        raise ValueError("a client")

    owner.add_client(fails)
    async with owning(drain):
        await until(lambda: owner.is_mine)
    assert len(events(caplog, "ownership failed")) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_owns_nothing_and_takes_nothing_along(runtime: Path) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    owner = drain.own()

    async def parent() -> None:
        async with owning(drain):
            await until(lambda: owner.is_mine)
            own = files(runtime, "*.beat.*")
            assert await asyncio.to_thread(_forked, drain) == 0
            assert files(runtime, "*.beat.*") == own
            async with owner.tick(5) as mine:
                assert mine

    asyncio.run(parent())


def _forked(drain: Drain) -> int:
    """The exit code of a child, which looks, and takes part for a while."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    owner, code = drain.own(), 1
    try:
        assert not owner.is_mine and owner.generation is None

        async def child() -> None:
            async with owning(drain):
                where = drain.settings.runtime_dir or Path()
                await until(lambda: len(files(where, "*.json")) == 3)
                assert not owner.is_mine

        asyncio.run(child())
        code = 0
    finally:
        os._exit(code)


# Where nobody protects it


async def told_unprotected(drain: Drain, caplog: pytest.LogCaptureFixture) -> str:
    owner = drain.own()
    async with owning(drain):
        await until(lambda: owner.is_mine)
        async with owner.tick(5) as mine:
            assert mine
        (warning,) = (await drain.report())["warnings"]
        await asyncio.sleep(3 * BEAT)
    (told,) = events(caplog, "schedules unprotected")
    assert warning == f"schedules are unprotected: {told['reason']}"
    return str(told["reason"])


async def test_an_app_without_a_name_owns_by_itself_and_says_so(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = await told_unprotected(new_drain(runtime_dir=runtime), caplog)
    assert reason == "no name that all its releases share; set DRAINMW_APP (app=)"


async def test_a_directory_that_is_not_private_protects_nobody(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(runtime, 0o755)
    drain = new_drain(app="shop", runtime_dir=runtime)
    assert "must be of mode 0700" in await told_unprotected(drain, caplog)


async def test_a_system_without_posix_locks_protects_nobody(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    drain = new_drain(app="shop", runtime_dir=runtime)
    reason = await told_unprotected(drain, caplog)
    assert reason == "this system has no POSIX locks"


async def test_who_switches_it_off_is_not_told(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime, ownership="off")
    owner = drain.own()
    async with owning(drain):
        await until(lambda: owner.is_mine)
        assert list(drain.ownership.warnings()) == []
        assert files(runtime, "*.lease.*") == []
        assert len(files(runtime, "*.beat.json")) == 1
    assert events(caplog, "schedules unprotected") == []
    drain = new_drain(ownership="off")
    owner = drain.own()
    async with owning(drain):
        await until(lambda: owner.is_mine)
        assert list(drain.ownership.warnings()) == []


async def test_an_observer_and_a_process_outside_of_its_group_own_nothing(
    runtime: Path,
) -> None:
    observer = new_drain(app="shop", runtime_dir=runtime, observes=itself())
    watching = await asyncio.to_thread(observer.own)
    outside = new_drain(app="shop", runtime_dir=runtime)
    outside.unjoined = "somebody else is there"
    owners = [watching, outside.own()]
    async with owning(observer, outside):
        await asyncio.sleep(0.1)
        assert [owner.generation for owner in owners] == [None, None]


# Names and places


def test_a_name_gives_the_same_owner_again() -> None:
    drain = new_drain()
    assert drain.own("reports") is drain.own("reports")
    assert drain.own().name == "schedules"


@pytest.mark.parametrize("name", ["", "a/b", ".x", "x" * 65, "a b", "é", None])
def test_what_cannot_be_a_name_is_refused(name: Any) -> None:
    with pytest.raises(Misuse, match="a name must be"):
        new_drain().own(name)


def test_a_name_that_a_source_has_is_refused() -> None:
    drain = new_drain()
    drain.add_source(ManualSource("reports"))
    with pytest.raises(Misuse, match="of the name reports already"):
        drain.own("reports")


async def test_a_store_that_is_away_from_the_start_stands_in_the_report() -> None:
    drain = new_drain(ownership="redis://127.0.0.1:1", app="shop")
    owner = drain.own("reports")
    async with owning(drain):
        await until(lambda: owner.trouble is not None)
        (warning,) = (await drain.report())["warnings"]
    assert warning.startswith("schedules of reports stand still: redis://127.0.0.1:1")


def test_a_place_across_hosts_needs_a_name_of_the_app() -> None:
    drain = new_drain(ownership="redis://user:s3cret@host")
    with pytest.raises(SettingsError, match=r"set DRAINMW_APP") as refused:
        drain.own()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "client", "extra"),
    [
        ("redis://host", "redis.asyncio", "redis"),
        ("unix:///run/x", "redis.asyncio", "redis"),
        ("postgresql://host", "psycopg", "postgres"),
    ],
)
def test_a_client_that_is_not_installed_is_named(
    url: str, client: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"drainmw.stores.{extra}", raising=False)
    importing = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == client:
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=rf"drainmw\[{extra}\]"):
        new_drain(app="shop", ownership=url).own()


@pytest.mark.parametrize(
    ("argv", "app"),
    [
        (["/bin/uvicorn", "shop.main:app", "--workers", "4"], "shop.main:app"),
        (["/x/uvicorn/__main__.py", "--host", "127.0.0.1", "shop:app"], "shop:app"),
        (["/x/drainmw", "serve", "shop:app"], "shop:app"),
        (["gunicorn", "-b", "unix:/run/x", "-k", "asgi", "a:b.c"], "a:b.c"),
        (["hypercorn", "--bind", "127.0.0.1:80", "shop:make()"], "shop:make()"),
        (["/x/granian", "--interface", "asgi", "shop:app"], "shop:app"),
        (["daphne", "shop.asgi:application"], "shop.asgi:application"),
        (["/x/pytest", "-p", "no:cacheprovider"], None),
        (["/x/pytest/__main__.py", "no:cacheprovider"], None),
        (["main.py", "shop:app"], None),
        (["uvicorn", "--version"], None),
        ([""], None),
        ([], None),
    ],
)
def test_the_import_string_is_seen_in_the_arguments_of_a_server(
    argv: list[str], app: str | None
) -> None:
    assert served_app(argv) == app


async def test_the_import_string_is_the_name_that_is_shared(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/uvicorn", "shop.main:app"])
    drain = new_drain(runtime_dir=runtime)
    owner = drain.own()
    async with owning(drain):
        await until(lambda: owner.is_mine)
        assert drain.ownership.unprotected is None
    (place,) = os.listdir(runtime)
    assert place.startswith("own-shop.main-app-")


# The overlap alarm


def alone(runtime: Path, **settings: Any) -> Drain:
    """An instance that owns by itself, as two hosts without a shared lock do."""
    drain = new_drain(app="shop", runtime_dir=runtime, ownership="off", **settings)
    drain.own("reports")
    return drain


async def test_two_live_instances_of_a_release_are_warned_of_within_three_beats(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = alone(runtime), alone(runtime)
    async with owning(first):
        await until(lambda: first.own("reports").is_mine)
        async with owning(second):
            await until(lambda: second.own("reports").is_mine)
            began = second.ownership._number
            await until(lambda: second.ownership.overlaps)
            assert second.ownership._number - began <= 3
            await until(lambda: first.ownership.overlaps)
            warnings = [list(d.ownership.warnings()) for d in (first, second)]
            assert warnings[0] == warnings[1]
            (warning,) = warnings[0]
            assert warning.startswith("schedule overlap: reports is owned by each of")
            await asyncio.sleep(3 * BEAT)
            assert len(events(caplog, "schedule overlap")) == 2  # each says it once
            # Nobody acts upon it.
            assert first.own("reports").is_mine and second.own("reports").is_mine
        await until(lambda: not first.ownership.overlaps)
        assert list(first.ownership.warnings()) == []


async def test_a_release_that_goes_is_no_overlap(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one drains, and owns no more; nor need a lease protect the new one."""
    first, second = alone(runtime, revision="a" * 40), alone(runtime, revision="b" * 40)
    async with owning(first, second):
        await asyncio.sleep(6 * BEAT)
        assert first.own("reports").is_mine and second.own("reports").is_mine
    assert events(caplog, "schedule overlap") == []


async def test_a_rolling_change_under_a_lease_is_quiet(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(runtime)
    async with owning(pair.blue.drain):
        for _ in range(3):
            await until(pair.firing("blue"))
            async with owning(pair.green.drain):
                await asyncio.sleep(2.5 * BEAT)
                nonce = generate()
                await pair.blue.client.begin(nonce)
                await until(pair.firing("green"))
                await asyncio.sleep(2.5 * BEAT)
                await pair.blue.client.resume(nonce)
                for release in (pair.blue, pair.green):
                    assert release.drain.ownership.overlaps == []
    pair.check()
    assert events(caplog, "schedule overlap") == []


async def test_an_overlap_of_others_is_reported_and_not_logged_here(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watcher, *others = (alone(runtime) for _ in range(3))
    async with owning(*others):
        await until(lambda: all(o.ownership.overlaps for o in others))
        watcher.unjoined = "it owns nothing"
        caplog.clear()
        async with owning(watcher):
            await until(lambda: watcher.ownership.overlaps)
            assert events(caplog, "schedule overlap") == []
            (warning,) = watcher.ownership.warnings()
            assert "schedule overlap" in warning


async def test_the_alarm_is_in_the_report_and_the_metrics() -> None:
    release = Release(hello)
    release.drain.own("reports")
    metric = "drainmw_schedule_overlaps"
    text = (await release.client.control("GET", "/.drainmw/v1/metrics")).text
    assert f"{metric} 0.0" in text
    beats = tuple(Beat(name, 1, None, 7, name) for name in ("left", "right"))
    release.drain.ownership.overlaps = [Overlap("reports", beats)]
    assert str(Overlap("reports", beats)) in (await release.client.report())["warnings"]
    text = (await release.client.control("GET", "/.drainmw/v1/metrics")).text
    assert f"{metric} 1.0" in text


async def test_a_stir_may_come_from_any_thread(runtime: Path) -> None:
    drain = new_drain(app="shop", runtime_dir=runtime)
    async with owning(drain):
        thread = threading.Thread(target=drain.ownership.stir)
        thread.start()
        thread.join()
