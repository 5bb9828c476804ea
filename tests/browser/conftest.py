"""A browser for all tests; for each an old and a new release of one feed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples.messages import Messages
from tests.browser import chromium
from tests.browser.chromium import Chromium
from tests.browser.switch import Switch, switching
from tests.processes import ROOT, Process, running, until
from tests.servers.matrix import SERVERS, Kind
from tests.servers.reports import pytest_runtest_makereport
from tests.servers.server import Server
from tests.servers.server import running as serving

__all__ = ["pytest_runtest_makereport"]

APP = "examples.feed:app"
PRODUCER = str(ROOT / "examples" / "messages.py")
KINDS = [k for k in SERVERS if k.name in ("uvicorn-h11-websockets", "hypercorn")]


class Feed:
    """The messages of both releases, while one producer makes them."""

    def __init__(self, file: Path, messages: Messages, producer: Process) -> None:
        self.file = file
        self._messages = messages
        self._producer = producer

    def newest(self) -> int:
        """The number of the last message; 0 before the first."""
        return max((number for number, _ in self._messages.after(0)), default=0)

    def stop(self) -> int:
        """Make no more; gives the last number."""
        self._producer.signal()
        self._producer.exit_code()
        return self.newest()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    log = tmp_path_factory.mktemp("chromium") / "output.log"
    with chromium.running(log) as browser:
        yield browser


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    for module in kind.needs:
        if find_spec(module) is None:
            pytest.skip(f"{kind.name} needs {module}, which is not installed")
    return kind


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """Messages are made from now on."""
    file = tmp_path / "feed.sqlite"
    with closing(Messages(str(file))) as messages:
        with running(PRODUCER, str(file)) as producer:
            feed = Feed(file, messages, producer)
            until(feed.newest, "a message")
            yield feed


@pytest.fixture
def old(kind: Kind, feed: Feed, tmp_path: Path) -> Iterator[Server]:
    with release("old", kind, feed, tmp_path) as server:
        yield server


@pytest.fixture
def new(kind: Kind, feed: Feed, tmp_path: Path) -> Iterator[Server]:
    with release("new", kind, feed, tmp_path) as server:
        yield server


def release(
    name: str, kind: Kind, feed: Feed, tmp_path: Path
) -> AbstractContextManager[Server]:
    folder = tmp_path / name
    folder.mkdir()
    return serving(kind, folder, app=APP, FEED_FILE=str(feed.file))


@pytest.fixture
def switch(old: Server) -> Iterator[Switch]:
    """What the browser talks to; it points to the old release."""
    with switching(old.port) as switch:
        yield switch
