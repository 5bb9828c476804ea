"""An app whose state can be stopped at each step of a handoff, and killed there.

It stops in a step of its adapter for as long as a file of the test says so, and
kills whom another one names, the moment that it logs an event. What its adapter is
told stands in one journal for all releases.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from drainmw import Drain, DrainMiddleware, ImportContext

NAME = os.environ["KEPT_NAME"]
FILES = Path(os.environ["KEPT_FILES"])
held: set[str] = set(os.environ.get("KEPT_HELD", "").split())


def note(what: str, context: ImportContext) -> None:
    entry = {"release": NAME, "pid": os.getpid(), "what": what}
    entry |= {"nonce": context.nonce, "provisional": context.provisional}
    with (FILES / "journal").open("a") as journal:
        journal.write(json.dumps(entry) + "\n")


async def step(name: str) -> None:
    """Say that it has come so far, and wait, or fail, where it is to."""
    with (FILES / f"{NAME}.{name}.reached").open("a") as reached:
        reached.write(".")
    while (FILES / f"{NAME}.{name}.hold").exists():  # noqa: ASYNC110  # a file
        await asyncio.sleep(0.005)
    if (FILES / f"{NAME}.{name}.fail").exists():
        raise RuntimeError("no room")


class Kept:
    """Names."""

    protocol = "kept"
    schema_version = 1
    maximum_bytes = 65536

    def validate(self, value: Any) -> bool:
        return isinstance(value, list)

    async def seal(self) -> None:
        await step("seal")

    async def export_state(self) -> tuple[str, Any]:
        await step("export")
        return "c-1", sorted(held)

    async def import_state(self, value: Any, context: ImportContext) -> None:
        await step("import")
        held.update(value)
        note("import", context)
        try:
            await step("imported")
        except asyncio.CancelledError:
            held.clear()
            raise

    async def confirm(self, context: ImportContext) -> None:
        await step("confirm")
        note("confirm", context)

    async def discard(self, context: ImportContext) -> None:
        await step("discard")
        held.clear()
        note("discard", context)


class Killer(logging.Handler):
    """Kills whom a file of the event's name names."""

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "drainmw", {}).get("event", "")
        with suppress(FileNotFoundError):
            victim = (FILES / f"{NAME}.{event}.kill").read_text()
            os.kill(int((FILES / f"{victim}.pid").read_text()), signal.SIGKILL)


async def names(_request: Request) -> JSONResponse:
    return JSONResponse(sorted(held))


logging.getLogger("drainmw").addHandler(Killer())
drain = Drain()
drain.add_state(Kept())
app = DrainMiddleware(Starlette(routes=[Route("/names", names)]), drain)
