"""The example whose messages can be replayed, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
from websockets.sync.client import connect

from examples.messages import KEPT, Messages
from tests.processes import Served, served


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It runs alone: `drainmw serve examples.feed:app`."""
    folder = tmp_path_factory.mktemp("feed")
    with served(folder, app="examples.feed:app") as process:
        yield process


def from_websocket(feed: Served, after: str, number: int) -> list[int]:
    """The first messages of a WebSocket."""
    url = f"ws://127.0.0.1:{feed.port}/feed?after={after}"
    with connect(url, proxy=None) as websocket:
        return [json.loads(websocket.recv())["id"] for _ in range(number)]


def from_stream(feed: Served, number: int, **headers: str) -> list[int]:
    """The first messages of an event stream."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with (
        httpx.Client(trust_env=False, base_url=feed.address, headers=sent) as client,
        client.stream("GET", "/events") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("id: "))
        return [int(next(lines).removeprefix("id: ")) for _ in range(number)]


def test_a_client_that_names_no_message_gets_all(feed: Served) -> None:
    assert from_websocket(feed, "0", 3) == [1, 2, 3]
    assert from_stream(feed, 3) == [1, 2, 3]


def test_a_client_that_names_its_last_message_gets_those_that_follow(
    feed: Served,
) -> None:
    assert from_websocket(feed, "2", 3) == [3, 4, 5]
    assert from_stream(feed, 3, last_event_id="2") == [3, 4, 5]


@pytest.mark.parametrize("odd", ["", "-1", "1.5", "x", "9" * 400])
def test_an_odd_name_is_the_beginning(feed: Served, odd: str) -> None:
    assert from_websocket(feed, odd, 1) == [1]
    assert from_stream(feed, 1, last_event_id=odd) == [1]


def test_what_is_published_is_a_message_like_any(feed: Served) -> None:
    with httpx.Client(trust_env=False, base_url=feed.address) as client:
        answer = client.post("/messages", content="hello")
        assert answer.status_code == 201
        number = answer.json()["id"]
        large = client.post("/messages", content=b"x" * 1001)
        assert large.status_code == 413
    assert from_websocket(feed, str(number - 1), 1) == [number]


def test_only_the_last_messages_are_kept() -> None:
    messages = Messages()
    for number in range(1, KEPT + 3):
        assert messages.append(str(number)) == number
    kept = [number for number, _ in messages.after(0)]
    messages.close()
    assert (kept[0], kept[-1], len(kept)) == (3, KEPT + 2, KEPT)
    assert all(after == before + 1 for before, after in pairwise(kept))
