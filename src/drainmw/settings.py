"""One settings model: `DRAINMW_*` variables and keyword arguments.

Every field is a keyword of `Drain` and, in upper case behind `DRAINMW_`, an
environment variable. A keyword wins. Whatever is wrong is said at once, before
any listener opens, with the name that the operator used.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from drainmw.core.policy import (
    GRACE_MAXIMUM,
    Action,
    Chooser,
    Policy,
    Routes,
    normal,
    parse_routes,
    shown,
)
from drainmw.errors import SettingsError
from drainmw.tokens import TOKEN, TOKEN_FORM

PREFIX = "DRAINMW_"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OFF = frozenset(("", "off", "none"))

_OWN_HEADERS = frozenset(
    (
        "cache-control",
        "connection",
        "content-length",
        "content-type",
        "drainmw-refused",
        "keep-alive",
        "retry-after",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""What frames a refusal, or is set by one; a second one would contradict it."""

OWNERSHIP_SCHEMES = ("redis", "rediss", "unix", "postgresql", "postgres")

Headers = tuple[tuple[str, str], ...]
F = TypeVar("F")


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def _path(value: object) -> object:
    if value is None or (isinstance(value, str) and value.strip().lower() in _OFF):
        return None
    if not isinstance(value, str) or not re.fullmatch(r"/[!-~]*", value):
        raise ValueError("not a path")
    if "?" in value or "#" in value or "%" in value:
        raise ValueError("not a plain path")
    return value


def _headers(value: object) -> object:
    if isinstance(value, str):
        value = [_split_header(part) for part in value.split("\n") if part.strip()]
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list | tuple):
        raise ValueError("not headers")
    pairs = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("not a header")
        name, text = pair
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise ValueError("not a header name")
        if not (isinstance(text, str) and text.isprintable() and text.isascii()):
            raise ValueError("not a header value")
        if name.lower() in _OWN_HEADERS:
            raise ValueError("not a header of the app")
        pairs.append((name.lower(), text))
    return tuple(pairs)


def _split_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("not a header")
    return name.strip(), value.strip()


def _hosts(value: object) -> object:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple | set | frozenset):
        raise ValueError("not a list of names")
    names = [str(name).lower() for name in value]
    if not all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) for name in names):
        raise ValueError("not a host name")
    return frozenset(names)


def _routes(value: object) -> object:
    pairs = parse_routes(value) if isinstance(value, str) else value
    if isinstance(pairs, Mapping):
        pairs = list(pairs.items())
    if not isinstance(pairs, list | tuple):
        raise ValueError("not routes")
    routes = tuple(_route(pair) for pair in pairs)
    paths = [path for path, _ in routes]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path} has two policies")
    return routes


def _route(pair: object) -> tuple[str, Policy]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError("not a route and its policy")
    path, policy = pair
    # As an app sees it: decoded, and without a query.
    if not isinstance(path, str) or not re.fullmatch(r"/[^\s*%?#{}<>]*\*?", path):
        raise ValueError(f'{shown(path)} is no path such as "/chat" or "/chat/*"')
    try:
        return path, normal(policy)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{path}: {exc}") from None


def _policy_name(*allowed: Action) -> BeforeValidator:
    def check(value: object) -> object:
        if value not in tuple(allowed):
            raise ValueError("not such a policy")
        return Action(str(value))

    return BeforeValidator(check)


def _ownership(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in ("file", "off"):
        return SecretStr(value)
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("not a place")
    scheme, _, host = value.partition("://")
    if scheme not in OWNERSHIP_SCHEMES or not host:
        raise ValueError("not a URL of such a place")
    urlsplit(value)
    return SecretStr(value)


Seconds = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_number)]
OptionalPath = Annotated[str | None, BeforeValidator(_path)]

