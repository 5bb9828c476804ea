"""Workers ask each other; who gives no answer is named, and never taken for empty."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from drainmw.errors import GroupError, StateAdapterNotFound
from drainmw.record import LocalRecord
from drainmw.siblings import SiblingFailed, Siblings
from drainmw.sources.holds import together
from tests.rig import calm

pytestmark = pytest.mark.anyio

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Crowd(LocalRecord):
    """Workers that the test lets answer, each as it says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(None, [0])
        self.asked: list[str] = []
        self.siblings = Siblings(lambda: self)
        self.living: list[int] = []
        self._directory = directory
        self._open = AsyncExitStack()

    def members(self) -> list[int]:
        return [1, *self.living]

    def addresses(self) -> dict[int, Path]:
        return {pid: self._directory / str(pid) for pid in self.living}

    async def add(self, pid: int, answer: Answer | None = None) -> None:
        """A worker of that id, which listens if it has an answer."""
        if pid not in self.living:
            self.living.append(pid)
        if answer is None:
            return

        async def handle(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            try:
                await answer(reader, writer)
            finally:
                writer.close()

        path = self.addresses()[pid]
        server = await asyncio.start_unix_server(handle, path)
        self._open.callback(server.close)

    def says(self, status: int, body: bytes = b"") -> Answer:
        async def answer(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.decode())
            lines = f"HTTP/1.1 {status} Whatever\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(lines.encode() + body)
            await writer.drain()

        return answer

    async def close(self) -> None:
        await self._open.aclose()


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    directory = Path(tempfile.mkdtemp(prefix="dr"))
    found = Crowd(directory)
    yield found
    await found.close()
    shutil.rmtree(directory)


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until who asks has gone."""
    await reader.read()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


# One of them


async def test_an_answer_is_what_the_worker_has_said(crowd: Crowd) -> None:
    await crowd.add(2, crowd.says(200, b"\x00part"))
    params = {"protocol": "a/b c", "epoch": 3}
    answer = await crowd.siblings.ask(2, "/sibling/part", within=5, params=params)
    assert answer == b"\x00part"
    [head] = crowd.asked
    assert head.startswith("POST /sibling/part?protocol=a%2Fb+c&epoch=3 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"detail": "rooms/v1: no room", "code": "X"}', "rooms/v1: no room"),
        (b'{"code": "RUNTIME_STATE_TIMEOUT"}', "RUNTIME_STATE_TIMEOUT"),
        (b"Internal Server Error", "it answered with status 500"),
        (b'["no object"]', "it answered with status 500"),
    ],
)
async def test_a_worker_that_could_not_do_it_is_quoted(
    crowd: Crowd, body: bytes, said: str
) -> None:
    await crowd.add(2, crowd.says(500, body))
    with pytest.raises(SiblingFailed) as failed:
        await crowd.siblings.ask(2, "/sibling/seal", within=5)
    assert str(failed.value) == said


async def test_a_worker_that_says_nothing_is_named_in_time(crowd: Crowd) -> None:
    await crowd.add(2, hangs)
    with pytest.raises(GroupError, match=r"worker 2 gave no answer in 0\.05 s"):
        await crowd.siblings.ask(2, "/sibling/part", within=0.05)


async def test_a_worker_that_hangs_up_is_named_and_not_asked_again(
    crowd: Crowd,
) -> None:
    """It may have done what it was asked."""
    asked: list[None] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(None)
        await hangs_up(reader, writer)

    await crowd.add(2, once)
    with pytest.raises(GroupError, match="worker 2: "):
        await crowd.siblings.ask(2, "/sibling/import", within=5)
    assert len(asked) == 1


async def test_a_worker_that_has_ended_is_not_waited_for(crowd: Crowd) -> None:
    with pytest.raises(GroupError, match="worker 2 has ended"):
        await crowd.siblings.ask(2, "/sibling/part", within=5)


async def test_a_worker_that_ends_meanwhile_is_not_waited_for(crowd: Crowd) -> None:
    await crowd.add(2)
    asked = asyncio.ensure_future(crowd.siblings.ask(2, "/sibling/part", within=5))
    await asyncio.sleep(0)
    crowd.living.clear()
    with pytest.raises(GroupError, match="worker 2 has ended"):
        await asked


async def test_a_worker_that_has_joined_is_waited_for_until_it_listens(
    crowd: Crowd,
) -> None:
    await crowd.add(2)
    asked = asyncio.ensure_future(crowd.siblings.ask(2, "/sibling/part", within=5))
    await asyncio.sleep(0)
    await crowd.add(2, crowd.says(200, b"here"))
    assert await asked == b"here"


async def test_a_worker_that_never_listens_is_named(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.01)
    await crowd.add(2)
    with pytest.raises(GroupError, match="worker 2 is not reached"):
        await crowd.siblings.ask(2, "/sibling/part", within=5)


# All of them


async def test_all_others_are_asked_and_none_that_is_not_there(crowd: Crowd) -> None:
    assert await crowd.siblings.ask_all("/sibling/part", within=5) == {}
    assert crowd.siblings.count == 1
    await crowd.add(2, crowd.says(200, b"two"))
    await crowd.add(3, crowd.says(200))
    answers = await crowd.siblings.ask_all("/sibling/part", within=5)
    assert answers == {2: b"two", 3: b""}
    assert crowd.siblings.count == 3


async def test_the_first_that_cannot_ends_the_wait_for_all(crowd: Crowd) -> None:
    await crowd.add(2, hangs)
    await crowd.add(3, crowd.says(409, b'{"detail": "not now"}'))
    async with asyncio.timeout(2):
        with pytest.raises(SiblingFailed, match="not now"):
            await crowd.siblings.ask_all("/sibling/seal", within=60)


async def test_one_that_is_silent_is_silence_of_all(crowd: Crowd) -> None:
    await crowd.add(2, crowd.says(200, b"two"))
    await crowd.add(3, hangs)
    with pytest.raises(GroupError, match="worker 3 gave no answer"):
        await crowd.siblings.ask_all("/sibling/part", within=0.05)


@pytest.mark.parametrize("end", ["it is stopped", "one fails"])
async def test_who_waits_for_all_leaves_nobody_waiting(end: str) -> None:
    stopped: list[int] = []
    go = asyncio.Event()

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(number)

    async def fails() -> None:
        await go.wait()
        raise LookupError(end)

    waiting = asyncio.ensure_future(together(waits(1), fails(), waits(2)))
    await calm()
    if end == "one fails":
        go.set()
    else:
        waiting.cancel()
    with pytest.raises((asyncio.CancelledError, LookupError)):
        await waiting
    await calm()
    assert sorted(stopped) == [1, 2]


# For an observer


async def test_the_first_that_answers_answers_for_all(crowd: Crowd) -> None:
    await crowd.add(2, hangs_up)
    await crowd.add(3, crowd.says(409, b'{"code": "NO"}'))
    await crowd.add(4, crowd.says(200))
    answer = await crowd.siblings.forward("GET", "/x?a=b", b"", 5)
    assert (answer.status_code, answer.content) == (409, b'{"code": "NO"}')
    [head] = crowd.asked
    assert head.startswith("GET /x?a=b HTTP/1.1\r\n")


async def test_what_one_has_done_by_halves_is_not_asked_of_another(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.0)
    await crowd.add(2)
    await crowd.add(3, hangs_up)
    await crowd.add(4, crowd.says(200))
    with pytest.raises(GroupError, match="worker 3: "):
        await crowd.siblings.forward("POST", "/x", b"{}", 5)
    assert crowd.asked == []


async def test_the_first_that_can_be_asked_is_told_what_was_sent(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.0)
    await crowd.add(2)
    await crowd.add(3, crowd.says(200))
    await crowd.siblings.forward("POST", "/x?a=b", b"{}", 5)
    [head] = crowd.asked
    assert head.startswith("POST /x?a=b HTTP/1.1\r\n")
    assert "content-type: application/json\r\n" in head.lower()


async def test_before_anybody_has_come_up_nobody_answers(crowd: Crowd) -> None:
    with pytest.raises(GroupError, match="no worker has come up yet"):
        await crowd.siblings.forward("GET", "/x", b"", 5)


async def test_workers_that_nobody_can_ask_have_no_state(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmw.siblings.COMES_UP", 0.0)
    await crowd.add(2)
    await crowd.add(3)
    with pytest.raises(StateAdapterNotFound):
        await crowd.siblings.forward("GET", "/x", b"", 5)


async def test_an_observer_waits_for_nobody_longer_than_it_may(crowd: Crowd) -> None:
    await crowd.add(2, hangs)
    with pytest.raises(GroupError, match=r"no worker gave an answer in 0\.05 s"):
        await crowd.siblings.forward("GET", "/x", b"", 0.05)
