"""Admission against the end of a drain, in every order that threads could take.

The code under test is the product's own: the middleware's coroutine and the
ledger. Each admission, and the drain, is an actor in a greenlet of its own. A
switch is possible before every access to what they share: the gate, the spare
tickets, the pool, the dictionaries of other tickets, and the flag that wakes
the drain. Those are the steps that the interpreter lock makes atomic.

What must hold, whatever the order: once the gate is closed and `counts()` has
read zeros, no call of the app runs, and none ever starts; a call that runs is
counted; at the end nothing is counted; and the drain is never left asleep.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from greenlet import getcurrent, greenlet

from drainmw import Drain, DrainMiddleware
from drainmw.core.drain import Gate
from drainmw.core.ledger import Ledger, Ticket
from drainmw.exchange import ticket_factory
from drainmw.testing import http_scope, websocket_scope
from tests.rig import TOKEN

Choose = Callable[[list[int]], int]


class Fault(AssertionError):
    """Raised when an order is found in which the promise does not hold."""


@dataclass
class Machine:
    """Runs one step of one actor at a time; `choose` says whose."""

    main: Any = None
    current: int | None = None
    steps: list[int] = field(default_factory=list)
    """Whose step it was, from the first: the order that a fault names."""
    seen: list[list[Hashable]] = field(default_factory=list)
    """What each actor has read so far; all that its next steps depend on."""
    taken: list[int] = field(default_factory=list)
    """How many steps each actor has taken since it last forgot."""
    waits: dict[int, Callable[[], bool]] = field(default_factory=dict)

    def touch(self) -> None:
        """Let others go first, before an access to something shared."""
        if self.main is not None and self.current is not None:
            self.main.switch()

    def note(self, what: Hashable) -> None:
        if self.current is not None:
            self.seen[self.current].append(what)

    def forget(self) -> None:
        """What this actor has read matters no more, only where it stands."""
        if self.current is not None:
            self.seen[self.current] = list(_standing())
            self.taken[self.current] = 0

    def sleep(self, until: Callable[[], bool]) -> None:
        """Let nobody run this actor before that is true."""
        if self.current is not None:
            self.waits[self.current] = until
            self.touch()
            del self.waits[self.current]

    def run(
        self,
        actors: Iterable[Callable[[], None]],
        choose: Choose,
        check: Callable[[], None],
        *,
        first: Callable[[], bool] | None = None,
    ) -> None:
        """Run all to their ends; actor 0 runs alone until `first` is true."""
        self.main = getcurrent()
        greenlets = [greenlet(actor) for actor in actors]
        self.steps.clear()
        self.waits.clear()
        self.seen = [[] for _ in greenlets]
        self.taken = [0] * len(greenlets)
        try:
            while first is not None and not first():
                self._step(greenlets, 0)
            while alive := [i for i, g in enumerate(greenlets) if not g.dead]:
                runnable = [i for i in alive if self.waits.get(i, _true)()]
                if not runnable:
                    raise Fault("somebody waits to be woken and never is")
                self._step(greenlets, choose(runnable))
                check()
        except Fault as fault:
            raise Fault(f"{fault}, in the order {self.steps}") from None
        finally:
            self.main = self.current = None

    def _step(self, greenlets: list[Any], actor: int) -> None:
        self.steps.append(actor)
        self.taken[actor] += 1
        self.current = actor
        try:
            greenlets[actor].switch()
        finally:
            self.current = None


def _nobody() -> None:
    """Nobody waits to be woken."""


def _true() -> bool:
    return True


def _standing() -> Iterator[tuple[str, int]]:
    """Where the code that calls `forget` stands, and whoever called it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_qualname, frame.f_lasti
        frame = frame.f_back


# What the actors share


class WatchedGate:
    def __init__(self, machine: Machine) -> None:
        self.value = 0
        self._machine = machine

    def __getitem__(self, index: int, /) -> int:
        self._machine.touch()
        self._machine.note(self.value)
        return self.value

    def __setitem__(self, index: int, value: int, /) -> None:
        self._machine.touch()
        self._machine.note("set")
        self.value = value


