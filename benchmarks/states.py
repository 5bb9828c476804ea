"""State of almost the most bytes that may go over: a model, texts and numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from drainmw import ModelState
from drainmw.contract import STATE_BYTES_MAXIMUM
from drainmw.core.canonical import canonical, loads
from drainmw.state import ImportContext, StateAdapter

ROOM = 1024  # bytes for what an envelope has beside its value
WORDS = 'the quick brown fox 😀 jumps over\na lazy "dog", naïve café society'.split(" ")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = 365 * 24 * 3600  # seconds


# A model


class Role(StrEnum):
    """What a member may do."""

    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"


class Member(BaseModel):
    """Somebody in a room."""

    id: UUID
    name: str
    role: Role
    seen: datetime
    load: float
    unread: list[int]


class Message(BaseModel):
    """Something said there."""

    at: datetime
    author: str
    text: str
    likes: int = 0


class Room(BaseModel):
    """One of a chat."""

    name: str = Field(min_length=1, max_length=80)
    topic: str | None = None
    members: dict[str, Member]
    last: list[Message]


class Chat(BaseModel):
    """What a chat server holds in memory."""

    rooms: dict[int, Room]


def chat(rooms: int) -> Chat:
    """One of so many rooms."""
    random = Random(rooms)
    return Chat(rooms={number: _room(random) for number in range(rooms)})


def _room(random: Random) -> Room:
    return Room(
        name=_words(random, 3),
        topic=_words(random, 5),
        members={f"u{random.getrandbits(30)}": _member(random) for _ in range(10)},
        last=[_message(random) for _ in range(10)],
    )


def _member(random: Random) -> Member:
    return Member(
        id=UUID(int=random.getrandbits(128)),
        name=_words(random, 2),
        role=random.choice(list(Role)),
        seen=_moment(random),
        load=random.random(),
        unread=[random.randrange(1000) for _ in range(4)],
    )


def _message(random: Random) -> Message:
    return Message(
        at=_moment(random),
        author=_words(random, 1),
        text=_words(random, 12),
        likes=random.randrange(50),
    )


def _words(random: Random, count: int) -> str:
    return " ".join(random.choices(WORDS, k=count))


def _moment(random: Random) -> datetime:
    return NEW_YEAR + timedelta(seconds=YEAR * random.random())


# Dicts and lists


def texts(rooms: int) -> dict[str, Any]:
    """Twenty messages for each room."""
    random = Random(rooms)
    return {
        f"room-{number}": [
            {"author": _words(random, 1), "text": _words(random, 20)} for _ in range(20)
        ]
        for number in range(rooms)
    }


def numbers(series: int) -> dict[str, Any]:
    """Fifty readings for each series."""
    random = Random(series)
    return {f"series-{number}": _readings(random) for number in range(series)}


def _readings(random: Random) -> list[list[float]]:
    return [
        [random.getrandbits(30), 1000 * random.random(), random.gauss(), number]
        for number in range(50)
    ]


class Plain:
    """An adapter written by hand, for a dict of lists."""

    schema_version = 1
    maximum_bytes = STATE_BYTES_MAXIMUM

    def __init__(self, protocol: str, value: dict[str, Any]) -> None:
        self.protocol = protocol
        self.value = value

    def validate(self, value: Any) -> bool:
        """Look at each room or series."""
        return isinstance(value, dict) and all(
            isinstance(items, list) for items in value.values()
        )

    async def export_state(self) -> tuple[str, Any]:
        """All of it."""
        return "snapshot", self.value

    async def import_state(self, value: Any, context: ImportContext) -> None:
        """Keep it."""
        self.value = value


class Kept:
    """An app whose state is a model."""

    def __init__(self, model: Chat) -> None:
        self.model = model

    def adapter(self) -> ModelState[Chat]:
        """It is exported as it stands, and kept when it comes."""
        return ModelState(
            Chat,
            protocol="model",
            schema_version=1,
            export=lambda: self.model,
            load=self._load,
        )

    def _load(self, model: Chat, context: ImportContext) -> None:
        self.model = model


@dataclass(frozen=True)
class State:
    """A kind of state, made of so many parts."""

    adapter: Callable[[int], StateAdapter]
    """With all of it; of no parts it is empty."""
    value: Callable[[int], Any]
    """As JSON."""
    read: Callable[[bytes], object]
    """What a release keeps that was given it as JSON."""


STATES = {
    "model": State(
        adapter=lambda size: Kept(chat(size)).adapter(),
        value=lambda size: chat(size).model_dump(mode="json"),
        read=Chat.model_validate_json,
    ),
    "texts": State(lambda size: Plain("texts", texts(size)), texts, loads),
    "numbers": State(lambda size: Plain("numbers", numbers(size)), numbers, loads),
}


def fitting(state: State) -> tuple[int, int]:
    """How many parts make almost the most that may go over, and the bytes that a
    release holds that keeps them."""
    most = STATE_BYTES_MAXIMUM - ROOM
    few = 20
    size = few * most // len(canonical(state.value(few)))
    while len(text := canonical(state.value(size))) > most:
        size -= max(1, size * (len(text) - most) // len(text))
    tracemalloc.start()
    kept = state.read(text)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size, held
