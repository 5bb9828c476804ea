"""One server a kind for the whole session, all groups in one directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.workers.crowd import CREWS, Crew, Crowd, crowd


@pytest.fixture(scope="session")
def runtime() -> Iterator[Path]:
    """A private directory with a short path: a socket's has 108 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="dr"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def needs(crew: Crew) -> None:
    for module in crew.kind.needs:
        if find_spec(module) is None:
            pytest.skip(f"{crew.kind.name} needs {module}, which is not installed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every server that does what it is about."""
    if "running_crowd" not in metafunc.fixturenames:
        return
    crews = [
        crew
        for crew in CREWS
        if (crew.respawns or "mortal" not in metafunc.fixturenames)
        and (crew.reloads or "reloading" not in metafunc.fixturenames)
    ]
    metafunc.parametrize(
        "running_crowd",
        crews,
        ids=lambda crew: crew.kind.name,
        indirect=True,
        scope="session",
    )


@pytest.fixture(scope="session")
def running_crowd(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    runtime: Path,
) -> Iterator[Crowd]:
    crew: Crew = request.param
    needs(crew)
    with crowd(crew, tmp_path_factory.mktemp(crew.kind.name), runtime) as found:
        yield found


@pytest.fixture
def release(running_crowd: Crowd) -> Iterator[Crowd]:
    """All workers of a server, serving and idle; as new again afterwards."""
    running_crowd.be_as_new()
    yield running_crowd
    running_crowd.be_as_new()


@pytest.fixture
def mortal(release: Crowd) -> Crowd:
    """The same, of a server that replaces a worker that dies."""
    return release


@pytest.fixture
def reloading(release: Crowd) -> Crowd:
    """The same, of a server whose SIGHUP replaces all workers."""
    return release
