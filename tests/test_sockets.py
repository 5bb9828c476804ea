"""A WebSocket's two ends: what passes, and how it is closed from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from drainmw.errors import ConnectionClosed
from drainmw.exchange import ticket_factory
from drainmw.sockets import (
    CLOSING,
    HEARD_WITHIN,
    LEAVING,
    OPEN,
    OPENING,
    OVER,
    Socket,
)
from tests.rig import calm

pytestmark = pytest.mark.anyio

ACCEPT = {"type": "websocket.accept"}
TEXT = {"type": "websocket.receive", "text": "hello"}
ANSWER = {"type": "websocket.send", "text": "hello"}
OWN_CLOSE = {"type": "websocket.close", "code": 1000}
REASON = '{"retry_ms": 1500}'
DISCONNECT = {"type": "websocket.disconnect", "code": 1012, "reason": REASON}


class Server:
    """The server's side of one WebSocket, and an app's ends of it."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.refuses: set[int] = set()
        self.socket = Socket()
        self.app_receive, self.app_send = self.socket.open(self.arrived.get, self.send)
        self.leavers: list[Socket] = []

    async def send(self, message: Message) -> None:
        await self.may_send.wait()
        if message.get("code") in self.refuses:
            raise ValueError("no such code")
        self.sent.append(message)

    def leave(self) -> None:
        """Ask it to leave, and close it as a walker would."""
        self.socket.leave(self.close)

    def close(self, socket: Socket, within: float = 1.0) -> None:
        self.leavers.append(socket)
        socket.closing = asyncio.create_task(socket.send_close(1012, REASON, within))

    async def accepted(self) -> "Server":
        await self.app_send(ACCEPT)
        return self

    def waiting(self) -> asyncio.Task[Any]:
        """An app that waits for a message."""

        async def app() -> Message:
            return await self.app_receive()

        return asyncio.create_task(app())

    @property
    def closes(self) -> list[Message]:
        return [m for m in self.sent if m["type"] == "websocket.close"]


async def outcome(call: Awaitable[Any]) -> Any:
    async with asyncio.timeout(1):
        return await call


# What passes


async def test_messages_pass_as_they_are() -> None:
    server = Server()
    await server.arrived.put(TEXT)
    assert server.socket.state == OPENING
    await server.app_send(ACCEPT)
    assert server.socket.state == OPEN
    assert await server.app_receive() is TEXT
    await server.app_send(ANSWER)
    assert server.sent == [ACCEPT, ANSWER]
    assert server.sent[1] is ANSWER


async def test_a_cancelled_app_is_cancelled_in_its_wait() -> None:
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    app.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(app)


async def test_an_error_of_the_server_reaches_the_app() -> None:
    server = Server()

    async def broken() -> Message:
        raise OSError("gone")

    receive, send = server.socket.open(broken, server.send)
    await send(ACCEPT)
    with pytest.raises(OSError, match="gone"):
        await receive()


# Closing


async def test_an_idle_one_is_closed_at_once_and_its_app_told() -> None:
    """S4: the app that waits is told, though the server never says anything."""
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    assert server.socket.is_idle
    server.leave()
    assert await outcome(app) == DISCONNECT
    assert server.closes == [
        {"type": "websocket.close", "code": 1012, "reason": REASON}
    ]


async def test_the_app_goes_on_being_told() -> None:
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    server.leave()
    await outcome(app)
    for _ in range(3):
        assert await server.app_receive() == DISCONNECT


async def test_one_in_the_middle_of_a_turn_is_closed_when_it_comes_back() -> None:
    """S6: the answer still goes out."""
    server = await Server().accepted()
    await server.arrived.put(TEXT)
    await server.app_receive()
    server.leave()
    assert (server.socket.state, server.leavers) == (LEAVING, [])
    await server.app_send(ANSWER)
    assert await server.app_receive() == DISCONNECT
    await server.socket.end()
    assert [m["type"] for m in server.sent[1:]] == ["websocket.send", "websocket.close"]


async def test_one_that_never_comes_back_is_closed_whatever_it_does() -> None:
    """S8: on the wire at its grace."""
    server = await Server().accepted()
    server.leave()
    server.socket.close()
    await calm()
    assert server.closes
    assert server.socket.state == CLOSING


async def test_it_is_closed_only_once() -> None:
    server = await Server().accepted()
    for _ in range(2):
        server.leave()
        server.socket.close()
    await calm()
    assert (len(server.closes), len(server.leavers)) == (1, 1)


async def test_one_that_is_not_accepted_is_closed_once_it_is() -> None:
    """S11: accepted, then closed at the next `receive`; never a close before it."""
    server = Server()
    server.leave()
    assert server.leavers == []
    await server.app_send(ACCEPT)
    assert server.socket.state == LEAVING
    assert await server.app_receive() == DISCONNECT
    await server.socket.end()
    assert [m["type"] for m in server.sent] == ["websocket.accept", "websocket.close"]


