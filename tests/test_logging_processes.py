"""What processes write: the log, the terminal, and what may never be in them."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from drainmw.client import ControlClient
from drainmw.contract import STATUS_PATH
from tests.processes import Held, Process, Served, drainmw, running, served
from tests.rig import AUTHORIZED, NONCE, SOURCE, TARGET, TOKEN

HOSTILE = "/%1b%5d0;x%07%0afake%20line"
SHOWN = "/%1B%5D0;x%07%0Afake%20line"
OFTEN = {"DRAINMW_REPORT_INTERVAL": "0.1"}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def begin(release: Served, timeout_ms: int = 20_000) -> None:
    with release.asked() as client:
        client.begin(NONCE, SOURCE, TARGET, timeout_ms)


# The log of `drainmw serve`


def test_each_transition_is_one_event_with_its_facts(tmp_path: Path) -> None:
    with served(tmp_path, environment={"DRAINMW_TOKEN": TOKEN}) as release:
        with release.asked() as client:
            client.cordon()
            client.cordon()
            client.uncordon()
            with Held(release.port) as held:
                client.begin(NONCE, SOURCE, TARGET, 20_000)
                client.begin(NONCE, SOURCE, TARGET, 20_000)
                held.let_go()
            release.wait_for_event("drain ended")
            client.resume(NONCE)
            client.resume(NONCE)
        release.wait_for_event("drain resumed")
        seen = [
            (event["event"], event["phase"], event["epoch"], event["http"])
            for event in release.events()
            if "phase" in event
        ]
        assert seen == [
            ("cordoned", "cordoned", 0, 0),
            ("serving", "serving", 0, 0),
            ("drain begun", "draining", 1, 1),
            ("drain ended", "drained", 1, 0),
            ("drain resumed", "serving", 2, 0),
        ]
        for event in release.events():
            assert {"event", "level", "logger", "timestamp"} <= event.keys()
            if event["event"].startswith("drain "):
                assert event["nonce"] == NONCE
                assert event["source_revision"] == SOURCE
                assert event["target_revision"] == TARGET
                assert event.keys() >= {"websocket", "jobs", "schedules"}


def test_a_failed_drain_is_logged_with_its_failure(tmp_path: Path) -> None:
    with served(tmp_path) as release, Held(release.port):
        begin(release, timeout_ms=100)
        ended = release.wait_for_event("drain ended")
        assert (ended["phase"], ended["failure"]) == ("failed", "RUNTIME_DRAIN_TIMEOUT")


def test_a_drain_that_waits_names_the_oldest_blockers_again_and_again(
    tmp_path: Path,
) -> None:
    with served(tmp_path, environment=OFTEN) as release:
        paths = ("/first?secret=1", "/second", "/third", "/fourth")
        held = [Held(release.port, path) for path in paths]
        begin(release)
        waiting = release.wait_for_event("drain waiting")
        again = release.wait_for_event("drain waiting", 2)
        for request in held:
            with request:
                request.let_go()
        release.wait_for_event("drain ended")
        assert re.sub(r"\d+\.\d s", "N", waiting["blockers"]) == (
            "POST /first N, POST /second N, POST /third N"
        )
        assert (waiting["http"], waiting["phase"]) == (4, "draining")
        assert 0 < again["remaining_ms"] < waiting["remaining_ms"] < 20_000


def test_the_log_is_json_lines_unless_it_goes_to_a_terminal(tmp_path: Path) -> None:
    with served(tmp_path) as release:
        release.signal()
        assert release.exit_code() == 0
        for line in release.err.lines:
            assert json.loads(line)["event"]


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    with served(tmp_path, terminal=True, environment=OFTEN) as release:
        release.err.wait_for_text("revision")
        log = COLOUR.sub("", release.err.text)
        address = re.search(r"serving .* address=http://127\.0\.0\.1:(\d+) ", log)
        assert address is not None
        with Held(int(address[1]), HOSTILE) as held:
            begin(release)
            release.err.wait_for_text("drain waiting")
            release.err.wait_for_text(re.escape(SHOWN))
            held.let_go()
            release.err.wait_for_text("drain ended")
        release.signal()
        assert release.exit_code() == 0
        plain = COLOUR.sub("", release.err.text)
        assert "\x1b" not in plain
        assert "\x07" not in plain
        assert not [line for line in plain.splitlines() if line.startswith("fake")]
        assert not any(line.startswith("{") for line in plain.splitlines())


# V1: a path that would steer a terminal


def test_a_hostile_path_is_percent_encoded_wherever_it_is_shown(
    tmp_path: Path,
) -> None:
    with (
        served(tmp_path, environment=OFTEN) as release,
        Held(release.port, HOSTILE) as held,
    ):
        begin(release)
        waiting = release.wait_for_event("drain waiting")
        assert re.fullmatch(rf"POST {re.escape(SHOWN)} \d+\.\d s", waiting["blockers"])
        assert release.report()["blockers"][0]["path"] == SHOWN

        target = ("--control", str(release.control))
        report = drainmw("report", *target).stdout
        assert f"blocker    http POST {SHOWN} " in report
        in_json = drainmw("report", "--json", *target).stdout
        waiter = ("-m", "drainmw", "wait", *target)
        with running(*waiter, terminal=True) as process:
            process.out.wait_for_text(re.escape(SHOWN))
            held.let_go()
            assert process.exit_code() == 0
        terminal = process.out.text.replace("\r\x1b[2K", "").replace("\r\n", "\n")
        for shown in (report, in_json, terminal, release.err.text):
            assert not {"\x1b", "\x07", "\r"} & set(shown)
            assert not re.search(r"^fake", shown, re.MULTILINE)


# V2: credentials in what a source says

SECRET = "hunter2"

FAILING = """
from drainmw import Counts, Drain, DrainMiddleware, SourceUnavailable
from tests.served_app import app as inner

