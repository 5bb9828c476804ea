"""Redis lists and streams of Taskiq, pulled so that a pull can be ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from drainmw.errors import Misuse
from drainmw.sources.extras import extra
from drainmw.text import kind_of

with extra("taskiq"):
    from redis.asyncio import Redis
    from redis.exceptions import RedisError
    from taskiq import InMemoryBroker
    from taskiq.abc.broker import AsyncBroker
    from taskiq.acks import AckableMessage
    from taskiq_redis import ListQueueBroker, RedisStreamBroker

POP = 0.25  # seconds until a pop from an empty list looks up
PAUSE = 0.2  # seconds before a message that could not be put back is tried again
CANCEL_AGAIN = 0.05  # seconds
REMEMBERED = 24 * 3600  # seconds in which it can be tried again
PAGE = 1000  # entries of a stream that are looked at in one go

_PUT_BACK = """
if redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[2]) then
    redis.call('RPUSH', KEYS[1], ARGV[1])
end
"""

_SEND_AGAIN = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
if pending and pending[2] ~= ARGV[2] or entry and not pending then
    return 0 -- another consumer has claimed it, or has had it
end
local number = 0
if entry then
    redis.call('XADD', KEYS[1], '*', unpack(entry[2]))
    number = 1
elseif ARGV[4] ~= '' and redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[5]) then
    -- a stream with a greatest length has dropped it
    redis.call('XADD', KEYS[1], '*', 'data', ARGV[4])
    number = 1
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return number
"""
"""Sends a copy of an entry of a consumer, and acknowledges it; how many there are."""

Message = bytes | AckableMessage
Step = asyncio.Task[Message]


class Pull(Protocol):
    """One who pulls. Its steps are taken one after another."""

    async def step(self) -> Message:
        """The next message."""
        ...

    async def close(self, step: Step) -> Message | None:
        """End that step, and all; what it has brought nevertheless."""
        ...


class Queue(Protocol):
    """What all receivers of a broker pull from."""

    @property
    def lease(self) -> float | None:
        """Seconds after which what is here is another's, if it is not renewed."""
        ...

    def pull(self) -> contextlib.AbstractAsyncContextManager[Pull]:
        """Pull, until the context is left: then nothing comes any more."""
        ...

    async def give_back(self, message: Message) -> int:
        """A message that has not started; how many are in the queue again."""
        ...

    async def give_back_unread(self) -> int:
        """What was delivered and not pulled, if nobody pulls; how many it was."""
        ...

    def ended(self, message: Message) -> None:
        """It does not run here any more."""
        ...

    async def renew(self) -> None:
        """All that is here, and has not ended."""
        ...

    def forget(self) -> None:
        """Nobody pulls, and nothing that was delivered is given back."""
        ...


def queue_of(broker: AsyncBroker) -> Queue:
    """The queue of that broker.

    Raises:
        Misuse: It is of a kind whose leases are not to be told.
    """
    if isinstance(broker, ListQueueBroker):
        return ListQueue(broker)
    if isinstance(broker, RedisStreamBroker):
        if type(broker).listen is not RedisStreamBroker.listen:
            raise Misuse(
                f"{type(broker).__name__} has a listen of its own, and TaskiqWorkers "
                "reads a stream itself: leave that of RedisStreamBroker"
            )
        return StreamQueue(broker)
    if isinstance(broker, InMemoryBroker):
        raise Misuse("an InMemoryBroker has no workers: give it to TaskiqInMemory")
    raise Misuse(
        f"TaskiqWorkers takes a RedisStreamBroker or a ListQueueBroker, "
        f"not {kind_of(broker)}"
    )


def data_of(message: Message) -> bytes:
    """What the broker was given to send."""
    return message.data if isinstance(message, AckableMessage) else message


