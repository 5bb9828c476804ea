"""Processes of RQ that belong to one release, and are reached by keys in its Redis.

Each member tells its state in a hash, and each change of it that starts something
is one script in Redis that looks whether the release is held. So from the moment
in which a hold is written, nothing starts. A member listens to a channel of its own
for as long as it lives. One that does not, and had started something, may have
died; what it had is unknown, which is never zero, until RQ itself has forgotten it.
Who listens and has no state works on a Redis that has lost its data; it is unknown
until it says what it does.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from drainmw.errors import Misuse, SourceUnavailable
from drainmw.sources.base import Counts, Running, check_expected
from drainmw.sources.extras import extra
from drainmw.text import failure_text, kind_of

with extra("rq"):
    from redis import Redis
    from redis.exceptions import RedisError

VARIABLE = "RQ_RELEASE"
"""Tells a process of RQ of which release it is."""

PAUSE = 0.05  # seconds between two looks of a member that is held, or of a drain
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

OUT, BUSY, LEFT = "out", "busy", "left"
"""States: it has started nothing; it has, with the time and what; it has ended."""

ASK = """
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
    return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""
"""Whether it is not held, and then the member has the former of two states."""


class Keys:
    """The keys of one release for one kind of members."""

    def __init__(self, release: str, holds: str, members: str) -> None:
        given: object = release
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise Misuse(
                f"a release of RQ is up to 64 letters, digits and _.-, "
                f"not {release!r}; its processes are told by {VARIABLE}"
            )
        self.release = release
        self.holds = f"drainmw:rq:{release}:{holds}"
        """A field for each process that wants a hold."""
        self.members = f"drainmw:rq:{release}:{members}"
        """A field for each member, with its state."""

    def channel(self, redis: Redis, name: str) -> str:
        """To which that member listens while it lives."""
        return f"{self._channels(redis)}{name}"

    def living(self, redis: Redis) -> set[str]:
        """Who listens to its channel: the kernel tells Redis of a death."""
        begin = self._channels(redis)
        heard = redis.pubsub_channels(f"{begin}*")
        return {text(channel).removeprefix(begin) for channel in heard}

    def _channels(self, redis: Redis) -> str:
        """What channels begin with. A server has them in common for its databases."""
        database = redis.get_connection_kwargs().get("db") or 0
        return f"{self.members}:{database}:living:"

    def may_start(self, redis: Redis, name: str, started: str, out: str = OUT) -> bool:
        """Whether it is not held; then that member has `started`, else it is `out`."""
        asked = (name, started, out)
        return bool(redis.eval(ASK, 2, self.holds, self.members, *asked))

    def tell(self, redis: Redis, name: str, state: str) -> None:
        """Have that state without a question."""
        redis.hset(self.members, name, state)


