"""What an app waits for is interrupted, and nothing is asked of its task."""

import asyncio
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
)
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import anyio
import pytest

from drainmw.interrupt import (
    LAYERS,
    MOST,
    chain,
    frames,
    held_tasks,
    interrupt,
    is_waiting,
    reaches,
)
from tests.rig import calm

pytestmark = pytest.mark.anyio

HOUR = 3600.0

Told = tuple[str, int]
"""What came out of a wait, and how often its task was asked to be cancelled."""


async def told(awaitable: Awaitable[Any]) -> Told:
    try:
        outcome = str(await awaitable)
    except asyncio.CancelledError:
        outcome = "interrupted"
    task = asyncio.current_task()
    assert task is not None
    return outcome, task.cancelling()


@asynccontextmanager
async def waiting(awaitable: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Told]]:
    """A task that has got to its wait, and that is gone at the end."""
    task = asyncio.create_task(told(awaitable))
    await calm()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


def now(task: asyncio.Task[Told]) -> Told | None:
    """What the task has been told, if anything."""
    return task.result() if task.done() else None


# Ways to wait for what does not come


async def nothing() -> None:
    await asyncio.Event().wait()


async def nested(depth: int = 20) -> None:
    await (nested(depth - 1) if depth else nothing())


async def queue() -> None:
    await asyncio.Queue[None]().get()


async def sleeping() -> None:
    await asyncio.sleep(HOUR)


async def lock() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


async def condition() -> None:
    async with (condition := asyncio.Condition()):
        await condition.wait()


async def future() -> None:
    await asyncio.get_running_loop().create_future()


async def future_in_python() -> None:
    """One whose iterator is a generator, as where there is no C extension."""
    await asyncio.futures._PyFuture()  # type: ignore[attr-defined]  # not public


async def with_timeout() -> None:
    async with asyncio.timeout(HOUR):
        await nothing()


async def wait_for() -> None:
    await asyncio.wait_for(nothing(), HOUR)


async def gathered() -> None:
    await asyncio.gather(nothing(), nothing())


async def group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(nothing())


async def anyio_stream() -> None:
    send, receive = anyio.create_memory_object_stream[None]()
    with send, receive:
        await receive.receive()


async def anyio_scope() -> None:
    with anyio.CancelScope():
        await anyio.Event().wait()


@types.coroutine
def generator() -> Generator[Any, Any, None]:
    yield from nothing().__await__()


@types.coroutine
def generator_over_a_coroutine() -> Generator[Any, Any, None]:
    yield from nothing()


async def generators() -> None:
    await generator()


async def generators_over_coroutines() -> None:
    await generator_over_a_coroutine()


class Delegates:
    """Has an iterator that does not show what it stands before."""

    def __await__(self) -> Generator[Any, Any, None]:
        return nothing().__await__()


class Generates:
    """Has a generator for an iterator."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from Delegates().__await__()


async def delegated() -> None:
    await Delegates()


async def generated() -> None:
    await Generates()


async def messages() -> AsyncIterator[int]:
    await nothing()
    yield 1


async def next_message() -> None:
    await anext(messages())


async def next_message_or_none() -> None:
    await anext(messages(), None)


async def each_message() -> None:
    async for _ in messages():
        pass


async def closes_late() -> AsyncGenerator[int, None]:
    try:
        yield 1
    finally:
        await nothing()


async def close_of_a_generator() -> None:
    generator = closes_late()
    await anext(generator)
    await generator.aclose()


async def with_cleanup() -> None:
    """It may still do what has to be done, as in any cancellation."""
    try:
        await nothing()
    finally:
        await asyncio.sleep(0)


WAYS: list[Callable[[], Coroutine[Any, Any, None]]] = [
    *(nothing, nested, queue, sleeping, lock, condition, future, future_in_python),
    *(with_timeout, wait_for, gathered, group, anyio_stream, anyio_scope),
    *(generators, generators_over_coroutines, delegated, generated),
    *(next_message, next_message_or_none, each_message, close_of_a_generator),
    with_cleanup,
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_wait_is_interrupted_and_its_task_is_not_asked_to_end(
    way: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    wait = way()
    async with waiting(wait) as task:
        assert is_waiting(wait)
        assert interrupt(wait)
        assert task.cancelling() == 0
        await calm()
        assert now(task) == ("interrupted", 0)
        assert not is_waiting(wait)
        assert not interrupt(wait)


async def test_a_future_that_is_waited_for_itself_is_interrupted() -> None:
    """Some servers give their own kind of future for a message."""
    wait = asyncio.get_running_loop().create_future()
    async with waiting(wait) as task:
        assert is_waiting(wait)
        assert interrupt(wait)
        await calm()
        assert now(task) == ("interrupted", 0)
        assert not interrupt(wait)


class OfAServer:
    """An awaitable of a server's own, with what is asked of one and no more."""

    def __init__(self) -> None:
        self.is_done = False
        self.cancels = 0

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> bool:
        self.cancels += 1
        return True


