"""One drain from begin to its end, and what may go wrong on the way."""

import asyncio
import gc
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from starlette.types import Receive, Scope, Send

from drainmw import (
    Counts,
    Drain,
    IntakeRefused,
    KeyedQueue,
    QueueState,
    ResultElsewhere,
    SourceUnavailable,
)
from drainmw.contract import BEGIN_PATH, DETACH_PATH
from drainmw.errors import AlreadyStarted, GroupError, Misuse
from drainmw.group import Group
from drainmw.sources.base import Running
from drainmw.supervisor import itself
from drainmw.testing import AsgiDriver, ManualClock, ManualSource, Step, http_scope
from tests.rig import (
    AUTHORIZED,
    NONCE,
    OTHER_NONCE,
    THIRD_NONCE,
    Client,
    Release,
    Waiting,
    begin_json,
    begin_request,
    calm,
    hello,
    new_drain,
)

pytestmark = pytest.mark.anyio


async def ended(drain: Drain, within: float = 2.0) -> str:
    async with asyncio.timeout(within):
        await drain.ended
    return str(drain.phase)


async def failure_of(release: Release, nonce: str = NONCE) -> str:
    answer = (await release.client.status(nonce)).json()
    assert answer["status"] == "failed", answer
    return str(answer["failure"])


def sourced(*sources: ManualSource, **settings: Any) -> Release:
    release = Release(**settings)
    for source in sources:
        release.drain.add_source(source)
    return release


# The life of a drain


async def test_a_release_with_nothing_to_do_is_drained_at_once() -> None:
    release = Release()
    assert (await release.client.begin()).json() == {
        "accepted": True,
        "duplicate": False,
    }
    assert await ended(release.drain) == "drained"
    assert await release.state() == "drained"


async def test_a_release_is_drained_when_its_last_request_ends() -> None:
    """D10: `drained` is visible within 100 ms of the end."""
    app = Waiting()
    release = Release(app)
    async with release.call() as call:
        await release.client.begin(timeoutMs=30_000)
        await calm()
        assert await release.state() == "draining"
        app.go.set()
        await call.wait()
        end = time.monotonic()
        assert await ended(release.drain, within=0.1) == "drained"
        assert time.monotonic() - end < 0.1
    assert await release.state() == "drained"


async def test_a_request_that_outlives_the_deadline_is_counted_and_not_cut() -> None:
    """D11: `failed` at the timeout, by itself, the request still running."""
    app = Waiting()
    release = Release(app)
    async with release.call() as call:
        begun = time.monotonic()
        await release.client.begin(timeoutMs=100)
        assert await ended(release.drain) == "failed"
        assert 0.09 < time.monotonic() - begun < 0.5
        assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"
        assert (await release.in_flight())["http"] == 1
        assert not call.is_done
        app.go.set()
        await call.wait()
        assert (await call.receive_output())["status"] == 200
    assert (await release.in_flight())["http"] == 0
    assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"


async def test_asking_for_the_status_applies_the_deadline_too() -> None:
    clock = ManualClock()
    app = Waiting()
    release = Release(app, clock=clock)
    async with release.call():
        await release.client.begin()
        clock.advance(4.999)
        assert await release.state() == "draining"
        clock.advance(0.001)
        assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"


async def test_a_zero_that_comes_with_the_deadline_is_a_timeout() -> None:
    clock = ManualClock()
    app = Waiting()
    release = Release(app, clock=clock)
    async with release.call() as call:
        await release.client.begin()
        clock.advance(5.0)
        app.go.set()
        await call.wait()
        await calm()
        assert await failure_of(release) == "RUNTIME_DRAIN_TIMEOUT"