class Members:
    """The blocking side of a source: what is asked of Redis."""

    what: ClassVar[str]
    """One of them, in errors."""
    runs_as: ClassVar[str]
    """The class that makes a process of RQ one."""

    def __init__(self, connection: Redis, keys: Keys, expected: int) -> None:
        check_expected(expected)
        self._redis = connection
        self._keys = keys
        self._release = keys.release
        self._expected = expected
        self._token = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._is_held = False
        self._released = threading.Event()
        self._known: set[str] = set()  # who was there since the hold
        self._lost: set[str] = set()  # of whom Redis has lost what they did
        self._running: list[Running] = []

    def hold(self) -> None:
        """Write it. From then on nothing starts."""
        with unavailable():
            if not self._is_held:
                self._known.clear()
                self._lost.clear()
                self._released.clear()
                self._begin()
            self._is_held = True
            self._write_hold()
            self.states()

    def count(self) -> Counts:
        """What they have started, and what may still start."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until there is none of it."""
        while not self._released.is_set() and any(self.count()):
            self._released.wait(PAUSE)

    def release(self) -> None:
        """Take our part of the hold away, and forget who has left meanwhile."""
        with unavailable():
            self._redis.hdel(self._keys.holds, self._token)
            self._is_held = False
            self._released.set()

    def running(self) -> list[Running]:
        """What they ran when they were last counted, oldest first."""
        return sorted(self._running, key=lambda piece: piece.started)

    def states(self) -> list[list[str]]:
        """What each member that lives is doing, in up to three words."""
        with self._redis.pipeline() as ask:
            ask.hgetall(self._keys.members)
            ask.hexists(self._keys.holds, self._token)
            told, stands = ask.execute()
        if self._is_held and not stands:
            self._lost |= self._known
            self._write_hold()
            raise SourceUnavailable("Redis had lost the hold, and may have let jobs in")
        there = self._present({text(n): text(state) for n, state in told.items()})
        if len(there) < self._expected:
            where = self._keys.members
            raise SourceUnavailable(
                f"{len(there)} of {self._expected} {self.what}s answer at {where}; "
                f"do they run as {self.runs_as}, with {VARIABLE}={self._release}?"
            )
        return there

    def _write_hold(self) -> None:
        self._redis.hset(self._keys.holds, self._token, f"{time.time():.0f}")

    # What a kind of members says of itself

    def _begin(self) -> None:
        """A hold begins."""

    def _kept(self, name: str) -> Iterable[str]:
        """Keys of RQ; while there is one, it takes that member for one that works."""
        raise NotImplementedError

    # Who is there

    def _present(self, states: dict[str, str]) -> list[list[str]]:
        """Who lives, or has left in order since the hold."""
        living = self._keys.living(self._redis)
        if self._is_held:
            self._known |= living
        states = states | self._told_by_now(living - states.keys())
        self._lost -= states.keys()
        for name in sorted((living | self._lost) - states.keys()):
            raise SourceUnavailable(f"Redis has lost what {self.what} {name} does")
        there = []
        for name, state in states.items():
            words = state.split(" ", 2)
            is_out = words[0] in (OUT, LEFT)
            if name in living or (is_out and name in self._known):
                there.append(words)
            elif not is_out and (name in self._known or self._is_kept(name)):
                raise SourceUnavailable(f"{self.what} {name} has died, and had a job")
            else:
                self._redis.hdel(self._keys.members, name)
        return there

    def _told_by_now(self, names: set[str]) -> dict[str, str]:
        """The states of those that may have been born since we asked."""
        if not names:
            return {}
        time.sleep(PAUSE)
        found = sorted(names)
        told = self._redis.hmget(self._keys.members, found)
        return {n: text(state) for n, state in zip(found, told, strict=True) if state}

    def _is_kept(self, name: str) -> bool:
        return bool(self._redis.exists(*self._kept(name)))


def check_redis(connection: object, who: str) -> None:
    """What keys are to be kept in.

    Raises:
        Misuse: It is something else.
    """
    if not isinstance(connection, Redis):
        given = kind_of(connection)
        if given == Redis.__name__:  # the one for event loops
            given = f"that of {type(connection).__module__}"
        raise Misuse(
            f"{who} takes a Redis, such as redis.Redis.from_url(url), not {given}"
        )


@contextmanager
def unavailable() -> Iterator[None]:
    """What Redis raises, as an answer that is unknown."""
    try:
        yield
    except RedisError as exc:
        raise SourceUnavailable(failure_text(exc)) from None


def busy(what: str) -> str:
    """The state of a member that has started that."""
    return f"{BUSY} {time.time():.3f} {what}"


def told(state: list[str], **kind: Any) -> Running:
    """What it is busy with, and since when by the clock of this process."""
    ago = max(0.0, time.time() - float(state[1]))
    return Running(state[2], time.monotonic() - ago, **kind)


def text(value: bytes | str) -> str:
    """What Redis answers, which may be decoded already."""
    return value.decode() if isinstance(value, bytes) else value
