"""An app that remembers who is there, and hands that over to its next release."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from drainmw import Drain, DrainMiddleware, ImportContext, ModelState

online: dict[str, float] = {}


class Presence(BaseModel):
    """The state, as it goes over."""

    online: dict[str, float]


def load(presence: Presence, context: ImportContext) -> None:
    online.update(presence.online)


async def arrive(request: Request) -> JSONResponse:
    online[request.path_params["name"]] = 1.5
    return JSONResponse(online)


async def who(request: Request) -> JSONResponse:
    return JSONResponse(online)


drain = Drain()
drain.add_state(
    ModelState(
        Presence,
        protocol="presence",
        schema_version=1,
        export=lambda: Presence(online=online),
        load=load,
    )
)
app = DrainMiddleware(
    Starlette(routes=[Route("/who", who), Route("/arrive/{name}", arrive)]), drain
)
