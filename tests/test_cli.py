"""The commands that ask a target, against real processes of `drainmw serve`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainmw.client import ControlClient, Denied, Unreachable
from drainmw.errors import DrainNotFound
from drainmw.tokens import generate
from tests.processes import (
    Held,
    Process,
    Served,
    control_socket,
    drainmw,
    free_port,
    running,
    served,
    token_file,
    until,
)
from tests.rig import (
    NONCE,
    OTHER_NONCE,
    OTHER_REVISION,
    SOURCE,
    TARGET,
    TOKEN,
)
from tests.rooms import Rates, Rooms
from tests.stage import Hosted, Stage, staged

OTHER_TOKEN = "z" * 43
IDLE = "http 0  websocket 0  jobs 0  schedules 0"
BUSY = "http 1  websocket 0  jobs 0  schedules 0"


@pytest.fixture(scope="module")
def long_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A release that knows its revision and has a token."""
    folder = tmp_path_factory.mktemp("cli")
    with served(
        folder, "--revision", SOURCE, environment={"DRAINMW_TOKEN": TOKEN}
    ) as release:
        yield release


@pytest.fixture
def release(long_running: Served) -> Iterator[Served]:
    long_running.be_as_new()
    yield long_running
    long_running.be_as_new()


@pytest.fixture
def nonce() -> str:
    """A new one, since each resume retires one."""
    return generate()


@pytest.fixture(scope="module")
def closed_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("closed")) as release:
        yield release


@pytest.fixture
def closed(closed_running: Served) -> Iterator[Served]:
    """A release without a token and without a revision."""
    closed_running.be_as_new()
    yield closed_running
    closed_running.be_as_new()


class Caller:
    """Calls the command with one way to the target."""

    def __init__(self, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self.options = options
        self.environment = environment

    def __call__(self, command: str, *more: str, code: int = 0) -> str:
        result = drainmw(command, *self.options, *more, **self.environment)
        assert (result.exit_code, result.stderr) == (code, ""), result.output
        return result.stdout

    def json(self, command: str, *more: str, code: int = 0) -> Any:
        return json.loads(self(command, "--json", *more, code=code))


@pytest.fixture(params=["control", "url"])
def call(request: pytest.FixtureRequest, release: Served) -> Caller:
    """Over the control socket, and over TCP with a token."""
    if request.param == "control":
        return Caller(("--control", str(release.control)), {})
    return Caller(("--url", release.address), {"DRAINMW_TOKEN": TOKEN})


def refusal(*arguments: str, code: int, **environment: str) -> str:
    """The one line that a command which got nowhere says."""
    result = drainmw(*arguments, **environment)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr.removesuffix("\n")


# Every command


def test_a_person_goes_through_the_whole_life_of_a_release(
    release: Served, nonce: str, call: Caller
) -> None:
    epoch = release.report()["epoch"]
    assert call("report").startswith(
        f"phase      serving  (epoch {epoch})\n"
        "app        tests.served_app:app\n"
        f"revision   {SOURCE}\n"
        f"in flight  {IDLE}\n"
        "admitted   "
    )
    assert call("cordon") == f"cordoned  (epoch {epoch})\n"
    assert call("uncordon") == f"serving  (epoch {epoch})\n"
    assert call("begin", "--nonce", nonce) == f"drain begun, nonce {nonce}\n"
    assert call("begin", "--nonce", nonce) == f"drain joined, nonce {nonce}\n"
    assert call("wait") == f"drained  {IDLE}\n"
    assert call("status") == f"drained  {IDLE}\n"
    assert call("status", "--nonce", nonce) == f"drained  {IDLE}\n"
    report = call("report").splitlines()
    assert report[0] == f"phase      drained  (epoch {epoch + 1})"
    assert f"nonce      {nonce}" in report
    assert f"drains     {SOURCE}" in report
    assert "for        unknown" in report
    assert call("resume") == f"serving  (epoch {epoch + 2})\n"
    assert call("resume", "--nonce", nonce) == f"serving  (epoch {epoch + 2})\n"


def test_a_machine_goes_through_the_whole_life_of_a_release(
    release: Served, nonce: str, call: Caller
) -> None:
    epoch = release.report()["epoch"]
    assert call.json("report")["phase"] == "serving"
    assert call.json("cordon") == {"phase": "cordoned", "epoch": epoch}
    assert call.json("uncordon") == {"phase": "serving", "epoch": epoch}
    assert call.json("begin", "--nonce", nonce, "--timeout", "5") == {
        "accepted": True,
        "duplicate": False,
        "nonce": nonce,
        "sourceRevision": SOURCE,
    }
    assert call.json("begin", "--nonce", nonce)["duplicate"] is True
    drained = {
        "protocol": "forgezero-drain/v1",
        "nonce": nonce,
        "sourceRevision": SOURCE,
        "targetRevision": "0" * 40,
        "timeoutMs": 5000,
        "status": "drained",
        "inFlight": {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0},
    }
    assert call.json("wait") == drained
    assert call.json("status") == drained
    assert call.json("report")["nonce"] == nonce
    assert call.json("resume") == {"phase": "serving", "epoch": epoch + 2}


def test_a_token_is_new_and_of_the_right_form() -> None:
    first, second = drainmw("token").stdout, drainmw("token").stdout
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}\n", first)
    assert first != second


