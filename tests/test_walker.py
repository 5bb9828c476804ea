"""Which connections a drain closes, and when; through the whole middleware."""

import asyncio
import contextlib
import gc
import itertools
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from drainmw import Policy
from drainmw.core.drain import Run
from drainmw.core.ledger import Ledger
from drainmw.exchange import Exchange, tickets
from drainmw.settings import load
from drainmw.sockets import Socket
from drainmw.testing import AsgiDriver, ManualClock, http_scope, websocket_scope
from drainmw.walker import CHUNK, CROWD, Walker, Walkers
from tests.rig import NONCE, Release, begin_request, calm, hello

pytestmark = pytest.mark.anyio

AT_ONCE: dict[str, Any] = {
    "close_notice": 0,
    "close_window": 0,
    "websocket_grace": 0,
    "stream_grace": 0,
}
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and answer each message, until the client leaves."""
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": "answer"})


async def stubborn(_scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and never look at the client again."""
    await receive()
    await send({"type": "websocket.accept"})
    await asyncio.Event().wait()


class Streaming:
    """A response that goes on for ever, after `chunks` of it."""

    def __init__(self, headers: Any = EVENTS, *, chunks: int = 1) -> None:
        self.headers = headers
        self.chunks = chunks
        self.cleaned = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": self.headers})
        for _ in range(self.chunks):
            await send(chunk(b"data: x\n\n"))
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned += 1


