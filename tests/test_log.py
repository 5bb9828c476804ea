"""One event per transition, for an app that configured logging and for one not."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from drainmw import SourceUnavailable
from drainmw.log import NAME, logger
from drainmw.testing import ManualClock, ManualSource, http_scope
from tests.rig import NONCE, SOURCE, TARGET, TOKEN, Release, Waiting, calm

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)[NAME] for record in caplog.records if record.name == NAME]


async def test_each_transition_is_one_event_with_its_facts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, NAME)
    app = Waiting()
    release = Release(app)
    release.drain.cordon()
    release.drain.cordon()
    release.drain.uncordon()
    async with release.call() as call:
        await release.client.begin()
        await release.client.begin()
        await calm()
        app.go.set()
        await call.wait()
        await release.drain.ended
    await release.client.resume()
    await release.client.resume()
    assert [
        (e["event"], e["phase"], e["epoch"], e["http"]) for e in events(caplog)
    ] == [
        ("cordoned", "cordoned", 0, 0),
        ("serving", "serving", 0, 0),
        ("drain begun", "draining", 1, 1),
        ("drain ended", "drained", 1, 0),
        ("drain resumed", "serving", 2, 0),
    ]
    begun = events(caplog)[2]
    assert (begun["nonce"], begun["source_revision"]) == (NONCE, SOURCE)
    assert begun["target_revision"] == TARGET
    assert {"http", "websocket", "jobs", "schedules"} <= set(begun)


async def test_a_failure_is_logged_with_its_message_and_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """V2: the secret is in no log."""
    caplog.set_level(logging.DEBUG)
    source = ManualSource()
    source.fail("settled", Exception("redis://:secret@host refused"))
    release = Release()
    release.drain.add_source(source)
    await release.client.begin()
    await release.drain.ended
    assert events(caplog)[-1]["failure"] == "redis://***@host refused"
    assert "secret" not in caplog.text + str([vars(r) for r in caplog.records])
    assert TOKEN not in caplog.text


async def test_a_source_that_is_away_is_logged_once_not_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = ManualSource("engine")
    source.fail("hold", SourceUnavailable("http://u:secret@h is gone"))
    release = Release()
    release.drain.add_source(source)
    await release.client.begin()
    await asyncio.sleep(0.2)
    assert source.calls.count("hold") >= 2
    failed = [e for e in events(caplog) if e["event"] == "source failed"]
    assert [(e["source"], e["error"]) for e in failed] == [
        ("engine", "http://***@h is gone")
    ]
    await release.client.resume()


async def test_a_waiting_drain_names_its_oldest_blockers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """V1: a path is shown encoded and without its query."""
    caplog.set_level(logging.INFO, NAME)
    clock = ManualClock()
    release = Release(Waiting(), clock=clock, report_interval=0.1)
    scope = http_scope("/\x1b]0;x\x07\nfake line", query_string=b"key=hidden")
    async with release.call(scope), release.call(http_scope("/second")):
        clock.advance(2.0)
        await release.client.begin()
        await asyncio.sleep(0.25)
        waits = [e for e in events(caplog) if "blockers" in e]
        assert 1 <= len(waits) <= 2
        assert waits[0]["event"] == "drain waiting"
        assert waits[0]["blockers"] == (
            "GET /%1B%5D0;x%07%0Afake%20line 2.0 s, GET /second 2.0 s"
        )
        assert (waits[0]["http"], waits[0]["remaining_ms"]) == (2, 5000)
    assert "hidden" not in caplog.text
    lines = [r.getMessage() for r in caplog.records if r.name == NAME]
    assert all(line.isprintable() for line in lines)


async def test_a_waiting_drain_says_why_a_counter_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, NAME)
    source = ManualSource("engine")
    release = Release(report_interval=0.1)
    release.drain.add_source(source)
    await release.client.begin()
    await asyncio.sleep(0)
    source.fail("count", SourceUnavailable("the broker is away"))
    await asyncio.sleep(0.25)
    waits = [e for e in events(caplog) if e["event"] == "drain waiting"]
    assert waits[0]["unknown"] == "engine: the broker is away"
    await release.client.resume()


def test_a_value_cannot_break_its_line(caplog: pytest.LogCaptureFixture) -> None:
    logger().warning("event", path="a\nb\x1b[31m", empty="", words="a b", number=1)
    assert caplog.messages == [
        "event path=a\\nb\\x1b[31m empty='' words='a b' number=1"
    ]


def test_an_exception_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise LookupError("inside")
    except LookupError:
        logger().error("admit failed", exc_info=True)
    assert "Traceback" in caplog.text
    assert "LookupError: inside" in caplog.text


def broken() -> OSError:
    """A failure as an adapter may have it, with a secret in its cause alone."""
    try:
        try:
            raise OSError("redis://:hunter2@host refused")
        except OSError as exc:
            raise OSError("no broker") from exc
    except OSError as exc:
        return exc


@pytest.mark.parametrize("form", ["itself", "a tuple", "true"])
def test_no_secret_is_in_a_traceback(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """V2"""
    exc = broken()
    forms = {"itself": exc, "a tuple": (type(exc), exc, exc.__traceback__)}
    if form == "true":
        try:
            raise exc
        except OSError:
            logger().error("export failed", exc_info=True)
    else:
        logger().error("export failed", exc_info=forms[form])
    assert "hunter2" not in caplog.text
    assert "OSError: redis://***@host refused" in caplog.text
    assert "OSError: no broker" in caplog.text


def test_no_secret_is_in_a_traceback_of_an_app_that_configured_structlog() -> None:
    """V2: whatever it makes of an exception."""
    seen: list[Any] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        seen.append(structlog.processors.format_exc_info(logger, method, event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        logger().error("export failed", exc_info=broken())
    finally:
        structlog.reset_defaults()
    assert "hunter2" not in str(seen)
    assert "redis://***@host refused" in seen[0]["exception"]


def test_an_app_that_configured_structlog_gets_our_events_its_own_way() -> None:
    seen: list[Any] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        seen.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        Release().drain.cordon()
    finally:
        structlog.reset_defaults()
    assert (seen[0]["event"], seen[0]["phase"]) == ("cordoned", "cordoned")


def test_the_level_of_the_standard_logger_is_obeyed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, NAME)
    Release().drain.cordon()
    assert caplog.records == []


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A child of its own, since logging is configured once a process."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)


QUIET = """
import asyncio, json, sys
from tests.rig import Release

