"""Each error that can come to a door has its place in the one table of answers."""

from __future__ import annotations

import json

import pytest

from drainmw.errors import (
    CountersUnknown,
    DrainError,
    DrainNotFound,
    Refused,
    RequestInvalid,
    SourceError,
    SourceUnavailable,
    StateError,
    StateFetchError,
)
from drainmw.problems import STATUS, MethodNotAllowed, Unauthorized, problem
from tests.test_errors import CLASSES

ELSEWHERE = {
    # Families, which nobody raises.
    *("DrainError", "Refused", "Misuse", "SourceError"),
    # Raised to the app, or at start.
    *("IntakeRefused", "ConnectionClosed", "InstalledTwice", "SettingsError"),
    "StateAdapterInvalid",
    "LeaseCrowded",
    # Raised to the drain itself, which asks again.
    *("Superseded", "LeaseHeld", "LeaseLost", "OwnershipUnavailable"),
}
"""They never come to a door; nor do those of sources and of keyed work."""
AT_DOORS = [
    name
    for name, error in CLASSES.items()
    if name not in ELSEWHERE
    and not issubclass(error, SourceUnavailable)
    and not error.code.startswith("RUNTIME_WORK_")
]

FAMILIES: list[tuple[type[DrainError], set[int]]] = [
    (RequestInvalid, {400}),
    (Refused, {404, 409}),
    (SourceError, {500, 503}),
    (StateError, {500}),
]


@pytest.mark.parametrize("name", AT_DOORS)
def test_an_error_that_can_come_to_a_door_has_an_answer_of_its_family(
    name: str,
) -> None:
    """But what fails a handoff, which its status tells."""
    error = CLASSES[name]
    if issubclass(error, StateFetchError):
        assert error not in STATUS
        return
    status, title = STATUS[error]
    allowed = [found for family, found in FAMILIES if issubclass(error, family)]
    assert not allowed or status in allowed[0]
    assert title


def test_an_error_of_another_place_is_a_fault_of_ours() -> None:
    answer = problem(DrainError("this is a fault"))
    assert answer.status_code == 500
    assert json.loads(bytes(answer.body)) == {
        "title": "Internal error",
        "status": 500,
        "code": "RUNTIME_DRAIN_ERROR",
        "detail": "this is a fault",
    }


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (Unauthorized("x"), ("www-authenticate", "Bearer")),
        (MethodNotAllowed("GET, HEAD"), ("allow", "GET, HEAD")),
        (CountersUnknown(["queue"]), ("retry-after", "1")),
    ],
)
def test_an_answer_says_in_a_header_what_would_help(
    error: DrainError, header: tuple[str, str]
) -> None:
    name, value = header
    assert problem(error).headers[name] == value


@pytest.mark.parametrize("resumed", [True, False])
def test_a_drain_that_is_not_there_says_whether_it_was_resumed(resumed: bool) -> None:
    told = json.loads(bytes(problem(DrainNotFound(resumed)).body))
    assert told.get("resumed", False) is resumed