def test_the_package_runs_as_the_command() -> None:
    with running("-m", "drainmw", "--version") as process:
        assert process.exit_code() == 0
        assert process.out.text.startswith("python -m drainmw, version 0.1.0")


# Finding the target


@pytest.mark.parametrize(
    "tokens",
    [(TOKEN,), (TOKEN, OTHER_TOKEN), (OTHER_TOKEN, TOKEN)],
    ids=["one", "the first of two", "the second of two"],
)
def test_a_file_of_tokens_opens_a_target(
    release: Served, tmp_path: Path, tokens: tuple[str, ...]
) -> None:
    file = str(token_file(tmp_path, *tokens))
    by_variable = Caller(("--url", release.address), {"DRAINMW_TOKEN_FILE": file})
    by_flag = Caller(("--url", release.address, "--token-file", file), {})
    assert by_variable.json("report")["revision"] == SOURCE
    assert by_flag.json("report")["revision"] == SOURCE


def test_variables_name_a_target(release: Served, tmp_path: Path) -> None:
    url_file = tmp_path / "url"
    url_file.write_text(f"{release.address}\n")
    control_file = tmp_path / "control"
    control_file.write_text(f"{release.control}\n")
    for environment in (
        {"DRAINMW_URL": release.address, "DRAINMW_TOKEN": TOKEN},
        {"DRAINMW_URL_FILE": str(url_file), "DRAINMW_TOKEN": TOKEN},
        {"DRAINMW_CONTROL": str(release.control)},
        {"DRAINMW_CONTROL_FILE": str(control_file)},
    ):
        assert Caller((), environment).json("report")["revision"] == SOURCE


def test_flags_win_over_variables(release: Served, tmp_path: Path) -> None:
    file = str(token_file(tmp_path, TOKEN))
    wrong = {
        "DRAINMW_URL": f"http://127.0.0.1:{free_port()}",
        "DRAINMW_CONTROL": str(tmp_path / "nobody"),
        "DRAINMW_TOKEN": OTHER_TOKEN,
    }
    for options in (
        ("--url", release.address, "--token-file", file),
        ("--url", f"{release.address}/", "--token-file", file),
        ("--control", str(release.control)),
    ):
        assert Caller(options, wrong).json("report")["revision"] == SOURCE


# Exit code 0: drained or done


def test_a_begin_that_waits_shows_a_line_for_every_change(
    release: Served, nonce: str
) -> None:
    with Held(release.port) as first, Held(release.port) as second:
        begin = ("begin", "--wait", "--nonce", nonce, "--control", str(release.control))
        with running("-m", "drainmw", *begin) as process:
            process.out.wait_for_text("http 2 ")
            assert first.let_go().endswith(b"finished\r\n0\r\n\r\n")
            process.out.wait_for_text("http 1 ")
            second.let_go()
            assert process.exit_code() == 0
    lines = [re.sub(r"\d+\.\d s", "N", line) for line in process.out.lines]
    assert lines == [
        f"drain begun, nonce {nonce}",
        f"draining  {BUSY.replace('1', '2')}  N left  POST /held N, POST /held N",
        f"draining  {BUSY}  N left  POST /held N",
        f"drained  {IDLE}",
    ]
    assert process.err.text == ""


