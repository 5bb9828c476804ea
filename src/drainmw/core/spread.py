"""When each connection is closed, and when its client is asked to come back.

Many connections that are closed at once come back at once. So each has a place
of its own in a window: the window is cut into as many slices as there are
connections, and each is placed at random within its slice. In no interval do
more close than two above its share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

SPACING = 0.05  # seconds a connection: few need no long window
MARGIN = 0.5  # seconds between the last close and the deadline
MARGIN_SHARE = 0.1  # of the timeout, where that is less


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the begin of a drain."""

    notice: float
    """Until an idle connection may be closed: the app is told first."""
    grace: float
    """Until a busy one may: it finishes what it is doing."""
    window: float
    """Over which the closes are spread, each by its place in it."""

    def cut(self, timeout: float) -> Timing:
        """The same, where it ends before the deadline; else what fits of it.

        A grace that is too long takes no more than half of the time: the window
        is what keeps the clients from coming back all at once.
        """
        left = timeout - margin(timeout)
        longest = max(self.notice, self.grace)
        if longest + self.window <= left:
            return self
        longest = min(longest, max(left - self.window, left / 2))
        return Timing(
            notice=min(self.notice, longest),
            grace=min(self.grace, longest),
            window=min(self.window, left - longest),
        )


def margin(timeout: float) -> float:
    """Seconds before the deadline at which the last connection is closed."""
    return min(MARGIN, timeout * MARGIN_SHARE)


def window_for(connections: int, longest: float) -> float:
    """A window in which so many come back at no more than twenty a second, or
    the longest one allowed."""
    return min(longest, connections * SPACING)


def places(connections: int, chance: Random) -> Iterator[float]:
    """For each connection its place in a window of length 1, in order."""
    for number in range(connections):
        yield (number + chance.random()) / connections


def seconds_to_retry(least: int, chance: Random) -> int:
    """A `Retry-After` between that many whole seconds and twice as many."""
    return chance.randint(least, 2 * least)


def milliseconds_to_retry(least: int, chance: Random) -> int:
    """The same hint as finely as a close reason or an event stream can give it."""
    return chance.randint(1000 * least, 2000 * least)


def close_reason(retry_ms: int) -> str:
    """The reason of a close frame; RFC 6455, section 5.5: at most 123 bytes."""
    return json.dumps({"retry_ms": retry_ms})
