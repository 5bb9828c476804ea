"""Drives handoffs, from the control endpoints of two releases.

Every step may be repeated: what has been done is found to be so. So a run that
was interrupted is finished by running it again.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from drainmw.client import ControlClient, Denied
from drainmw.contract import (
    UNKNOWN_REVISION,
    HandoffsReport,
    Moved,
    StateStatus,
    TakenReport,
)
from drainmw.errors import (
    DrainDetached,
    DrainError,
    StateAdapterNotFound,
    StateAlreadyStarted,
    StateDiscarded,
    StateNotDiscardable,
    StateVersionUnknown,
)
from drainmw.tokens import generate

PROOF_PATIENCE = 2.0  # seconds for a new release to prove that the old one is dead
PROOF_PAUSE = 0.1
SLOW = 0.5  # seconds after which it is said that a handoff is on its way


class Handing:
    """The handoffs from one release to another."""

    def __init__(
        self, source: ControlClient, target: ControlClient, *, timeout_ms: int
    ) -> None:
        self._source = source
        self._target = target
        self._timeout_ms = timeout_ms
        self._taker: dict[str, Any] = {}
        self.nonces: dict[str, str] = {}
        """By protocol, those of the handoffs that were driven."""
        self._say_at = 0.0

    def hand_over(
        self, protocols: Sequence[str], nonce: str | None, *, again: bool = False
    ) -> Iterator[StateStatus]:
        """Each status of each handoff, one after the other; ends at the first failure.

        Without `protocols` it is all that the old release has. `again` gives to a
        fresh release what an earlier one had acknowledged, under the same nonces.

        Raises:
            StateAdapterNotFound: The old release has no state.
            StateAlreadyStarted: The new release has taken it over from another.
            DrainError: What either of them refuses.
        """
        giving, taking = self._source.handoffs(), self._target.handoffs()
        taken, self._taker = taking["taken"], taking["process"]
        chosen = list(protocols) or [a["protocol"] for a in giving["adapters"]]
        if not chosen:
            raise StateAdapterNotFound(None, [])
        _check_adapters(chosen, giving, taking)
        self._choose(chosen, nonce, giving, taken, again)
        begun = {handoff["nonce"] for handoff in taken}
        if giving["phase"] == "drained" and not giving["sealed"]:
            standing = self._source.report()["nonce"]
            if standing is not None:
                self._source.seal(standing)
        for protocol in chosen:
            if self.nonces[protocol] not in begun:
                self._begin(protocol, is_free=nonce is None)
            self._say_at = time.monotonic() + SLOW
            for told in self._target.handoff(self.nonces[protocol]):
                if told["status"] == "acknowledged":
                    self._check_gave(giving, protocol)
                yield told
                if told["status"] == "failed":
                    return

    def is_slow(self) -> bool:
        """Whether it is time, once a second, to say that a handoff is on its way."""
        now = time.monotonic()
        if now < self._say_at:
            return False
        self._say_at = now + 1
        return True

    def _check_gave(self, giving: HandoffsReport, protocol: str) -> None:
        """Whether it is from this old release, and this drain of it.

        Raises:
            StateAlreadyStarted: The new release has had it before, or from another.
        """
        is_copy = {a["protocol"]: a["phase"] == "serving" for a in giving["adapters"]}
        if is_copy.get(protocol):
            return
        nonce = self.nonces[protocol]
        given = self._source.handoffs()["given"]
        if not any(g["nonce"] == nonce and g["acknowledged"] for g in given):
            raise StateAlreadyStarted

    def lost(self) -> Iterator[str]:
        """What the new release has acknowledged and has not any more, in words."""
        for taken in self._target.handoffs()["taken"]:
            if taken["nonce"] in self.nonces.values() and "lost" in taken:
                ended = ", ".join(f"worker {pid}" for pid in taken["lost"])
                yield f"{ended} has ended, and with it a share of {taken['protocol']}"

    def confirm(self, detached: Moved) -> None:
        """Tell the new release that ownership has moved."""
        for nonce in self.nonces.values():
            self._target.confirm(nonce, detached)

    def owned(self, protocols: Sequence[str], nonce: str | None) -> list[StateStatus]:
        """What the new release has for good, where the old one does not answer.

        Empty if that is not all; it may take a moment to prove that nobody lives.

        Raises:
            Unreachable: The new one does not answer either.
        """
        until = time.monotonic() + PROOF_PATIENCE
        while True:
            taken = self._target.handoffs()["taken"]
            meant = [one for one in taken if _is_meant(one, protocols, nonce)]
            owned = [one for one in meant if one["status"] == "acknowledged"]
            if len(owned) < max(1, len(meant), len(protocols)):
                return []
            if not any(one["provisional"] for one in owned):
                return [s for o in owned for s in self._target.handoff(o["nonce"])]
            if time.monotonic() > until:
                return []
            time.sleep(PROOF_PAUSE)

    def kept(self, failed: StateStatus) -> str:
        """What has become of the state of a handoff that failed, in words.

        The old release is told: it may have noted that the state went over.
        """
        protocol, nonce = failed["protocol"], failed["nonce"]
        try:
            giving = self._source.handoffs()
            if giving["phase"] == "detached":
                return "the old release keeps it for a fresh one: run it with --again"
            if any(g["nonce"] == nonce and g["acknowledged"] for g in giving["given"]):
                self._give_up(protocol, nonce)
                giving = self._source.handoffs()
        except DrainError as exc:
            return str(exc)
        if any(given["acknowledged"] for given in giving["given"]):
            return "the old release keeps it; --discard gives the rest back, too"
        return "the old release keeps its state and can be resumed"

    def discard(
        self, protocols: Sequence[str], nonce: str | None
    ) -> Iterator[TakenReport]:
        """Have the new release undo what is not confirmed, then tell the old one.

        Each handoff is known by the nonce of its run, or by its own.

        Raises:
            DrainDetached: Ownership has moved; nothing was undone.
            DrainError: What either of them refuses.
        """
        giving, taking = self._source.handoffs(), self._target.handoffs()
        if giving["phase"] == "detached":
            raise DrainDetached
        self._taker = taking["process"]
        noted = {given["nonce"] for given in giving["given"] if given["acknowledged"]}
        due = []
        for taken in taking["taken"]:
            own = taken["nonce"]
            is_discarded = taken.get("failure") == StateDiscarded.code
            is_owed = is_discarded or (taken["status"] == "failed" and own in noted)
            is_due = taken["provisional"] or is_owed
            if is_due and _is_meant(taken, protocols, nonce):
                due.append(taken)
        discards = {a["protocol"]: a["discards"] for a in taking["adapters"]}
        for taken in due:  # all or nothing
            if taken["provisional"] and not discards.get(taken["protocol"]):
                raise StateNotDiscardable(taken["protocol"])
        for taken in due:
            self._give_up(taken["protocol"], taken["nonce"])
            yield taken

    def _give_up(self, protocol: str, nonce: str) -> None:
        """Once it is undone, and not before, the old side is told."""
        self._target.discard(nonce)
        self._source.take_back(protocol, nonce, taker=self._taker)

    def _begin(self, protocol: str, *, is_free: bool) -> None:
        """Begin a handoff; `is_free` to join one that was begun this instant."""
        source, target, time_ms = self._source, self._target, self._timeout_ms
        of, to = (c.report()["revision"] or UNKNOWN_REVISION for c in (source, target))
        own = self.nonces[protocol]
        try:
            offer = source.offer(protocol, own, of, to, time_ms, taker=self._taker)
            target.begin_handoff(offer, own, time_ms)
        except Denied:
            taken = target.handoffs()["taken"]
            begun = {one["protocol"]: one["nonce"] for one in taken}.get(protocol)
            if begun is None or not (is_free or begun == own):
                raise
            self.nonces[protocol] = begun

    def _choose(
        self,
        protocols: Sequence[str],
        nonce: str | None,
        giving: HandoffsReport,
        taken: Sequence[TakenReport],
        again: bool,
    ) -> None:
        """A nonce of its own for each protocol; the same whenever it is run again."""
        known: dict[str, str] = {}
        if nonce is None:
            if again:
                known = {given["protocol"]: given["nonce"] for given in giving["given"]}
            known |= {handoff["protocol"]: handoff["nonce"] for handoff in taken}
            nonce = generate()
        for protocol in protocols:
            own = nonce if len(protocols) == 1 else _derived(nonce, protocol)
            self.nonces[protocol] = known.get(protocol, own)


def unclaimed(source: ControlClient) -> list[str]:
    """What would end with an old release that is detached now, by protocol.

    That is state which changes while it serves, and which nobody has fetched and
    acknowledged.
    """
    giving = source.handoffs()
    if giving["phase"] == "detached":
        return []
    gone = {given["protocol"] for given in giving["given"] if given["acknowledged"]}
    kept = [a["protocol"] for a in giving["adapters"] if a["phase"] != "serving"]
    return [protocol for protocol in kept if protocol not in gone]


def _check_adapters(
    protocols: Sequence[str], giving: HandoffsReport, taking: HandoffsReport
) -> None:
    """Whether all of it can go over, before anything does.

    Raises:
        StateAdapterNotFound, StateVersionUnknown: Names the release.
    """
    versions = {a["protocol"]: a["schemaVersion"] for a in giving["adapters"]}
    reads = {a["protocol"]: a["reads"] for a in taking["adapters"]}
    for protocol in protocols:
        if protocol not in versions:
            raise StateAdapterNotFound(protocol, list(versions), "the old release")
        if protocol not in reads:
            raise StateAdapterNotFound(protocol, list(reads), "the new release")
        if versions[protocol] not in reads[protocol]:
            raise StateVersionUnknown(protocol, versions[protocol], reads[protocol])


def _is_meant(taken: TakenReport, protocols: Sequence[str], nonce: str | None) -> bool:
    """Known by the nonce of its run, or by its own."""
    protocol, own = taken["protocol"], taken["nonce"]
    is_named = nonce is None or own in (nonce, _derived(nonce, protocol))
    return is_named and (not protocols or protocol in protocols)


def _derived(nonce: str, protocol: str) -> str:
    """43 characters of base64url, as every nonce."""
    digest = hashlib.sha256(f"{nonce} {protocol}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
