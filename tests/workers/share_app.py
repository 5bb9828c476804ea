"""An app of several workers, each of which knows who came to it.

What a worker knows goes over as one; in the next release each takes its share. There
are several kinds of such state, since a release takes each over once. A worker stops
in a step for as long as a file of the test says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from drainmw import Drain, DrainMiddleware, ImportContext

FILES = Path(os.environ.get("SHARE_FILES", os.devnull))
KINDS = ("shares", "seats", "songs", "spoons")

here: dict[str, set[str]] = {kind: set() for kind in KINDS}
heard: dict[str, list[str]] = {kind: [] for kind in KINDS}


async def step(name: str) -> None:
    if (hold := FILES / f"{name}.hold").exists():
        (FILES / f"{name}.{os.getpid()}.reached").touch()
        while hold.exists():  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.01)


class Killer(logging.Handler):
    """Kills the worker that carries a handoff out once the old release has noted it."""

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "drainmw", {}).get("event", "")
        if event == "handoff begun" and FILES.is_dir():
            (FILES / "carrier").write_text(str(os.getpid()))
        elif event == "handoff acknowledged" and (FILES / "carrier.kill").exists():
            (FILES / "carrier.kill").unlink()
            os.kill(int((FILES / "carrier").read_text()), signal.SIGKILL)


class Shares:
    """Names, split over the workers of a release."""

    schema_version = 1
    maximum_bytes = 65536

    def __init__(self, kind: str) -> None:
        self.protocol = kind
        self.here, self.heard = here[kind], heard[kind]

    def validate(self, value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(n, str) for n in value)

    async def export_state(self) -> tuple[str, Any]:
        await step("export")
        return f"w-{os.getpid()}", sorted(self.here)

    @property
    def combine(self) -> Any:
        """None where somebody keeps the workers apart."""
        return None if "loner" in self.here else self._combined

    def _combined(self, parts: list[tuple[str, Any]]) -> tuple[str, Any]:
        names = sorted({name for _, part in parts for name in part})
        return f"of-{len(parts)}", names

    def seal(self) -> None:
        self.heard.append("seal")
        if "stubborn" in self.here:
            raise RuntimeError("somebody is stubborn")

    def unseal(self) -> None:
        self.heard.append("unseal")

    async def import_state(self, value: Any, context: ImportContext) -> None:
        await step(f"{self.protocol}.import.{context.index}")
        if context.index == 1 and (FILES / f"{self.protocol}.poison").exists():
            raise RuntimeError("cannot swallow it")
        self.here.update(value[context.index :: context.count])
        self.heard.append(
            f"import {context.index}/{context.count} {context.provisional}"
        )

    def confirm(self, context: ImportContext) -> None:
        self.heard.append("confirm")

    def discard(self, context: ImportContext) -> None:
        self.here.clear()
        self.heard.append("discard")


async def arrive(request: Request) -> JSONResponse:
    for names in here.values():
        names.add(request.path_params["name"])
    return JSONResponse({"pid": os.getpid()})


async def leave(request: Request) -> JSONResponse:
    for names in here.values():
        names.discard(request.path_params["name"])
    return JSONResponse({"pid": os.getpid()})


async def who(request: Request) -> JSONResponse:
    kinds = {kind: sorted(names) for kind, names in here.items()}
    return JSONResponse({"pid": os.getpid(), "here": kinds, "heard": heard})


logging.getLogger("drainmw").addHandler(Killer())
drain = Drain()
for kind in KINDS:
    drain.add_state(Shares(kind))
app = DrainMiddleware(
    Starlette(
        routes=[
            Route("/who", who),
            Route("/arrive/{name}", arrive),
            Route("/leave/{name}", leave),
        ]
    ),
    drain,
)