class WatchedSpare(list[Ticket]):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def pop(self, *args: Any) -> Ticket:
        self._machine.touch()
        self._machine.note("a ticket" if self.size else "none")
        return super().pop(*args)

    def append(self, ticket: Ticket, /) -> None:
        self._machine.touch()
        self._machine.note("append")
        super().append(ticket)

    def __len__(self) -> int:
        self._machine.touch()
        self._machine.note(self.size)
        return self.size

    @property
    def size(self) -> int:
        return super().__len__()


class WatchedTickets(dict[Ticket, None]):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __setitem__(self, ticket: Ticket, value: None, /) -> None:
        self._machine.touch()
        self._machine.note("insert")
        super().__setitem__(ticket, value)

    def __delitem__(self, ticket: Ticket, /) -> None:
        self._machine.touch()
        self._machine.note("delete")
        super().__delitem__(ticket)

    def pop(self, ticket: Ticket, *default: Any) -> None:
        self._machine.touch()
        self._machine.note("pop")
        super().pop(ticket, *default)

    def __len__(self) -> int:
        self._machine.touch()
        self._machine.note(self.size)
        return self.size

    @property
    def size(self) -> int:
        return super().__len__()


# The actors


class Scene:
    """A release with some admissions, and a drain that begins meanwhile.

    Each admission is named by how it comes in: `fast` (an HTTP request on the
    fast path), `keeps` (one whose app keeps its `send`), `probe` (HTTP that
    does not take the fast path), `websocket`, and `admitted` (HTTP that `admit`
    lets in). With `in_flight` the first of them runs already. With `waits` the
    drain waits to be woken until nothing is in flight, as it does in life;
    without, it closes the gate and counts once, which leaves few enough orders
    to play them all.
    """

    def __init__(
        self,
        *admissions: str,
        spare: int = 0,
        waits: bool = True,
        in_flight: bool = False,
        make_ledger: type[Ledger] = Ledger,
    ) -> None:
        self.machine = Machine()
        self.gate = WatchedGate(self.machine)
        ledger = make_ledger(self.gate, new_ticket=ticket_factory(self.gate))
        self.ledger = ledger
        self.spare = WatchedSpare(self.machine)
        self.pool = WatchedTickets(self.machine)
        self.http = WatchedTickets(self.machine)
        self.websockets = WatchedTickets(self.machine)
        ledger.spare, ledger.pool = self.spare, self.pool
        ledger.entered = {"http": self.http, "websocket": self.websockets}
        drain = Drain(ledger=ledger, token=TOKEN, admit=self.admit)
        self.middleware = DrainMiddleware(self.app, drain)
        if waits:
            ledger.wake = self.wake
        else:
            ledger.wake = _nobody
        self.waits = waits
        self.admissions = admissions
        self.spares = spare
        self.in_flight = in_flight
        self.kept: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Start anew, with the same objects: the middleware has bound them."""
        self.gate.value = 0
        self.kept.clear()
        self.spare.clear()
        self.pool.clear()
        for _ in range(self.spares):
            self.spare.append(self.ledger.fresh())
        self.http.clear()
        self.websockets.clear()
        self.stirred = False
        self.running = self.started = self.refused = 0
        self.is_drained = False
        self.admitted_before = self.ledger.admitted_total

    def play(self, choose: Choose) -> None:
        """One run, in the order that `choose` decides.

        Raises:
            Fault: Names what does not hold, and the order.
        """
        self.reset()
        actors: list[Callable[[], None]] = [
            lambda kind=kind: self.admission(kind)  # type: ignore[misc]  # default
            for kind in self.admissions
        ]
        first = (lambda: self.running == 1) if self.in_flight else None
        self.machine.run([*actors, self.drain], choose, self.check, first=first)
        self.check_end()

    def admission(self, kind: str) -> None:
        make = websocket_scope if kind == "websocket" else http_scope
        path = "/readyz" if kind == "probe" else "/orders"
        scope = make(path, kind=kind)
        call: Any = self.middleware(scope, _connect, self.send)
        try:
            while call.send(None) is None:  # a turn of the loop, in which nobody acts
                pass
        except StopIteration:
            return
        raise AssertionError("a greenlet waits by switching, never by awaiting")

    async def send(self, message: Any) -> None:
        self.refused += message["type"].endswith("response.start")

    def admit(self, scope: dict[str, Any]) -> bool:
        self.machine.forget()
        return bool(scope["kind"] == "admitted")

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Runs for one step; `send` is never called."""
        self.started += 1
        self.running += 1
        self.machine.forget()
        if self.is_drained:
            raise Fault("work starts after the drain")
        if scope["kind"] == "keeps":
            self.kept.append(send)
        del send
        self.machine.touch()
        self.running -= 1

    def wake(self) -> None:
        """As `Drain` does it."""
        self.machine.forget()
        if self.ledger.is_idle:
            self.machine.touch()
            self.stirred = True
        self.machine.forget()

    def drain(self) -> None:
        """From the begin to the verdict, as `Drain` does it."""
        if not self.waits:
            self.gate[0] = Gate.CLOSED
            self.is_drained = self.ledger.is_idle
            if self.is_drained and self.running:
                raise Fault("work runs that the verdict has not seen")
            return
        self.gate[0] = Gate.DRAINING
        while True:
            self.machine.forget()
            self.wait_for_idle()
            self.machine.forget()
            self.gate[0] = Gate.CLOSED
            if not any(self.ledger.counts().values()):
                break
            self.gate[0] = Gate.DRAINING
        self.is_drained = True
        if self.running:
            raise Fault("work runs that the verdict has not seen")

    def wait_for_idle(self) -> None:
        while not self.ledger.is_idle:
            self.machine.touch()
            self.stirred = False
            self.machine.forget()
            if not self.ledger.is_idle:
                self.machine.sleep(lambda: self.stirred)
            self.machine.forget()

    # What must hold

    def counted(self) -> int:
        fast = self.pool.size - self.spare.size
        return fast + self.http.size + self.websockets.size

    def check(self) -> None:
        if self.counted() < self.running:
            raise Fault("work runs that is not counted")

    def check_end(self) -> None:
        ended = f", in the order {self.machine.steps}"
        if self.counted() or self.pool.size != self.spare.size or self.running:
            raise Fault("something is counted that has ended" + ended)
        if self.started + self.refused != len(self.admissions):
            raise Fault("work was neither admitted nor refused" + ended)
        if not self.kept and len(set(self.spare)) != self.spare.size:
            raise Fault("a ticket is spare twice" + ended)
        admitted = self.ledger.admitted_total - self.admitted_before
        if admitted != self.started:
            raise Fault("the total of admissions is wrong" + ended)

    def state(self) -> Hashable:
        """All that the future of a run depends on: tickets are all alike."""
        return (
            tuple(map(tuple, self.machine.seen)),
            tuple(self.machine.taken),
            self.gate.value,
            self.spare.size,
            self.pool.size,
            self.http.size,
            self.websockets.size,
            self.stirred,
            self.is_drained,
        )