def test_a_begin_that_waits_changes_one_line_of_a_terminal(
    release: Served, nonce: str
) -> None:
    with Held(release.port) as held:
        begin = ("begin", "--wait", "--nonce", nonce, "--control", str(release.control))
        with running("-m", "drainmw", *begin, terminal=True) as process:
            process.out.wait_for_text(r"left  POST /held \d+\.\d s(.*left.*){2}")
            held.let_go()
            assert process.exit_code() == 0
    first, shown, end = process.out.text.split("\r\n")
    assert (first, end) == (f"drain begun, nonce {nonce}", "")
    frames = shown.split("\r\x1b[2K")
    assert frames[0] == ""
    assert len(frames) >= 4
    for frame in frames[1:-1]:
        expected = rf"draining  {BUSY}  2\d\.\d s left  POST /held \d+\.\d s"
        assert re.fullmatch(expected, frame)
    assert frames[-1] == f"drained  {IDLE}"


def test_a_begin_that_waits_tells_machines_each_change(
    release: Served, nonce: str
) -> None:
    begin = ("begin", "--wait", "--json", "--control", str(release.control))
    result = drainmw(*begin, "--nonce", nonce)
    accepted, *statuses = map(json.loads, result.stdout.splitlines())
    assert accepted["accepted"] is True
    assert statuses[-1]["status"] == "drained"
    assert result.exit_code == 0


def test_a_release_that_does_not_know_its_revision_is_unknown(closed: Served) -> None:
    call = Caller(("--control", str(closed.control)), {})
    assert "revision   unknown\n" in call("report")
    assert call.json("report")["revision"] is None
    call("begin", "--wait", "--target", TARGET)
    status = call.json("status")
    assert status["sourceRevision"] == "0" * 40
    assert status["targetRevision"] == TARGET
    report = call("report").splitlines()
    assert "drains     unknown" in report
    assert f"for        {TARGET}" in report


# Exit code 1: the drain failed


def test_a_drain_that_runs_out_of_time_exits_1_everywhere(
    release: Served, nonce: str, call: Caller
) -> None:
    with Held(release.port) as held:
        begun = call("begin", "--wait", "--timeout", "0.1", "--nonce", nonce, code=1)
        failed = f"failed  {BUSY}  RUNTIME_DRAIN_TIMEOUT\n"
        assert begun.startswith(f"drain begun, nonce {nonce}\n")
        assert begun.endswith(failed)
        assert call("status", code=1) == failed
        assert call("wait", code=1) == failed
        assert call.json("status", code=1)["failure"] == "RUNTIME_DRAIN_TIMEOUT"
        report = call("report").splitlines()
        assert "failure    RUNTIME_DRAIN_TIMEOUT" in report
        assert held.let_go().endswith(b"finished\r\n0\r\n\r\n")
    assert call("status", code=1) == f"failed  {IDLE}  RUNTIME_DRAIN_TIMEOUT\n"


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
def test_a_watched_drain_that_is_resumed_has_not_drained(
    release: Served, nonce: str, terminal: bool
) -> None:
    target = ("--control", str(release.control))
    begin = ("-m", "drainmw", "begin", "--wait", "--nonce", nonce, *target)
    waiting = ("-m", "drainmw", "wait", "--nonce", nonce, *target)
    with Held(release.port) as held, running(*begin, terminal=terminal) as beginner:
        beginner.out.wait_for_text("draining")
        with running(*waiting, terminal=terminal) as waiter:
            waiter.out.wait_for_text("draining")
            assert drainmw("resume", *target).exit_code == 0
            for process in (beginner, waiter):
                assert process.exit_code() == 1
                assert _last_line(process) == (
                    "drainmw: the drain was resumed; this release serves again"
                )
        held.let_go()


def _last_line(process: Process) -> str:
    return process.err.lines[-1].removesuffix("\r")