def test_a_future_of_another_kind_is_asked_whether_it_is_done() -> None:
    wait = OfAServer()
    assert is_waiting(wait)
    assert interrupt(wait)
    wait.is_done = True
    assert not is_waiting(wait)
    assert not interrupt(wait)
    assert wait.cancels == 1


# Exactly this wait


async def test_another_wait_of_the_same_kind_goes_on() -> None:
    event = asyncio.Event()
    one, other = event.wait(), event.wait()
    async with waiting(one) as task, waiting(other) as unhurt:
        assert interrupt(one)
        await calm()
        assert (now(task), now(unhurt)) == (("interrupted", 0), None)
        event.set()
        await calm()
        assert now(unhurt) == ("True", 0)


async def test_the_task_can_wait_again_and_be_interrupted_again() -> None:
    waits: list[Coroutine[Any, Any, None]] = []

    async def twice() -> list[Told]:
        outcomes = []
        for _ in range(2):
            waits.append(nothing())
            outcomes.append(await told(waits[-1]))
        return outcomes

    task = asyncio.create_task(twice())
    for number in range(2):
        await calm()
        assert len(waits) == number + 1
        assert interrupt(waits[-1])
    await calm()
    assert task.result() == [("interrupted", 0)] * 2


async def test_a_task_that_is_cancelled_too_knows_it() -> None:
    wait = nothing()
    async with waiting(wait) as task:
        assert interrupt(wait)
        task.cancel()
        await calm()
        assert now(task) == ("interrupted", 1)


async def test_what_is_shielded_goes_on() -> None:
    event = asyncio.Event()
    inner = asyncio.create_task(told(event.wait()))

    async def shielded() -> None:
        await asyncio.shield(inner)

    wait = shielded()
    async with waiting(wait) as task:
        assert interrupt(wait)
        await calm()
        assert now(task) == ("interrupted", 0)
        assert not inner.done()
        event.set()
        assert await inner == ("True", 0)


async def test_tasks_that_are_watched_by_a_wait_go_on() -> None:
    event = asyncio.Event()
    inner = asyncio.create_task(told(event.wait()))

    async def watches() -> None:
        await asyncio.wait((inner,))

    wait = watches()
    async with waiting(wait) as task:
        assert interrupt(wait)
        await calm()
        assert now(task) == ("interrupted", 0)
        assert not inner.done()
        event.set()
        assert await inner == ("True", 0)


async def test_a_task_that_is_awaited_itself_is_cancelled_as_by_its_waiter() -> None:
    inner = asyncio.create_task(nothing())

    async def awaits() -> None:
        await inner

    wait = awaits()
    async with waiting(wait) as task:
        assert interrupt(wait)
        await calm()
        assert (now(task), inner.cancelled()) == (("interrupted", 0), True)


# No message is lost


