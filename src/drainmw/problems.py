"""Errors of the control endpoints, and how each becomes an answer (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from drainmw import metrics
from drainmw.answers import PROBLEM
from drainmw.errors import (
    AlreadyStarted,
    CountersInvalid,
    CountersUnknown,
    DrainDetached,
    DrainError,
    DrainNotFound,
    DrainResumed,
    GroupError,
    HandedOver,
    PhaseConflict,
    RequestInvalid,
    RevisionMismatch,
    StateAdapterNotFound,
    StateAlreadyStarted,
    StateError,
    StateExportInvalid,
    StateExportTooLarge,
    StateNotCombined,
    StateNotDetached,
    StateNotDiscardable,
    StateNotExportable,
    StateNotFound,
    StateNotImportable,
    StateNotPending,
    StateNotProvisional,
    StateProvisional,
    StateRequestInvalid,
    StateRevisionInvalid,
    StateSealRefused,
    StateSourceInvalid,
    StateValueInvalid,
    StateVersionUnknown,
)
from drainmw.reading import BodyTooLarge, BodyTooSlow, MediaType


class Forbidden(DrainError):
    """Raised when a request may not come here whatever it carries."""

    code = "RUNTIME_CONTROL_FORBIDDEN"


class Closed(Forbidden):
    """Raised when no token is configured, so that none can be right."""


class Unauthorized(DrainError):
    """Raised when the token is missing or wrong."""

    code = "RUNTIME_CONTROL_UNAUTHORIZED"


class MethodNotAllowed(DrainError):
    """Raised when an endpoint has no such method."""

    code = "RUNTIME_CONTROL_METHOD_NOT_ALLOWED"


class NoSuchPath(DrainError):
    """Raised when a control app is asked for a path that it does not have."""

    code = "RUNTIME_CONTROL_NOT_FOUND"


STATUS: Mapping[type[DrainError], tuple[int, str]] = {
    Forbidden: (403, "Not from here"),
    Closed: (403, "Control is closed"),
    Unauthorized: (401, "The control token is needed"),
    NoSuchPath: (404, "No such endpoint"),
    MethodNotAllowed: (405, "No such method here"),
    MediaType: (415, "The body must be application/json"),
    BodyTooLarge: (413, "The body is too large"),
    BodyTooSlow: (408, "The body did not arrive in time"),
    RequestInvalid: (400, "The request is not in the form of the contract"),
    AlreadyStarted: (409, "Another drain has begun"),
    RevisionMismatch: (409, "Another release is meant"),
    DrainResumed: (409, "This drain was resumed"),
    DrainDetached: (409, "Ownership has moved"),
    GroupError: (503, "The workers cannot act as one"),
    PhaseConflict: (409, "Not possible in this phase"),
    DrainNotFound: (404, "No such drain"),
    CountersInvalid: (500, "A counter is not valid"),
    CountersUnknown: (503, "A counter is unknown"),
    StateRequestInvalid: (400, "The request is not in the form of the contract"),
    StateVersionUnknown: (400, "No adapter reads that version"),
    StateSourceInvalid: (400, "The source is not on this host"),
    StateRevisionInvalid: (400, "A revision is not in its form"),
    StateAdapterNotFound: (404, "No such state adapter"),
    StateNotFound: (404, "No such handoff"),
    StateNotExportable: (409, "Not exported in this phase"),
    StateNotImportable: (409, "Not imported in this phase"),
    StateNotPending: (409, "The handoff has ended"),
    StateNotProvisional: (409, "Not possible for this handoff"),
    StateProvisional: (409, "The state may still go back"),
    StateNotDiscardable: (409, "The import cannot be undone"),
    StateNotDetached: (409, "Another drain is meant"),
    StateNotCombined: (409, "Several workers have a state each"),
    StateSealRefused: (409, "The state cannot be fixed now"),
    HandedOver: (409, "Another release has the state"),
    StateAlreadyStarted: (409, "Another handoff has begun"),
    StateExportInvalid: (500, "The state does not pass its own check"),
    StateExportTooLarge: (500, "The state is too large"),
    StateValueInvalid: (500, "The state is not JSON"),
    StateError: (500, "The state does not go over"),
    metrics.MetricsUnavailable: (501, "Metrics are not installed"),
}


def problem(exc: DrainError) -> Response:
    """An error as an answer, by the table."""
    status, title = STATUS.get(type(exc), (500, "Internal error"))
    content: dict[str, Any] = {"title": title, "status": status, "code": exc.code}
    if str(exc):
        content["detail"] = str(exc)
    headers: dict[str, str] = {}
    if isinstance(exc, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(exc, MethodNotAllowed):
        headers["allow"] = str(exc)
        content["detail"] = f"allowed here: {exc}"
    elif isinstance(exc, CountersUnknown):
        headers["retry-after"] = "1"
    elif isinstance(exc, DrainNotFound) and exc.resumed:
        content["resumed"] = True
    return JSONResponse(content, status, headers, media_type=PROBLEM)