class Queue:
    name = "queue"
    intake = "pull"
    def __init__(self, error): self.error = error
    async def hold(self): raise self.error
    async def settled(self): pass
    async def release(self): raise self.error
    def count(self): raise self.error

said = "redis://:hunter2@broker refused, amqp://me:hunter2/@other:5672/x too"

def serve(error):
    drain = Drain()
    drain.add_source(Queue(error))
    return DrainMiddleware(inner, drain)

unreachable = serve(SourceUnavailable(said))
broken = serve(RuntimeError(said))
"""
MASKED = "redis://***@broker refused, amqp://***@other:5672/x too"


@pytest.mark.parametrize("source", ["unreachable", "broken"])
def test_credentials_of_a_source_are_masked_everywhere(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    variables = {**OFTEN, "DRAINMW_TOKEN": TOKEN, "DRAINMW_TIMEOUT": "0.2"}
    app = f"failing:{source}"
    with served(tmp_path, app=app, cwd=tmp_path, environment=variables) as release:
        target = ("--control", str(release.control))
        shown = [drainmw("report", *target).output]
        begin(release, timeout_ms=300)
        ended = release.wait_for_event("drain ended")
        assert (ended["phase"], ended["failure"]) == ("failed", MASKED)
        answer = release.get(f"{STATUS_PATH}?nonce={NONCE}", headers=AUTHORIZED)
        commands = ("report", "status", "wait", "resume", "report")
        shown += [drainmw(command, *target).output for command in commands]
        assert f"failure    {MASKED}\n" in shown[1]
        failed = "failed  http 0  websocket 0  jobs unknown  schedules unknown"
        assert shown[2] == shown[3] == f"{failed}  {MASKED}\n"
        shown += [answer.text, json.dumps(release.report())]
        release.signal()
        release.exit_code()
        shown.append(release.err.text)
    assert MASKED in release.err.text
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
def test_credentials_in_a_traceback_are_masked(tmp_path: Path, terminal: bool) -> None:
    (tmp_path / "raising.py").write_text(
        "password = 'hunter2'\n"
        "raise RuntimeError(f'no redis://:{password}@broker here')\n"
    )
    start = ("-m", "drainmw", "serve", "raising:app", "--port", "0")
    with running(*start, cwd=tmp_path, terminal=terminal) as process:
        assert process.exit_code() == 2
        shown = process.err.text
        assert shown.count("RuntimeError: no redis://***@broker here") == 2
        assert "Traceback" in shown
        assert SECRET not in shown


# The token, and query strings


def test_no_token_and_no_query_is_in_any_output(tmp_path: Path) -> None:
    variables = {**OFTEN, "DRAINMW_TOKEN": TOKEN, "DRAINMW_CLOSE_NOTICE": "60"}
    with served(tmp_path, environment=variables) as release:
        with connect(f"ws://127.0.0.1:{release.port}/live?key=query-of-ws") as wire:
            wire.ping().wait(10)
            release.get("/?key=query-of-get")
            with Held(release.port, "/held?key=query-of-post") as held:
                with ControlClient(url=release.address, tokens=[TOKEN]) as client:
                    client.begin(NONCE, SOURCE, TARGET, 20_000)
                release.get("/?key=query-of-refused")
                release.wait_for_event("drain waiting")
                report = json.dumps(release.report())
                with pytest.raises(Exception, match="503"):
                    connect(f"ws://127.0.0.1:{release.port}/no?key=query-of-denied")
                held.let_go()
        release.wait_for_event("drain ended")
        release.signal()
        assert release.exit_code() == 0
        for shown in (release.err.text, release.out.text, report):
            assert TOKEN not in shown
            assert "key=" not in shown
            assert "query-of" not in shown
        assert "/held" in release.err.text
        assert "/live" in report


# V3: apps that configured a logger of their own, or none


UNCONFIGURED = """
from drainmw import Drain, DrainMiddleware
from tests.served_app import app as inner

app = DrainMiddleware(inner, Drain())
"""

SCRIPT = """
import asyncio, sys

CONFIGURE

from drainmw import Drain, DrainMiddleware
from drainmw.bodies import BeginRequest

async def inner(scope, receive, send):
    await started.wait()

