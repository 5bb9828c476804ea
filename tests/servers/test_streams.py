"""Streams of events in a drain: told, ended complete, or waited for."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from tests.servers.listeners import Seen, Stream, Streamed, drained
from tests.servers.long_lived import GOES_ON, GRACE
from tests.servers.matrix import SERVERS
from tests.servers.server import CLOSE_TIMEOUT, IDLE, Server, running
from tests.servers.wire import PATIENCE, Answer, Connection

TIMEOUT = 5.0  # seconds, of a drain that has more than enough
WHERE = ("handler", "task", "state")
STREAM_GRACE = 0.5  # seconds: the default
EVENT_SOURCE = "text/event-stream"  # what a browser's EventSource accepts


@dataclass(slots=True)
class Story:
    """One drain with streams in flight, and browsers that come back in it."""

    seen: Seen
    streams: dict[str, Streamed]
    """By path."""
    raw: bytes
    """What came of `/ticks` on a socket, up to the end of it."""
    returns: dict[str, Answer]
    """What a GET reads during the drain, by its `Accept`."""
    refused: int
    called: int
    """How often those GETs have reached the app."""
    written: str
    """What the server wrote meanwhile."""


@dataclass(slots=True)
class _Returning:
    """Browsers that come back to the release once it drains."""

    server: Server
    returns: dict[str, Answer] = field(default_factory=dict)

    def __call__(self) -> None:
        for accept in (EVENT_SOURCE, f"application/json, {EVENT_SOURCE}"):
            self.returns[accept] = self.server.get("/ticks", accept=accept)


def _read_chunked(connection: Connection) -> bytes:
    """A whole response, as it is on the wire, or what there is of it by then."""
    found, patience = b"", time.monotonic() + PATIENCE
    while not found.endswith(b"\r\n0\r\n\r\n") and time.monotonic() < patience:
        data = connection.read()
        if not data:
            break
        found += data
    return found


async def _tell(server: Server) -> Story:
    paths = ["/ticks", "/hushed", "/patient", *(f"/told/{where}" for where in WHERE)]
    written = server.written()
    called = server.counters()["streams"]
    refused = server.report()["refusedTotal"]
    streams = {path: Stream(server, path) for path in paths}
    for stream in streams.values():
        await stream.first_event()
    with server.connect() as connection, server.connect() as unread:
        unread.send_head("GET", "/gush", accept=EVENT_SOURCE)
        connection.send_head("GET", "/ticks", accept=EVENT_SOURCE)
        late = Stream(server, "/ticks?seconds=0.5")
        await asyncio.to_thread(
            server.until, lambda: server.in_flight()["http"] == len(paths) + 3
        )
        raw: Future[bytes] = server.in_background(_read_chunked, connection)
        returning = _Returning(server)
        seen = await asyncio.to_thread(drained, server, TIMEOUT, returning)
        streams["/late"] = late
        return Story(
            seen,
            {path: await stream.ended() for path, stream in streams.items()},
            await asyncio.wrap_future(raw),
            returning.returns,
            server.report()["refusedTotal"] - refused,
            server.counters()["streams"] - called - 3,  # `/ticks`, raw and late
            server.written().removeprefix(written),
        )


@pytest.fixture(scope="module")
def story(fresh_server: Server) -> Story:
    """One drain for all that is told of it here."""
    fresh_server.be_as_new()
    if fresh_server.kind.name == "daphne":
        time.sleep(1.2)  # it looks every second for apps that have failed before
    return asyncio.run(_tell(fresh_server))


@pytest.mark.parametrize("where", WHERE)
def test_the_app_learns_of_the_drain_wherever_it_awaits(
    fresh_server: Server, story: Story, where: str
) -> None:
    waiting, learned = story.streams[f"/told/{where}"].events
    assert waiting == "waiting"
    if where == "state" and not fresh_server.kind.lifespan:
        assert learned == "None"  # the state comes with the lifespan
    else:
        assert 0 < float(learned) - story.seen.began < 0.2


@pytest.mark.parametrize("path", ["/ticks", "/hushed", "/told/task"])
def test_a_stream_is_ended_complete_after_its_grace(story: Story, path: str) -> None:
    ended = story.streams[path]
    assert ended.error is None
    assert set(ended.events[:1]) <= {"tick", "hush", "waiting"}
    grace = STREAM_GRACE if path == "/ticks" else GRACE
    assert grace < ended.at - story.seen.began < 1


def test_the_last_bytes_of_one_that_is_ended_are_the_last_chunk(story: Story) -> None:
    head, _, body = story.raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body.endswith(b"\r\n0\r\n\r\n")
    assert body.count(b"data: tick\n\n") > 3


def test_a_stream_that_is_to_finish_ends_by_itself_and_is_waited_for(
    story: Story,
) -> None:
    ended = story.streams["/patient"]
    assert (ended.error, ended.events[-1]) == (None, "bye")
    assert ended.at - story.seen.began > GOES_ON
    assert max(story.seen.counted("http", "/patient")) > GOES_ON * 0.9
    assert story.seen.outcome["status"] == "drained"
    assert story.seen.outcome["inFlight"] == IDLE
    assert GOES_ON < story.seen.took < GOES_ON + 1


def test_a_stream_that_starts_in_the_drain_is_ended_too(story: Story) -> None:
    ended = story.streams["/late"]
    assert ended.error is None
    assert set(ended.events) == {"tick"}
    assert ended.at - story.seen.began > 0.5 + STREAM_GRACE * 0.9


def test_a_client_that_does_not_read_holds_the_drain_only_so_long(
    story: Story,
) -> None:
    last = max(story.seen.counted("http", "/gush"))
    assert GRACE - 0.05 < last < GRACE + CLOSE_TIMEOUT + 0.5


def test_a_browser_that_comes_back_is_told_when_to_come_again(story: Story) -> None:
    answer = story.returns[EVENT_SOURCE]
    assert answer.status == 200
    assert answer.headers["content-type"] == EVENT_SOURCE
    assert answer.headers["drainmw-refused"] == "draining"
    hint = re.fullmatch(rb"retry: (\d+)\n\n", answer.body)
    assert hint is not None
    assert 1000 <= int(hint[1]) <= 2000
    assert answer.closes
    assert answer.at - story.seen.began < 0.3


def test_who_would_rather_have_something_else_reads_the_refusal(story: Story) -> None:
    answer = story.returns[f"application/json, {EVENT_SOURCE}"]
    assert answer.is_refusal


def test_neither_reaches_the_app_and_both_are_counted_as_refused(
    story: Story,
) -> None:
    assert (story.refused, story.called) == (2, 0)


def test_only_the_stream_that_nobody_reads_may_be_an_error_in_the_log(
    story: Story,
) -> None:
    assert "Traceback" not in story.written
    errors = [line for line in story.written.splitlines() if "ERROR" in line]
    assert all("without completing response" in line for line in errors[:1])
    assert not errors[1:]


async def _stay(server: Server) -> tuple[Seen, Streamed]:
    stream = Stream(server, "/stubborn")
    await stream.first_event()
    seen = await asyncio.to_thread(drained, server, 1.0)
    return seen, await stream.ended()


def test_a_stream_that_will_not_end_is_named_and_fails_the_drain_on_time(
    server: Server,
) -> None:
    before = server.counters()["ignored"]
    seen, stream = asyncio.run(_stay(server))
    assert seen.outcome["status"] == "failed"
    assert seen.outcome["failure"] == "RUNTIME_DRAIN_TIMEOUT"
    assert seen.outcome["inFlight"] == {**IDLE, "http": 1}
    assert 0.9 < seen.took < 1.3
    assert max(seen.counted("http", "/stubborn")) > 0.8
    assert server.counters()["ignored"] == before + 1
    assert stream.error is None
    assert stream.at > seen.ended  # not cut, but let go by the resume


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A release that refuses a browser's EventSource like anybody."""
    folder = tmp_path_factory.mktemp("strict")
    with running(SERVERS[0], folder, DRAINMW_EVENT_STREAM_REFUSAL="503") as server:
        yield server


def test_a_browser_can_be_refused_like_anybody(strict: Server) -> None:
    strict.begin()
    began = time.monotonic()
    answer = strict.get("/ticks", accept=EVENT_SOURCE)
    assert answer.is_refusal
    assert answer.at - began < 0.3