async def test_a_queue_loses_nothing_by_an_interrupted_wait() -> None:
    queue: asyncio.Queue[str] = asyncio.Queue()
    wait = queue.get()
    async with waiting(wait) as task:
        assert interrupt(wait)
        queue.put_nowait("kept")
        await calm()
        assert now(task) == ("interrupted", 0)
        assert queue.get_nowait() == "kept"


async def test_a_message_that_has_come_this_instant_is_delivered() -> None:
    queue: asyncio.Queue[str] = asyncio.Queue()
    wait = queue.get()
    async with waiting(wait) as task:
        queue.put_nowait("first")
        assert is_waiting(wait)
        assert not interrupt(wait)
        await calm()
        assert now(task) == ("first", 0)


# Where nobody waits, or it cannot be seen who does


async def test_a_coroutine_that_has_not_started_waits_for_nothing() -> None:
    wait = nothing()
    assert not is_waiting(wait)
    assert not interrupt(wait)
    wait.close()


async def returns() -> None:
    pass


async def fails() -> None:
    raise ValueError


@pytest.mark.parametrize("make", [returns, fails])
async def test_a_coroutine_that_has_ended_waits_for_nothing(
    make: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    ended = make()
    await asyncio.gather(ended, return_exceptions=True)
    assert not is_waiting(ended)
    assert not interrupt(ended)


async def test_a_coroutine_that_runs_waits_for_nothing() -> None:
    async def looks_at_itself() -> tuple[bool, bool]:
        return is_waiting(own[0]), interrupt(own[0])

    own = [looks_at_itself()]
    assert await own[0] == (False, False)


async def test_a_future_that_is_done_is_not_waited_for() -> None:
    loop = asyncio.get_running_loop()
    done, failed, cancelled = (loop.create_future() for _ in range(3))
    done.set_result(None)
    failed.set_exception(ValueError())
    cancelled.cancel()
    for future in (done, failed, cancelled):
        assert not is_waiting(future)
        assert not interrupt(future)
    assert isinstance(failed.exception(), ValueError)


class Bare:
    """Can be awaited, and says nothing of itself."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from nothing().__await__()


@pytest.mark.parametrize("thing", [None, 0, "", object(), Bare(), print])
def test_what_cannot_be_asked_does_not_wait(thing: Any) -> None:
    assert not is_waiting(thing)
    assert not interrupt(thing)


@pytest.mark.parametrize("make", [Bare, generator, lambda: messages().__anext__()])
async def test_what_cannot_be_asked_is_left_alone_while_it_waits(
    make: Callable[[], Awaitable[Any]],
) -> None:
    """Such as a generator, or the next step of an asynchronous one."""
    wait = make()
    async with waiting(wait) as task:
        assert not is_waiting(wait)
        assert not interrupt(wait)
        await calm()
        assert now(task) is None


async def polls() -> None:
    for _ in repeat(None):
        await asyncio.sleep(0)


async def test_who_polls_waits_for_nothing_that_could_be_interrupted() -> None:
    wait = polls()
    async with waiting(wait) as task:
        assert is_waiting(wait)
        assert not interrupt(wait)
        await calm()
        assert now(task) is None


# The chain


async def test_the_chain_goes_down_to_what_can_be_cancelled() -> None:
    async with waiting(wait := each_message()):
        kinds = [type(link).__name__ for link in chain(wait)]
        assert kinds == [
            "coroutine",
            "async_generator_asend",
            "async_generator",
            "coroutine",
            "coroutine",
            "FutureIter",
        ]


async def test_the_chain_does_not_enter_another_task() -> None:
    inner = asyncio.create_task(nothing())

    async def awaits() -> None:
        await inner

    async with waiting(wait := awaits()):
        kinds = [type(link).__name__ for link in chain(wait)]
        assert kinds == ["coroutine", "FutureIter"]
    await asyncio.wait((inner,))


def test_the_chain_of_nothing_is_empty() -> None:
    assert list(chain(None)) == []


# What a coroutine has at hand


async def test_frames_come_from_the_outermost_on() -> None:
    async with waiting(wait := generators()):
        names = [frame.f_code.co_name for frame in frames(wait)]
        assert names == ["generators", "generator", "nothing", "wait"]


async def test_a_coroutine_that_has_not_started_stands_at_its_beginning() -> None:
    wait = nothing()
    assert [frame.f_code.co_name for frame in frames(wait)] == ["nothing"]
    wait.close()
    assert list(frames(wait)) == []


async def test_a_future_stands_nowhere() -> None:
    assert list(frames(asyncio.get_running_loop().create_future())) == []


Hold = Callable[[list[Any]], Any]


async def held_by(hold: Hold, number: int = 2) -> bool:
    """Whether so many tasks are found in what a coroutine's variable holds."""
    tasks = [asyncio.create_task(nothing()) for _ in range(number)]

    async def holds(held: Any) -> None:
        await nothing()
        del held

    async with waiting(wait := holds(hold(tasks))):
        found = list(held_tasks(next(frames(wait))))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert set(found) in (set(), set(tasks))
    assert len(found) == len(set(found))
    return bool(found)


@pytest.mark.parametrize("hold", [list, tuple, set, frozenset])
async def test_tasks_are_found_in_a_small_collection(
    hold: Hold,
) -> None:
    assert await held_by(hold)
    assert await held_by(lambda tasks: hold([*tasks, None, 5]))
    assert await held_by(hold, MOST)
    assert not await held_by(hold, MOST + 1)


async def test_a_task_is_found_alone() -> None:
    assert await held_by(lambda tasks: tasks[0], 1)


@pytest.mark.parametrize(
    "hold",
    [
        lambda tasks: [tasks],
        lambda tasks: dict(enumerate(tasks)),
        lambda tasks: lambda: tasks,
        lambda tasks: [task.get_coro() for task in tasks],
    ],
)
async def test_a_task_is_not_looked_for_any_deeper(
    hold: Hold,
) -> None:
    assert not await held_by(hold)


Send = Callable[[str], None]


def wrapped(send: Send, layers: int) -> Send:
    """As middlewares do it, one around the other."""
    for _ in range(layers):
        send = wrapping(send)
    return send


def wrapping(send: Send) -> Send:
    def wrapper(message: str) -> None:
        send(message)

    return wrapper


async def has(send: Any) -> None:
    await nothing()
    del send


async def has_below(send: Any) -> None:
    below = has(send)
    del send
    await below


async def encloses(send: Any) -> None:
    async def inner() -> None:
        await nothing()
        send("")

    await inner()


def some_send(_message: str) -> None:
    """The one that is looked for."""


@pytest.mark.parametrize("how", [has, has_below, encloses])
@pytest.mark.parametrize("layers", range(LAYERS + 1))
async def test_a_coroutine_reaches_what_it_has_at_hand_or_wrapped(
    how: Callable[[Any], Coroutine[Any, Any, None]], layers: int
) -> None:
    async with waiting(wait := how(wrapped(some_send, layers))):
        assert reaches(wait, some_send)


async def test_it_is_not_looked_for_any_deeper() -> None:
    async with waiting(wait := has(wrapped(some_send, LAYERS + 1))):
        assert not reaches(wait, some_send)


def around_nothing() -> Send:
    """A function around a variable without a value."""

    def function(message: str) -> None:
        later(message)

    sends: list[Send] = []
    for later in sends:
        later("")
    return function


@pytest.mark.parametrize(
    "held", [None, print, wrapped(print, 2), lambda: some_send, [some_send]]
)
async def test_what_only_looks_like_it_is_not_it(held: Any) -> None:
    async with waiting(wait := has(held)):
        assert not reaches(wait, some_send)


async def test_a_variable_without_a_value_is_passed_over() -> None:
    async with waiting(wait := has(around_nothing())):
        assert not reaches(wait, some_send)


async def test_a_function_around_itself_is_looked_into_so_far_and_no_further() -> None:
    def again() -> None:
        again()

    async with waiting(wait := has(again)):
        assert not reaches(wait, some_send)
