"""A begin, with a nonce that nobody has used."""

from __future__ import annotations

from secrets import token_urlsafe

from drainmw.bodies import BeginRequest
from drainmw.contract import PROTOCOL


def begin_request() -> BeginRequest:
    """A minute for a drain of its own."""
    return BeginRequest.parse(
        {
            "protocol": PROTOCOL,
            "nonce": token_urlsafe(32),
            "sourceRevision": "0" * 40,
            "targetRevision": "1" * 40,
            "timeoutMs": 60_000,
        }
    )
