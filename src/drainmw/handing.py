"""Drives handoffs, from the control endpoints of two releases.

Every step may be repeated: what has been done is found to be so. So a run that
was interrupted is finished by running it again.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence

from drainmw.client import ControlClient
from drainmw.contract import (
    UNKNOWN_REVISION,
    HandoffsReport,
    Moved,
    StateStatus,
    TakenReport,
)
from drainmw.errors import DrainDetached, StateAdapterNotFound, StateDiscarded
from drainmw.tokens import generate


class Handing:
    """The handoffs from one release to another."""

    def __init__(
        self, source: ControlClient, target: ControlClient, *, timeout_ms: int
    ) -> None:
        self._source = source
        self._target = target
        self._timeout_ms = timeout_ms
        self.nonces: dict[str, str] = {}
        """By protocol, those of the handoffs that were driven."""

    def hand_over(
        self, protocols: Sequence[str], nonce: str | None, *, again: bool = False
    ) -> Iterator[StateStatus]:
        """Each status of each handoff, one after the other; ends at the first failure.

        Without `protocols` it is all that the old release has. `again` gives to a
        fresh release what an earlier one had acknowledged, under the same nonces.

        Raises:
            StateAdapterNotFound: The old release has no state.
            DrainError: What either of them refuses.
        """
        giving, taken = self._source.handoffs(), self._target.handoffs()["taken"]
        chosen = list(protocols) or [a["protocol"] for a in giving["adapters"]]
        if not chosen:
            raise StateAdapterNotFound(None, [])
        self._choose(chosen, nonce, giving, taken, again)
        begun = {handoff["nonce"] for handoff in taken}
        if giving["phase"] == "drained" and not giving["sealed"]:
            standing = self._source.report()["nonce"]
            if standing is not None:
                self._source.seal(standing)
        for protocol in chosen:
            own = self.nonces[protocol]
            if own not in begun:
                self._begin(protocol, own)
            for told in self._target.handoff(own):
                yield told
                if told["status"] == "failed":
                    return

    def confirm(self, detached: Moved) -> None:
        """Tell the new release that ownership has moved."""
        for nonce in self.nonces.values():
            self._target.confirm(nonce, detached)

    def discard(
        self, protocols: Sequence[str], nonce: str | None
    ) -> Iterator[TakenReport]:
        """Have the new release undo what is provisional, then tell the old one.

        Each handoff is known by the nonce of its run, or by its own.

        Raises:
            DrainDetached: Ownership has moved; nothing was undone.
            DrainError: What either of them refuses.
        """
        if self._source.handoffs()["phase"] == "detached":
            raise DrainDetached
        for taken in self._target.handoffs()["taken"]:
            protocol, own = taken["protocol"], taken["nonce"]
            is_named = nonce is None or own in (nonce, _derived(nonce, protocol))
            is_discarded = taken.get("failure") == StateDiscarded.code
            if not is_named or (protocols and protocol not in protocols):
                continue
            if taken["provisional"] or is_discarded:
                self._target.discard(own)
                self._source.take_back(protocol, own)
                yield taken

    def _begin(self, protocol: str, nonce: str) -> None:
        source, target, time = self._source, self._target, self._timeout_ms
        of, to = (c.report()["revision"] or UNKNOWN_REVISION for c in (source, target))
        target.begin_handoff(source.offer(protocol, nonce, of, to, time), nonce, time)

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


def _derived(nonce: str, protocol: str) -> str:
    """43 characters of base64url, as every nonce."""
    digest = hashlib.sha256(f"{nonce} {protocol}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
