"""WebSockets in a drain: each is closed at its place, with a word on why."""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import InvalidHandshake, InvalidStatus

from tests.servers.listeners import (
    Ending,
    Listener,
    Mute,
    Seen,
    drained,
    listen,
    listen_many,
    try_to_listen,
)
from tests.servers.long_lived import (
    CLEANS,
    DECIDES,
    GRACE,
    LONG_GRACE,
    PIECES,
    RETURNS,
)
from tests.servers.matrix import SERVERS, Kind
from tests.servers.server import (
    CLOSE_TIMEOUT,
    CLOSE_WINDOW,
    IDLE,
    Server,
    running,
)

IDLE_SOCKETS = 100
OTHERS = 11
NOTICE = 0.25  # seconds: the default
SLACK = 0.3  # seconds that a busy machine may add
TIMEOUT = 10.0  # seconds, of a drain that has more than enough
TURN = 0.8  # seconds that an answer takes which may be finished
TOO_LONG = 2.5  # seconds that one takes which may not


@dataclass(slots=True)
class Story:
    """One drain with WebSockets of every sort."""

    seen: Seen
    idle: list[Ending]
    endings: dict[str, Ending]
    """Of the others, by path."""
    late: Ending | InvalidHandshake
    """One that the app accepts after the begin."""
    refused: Ending | InvalidHandshake
    """One that the app refuses after the begin."""
    written: str
    """What the server wrote meanwhile."""
    counters: dict[str, int]
    """How the side effects have grown."""

    def after(self, ending: Ending) -> float:
        """Seconds from the begin to the close frame."""
        return ending.at - self.seen.began


async def _opened(server: Server) -> dict[str, Listener]:
    """One of each sort that answers a close, by path."""
    paths = ("/queue", "/cleaning", "/ticker", "/pushed", "/turn", "/long-turn")
    return {path: await listen(server, path) for path in paths}


async def _tell(server: Server) -> Story:
    before = server.counters()
    written = server.written()
    with ExitStack() as wires:
        wires.enter_context(Mute(server.port, "/flood"))
        mute = wires.enter_context(Mute(server.port, "/mute"))
        gone = wires.enter_context(Mute(server.port, "/gone"))
        unheard: Future[Ending] = server.in_background(mute.ending)
        listeners = await _opened(server)
        late = asyncio.create_task(try_to_listen(server, "/late"))
        shut = asyncio.create_task(try_to_listen(server, "/late?refuse"))
        idle = await listen_many(server, "/chat", IDLE_SOCKETS)
        number = IDLE_SOCKETS + OTHERS
        await asyncio.to_thread(
            server.until, lambda: server.in_flight()["websocket"] == number
        )
        await listeners["/turn"].say(str(TURN))
        await listeners["/long-turn"].say(str(TOO_LONG))
        seen = await asyncio.to_thread(drained, server, TIMEOUT, gone.vanish)
        endings = {path: await found.ending() for path, found in listeners.items()}
        endings["/mute"] = await asyncio.wrap_future(unheard)
        after = server.counters()
        return Story(
            seen,
            [await listener.ending() for listener in idle],
            endings,
            await late,
            await shut,
            server.written().removeprefix(written),
            {name: after[name] - before.get(name, 0) for name in after},
        )


@pytest.fixture(scope="module")
def story(fresh_server: Server) -> Story:
    """One drain for all that is told of it here."""
    fresh_server.be_as_new()
    return asyncio.run(_tell(fresh_server))


def test_each_idle_one_gets_a_close_frame_within_the_window(
    fresh_server: Server, story: Story
) -> None:
    assert {ending.code for ending in story.idle} == {fresh_server.kind.close_code}
    moments = sorted(story.after(ending) for ending in story.idle)
    assert NOTICE < moments[0]
    assert moments[-1] < NOTICE + CLOSE_WINDOW + SLACK
    assert moments[-1] - moments[0] > CLOSE_WINDOW * 0.8


def test_the_reason_says_when_to_come_back(fresh_server: Server, story: Story) -> None:
    endings = [*story.idle, *story.endings.values()]
    reasons = [ending.reason for ending in endings]
    if not fresh_server.kind.says_why:
        assert set(reasons) == {""}
        return
    assert max(len(reason.encode()) for reason in reasons) <= 123
    hints = [json.loads(reason)["retry_ms"] for reason in reasons]
    assert {type(hint) for hint in hints} == {int}
    assert 1000 <= min(hints) < max(hints) <= 2000


def test_one_in_the_middle_of_an_answer_finishes_it_first(
    fresh_server: Server, story: Story
) -> None:
    ending = story.endings["/turn"]
    assert ending.texts == [*map(str, range(PIECES)), "done"]
    assert ending.code == fresh_server.kind.close_code
    assert TURN * 0.9 < story.after(ending) < NOTICE + CLOSE_WINDOW + SLACK
    assert story.after(ending) < LONG_GRACE / 2


def test_one_whose_answer_takes_too_long_is_closed_at_its_grace(
    fresh_server: Server, story: Story
) -> None:
    ending = story.endings["/long-turn"]
    assert "done" not in ending.texts
    assert ending.code == fresh_server.kind.close_code
    assert GRACE < story.after(ending) < GRACE + CLOSE_WINDOW + SLACK