async def main():
    release = Release()
    await release.client.get("/")
    release.drain.cordon()
    await release.client.begin()
    await release.drain.ended
    await release.client.report()
    await release.client.resume()

asyncio.run(main())
"""


def test_an_app_that_configured_no_logging_drains_in_silence() -> None:
    """V3: nothing on standard output, and nothing of a good life on the other."""
    child = subprocess.run(
        [sys.executable, "-c", QUIET],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert (child.stdout, child.stderr) == ("", "")


WARNED = """
from drainmw import Drain, DrainMiddleware
DrainMiddleware(lambda *_: None, Drain())
"""


def test_a_warning_goes_to_standard_error_as_of_any_library() -> None:
    """V3, X1: one clear line."""
    child = subprocess.run(
        [sys.executable, "-c", WARNED],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert child.stdout == ""
    assert len(child.stderr.splitlines()) == 1
    assert "DRAINMW_TOKEN" in child.stderr


def test_a_variable_that_nobody_reads_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMW_TIMEUOT", "5")
    monkeypatch.setenv("DRAINMW_TIMEOUT", "5")
    Release()
    assert [(e["event"], e["variable"], e["meant"]) for e in events(caplog)] == [
        ("unknown variable", "DRAINMW_TIMEUOT", "DRAINMW_TIMEOUT")
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_importing_us_configures_nothing() -> None:
    code = (
        "import json, logging, drainmw.middleware, structlog;"
        "print(json.dumps([logging.root.handlers, "
        "logging.getLogger('drainmw').handlers, structlog.is_configured()]))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(child.stdout) == [[], [], False]