def chunk(body: bytes, *, more_body: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


FINAL = chunk(b"", more_body=False)


@asynccontextmanager
async def open_socket(
    release: Release, path: str = "/", **more: Any
) -> AsyncIterator[AsgiDriver]:
    async with release.call(websocket_scope(path, **more)) as call:
        await call.send_input({"type": "websocket.connect"})
        assert (await call.receive_output())["type"] == "websocket.accept"
        yield call


@asynccontextmanager
async def open_pinned(release: Release) -> AsyncIterator[None]:
    """A drain that goes on for as long as a job."""
    may_end = asyncio.Event()
    release.drain.spawn(may_end.wait())
    await release.client.begin(timeoutMs=60_000)
    yield
    may_end.set()


@asynccontextmanager
async def open_stream(
    release: Release, path: str = "/", chunks: int = 1
) -> AsyncIterator[AsgiDriver]:
    async with release.call(http_scope(path)) as call:
        assert (await call.receive_output())["type"] == "http.response.start"
        for _ in range(chunks):
            assert (await call.receive_output())["more_body"]
        yield call


async def drained(release: Release, within: float = 2) -> str:
    async with asyncio.timeout(within):
        await release.drain.ended
    return str(release.drain.phase)


# WebSockets


async def test_an_idle_websocket_is_closed_with_the_code_and_the_hint() -> None:
    """S4, S12: service restart, and when to come back."""
    release = Release(echo, **AT_ONCE, retry_after=3)
    async with open_socket(release) as call:
        await release.client.begin()
        close = await call.receive_output()
        assert (close["type"], close["code"]) == ("websocket.close", 1012)
        hint = json.loads(close["reason"])
        assert 3000 <= hint["retry_ms"] <= 6000
        await call.wait()
    assert await drained(release) == "drained"


async def test_the_code_is_a_setting() -> None:
    release = Release(echo, **AT_ONCE, close_code=4000)
    async with open_socket(release) as call:
        await release.client.begin()
        assert (await call.receive_output())["code"] == 4000


async def test_nothing_is_closed_before_the_notice() -> None:
    release = Release(echo, **{**AT_ONCE, "close_notice": 0.1})
    async with open_socket(release) as call:
        await release.client.begin()
        assert await call.receive_nothing(0.05)
        await call.send_input({"type": "websocket.receive", "text": "x"})
        assert (await call.receive_output())["text"] == "answer"
        assert (await call.receive_output())["type"] == "websocket.close"


@pytest.mark.parametrize("how", ["policies", "policy", "websocket_policy"])
async def test_a_websocket_that_may_finish_is_waited_for(how: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "policies": {"policies": {"/chat/*": "finish"}},
        "policy": {"policy": lambda scope: "finish"},
        "websocket_policy": {"websocket_policy": "finish"},
    }
    release = Release(echo, **AT_ONCE, **ways[how])
    async with open_socket(release, "/chat/1") as call:
        await release.client.begin()
        assert await call.receive_nothing(0.05)
        await call.send_input({"type": "websocket.disconnect", "code": 1001})
        await call.wait()
    assert await drained(release) == "drained"


async def test_a_route_has_a_grace_of_its_own() -> None:
    release = Release(
        stubborn, **AT_ONCE, policies={"/slow": Policy("close", grace=0.2)}
    )
    async with open_socket(release, "/slow") as slow, open_socket(release) as other:
        await release.client.begin()
        assert (await other.receive_output())["type"] == "websocket.close"
        assert await slow.receive_nothing()
        assert (await slow.receive_output())["type"] == "websocket.close"


async def test_one_that_answers_beside_its_reading_finishes_its_answer() -> None:
    """S6: an app of two tasks waits in `receive` all the while."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            for number in range(12):
                await send({"type": "websocket.send", "text": str(number)})
                await asyncio.sleep(0.05)

        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            answers.append(asyncio.create_task(answer()))

    answers: list[asyncio.Task[None]] = []
    settings = {**AT_ONCE, "close_notice": 0.2, "websocket_grace": 5}
    release = Release(app, **settings)
    async with open_socket(release) as call:
        await call.send_input({"type": "websocket.receive", "text": "question"})
        await release.client.begin()
        texts = [await call.receive_output() for _ in range(13)]
        assert [m.get("text") for m in texts[:12]] == [str(n) for n in range(12)]
        assert texts[12]["type"] == "websocket.close"
        remaining = release.drain.remaining
        assert remaining is not None
        assert remaining > 3  # soon after the answer, long before the grace
    await asyncio.wait(answers)


async def test_one_that_never_stops_sending_is_closed_at_its_grace() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        async def push() -> None:
            while True:
                await send({"type": "websocket.send", "text": "x"})
                await asyncio.sleep(0.02)

        await receive()
        await send({"type": "websocket.accept"})
        pushing = asyncio.create_task(push())
        await receive()
        pushing.cancel()

    settings = {**AT_ONCE, "close_notice": 0.1, "websocket_grace": 0.5}
    release = Release(app, **settings)
    loop = asyncio.get_running_loop()
    async with open_socket(release) as call:
        await release.client.begin()
        begun = loop.time()
        while (await call.receive_output())["type"] != "websocket.close":
            pass
        assert loop.time() - begun > 0.45
        await call.wait()


async def test_an_app_that_only_sends_hears_of_a_late_close_in_time() -> None:
    """A healthy one must not make the drain fail."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "text": "x"})
            await asyncio.sleep(0.02)

    release = Release(app, **{**AT_ONCE, "websocket_grace": 600})
    async with open_socket(release) as call:
        await release.client.begin(timeoutMs=2000)
        assert await drained(release, 3) == "drained"
        await call.wait()


async def test_a_route_has_a_notice_of_its_own() -> None:
    release = Release(echo, **AT_ONCE, policies={"/chat": Policy("close", notice=0.15)})
    async with open_socket(release, "/chat") as call:
        await release.client.begin()
        assert await call.receive_nothing(0.1)
        assert (await call.receive_output())["type"] == "websocket.close"


async def test_a_window_that_does_not_fit_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = Release(echo, **{**AT_ONCE, "close_window": 5, "close_notice": 0})
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(open_socket(release))
        await release.client.begin(timeoutMs=200)
        assert await drained(release) in ("drained", "failed")
    told = [r.getMessage() for r in caplog.records if "forward" in r.getMessage()]
    assert len(told) == 1
    assert "window='0.2 s of 0.5 s'" in told[0]


async def test_a_drain_that_fails_names_what_was_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = Release(stubborn, **AT_ONCE)
    async with open_socket(release, "/deaf"):
        await release.client.begin(timeoutMs=200)
        assert await drained(release) == "failed"
    ended = next(r for r in caplog.records if "drain ended" in r.getMessage())
    assert "websocket /deaf" in ended.getMessage()


async def test_one_that_ignores_its_close_is_still_counted_and_named() -> None:
    """S8: and the drain ends on time."""
    release = Release(stubborn, **AT_ONCE)
    async with open_socket(release, "/deaf") as call:
        await release.client.begin(timeoutMs=400)
        assert (await call.receive_output())["type"] == "websocket.close"
        report = await release.client.report()
        assert report["inFlight"]["websocket"] == 1
        assert [b["path"] for b in report["blockers"]] == ["/deaf"]
        assert await drained(release) == "failed"
        assert not call.is_done


@pytest.mark.parametrize("how", ["reads on", "sends on"])
async def test_one_that_goes_on_without_a_pause_does_not_keep_the_loop(
    how: str,
) -> None:
    """S8: and the drain ends on time."""
    may_end = asyncio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not may_end.is_set():
            if how == "reads on":
                await receive()
            else:
                with contextlib.suppress(OSError):
                    await send({"type": "websocket.send", "text": "x"})
                    await asyncio.sleep(0.01)

    release = Release(app, **AT_ONCE)
    async with open_socket(release) as call:
        await release.client.begin(timeoutMs=300)
        assert await drained(release) == "failed"
        may_end.set()
        await call.wait()


async def test_one_that_was_let_in_meanwhile_stays_as_long_as_it_can() -> None:
    release = Release(echo, **AT_ONCE, admit=lambda scope: True)
    async with open_socket(release):
        await release.client.begin(timeoutMs=1000)
        async with open_socket(release) as late:
            assert await late.receive_nothing(0.1)
            assert (await late.receive_output(1))["type"] == "websocket.close"
            remaining = release.drain.remaining
            assert remaining is not None
            assert 0 < remaining <= 0.11


async def test_a_resume_leaves_open_what_is_not_closed_yet() -> None:
    release = Release(echo, **{**AT_ONCE, "close_notice": 0.1})
    async with open_socket(release) as call:
        await release.client.begin()
        await calm()
        await release.client.resume()
        assert await call.receive_nothing(0.15)
        await call.send_input({"type": "websocket.receive", "text": "x"})
        assert (await call.receive_output())["text"] == "answer"


async def test_a_second_drain_closes_what_the_first_has_left() -> None:
    release = Release(echo, **{**AT_ONCE, "close_notice": 0.1})
    async with open_socket(release) as call:
        await release.client.begin()
        await release.client.resume()
        await release.client.begin("m" * 43)
        assert (await call.receive_output())["type"] == "websocket.close"
        await call.wait()


async def test_a_failed_drain_closes_nothing_more() -> None:
    """It has cut nothing, and leaves what runs alone."""
    release = Release(echo, **AT_ONCE)
    async with open_socket(release):
        await release.client.begin()
        assert await drained(release) == "drained"
        walker = release.drain.walkers.note()
        assert walker is None


# Streams


async def test_an_event_stream_is_ended_complete() -> None:
    """S1: with the last message of a body, after the app has cleaned up."""
    app = Streaming()
    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        assert app.cleaned == 1
        await call.wait()
    assert await drained(release) == "drained"


async def test_a_stream_that_has_sent_only_its_start_is_ended_too() -> None:
    release = Release(Streaming(chunks=0), **AT_ONCE)
    async with open_stream(release, chunks=0) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL


async def test_what_the_app_sends_while_it_is_ended_goes_out_first() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Streaming()(scope, receive, send)
        finally:
            await send(chunk(b"event: goodbye\n\n"))

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert (await call.receive_output())["body"] == b"event: goodbye\n\n"
        assert await call.receive_output() == FINAL
        await call.wait()


async def test_an_app_that_completes_its_response_itself_is_believed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await Streaming()(scope, receive, send)
        await send(chunk(b"bye", more_body=False))

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert (await call.receive_output())["body"] == b"bye"
        await call.wait()
        assert await call.receive_nothing()


async def test_an_app_that_swallows_the_cancel_and_returns_is_completed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await Streaming()(scope, receive, send)

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        await call.wait()


async def test_a_fault_of_the_app_at_its_end_does_not_cut_the_stream() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Streaming()(scope, receive, send)
        finally:
            raise RuntimeError("clean-up failed")

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        await call.wait()


async def test_the_task_of_the_server_is_as_it_was_afterwards() -> None:
    """The cancel was ours, and is taken back."""
    release = Release(Streaming(), **AT_ONCE)
    after: list[int] = []

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        await release.app(scope, receive, send)
        task = asyncio.current_task()
        assert task is not None
        after.append(task.cancelling())
        await asyncio.sleep(0)

    async with AsgiDriver(server, http_scope()) as call:
        await calm()
        await release.client.begin()
        await call.wait()
    assert after == [0]


@pytest.mark.parametrize("how", ["resume", "deadline"])
async def test_one_that_takes_longer_to_clean_up_than_the_drain_is_completed(
    how: str,
) -> None:
    """Whoever ended it is gone by then; and its ticket is nobody else's."""
    may_end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if may_end.is_set():
            raise RuntimeError("the next request fails")
        try:
            await Streaming()(scope, receive, send)
        finally:
            await may_end.wait()

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin(timeoutMs=100)
        await asyncio.sleep(0.02)
        if how == "deadline":
            assert await drained(release) == "failed"
        await release.client.resume()
        await calm()
        gc.collect()
        may_end.set()
        assert await call.receive_output() == FINAL
        await call.wait()
    async with release.call() as call:
        with pytest.raises(RuntimeError):
            await call.wait()


async def test_a_drain_that_the_app_begins_by_itself_ends_its_streams() -> None:
    """Also where no lifespan and no control request came by before."""
    release = Release(Streaming(), **AT_ONCE)
    async with open_stream(release) as call:
        await release.drain.begin(begin_request())
        assert await call.receive_output() == FINAL


async def test_a_server_that_cancels_too_is_obeyed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Streaming()(scope, receive, send)
        finally:
            await asyncio.Event().wait()

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        await asyncio.sleep(0.02)
        await call.cancel()
        assert await call.receive_nothing()
    assert await drained(release) == "drained"


@pytest.mark.parametrize("in_a_task", [True, False])
async def test_a_timeout_around_the_app_finds_its_own_cancel_alone(
    in_a_task: bool,
) -> None:
    """What follows in that task is not reached by ours, then or later."""
    stream = Streaming()
    did: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            try:
                await stream(scope, receive, send)
            finally:
                await asyncio.sleep(0.3)

        await (asyncio.wait([asyncio.create_task(write())]) if in_a_task else write())

    release = Release(app, **AT_ONCE)

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(0.1):
                await release.app(scope, receive, send)
        except TimeoutError:
            did.append("timed out")
        await asyncio.sleep(0.3)
        did.append("went on")

    async with AsgiDriver(server, http_scope()) as call:
        await calm()
        await release.client.begin()
        await call.wait()
    assert did == ["timed out", "went on"]


async def _never() -> Message:
    raise AssertionError("it does not listen")


class InTasks:
    """An app that answers in a task of its own, and waits for that and others.

    A cancel of its call leaves them all running.
    """

    def __init__(self, *, waits_for_ever: bool = False, shared: Any = None) -> None:
        self.waits_for_ever = waits_for_ever
        self.shared = shared
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.log: list[str] = []

    async def write(self, send: Send) -> None:
        try:
            await Streaming()({}, _never, send)
        finally:
            await self.may_end.wait()
            self.log.append("writer ended")

    async def listen(self, receive: Receive) -> None:
        try:
            await receive()
        finally:
            self.log.append("listener ended")

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            await send(message)

        shared = [self.shared] if self.shared else []
        tasks = [
            asyncio.create_task(self.write(wrapped)),
            asyncio.create_task(self.listen(receive)),
        ]
        await asyncio.wait([*tasks, *shared], return_when=asyncio.FIRST_COMPLETED)
        if self.waits_for_ever:
            try:
                await asyncio.Event().wait()
            finally:
                self.log.append("call ended")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_task_that_sends_for_the_call_is_ended_and_not_left_behind() -> None:
    app = InTasks()
    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        await call.wait()
    assert app.log == ["writer ended", "listener ended"]
    assert await drained(release) == "drained"


async def test_a_call_that_goes_on_without_its_task_is_cancelled_after_it() -> None:
    app = InTasks(waits_for_ever=True)
    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        await call.wait()
    assert app.log[:2] == ["writer ended", "call ended"]


async def test_a_task_that_takes_its_time_to_end_is_still_counted() -> None:
    app = InTasks(waits_for_ever=True)
    app.may_end.clear()
    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_nothing(0.4)
        assert (await release.client.report())["inFlight"]["http"] == 1
        app.may_end.set()
        assert await call.receive_output() == FINAL
    assert await drained(release) == "drained"


async def test_a_task_that_others_share_is_left_alone() -> None:
    """It does not send this response."""
    shared = asyncio.create_task(asyncio.Event().wait())
    release = Release(InTasks(shared=shared), **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL
        await call.wait()
    assert not shared.done()
    shared.cancel()


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ([(b"content-type", b"text/plain")], {}),
        ([], {}),
        ([*EVENTS, (b"Content-Length", b"100")], {}),
        (EVENTS, {"event_stream_policy": "finish"}),
        (EVENTS, {"policies": {"/": "finish"}}),
        (EVENTS, {"policy": lambda scope: Policy("finish")}),
    ],
)
async def test_a_stream_that_may_finish_is_waited_for(
    headers: Any, settings: dict[str, Any]
) -> None:
    """S2: also one whose end would break a promised length."""
    release = Release(Streaming(headers), **AT_ONCE, **settings)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_nothing(0.05)
        assert (await release.client.report())["inFlight"]["http"] == 1


