"""Below a root path, however it comes about, the same paths are exempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from tests.servers.matrix import SAMPLE, SERVERS, Kind
from tests.servers.server import OWN, Server, running


@dataclass(frozen=True, slots=True)
class Root:
    """One way to a root path, and what the app sees of it at `/scope`."""

    name: str
    kind: Kind
    seen: tuple[str, str]
    """The path and the root path."""
    app: str = SAMPLE
    options: tuple[str, ...] = ()
    prefix: str = ""


_KINDS = {kind.name: kind for kind in SERVERS}
_OPTION = ("--root-path", "/api")
ROOTS = (
    Root(
        "uvicorn",
        _KINDS["uvicorn-h11-websockets"],
        seen=("/api/scope", "/api"),
        options=_OPTION,
    ),
    Root("hypercorn", _KINDS["hypercorn"], seen=("/scope", "/api"), options=_OPTION),
    Root(
        "mounted",
        _KINDS["uvicorn-httptools-wsproto"],
        seen=("/sub/scope", "/sub"),
        app="tests.servers.mounted:app",
        prefix="/sub",
    ),
)


@pytest.fixture(scope="module", params=ROOTS, ids=lambda root: root.name)
def root(request: pytest.FixtureRequest) -> Root:
    found: Root = request.param
    return found


@pytest.fixture(scope="module")
def below(root: Root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The sample app below that root path."""
    for module in root.kind.needs:
        if find_spec(module) is None:
            pytest.skip(f"{root.name} needs {module}, which is not installed")
    with running(
        root.kind,
        tmp_path_factory.mktemp(root.name),
        app=root.app,
        options=root.options,
        prefix=root.prefix,
    ) as server:
        yield server


@pytest.fixture
def server(below: Server) -> Iterator[Server]:
    below.be_as_new()
    try:
        yield below
    finally:
        below.be_as_new()


def test_the_app_sees_the_root_path(root: Root, server: Server) -> None:
    scope = server.get("/scope").json()
    assert (scope["path"], scope["root_path"]) == root.seen


def test_work_is_counted_refused_finished_and_drained(server: Server) -> None:
    with server.held() as held:
        nonce = server.begin()
        assert server.status(nonce)["inFlight"]["http"] == 1
        assert server.get("/hello").is_refusal
        held.let_go()
        assert server.outcome(nonce)["status"] == "drained"
    assert (held.answer().status, held.answer().closes) == (200, True)


def test_probes_and_control_are_answered_and_nothing_else(server: Server) -> None:
    assert server.get("/readyz").status == 200
    server.begin()
    assert server.get("/readyz").status == 503
    assert not server.get("/readyz").is_refusal
    assert server.get("/livez").status == 200
    assert server.control("GET", f"{OWN}/report").status == 200
    assert server.control("GET", f"{OWN}/metrics").status == 200
    for path in ("/livez-orders", "/readyz/", "/api/api/livez", f"{OWN}/reports"):
        assert server.get(path).is_refusal


def test_websockets_are_counted_and_refused(server: Server) -> None:
    with server.websocket("/echo") as websocket:
        nonce = server.begin()
        assert server.status(nonce)["inFlight"]["websocket"] == 1
        websocket.send("hello")
        assert websocket.recv() == "hello"
    assert server.outcome(nonce)["status"] == "drained"
