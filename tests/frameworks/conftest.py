"""One uvicorn process for each framework and way of installing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.frameworks.matrix import INSTALLED, UVICORN, Installed
from tests.servers.reports import pytest_runtest_makereport
from tests.servers.server import Server, running

__all__ = ["installed", "pytest_runtest_makereport", "server", "serving"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suite on all of them, but for tests that name one."""
    given = metafunc.definition.iter_markers("parametrize")
    if "installed" not in metafunc.fixturenames or list(given):
        return
    metafunc.parametrize(
        "installed", INSTALLED, ids=lambda it: it.name, indirect=True, scope="session"
    )


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest) -> Installed:
    """The framework, and how the middleware came into it."""
    found: Installed = request.param
    return found


@pytest.fixture(scope="session")
def serving(
    installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Its process."""
    for module in (installed.needs, *UVICORN.needs):
        if find_spec(module) is None:
            pytest.skip(f"{installed.name} needs {module}, which is not installed")
    with running(
        UVICORN,
        tmp_path_factory.mktemp(installed.name),
        app=f"tests.frameworks.{installed.framework}_app:{installed.way}",
    ) as server:
        yield server


@pytest.fixture
def server(serving: Server) -> Iterator[Server]:
    """That process, serving and idle; as new again when the test is over."""
    serving.be_as_new()
    try:
        yield serving
    finally:
        serving.be_as_new()