def test_waiting_for_a_drain_that_was_resumed_exits_1(
    release: Served, nonce: str
) -> None:
    target = ("--control", str(release.control))
    drainmw("begin", "--nonce", nonce, *target)
    drainmw("resume", *target)
    assert refusal("wait", "--nonce", nonce, *target, code=1) == (
        "drainmw: the drain was resumed; this release serves again"
    )
    assert refusal("begin", "--wait", "--nonce", nonce, *target, code=1) == (
        "drainmw: RUNTIME_DRAIN_RESUMED: "
        "the drain of this nonce was resumed; begin with a new nonce"
    )


# Exit code 2: usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a target: --url or --control, or set DRAINMW_URL"),
        (["--url", "http://h", "--control", "c"], "--url and --control exclude"),
        (["--url", "127.0.0.1:8000"], "must be like http://127.0.0.1:8000, not 127"),
        (["--url", "ftp://h"], "the URL must be like http://127.0.0.1:8000"),
        (["--url", "http://h:abc"], "the URL must be like http://127.0.0.1:8000"),
        (["--url", "http://u:pw@h"], "no user or password: http://***@h"),
        (["--url", "http://h?x=1"], "the URL must have no query"),
        (["--url", "http://h", "--token-file", "/no/such"], "--token-file cannot be"),
        (["--nonce", "short"], "'--nonce': it must be 43 characters of base64url"),
        (["--nonce", f"{NONCE}\n"], "'--nonce': it must be 43 characters"),
        (["--source", "HEAD"], "'--source': it must be 40 lower-case hex digits"),
        (["--target", "A" * 40], "'--target': it must be 40 lower-case hex digits"),
        (["--timeout", "0"], "'--timeout': 0.0 is not in the range"),
        (["--timeout", "601"], "'--timeout': 601.0 is not in the range"),
        (["--timeout", "nan"], "'--timeout': it must be a number of seconds from"),
        (["--timeout", "soon"], "'--timeout': 'soon' is not a valid float"),
        (["--worse"], "No such option"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_a_begin_with_a_bad_flag_says_what_is_right(
    arguments: list[str], said: str
) -> None:
    result = drainmw("begin", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "pw" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("token", ["", " ", "t" * 42, "t" * 44, f"{TOKEN}\n"])
def test_a_token_of_the_wrong_form_is_named_and_not_shown(token: str) -> None:
    said = refusal("report", "--url", "http://h", code=2, DRAINMW_TOKEN=token)
    assert said == (
        "drainmw: DRAINMW_TOKEN must be "
        "43 characters of base64url, as `drainmw token` prints"
    )


@pytest.mark.parametrize(
    "tokens", [(), ("short",), (TOKEN, TOKEN, TOKEN)], ids=["none", "short", "three"]
)
def test_a_bad_file_of_tokens_is_named(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    file = str(token_file(tmp_path, *tokens))
    said = refusal("report", "--url", "http://h", code=2, DRAINMW_TOKEN_FILE=file)
    assert said == (
        "drainmw: DRAINMW_TOKEN_FILE must name a file with one token or two, each on "
        "a line of its own: 43 characters of base64url, as `drainmw token` prints"
    )


def test_a_url_file_that_is_not_there_is_named() -> None:
    said = refusal("report", code=2, DRAINMW_URL_FILE="/no/such")
    assert said.startswith("drainmw: DRAINMW_URL_FILE cannot be read: /no/such: ")


def test_two_targets_in_variables_are_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "control"
    file.write_text("/run/c.sock\n")
    for control in (
        {"DRAINMW_CONTROL": "/run/c.sock"},
        {"DRAINMW_CONTROL_FILE": str(file)},
    ):
        said = refusal("report", code=2, DRAINMW_URL="http://h", **control)
        assert said == (
            "drainmw: DRAINMW_URL and DRAINMW_CONTROL are both set; name one by a flag"
        )


# Exit code 3: unreachable


def test_a_target_without_an_answer_is_unreachable(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    nobody = control_socket(tmp_path)
    for command in ("begin", "wait", "status", "report", "cordon", "uncordon"):
        said = refusal(command, "--url", url, code=3, DRAINMW_TOKEN=TOKEN)
        assert said == f"drainmw: {url} does not answer: [Errno 111] Connection refused"
    # In a process of its own: httpcore leaves such a socket to the collector.
    with running("-m", "drainmw", "resume", "--control", str(nobody)) as process:
        assert process.exit_code() == 3
        assert process.err.text == (
            f"drainmw: control socket {nobody} does not answer: "
            "[Errno 2] No such file or directory\n"
        )


# Exit code 4: refused


def test_a_release_without_a_token_refuses_over_tcp(closed: Served) -> None:
    said = refusal("report", "--url", closed.address, code=4, DRAINMW_TOKEN=TOKEN)
    assert said == (
        "drainmw: RUNTIME_CONTROL_FORBIDDEN: "
        "this app has no token: set DRAINMW_TOKEN or DRAINMW_TOKEN_FILE there"
    )


def test_a_missing_and_a_wrong_token_are_refused(
    release: Served, tmp_path: Path
) -> None:
    code = "drainmw: RUNTIME_CONTROL_UNAUTHORIZED: "
    none = f"{code}send the control token once, as Authorization: Bearer <token>"
    wrong = f"{code}Authorization must be Bearer and the token of this app"
    url = ("--url", release.address)
    two_wrong = str(token_file(tmp_path, OTHER_TOKEN, "y" * 43))
    assert refusal("report", *url, code=4) == none
    assert refusal("begin", *url, code=4, DRAINMW_TOKEN=OTHER_TOKEN) == wrong
    assert refusal("cordon", *url, code=4, DRAINMW_TOKEN_FILE=two_wrong) == wrong
    assert release.report()["phase"] == "serving"


def test_what_does_not_fit_the_drain_that_stands_is_refused(
    release: Served, nonce: str
) -> None:
    target = ("--control", str(release.control))
    no_drain = "drainmw: no drain has begun there; `drainmw begin` begins one"
    assert refusal("status", *target, code=4) == no_drain
    assert refusal("wait", *target, code=4) == no_drain
    assert refusal("resume", *target, code=4) == no_drain
    not_found = "drainmw: no drain of this nonce"
    assert refusal("status", "--nonce", nonce, *target, code=4) == not_found
    assert refusal("wait", "--nonce", nonce, *target, code=4) == not_found

    assert drainmw("begin", "--nonce", nonce, *target).exit_code == 0
    code = "drainmw: RUNTIME_DRAIN_ALREADY_STARTED: "
    another = (
        f"{code}another drain has begun, or has ended and stands; it is untouched. "
        "Only a resume with its nonce ends it"
    )
    other_revisions = (
        f"{code}this nonce's drain has begun with other revisions; it is untouched. "
        "Repeat them, or choose a new nonce once it was resumed"
    )
    assert refusal("begin", "--nonce", OTHER_NONCE, *target, code=4) == another
    assert refusal("begin", *target, code=4) == another
    other_target = ("--target", OTHER_REVISION)
    begin = ("begin", "--nonce", nonce, *other_target, *target)
    assert refusal(*begin, code=4) == other_revisions
    assert refusal("status", "--nonce", OTHER_NONCE, *target, code=4) == not_found
    assert re.fullmatch(
        f"{code}cordon is not possible while (draining|drained); resume first",
        refusal("cordon", *target, code=4),
    )

    assert drainmw("resume", *target).exit_code == 0
    assert refusal("begin", "--nonce", nonce, *target, code=4) == (
        "drainmw: RUNTIME_DRAIN_RESUMED: "
        "the drain of this nonce was resumed; begin with a new nonce"
    )
    assert refusal("status", "--nonce", nonce, *target, code=4) == (
        "drainmw: the drain of this nonce was resumed"
    )


def test_a_known_revision_is_checked(release: Served, call: Caller) -> None:
    begin = ("begin", *call.options, "--source", OTHER_REVISION)
    assert refusal(*begin, code=4, **call.environment) == (
        "drainmw: RUNTIME_DRAIN_REVISION_MISMATCH: "
        f"sourceRevision must be the revision of this release, {SOURCE}"
    )
    assert release.report()["phase"] == "serving"


def test_an_app_that_is_not_ours_is_refused(release: Served) -> None:
    url = f"{release.address}/elsewhere"
    said = refusal("report", "--url", url, code=4, DRAINMW_TOKEN=TOKEN)
    assert said == (
        "drainmw: RUNTIME_CONTROL_NOT_FOUND: "
        "the answer, 200, is not one of drainmw's control endpoints"
    )


# Exit code 130: interrupted

# Ctrl-C is ignored in what a script starts in the background, such as these tests.
INTERRUPTIBLE = """
import signal, sys
from drainmw.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["begin", "wait"])
@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
def test_who_stops_watching_reads_that_the_drain_goes_on(
    release: Served, nonce: str, command: str, terminal: bool
) -> None:
    target = ("--nonce", nonce, "--control", str(release.control))
    watch = ("begin", "--wait", *target) if command == "begin" else ("wait", *target)
    with Held(release.port) as held:
        if command == "wait":
            assert drainmw("begin", *target).exit_code == 0
        with running("-c", INTERRUPTIBLE, *watch, terminal=terminal) as process:
            process.out.wait_for_text("draining")
            process.signal(signal.SIGINT)
            assert process.exit_code() == 130
        assert _last_line(process) == (
            "drainmw: the drain goes on; "
            "`drainmw wait` watches it again, `drainmw resume` ends it"
        )
        assert "Traceback" not in process.err.text
        assert (release.report()["phase"], release.report()["nonce"]) == (
            "draining",
            nonce,
        )
        held.let_go()
    assert drainmw("wait", *target).exit_code == 0


# Handing state over, from one release of this process to another


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainmw.client.POLL_FIRST", 0.002)
    monkeypatch.setattr("drainmw.offering.REGRET", 0.0)


class Pair:
    """An old release and a new one, and the command between them."""

    def __init__(self, old: Hosted, new: Hosted) -> None:
        self.old, self.new = old, new
        self.targets = ("--from", str(old.control), "--to", str(new.control))

    def hand_over(self, *more: str, code: int = 0) -> str:
        """What it says: on standard error where it got nowhere."""
        result = drainmw("handoff", *self.targets, *more)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr.removesuffix("\n")

    def of_old(self, command: str, *more: str) -> tuple[int, str]:
        result = drainmw(command, "--control", str(self.old.control), *more)
        return result.exit_code, result.output


@pytest.fixture
def pair(stage: Stage, swift: None) -> Pair:
    """The old one is drained."""
    old = stage.host(Rooms("ann"), Rates("ten")).drained()
    return Pair(old, stage.host(Rooms(), Rates()))


GIVEN = "rooms/v1 handed over, cursor of-1\nrates/v1 handed over, cursor of-1\n"
GONE_OVER = "the state has gone over and is provisional there; run this again, or "
GONE_OVER += "run it with --discard"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--from'"),
        (["--from", "a", "--to", "a"], "--from and --to must be two releases"),
        (["--protocol", "has space"], "'--protocol': it must be 1 to 128 of A-Z a-z"),
        (["--protocol", "ok", "--protocol", "-"], "'--protocol': it must be 1 to 128"),
        (["--protocol", "p" * 129], "'--protocol': it must be 1 to 128"),
        (["--protocol", ""], "'--protocol': it must be 1 to 128"),
        (["--nonce", "short"], "'--nonce': it must be 43 characters of base64url"),
        (["--timeout", "nan"], "'--timeout': it must be a number of seconds from"),
        (["--discard", "--detach"], "--discard excludes --detach and --again"),
        (["--discard", "--again"], "--discard excludes --detach and --again"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_a_handoff_with_a_bad_flag_says_what_is_right(
    arguments: list[str], said: str
) -> None:
    targets = [] if said.startswith(("Missing", "--from")) else ["--from", "a"]
    targets += ["--to", "b"] if targets else []
    result = drainmw("handoff", *arguments, *targets)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("flag", ["--from-token-file", "--to-token-file"])
def test_a_handoff_names_the_flag_whose_file_cannot_be_read(flag: str) -> None:
    targets = ("--from", "http://127.0.0.1:1", "--to", "http://127.0.0.1:2")
    said = refusal("handoff", *targets, flag, "/no/such", code=2, DRAINMW_TOKEN=TOKEN)
    assert said.startswith(f"drainmw: {flag} cannot be read: /no/such")


def test_a_person_hands_all_state_over_and_may_do_it_again(pair: Pair) -> None:
    assert pair.hand_over() == GIVEN
    assert pair.hand_over() == GIVEN
    code, said = pair.of_old("resume")
    assert code == 4
    assert "the state of rooms/v1, rates/v1 has gone over" in said
    assert pair.hand_over("--detach") == f"{GIVEN}detached  (epoch 1)\n"
    assert pair.hand_over("--detach") == f"{GIVEN}detached  (epoch 1)\n"
    taken = pair.new.handoffs()["taken"]
    assert [t["provisional"] for t in taken] == [False, False]
    assert pair.of_old("resume", "--force")[0] == 4


def test_a_machine_reads_each_status_of_each_handoff(pair: Pair, nonce: str) -> None:
    said = pair.hand_over("--json", "--nonce", nonce, "--detach").splitlines()
    *told, moved = [json.loads(line) for line in said]
    ended = [t for t in told if t["status"] != "pending"]
    assert [(t["protocol"], t["status"]) for t in ended] == [
        ("rooms/v1", "acknowledged"),
        ("rates/v1", "acknowledged"),
    ]
    assert {t["cursor"] for t in ended} == {"of-1"}
    assert moved == {"phase": "detached", "epoch": 1}


def test_what_is_named_twice_goes_over_once_and_alone(pair: Pair, nonce: str) -> None:
    of = ("--protocol", "rates/v1", "--protocol", "rates/v1", "--nonce", nonce)
    assert pair.hand_over(*of) == "rates/v1 handed over, cursor of-1\n"
    assert [(g["protocol"], g["nonce"]) for g in pair.old.handoffs()["given"]] == [
        ("rates/v1", nonce)
    ]


def test_a_handoff_that_fails_exits_1_and_says_who_keeps_the_state(
    stage: Stage, swift: None
) -> None:
    come = Rooms()
    come.fails["import"] = RuntimeError("no room")
    pair = Pair(stage.host(Rooms("ann")).drained(), stage.host(come))
    said = "rooms/v1: no room; the old release keeps its state and can be resumed"
    assert pair.hand_over("--detach", code=1) == f"drainmw: {said}"
    result = drainmw("handoff", *pair.targets, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1])["failure"] == "no room"
    assert pair.of_old("resume") == (0, "serving  (epoch 2)\n")


def test_what_is_not_there_to_be_handed_over_is_refused(
    stage: Stage, swift: None
) -> None:
    bare = Pair(stage.host().drained(), stage.host(Rooms()))
    assert bare.hand_over(code=4) == "drainmw: this release has no state adapter"
    serving = Pair(stage.host(gone := Rooms("ann")), stage.host(Rooms()))
    said = serving.hand_over("--detach", code=4)
    assert said == "drainmw: no drain has begun there; `drainmw begin` begins one"
    assert "RUNTIME_STATE_NOT_EXPORTABLE" in serving.hand_over(code=4)
    assert gone.heard == []


def test_a_seal_by_itself_is_found_by_the_handoff(pair: Pair) -> None:
    for _ in range(2):
        assert pair.of_old("seal") == (0, "drained  (epoch 1)\n")
    code, said = pair.of_old("seal", "--json")
    assert (code, json.loads(said)) == (0, {"phase": "drained", "epoch": 1})
    assert pair.of_old("seal", "--nonce", OTHER_NONCE)[0] == 4
    assert pair.hand_over() == GIVEN


def test_a_fresh_release_is_given_it_again_when_that_is_said(
    pair: Pair, stage: Stage
) -> None:
    pair.hand_over()
    fresh = Pair(pair.old, stage.host(rooms := Rooms(), Rates()))
    assert "RUNTIME_STATE_HANDED_OVER" in fresh.hand_over(code=4)
    assert fresh.hand_over("--again") == GIVEN
    assert rooms.names == ["ann"]


def test_a_discard_gives_the_state_back(pair: Pair) -> None:
    nothing = "drainmw: the new release has nothing that can be discarded"
    assert pair.hand_over("--discard", code=4) == nothing
    pair.hand_over()
    assert pair.hand_over("--discard", "--protocol", "rates/v1") == (
        "rates/v1 discarded; the old release has it\n"
    )
    said = pair.hand_over("--discard", "--json").splitlines()
    assert [json.loads(line) for line in said] == [
        {"protocol": t["protocol"], "nonce": t["nonce"], "status": "discarded"}
        for t in pair.new.handoffs()["taken"]
    ]
    assert pair.of_old("resume") == (0, "serving  (epoch 2)\n")


def test_what_a_detached_release_gave_away_is_not_discarded(pair: Pair) -> None:
    pair.hand_over()
    pair.of_old("detach")
    said = "the new release owns the work; the old one cannot serve again"
    assert pair.hand_over("--discard", code=4) == f"drainmw: {said}"
    assert all(taken["provisional"] for taken in pair.new.handoffs()["taken"])
    assert pair.hand_over("--detach") == f"{GIVEN}detached  (epoch 1)\n"


def test_a_resume_that_is_forced_serves_with_a_state_that_another_has(
    pair: Pair,
) -> None:
    pair.hand_over()
    assert pair.of_old("resume", "--force") == (0, "serving  (epoch 2)\n")


@pytest.mark.parametrize(
    ("step", "error", "code", "said"),
    [
        ("detach", Unreachable("it", "gone"), 3, "it does not answer: gone"),
        ("detach", Denied(409, "SOME_CODE", "no", resumed=False), 4, "SOME_CODE: no"),
        ("detach", DrainNotFound(True), 4, "the drain of this nonce was resumed"),
        ("confirm", Unreachable("it", "gone"), 3, "it does not answer: gone"),
    ],
    ids=["no answer", "denied", "resumed", "no answer of the new one"],
)
def test_what_fails_after_the_acknowledgement_says_how_far_it_has_come(
    stage: Stage,
    swift: None,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
    code: int,
    said: str,
) -> None:
    """And is finished by the same command."""

    def fails(*_: Any) -> Any:
        raise error

    pair = Pair(stage.host(Rooms("ann")).drained(), stage.host(come := Rooms()))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(ControlClient, step, fails)
        told = pair.hand_over("--detach", code=code)
    reached = {
        "detach": GONE_OVER,
        "confirm": "the old release is detached, and the new one not told; run this "
        "again",
    }
    assert told.startswith(f"drainmw: {said}")
    assert told.endswith(f"; {reached[step]}")
    assert pair.old.drain.phase == ("drained" if step == "detach" else "detached")
    assert pair.hand_over("--detach").endswith("detached  (epoch 1)\n")
    assert come.heard == ["import", "confirm"]


# Starting quickly

HEAVY = ("httpx", "pydantic", "starlette", "uvicorn", "structlog")


def _loaded(*arguments: str, code: int = 0) -> set[str]:
    """Which of the heavy packages a command imports."""
    program = (
        "import sys\n"
        "from drainmw.cli import main\n"
        f"try: main({list(arguments)!r})\n"
        f"except SystemExit as end: assert end.code == {code}, end.code\n"
        f"print('loaded', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    with running("-c", program) as process:
        assert process.exit_code() == 0, process.err.text
        word, *names = process.out.lines[-1].split()
        assert word == "loaded"
        return set(names)


@pytest.mark.parametrize("arguments", [["token"], ["--help"], ["serve", "--help"]])
def test_a_command_that_asks_nobody_imports_nothing_heavy(arguments: list[str]) -> None:
    assert _loaded(*arguments) == set()


def test_a_command_that_asks_imports_its_client_alone(
    release: Served, nonce: str
) -> None:
    target = ("--control", str(release.control))
    client = {"httpx"}
    assert _loaded("report", *target) == client
    assert _loaded("begin", "--wait", "--nonce", nonce, *target) == client
    assert _loaded("status", *target) == client


def test_no_command_shows_the_token(release: Served, tmp_path: Path) -> None:
    file = token_file(tmp_path, TOKEN, OTHER_TOKEN)
    by_file = ("--url", release.address, "--token-file", str(file))
    shown = [
        drainmw(command, *by_file).output
        for command in ("report", "cordon", "begin", "status", "begin", "resume")
    ]
    unreachable = f"http://127.0.0.1:{free_port()}"
    shown.append(drainmw("report", "--url", unreachable, DRAINMW_TOKEN=TOKEN).output)
    until(lambda: release.report()["phase"] == "serving", "resumed")
    shown.append(release.err.text)
    assert TOKEN not in "".join(shown)
    assert OTHER_TOKEN not in "".join(shown)
