"""The wire contract: its names, its paths, and the form of what goes out.

What comes in is read by `bodies`, which takes longer to import than a command of
the client should.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

PROTOCOL = "forgezero-drain/v1"
UNKNOWN_REVISION = "0" * 40
"""What stands on the wire where nobody knows a revision."""

CONTRACT_PREFIX = "/.forgezero/runtime/drain/v1"
BEGIN_PATH = f"{CONTRACT_PREFIX}/begin"
STATUS_PATH = f"{CONTRACT_PREFIX}/status"
OWN_PREFIX = "/.drainmw/v1"
REPORT_PATH = f"{OWN_PREFIX}/report"
METRICS_PATH = f"{OWN_PREFIX}/metrics"
CORDON_PATH = f"{OWN_PREFIX}/cordon"
UNCORDON_PATH = f"{OWN_PREFIX}/uncordon"
RESUME_PATH = f"{OWN_PREFIX}/resume"
SEAL_PATH = f"{OWN_PREFIX}/seal"
DETACH_PATH = f"{OWN_PREFIX}/detach"
OFFER_PATH = f"{OWN_PREFIX}/offer"
ACKNOWLEDGE_PATH = f"{OWN_PREFIX}/acknowledge"
CONFIRM_PATH = f"{OWN_PREFIX}/confirm"
DISCARD_PATH = f"{OWN_PREFIX}/discard"
HANDOFFS_PATH = f"{OWN_PREFIX}/handoffs"

STATE_PREFIX = "/.forgezero/runtime/state/v1"
STATE_EXPORT_PATH = f"{STATE_PREFIX}/export"
STATE_BEGIN_PATH = f"{STATE_PREFIX}/begin"
STATE_STATUS_PATH = f"{STATE_PREFIX}/status"

MARKER_HEADER = "drainmw-refused"
"""On every refusal of ours, with the phase as its value."""

TIMEOUT_MS_MINIMUM = 100
TIMEOUT_MS_MAXIMUM = 600_000
FAILURE_MAXIMUM = 128  # characters

SCHEMA_VERSION_MAXIMUM = 65535
STATE_BYTES_MAXIMUM = 1_048_576

# Each matches a whole text or not at all.
REVISION_FORM = r"[0-9a-f]{40}"
STATE_PROTOCOL_FORM = r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}"
CURSOR_FORM = r"[A-Za-z0-9][A-Za-z0-9_.:@/+\-=]{0,511}"
DIGEST_FORM = r"sha256:[0-9a-f]{64}"

TIMEOUT = "RUNTIME_DRAIN_TIMEOUT"
NOT_IDLE = "RUNTIME_DRAIN_NOT_IDLE"
COUNTERS_INVALID = "RUNTIME_DRAIN_COUNTERS_INVALID"


class InFlight(TypedDict):
    """The four counters."""

    http: int
    websocket: int
    jobs: int
    schedules: int


class Accepted(TypedDict):
    """The answer to a begin."""

    accepted: Literal[True]
    duplicate: bool


class _Status(TypedDict):
    protocol: str
    nonce: str
    sourceRevision: str
    targetRevision: str
    timeoutMs: int
    status: Literal["draining", "drained", "failed"]
    inFlight: InFlight


class Status(_Status, total=False):
    """The answer to a status; `failure` only once failed."""

    failure: str


class _StateStatus(TypedDict):
    protocol: str
    nonce: str
    schemaVersion: int
    sourceRevision: str
    targetRevision: str
    status: Literal["pending", "acknowledged", "failed"]


class StateStatus(_StateStatus, total=False):
    """The answer to the status of a handoff: what follows is there once it is so."""

    cursor: str
    digest: str
    failure: str


class Origin(TypedDict):
    """Where the new side acknowledges, and who the old one is."""

    acknowledge: str
    epoch: int | None
    """Of the drain; `None` for a snapshot of a release that serves."""
    timeoutMs: int
    """How long the old side waits for it, and gives the state to no other."""
    process: dict[str, Any]


class _Offered(TypedDict):
    protocol: str
    schemaVersion: int
    sourceRevision: str
    targetRevision: str
    source: dict[str, str]
    """`url` and `authorization`, as the begin of a handoff has them."""


class Offered(_Offered, total=False):
    """Where state is fetched once, and what opens it there."""

    origin: Origin


class AdapterReport(TypedDict):
    """One kind of state of a release."""

    protocol: str
    schemaVersion: int
    phase: str
    """From which phase on it is exported."""
    reads: list[int]
    """The versions that it imports."""
    discards: bool
    """Whether it can undo an import."""


class GivenReport(TypedDict):
    """State that the next release has fetched, and whether it says that it has it."""

    protocol: str
    nonce: str
    acknowledged: bool


class _TakenReport(TypedDict):
    protocol: str
    nonce: str
    status: Literal["pending", "acknowledged", "failed"]
    provisional: bool


class TakenReport(_TakenReport, total=False):
    """State that this release has taken over, or tries to."""

    failure: str
    lost: list[int]
    """Workers that have ended with their share of what is provisional."""


class HandoffsReport(TypedDict):
    """What a release gives, and takes over."""

    phase: str
    sealed: bool
    process: dict[str, Any]
    """Which process this release is, for the other one; empty if that is unknown."""
    adapters: list[AdapterReport]
    given: list[GivenReport]
    taken: list[TakenReport]


class Settled(TypedDict):
    """The answer to confirm and discard."""

    nonce: str
    status: Literal["pending", "acknowledged", "failed"]
    provisional: bool


class Moved(TypedDict):
    """The answer to cordon, uncordon, resume, seal and detach."""

    phase: str
    epoch: int


class Blocker(TypedDict):
    """One piece of work that a drain waits for."""

    kind: str
    method: str | None
    path: str
    ageMs: int
    worker: int


class SourceReport(TypedDict):
    """Where one source of jobs or schedules stands."""

    name: str
    intake: str
    held: bool
    jobs: int | None
    schedules: int | None
    overdue: int | None
    handedBack: int | None
    error: str | None
    running: list[str]
    worker: int


class WorkerReport(TypedDict):
    """Where one worker process stands."""

    pid: int
    ageMs: int
    phase: str
    epoch: int
    inFlight: dict[str, int | None]
    lastSeenMs: int
    unknown: bool


class Report(TypedDict):
    """Everything an operator wants to know."""

    app: str | None
    revision: str | None
    phase: str
    epoch: int
    nonce: str | None
    sourceRevision: str | None
    targetRevision: str | None
    remainingMs: int | None
    inFlight: dict[str, int | None]
    admittedTotal: int
    refusedTotal: int
    lastAdmittedAgoMs: int | None
    lastRefusedAgoMs: int | None
    failure: str | None
    blockers: list[Blocker]
    sources: list[SourceReport]
    workers: list[WorkerReport]
    warnings: list[str]