def test_one_that_goes_on_sending_ends_in_one_os_error(
    fresh_server: Server, story: Story
) -> None:
    ending = story.endings["/ticker"]
    assert ending.code == fresh_server.kind.close_code
    assert set(ending.texts) == {"tick"}
    assert GRACE < story.after(ending) < GRACE + CLOSE_WINDOW + SLACK
    ends = {name: n for name, n in story.counters.items() if "ended by" in name}
    assert ends == {"ticker ended by OSError": 1}


def test_one_that_sends_and_receives_in_two_tasks_is_closed(
    fresh_server: Server, story: Story
) -> None:
    ending = story.endings["/pushed"]
    assert ending.code == fresh_server.kind.close_code
    assert set(ending.texts) == {"tick"}
    # It never stops sending, and so is busy all the while.
    assert GRACE < story.after(ending) < GRACE + CLOSE_WINDOW + SLACK


def test_one_that_never_receives_is_closed_counted_and_named_until_it_returns(
    fresh_server: Server, story: Story
) -> None:
    ending = story.endings["/queue"]
    assert ending.code == fresh_server.kind.close_code
    assert GRACE < story.after(ending) < GRACE + CLOSE_WINDOW + SLACK
    assert max(story.seen.counted("websocket", "/queue")) > RETURNS - 0.2


def test_the_clean_up_after_the_close_is_counted(story: Story) -> None:
    closed = story.after(story.endings["/cleaning"])
    counted = max(story.seen.counted("websocket", "/cleaning"))
    assert CLEANS - 0.2 < counted - closed < CLEANS + SLACK
    assert story.counters["cleaned"] == 1


def test_a_client_that_does_not_read_or_answer_or_stay_holds_the_drain_only_so_long(
    fresh_server: Server, story: Story
) -> None:
    assert story.endings["/mute"].code == fresh_server.kind.close_code
    flooded = 0 if fresh_server.kind.waits_for_readers else 1
    assert story.counters["flooded"] == flooded
    last = GRACE + CLOSE_WINDOW + CLOSE_TIMEOUT + SLACK
    assert max(story.seen.counted("websocket", "/mute")) < last
    assert max(story.seen.counted("websocket", "/flood")) < last
    assert max(story.seen.counted("websocket", "/gone"), default=0.0) < last


def test_one_not_yet_accepted_is_counted_then_accepted_and_closed(
    fresh_server: Server, story: Story
) -> None:
    counted = story.seen.counted("websocket", "/late")
    assert min(counted) < DECIDES * 0.8
    assert isinstance(story.late, Ending)
    assert story.late.code == fresh_server.kind.close_code
    assert DECIDES < story.after(story.late) < NOTICE + CLOSE_WINDOW + SLACK


def test_one_that_the_app_refuses_after_the_begin_is_refused(story: Story) -> None:
    assert isinstance(story.refused, InvalidStatus)
    assert story.refused.response.status_code == 403


def test_all_of_it_is_drained_well_before_the_deadline(story: Story) -> None:
    assert story.seen.outcome["status"] == "drained"
    assert story.seen.outcome["inFlight"] == IDLE
    assert RETURNS < story.seen.took < RETURNS + 1.5


def test_nothing_of_it_is_an_error_in_the_log(story: Story) -> None:
    for sign in ("Traceback", "ERROR", "xception", "never"):
        assert sign not in story.written
    given_up = set(re.findall(r"given up path=(\S+)", story.written))
    assert given_up <= {"/flood", "/mute"}


# Many at once

CROWD = 300
LONG_WINDOW = 3.0  # seconds
INTERVAL = 0.1  # seconds
SPREADING = tuple(
    kind for kind in SERVERS if kind.name in ("uvicorn-h11-websockets", "granian")
)


@pytest.mark.parametrize("kind", SPREADING, ids=lambda kind: kind.name)
def test_in_no_100_ms_do_more_than_three_times_the_mean_close(
    kind: Kind, tmp_path: Path
) -> None:
    for module in kind.needs:
        pytest.importorskip(module)
    # A place in each of as many slices as there are connections: two more than
    # the mean can fall into an interval, and what is left is for the machine.
    with running(kind, tmp_path, DRAINMW_CLOSE_WINDOW=str(LONG_WINDOW)) as server:
        endings = asyncio.run(_closed(server, CROWD))
    assert {ending.code for ending in endings} == {kind.close_code}
    moments = sorted(ending.at for ending in endings)
    most = max(
        bisect_left(moments, moment + INTERVAL) - number
        for number, moment in enumerate(moments)
    )
    assert most <= 3 * CROWD * INTERVAL / LONG_WINDOW
    assert abs(moments[-1] - moments[0] - LONG_WINDOW) < SLACK


async def _closed(server: Server, number: int) -> list[Ending]:
    listeners = await listen_many(server, "/chat", number)
    await asyncio.to_thread(drained, server, TIMEOUT)
    return [await listener.ending() for listener in listeners]
