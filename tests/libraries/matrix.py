"""Which library runs under which servers."""

from __future__ import annotations

from dataclasses import dataclass

from tests.servers.matrix import SERVERS, WEBSOCKETS_ONLY, Kind

_BY_NAME = {kind.name: kind for kind in (*SERVERS, *WEBSOCKETS_ONLY)}
UVICORN = _BY_NAME["uvicorn-h11-websockets-sansio"]
HYPERCORN = _BY_NAME["hypercorn"]
DAPHNE = _BY_NAME["daphne"]


@dataclass(frozen=True, slots=True)
class Library:
    """An app as the users of a library write it."""

    app: str
    needs: tuple[str, ...]
    """The modules of app and client."""
    servers: tuple[Kind, ...] = (UVICORN, HYPERCORN)
