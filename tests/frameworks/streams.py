"""An event stream without an end, the same in every framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

open_streams: set[object] = set()
"""Those whose generator has not been closed."""


async def endless(pause: float) -> AsyncIterator[str]:
    """One event, and another after each pause."""
    stream = object()
    open_streams.add(stream)
    try:
        while True:
            yield "data: x\n\n"
            await asyncio.sleep(pause)
    finally:
        open_streams.discard(stream)
