"""Streams that are the same in every framework."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

from tests.gate import wait_at

open_streams: set[object] = set()


async def still_open() -> int:
    """How many have a generator that has not been closed.

    One that was not running when its reader was cancelled is closed once it is
    garbage.
    """
    gc.collect()
    await asyncio.sleep(0.01)
    return len(open_streams)


async def five_chunks(gate: int) -> AsyncIterator[str]:
    """Five, the last two of which come only once that gate is open."""
    for number in range(5):
        if number == 3:
            await wait_at(gate)
        yield f"{number} "


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