class ListQueue:
    """A list has no acknowledgement: what has been popped is only here."""

    lease = None

    def __init__(self, broker: ListQueueBroker) -> None:
        self._broker = broker

    @contextlib.asynccontextmanager
    async def pull(self) -> AsyncIterator[Pull]:
        """Nothing is left to be done at the end."""
        yield _ListPull(self._broker)

    async def give_back(self, message: Message) -> int:
        """Put it back where it was, at the head, however long that takes.

        Once, also where only the answer got lost: somebody may have popped it.
        """
        keys = [self._broker.queue_name, _new_key()]
        arguments = [data_of(message), REMEMBERED]
        async with _client(self._broker) as redis:
            while True:
                try:
                    await redis.eval(_PUT_BACK, len(keys), *keys, *arguments)
                    return 1
                except (RedisError, OSError):
                    await asyncio.sleep(PAUSE)

    async def give_back_unread(self) -> int:
        """There is none: a pop brings one message."""
        return 0

    def ended(self, message: Message) -> None:
        """Nobody else knows of it."""

    async def renew(self) -> None:
        """There are no leases."""

    def forget(self) -> None:
        """There is nothing: a pop brings one message."""


class _ListPull:
    """Pops for a moment at a time. To cancel a pop may lose what it pops."""

    def __init__(self, broker: ListQueueBroker) -> None:
        self._broker = broker
        self._closed = False

    async def step(self) -> Message:
        async with _client(self._broker) as redis:
            while not self._closed:
                popped = await redis.brpop([self._broker.queue_name], timeout=POP)
                if popped:
                    data: bytes = popped[1]
                    return data
        raise asyncio.CancelledError

    async def close(self, step: Step) -> Message | None:
        self._closed = True
        return await _brought(step)