RIGHT_FORM = {
    "token": TOKEN_FORM,
    "token_file": f"a readable file with one token or two, each {TOKEN_FORM}",
    "revision": "40 lower-case hex digits",
    "app": "1 to 128 printable characters",
    "group": "1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`",
    "runtime_dir": "a directory",
    "ownership": "file, off, or a URL such as redis://host:6379/0 (also rediss: and "
    "unix:) or postgresql://host/database",
    "timeout": "a number of seconds from 0.1 to 600",
    "lame_duck": "a number of seconds from 0 to 600",
    "graceful_timeout": "a number of seconds from 0.1 to 600",
    "kill_grace": "a number of seconds from 0 to 3600",
    "readiness_path": 'a path such as "/readyz", or "off"',
    "liveness_path": 'a path such as "/livez", not that of readiness, or "off"',
    "retry_after": "a whole number of seconds from 0 to 3600",
    "refusal_headers": 'lines of "name: value", or a mapping of them, '
    "and none that a refusal sets itself, such as content-length or retry-after",
    "control_hosts": "host names separated by commas",
    "metrics_public": "true or false",
    "refused_body_bytes": "a whole number of bytes from 0 to 1073741824",
    "refused_body_timeout": "a number of seconds from 0 to 60",
    "refused_body_readers": "a whole number from 0 to 65536",
    "control_body_timeout": "a number of seconds from 0.1 to 60",
    "count_timeout": "a number of seconds from 0.01 to 10",
    "report_interval": "a number of seconds from 0.1 to 3600",
    "websocket_policy": "close or finish",
    "event_stream_policy": "end or finish",
    "response_policy": "finish or end",
    "policies": "lines, or parts between semicolons, of "
    '"PATH POLICY [GRACE [NOTICE]]", '
    "or in code a mapping of paths to policies: "
    'a path such as "/chat" or "/chat/*", decoded, a policy of finish, close and end, '
    "a grace and a notice in seconds from 0 to 600",
    "close_window": "a number of seconds from 0 to 600",
    "close_notice": "a number of seconds from 0 to 600",
    "websocket_grace": "a number of seconds from 0 to 600",
    "stream_grace": "a number of seconds from 0 to 600",
    "close_code": "1000, 1001, 1012, 1013 or a whole number from 3000 to 4999",
    "close_timeout": "a number of seconds from 0.05 to 60",
    "event_stream_refusal": "200 or 503",
    "admit": "a plain function of the ASGI scope that returns true or false",
    "policy": "a plain function of the ASGI scope that returns a policy or None",
    "redact_path": "a function from a path to what may be shown of it",
}