@pytest.mark.parametrize(
    "settings", [{"response_policy": "end"}, {"policies": {"/": "end"}}]
)
async def test_any_stream_can_be_ended(settings: dict[str, Any]) -> None:
    release = Release(Streaming([]), **AT_ONCE, **settings)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output() == FINAL


async def test_an_app_that_lost_its_cancel_is_cancelled_again() -> None:
    """On Python 3.11 `wait_for` may return its result instead of raising it."""
    cancels = 0

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal cancels
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": EVENTS})
        while True:
            await send(chunk(b"data: x\n\n"))
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                cancels += 1
                if cancels == 2:
                    raise

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        await call.wait(3)
    assert cancels == 2
    assert await drained(release) == "drained"


async def test_an_app_that_cleans_up_for_long_is_not_cancelled_again() -> None:
    cancels = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal cancels
        try:
            await Streaming()(scope, receive, send)
        finally:
            try:
                await asyncio.sleep(1.4)
            except asyncio.CancelledError:
                cancels += 1

    release = Release(app, **AT_ONCE)
    async with open_stream(release) as call:
        await release.client.begin()
        assert await call.receive_output(2) == FINAL
    assert cancels == 0


async def test_a_response_that_has_not_started_is_waited_for() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await Streaming()(scope, receive, send)

    release = Release(app, **AT_ONCE, policies={"/": "end"})
    async with release.call() as call:
        await release.client.begin()
        assert await call.receive_nothing(0.05)
        await call.send_input({"type": "http.request"})
        assert (await call.receive_output())["type"] == "http.response.start"
        await call.receive_output()
        assert await call.receive_output() == FINAL