async def _connect() -> Any:
    return {"type": "websocket.connect"}


# Every order, or many of them


def explore(scene: Scene, *, merge: bool) -> int:
    """Play every order; with `merge`, each state that can be reached but once.

    Two orders that have led to one state go on alike, so that walking on from
    it once is enough. Returns how many orders were played.
    """
    todo: list[list[int]] = [[]]
    known: set[Hashable] = set()
    played = 0
    while todo:
        order = _Order(scene, todo.pop(), todo, known if merge else None)
        scene.play(order)
        played += 1
    return played


class _Order:
    """Follows a prefix, then the first actor, and notes what else was possible."""

    def __init__(
        self,
        scene: Scene,
        prefix: list[int],
        todo: list[list[int]],
        known: set[Hashable] | None,
    ) -> None:
        self._scene = scene
        self._prefix = prefix
        self._todo = todo
        self._known = known
        self._path: list[int] = []
        self._is_new = True

    def __call__(self, runnable: list[int]) -> int:
        place = len(self._path)
        if place < len(self._prefix):
            actor = self._prefix[place]
        else:
            actor = runnable[0]
            if len(runnable) > 1 and self._is_new and self._note():
                self._todo.extend([*self._path, other] for other in runnable[1:])
        self._path.append(actor)
        return actor

    def _note(self) -> bool:
        if self._known is not None:
            state = self._scene.state()
            self._is_new = state not in self._known
            self._known.add(state)
        return self._is_new


def wander(scene: Scene, times: int, seed: int) -> None:
    """Play that many random orders; the same seed plays the same ones."""
    chance = random.Random(seed)
    for _ in range(times):
        scene.play(chance.choice)
