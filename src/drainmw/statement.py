"""What a release states of itself: the status of a drain, and the report."""

from __future__ import annotations

import os
from typing import Literal

from drainmw.contract import (
    PROTOCOL,
    InFlight,
    Report,
    SourceReport,
    Status,
    WorkerReport,
)
from drainmw.core.drain import Lifecycle, Phase, Run
from drainmw.core.roster import KINDS, Roll, Worker
from drainmw.errors import CountersInvalid, CountersUnknown
from drainmw.reporting import BLOCKERS_MAXIMUM, Told, milliseconds, shown_id
from drainmw.sources.counting import Seen, number_of, running_of
from drainmw.text import failure_text


def status_of(run: Run, phase: Phase, roll: Roll) -> Status:
    """The answer to a status.

    Raises:
        CountersInvalid, CountersUnknown: A counter is not to be had.
    """
    answer: Status = {
        "protocol": PROTOCOL,
        "nonce": run.request.nonce,
        "sourceRevision": run.request.source_revision,
        "targetRevision": run.request.target_revision,
        "timeoutMs": run.request.timeout_ms,
        "status": _as_status(phase, run),
        "inFlight": _in_flight(roll),
    }
    if run.failure is not None:
        answer["failure"] = run.failure
    return answer


def report_of(
    lifecycle: Lifecycle,
    workers: list[Worker],
    roll: Roll,
    told: list[Told],
    *,
    app: str | None,
    now: float,
) -> Report:
    """Everything an operator wants to know. Unknown counters are null.

    What this worker tells stands first in `told`; it is never too old.
    """
    run = lifecycle.run
    living = {worker.pid for worker in workers}  # a place may be another's by now
    blockers = [blocker for worker in told for blocker in worker["blockers"]]
    found = [blocker for blocker in blockers if blocker["worker"] in living]
    silent = {worker.pid for worker in roll.silent} - {os.getpid()}
    request = run.request if run else None
    return {
        "app": app,
        "revision": lifecycle.revision,
        "phase": str(lifecycle.phase),
        "epoch": lifecycle.epoch,
        "nonce": request.nonce if request else None,
        "sourceRevision": request.source_revision if request else None,
        "targetRevision": request.target_revision if request else None,
        "remainingMs": _until(run, lifecycle.phase, now),
        "inFlight": roll.counts,
        "admittedTotal": sum(w.admitted for w in workers),
        "refusedTotal": sum(w.refused for w in workers),
        "lastAdmittedAgoMs": _ago(now, [w.last_admitted for w in workers]),
        "lastRefusedAgoMs": _ago(now, [w.last_refused for w in workers]),
        "failure": run.failure if run else None,
        "blockers": sorted(found, key=lambda b: -b["ageMs"])[:BLOCKERS_MAXIMUM],
        "sources": [
            _unknown(source) if source["worker"] in silent else source
            for worker in told
            for source in worker["sources"]
            if source["worker"] in living
        ],
        "workers": [
            _worker(worker, worker not in roll.unknown, lifecycle, now)
            for worker in workers
        ],
        "warnings": list(
            dict.fromkeys(text for worker in told for text in worker["warnings"])
        ),
    }


def _as_status(phase: Phase, run: Run) -> Literal["draining", "drained", "failed"]:
    """A detached release has ended as its verdict says."""
    if phase is Phase.DRAINING:
        return "draining"
    return "drained" if run.failure is None else "failed"


def _in_flight(roll: Roll) -> InFlight:
    if not roll.valid:
        raise CountersInvalid(", ".join(roll.who))
    known = roll.known
    if known is None:
        raise CountersUnknown(list(roll.who), roll.error or "")
    return {
        "http": known["http"],
        "websocket": known["websocket"],
        "jobs": known["jobs"],
        "schedules": known["schedules"],
    }


def _until(run: Run | None, phase: Phase, now: float) -> int | None:
    """Milliseconds to the deadline of a drain that is still waited for."""
    if run is None or phase is not Phase.DRAINING:
        return None
    return milliseconds(run.deadline - now)


def _ago(now: float, moments: list[float]) -> int | None:
    last = max(moments, default=0.0)
    return milliseconds(now - last) if last else None


def _unknown(source: SourceReport) -> SourceReport:
    """As it was when its worker could last tell, save what may be another by now."""
    return {**source, "jobs": None, "schedules": None}


def _worker(
    worker: Worker, has_told: bool, lifecycle: Lifecycle, now: float
) -> WorkerReport:
    counts = worker.counts if has_told else (None,) * len(KINDS)
    return {
        "pid": worker.pid,
        "ageMs": milliseconds(now - worker.born),
        "phase": str(lifecycle.phase),
        "epoch": lifecycle.epoch,
        "inFlight": dict(zip(KINDS, counts, strict=True)),
        "lastSeenMs": milliseconds(now - worker.published),
        "unknown": not has_told,
    }


def source_report(seen: Seen) -> SourceReport:
    """Where one source of this worker stands."""
    entry = seen.entry
    source = entry.source
    error = entry.error or (failure_text(seen.error) if seen.error else None)
    return {
        "name": source.name,
        "intake": source.intake,
        "held": entry.held,
        "jobs": seen.counts.jobs if seen.counts else None,
        "schedules": seen.counts.schedules if seen.counts else None,
        "overdue": number_of(source, "overdue"),
        "handedBack": number_of(source, "handed_back"),
        "error": error,
        "running": [shown_id(piece.id) for piece in running_of(source)],
        "worker": os.getpid(),
    }