async def test_a_complete_response_with_work_behind_it_is_waited_for() -> None:
    """Its background task is not cut."""
    go = asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": EVENTS})
        await send(chunk(b"x", more_body=False))
        await go.wait()

    release = Release(app, **AT_ONCE)
    async with release.call() as call:
        await calm()
        await release.client.begin()
        await asyncio.sleep(0.03)
        assert not call.is_done
        go.set()
        await call.wait()
    assert await drained(release) == "drained"


async def test_one_that_ignores_its_end_is_still_counted_and_named() -> None:
    """S1: and the drain ends on time."""
    may_stop = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not may_stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await Streaming()(scope, receive, send)

    release = Release(app, **AT_ONCE)
    async with open_stream(release, "/deaf"):
        await release.client.begin(timeoutMs=300)
        assert await drained(release) == "failed"
        report = await release.client.report()
        assert [b["path"] for b in report["blockers"]] == ["/deaf"]
        may_stop.set()


async def test_a_stream_that_was_let_in_meanwhile_stays_as_long_as_it_can() -> None:
    release = Release(Streaming(), **AT_ONCE, admit=lambda scope: True)
    async with open_stream(release):
        await release.client.begin(timeoutMs=1000)
        async with open_stream(release) as late:
            assert await late.receive_nothing(0.1)
            assert await late.receive_output(1) == FINAL
            remaining = release.drain.remaining
            assert remaining is not None
            assert 0 < remaining <= 0.11


