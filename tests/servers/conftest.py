"""One process a server for the whole session, as new before each test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.servers.matrix import SERVERS, WEBSOCKETS_ONLY, Kind
from tests.servers.reports import pytest_runtest_makereport
from tests.servers.server import Server, running

__all__ = ["fresh_server", "pytest_runtest_makereport", "server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suite on every server, and WebSockets on some more."""
    if "fresh_server" not in metafunc.fixturenames:
        return
    kinds: tuple[Kind, ...] = SERVERS
    if metafunc.module.__name__.endswith(("test_websockets", "test_closing")):
        kinds += WEBSOCKETS_ONLY
    elif metafunc.module.__name__.endswith("test_http2"):
        kinds = tuple(kind for kind in kinds if kind.h2c)
    metafunc.parametrize(
        "fresh_server",
        kinds,
        ids=lambda kind: kind.name,
        indirect=True,
        scope="session",
    )


@pytest.fixture(scope="session")
def fresh_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that serves the sample app."""
    kind: Kind = request.param
    for module in kind.needs:
        if find_spec(module) is None:
            pytest.skip(f"{kind.name} needs {module}, which is not installed")
    with running(kind, tmp_path_factory.mktemp(kind.name)) as server:
        yield server


@pytest.fixture
def server(fresh_server: Server) -> Iterator[Server]:
    """That server, serving and idle; as new again when the test is over."""
    fresh_server.be_as_new()
    try:
        yield fresh_server
    finally:
        fresh_server.be_as_new()