async def test_fifty_begins_at_once_are_one_run() -> None:
    """D5: 50 equal answers, one of them `duplicate: false`."""
    release = Release()
    answers = await asyncio.gather(*(release.client.begin() for _ in range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert sorted(answer.json()["duplicate"] for answer in answers) == [
        False,
        *[True] * 49,
    ]
    assert release.drain.epoch == 1


async def test_of_two_begins_the_first_to_commit_wins() -> None:
    """D6: the other is a 409 and leaves no trace, now or later."""
    release = Release()
    first = http_scope(
        BEGIN_PATH,
        "POST",
        [
            (b"authorization", AUTHORIZED["authorization"].encode()),
            (b"content-type", b"application/json"),
        ],
    )
    async with release.call(first) as slow, release.call(first) as second:
        body = json.dumps(begin_json()).encode()
        await slow.send_input(
            {"type": "http.request", "body": body[:-1], "more_body": True}
        )
        other = json.dumps(begin_json(OTHER_NONCE)).encode()
        await second.send_input({"type": "http.request", "body": other})
        await second.cancel()
        await slow.send_input({"type": "http.request", "body": body[-1:]})
        assert (await slow.receive_output())["status"] == 409
    assert (await release.client.begin(OTHER_NONCE)).json()["duplicate"] is True
    assert (await release.client.status(NONCE)).status_code == 404
    assert (await release.client.resume(OTHER_NONCE)).status_code == 200
    assert (await release.client.status(NONCE)).status_code == 404
    assert (await release.client.begin(NONCE)).json()["duplicate"] is False


async def test_a_begin_whose_client_goes_away_runs_to_its_end() -> None:
    drain = new_drain()
    begin = asyncio.create_task(drain.begin(begin_request()))
    await asyncio.sleep(0)
    begin.cancel()
    assert await ended(drain) == "drained"


async def test_begin_closes_intake_before_it_returns() -> None:
    source = ManualSource(blocked=["hold"])
    release = sourced(source)
    await release.drain.begin(begin_request())
    assert "hold" in source.calls
    assert release.drain.phase == "draining"
    assert release.drain.begun.is_set()
    assert (await release.client.get("/")).status_code == 503


async def test_app_code_can_await_the_begin_and_the_end() -> None:
    drain = new_drain()

    async def told() -> str:
        await drain.begun
        seen = str(drain.phase)
        await drain.ended
        return f"{seen} {drain.phase}"

    waiting = asyncio.create_task(told())
    await asyncio.sleep(0)
    await drain.begin(begin_request())
    assert await waiting in ("draining drained", "drained drained")


async def test_status_and_probes_are_answered_and_not_counted_all_the_way() -> None:
    """D4: both always answered, neither counted; the drain ends on time."""
    app = Waiting()
    release = Release(app)
    async with release.call() as call:
        await release.client.begin()
        for _ in range(50):
            status, ready = await asyncio.gather(
                release.client.status(), release.client.get("/readyz")
            )
            assert (status.status_code, ready.status_code) == (200, 503)
            assert status.json()["inFlight"]["http"] == 1
        app.go.set()
        await call.wait()
        assert await ended(release.drain, within=0.1) == "drained"
    assert (await release.client.report())["admittedTotal"] == 1


async def test_counters_stay_live_and_the_verdict_stays() -> None:
    source = ManualSource()
    release = sourced(source)
    await release.client.begin()
    assert await ended(release.drain) == "drained"
    source.set_counts(jobs=2)
    answer = (await release.client.status()).json()
    assert (answer["status"], answer["inFlight"]["jobs"]) == ("drained", 2)


# Resume


async def test_a_resume_while_a_job_hangs_answers_within_a_second() -> None:
    """R1: intake open again, sources released."""
    source = ManualSource(blocked=["settled"])
    release = sourced(source)
    await release.client.begin()
    await calm()
    async with asyncio.timeout(1.0):
        answer = await release.client.resume()
    assert (answer.status_code, answer.json()) == (
        200,
        {"phase": "serving", "epoch": 2},
    )
    assert not source.is_held
    assert (await release.client.get("/")).status_code == 200
    assert not release.drain.begun


@pytest.mark.parametrize("step", ["hold", "release"])
async def test_a_resume_answers_within_a_second_though_a_source_hangs(
    step: Step,
) -> None:
    """R1: what is not released keeps readiness from saying yes, and says so."""
    source = ManualSource("engine", blocked=[step])
    release = sourced(source)
    await release.client.begin()
    await calm()
    async with asyncio.timeout(1.0):
        assert (await release.client.resume()).status_code == 200
    assert (await release.client.get("/")).status_code == 200
    if step == "release":
        assert (await release.client.get("/readyz")).status_code == 503
        assert "engine" in (await release.client.report())["warnings"][0]
        source.unblock("release")
        await calm()
    assert (await release.client.get("/readyz")).status_code == 200
    assert (await release.client.report())["warnings"] == []


async def test_a_resumed_nonce_is_gone_and_the_next_drain_is_its_own() -> None:
    """R2: 404 and 409 for the old nonce; a higher epoch for the new one."""
    app = Waiting()
    release = Release(app)
    client = release.client
    async with release.call() as call:
        await client.begin()
        first = release.drain.epoch
        await client.resume()
        answer = asyncio.create_task(client.get("/"))
        await calm()
        assert (await client.status()).status_code == 404
        assert (await client.status()).json()["resumed"] is True
        begun = await client.begin()
        assert (begun.status_code, begun.json()["code"]) == (
            409,
            "RUNTIME_DRAIN_RESUMED",
        )
        assert (await client.begin(OTHER_NONCE)).json()["duplicate"] is False
        assert release.drain.epoch > first + 1
        assert await release.state(OTHER_NONCE) == "draining"
        app.go.set()
        await call.wait()
        assert (await answer).status_code == 200
    assert await ended(release.drain) == "drained"


async def test_a_resume_is_told_again_while_its_epoch_serves() -> None:
    release = Release()
    await release.client.begin()
    first = await release.client.resume()
    again = await release.client.resume()
    assert first.json() == again.json() == {"phase": "serving", "epoch": 2}
    unknown = await release.client.resume(OTHER_NONCE)
    assert unknown.status_code == 404
    await release.client.begin(OTHER_NONCE)
    late = await release.client.resume()
    assert (late.status_code, late.json()["code"]) == (409, "RUNTIME_DRAIN_RESUMED")
    assert (await release.client.get("/")).status_code == 503


async def test_the_nonce_of_nobody_and_of_another_drain_open_nothing() -> None:
    release = Release()
    await release.client.begin()
    other = await release.client.resume(OTHER_NONCE)
    assert (other.status_code, release.drain.phase) in (
        (404, release.drain.phase),
        (409, release.drain.phase),
    )
    assert release.drain.phase in ("draining", "drained")


@pytest.mark.parametrize(("grace", "warns"), [(4, True), (5, False), (None, False)])
async def test_a_supervisor_less_patient_than_the_drain_is_warned_of(
    grace: float | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """R6: begin answers; the report and the log warn."""
    release = Release(kill_grace=grace, timeout=1)
    assert release.drain.warnings() == []
    assert (await release.client.begin(timeoutMs=5000)).status_code == 202
    told = (await release.client.report())["warnings"]
    expected = "this process is killed 4 s after SIGTERM, and a drain may take 5 s"
    assert [warning.partition(";")[0] for warning in told] == [expected] * warns
    assert ("kill grace too short" in caplog.text) is warns


@pytest.mark.parametrize("nonce", [NONCE, OTHER_NONCE])
async def test_a_drain_that_runs_or_is_another_is_not_detached(nonce: str) -> None:
    release = Release()
    go = asyncio.Event()
    release.drain.spawn(go.wait())
    await release.client.begin()
    answer = await release.client.control("POST", DETACH_PATH, json={"nonce": nonce})
    assert answer.status_code == (409 if nonce == NONCE else 404)
    assert release.drain.phase == "draining"
    go.set()
    await ended(release.drain)
    assert (await release.client.resume()).status_code == 200


async def test_a_detached_release_is_not_resumed() -> None:
    """R3: refused; nothing opens."""
    release = Release()
    await release.client.begin()
    await ended(release.drain)
    for _ in range(2):  # safe to repeat
        gone = await release.client.control("POST", DETACH_PATH, json={"nonce": NONCE})
        assert (gone.status_code, gone.json()) == (
            200,
            {"phase": "detached", "epoch": 1},
        )
    answer = await release.client.resume()
    assert (answer.status_code, answer.json()["code"]) == (
        409,
        "RUNTIME_DRAIN_DETACHED",
    )
    assert (await release.client.get("/")).status_code == 503
    assert await release.state() == "drained"


async def test_a_release_drains_again_and_again() -> None:
    release = sourced(ManualSource(), ManualSource("clock", "clock"))
    for number in range(5):
        nonce = f"{number}" * 43
        await release.client.begin(nonce)
        assert await ended(release.drain) == "drained"
        await release.client.resume(nonce)
        assert (await release.client.get("/")).status_code == 200
    assert release.drain.epoch == 10


async def test_a_cordon_ends_with_a_begin_and_a_resume_serves() -> None:
    release = Release()
    client = release.client
    for _ in range(2):
        answer = await client.control("POST", "/.drainmw/v1/cordon")
        assert answer.json() == {"phase": "cordoned", "epoch": 0}
    assert (await client.get("/")).status_code == 200
    await client.begin()
    for path in ("cordon", "uncordon"):
        answer = await client.control("POST", f"/.drainmw/v1/{path}")
        assert answer.status_code == 409
    await client.resume()
    assert release.drain.phase == "serving"
    answer = await client.control("POST", "/.drainmw/v1/uncordon")
    assert answer.json() == {"phase": "serving", "epoch": 2}


# Sources


async def test_clock_and_pull_sources_are_held_at_begin_and_push_last() -> None:
    clock, pull = ManualSource("clock", "clock"), ManualSource("pull", "pull")
    push = ManualSource("push", "push")
    app = Waiting()
    release = sourced(push, pull, clock)
    release = Release(app, drain=release.drain)
    async with release.call() as call:
        await release.client.begin()
        await calm()
        assert (clock.is_held, pull.is_held, push.is_held) == (True, True, False)
        app.go.set()
        await call.wait()
        assert await ended(release.drain) == "drained"
    assert push.is_held


async def test_push_sources_wait_for_pull_sources_too() -> None:
    pull, push = ManualSource("pull", blocked=["settled"]), ManualSource("q", "push")
    release = sourced(pull, push)
    await release.client.begin()
    await calm()
    assert not push.is_held
    pull.settle()
    assert await ended(release.drain) == "drained"
    assert push.is_held


async def test_a_failed_hold_fails_the_drain_at_once_and_releases_nothing() -> None:
    broken, fine = ManualSource("broken"), ManualSource("fine")
    broken.fail("hold", Exception("QUEUE_NOT_MINE"))
    release = sourced(broken, fine)
    await release.client.begin()
    assert await ended(release.drain) == "failed"
    assert await failure_of(release) == "QUEUE_NOT_MINE"
    await calm()
    assert fine.is_held
    assert "release" not in fine.calls + broken.calls
    assert (await release.client.get("/")).status_code == 503
    await release.client.resume()
    assert not fine.is_held
    assert "release" in broken.calls


async def test_an_exception_without_a_message_fails_by_its_class() -> None:
    source = ManualSource()
    source.fail("settled", KeyError())
    release = sourced(source)
    await release.client.begin()
    assert await ended(release.drain) == "failed"
    assert await failure_of(release) == "KeyError"


async def test_a_source_that_cannot_be_reached_is_asked_again() -> None:
    source = ManualSource()
    source.fail("hold", SourceUnavailable("broker is gone"))
    release = sourced(source)
    await release.client.begin()
    await calm()
    assert await release.state() == "draining"
    report = await release.client.report()
    assert report["sources"][-1]["error"] == "broker is gone"
    source.mend("hold")
    assert await ended(release.drain) == "drained"
    assert source.calls.count("hold") >= 2


@pytest.mark.parametrize("step", ["hold", "settled", "count"])
async def test_a_source_that_stays_away_fails_the_drain_at_its_deadline(
    step: Step,
) -> None:
    source = ManualSource("engine")
    source.fail(step, SourceUnavailable("no route to redis://u:secret@host"))
    release = sourced(source)
    await release.client.begin(timeoutMs=300)
    begun = time.monotonic()
    assert await ended(release.drain) == "failed"
    assert time.monotonic() - begun > 0.25
    source.mend(step)
    assert await failure_of(release) == "no route to redis://***@host"


async def test_a_source_that_was_away_is_not_blamed_for_a_later_drain() -> None:
    source = ManualSource()
    source.fail("count", SourceUnavailable("broker is gone"))
    app = Waiting()
    release = Release(app)
    release.drain.add_source(source)
    await release.client.begin()
    await asyncio.sleep(0.05)
    await release.client.resume()
    source.mend("count")
    async with release.call():
        await release.client.begin(OTHER_NONCE, timeoutMs=100)
        assert await ended(release.drain) == "failed"
        assert await failure_of(release, OTHER_NONCE) == "RUNTIME_DRAIN_TIMEOUT"
        app.go.set()


async def test_a_count_that_hangs_is_unknown_and_names_who_does_not_answer() -> None:
    source = ManualSource("engine", blocked=["count"])
    release = sourced(source)
    await release.client.begin()
    asked = time.monotonic()
    answer = await release.client.status()
    assert 0.2 < time.monotonic() - asked < 0.6
    assert (answer.status_code, answer.json()["code"]) == (
        503,
        "RUNTIME_DRAIN_COUNTERS_UNKNOWN",
    )
    assert "engine" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    source.unblock("count")
    assert await ended(release.drain) == "drained"


async def test_a_release_whose_source_is_silent_is_never_drained() -> None:
    """J5: unknown, never zero; the drain is not `drained`."""
    source = ManualSource(blocked=["count"])
    release = sourced(source, count_timeout=0.02)
    await release.client.begin(timeoutMs=400)
    assert await ended(release.drain) == "failed"
    report = await release.client.report()
    assert (report["inFlight"]["jobs"], report["inFlight"]["http"]) == (None, 0)
    assert report["inFlight"]["schedules"] is None


async def test_a_count_that_fails_is_unknown_to_the_status_and_names_the_source() -> (
    None
):
    source = ManualSource("engine", blocked=["settled"])
    source.fail("count", RuntimeError("boom"))
    release = sourced(source)
    await release.client.begin()
    answer = await release.client.status()
    assert (answer.status_code, answer.json()["code"]) == (
        503,
        "RUNTIME_DRAIN_COUNTERS_UNKNOWN",
    )
    assert "engine" in answer.json()["detail"]


async def test_a_count_that_fails_fails_the_drain_with_its_message() -> None:
    source = ManualSource("engine")
    source.fail("count", RuntimeError("boom"))
    release = sourced(source)
    await release.client.begin()
    assert await ended(release.drain) == "failed"
    source.mend("count")
    assert await failure_of(release) == "boom"


@pytest.mark.parametrize("wrong", [-1, 0.5, "1", None, True, float("nan")])
async def test_a_count_that_is_no_whole_number_is_invalid(wrong: object) -> None:
    source = ManualSource("engine", blocked=["settled"])
    source.set_counts(schedules=wrong)
    release = sourced(source)
    await release.client.begin()
    answer = await release.client.status()
    assert (answer.status_code, answer.json()["code"]) == (
        500,
        "RUNTIME_DRAIN_COUNTERS_INVALID",
    )
    assert "engine" in answer.json()["detail"]
    source.settle()
    assert await ended(release.drain) == "failed"
    source.set_counts()
    assert await failure_of(release) == "RUNTIME_DRAIN_COUNTERS_INVALID"


async def test_late_work_after_everything_settled_is_not_idle() -> None:
    source = ManualSource()
    source.set_counts(jobs=1)
    release = sourced(source)
    await release.client.begin()
    assert await ended(release.drain) == "failed"
    assert await failure_of(release) == "RUNTIME_DRAIN_NOT_IDLE"


@pytest.mark.parametrize("intake", ["clock", "pull", "push"])
async def test_a_source_added_during_a_drain_is_held(intake: Any) -> None:
    app = Waiting()
    release = Release(app)
    late = ManualSource("late", intake)
    async with release.call() as call:
        await release.client.begin()
        release.drain.add_source(late)
        await calm()
        if intake != "push":
            assert late.is_held
        app.go.set()
        await call.wait()
        assert await ended(release.drain) == "drained"
    assert late.is_held


@pytest.mark.parametrize("intake", ["clock", "pull", "push"])
async def test_a_source_added_after_a_drain_is_held_too(intake: Any) -> None:
    release = Release()
    await release.client.begin()
    await ended(release.drain)
    late = ManualSource("late", intake)
    release.drain.add_source(late)
    await calm()
    assert late.is_held
    await release.client.resume()
    assert not late.is_held


async def test_a_push_source_added_once_others_are_held_is_held_at_once() -> None:
    slow = ManualSource("slow", "push", blocked=["settled"])
    release = sourced(slow)
    await release.client.begin()
    await calm()
    assert slow.is_held
    late = ManualSource("late", "push")
    release.drain.add_source(late)
    await calm()
    assert late.is_held
    slow.settle()
    assert await ended(release.drain) == "drained"


async def test_a_push_source_added_early_holds_no_other_push_source() -> None:
    """Admitted work, a running job too, may feed push sources until it is done."""
    pull = ManualSource("pull", blocked=["settled"])
    release = sourced(pull)
    await release.client.begin()
    release.drain.add_source(ManualSource("late", "push"))
    await calm()

    async def job() -> None:
        return None

    await release.drain.spawn(job())
    pull.settle()
    assert await ended(release.drain) == "drained"


async def test_a_source_of_a_taken_name_or_of_no_form_is_refused() -> None:
    drain = new_drain()
    drain.add_source(ManualSource("engine"))
    with pytest.raises(Misuse, match="engine"):
        drain.add_source(ManualSource("engine"))
    with pytest.raises(Misuse, match="tasks"):
        drain.add_source(ManualSource("tasks"))
    with pytest.raises(Misuse, match="hold"):
        drain.add_source(object())  # type: ignore[arg-type]  # that is the point
    with pytest.raises(Misuse, match="clock, pull or push"):
        drain.add_source(ManualSource("other", "both"))  # type: ignore[arg-type]


async def test_credentials_of_a_failure_are_masked_everywhere() -> None:
    """V2: the secret is in no status and no report."""
    source = ManualSource("engine")
    source.fail("settled", Exception("redis://:secret@host refused"))
    release = sourced(source)
    await release.client.begin()
    await ended(release.drain)
    assert await failure_of(release) == "redis://***@host refused"
    assert "secret" not in json.dumps(await release.client.report())


async def test_a_source_that_cannot_say_what_it_runs_breaks_no_report() -> None:
    class Mute(ManualSource):
        def running(self) -> Any:
            raise RuntimeError("no connection")

    release = sourced(Mute())
    answer = await release.client.control("GET", "/.drainmw/v1/report")
    assert answer.status_code == 200


async def test_the_ids_and_failures_of_an_engine_are_escaped_and_bounded() -> None:
    """V1: whoever enqueues a job may choose its id, and what it was given."""
    hostile = "\x1b]0;x\x07\nfake line" + "\U000e0041" * 1_000_000

    class Engine(ManualSource):
        def running(self) -> Iterator[Running]:
            return iter([Running(hostile, 0.0)] * 1000)

    engine = Engine()
    engine.set_counts(jobs=1000)
    engine.fail("settled", SourceUnavailable(hostile))
    release = sourced(engine)
    await release.client.begin()
    await calm()
    report = json.dumps(await release.client.report(), ensure_ascii=False)
    assert report.isprintable()
    assert len(report) < 50_000


async def test_a_spawned_job_is_counted_and_named_until_it_ends() -> None:
    release = Release()
    go = asyncio.Event()

    async def reindex() -> str:
        await go.wait()
        return "done"

    job = release.drain.spawn(reindex(), name="reindex")
    await release.client.begin()
    await calm()
    assert (await release.client.status()).json()["inFlight"]["jobs"] == 1
    blockers = (await release.client.report())["blockers"]
    assert [(b["kind"], b["path"]) for b in blockers] == [("jobs", "reindex")]
    with pytest.raises(IntakeRefused):
        release.drain.spawn(reindex())
    go.set()
    assert await job == "done"
    assert await ended(release.drain) == "drained"


# Several loops


def test_two_loops_in_two_threads_share_one_drain() -> None:
    app_loops: dict[str, Waiting] = {}
    drain = new_drain()
    ready, go = threading.Barrier(3, timeout=10), threading.Event()

    def serve(name: str) -> int:
        async def life() -> int:
            app = Waiting()
            app_loops[name] = app
            release = Release(app, drain=drain)
            async with release.call() as call:
                await asyncio.to_thread(ready.wait)
                await drain.begun
                refused = await release.client.get("/")
                await asyncio.to_thread(go.wait, 10)
                app.go.set()
                await call.wait()
            return refused.status_code

        return asyncio.run(life())

    async def drive() -> list[str]:
        release = Release(drain=drain)
        await asyncio.to_thread(ready.wait)
        try:
            await release.client.begin()
            states = [await release.state()]
            assert (await release.in_flight())["http"] == 2
        finally:
            go.set()
        return [*states, await ended(drain)]

    with ThreadPoolExecutor(2) as pool:
        servers = [pool.submit(serve, name) for name in ("a", "b")]
        assert asyncio.run(drive()) == ["draining", "drained"]
        assert [server.result(10) for server in servers] == [503, 503]


EAGER = getattr(asyncio, "eager_task_factory", None)  # from 3.12 on


@pytest.mark.parametrize("factory", [None] if EAGER is None else [None, EAGER])
def test_a_drain_whose_loop_was_closed_is_carried_on_by_the_next(factory: Any) -> None:
    """Starlette's TestClient makes a loop for each call; some start tasks at once."""
    drain = new_drain()
    source = ManualSource()
    drain.add_source(source)

    async def asked(call: Callable[[Client], Awaitable[Any]]) -> Any:
        asyncio.get_running_loop().set_task_factory(factory)
        return (await call(Release(drain=drain).client)).json()

    assert asyncio.run(asked(lambda client: client.begin()))["accepted"] is True
    assert asyncio.run(asked(lambda client: client.status()))["status"] == "drained"
    assert source.is_held
    answer = asyncio.run(asked(lambda client: client.resume()))
    assert answer == {"phase": "serving", "epoch": 2}
    assert not source.is_held
    answer = asyncio.run(asked(lambda client: client.begin(OTHER_NONCE)))
    assert answer == {"accepted": True, "duplicate": False}
    assert asyncio.run(asked(lambda c: c.status(OTHER_NONCE)))["status"] == "drained"


@pytest.mark.parametrize("step", ["hold", "settled"])
def test_a_closed_loop_in_which_a_source_hung_can_still_be_resumed(step: Step) -> None:
    drain = new_drain()
    source = ManualSource(blocked=[step])
    drain.add_source(source)
    asyncio.run(Release(drain=drain).client.begin())

    async def resumed() -> tuple[int, int]:
        release = Release(drain=drain)
        async with asyncio.timeout(1.0):
            answer = await release.client.resume()
        return answer.status_code, (await release.client.get("/readyz")).status_code

    assert asyncio.run(resumed()) == (200, 200)


@pytest.mark.parametrize("ask", ["status", "begin"])
def test_a_retry_in_another_loop_carries_the_drain_on(ask: str) -> None:
    drain = new_drain()
    asyncio.run(Release(drain=drain).client.begin())

    async def again() -> str:
        release = Release(drain=drain)
        await getattr(release.client, ask)()
        return await ended(drain)

    assert asyncio.run(again()) == "drained"


def test_the_begin_wakes_app_code_in_another_loop() -> None:
    drain = new_drain()
    waiting = threading.Event()

    def app() -> str:
        async def life() -> str:
            told = asyncio.ensure_future(_until(drain))
            await asyncio.sleep(0)
            waiting.set()
            async with asyncio.timeout(5):
                return await told

        return asyncio.run(life())

    async def begin() -> None:
        await drain.begin(begin_request())

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(app)
        assert waiting.wait(5)
        asyncio.run(begin())
        assert told.result(5) == "begun"


async def _until(drain: Drain) -> str:
    await drain.begun
    return "begun"


def test_a_resume_does_not_wait_for_a_loop_that_is_busy() -> None:
    """R1: it answers within 1 s, though the loop of the drain is blocked."""
    drain = new_drain()
    begun, let_go = threading.Event(), threading.Event()

    def blocked() -> None:
        async def life() -> None:
            await drain.begin(begin_request())
            begun.set()
            let_go.wait(10)
            await calm()

        asyncio.run(life())

    async def resume() -> float:
        asked = time.monotonic()
        async with asyncio.timeout(5):
            await drain.resume(NONCE)
        return time.monotonic() - asked

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(blocked)
        assert begun.wait(5)
        try:
            assert asyncio.run(resume()) < 1.0
        finally:
            let_go.set()
            loop.result(10)
    assert drain.phase == "serving"


async def test_a_source_added_in_a_thread_just_before_a_resume_is_not_held() -> None:
    """The loop comes to hold it when nobody wants that any more."""
    drain, source = new_drain(), ManualSource()
    await drain.begin(begin_request())
    adding = threading.Thread(target=drain.add_source, args=(source,))
    adding.start()
    adding.join()
    await drain.resume(NONCE)
    await calm()
    assert (drain.not_ready(), source.is_held) == (None, False)


async def test_a_drain_that_was_resumed_before_its_loop_came_to_it_holds_nothing() -> (
    None
):
    drain, source = new_drain(), ManualSource()
    drain.add_source(source)
    await drain.begin(begin_request())
    await drain.resume(NONCE)  # so this loop is its home
    beginning = threading.Thread(
        target=lambda: asyncio.run(drain.begin(begin_request(OTHER_NONCE)))
    )
    beginning.start()
    beginning.join()
    await drain.resume(OTHER_NONCE)
    await calm()
    assert (drain.not_ready(), source.is_held) == (None, False)


def test_a_drain_begun_while_a_resume_is_under_way_elsewhere_ends_by_itself() -> None:
    drain = new_drain()
    source = ManualSource()
    drain.add_source(source)
    begun, resuming = threading.Event(), threading.Event()

    async def home() -> str:
        await drain.begin(begin_request())
        await drain.ended
        begun.set()
        while drain.phase != "serving":
            time.sleep(0.001)  # noqa: ASYNC251 the resume must find the loop busy
        time.sleep(0.05)  # noqa: ASYNC251 and have asked it to let the sources go
        await drain.begin(begin_request(OTHER_NONCE))
        return await ended(drain)

    async def resume() -> None:
        await drain.resume(NONCE)

    with ThreadPoolExecutor(1) as pool:
        phase = pool.submit(asyncio.run, home())
        assert begun.wait(5)
        asyncio.run(resume())
        resuming.set()
        assert phase.result(10) == "drained"
    assert source.is_held


# Values


async def test_remaining_is_the_time_to_the_deadline() -> None:
    clock = ManualClock()
    drain = new_drain(clock=clock)
    assert drain.remaining is None
    await drain.begin(begin_request())
    clock.advance(2.0)
    assert drain.remaining == 3.0
    clock.advance(4.0)
    assert drain.remaining == -1.0
    await drain.resume(NONCE)
    assert drain.remaining is None


async def test_a_begin_through_the_drain_itself_raises_what_the_wire_says() -> None:
    drain = new_drain()
    assert await drain.begin(begin_request()) is False
    assert await drain.begin(begin_request()) is True
    with pytest.raises(AlreadyStarted):
        await drain.begin(begin_request(THIRD_NONCE))


async def test_the_report_of_a_serving_release_has_every_member() -> None:
    clock = ManualClock()
    release = Release(clock=clock, app="shop", revision="a" * 40)
    await release.client.get("/")
    clock.advance(1.5)
    report = await release.client.report()
    source = {
        "name": "tasks",
        "intake": "push",
        "held": False,
        "jobs": 0,
        "schedules": 0,
        "overdue": None,
        "handedBack": None,
        "error": None,
        "running": [],
        "worker": os.getpid(),
    }
    workers = report.pop("workers")
    assert report == {
        "app": "shop",
        "revision": "a" * 40,
        "phase": "serving",
        "epoch": 0,
        "nonce": None,
        "sourceRevision": None,
        "targetRevision": None,
        "remainingMs": None,
        "inFlight": {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0},
        "admittedTotal": 1,
        "refusedTotal": 0,
        "lastAdmittedAgoMs": 1500,
        "lastRefusedAgoMs": None,
        "failure": None,
        "blockers": [],
        "sources": [source],
        "warnings": [],
    }
    assert [(w["phase"], w["unknown"], w["ageMs"]) for w in workers] == [
        ("serving", False, 1500)
    ]


async def test_the_report_names_twenty_blockers_oldest_first() -> None:
    clock = ManualClock()
    app = Waiting()
    release = Release(app, clock=clock)
    calls: list[AsgiDriver] = []
    for number in range(25):
        calls.append(release.call(http_scope(f"/{number}")))
        await calls[-1].start()
        clock.advance(1.0)
    await release.client.begin(timeoutMs=600_000)
    blockers = (await release.client.report())["blockers"]
    assert [b["path"] for b in blockers] == [f"/{n}" for n in range(20)]
    assert (blockers[0]["ageMs"], blockers[0]["method"]) == (25_000, "GET")
    for call in calls:
        await call.cancel()
    assert await ended(release.drain) == "drained"


async def test_paths_are_shown_encoded_cut_and_without_a_query() -> None:
    """V1: nothing of a path is executed or breaks a line."""
    app = Waiting()
    release = Release(app)
    path = "/\x1b]0;x\x07\nfake line"
    scope = http_scope(path, query_string=b"token=secret")
    async with release.call(scope), release.call(http_scope("/" + "é" * 500)):
        shown = [b["path"] for b in (await release.client.report())["blockers"]]
    assert shown[0] == "/%1B%5D0;x%07%0Afake%20line"
    assert (len(shown[1]), shown[1].isascii()) == (128, True)


@pytest.mark.parametrize(
    ("redact", "shown"),
    [(lambda path: path[:3], "/or"), (lambda path: 1 / 0, "/redacted")],
)
async def test_a_redactor_decides_what_is_shown_of_a_path(
    redact: Callable[[str], str], shown: str
) -> None:
    release = Release(Waiting(), redact_path=redact)
    async with release.call(http_scope("/orders/mallory")):
        assert (await release.client.report())["blockers"][0]["path"] == shown


async def test_counts_may_be_answered_by_a_coroutine() -> None:
    class Remote(ManualSource):
        def count(self) -> Awaitable[Counts]:
            return self.asked()

        async def asked(self) -> Counts:
            await asyncio.sleep(0)
            return Counts(3, 4)

    release = sourced(Remote(blocked=["settled"]))
    await release.client.begin()
    counts = (await release.client.status()).json()["inFlight"]
    assert counts == {"http": 0, "websocket": 0, "jobs": 3, "schedules": 4}


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task.get_name() for task in tasks if "drainmw" in task.get_name()] == []


@pytest.mark.usefixtures("nothing_left")
async def test_a_drain_that_has_ended_leaves_no_task_behind() -> None:
    release = sourced(ManualSource())
    await release.client.begin()
    await ended(release.drain)
    await calm()


@pytest.mark.usefixtures("nothing_left")
async def test_a_drain_that_was_resumed_leaves_no_task_behind() -> None:
    release = sourced(ManualSource(blocked=["settled"]))
    await release.client.begin()
    await calm()
    await release.client.resume()
    await calm()


# What must not get lost at the edges


async def test_a_source_added_while_the_verdict_is_read_is_waited_for() -> None:
    """D: nobody has asked it, so nothing is proven."""
    asked, busy = ManualSource("asked", blocked=["count"]), ManualSource("busy")
    release = sourced(asked, count_timeout=5)
    await release.client.begin()
    await calm()
    busy.set_counts(jobs=3)
    busy.block("settled")
    release.drain.add_source(busy)
    await calm()
    asked.unblock("count")
    await calm()
    assert await release.state() == "draining"
    busy.set_counts()
    busy.settle()
    await calm()
    assert await release.state() == "drained"


@pytest.mark.parametrize("count", [10**400, -(10**400)])
async def test_a_begin_holds_whatever_a_count_says(count: int) -> None:
    source = ManualSource(blocked=["settled"])
    source.set_counts(jobs=count)
    release = sourced(source)
    assert (await release.client.begin()).status_code == 202
    assert source.is_held


@pytest.mark.parametrize("how", ["remote", "broken"])
async def test_a_counter_that_cannot_be_seen_is_logged_as_null(how: str) -> None:
    """Never as zero; at the end the verdict has seen it."""

    class Remote(ManualSource):
        def count(self) -> Awaitable[Counts]:
            return self._counted()

    told: dict[str, Any] = {}

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        told[event["event"]] = {**event}
        raise structlog.DropEvent

    source = Remote() if how == "remote" else ManualSource()
    if how == "broken":
        source.fail("count", OSError("no answer"))
    release = sourced(source)
    structlog.configure(processors=[keep])
    try:
        await release.client.begin()
        source.mend("count")
        assert await ended(release.drain) == "drained"
    finally:
        structlog.reset_defaults()
    assert {told["drain begun"][kind] for kind in ("jobs", "schedules")} == {None}
    assert {told["drain begun"][kind] for kind in ("http", "websocket")} == {0}
    assert {told["drain ended"][kind] for kind in ("jobs", "schedules")} == {0}


async def test_a_logger_that_fails_stops_no_drain() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("of the app's logger")

    source = ManualSource()
    release = sourced(source)
    structlog.configure(processors=[fails])
    try:
        assert (await release.client.begin()).status_code == 202
        await calm()
        assert source.is_held
        assert await release.state() == "drained"
    finally:
        structlog.reset_defaults()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_resume_releases_also_where_the_loop_was_closed_in_the_middle() -> None:
    """R1: the tasks of the drain died with their loop, its holds did not."""
    source = ManualSource(blocked=["settled"])
    release = sourced(source)
    first = asyncio.new_event_loop()
    first.run_until_complete(release.drain.begin(begin_request()))
    first.run_until_complete(calm())
    for task in asyncio.all_tasks(first):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they are
    first.close()
    assert source.is_held
    assert asyncio.run(release.drain.resume(NONCE)) == 2
    assert not source.is_held
    assert release.drain.not_ready() is None
    del source, release, task
    gc.collect()  # what cannot be cancelled any more may say so, here and not later


async def test_a_release_that_finds_nobody_is_tried_again() -> None:
    source = ManualSource()
    source.fail("release", SourceUnavailable("blip"))
    release = sourced(source)
    await release.client.begin()
    await calm()
    resuming = asyncio.create_task(release.client.resume())
    await calm()
    assert release.drain.not_ready() == "not released: manual"
    source.mend("release")
    assert (await resuming).status_code == 200
    assert release.drain.not_ready() is None


async def test_an_exact_retry_of_a_resume_releases_what_is_stuck() -> None:
    source = ManualSource()
    source.fail("release", RuntimeError("boom"))
    release = sourced(source)
    await release.client.begin()
    await calm()
    await release.client.resume()
    assert release.drain.not_ready() == "not released: manual"
    source.mend("release")
    assert (await release.client.resume()).status_code == 200
    assert release.drain.not_ready() is None


@pytest.mark.parametrize("step", ["hold", "settled"])
async def test_a_source_whose_own_task_was_cancelled_fails_the_drain(
    step: Literal["hold", "settled"],
) -> None:
    class Cancelled(ManualSource):
        async def _passes(self, asked: Any) -> None:
            if asked == step:
                raise asyncio.CancelledError
            await super()._passes(asked)

    release = sourced(Cancelled())
    await release.client.begin()
    await calm()
    answer = (await release.client.status()).json()
    assert (answer["status"], answer["failure"]) == ("failed", "CancelledError")


async def test_sessions_that_go_on_spawning_are_waited_for() -> None:
    """H9: who was let in and leaves a job behind is not late."""
    jobs = 0

    async def spawns(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal jobs
        jobs += 1
        release.drain.spawn(asyncio.sleep(0.01))
        await hello(scope, receive, send)

    release = Release(spawns, admit=lambda scope: jobs < 20)
    async with release.call() as first:
        await release.client.begin()
        while jobs < 20:
            await release.client.get("/")
            await asyncio.sleep(0.005)
        await first.receive_output()
        await first.receive_output()
    until = asyncio.get_running_loop().time() + 5
    while await release.state() == "draining":
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.01)
    assert await release.state() == "drained"


async def test_sources_are_asked_in_the_loop_of_the_drain() -> None:
    threads: set[int] = set()

    class Asked(ManualSource):
        def count(self) -> Any:
            threads.add(threading.get_ident())
            return super().count()

    release = sourced(Asked(blocked=["settled"]))
    await release.client.begin()
    await calm()
    threads.clear()
    status = await asyncio.to_thread(asyncio.run, release.drain.status(NONCE))
    assert status["status"] == "draining"
    assert threads == {threading.get_ident()}


# A worker that cannot join its siblings


@pytest.fixture
def one_of_several(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process believes that it was started with siblings."""
    monkeypatch.setattr("drainmw.release.may_be_one_of_several", lambda: True)
    monkeypatch.setattr("drainmw.release.supervisor", itself)
    monkeypatch.setattr("drainmw.release.JOIN_PAUSE", 0.0)
    runtime = Path(tempfile.mkdtemp(prefix="dr"))
    monkeypatch.setenv("DRAINMW_RUNTIME_DIR", str(runtime))
    groups: list[Group] = []

    def joined(*arguments: Any, **keywords: Any) -> Group:
        groups.append(Group(*arguments, **keywords))
        return groups[-1]

    monkeypatch.setattr("drainmw.release.Group", joined)
    yield
    for group in groups:
        group.leave()
    shutil.rmtree(runtime)


async def test_a_worker_refuses_until_it_has_joined(
    one_of_several: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its siblings may drain meanwhile; what it admitted nobody would count."""

    def busy(*_: Any, **__: Any) -> Any:
        raise GroupError("the lock of the group is not to be had")

    release = Release()
    with monkeypatch.context() as stopped:
        stopped.setattr("drainmw.release.Group", busy)
        assert (await release.client.get("/")).status_code == 503
        ready = await release.client.get("/readyz")
        assert ready.status_code == 503
        assert "the lock of the group" in ready.json()["detail"]
        assert (await release.client.begin()).status_code == 503
    assert (await release.client.get("/")).status_code == 200
    assert (await release.client.get("/readyz")).status_code == 200
    assert release.drain.unjoined is None


async def test_a_worker_that_spawns_has_joined(one_of_several: None) -> None:
    """Its jobs count, though no request has come to it yet."""
    release = Release()
    job = release.drain.spawn(asyncio.sleep(30))
    assert release.drain.ledger.gate[0] == 0
    job.cancel()


async def test_a_source_added_on_a_waiting_worker_is_held() -> None:
    release = Release()
    async with release.call():
        await release.client.begin()
        await calm()
        late = ManualSource("late", "push")
        release.drain.add_source(late)
    await calm()
    assert late.is_held
    assert await release.state() == "drained"


@pytest.mark.parametrize("said", [True, False, None, "true", 1])
async def test_who_begins_says_whether_a_handoff_follows(said: Any) -> None:
    """Only `true` does; whatever else stands there is not of the contract."""
    drain = new_drain()
    assert not drain.hands_over
    members = {} if said is None else {"handoff": said}
    await drain.begin(begin_request(**members))
    assert drain.hands_over is (said is True)
    await drain.resume(NONCE)
    assert not drain.hands_over


async def test_a_queue_leaves_to_the_next_release_what_a_begin_says() -> None:
    drain = new_drain()
    queue = KeyedQueue("mail", handoff=lambda: drain.hands_over)
    drain.add_source(queue)
    drain.add_state(QueueState(queue))
    go, ran = asyncio.Event(), []

    @queue.handler("send")
    async def send(number: int) -> None:
        await go.wait()
        ran.append(number)

    first, second = (queue.run("ann", send, number) for number in range(2))
    await asyncio.sleep(0)
    await drain.begin(begin_request(handoff=True))
    with pytest.raises(ResultElsewhere):
        await second
    go.set()
    await first
    await drain.ended
    assert (drain.phase, ran) == ("drained", [0])
    await drain.resume(NONCE)
    await queue.when_idle()
    assert ran == [0, 1]