async def test_those_that_were_let_in_and_have_ended_are_forgotten() -> None:
    """A drain may last, and a session may ask often."""
    refs: list[weakref.ref[Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        refs.append(weakref.ref(scope["remembered"]))
        await (echo if scope["type"] == "websocket" else hello)(scope, receive, send)

    class Remembered:
        """Part of a scope."""

    release = Release(app, admit=lambda scope: "remembered" in scope)
    async with open_pinned(release):
        for number in range(3 * CROWD):
            make = (http_scope, websocket_scope)[number % 2]
            async with release.call(make("/", remembered=Remembered())) as call:
                await call.send_input({"type": "websocket.connect"})
        gc.collect()
        assert sum(ref() is not None for ref in refs) <= CROWD


async def test_every_stream_ends_before_the_deadline_whatever_its_grace() -> None:
    release = Release(Streaming(), stream_grace=600, close_window=600)
    async with open_stream(release) as call:
        await release.client.begin(timeoutMs=300)
        assert await call.receive_output() == FINAL
        await call.wait()
    assert await drained(release) == "drained"


# The walk


async def test_many_are_spread_and_the_loop_is_not_kept() -> None:
    """S5 in small: each has a place of its own."""
    release = Release(echo, **{**AT_ONCE, "close_window": 0.4})
    moments: list[float] = []
    loop = asyncio.get_running_loop()

    async def client(number: int) -> None:
        async with open_socket(release) as call:
            opened.release()
            await call.receive_output()
            moments.append(loop.time())

    opened = asyncio.Semaphore(0)
    number = 3 * CHUNK
    tasks = [asyncio.create_task(client(n)) for n in range(number)]
    for _ in range(number):
        await opened.acquire()
    begun = loop.time()
    await release.client.begin()
    await asyncio.gather(*tasks)
    first_half = sum(moment < begun + 0.2 for moment in moments)
    assert number * 0.3 < first_half < number * 0.7
    assert await drained(release) == "drained"


def a_run(timeout: float = 5.0) -> Run:
    request = begin_request(timeoutMs=int(timeout * 1000))
    return Run(request, 1, begun_at=1000.0, deadline=1000.0 + timeout)


def a_walker(run: Run, **settings: Any) -> Walker:
    ledger = Ledger(new_ticket=Exchange)
    return Walker(
        run, load({}, **settings), ledger, clock=ManualClock(), chance=Random(1)
    )


@pytest.mark.parametrize("starts_late", [False, True])
async def test_the_loop_is_not_kept_while_the_task_of_one_stream_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, starts_late: bool
) -> None:
    """Among those of thousands of WebSockets."""
    looked: list[int] = [0]
    turns: list[int] = []

    def counted(task: Any) -> Any:
        looked[0] += 1
        return tickets(task)

    async def turn() -> None:
        while True:
            turns.append(looked[0])
            await asyncio.sleep(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if starts_late:
            await release.drain.begun
        await Streaming()(scope, receive, send)

    monkeypatch.setattr("drainmw.walker.tickets", counted)
    release = Release(app, **AT_ONCE)
    others = [asyncio.create_task(asyncio.Event().wait()) for _ in range(500)]
    turning = asyncio.create_task(turn())
    async with release.call() as call:
        await calm()
        await release.client.begin()
        await call.wait()
    turning.cancel()
    for other in others:
        other.cancel()
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert sum(steps) >= 500
    assert max(steps) <= CHUNK


async def test_the_connections_of_another_loop_are_closed_in_it() -> None:
    """Two servers in two threads that share a drain."""
    events = Streaming()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (echo if scope["type"] == "websocket" else events)(scope, receive, send)

    release = Release(app, **AT_ONCE)
    opened = threading.Event()

    async def elsewhere() -> tuple[Message, Message]:
        async with release.call({"type": "lifespan"}) as lifespan:
            del lifespan
            async with open_socket(release) as socket, open_stream(release) as stream:
                opened.set()
                return await socket.receive_output(), await stream.receive_output()

    with ThreadPoolExecutor() as pool:
        other = pool.submit(lambda: asyncio.run(elsewhere()))
        assert await asyncio.to_thread(opened.wait, 5)
        async with open_socket(release) as socket:
            await release.client.begin()
            assert (await socket.receive_output())["type"] == "websocket.close"
        close, final = await asyncio.wrap_future(other)
    assert (close["type"], final) == ("websocket.close", FINAL)
    assert await drained(release) == "drained"


async def test_a_fault_in_one_connection_does_not_keep_the_others_open() -> None:
    class Broken(Socket):
        __slots__ = ()

        def leave(self, closer: Callable[[Socket], None]) -> bool:
            raise RuntimeError("broken")

    release = Release(echo, **AT_ONCE)
    broken = Broken()
    broken.scope = websocket_scope()
    release.drain.ledger.entered["websocket"][broken] = None
    async with open_socket(release) as call:
        await release.client.begin()
        assert (await call.receive_output())["type"] == "websocket.close"
    release.drain.ledger.release(broken)


async def test_a_loop_that_was_closed_meanwhile_is_forgotten() -> None:
    run = a_run()
    walkers = Walkers(a_walker)
    other = asyncio.new_event_loop()
    other.close()
    walkers.begin(run, [other])
    walkers.end()
    assert walkers.note() is None


async def test_a_loop_that_is_met_during_the_drain_walks_from_then_on() -> None:
    walkers = Walkers(a_walker)
    walkers.begin(a_run(), [])
    walker = walkers.note()
    assert walker is not None
    assert walkers.note() is walker
    walkers.end()
    await calm()
    assert walkers.note() is None


def test_outside_of_a_loop_nobody_walks() -> None:
    walkers = Walkers(a_walker)
    walkers.begin(a_run(), [])
    assert walkers.note() is None


async def test_the_app_finds_the_drain_in_the_state_of_its_lifespan() -> None:
    """S1: the flag, the deadline and what is left, without an import."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["drainmw"])

    release = Release(app)
    scope = {"type": "lifespan", "state": {}}
    async with release.call(scope) as call:
        await call.wait()
    assert seen == [release.drain]
    assert scope["state"] == {"drainmw": release.drain}
    assert release.drain.deadline is None
    await release.client.begin(NONCE)
    assert release.drain.deadline is not None
