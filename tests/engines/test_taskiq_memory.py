"""Taskiq's broker in memory, whose tasks run in the process that sends them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from taskiq import InMemoryBroker, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import SendTaskError, UnknownTaskError
from taskiq.message import BrokerMessage
from taskiq_redis import ListQueueBroker

from drainmw import IntakeRefused
from drainmw.errors import Misuse
from drainmw.sources.base import Counts, Explains, Fed, WorkSource
from drainmw.sources.taskiq import TaskiqWorkers
from drainmw.sources.taskiqmemory import TaskiqInMemory
from drainmw.testing import ManualClock
from tests.engines.journal import Journal, work_async
from tests.rig import Release, calm, hello

pytestmark = pytest.mark.anyio


class Engine:
    """A broker of three tasks, and its source."""

    def __init__(self, *, await_inplace: bool = False) -> None:
        self.broker = InMemoryBroker(await_inplace=await_inplace)
        self.clock = ManualClock()
        self.source = TaskiqInMemory(self.broker, clock=self.clock)
        self.go = asyncio.Event()
        self.started: list[str] = []

        async def wait(id: str = "") -> None:
            self.started.append(id)
            await self.go.wait()

        async def fail() -> None:
            raise ValueError("of the task")

        async def feed() -> None:
            await self.go.wait()
            await self.kick("wait", "fed", "fed")

        for task in (wait, fail, feed):
            self.broker.register_task(task, task.__name__)

    async def kick(self, name: str, id: str, *args: str) -> Any:
        task = self.broker.find_task(name)
        assert task is not None
        return await task.kicker().with_task_id(id).kiq(*args)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    await engine.broker.shutdown()


async def test_it_is_a_push_source_that_explains_itself(engine: Engine) -> None:
    source = engine.source
    assert isinstance(source, WorkSource)
    assert isinstance(source, Explains)
    assert isinstance(source, Fed)
    assert (source.name, source.intake) == ("taskiq in memory", "push")


@pytest.mark.parametrize("await_inplace", [False, True])
async def test_a_task_counts_from_its_sending_until_it_has_ended(
    await_inplace: bool,
) -> None:
    engine = Engine(await_inplace=await_inplace)
    sending = [asyncio.create_task(engine.kick("wait", id)) for id in ("a", "b")]
    await calm()
    assert [task.done() for task in sending] == [not await_inplace] * 2
    assert engine.source.count() == Counts(jobs=2)
    assert [piece.id for piece in engine.source.running()] == ["a", "b"]
    settled = asyncio.create_task(engine.source.settled())
    await calm()
    assert not settled.done()
    engine.go.set()
    await asyncio.gather(*sending)
    await engine.broker.wait_all()
    await settled
    assert engine.source.count() == Counts()
    await engine.broker.shutdown()


async def test_a_task_counts_before_its_first_step(engine: Engine) -> None:
    await engine.kick("wait", "a")
    assert (engine.started, engine.source.count()) == ([], Counts(jobs=1))
    engine.go.set()
    await engine.source.settled()
    assert engine.started == [""]


@pytest.mark.parametrize("await_inplace", [False, True])
async def test_while_it_is_held_a_task_is_refused_and_not_parked(
    await_inplace: bool,
) -> None:
    """J10: by our error, and before any other middleware has heard of it."""

    heard: list[str] = []

    class Heard(TaskiqMiddleware):
        def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            heard.append(message.task_id)
            return message

    engine = Engine(await_inplace=await_inplace)
    engine.broker.add_middlewares(Heard())
    await engine.source.hold()
    with pytest.raises(IntakeRefused, match="job a is refused"):
        await engine.kick("wait", "a")
    assert (heard, engine.source.count()) == ([], Counts())
    engine.go.set()
    await engine.source.release()
    await engine.kick("wait", "b", "b")
    await engine.source.settled()
    assert (heard, engine.started) == (["b"], ["b"])
    await engine.broker.shutdown()


async def test_what_goes_past_the_middlewares_is_refused_too(engine: Engine) -> None:
    """As what was on its way through them when the hold came."""

    class Slow(TaskiqMiddleware):
        async def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            await engine.source.hold()
            return message

    message = BrokerMessage(task_id="a", task_name="wait", message=b"", labels={})
    await engine.source.hold()
    with pytest.raises(IntakeRefused, match="job a"):
        await engine.broker.kick(message)
    await engine.source.release()
    engine.broker.add_middlewares(Slow())
    with pytest.raises(SendTaskError) as caught:
        await engine.kick("wait", "a")
    assert isinstance(caught.value.__cause__, IntakeRefused)
    assert (engine.started, engine.source.count()) == ([], Counts())


async def test_a_task_that_runs_may_send_more_while_it_is_held(engine: Engine) -> None:
    await engine.kick("feed", "feeds")
    await engine.source.hold()
    settled = asyncio.create_task(engine.source.settled())
    await calm()
    assert not settled.done()
    engine.go.set()
    await settled
    assert engine.started == ["fed"]
    with pytest.raises(IntakeRefused):
        await engine.kick("wait", "late")


@pytest.mark.parametrize("end", ["fails", "is cancelled", "is cancelled unstarted"])
async def test_a_task_that_ends_badly_is_uncounted_too(
    end: str, engine: Engine
) -> None:
    await engine.kick("fail" if end == "fails" else "wait", "a")
    (task,) = engine.broker._running_tasks
    if end == "is cancelled":
        await calm()
    if end != "fails":
        task.cancel()
    await asyncio.wait([task])
    del task
    await calm()
    assert engine.source.count() == Counts()
    assert len(engine.started) == (end == "is cancelled")


async def test_a_task_that_is_not_known_is_uncounted(engine: Engine) -> None:
    message = BrokerMessage(task_id="a", task_name="none", message=b"", labels={})
    with pytest.raises(UnknownTaskError):
        await engine.broker.kick(message)
    assert engine.source.count() == Counts()


@pytest.mark.parametrize("await_inplace", [False, True])
async def test_a_thread_counts_until_it_ends_though_its_timeout_has_passed(
    await_inplace: bool,
) -> None:
    """Taskiq has its result by then, and nothing ends the thread."""
    engine, go = Engine(await_inplace=await_inplace), threading.Event()
    engine.broker.register_task(lambda: go.wait(5), "thread")
    task = engine.broker.find_task("thread")
    assert task is not None
    sent = await task.kicker().with_labels(timeout=0.02).kiq()
    assert (await sent.wait_result(timeout=5)).is_err
    await calm()
    assert engine.source.count() == Counts(jobs=1)
    settled = asyncio.create_task(engine.source.settled())
    await calm()
    assert not settled.done()
    go.set()
    async with asyncio.timeout(5):
        await settled
    assert engine.source.count() == Counts()
    await engine.broker.shutdown()


def test_a_thread_that_outlives_its_loop_counts_until_it_ends() -> None:
    go, begun = threading.Event(), threading.Event()

    def thread() -> None:
        begun.set()
        go.wait(5)

    async def life() -> Engine:
        engine = Engine()
        engine.broker.register_task(thread, "thread")
        await engine.kick("thread", "a")
        while not begun.is_set():  # noqa: ASYNC110  # a thread tells no loop
            await asyncio.sleep(0.005)
        return engine

    engine = asyncio.run(life())
    assert engine.source.count() == Counts(jobs=1)
    go.set()
    engine.broker.executor.shutdown()
    assert engine.source.count() == Counts()


async def test_what_was_not_sent_is_not_counted(engine: Engine) -> None:
    message = b'{"task_id": "a", "task_name": "fail", "args": [], "kwargs": {}}'
    await engine.broker.receiver.callback(message)
    assert engine.source.count() == Counts()


async def test_it_is_held_once_requests_have_ended() -> None:
    """Until then they send tasks, which the drain waits for."""
    engine, go = Engine(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await engine.kick("wait", "of the request", "of the request")
        await hello(scope, receive, send)

    release = Release(app)
    release.drain.add_source(engine.source)
    async with release.call() as call:
        await release.client.begin()
        await calm()
        go.set()
        await call.wait()
    await calm()
    assert engine.started == ["of the request"]
    assert (await release.in_flight())["jobs"] == 1
    with pytest.raises(IntakeRefused):
        await engine.kick("wait", "late")
    engine.go.set()
    async with asyncio.timeout(5):
        await release.drain.ended
    assert await release.state() == "drained"
    await release.client.resume()
    await engine.kick("wait", "after the resume")
    await engine.source.settled()
    await engine.broker.shutdown()


async def test_what_could_not_be_counted_is_refused(
    engine: Engine, journal: Journal
) -> None:
    broker: Any = ListQueueBroker("redis://127.0.0.1")
    with pytest.raises(Misuse, match="an InMemoryBroker, not ListQueueBroker"):
        TaskiqInMemory(broker)
    with pytest.raises(Misuse, match="before anything is sent"):
        TaskiqInMemory(engine.broker)
    with pytest.raises(Misuse, match="give it to TaskiqInMemory"):
        TaskiqWorkers(engine.broker)
    busy = InMemoryBroker()
    task = busy.register_task(work_async, "work")
    await task.kiq(str(journal.path), "a", 0.0)
    with pytest.raises(Misuse, match="before anything is sent"):
        TaskiqInMemory(busy)
    await busy.wait_all()
    await busy.shutdown()
