"""One process a library and server, which must not have logged an error at its end."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.libraries.log import Log
from tests.libraries.matrix import Library
from tests.servers.matrix import Kind
from tests.servers.reports import pytest_runtest_makereport
from tests.servers.server import Server, running

GRACE = "0.5"  # seconds that a WebSocket is let be which never stops sending

__all__ = ["log", "pytest_runtest_makereport", "server", "serving"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module on each server that its `LIBRARY` names."""
    if "serving" not in metafunc.fixturenames:
        return
    library: Library = metafunc.module.LIBRARY
    metafunc.parametrize(
        "serving",
        [(library, kind) for kind in library.servers],
        ids=[kind.name for kind in library.servers],
        indirect=True,
        scope="module",
    )


@pytest.fixture(scope="module")
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that serves the app of a library."""
    library: Library
    kind: Kind
    library, kind = request.param
    for module in (*library.needs, *kind.needs):
        if find_spec(module) is None:
            pytest.skip(f"it needs {module}, which is not installed")
    folder = tmp_path_factory.mktemp(kind.name)
    with running(
        kind, folder, app=library.app, DRAINMW_WEBSOCKET_GRACE=GRACE
    ) as server:
        yield server
    # What nobody waited for is told at the very end.
    assert Log(server.log, 0).faults() == []


@pytest.fixture
def server(serving: Server) -> Iterator[Server]:
    """That server, serving and idle; as new again when the test is over."""
    serving.be_as_new()
    try:
        yield serving
    finally:
        serving.be_as_new()


@pytest.fixture
def log(server: Server) -> Log:
    """What the server writes during the test."""
    return Log(server.log)