async def main():
    global started
    started = asyncio.Event()
    drain = Drain(report_interval=0.1)
    app = DrainMiddleware(inner, drain)
    scope = {"type": "http", "method": "GET", "path": "/slow", "headers": []}
    request = asyncio.create_task(app(scope, None, None))
    await asyncio.sleep(0)
    drain.cordon()
    await drain.begin(BeginRequest(
        protocol="forgezero-drain/v1", nonce="n" * 43, sourceRevision="a" * 40,
        targetRevision="b" * 40, timeoutMs=20000,
    ))
    while not waited:
        await asyncio.sleep(0.01)
    started.set()
    await request
    await drain.ended
    await drain.resume("n" * 43)

waited = WAITED
asyncio.run(main())
"""


def script(configure: str, waited: str = "True") -> Process:
    """Run an app that drains in a bare script, to its end."""
    text = SCRIPT.replace("CONFIGURE", configure).replace("WAITED", waited)
    with running("-c", text) as process:
        assert process.exit_code() == 0, process.err.text
        return process


def test_an_app_under_uvicorn_that_configured_nothing_writes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "unconfigured.py").write_text(UNCONFIGURED)
    variables = {**OFTEN, "DRAINMW_TOKEN": TOKEN}
    start = ("-m", "uvicorn", "unconfigured:app", "--port", "0", "--no-access-log")
    with running(*start, cwd=tmp_path, environment=variables) as process:
        text = process.err.wait_for_text(r"running on http://127\.0\.0\.1:\d+")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", text)
        assert found is not None
        with (
            ControlClient(url=found[0], tokens=[TOKEN]) as client,
            Held(int(found[1])) as held,
        ):
            client.begin(NONCE, SOURCE, TARGET, 20_000)
            with closing(httpx.Client(trust_env=False)) as http:
                assert http.get(found[0]).status_code == 503
            held.let_go()
            assert [s["status"] for s in client.watch(NONCE)][-1] == "drained"
        process.popen.terminate()
        process.exit_code()
        assert process.out.text == ""
        assert all(line.startswith("INFO: ") for line in process.err.lines)
        assert "drain" not in process.err.text.replace("unconfigured", "")


def test_a_bare_script_that_configured_nothing_gets_its_warnings_alone() -> None:
    process = script("")
    assert process.out.text == ""
    # Python itself shows warnings of loggers that nobody has configured.
    assert process.err.text == (
        "control endpoints closed reason='no token is configured' "
        "remedy='set DRAINMW_TOKEN or DRAINMW_TOKEN_FILE, as `drainmw token` makes "
        "one; the control socket of `drainmw serve` needs none'\n"
    )


FACTS = (
    f"nonce={'n' * 43} source_revision={'a' * 40} target_revision={'b' * 40} "
    "http=1 websocket=0 jobs=0 schedules=0"
)


def test_an_app_that_configured_logging_sees_records_of_our_logger() -> None:
    process = script(
        "import logging\n"
        "form = '%(name)s|%(levelname)s|%(message)s'\n"
        "logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr)\n"
    )
    assert process.out.text == ""
    lines = [line for line in process.err.lines if line.startswith("drainmw|INFO|")]
    assert [line.split("|")[2].split(" phase")[0] for line in lines] == [
        "cordoned",
        "drain begun",
        "drain ended",
        "drain resumed",
    ]
    assert lines[1] == f"drainmw|INFO|drain begun phase=draining epoch=1 {FACTS}"


def test_a_record_carries_its_facts_beside_its_text() -> None:
    process = script(
        "import json, logging\n"
        "class Facts(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        print(json.dumps(record.drainmw), file=sys.stderr)\n"
        "logging.getLogger('drainmw').addHandler(Facts())\n"
        "logging.getLogger('drainmw').setLevel('INFO')\n"
        "waited = []\n",
    )
    facts = [json.loads(line) for line in process.err.lines]
    begun = next(fact for fact in facts if fact["event"] == "drain begun")
    assert begun == {
        "event": "drain begun",
        "phase": "draining",
        "epoch": 1,
        "nonce": "n" * 43,
        "source_revision": "a" * 40,
        "target_revision": "b" * 40,
        "http": 1,
        "websocket": 0,
        "jobs": 0,
        "schedules": 0,
    }


def test_an_app_that_configured_structlog_sees_events_its_own_way() -> None:
    process = script(
        "import structlog\n"
        "def mine(logger, method, event):\n"
        "    names.append(event['event'])\n"
        "    return f\"MINE {method} {event['event']} {event.get('phase')}\"\n"
        "names = []\n"
        "structlog.configure(processors=[mine],\n"
        "    logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n",
        waited="None or type('W', (), {\n"
        "    '__bool__': lambda self: 'drain waiting' in names})()",
    )
    assert process.out.text == ""
    lines = [line for line in process.err.lines if line != process.err.lines[0]]
    assert process.err.lines[0] == "MINE warning control endpoints closed None"
    waiting = "MINE info drain waiting draining"
    assert waiting in lines
    assert [line for line in lines if line != waiting] == [
        "MINE info cordoned cordoned",
        "MINE info drain begun draining",
        "MINE info drain ended drained",
        "MINE info drain resumed serving",
    ]
