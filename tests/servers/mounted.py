"""The sample app below `/sub` of another app, which knows nothing of a drain."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Mount

from tests.servers.app import app as sample

app = Starlette(routes=[Mount("/sub", app=sample)])
