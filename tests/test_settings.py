"""Settings: where they come from, and what is said of a bad one."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from drainmw import Drain, Policy
from drainmw.errors import SettingsError
from drainmw.settings import RIGHT_FORM, Settings, load, unknown_variables

TOKEN = "t" * 43


def admits(_scope: dict[str, Any]) -> bool:
    return True


def chooses(_scope: dict[str, Any]) -> str:
    return "finish"


def redacts(path: str) -> str:
    return path


GOOD: dict[str, list[Any]] = {
    "token": [TOKEN, "A-_z" * 10 + "abc", SecretStr(TOKEN)],
    "revision": ["a" * 40, "0123456789" * 4],
    "app": ["shop", "x" * 128, "Größe 1"],
    "timeout": [0.1, 600, "25", "2.5", "1e2"],
    "group": ["blue", "a.b_c-1", "x" * 64],
    "runtime_dir": ["/run/drainmw", Path("run")],
    "ownership": [
        *("file", "off", SecretStr("off"), "redis://host", "rediss://:pw@host:1/2"),
        *("unix:///run/redis.sock?db=1", "postgresql://u:p@host/db?sslmode=require"),
        *("postgres://host", SecretStr("redis://host")),
    ],
    "lame_duck": [0, 600, "5"],
    "kill_grace": [0, 3600, "30"],
    "graceful_timeout": [0.1, 600],
    "readiness_path": ["/ready", "/", "/a/b-c.d", "off", "OFF", "none", ""],
    "liveness_path": ["/live", "off"],
    "retry_after": [0, 3600, "7"],
    "refusal_headers": ["a: b", "a: b\nc: d\n", {"A": "b"}, [("a", "b")], ""],
    "control_hosts": ["a.example", "a.example, B.example", ["x"], {"y"}, ""],
    "metrics_public": [True, False, "true", "false", "1", "0", "yes", "off"],
    "refused_body_bytes": [0, 2**30, "1024"],
    "refused_body_timeout": [0, 60],
    "refused_body_readers": [0, 65536],
    "control_body_timeout": [0.1, 60],
    "count_timeout": [0.01, 10],
    "report_interval": [0.1, 3600],
    "websocket_policy": ["close", "finish"],
    "event_stream_policy": ["end", "finish"],
    "response_policy": ["finish", "end"],
    "policies": [
        *("/a finish", "/a finish; /b/* close 5", "/a end 0.5\n/* finish\n", ""),
        *("/café finish", "/* end", "/b* end", "/a close 5 1"),
        *("/a\tclose\t5", "/a  close  5;;", " /a close 0\r\n"),
        *({"/a": "close"}, {"/a": Policy("end", grace=0)}, [("/a", "finish")], ()),
    ],
    "close_window": [0, 600, "2.5"],
    "close_notice": [0, 600],
    "websocket_grace": [0, 600],
    "stream_grace": [0, 600],
    "close_code": [1000, 1001, 1012, 1013, 3000, "4999"],
    "close_timeout": [0.05, 60],
    "event_stream_refusal": [200, "503"],
    "admit": [admits],
    "policy": [chooses],
    "redact_path": [redacts],
}


async def answers_late(_scope: dict[str, Any]) -> bool:
    return True


BAD: dict[str, list[Any]] = {
    "token": ["", " ", "t" * 42, "t" * 44, TOKEN + "\n", "t" * 42 + "+", "é" * 43, 5],
    "revision": ["", "a" * 39, "A" * 40, "a" * 40 + "\n", "sha256:" + "a" * 33, 5],
    "app": ["", "x" * 129, "a\nb", "\x1b[0m", 5],
    "timeout": [
        True,
        "true",
        "inf",
        "nan",
        "-1",
        "abc",
        0,
        0.09,
        601,
        "",
        float("inf"),
    ],
    "group": ["", "a b", "../x", "a" * 65, 5],
    "runtime_dir": [5, True],
    "ownership": [
        *("", "File", "redis", "redis:", "redis://", "mysql://host", "host", 5),
        *("redis://a\nb", "redis://[host", SecretStr("")),
    ],
    "lame_duck": [-1, 601, "soon", True],
    "kill_grace": [-1, 3601, "inf", True],
    "graceful_timeout": [0, 601, "nan"],
    "readiness_path": ["readyz", "/a b", "/a?b", "/a#b", "/%41", "/é", "/a\n", 5, True],
    "liveness_path": ["livez", "http://x/livez", "/readyz"],
    "retry_after": [-1, 3601, 1.5, "1.5", "soon", True],
    "refusal_headers": [
        *("a", "a b: c", ": b", "a: é", "a: b\x00", {"a": 1}, [1], 5),
        *("Content-Length: 0", "a: b\nretry-after: 9", {"Transfer-Encoding": "x"}),
        *("connection: close", [("Content-Type", "text/plain")], "keep-alive: 5"),
    ],
    "control_hosts": ["a b", "http://x", "-a", "a:80", "*", 5, ["", "a"]],
    "metrics_public": ["maybe", "", 2, "inf"],
    "refused_body_bytes": [-1, 2**30 + 1, "1k", 0.5, True],
    "refused_body_timeout": [-1, 61, "inf"],
    "refused_body_readers": [-1, 65537, True],
    "control_body_timeout": [0, 61],
    "count_timeout": [0, 11, True],
    "report_interval": [0, 3601],
    "websocket_policy": ["end", "Close", "", 5],
    "event_stream_policy": ["close", "stop", ""],
    "response_policy": ["close", ""],
    "policies": [
        *("/a", "a finish", "/a stop", "/a close -1", "/a close soon", "/a end 601"),
        *({"/a": 5}, {"/a": None}, {5: "finish"}, {"/a b": "finish"}, 5, ["/a"]),
        *("/a/*/b finish", "/caf%C3%A9 finish", "/a?b finish", "/a#b end"),
        *("/a finish 1 2 3", "/a close nan", [("/a", "close", 1)]),
        *("/a finish; /b", "/a finish\n/b stop", "/é* x finish", {"/a": ("close", 5)}),
        *({"/a": ""}, {"/a": True}, {"/a": b"close"}, {"": "close"}, {"/a"}),
    ],
    "close_window": [-1, 601, "soon"],
    "close_notice": [-1, "inf", True],
    "websocket_grace": [-1, 601],
    "stream_grace": [-1, 601],
    "close_code": [0, 999, 1005, 1006, 1011, 1015, 2999, 5000, "x", True],
    "close_timeout": [0, 61],
    "event_stream_refusal": [204, "retry", True],
    "admit": ["yes", 5, True, answers_late],
    "policy": ["finish", 5, answers_late],
    "redact_path": ["yes", 5],
}

FROM_CODE = ("admit", "policy", "redact_path")

good = pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in GOOD.items() for v in values]
)
bad = pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD.items() for v in values]
)
bad_texts = pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, values in BAD.items()
        for value in values
        if isinstance(value, str) and name not in FROM_CODE and "\x00" not in value
    ],
)


def test_every_setting_has_cases_here_and_says_what_is_right() -> None:
    names = set(Settings.model_fields)
    assert set(RIGHT_FORM) == names
    assert set(GOOD) == set(BAD) == names - {"token_file"}


@good
def test_a_good_value_is_taken_from_a_keyword(name: str, value: Any) -> None:
    load({}, **{name: value})


@good
def test_a_good_text_is_taken_from_its_variable(name: str, value: Any) -> None:
    if isinstance(value, str):
        variable = {f"DRAINMW_{name.upper()}": value}
        assert load(variable) == load({}, **{name: value})


@bad
def test_a_bad_keyword_is_named_with_what_is_right(name: str, value: Any) -> None:
    """X2, X8: `true`, `inf`, `-1`, `abc`."""
    with pytest.raises(SettingsError) as refused:
        load({}, **{name: value})
    told = f"{name} must be {RIGHT_FORM[name]}"
    assert str(refused.value) == told or name == "policies"
    assert str(refused.value).startswith(told)


@bad_texts
def test_a_bad_variable_is_named_with_what_is_right(name: str, value: str) -> None:
    """X2, X8: the process refuses to start, naming the variable."""
    with pytest.raises(SettingsError) as refused:
        load({f"DRAINMW_{name.upper()}": value})
    told = f"DRAINMW_{name.upper()} must be {RIGHT_FORM[name]}"
    assert str(refused.value) == told or name == "policies"
    assert str(refused.value).startswith(told)


@bad_texts
def test_a_bad_variable_stops_the_making_of_a_drain(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DRAINMW_{name.upper()}", value)
    with pytest.raises(SettingsError, match=f"DRAINMW_{name.upper()} must be"):
        Drain()


def test_every_bad_setting_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        load({"DRAINMW_TIMEOUT": "abc"}, retry_after=-1, app="")
    for name in ("DRAINMW_TIMEOUT", "retry_after", "app"):
        assert f"{name} must be" in str(refused.value)


@pytest.mark.parametrize("secret", ["s3cret", "s3cret" * 10, "s3cret\n"])
@pytest.mark.parametrize("by_keyword", [True, False])
def test_a_bad_token_is_not_shown(secret: str, by_keyword: bool) -> None:
    with pytest.raises(SettingsError) as refused:
        if by_keyword:
            load({}, token=secret)
        else:
            load({"DRAINMW_TOKEN": secret})
    assert "s3cret" not in str(refused.value)
    cause = refused.value.__cause__ or refused.value.__context__
    assert "s3cret" not in repr(cause)


def test_the_password_of_a_place_of_ownership_is_not_shown() -> None:
    url = "redis://user:s3cret@host"
    assert "s3cret" not in repr(load({}, ownership=url))
    with pytest.raises(SettingsError) as refused:
        load({}, ownership=f"x{url}")
    assert "s3cret" not in f"{refused.value} {refused.value.__context__!r}"


def test_a_token_stands_in_no_repr() -> None:
    assert TOKEN not in repr(load({}, token=TOKEN))


def test_a_keyword_wins_over_its_variable() -> None:
    settings = load({"DRAINMW_TIMEOUT": "5", "DRAINMW_RETRY_AFTER": "9"}, timeout=7)
    assert (settings.timeout, settings.retry_after) == (7, 9)


def test_a_bad_variable_does_not_matter_where_a_keyword_wins() -> None:
    assert load({"DRAINMW_TIMEOUT": "abc"}, timeout=7).timeout == 7


def test_other_variables_are_none_of_ours() -> None:
    load({"DRAINMW_URL": "http://x", "DRAINMW_ADMIT": "x", "TIMEOUT": "abc"})


def test_an_unknown_keyword_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"timeuot is not a setting; .*timeout"):
        load({}, timeuot=5)


def test_the_values_without_any_setting() -> None:
    settings = load({})
    assert settings.token is None
    assert (settings.readiness_path, settings.liveness_path) == ("/readyz", "/livez")
    assert (settings.timeout, settings.lame_duck) == (25.0, 0.0)
    assert settings.refused_body_bytes == 16 * 2**20
    assert settings.refused_body_timeout == 5.0
    assert settings.refused_body_readers == 256
    assert settings.count_timeout == 0.25
    assert settings.report_interval == 5.0
    assert settings.metrics_public is False


def test_how_connections_end_without_any_setting() -> None:
    settings = load({})
    assert settings.websocket_policy == "close"
    assert settings.event_stream_policy == "end"
    assert settings.response_policy == "finish"
    assert (settings.policies, settings.policy) == ((), None)
    assert (settings.close_notice, settings.close_window) == (0.25, 5.0)
    assert (settings.websocket_grace, settings.stream_grace) == (2.0, 0.5)
    assert (settings.close_code, settings.close_timeout) == (1012, 2.0)
    assert settings.event_stream_refusal == 200


def test_a_probe_path_is_switched_off_by_a_word_or_by_none() -> None:
    assert load({}, readiness_path=None).readiness_path is None
    assert load({"DRAINMW_READINESS_PATH": "/x"}, readiness_path=None) == load(
        {}, readiness_path="off"
    )
    assert load({"DRAINMW_LIVENESS_PATH": ""}).liveness_path is None


@pytest.mark.parametrize(
    "given",
    [
        {"readiness_path": "/health", "liveness_path": "/health"},
        {"readiness_path": "/livez"},
        {"liveness_path": "/readyz"},
    ],
    ids=["both given", "readiness alone", "liveness alone"],
)
def test_one_path_does_not_answer_both_probes(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r'not that of readiness, or "off"$'):
        load({}, **given)
    load({}, **given | {"readiness_path": None})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DRAINMW_TIMEUOT", "DRAINMW_TIMEOUT"),
        ("DRAINMW_DRAIN_TIMEOUT", "DRAINMW_TIMEOUT"),
        ("DRAINMW_TOKENFILE", "DRAINMW_TOKEN_FILE"),
        ("DRAINMW_REFUSAL_HEADER", "DRAINMW_REFUSAL_HEADERS"),
        ("DRAINMW_CONTROLS", "DRAINMW_CONTROL"),
        ("DRAINMW_XYZ", None),
        ("DRAINMW_", None),
    ],
)
def test_a_variable_that_nobody_reads_is_told_with_what_was_meant(
    name: str, meant: str | None
) -> None:
    assert unknown_variables({name: "x", "PATH": "/bin"}) == [(name, meant)]


def test_no_variable_that_somebody_reads_is_unknown() -> None:
    names = {f"DRAINMW_{name.upper()}" for name in set(RIGHT_FORM) - set(FROM_CODE)}
    of_commands = ("CONTROL", "CONTROL_FILE", "URL", "URL_FILE")
    names |= {f"DRAINMW_{name}" for name in of_commands}
    assert unknown_variables(dict.fromkeys(names, "x")) == []
    from_code = {f"DRAINMW_{name.upper()}": "x" for name in FROM_CODE}
    assert [name for name, _ in unknown_variables(from_code)] == sorted(from_code)


def test_headers_and_hosts_are_read_into_one_form() -> None:
    settings = load(
        {
            "DRAINMW_REFUSAL_HEADERS": "Access-Control-Allow-Origin: *\nX-A: b:c\n",
            "DRAINMW_CONTROL_HOSTS": "Shop.example,, b.example ",
        }
    )
    assert settings.refusal_headers == (
        ("access-control-allow-origin", "*"),
        ("x-a", "b:c"),
    )
    assert settings.control_hosts == {"shop.example", "b.example"}


def test_policies_are_read_into_one_form() -> None:
    said = (
        ("/a", Policy("finish")),
        ("/b/*", Policy("close", 5)),
        ("/*", Policy("end", 0.5)),
    )
    text = "/a finish; /b/*\tclose 5\n/* end 0.5\n"
    assert load({"DRAINMW_POLICIES": text}).policies == said
    assert load({}, policies=text).policies == said
    assert load({}, policies=dict(said)).policies == said
    assert load({}, policies=list(said)).policies == said
    names = {"/a": "finish", "/b/*": "close 5", "/*": Policy("end", 0.5)}
    assert load({}, policies=names).policies == said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/chat", "'/chat' has no policy"),
        (
            "/a end\n/chat clsoe",
            "/chat: there is no policy 'clsoe'; it is finish, clos",
        ),
        ("/a finish; chat close", "'chat' is no path such as "),
        ("/a/{room} close", "'/a/{room}' is no path such as "),
        ("/a close 601", "/a: a grace is a number of seconds from 0 to 600, not 601"),
        ("/a close ten", "/a: a grace is a number of seconds from 0 to 600, not 'ten'"),
        ("/a close; /b end; /a finish", "/a has two policies"),
    ],
)
def test_of_many_policies_the_wrong_one_is_named(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({"DRAINMW_POLICIES": text})
    told = f"DRAINMW_POLICIES must be {RIGHT_FORM['policies']} ("
    assert str(refused.value).startswith(f"{told}{why}")


def test_policies_in_code_win_over_those_of_the_variable() -> None:
    variable = {"DRAINMW_POLICIES": "/a finish", "DRAINMW_CLOSE_WINDOW": "9"}
    settings = load(variable, policies={"/b": "end"})
    assert settings.policies == (("/b", Policy("end")),)
    assert settings.close_window == 9.0


def test_a_token_and_a_file_of_tokens_are_not_both_set(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with pytest.raises(SettingsError, match="DRAINMW_TOKEN and DRAINMW_TOKEN_FILE"):
        load({"DRAINMW_TOKEN": TOKEN, "DRAINMW_TOKEN_FILE": str(file)})
    with pytest.raises(SettingsError, match="token and token_file"):
        load({}, token=TOKEN, token_file=file)
    settings = load({"DRAINMW_TOKEN": TOKEN}, token_file=file)
    assert (settings.token, settings.token_file) == (None, file)
    settings = load({"DRAINMW_TOKEN_FILE": str(file)}, token=TOKEN)
    assert settings.token_file is None


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load({}).timeout = 5
