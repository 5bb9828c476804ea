"""The frameworks, and the ways to install the middleware that are usual there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.servers.matrix import SERVERS, Kind


@dataclass(frozen=True, slots=True)
class Installed:
    """One framework, one way of installing the middleware in it."""

    framework: str
    way: str
    needs: str
    has_own_readiness: bool = False
    has_websockets: bool = True
    background: str | None = "http"
    """As what its background task after a response is counted, if at all."""

    @property
    def name(self) -> str:
        return f"{self.framework}-{self.way}"


INSTALLED = (
    Installed("starlette", "added", "starlette"),
    Installed("starlette", "listed", "starlette", has_own_readiness=True),
    Installed("starlette", "wrapped", "starlette"),
    Installed("fastapi", "added", "fastapi"),
    Installed("fastapi", "listed", "fastapi", has_own_readiness=True),
    Installed("fastapi", "wrapped", "fastapi"),
    Installed("django", "wrapped", "django", has_websockets=False, background=None),
    Installed("litestar", "wrapped", "litestar"),
    Installed("quart", "wrapped", "quart", background=None),
    Installed("quart", "added", "quart", background=None),
)

UVICORN: Kind = next(k for k in SERVERS if k.name == "uvicorn-httptools-wsproto")


def only(name: str) -> pytest.MarkDecorator:
    """Run a test on that one alone."""
    chosen = [it for it in INSTALLED if it.name == name]
    return pytest.mark.parametrize(
        "installed", chosen, ids=[name], indirect=True, scope="session"
    )
