"""A typed client of the control endpoints, over TCP or a control socket.

No proxy of the environment is used and no redirect followed: the token goes to
the target that was named, and nowhere else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from drainmw import tokens
from drainmw.contract import (
    ACKNOWLEDGE_PATH,
    BEGIN_PATH,
    CONFIRM_PATH,
    CORDON_PATH,
    DETACH_PATH,
    DISCARD_PATH,
    HANDOFFS_PATH,
    OFFER_PATH,
    PROTOCOL,
    REPORT_PATH,
    RESUME_PATH,
    SEAL_PATH,
    STATE_BEGIN_PATH,
    STATE_STATUS_PATH,
    STATUS_PATH,
    UNCORDON_PATH,
    Accepted,
    HandoffsReport,
    InFlight,
    Moved,
    Offered,
    Report,
    Settled,
    StateStatus,
    Status,
)
from drainmw.errors import (
    CountersInvalid,
    CountersUnknown,
    DrainError,
    DrainNotFound,
    SettingsError,
)
from drainmw.text import failure_text, printable, without_credentials

POLL_FIRST = 0.05  # seconds
POLL_LAST = 0.25
PATIENT = 90.0  # seconds for what asks an adapter in every worker
PATIENCE = 5.0  # seconds a target may be out of reach while it is watched


class Unreachable(DrainError):
    """Raised when there is no answer from the target."""

    code = "RUNTIME_CONTROL_UNREACHABLE"

    def __init__(self, target: str, why: str) -> None:
        super().__init__(target, why)
        self.target = target
        self.why = why

    def __str__(self) -> str:
        return f"{self.target} does not answer: {self.why}"


class Denied(DrainError):
    """Raised when the target answers with an error."""

    def __init__(self, status: int, code: str, detail: str, *, resumed: bool) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.resumed = resumed

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


class NoCounters(Denied):
    """Raised when counters are unknown or invalid; a later answer may know them."""


class ControlClient:
    """Asks one target. Close it, or use it as a context manager."""

    def __init__(
        self,
        *,
        url: str | None = None,
        control: Path | str | None = None,
        tokens: Sequence[str] = (),
        timeout: float = 5.0,
    ) -> None:
        """`url` with the root path of the app, or `control`, a socket file.

        Of several tokens each is tried, in case one has been rotated out.

        Raises:
            SettingsError: Not exactly one target, or no usable URL.
        """
        if (url is None) == (control is None):
            raise SettingsError("name one target: a URL or a control socket")
        if url is not None:
            self.target = _checked(url)
            base, transport = self.target, httpx.HTTPTransport()
        else:
            self.target = f"control socket {control}"
            base = "http://drainmw"
            # There is no TLS; certificates take 15 ms to read.
            transport = httpx.HTTPTransport(uds=str(control), verify=False)
        self._tokens: list[str | None] = list(tokens) or [None]
        self._http = httpx.Client(
            base_url=base, transport=transport, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def begin(
        self,
        nonce: str,
        source: str,
        target: str,
        timeout_ms: int,
        *,
        handoff: bool = False,
    ) -> Accepted:
        """Begin a drain, or join it. Safe to retry.

        With `handoff` work that has not started may wait for the next release.

        Raises:
            Unreachable, Denied: As every call here does.
        """
        body: dict[str, Any] = {
            "protocol": PROTOCOL,
            "nonce": nonce,
            "sourceRevision": source,
            "targetRevision": target,
            "timeoutMs": timeout_ms,
        }
        if handoff:
            body["handoff"] = True
        return cast(Accepted, self._ask("POST", BEGIN_PATH, {"accepted"}, json=body))

    def status(self, nonce: str) -> Status:
        """Where that drain stands.

        Raises:
            DrainNotFound: No drain of that nonce; `resumed` tells a retired one.
            NoCounters: Somebody did not answer; ask again.
        """
        needed = {"status", "inFlight"}
        answer = self._ask("GET", STATUS_PATH, needed, params={"nonce": nonce})
        if not _is_status(answer, nonce):
            raise _not_ours(200)
        return cast(Status, answer)

    def report(self) -> Report:
        """Everything an operator wants to know."""
        members = set(Report.__annotations__) - {"failure"}
        answer = self._ask("GET", REPORT_PATH, members)
        if not isinstance(answer["inFlight"], dict):
            raise _not_ours(200)
        return cast(Report, {"failure": None, **answer})

    def cordon(self) -> Moved:
        """Say not ready, keep admitting."""
        return cast(Moved, self._ask("POST", CORDON_PATH, {"phase"}, json={}))

    def uncordon(self) -> Moved:
        """Take a cordon back."""
        return cast(Moved, self._ask("POST", UNCORDON_PATH, {"phase"}, json={}))

    def resume(self, nonce: str, *, force: bool = False) -> Moved:
        """Serve again; the nonce is retired.

        `force` resumes also where the next release has acknowledged the state.
        """
        body = {"nonce": nonce, "force": True} if force else {"nonce": nonce}
        return cast(Moved, self._ask("POST", RESUME_PATH, {"phase"}, json=body))

    def seal(self, nonce: str) -> Moved:
        """Fix the state that goes over. Safe to retry."""
        return cast(
            Moved,
            self._ask(
                "POST", SEAL_PATH, {"phase"}, json={"nonce": nonce}, timeout=PATIENT
            ),
        )

    def detach(self, nonce: str) -> Moved:
        """Give the work away for good; nothing opens there again."""
        return cast(
            Moved, self._ask("POST", DETACH_PATH, {"phase"}, json={"nonce": nonce})
        )

    def offer(
        self,
        protocol: str,
        nonce: str,
        source: str,
        target: str,
        timeout_ms: int,
        *,
        taker: dict[str, Any] | None = None,
    ) -> Offered:
        """Have the old release open a listener for one fetch of its state.

        `taker` is which process the new one is, as its `handoffs` tells.
        """
        body = {
            "protocol": protocol,
            "nonce": nonce,
            "sourceRevision": source,
            "targetRevision": target,
            "timeoutMs": timeout_ms,
            **_named(taker),
        }
        needed = {"protocol", "schemaVersion", "source"}
        return cast(Offered, self._ask("POST", OFFER_PATH, needed, json=body))

    def take_back(
        self, protocol: str, nonce: str, *, taker: dict[str, Any] | None = None
    ) -> Moved:
        """Tell the old release that the new one, `taker`, has not got its state."""
        body = {"protocol": protocol, "nonce": nonce, "status": "discarded"}
        body |= _named(taker)
        return cast(Moved, self._ask("POST", ACKNOWLEDGE_PATH, {"phase"}, json=body))

    def confirm(self, nonce: str, detached: Moved) -> Settled:
        """Tell the new release what the detach of the old one has answered."""
        return self._settled(CONFIRM_PATH, {"nonce": nonce, **detached})

    def discard(self, nonce: str) -> Settled:
        """Have the new release undo what it imported."""
        return self._settled(DISCARD_PATH, {"nonce": nonce})

    def _settled(self, path: str, body: dict[str, Any]) -> Settled:
        answer = self._ask("POST", path, {"status"}, json=body, timeout=PATIENT)
        return cast(Settled, answer)

    def handoffs(self) -> HandoffsReport:
        """What a release gives, and takes over."""
        needed = set(HandoffsReport.__annotations__) - {"process"}
        answer = self._ask("GET", HANDOFFS_PATH, needed)
        return cast(HandoffsReport, {"process": {}, **answer})

    def begin_handoff(self, offered: Offered, nonce: str, timeout_ms: int) -> Accepted:
        """Have the new release fetch what was offered. Safe to retry."""
        body = {**offered, "nonce": nonce, "timeoutMs": timeout_ms}
        return cast(
            Accepted, self._ask("POST", STATE_BEGIN_PATH, {"accepted"}, json=body)
        )

    def handoff(self, nonce: str) -> Iterator[StateStatus]:
        """Each status of a handoff until it has ended.

        Raises:
            Unreachable: No answer for five seconds.
        """
        pause = POLL_FIRST
        silent_since: float | None = None
        while True:
            params = {"nonce": nonce}
            try:
                answer = self._ask("GET", STATE_STATUS_PATH, {"status"}, params=params)
            except Unreachable:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE:
                    raise
            else:
                silent_since = None
                yield cast(StateStatus, answer)
                if answer["status"] != "pending":
                    return
            time.sleep(pause)
            pause = min(pause * 1.2, POLL_LAST)

    def ended(self, nonce: str) -> Status | None:
        """How that drain has ended, by the report; `None` while it has not.

        For a drain whose status is not to be had, since somebody does not tell
        their counters. Those that are unknown are `None`.
        """
        report = self.report()
        if report["nonce"] != nonce or report["phase"] not in ("drained", "failed"):
            return None
        answer: dict[str, Any] = {
            "protocol": PROTOCOL,
            "nonce": nonce,
            "sourceRevision": report["sourceRevision"],
            "targetRevision": report["targetRevision"],
            "status": report["phase"],
            "inFlight": report["inFlight"],
        }
        if report["failure"] is not None:
            answer["failure"] = report["failure"]
        return cast(Status, answer)

    def watch(self, nonce: str) -> Iterator[Status]:
        """Each status until the drain has ended.

        While counters are unknown or invalid there is none; once the drain has
        ended all the same, the last one is that of `ended`.

        Raises:
            DrainNotFound: `resumed` where the drain was seen, or is known to
                have been retired.
            Unreachable: No answer for five seconds.
        """
        seen = False
        pause = POLL_FIRST
        silent_since: float | None = None
        while True:
            try:
                status = self.status(nonce)
            except NoCounters:
                silent_since = None
                if (ended := self._ended_quietly(nonce)) is not None:
                    yield ended
                    return
            except DrainNotFound as exc:
                raise DrainNotFound(resumed=seen or exc.resumed) from None
            except Unreachable:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE:
                    raise
            else:
                seen, silent_since = True, None
                yield status
                if status["status"] != "draining":
                    return
            time.sleep(pause)
            pause = min(pause * 1.2, POLL_LAST)

    def _ended_quietly(self, nonce: str) -> Status | None:
        with suppress(Unreachable, Denied):
            return self.ended(nonce)
        return None

    def _ask(self, method: str, path: str, needed: set[str], **how: Any) -> Any:
        response = self._send(method, path, **how)
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            answer = {}
        if response.is_success and needed <= answer.keys():
            return answer
        raise _denied(response.status_code, answer)

    def _send(self, method: str, path: str, **how: Any) -> httpx.Response:
        """Ask with one token after another, until one is not refused."""
        while True:
            token = self._tokens[0]
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            try:
                response = self._http.request(method, path, headers=headers, **how)
            except httpx.HTTPError as exc:
                raise Unreachable(self.target, failure_text(exc)) from None
            if response.status_code != 401 or len(self._tokens) == 1:
                return response
            self._tokens.pop(0)


def found(
    url: str | None,
    control: Path | None,
    token_file: Path | None,
    *,
    flag: str = "--token-file",
) -> dict[str, Any]:
    """The keywords of a client, from what was given and the environment.

    What was given wins over a variable. `flag` is what named the file.

    Raises:
        SettingsError: No target, or one of them cannot be used.
    """
    if url and control:
        raise SettingsError("--url and --control exclude each other")
    target = url or (None if control else _variable("DRAINMW_URL"))
    socket = control or (None if url else _variable("DRAINMW_CONTROL"))
    if target is not None and socket is not None:
        raise SettingsError(
            "DRAINMW_URL and DRAINMW_CONTROL are both set; name one by a flag"
        )
    if socket is not None:
        return {"control": socket}
    if target is None:
        raise SettingsError(
            "name a target: --url or --control, or set DRAINMW_URL or DRAINMW_CONTROL"
        )
    return {"url": target, "tokens": _tokens(token_file, flag)}


def _named(taker: dict[str, Any] | None) -> dict[str, Any]:
    return {"taker": taker} if taker else {}


def _variable(name: str) -> str | None:
    """A variable, or what stands in the file that its `_FILE` form names."""
    file = os.environ.get(f"{name}_FILE")
    if name in os.environ or file is None:
        return os.environ.get(name) or None
    try:
        return Path(file).read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{name}_FILE cannot be read: {file}: {exc}") from None


def _tokens(file: Path | None, flag: str) -> list[str]:
    if file is not None:
        return tokens.read(file, flag)
    given = os.environ.get("DRAINMW_TOKEN")
    if given is not None:
        if not tokens.TOKEN.fullmatch(given):
            raise SettingsError(f"DRAINMW_TOKEN must be {tokens.TOKEN_FORM}")
        return [given]
    named = os.environ.get("DRAINMW_TOKEN_FILE")
    return [] if named is None else tokens.read(Path(named))


def _denied(status: int, answer: dict[str, Any]) -> DrainError:
    code = printable(str(answer.get("code", "")))
    detail = printable(str(answer.get("detail", "")))
    resumed = answer.get("resumed") is True or code == "RUNTIME_DRAIN_RESUMED"
    if code in (CountersUnknown.code, CountersInvalid.code):
        return NoCounters(status, code, detail, resumed=False)
    if code == DrainNotFound.code:
        return DrainNotFound(resumed=resumed)
    if not code:
        return _not_ours(status)
    return Denied(status, code, detail, resumed=resumed)


def _not_ours(status: int) -> Denied:
    detail = f"the answer, {status}, is not one of drainmw's control endpoints"
    return Denied(status, "RUNTIME_CONTROL_NOT_FOUND", detail, resumed=False)


def _is_status(answer: dict[str, Any], nonce: str) -> bool:
    """Whether that is the status of that drain: a proof has to be whole."""
    in_flight = answer["inFlight"]
    return (
        answer.get("protocol") == PROTOCOL
        and answer.get("nonce") == nonce
        and answer["status"] in ("draining", "drained", "failed")
        and isinstance(in_flight, dict)
        and in_flight.keys() == InFlight.__annotations__.keys()
        and all(type(number) is int for number in in_flight.values())
    )


def _checked(url: str) -> str:
    shown = without_credentials(printable(url))
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise SettingsError(
            f"the URL must be like http://127.0.0.1:8000, not {shown or 'empty'}"
        )
    if "@" in parts.netloc:
        raise SettingsError(f"the URL must carry no user or password: {shown}")
    if parts.query or parts.fragment:
        raise SettingsError(f"the URL must have no query and no fragment: {shown}")
    return url.rstrip("/")
