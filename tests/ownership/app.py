"""An app with schedules; each tick that it fires is a line in its journal."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime

from starlette.types import Receive, Scope, Send

from drainmw import Clock, Drain, DrainMiddleware
from tests.ownership.journal import write
from tests.rig import hello

drain = Drain()
clock = Clock(drain.own("reports"))


@clock.every(float(os.environ.get("OFTEN", "0.1")), name="often")
async def often(due: datetime) -> None:
    write("often", due)
    await asyncio.sleep(float(os.environ.get("LASTS", "0")))
    write("often ended", due)


async def once(due: datetime) -> None:
    write("once", due)


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """A request of `/once?MOMENT` is for a tick at that moment."""
    if scope["type"] == "http" and scope["path"] == "/once":
        clock.at(float(scope["query_string"]), once, name="once")
    await hello(scope, receive, send)


app = DrainMiddleware(answer, drain)
