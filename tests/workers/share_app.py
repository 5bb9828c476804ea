"""An app of several workers, each of which knows who came to it.

What a worker knows goes over as one; in the next release each takes its share.
"""

from __future__ import annotations

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from drainmw import Drain, DrainMiddleware, ImportContext

here: set[str] = set()
heard: list[str] = []


class Shares:
    """Names, split over the workers of a release."""

    protocol = "shares"
    schema_version = 1
    maximum_bytes = 65536

    def validate(self, value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(n, str) for n in value)

    async def export_state(self) -> tuple[str, Any]:
        return f"w-{os.getpid()}", sorted(here)

    def combine(self, parts: list[tuple[str, Any]]) -> tuple[str, Any]:
        names = sorted(name for _, part in parts for name in part)
        return f"of-{len(parts)}", names

    def seal(self) -> None:
        heard.append("seal")
        if "stubborn" in here:
            raise RuntimeError("somebody is stubborn")

    def unseal(self) -> None:
        heard.append("unseal")

    async def import_state(self, value: Any, context: ImportContext) -> None:
        if context.index == 1 and "poison" in value:
            raise RuntimeError("cannot swallow it")
        here.update(value[context.index :: context.count])
        heard.append(f"import {context.index}/{context.count} {context.provisional}")

    def confirm(self, context: ImportContext) -> None:
        heard.append("confirm")

    def discard(self, context: ImportContext) -> None:
        here.clear()
        heard.append("discard")


async def arrive(request: Request) -> JSONResponse:
    here.add(request.path_params["name"])
    return JSONResponse({"pid": os.getpid()})


async def who(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid(), "here": sorted(here), "heard": heard})


drain = Drain()
drain.add_state(Shares())
app = DrainMiddleware(
    Starlette(routes=[Route("/who", who), Route("/arrive/{name}", arrive)]), drain
)
