"""Redis lists and streams of Taskiq, pulled so that a pull can be ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError
from taskiq.abc.broker import AsyncBroker
from taskiq.acks import AckableMessage
from taskiq.utils import maybe_awaitable
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from drainmw.errors import Misuse

POP = 0.25  # seconds until a pop from an empty list looks up
PAUSE = 0.2  # seconds before a message that could not be put back is tried again
CANCEL_AGAIN = 0.05  # seconds
PAGE = 1000  # entries of a stream that are looked at in one go

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

    def pull(self) -> contextlib.AbstractAsyncContextManager[Pull]:
        """Pull, until the context is left: then nothing comes any more."""
        ...

    async def give_back(self, message: Message) -> int:
        """A message that has not started; how many are in the queue again."""
        ...

    async def give_back_unread(self) -> int:
        """What was delivered and not pulled, if nobody pulls; how many it was."""
        ...


def queue_of(broker: AsyncBroker) -> Queue:
    """The queue of that broker.

    Raises:
        Misuse: It is of a kind whose leases are not to be told.
    """
    if isinstance(broker, ListQueueBroker):
        return ListQueue(broker)
    if isinstance(broker, RedisStreamBroker):
        return StreamQueue(broker)
    raise Misuse(
        f"TaskiqWorkers takes a RedisStreamBroker or a ListQueueBroker, "
        f"not a {type(broker).__name__}"
    )


def data_of(message: Message) -> bytes:
    """What the broker was given to send."""
    return message.data if isinstance(message, AckableMessage) else message


class ListQueue:
    """A list has no acknowledgement: what has been popped is only here."""

    def __init__(self, broker: ListQueueBroker) -> None:
        self._broker = broker

    @contextlib.asynccontextmanager
    async def pull(self) -> AsyncIterator[Pull]:
        """Nothing is left to be done at the end."""
        yield _ListPull(self._broker)

    async def give_back(self, message: Message) -> int:
        """Put it back where it was, at the head, however long that takes."""
        async with _client(self._broker) as redis:
            while True:
                try:
                    await redis.rpush(self._broker.queue_name, data_of(message))
                    return 1
                except (RedisError, OSError):
                    await asyncio.sleep(PAUSE)

    async def give_back_unread(self) -> int:
        """There is none: a pop brings one message."""
        return 0


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

    A consumer is delivered many entries at once, which its broker hands out one by
    one. Those it has not handed out are told from the others by their data, since
    each message has an id in it.
    """

    def __init__(self, broker: RedisStreamBroker) -> None:
        self._broker = broker
        self._taken: set[bytes] = set()  # handed out, and not acknowledged
        self._pulls = 0
        self._turn = asyncio.Lock()  # nobody pulls while entries are given back

    @contextlib.asynccontextmanager
    async def pull(self) -> AsyncIterator[Pull]:
        """By the broker's own reading, whose generator is closed at the end."""
        async with self._turn:
            self._pulls += 1
        iterator = self._broker.listen()
        try:
            yield _StreamPull(iterator, self._taken)
        finally:
            await iterator.aclose()
            self._pulls -= 1

    async def give_back(self, message: Message) -> int:
        """Leave it to `give_back_unread`: a copy and its acknowledgement are one."""
        self._taken.discard(data_of(message))
        return 0

    async def give_back_unread(self) -> int:
        """Send a copy of each entry that nobody has, and acknowledge the entry."""
        number = 0
        async with self._turn, _client(self._broker) as redis:
            if not self._pulls:
                taken = frozenset(self._taken)  # one that ends meanwhile had been taken
                for stream in (
                    self._broker.queue_name,
                    *self._broker.additional_streams,
                ):
                    number += await self._give_back(redis, stream, taken)
        return number

    async def _give_back(self, redis: Any, stream: str, taken: frozenset[bytes]) -> int:
        group, consumer = self._broker.consumer_group_name, self._broker.consumer_name
        number, first = 0, "-"
        while page := await redis.xpending_range(
            stream, group, first, "+", PAGE, consumername=consumer
        ):
            for pending in page:
                id = pending["message_id"]
                for _, fields in await redis.xrange(stream, id, id):
                    if fields[b"data"] in taken:
                        continue
                    async with redis.pipeline(transaction=True) as both:
                        both.xadd(stream, fields)
                        both.xack(stream, group, id)
                        await both.execute()
                    number += 1
            first = f"({page[-1]['message_id'].decode()}"
        return number


class _StreamPull:
    """What is delivered while it is cancelled is pending, and is found there."""

    def __init__(
        self, iterator: AsyncGenerator[AckableMessage, None], taken: set[bytes]
    ) -> None:
        self._iterator = iterator
        self._taken = taken

    async def step(self) -> Message:
        message = await anext(self._iterator)
        data, ack = message.data, message.ack
        self._taken.add(data)

        async def ack_and_forget() -> None:
            await maybe_awaitable(ack())
            self._taken.discard(data)

        return AckableMessage(data=data, ack=ack_and_forget)

    async def close(self, step: Step) -> Message | None:
        while not step.done():
            # Once is not enough: a client that is connecting may swallow it.
            step.cancel()
            await asyncio.wait({step}, timeout=CANCEL_AGAIN)
        return await _brought(step)


async def _brought(step: Step) -> Message | None:
    """What it brings; nothing if it was cancelled."""
    await asyncio.wait({step})
    return None if step.cancelled() else step.result()


def _client(broker: ListQueueBroker | RedisStreamBroker) -> Any:
    return Redis(connection_pool=broker.connection_pool)