async def test_one_that_is_accepted_too_late_is_closed_right_after_it() -> None:
    """S11: it never comes to `receive`, but its time was over."""
    server = Server()
    server.leave()
    server.socket.close()
    assert server.leavers == []
    await server.app_send(ACCEPT)
    await calm()
    assert [m["type"] for m in server.sent] == ["websocket.accept", "websocket.close"]


@pytest.mark.parametrize(
    "denial", [OWN_CLOSE, {"type": "websocket.http.response.start", "status": 403}]
)
async def test_one_that_the_app_refuses_is_over(denial: Message) -> None:
    server = Server()
    server.leave()
    await server.app_send(denial)
    server.socket.close()
    await calm()
    assert (server.socket.state, server.leavers) == (OVER, [])
    assert server.sent == [denial]


async def test_one_that_the_app_closes_meanwhile_is_not_closed_again() -> None:
    server = await Server().accepted()
    server.leave()
    await server.app_send(OWN_CLOSE)
    server.socket.close()
    await calm()
    assert server.closes == [OWN_CLOSE]


async def test_a_leave_can_be_taken_back() -> None:
    server = await Server().accepted()
    server.leave()
    server.socket.stay()
    assert server.socket.state == OPEN
    await server.arrived.put(TEXT)
    assert await server.app_receive() is TEXT
    server.socket.close()
    assert server.leavers == []


async def test_one_that_stays_is_not_watched_any_more() -> None:
    """A message costs as little as before."""
    server = await Server().accepted()
    server.socket.watch()
    await server.app_send(ANSWER)
    assert not server.socket.is_quiet
    server.socket._sent_at = float("-inf")
    server.socket.stay()
    await server.app_send(ANSWER)
    assert server.socket.is_quiet


async def test_the_app_is_told_though_the_client_never_answers_the_close() -> None:
    """S10: a server whose `send` waits for the answer does not keep the app."""
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    server.may_send.clear()
    server.leave()
    assert await outcome(app) == DISCONNECT
    closing = server.socket.closing
    assert closing is not None
    assert not closing.done()
    server.may_send.set()
    assert await outcome(closing)


async def test_a_client_that_takes_nothing_is_given_up_at_its_bound() -> None:
    """S10: the app is stuck in its own send; it is let out, and nothing is sent."""
    server = await Server().accepted()
    server.may_send.clear()
    app: asyncio.Task[Any] = asyncio.ensure_future(server.app_send(ANSWER))
    await calm()
    server.socket.leave(lambda socket: server.close(socket, within=0.05))
    server.socket.close()
    closing = server.socket.closing
    assert closing is not None
    assert await outcome(closing) is False
    with pytest.raises(asyncio.CancelledError):
        await outcome(app)
    assert server.closes == []


class Foreign:
    """A `send` as of a server that is not written in Python: no call of it is seen."""

    def __init__(self, send: Callable[[Message], Awaitable[None]]) -> None:
        self._send = send

    def __call__(self, message: Message) -> "asyncio.Future[None]":
        return asyncio.ensure_future(self._send(message))


async def test_a_client_that_takes_nothing_is_given_up_on_any_server() -> None:
    """S10: also where the send that waits cannot be looked for."""
    server = Server()
    ends = server.socket.open(server.arrived.get, Foreign(server.send))
    server.app_receive, server.app_send = ends
    await server.accepted()
    server.may_send.clear()
    app: asyncio.Task[Any] = asyncio.ensure_future(server.app_send(ANSWER))
    await calm()
    server.socket.leave(lambda socket: server.close(socket, within=0.05))
    server.socket.close()
    with pytest.raises(asyncio.CancelledError):
        await outcome(app)
    assert server.closes == []


async def test_a_code_that_the_server_refuses_is_replaced() -> None:
    server = await Server().accepted()
    server.refuses.add(1012)
    server.leave()
    server.socket.close()
    await server.socket.end()
    assert [close["code"] for close in server.closes] == [4012]


async def test_a_server_that_takes_no_close_at_all_is_left_alone() -> None:
    """It has closed already."""
    server = await Server().accepted()
    server.refuses |= {1012, 4012}
    server.leave()
    server.socket.close()
    await server.socket.end()
    assert server.closes == []


async def test_a_genuine_cancel_wins_over_our_disconnect() -> None:
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    server.may_send.clear()
    server.leave()
    app.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(app)


# The app afterwards


async def closed() -> Server:
    server = await Server().accepted()
    server.leave()
    server.socket.close()
    await calm()
    return server


@pytest.mark.parametrize("kind", ["websocket.send", "websocket.accept"])
async def test_a_later_send_ends_in_the_error_of_the_specification(kind: str) -> None:
    """S7: an `OSError`, at once in the task that was told."""
    server = await closed()
    await server.app_receive()
    with pytest.raises(ConnectionClosed) as raised:
        await server.app_send({"type": kind})
    assert isinstance(raised.value, OSError)
    assert len(server.sent) == 2


