"""`drainmw serve`: real processes, real signals."""

from __future__ import annotations

import signal
import socket
import stat
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from drainmw.contract import REPORT_PATH
from drainmw.serve import FORCED_PAUSE
from tests.processes import (
    APP,
    Held,
    Served,
    Start,
    control_socket,
    drainmw,
    refused_starts,
    running,
    served,
    token_file,
    until,
)
from tests.rig import NONCE, OTHER_NONCE, SOURCE, TOKEN
from tests.served_app import LARGE

SLACK = 2.0  # seconds for what a busy machine adds


def transitions(release: Served) -> list[str]:
    """What the log says of the drain and of the stop, in order."""
    shown = ("app did not start", "cordoned", "serving", "uncordoned")
    return [
        event["event"]
        for event in release.events()
        if event["logger"] == "drainmw"
        and event["event"].startswith(("stop", "drain ", *shown))
    ]


def begin(release: Served, nonce: str = NONCE, timeout_ms: int = 20_000) -> None:
    with release.asked() as client:
        client.begin(nonce, "0" * 40, "0" * 40, timeout_ms)


# The stop


def test_websockets_are_closed_and_refused_and_nothing_is_an_error(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as release:
        url = f"ws://127.0.0.1:{release.port}/"
        with connect(url, proxy=None) as websocket, Held(release.port):
            begin(release)
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(timeout=5)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
            with pytest.raises(InvalidStatus) as refused, connect(url, proxy=None):
                pass
            assert refused.value.response.status_code == 503
        release.wait_for_event("drain ended")
        levels = {event["level"] for event in release.events()}
    assert levels <= {"info", "warning"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_request_in_flight_finish(
    tmp_path: Path, number: signal.Signals
) -> None:
    with served(tmp_path) as release:
        with Held(release.port) as held:
            release.signal(number)
            begun = release.wait_for_event("drain begun")
            assert release.get().status_code == 503
            assert held.let_go().endswith(b"finished\r\n0\r\n\r\n")
        assert release.exit_code() == 0
        assert transitions(release) == [
            "serving",
            "stopping",
            "cordoned",
            "drain begun",
            "drain ended",
        ]
        ended = release.wait_for_event("drain ended")
        assert (begun["phase"], begun["http"]) == ("draining", 1)
        assert (ended["phase"], ended["http"]) == ("drained", 0)
        assert ended["nonce"] == begun["nonce"]
        assert release.wait_for_event("stopping")["signal"] == number.name
        assert release.out.text == ""
        assert not release.control.exists()


def test_a_lame_duck_serves_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    with served(
        tmp_path, "--lame-duck", "60", environment={"DRAINMW_TOKEN": TOKEN}
    ) as release:
        assert release.get("/readyz").status_code == 200
        assert "connection" not in release.get().headers
        release.signal()
        release.wait_for_event("cordoned")

        readiness = release.get("/readyz")
        assert (readiness.status_code, readiness.json()["detail"]) == (503, "cordoned")
        assert release.get("/livez").status_code == 200
        answer = release.get()
        assert (answer.status_code, answer.text) == (200, "hello")
        assert answer.headers["connection"] == "close"

        begin(release)  # cuts the rest of the minute short
        assert release.exit_code() == 0
        assert [e["nonce"] for e in release.events("drain begun")] == [NONCE]


def test_a_lame_duck_ends_by_itself(tmp_path: Path) -> None:
    with served(tmp_path, environment={"DRAINMW_LAME_DUCK": "0.3"}) as release:
        began = time.monotonic()
        release.signal()
        release.wait_for_event("drain ended")
        assert 0.25 < time.monotonic() - began < 0.3 + SLACK
        assert release.exit_code() == 0


def test_a_drain_that_runs_is_joined(tmp_path: Path) -> None:
    with served(tmp_path, "--lame-duck", "60") as release, Held(release.port) as held:
        begin(release)
        release.signal()
        release.wait_for_event("stopping")
        held.let_go()
        assert release.exit_code() == 0
        assert [e["nonce"] for e in release.events("drain begun")] == [NONCE]
        assert transitions(release)[-2:] == ["stopping", "drain ended"]


def test_a_drain_that_has_ended_is_joined(tmp_path: Path) -> None:
    with served(tmp_path, "--lame-duck", "60") as release:
        begin(release)
        release.wait_for_event("drain ended")
        release.signal()
        assert release.exit_code() == 0
        assert len(release.events("drain begun")) == 1


def test_a_failed_drain_exits_1_in_time(tmp_path: Path) -> None:
    options = ("--drain-timeout", "0.5", "--graceful-timeout", "1")
    with served(tmp_path, *options) as release, Held(release.port):
        release.signal()
        begun = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - begun < 0.5 + 1 + SLACK
        ended = release.wait_for_event("drain ended")
        assert (ended["phase"], ended["failure"], ended["http"]) == (
            "failed",
            "RUNTIME_DRAIN_TIMEOUT",
            1,
        )


HANGING = """
import asyncio, time

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["path"] == "/thread":
        print("hangs", flush=True)
        await asyncio.to_thread(time.sleep, 60)
    print("hangs", flush=True)
    time.sleep(60)
"""


def _hang(release: Served, path: str) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", release.port))
    wire.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    release.out.wait_for_text("hangs")
    return wire


def test_a_failed_drain_exits_1_though_a_thread_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    options = ("--drain-timeout", "0.2", "--graceful-timeout", "0.2")
    with (
        served(tmp_path, *options, app="hanging:app", cwd=tmp_path) as release,
        closing(_hang(release, "/thread")),
    ):
        release.signal()
        begun = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - begun < 0.2 + 0.2 + 2 + SLACK


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with served(tmp_path, "--graceful-timeout", "60") as release, Held(release.port):
        release.signal(signal.SIGTERM)
        release.wait_for_event("drain begun")
        release.signal(signal.SIGINT)
        begun = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - begun < 1 + SLACK
        assert release.wait_for_event("stopping at once")["signal"] == "SIGINT"


@pytest.mark.parametrize("path", ["/thread", "/loop"])
def test_a_second_signal_ends_it_though_it_hangs(tmp_path: Path, path: str) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    with (
        served(tmp_path, app="hanging:app", cwd=tmp_path) as release,
        closing(_hang(release, path)),
    ):
        release.signal(signal.SIGTERM)
        if path == "/thread":
            release.wait_for_event("drain begun")
        release.signal(signal.SIGINT)
        begun = time.monotonic()
        assert release.exit_code() == 1
        assert time.monotonic() - begun < 1 + SLACK


def test_a_resume_gives_the_stop_up(tmp_path: Path) -> None:
    with served(tmp_path) as release, Held(release.port) as held:
        release.signal()
        release.wait_for_event("drain begun")
        control = str(release.control)
        assert drainmw("resume", "--control", control).exit_code == 0
        given_up = release.wait_for_event("stop given up")
        assert given_up["reason"] == "the drain was resumed"
        answer = release.get()
        assert (answer.status_code, "connection" in answer.headers) == (200, False)
        held.let_go()

        with Held(release.port) as held:
            release.signal()  # is a first one again, and ends nothing by force
            release.wait_for_event("drain begun", 2)
            time.sleep(FORCED_PAUSE + 0.2)
            held.let_go()
            assert release.exit_code() == 0
        nonces = [event["nonce"] for event in release.events("drain begun")]
        assert len(set(nonces)) == 2
        assert release.events("drain ended")[-1]["phase"] == "drained"


def test_bytes_that_wait_for_a_slow_reader_are_not_cut(tmp_path: Path) -> None:
    with served(tmp_path) as release, closing(socket.socket()) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", release.port))
        wire.sendall(b"GET /large HTTP/1.0\r\nHost: localhost\r\n\r\n")
        until(lambda: release.report()["admittedTotal"] == 1, "admitted")
        until(lambda: release.report()["inFlight"]["http"] == 0, "given to the server")

        release.signal()
        assert release.wait_for_event("drain ended")["phase"] == "drained"
        time.sleep(0.5)  # in which a server that did not wait would shut down
        assert not release.events("Shutting down")

        received = bytearray()
        while data := wire.recv(65536):
            received += data
        assert received.partition(b"\r\n\r\n")[2] == b"x" * LARGE
        assert release.exit_code() == 0


def test_a_resume_while_the_last_bytes_leave_gives_the_stop_up_too(
    tmp_path: Path,
) -> None:
    """What is admitted after it would be cut by a stop that goes on."""
    with served(tmp_path) as release, closing(socket.socket()) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", release.port))
        wire.sendall(b"GET /large HTTP/1.0\r\nHost: localhost\r\n\r\n")
        until(lambda: release.report()["admittedTotal"] == 1, "admitted")
        release.signal()
        assert release.wait_for_event("drain ended")["phase"] == "drained"
        control = str(release.control)
        assert drainmw("resume", "--control", control).exit_code == 0
        release.wait_for_event("stop given up")
        assert release.get().status_code == 200
        wire.close()
        release.signal()
        assert release.exit_code() == 0


def test_a_signal_while_the_app_starts_ends_it(tmp_path: Path) -> None:
    (tmp_path / "starting.py").write_text(
        "async def app(scope, receive, send):\n"
        "    await receive()\n"
        "    print('starts', flush=True)\n"
        "    await receive()\n"
    )
    start = ("-m", "drainmw", "serve", "starting:app", "--port", "0")
    with running(*start, cwd=tmp_path) as process:
        process.out.wait_for_text("starts")
        process.signal(signal.SIGTERM)
        process.wait_for_event("drain ended")
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 1


# Bad starts


MODULES = {
    "raising": "raise RuntimeError('no redis://:secret@host here')",
    "missing": "import no_such_thing",
    "number": "app = 5",
    "twice": (
        "from drainmw import Drain, DrainMiddleware\n"
        "async def inner(scope, receive, send): ...\n"
        "app = DrainMiddleware(DrainMiddleware(inner, Drain()), Drain())"
    ),
    "hidden": (
        "from starlette.applications import Starlette\n"
        "from drainmw import DrainMiddleware\n"
        "app = Starlette()\n"
        "app.add_middleware(DrainMiddleware)"
    ),
}


def refused(app: str = APP, *flags: str, **variables: str) -> Start:
    """A start that will come to nothing."""
    port = () if {"--uds", "--port"} & {*flags} else ("--port", "0")
    return [app, *port, *flags], {f"DRAINMW_{k}": v for k, v in variables.items()}


def test_an_app_that_cannot_be_served_is_a_usage_error(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    twice = (
        "drainmw: DrainMiddleware is installed twice in one chain of apps; "
        "install it once, as the outermost layer"
    )
    hidden = (
        "drainmw: the app adds DrainMiddleware without a drain; "
        "it must be app.add_middleware(DrainMiddleware, drain=drain)"
    )
    expected = {
        "no_colon": (
            'drainmw: Import string "no_colon" must be in format '
            '"<module>:<attribute>".'
        ),
        "no_such_module:app": 'drainmw: Could not import module "no_such_module".',
        "number:nothing": (
            'drainmw: Attribute "nothing" not found in module "number".'
        ),
        "number:app": "drainmw: number:app must be an ASGI app, not of type int",
        "raising:app": (
            "drainmw: raising:app cannot be imported: "
            "RuntimeError: no redis://***@host here"
        ),
        "missing:app": (
            "drainmw: missing:app cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_thing'"
        ),
        "twice:app": twice,
        "hidden:app": hidden,
    }
    said = refused_starts(*map(refused, expected), cwd=tmp_path)
    assert dict(zip(expected, said, strict=True)) == expected


def test_a_bad_variable_is_named_with_what_is_right() -> None:
    timeout = "drainmw: DRAINMW_TIMEOUT must be a number of seconds from 0.1 to 600"
    token = (
        "drainmw: DRAINMW_TOKEN must be "
        "43 characters of base64url, as `drainmw token` prints"
    )
    assert refused_starts(
        refused(TIMEOUT="true"),
        refused(TIMEOUT="inf"),
        refused(TIMEOUT="-1"),
        refused(TIMEOUT="abc"),
        refused(LAME_DUCK="nan"),
        refused(REVISION="v1.0"),
        refused(TOKEN=""),
        refused(TOKEN="   "),
        refused(TOKEN="short"),
        refused(TOKEN=TOKEN + "t"),
    ) == [
        timeout,
        timeout,
        timeout,
        timeout,
        "drainmw: DRAINMW_LAME_DUCK must be a number of seconds from 0 to 600",
        "drainmw: DRAINMW_REVISION must be 40 lower-case hex digits",
        token,
        token,
        token,
        token,
    ]


def test_a_bad_flag_is_named_as_it_was_typed() -> None:
    seconds = "must be a number of seconds from"
    assert refused_starts(
        refused(APP, "--revision", "HEAD"),
        refused(APP, "--drain-timeout", "0"),
        refused(APP, "--drain-timeout", "inf"),
        refused(APP, "--lame-duck", "-1"),
        refused(APP, "--graceful-timeout", "nan", "--revision", "x"),
        refused(APP, "--lame-duck", "1", TIMEOUT="0"),
    ) == [
        "drainmw: --revision must be 40 lower-case hex digits",
        f"drainmw: --drain-timeout {seconds} 0.1 to 600",
        f"drainmw: --drain-timeout {seconds} 0.1 to 600",
        f"drainmw: --lame-duck {seconds} 0 to 600",
        (
            "drainmw: --revision must be 40 lower-case hex digits; "
            f"--graceful-timeout {seconds} 0.1 to 600"
        ),
        f"drainmw: DRAINMW_TIMEOUT {seconds} 0.1 to 600",
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "70000"], "Invalid value for '--port': 70000 is not in the range"),
        (["--workers", "0"], "Invalid value for '--workers': 0 is not in the range"),
        (["--uds", "x", "--port", "1"], "--uds takes the place of --host and --port"),
        (["--drain-timeout", "soon"], "'--drain-timeout': 'soon' is not a valid float"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_flag_of_the_wrong_form_is_a_usage_error(flags: list[str], said: str) -> None:
    result = drainmw("serve", APP, *flags)
    assert result.exit_code == 2
    assert said in result.stderr


def test_bad_token_files_are_named(tmp_path: Path) -> None:
    file = str(token_file(tmp_path, "short"))
    assert refused_starts(
        refused(TOKEN_FILE=file),
        refused(TOKEN_FILE=file, TOKEN=TOKEN),
        refused(TOKEN_FILE="/no/such"),
    ) == [
        (
            "drainmw: DRAINMW_TOKEN_FILE must name a file with one token or two, each "
            "on a line of its own: 43 characters of base64url, as `drainmw token` "
            "prints"
        ),
        "drainmw: DRAINMW_TOKEN and DRAINMW_TOKEN_FILE are both set; set one of them",
        (
            "drainmw: DRAINMW_TOKEN_FILE cannot be read: /no/such: "
            "No such file or directory"
        ),
    ]


def test_a_listener_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    control = control_socket(tmp_path)
    (file := tmp_path / "file").touch()
    nowhere = tmp_path / "no" / "such"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused_starts(
            refused(APP, "--port", port, "--control", str(control)),
            refused(APP, "--host", "192.0.2.1"),
            refused(APP, "--uds", str(file)),
            refused(APP, "--uds", str(nowhere)),
            refused(APP, "--control", str(file)),
        )
    assert said == [
        f"drainmw: cannot listen on 127.0.0.1 port {port}: Address already in use",
        ("drainmw: cannot listen on 192.0.2.1 port 0: Cannot assign requested address"),
        f"drainmw: --uds {file}: a file of that name is there",
        f"drainmw: --uds {nowhere}: No such file or directory",
        f"drainmw: control socket {file}: a file of that name is there",
    ]
    assert not control.exists()


def test_an_app_whose_lifespan_fails_exits_1(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "async def app(scope, receive, send):\n"
        "    await receive()\n"
        "    no = {'type': 'lifespan.startup.failed', 'message': 'no database'}\n"
        "    await send(no)\n"
    )
    start = ("-m", "drainmw", "serve", "failing:app", "--port", "0")
    with running(*start, cwd=tmp_path) as process:
        assert process.exit_code() == 1
        assert process.events("no database")
        assert process.wait_for_event("app did not start")["app"] == "failing:app"


# Apps


WRAPPED = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from drainmw import Drain, DrainMiddleware
from tests.served_app import app as inner

wrapped = DrainMiddleware(inner, Drain(app="mine"))

added = Starlette()
added.add_middleware(DrainMiddleware, drain=Drain(app="mine"))
added.mount("/", inner)

listed = Starlette(middleware=[Middleware(DrainMiddleware, drain=Drain(app="mine"))])
listed.mount("/", inner)
"""


@pytest.mark.parametrize("form", ["wrapped", "added", "listed"])
def test_an_app_that_has_wrapped_itself_is_counted_once(
    tmp_path: Path, form: str
) -> None:
    (tmp_path / "mine.py").write_text(WRAPPED)
    with (
        served(tmp_path, app=f"mine:{form}", cwd=tmp_path) as release,
        Held(release.port) as held,
    ):
        report = release.report()
        assert (report["app"], report["inFlight"]["http"]) == ("mine", 1)
        release.signal()
        release.wait_for_event("drain begun")
        held.let_go()
        assert release.exit_code() == 0
        assert release.wait_for_event("drain ended")["phase"] == "drained"


# Listeners


def test_an_app_on_a_unix_socket_is_open_to_all_and_its_control_closed(
    tmp_path: Path,
) -> None:
    uds = tmp_path / "app.sock"
    with served(tmp_path, "--uds", str(uds)) as release:
        assert release.wait_for_event("serving")["address"] == str(uds)
        assert stat.S_IMODE(uds.stat().st_mode) == 0o666
        transport = httpx.HTTPTransport(uds=str(uds))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            assert client.get("/").text == "hello"
            for headers in ({}, {"x-forwarded-for": "127.0.0.1"}):
                denied = client.get(REPORT_PATH, headers=headers)
                assert denied.status_code == 403
                assert denied.json()["code"] == "RUNTIME_CONTROL_FORBIDDEN"
        assert release.report()["phase"] == "serving"
        assert refused_starts(refused(APP, "--uds", str(uds))) == [
            f"drainmw: --uds {uds}: another process listens there"
        ]
        release.signal()
        assert release.exit_code() == 0
        assert not uds.exists()


def test_control_over_tcp_is_closed_without_a_token(tmp_path: Path) -> None:
    with served(tmp_path) as release:
        closed = release.events("control endpoints closed")
        assert [event["reason"] for event in closed] == ["no token is configured"]
        for headers in ({}, {"x-forwarded-for": "127.0.0.1"}):
            for authorization in ({}, {"authorization": f"Bearer {TOKEN}"}):
                answer = release.get(REPORT_PATH, headers=headers | authorization)
                assert answer.status_code == 403
        assert release.report()["phase"] == "serving"


def test_an_address_of_ipv6_is_written_in_brackets(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with served(tmp_path, "--host", "::1") as release:
        assert release.address.startswith("http://[::1]:")
        assert release.get().text == "hello"


def test_the_revision_of_a_flag_wins_over_the_variable(tmp_path: Path) -> None:
    other = "c" * 40
    with served(
        tmp_path, "--revision", SOURCE, environment={"DRAINMW_REVISION": other}
    ) as release:
        assert release.wait_for_event("serving")["revision"] == SOURCE
        assert release.report()["revision"] == SOURCE
        with pytest.raises(Exception, match="RUNTIME_DRAIN_REVISION_MISMATCH"):
            begin(release, OTHER_NONCE)
        release.signal()
        assert release.exit_code() == 0
        assert release.wait_for_event("drain begun")["source_revision"] == SOURCE
