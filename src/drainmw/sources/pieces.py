"""One piece of keyed work, and what of it goes over to the next release."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

from drainmw.core.canonical import canonical, loads
from drainmw.sources.feeding import Work

Lane = Literal["lifecycle", "application"]
"""Of one key, what waits in the first goes before what waits in the second."""

Place = Literal["out", "waiting", "running", "parked", "withdrawn", "provisional"]
"""`out` is before a piece is taken and after it is over. `parked` and `withdrawn`
are on their way to the next release; `provisional` has come from the last one,
which may take it back."""

COUNTED: frozenset[Place] = frozenset({"waiting", "running", "provisional"})
LEAVING: frozenset[Place] = frozenset({"parked", "withdrawn"})

SUCCESSOR = re.compile(r"~([0-9]+)\Z")
"""At the end of an id it says how often the piece has gone over in the middle."""


class Body(TypedDict):
    """A piece on its way to the next release."""

    id: str
    key: str
    lane: Lane
    handler: str
    args: list[Any]
    schedule: NotRequired[str]
    of: NotRequired[str]
    checkpoint: NotRequired[Any]
    """There with `of`, of a piece that has been parked."""


@dataclass(frozen=True, slots=True)
class Parked:
    """What a handler returns that has stopped at a checkpoint of its own."""

    checkpoint: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a piece has ended."""

    result: Any = None
    failure: BaseException | None = None
    is_cancelled: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class Piece(Work):
    """One piece of work. Its `Lines` and its queue write it."""

    id: str
    key: str
    lane: Lane
    call: Callable[..., Any]
    handler: str | None
    """The name by which the next release knows what to call, if it does."""
    args: tuple[Any, ...]
    is_named: bool = True
    """Whoever offered it chose the id, and may offer it again."""
    schedule: str | None = None
    in_flight: bool = False
    feeder: Work | None = None

    place: Place = "out"
    of: str | None = None
    """The id under which it first ran, once it has parked."""
    checkpoint: Any = None
    has_run: bool = False
    may_park: bool = True
    was_asked: bool = False

    body: Body | None = None
    """What goes over, fixed by `freeze`; `None` where it has to end here."""
    size: int = 0
    """Bytes that the body takes in an envelope, at most."""

    loop: asyncio.AbstractEventLoop
    context: contextvars.Context
    task: asyncio.Task[Any] | None = None
    started: float = 0.0
    futures: list[asyncio.Future[Any]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Its queue in its line; what has been parked goes before all else."""
        if self.of is not None:
            return 0
        return 1 if self.lane == "lifecycle" else 2

    @property
    def ids(self) -> tuple[str, ...]:
        """Its own, and the one under which it first ran."""
        return (self.id,) if self.of in (None, self.id) else (self.id, str(self.of))

    def freeze(self) -> None:
        """Fix what goes over, if it arrives as what it is here."""
        self.body, self.size = None, 0
        if self.handler is None:
            return
        members = self._members(self.handler)
        large: list[int] = []
        try:
            text = canonical(members, large=large.append)
            read = loads(text)
            arrives = not large and _is_same(members, read)
        except Exception:  # an argument may be of any class, and no drain fails of it
            return
        if arrives:
            # Its key may stand among the paused ones as well; each has a comma.
            self.body = cast(Body, read)
            self.size = len(text) + 1 + text_size(self.key)

    def _members(self, handler: str) -> Body:
        members: Body = {
            "id": self.successor() if self.has_run else self.id,
            "key": self.key,
            "lane": self.lane,
            "handler": handler,
            "args": list(self.args),
        }
        if self.schedule is not None:
            members["schedule"] = self.schedule
        if self.of is not None:
            members["of"] = self.of
            members["checkpoint"] = self.checkpoint
        return members

    def successor(self) -> str:
        """The id under which it goes on in the next release."""
        first = self.of or self.id
        found = SUCCESSOR.search(self.id.removeprefix(first))
        return f"{first}~{int(found[1]) + 1 if found else 1}"


def _is_same(sent: Any, read: Any) -> bool:
    """Whether that is what arrives, and no kin of it such as a member of an enum.

    JSON has one kind of number, and 1.0 comes as the 1 that it is equal to.
    """
    if type(sent) is list:
        return len(sent) == len(read) and all(map(_is_same, sent, read))
    if type(sent) is dict:
        return len(sent) == len(read) and all(
            type(name) is str and _is_same(value, read[name])
            for name, value in sent.items()
        )
    if type(sent) is float:
        return bool(sent == read)
    return type(sent) is type(read) and bool(sent == read)


def text_size(text: str) -> int:
    """Bytes of a text among others in canonical JSON, at most."""
    return len(json.dumps(text)) + 1