async def test_a_task_that_cannot_know_yet_sends_into_the_void_for_a_moment() -> None:
    """An error would end it before the disconnect is read; then it is an error."""
    server = await closed()
    server.socket._closed_at -= HEARD_WITHIN - 0.1
    await server.app_send(ANSWER)
    assert len(server.sent) == 2
    server.socket._closed_at -= 0.1
    with pytest.raises(ConnectionClosed):
        await server.app_send(ANSWER)


async def test_the_ends_of_an_app_are_taken_for_coroutine_functions() -> None:
    """asgiref asks before it calls a `send` from a thread."""
    server = Server()
    assert iscoroutinefunction(server.app_send)
    assert iscoroutinefunction(server.app_receive)
    assert iscoroutinefunction(ticket_factory([0])().sender)


async def test_a_later_close_of_the_app_is_ignored() -> None:
    server = await closed()
    await server.app_send(OWN_CLOSE)
    assert len(server.closes) == 1


def wrapped(inner: BaseException) -> BaseException:
    try:
        try:
            raise inner
        except BaseException as exc:
            raise RuntimeError("could not push") from exc
    except RuntimeError as exc:
        return exc


OURS: list[Callable[[], BaseException]] = [
    ConnectionClosed,
    lambda: WebSocketDisconnect(1012),
    lambda: wrapped(ConnectionClosed()),
    lambda: ExceptionGroup("x", [ConnectionClosed(), WebSocketDisconnect(1006)]),
]
NOT_OURS: list[Callable[[], BaseException]] = [
    lambda: KeyError("a fault of the app"),
    lambda: wrapped(KeyError("x")),
    lambda: ExceptionGroup("x", [ConnectionClosed(), KeyError("x")]),
    asyncio.CancelledError,
    lambda: OSError("a disk"),
]


@pytest.mark.parametrize("make", OURS)
async def test_what_our_close_made_the_app_raise_is_explained(
    make: Callable[[], BaseException],
) -> None:
    """S7: no traceback in the server's log."""
    assert (await closed()).socket.explains(make())
    assert not (await Server().accepted()).socket.explains(make())


@pytest.mark.parametrize("make", NOT_OURS)
async def test_a_fault_of_the_app_is_not_explained(
    make: Callable[[], BaseException],
) -> None:
    server = await closed()
    server.socket._interrupted = False
    assert not server.socket.explains(make())


async def test_the_call_is_not_over_before_the_close_is_sent() -> None:
    server = await Server().accepted()
    server.may_send.clear()
    server.leave()
    server.socket.close()
    end = asyncio.create_task(server.socket.end())
    await calm()
    assert not end.done()
    server.may_send.set()
    await outcome(end)
    assert (len(server.closes), server.socket.state) == (1, OVER)


# What a close that is not taken costs


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each look at all the tasks of the loop."""
    seen: list[None] = []
    all_tasks = asyncio.all_tasks

    def counted() -> Any:
        seen.append(None)
        return all_tasks()

    monkeypatch.setattr("drainmw.interrupt.asyncio.all_tasks", counted)
    return seen


async def test_sends_that_are_stuck_are_looked_for_together(looks: list[None]) -> None:
    """To look costs as much as there are tasks, thousands of times over."""
    servers = [await Server().accepted() for _ in range(20)]
    for server in servers:
        server.may_send.clear()
    apps = [asyncio.ensure_future(server.app_send(ANSWER)) for server in servers]
    await calm()
    for server in servers:
        server.leave()
        server.close(server.socket, within=0.01)
    for app in apps:
        with pytest.raises(asyncio.CancelledError):
            await outcome(app)
    assert len(looks) == 1


async def test_nobody_looks_for_sends_of_an_app_that_has_returned(
    looks: list[None],
) -> None:
    """A client that is silent is no more than that."""
    server = await Server().accepted()
    app = server.waiting()
    await calm()
    server.may_send.clear()
    server.socket.leave(lambda socket: server.close(socket, within=0.1))
    assert await outcome(app) == DISCONNECT
    await outcome(server.socket.end())
    assert server.socket.closing is not None
    assert server.socket.closing.result() is False
    assert looks == []


async def test_a_server_that_holds_on_to_a_close_holds_the_call_only_so_long() -> None:
    """S10: one that was asked to stop waiting for the client, and waits on."""
    server = Server()

    async def deaf(message: Message) -> None:
        while True:
            try:
                return await server.send(message)
            except asyncio.CancelledError:
                if message["type"] != "websocket.close":
                    raise

    server.app_receive, server.app_send = server.socket.open(server.arrived.get, deaf)
    await server.accepted()
    server.may_send.clear()
    app: asyncio.Task[Any] = asyncio.ensure_future(server.app_send(ANSWER))
    await calm()
    server.socket.leave(lambda socket: server.close(socket, within=0.05))
    server.socket.close()
    with pytest.raises(asyncio.CancelledError):
        await outcome(app)
    await outcome(server.socket.end())
    closing = server.socket.closing
    assert closing is not None
    assert not closing.done()
    server.may_send.set()
    assert await outcome(closing) is False