class StreamQueue:
    """A stream remembers what it has delivered, and to whom, until it is acknowledged.

    Any consumer takes over what another one has had for `idle_timeout`: it takes that
    one for dead. A consumer is delivered many entries at once, and so has them longer
    than it runs them. We read them, and not the broker: it tells nobody which entry a
    message was.
    """

    def __init__(self, broker: RedisStreamBroker) -> None:
        self.lease = broker.idle_timeout / 1000
        self._broker = broker
        self._ready: dict[_Place, _Entry] = {}
        """What was delivered and not pulled, by all who pull."""
        self._here: dict[_Place, bool] = {}
        """What was pulled and not acknowledged; whether it is to be renewed."""
        self._pulls = 0
        self._turn = asyncio.Lock()  # nobody pulls while entries are given back

    @contextlib.asynccontextmanager
    async def pull(self) -> AsyncIterator[Pull]:
        """What was delivered and not pulled is left to whoever pulls on."""
        async with self._turn:
            self._pulls += 1
        try:
            yield _StreamPull(self)
        finally:
            self._pulls -= 1

    async def give_back(self, message: Message) -> int:
        """Leave it to `give_back_unread`: a copy and its acknowledgement are one."""
        entry = _entry_of(message)
        self._here.pop(entry.place, None)
        self._ready[entry.place] = entry
        return 0

    async def give_back_unread(self) -> int:
        """Send a copy of each entry that nobody has, and acknowledge the entry."""
        number = 0
        async with self._turn, _client(self._broker) as redis:
            if not self._pulls:
                taken = frozenset(self._here)  # one that ends meanwhile had been taken
                for stream in self._streams():
                    number += await self._give_back(redis, stream, taken)
        return number

    def ended(self, message: Message) -> None:
        """Its lease may run out: it was acknowledged, or is not to be here."""
        place = _entry_of(message).place
        if place in self._here:
            self._here[place] = False

    async def renew(self) -> None:
        """Claim them from ourselves, which is a delivery that is not counted."""
        leases = [*self._ready, *self._running()]
        async with _client(self._broker).pipeline(transaction=False) as each:
            for stream in {place.stream for place in leases}:
                ids = [place.id for place in leases if place.stream == stream]
                each.xclaim(stream, *self._consumer, 0, ids, justid=True)
            await each.execute()

    def forget(self) -> None:
        """Renew nothing any more that has not started: it is another one's in time."""
        self._ready.clear()

    async def next(self) -> _Entry:
        """Wait for an entry, if there is none; it is pulled from now on."""
        while not self._ready:
            await self._read()
        place = next(iter(self._ready))
        self._here[place] = True
        return self._ready.pop(place)

    async def _read(self) -> None:
        """Wait for entries; with some of them, take over those of the dead."""
        broker = self._broker
        async with _client(broker) as redis:
            streams = self._streams()
            # What ends while one asks is not to run again.
            here = frozenset([*self._ready, *self._here])
            for stream, entries in await redis.xreadgroup(
                *self._consumer, streams, count=broker.count, block=broker.block
            ):
                self._deliver(stream.decode(), entries, here)
            for stream in streams if self._ready else ():
                here = frozenset([*self._ready, *self._running()])
                _, entries, *_ = await redis.xautoclaim(
                    stream,
                    *self._consumer,
                    min_idle_time=broker.idle_timeout,
                    count=broker.unacknowledged_batch_size,
                )
                self._deliver(stream, entries, here)

    def _running(self) -> Iterator[_Place]:
        """Those that were pulled and have not ended."""
        return (place for place, runs in self._here.items() if runs)

    @property
    def _consumer(self) -> tuple[str, str]:
        return self._broker.consumer_group_name, self._broker.consumer_name

    def _streams(self) -> dict[str, str | int]:
        """And from where on each is read."""
        return {self._broker.queue_name: ">", **self._broker.additional_streams}

    def _deliver(
        self,
        stream: str,
        entries: Iterable[tuple[bytes, dict[bytes, bytes]]],
        here: frozenset[_Place],
    ) -> None:
        """They are ready, but for those that are here, or were when one asked."""
        for id, fields in entries:
            place = _Place(stream, id)
            if place in here or self._here.get(place) or not fields:
                continue  # one that was trimmed has no fields
            acknowledge = functools.partial(self._acknowledge, place)
            entry = _Entry(data=fields[b"data"], ack=acknowledge, place=place)
            self._ready.setdefault(place, entry)

    async def _acknowledge(self, place: _Place) -> None:
        # Its type says text; like the broker itself we hand it what Redis answers.
        await self._broker._ack_generator(place.id, place.stream)()  # type: ignore[arg-type]
        self._here.pop(place, None)

    async def _give_back(
        self, redis: Any, stream: str, taken: frozenset[_Place]
    ) -> int:
        number = 0
        async for id in self._pending(redis, stream):
            place = _Place(stream, id)
            if place not in taken:
                number += await self._send_again(redis, place)
        for place in [place for place in self._ready if place.stream == stream]:
            number += await self._send_again(redis, place)  # it was trimmed
        return number

    async def _pending(self, redis: Any, stream: str) -> AsyncIterator[bytes]:
        """The ids of what was delivered to this consumer."""
        group, consumer = self._consumer
        first = "-"
        while page := await redis.xpending_range(
            stream, group, first, "+", PAGE, consumername=consumer
        ):
            for pending in page:
                yield pending["message_id"]
            first = f"({page[-1]['message_id'].decode()}"

    async def _send_again(self, redis: Any, place: _Place) -> int:
        entry = self._ready.get(place)
        told = (*self._consumer, place.id, entry.data if entry else b"", REMEMBERED)
        keys = [place.stream, _new_key()]
        number: int = await redis.eval(_SEND_AGAIN, len(keys), *keys, *told)
        self._ready.pop(place, None)
        return number


class _Place(NamedTuple):
    stream: str
    id: bytes


class _Entry(AckableMessage):
    place: _Place


class _StreamPull:
    """What is delivered while it is cancelled is pending, and is found there."""

    def __init__(self, queue: StreamQueue) -> None:
        self._queue = queue

    async def step(self) -> Message:
        return await self._queue.next()

    async def close(self, step: Step) -> Message | None:
        while not step.done():
            # Once is not enough: a client that is connecting may swallow it.
            step.cancel()
            await asyncio.wait({step}, timeout=CANCEL_AGAIN)
        return await _brought(step)


def _entry_of(message: Message) -> _Entry:
    assert isinstance(message, _Entry), "a stream's pull gives nothing else"
    return message


async def _brought(step: Step) -> Message | None:
    """What it brings; nothing if it was cancelled."""
    await asyncio.wait({step})
    return None if step.cancelled() else step.result()


def _new_key() -> str:
    """Of what a client does once, though it tries again where an answer got lost."""
    return f"drainmw:taskiq:back:{uuid.uuid4().hex}"


def _client(broker: ListQueueBroker | RedisStreamBroker) -> Any:
    return Redis(connection_pool=broker.connection_pool)
