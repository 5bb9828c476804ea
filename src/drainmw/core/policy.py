"""How a long-lived connection ends in a drain, and which one a route has.

`finish` waits for it. `close` closes a WebSocket, `end` completes a streaming
response; both say "do not wait", and each is understood for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drainmw.text import printable


class Action(StrEnum):
    """What happens to a connection once a drain has begun."""

    FINISH = "finish"
    CLOSE = "close"
    END = "end"


@dataclass(frozen=True, slots=True)
class Policy:
    """What happens to a connection, and how long it may first go on.

    Raises:
        ValueError: No such action, or a grace that is no number of seconds.
    """

    action: Action | str
    grace: float | None = None
    """Seconds in which a stream may go on, or a WebSocket whose app is busy; `None` is
    the grace of its kind in the settings."""
    notice: float | None = None
    """Seconds before a WebSocket is closed whose app waits for its client; `None` is
    the notice in the settings."""

    def __post_init__(self) -> None:
        if self.action not in tuple(Action):
            known = "it is finish, close or end"
            raise ValueError(f"there is no policy {shown(self.action)}; {known}")
        object.__setattr__(self, "action", Action(self.action))
        for name, value in (("grace", self.grace), ("notice", self.notice)):
            if value is not None and not _is_seconds(value):
                right = "a number of seconds from 0 to 600"
                raise ValueError(f"a {name} is {right}, not {shown(value)}")

    @property
    def waits(self) -> bool:
        """The drain waits for the connection to end by itself."""
        return self.action == Action.FINISH


GRACE_MAXIMUM = 600.0
SHOWN_MAXIMUM = 60  # characters

Routes = tuple[tuple[str, Policy], ...]
Chooser = Callable[[dict[str, Any]], Policy | str | None]


def parse(text: str) -> Policy:
    """A policy as it stands in a variable: `close`, or with a grace `close 5`, and
    with a notice `close 5 1`.

    Raises:
        ValueError: It is not that.
    """
    action, *seconds = text.split() or [""]
    if len(seconds) > 2:
        raise ValueError(f"{shown(text)} has more than a grace and a notice")
    return Policy(action, *map(_seconds, seconds))


def normal(given: Policy | str) -> Policy:
    """A policy, whichever way it was written.

    Raises:
        ValueError, TypeError: It is none.
    """
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        return parse(given)
    raise TypeError(f"a policy is a Policy or its name, not {type(given).__name__}")


def parse_routes(text: str) -> list[tuple[str, str]]:
    """Lines, or parts between semicolons, of `PATH POLICY [GRACE [NOTICE]]`.

    Raises:
        ValueError: A part has no policy.
    """
    parts = [part.strip() for part in text.replace(";", "\n").split("\n")]
    pairs = [tuple(part.split(None, 1)) for part in parts if part]
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"{shown(pair[0])} has no policy")
    return [(path, policy) for path, policy in pairs]


def of_route(routes: Iterable[tuple[str, Policy]], path: str) -> Policy | None:
    """The policy of the first route that names the path, or its beginning: `/x/*`."""
    for route, policy in routes:
        if route == path or (route.endswith("*") and path.startswith(route[:-1])):
            return policy
    return None


def shown(value: object) -> str:
    """Something wrong, as it may stand in a message."""
    return printable(repr(value))[:SHOWN_MAXIMUM]


def _seconds(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text  # and told as what it is


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= GRACE_MAXIMUM