class Settings(BaseModel):
    """What can be set. Durations are seconds, sizes are bytes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
    )

    token: SecretStr | None = None
    """Opens the control endpoints; without it and `token_file` they are closed."""
    token_file: Path | None = None
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")
    """This release's own; a begin must name it as its source."""
    app: str | None = Field(None, min_length=1, max_length=128)
    """What the report calls this app, and its releases share."""
    group: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Tells two apps of one supervisor apart; it never joins what is not siblings."""
    runtime_dir: Path | None = None
    """Where workers of one release find each other; mode 0700."""
    ownership: Annotated[SecretStr, BeforeValidator(_ownership)] = SecretStr("file")
    """Where it is noted which process runs schedules, for all releases of `app`."""
    timeout: Seconds = Field(25.0, ge=0.1, le=600, allow_inf_nan=False)
    """Of a drain that `serve` begins by itself at SIGTERM."""
    lame_duck: Seconds = Field(0.0, ge=0, le=600, allow_inf_nan=False)
    """How long `serve` is cordoned at SIGTERM before it drains."""
    graceful_timeout: Seconds = Field(3.0, ge=0.1, le=600, allow_inf_nan=False)
    """What `serve` leaves the server to stop in, once the drain has ended."""
    kill_grace: Seconds | None = Field(None, ge=0, le=3600, allow_inf_nan=False)
    """How long the supervisor waits after SIGTERM before it kills; only it knows."""
    readiness_path: OptionalPath = "/readyz"
    liveness_path: OptionalPath = Field("/livez", validate_default=True)
    retry_after: Whole = Field(1, ge=0, le=3600)
    """Seconds, on every refusal."""
    refusal_headers: Annotated[Headers, BeforeValidator(_headers)] = ()
    """Sent with every refusal, such as `access-control-allow-origin`."""
    control_hosts: Annotated[frozenset[str], BeforeValidator(_hosts)] = frozenset()
    """Names in `Host` under which control may be asked, beside those that
    nobody outside could register: addresses, single labels, `localhost`,
    `.local`, `.internal`, `.test`."""
    metrics_public: bool = False
    refused_body_bytes: Whole = Field(16 * 2**20, ge=0, le=2**30)
    """How much of a refused request's body is read and thrown away."""
    refused_body_timeout: Seconds = Field(5.0, ge=0, le=60, allow_inf_nan=False)
    refused_body_readers: Whole = Field(256, ge=0, le=65536)
    """How many refused bodies are read at once; others are not read at all."""
    control_body_timeout: Seconds = Field(5.0, ge=0.1, le=60, allow_inf_nan=False)
    count_timeout: Seconds = Field(0.25, ge=0.01, le=10, allow_inf_nan=False)
    """What a source has to answer in, or its count is unknown."""
    report_interval: Seconds = Field(5.0, ge=0.1, le=3600, allow_inf_nan=False)
    """Between two lines in the log that name the oldest blockers."""
    websocket_policy: Annotated[Action, _policy_name(Action.CLOSE, Action.FINISH)] = (
        Action.CLOSE
    )
    """Of WebSockets for which nothing else is said."""
    event_stream_policy: Annotated[Action, _policy_name(Action.END, Action.FINISH)] = (
        Action.END
    )
    """Of responses of the type `text/event-stream`."""
    response_policy: Annotated[Action, _policy_name(Action.FINISH, Action.END)] = (
        Action.FINISH
    )
    """Of all other responses."""
    policies: Annotated[Routes, BeforeValidator(_routes)] = ()
    """Of single routes; the first that fits counts."""
    close_window: Seconds = Field(5.0, ge=0, le=GRACE_MAXIMUM, allow_inf_nan=False)
    """Over which closes are spread, where there are many."""
    close_notice: Seconds = Field(0.25, ge=0, le=GRACE_MAXIMUM, allow_inf_nan=False)
    """Between the begin and the first close of an idle WebSocket."""
    websocket_grace: Seconds = Field(2.0, ge=0, le=GRACE_MAXIMUM, allow_inf_nan=False)
    """How long a WebSocket may finish what its app is doing."""
    stream_grace: Seconds = Field(0.5, ge=0, le=GRACE_MAXIMUM, allow_inf_nan=False)
    """How long a stream may go on."""
    close_code: Whole = 1012
    close_timeout: Seconds = Field(2.0, ge=0.05, le=60, allow_inf_nan=False)
    """For a client that does not answer a close, or does not read."""
    event_stream_refusal: Whole = 200
    """What a browser's EventSource gets: 200 and a hint, or the 503 of all others,
    upon which it gives up for good."""
    admit: Callable[[dict[str, Any]], bool] | None = None
    """Asked for each request while draining: may it still finish here?"""
    policy: Chooser | None = None
    """Asked at begin for each long-lived connection that `policies` does not name;
    `None` is the policy of its kind."""
    redact_path: Callable[[str], str] | None = None
    """Applied to a path before it is shown in a log, a report or a terminal."""

    @field_validator("token")
    @classmethod
    def _token_form(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not TOKEN.fullmatch(value.get_secret_value()):
            raise ValueError("not a token")
        return value

    @field_validator("close_code")
    @classmethod
    def _close_code_may_be_sent(cls, value: int) -> int:
        if value not in (1000, 1001, 1012, 1013) and not 3000 <= value <= 4999:
            raise ValueError("not a code that a server may send")
        return value

    @field_validator("event_stream_refusal")
    @classmethod
    def _a_refusal(cls, value: int) -> int:
        if value not in (200, 503):
            raise ValueError("neither of the two")
        return value

    @field_validator("admit", "policy")
    @classmethod
    def _answers_at_once(cls, value: F) -> F:
        if inspect.iscoroutinefunction(value):
            raise ValueError("a coroutine is always true")
        return value

    @field_validator("liveness_path")
    @classmethod
    def _not_the_readiness_path(
        cls, value: str | None, info: ValidationInfo
    ) -> str | None:
        if value is not None and value == info.data.get("readiness_path"):
            raise ValueError("one path cannot answer both")
        return value

    @field_validator("app")
    @classmethod
    def _app_form(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("not printable")
        return value


_READ_ELSEWHERE = frozenset(("CONTROL", "CONTROL_FILE", "URL", "URL_FILE"))
_FROM_CODE_ALONE = frozenset(("admit", "policy", "redact_path"))


def load(environ: Mapping[str, str] | None = None, **keywords: Any) -> Settings:
    """Settings from the environment, overridden by keyword arguments.

    Raises:
        SettingsError: Names each keyword or variable that cannot be used, and
            what would be right.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in keywords.items() if value is not None}
    values: dict[str, Any] = {}
    for name in Settings.model_fields:
        variable = PREFIX + name.upper()
        if name in keywords or name in _FROM_CODE_ALONE or variable not in environ:
            continue
        values[name] = environ[variable]
    if {"token", "token_file"} & given.keys():
        values = {k: v for k, v in values.items() if k not in ("token", "token_file")}
    merged = values | given
    if "token" in merged and "token_file" in merged:
        both = " and ".join(_spelled(n, values) for n in ("token", "token_file"))
        raise SettingsError(f"{both} are both set; set one of them")
    try:
        return Settings.model_validate(merged | _switched_off(keywords))
    except ValidationError as exc:
        wrong = {str(error["loc"][0]): error for error in exc.errors()}
    complaints = (
        _complaint(name, values) + _reason(name, error) for name, error in wrong.items()
    )
    raise SettingsError("; ".join(complaints))


def unknown_variables(
    environ: Mapping[str, str] | None = None,
) -> list[tuple[str, str | None]]:
    """`DRAINMW_*` variables that nobody reads, each with what was likely meant."""
    given = os.environ if environ is None else environ
    settings = Settings.model_fields.keys() - _FROM_CODE_ALONE
    known = {name.upper() for name in settings} | _READ_ELSEWHERE
    unknown = [
        name.removeprefix(PREFIX)
        for name in sorted(given)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known
    ]
    return [(PREFIX + name, _likely_meant(name, known)) for name in unknown]


def _likely_meant(name: str, known: Collection[str]) -> str | None:
    """Told without the prefix, which makes any two of them alike."""
    return next((PREFIX + found for found in get_close_matches(name, known, 1)), None)


def _switched_off(keywords: Mapping[str, Any]) -> dict[str, None]:
    """A path given as `None` is off; other settings given so are not given."""
    paths = ("readiness_path", "liveness_path")
    return {name: None for name in paths if name in keywords and keywords[name] is None}


def _spelled(name: str, from_environment: Mapping[str, Any]) -> str:
    return PREFIX + name.upper() if name in from_environment else name


def _reason(name: str, error: Any) -> str:
    """What of several things is wrong, where it is no secret."""
    if name != "policies":
        return ""
    return f" ({error.get('ctx', {}).get('error', error['msg'])})"


def _complaint(name: str, from_environment: Mapping[str, Any]) -> str:
    if name not in RIGHT_FORM:
        return f"{name} is not a setting; there are {', '.join(sorted(RIGHT_FORM))}"
    return f"{_spelled(name, from_environment)} must be {RIGHT_FORM[name]}"
