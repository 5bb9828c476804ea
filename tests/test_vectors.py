"""Every vector of the contract, against the pure core and over HTTP.

A vector's `note` tells where the reference itself coerces what it should
refuse; its `error` is then what is right.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from drainmw.bodies import BeginRequest, parse_json
from drainmw.contract import BEGIN_PATH
from drainmw.core.drain import Gate, Lifecycle, Phase, Run
from drainmw.core.ledger import Ledger
from drainmw.errors import CountersInvalid, DrainError
from drainmw.exchange import ticket_factory
from drainmw.sources.counting import whole
from drainmw.testing import ManualClock, ManualSource
from tests.rig import Release, calm, new_drain

HERE = Path(__file__).parent / "contract"
BEGINS: list[dict[str, Any]] = json.loads((HERE / "drain-begin.json").read_text())
SEQUENCES: dict[str, list[dict[str, Any]]] = json.loads(
    (HERE / "drain-sequences.json").read_text()
)
KINDS = ("http", "websocket", "jobs", "schedules")

begins = pytest.mark.parametrize("vector", BEGINS, ids=[b["name"] for b in BEGINS])
sequences = pytest.mark.parametrize("story", SEQUENCES.values(), ids=list(SEQUENCES))


def test_there_are_as_many_vectors_as_the_contract_has() -> None:
    assert (len(BEGINS), len(SEQUENCES)) == (33, 16)


# Single begins


@begins
def test_the_core_answers_a_begin_as_the_reference_did(vector: dict[str, Any]) -> None:
    lifecycle = Lifecycle()
    body = vector["body"].encode()
    if "error" in vector:
        with pytest.raises(DrainError) as refused:
            lifecycle.begin(BeginRequest.parse(parse_json(body)), now=0.0)
        assert refused.value.code == vector["error"]
        assert (lifecycle.phase, lifecycle.run) == ("serving", None)
        return
    duplicate = lifecycle.begin(BeginRequest.parse(parse_json(body)), now=0.0)
    assert {"accepted": True, "duplicate": duplicate} == vector["result"]
    assert lifecycle.run is not None
    assert lifecycle.run.request.timeout_ms == vector["timeoutMs"]


@begins
@pytest.mark.anyio
async def test_the_endpoint_answers_a_begin_as_the_reference_did(
    vector: dict[str, Any],
) -> None:
    release = Release()
    answer = await release.client.control(
        "POST",
        BEGIN_PATH,
        content=vector["body"].encode(),
        headers={"content-type": "application/json"},
    )
    if "error" in vector:
        assert (answer.status_code, answer.json()["code"]) == (400, vector["error"])
        assert release.drain.phase == "serving"
        return
    assert (answer.status_code, answer.json()) == (202, vector["result"])
    nonce = json.loads(vector["body"])["nonce"]
    status = (await release.client.status(nonce)).json()
    assert status["timeoutMs"] == vector["timeoutMs"]


# Stories against the core


class CoreStory:
    """What the owner of a lifecycle does, without a loop."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.now = 1000.0
        self.counters: dict[str, Any] = dict.fromkeys(KINDS, 0)

    def take(self, name: str, argument: Any) -> dict[str, Any] | None:
        step = getattr(self, f"on_{name}")
        answer: dict[str, Any] | None = step(argument)
        return answer

    @property
    def intake(self) -> str:
        return "open" if self.lifecycle.gate is Gate.OPEN else "refused"

    def on_counters(self, counters: dict[str, Any]) -> None:
        self.counters = counters

    def on_begin(self, body: object) -> dict[str, Any]:
        if isinstance(body, str):
            body = parse_json(body.encode())
        duplicate = self.lifecycle.begin(BeginRequest.parse(body), self.now)
        return {"accepted": True, "duplicate": duplicate}

    def on_status(self, nonce: str) -> dict[str, Any]:
        self.lifecycle.expire(self.now)
        run = self.lifecycle.find(nonce)
        counts = {kind: whole(self.counters[kind], kind) for kind in KINDS}
        return status_of(run, self.lifecycle.phase, counts)

    def on_settleRequestsOnly(self, _: object) -> None:
        """The jobs have not stopped: no verdict is read."""

    def on_settle(self, _: object) -> None:
        if self.lifecycle.phase is not Phase.DRAINING:
            return
        self.lifecycle.close()
        assert self.lifecycle.gate is Gate.CLOSED
        try:
            counts = {kind: whole(self.counters[kind], kind) for kind in KINDS}
        except CountersInvalid:
            self.lifecycle.conclude(None, self.now)
        else:
            self.lifecycle.conclude(counts, self.now)

    def on_deadline(self, _: object) -> None:
        assert self.lifecycle.run is not None
        self.now = self.lifecycle.run.deadline
        self.lifecycle.expire(self.now)

    def on_jobsFail(self, message: str) -> None:
        self.lifecycle.fail(message, self.now)


def status_of(run: Run, phase: Phase, counts: dict[str, int]) -> dict[str, Any]:
    answer = {
        **run.request.model_dump(by_alias=True, exclude={"handoff"}),
        "status": str(phase),
        "inFlight": counts,
    }
    return answer if run.failure is None else answer | {"failure": run.failure}


@sequences
def test_the_core_goes_through_a_story_as_the_reference_did(
    story: list[dict[str, Any]],
) -> None:
    core = CoreStory()
    for number, scene in enumerate(story):
        ((name, argument),) = scene["step"].items()
        if "error" in scene:
            with pytest.raises(DrainError) as refused:
                core.take(name, argument)
            assert refused.value.code == scene["error"], number
        else:
            assert core.take(name, argument) == scene.get("result"), number
        assert core.intake == scene["intake"], number


# Stories over HTTP


class StoryLedger(Ledger):
    """A ledger that tells what the story says, and is idle when it says so."""

    def __init__(self) -> None:
        gate = [0]
        super().__init__(gate, new_ticket=ticket_factory(gate))
        self.told: dict[str, Any] = {"http": 0, "websocket": 0}
        self.has_settled = False

    def counts(self) -> dict[str, int]:
        return self.told

    @property
    def is_idle(self) -> bool:
        return self.has_settled

    def settle(self) -> None:
        self.has_settled = True
        self.wake()


class HttpStory:
    """A release whose waits, counters and clock the story decides."""

    def __init__(self) -> None:
        self.ledger = StoryLedger()
        self.clock = ManualClock()
        self.source = ManualSource("engine", blocked=["settled"])
        drain = new_drain(ledger=self.ledger, clock=self.clock)
        drain.add_source(self.source)
        self.app_calls = 0
        self.release = Release(self.app, drain=drain)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.app_calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def take(self, name: str, argument: Any) -> tuple[int, dict[str, Any]] | None:
        client = self.release.client
        if name == "begin":
            text = argument if isinstance(argument, str) else json.dumps(argument)
            answer = await client.control(
                "POST",
                BEGIN_PATH,
                content=text.encode(),
                headers={"content-type": "application/json"},
            )
            return answer.status_code, answer.json()
        if name == "status":
            answer = await client.status(argument)
            return answer.status_code, answer.json()
        self.change(name, argument)
        await calm()
        return None

    def change(self, name: str, argument: Any) -> None:
        if name == "counters":
            self.ledger.told = {kind: argument[kind] for kind in ("http", "websocket")}
            self.source.set_counts(argument["jobs"], argument["schedules"])
        elif name == "settleRequestsOnly":
            self.ledger.settle()
        elif name == "settle":
            self.ledger.settle()
            self.source.settle()
        elif name == "deadline":
            self.clock.advance(5.0)
        elif name == "jobsFail":
            self.source.fail("settled", Exception(argument))
        else:
            raise AssertionError(f"the test does not know the step {name}")

    async def intake(self) -> str:
        """Tried with a real request; a refusal must not have touched the app."""
        before = self.app_calls
        answer = await self.release.client.get("/orders")
        reached = self.app_calls - before
        assert (answer.status_code, reached) in ((200, 1), (503, 0))
        return "open" if reached else "refused"


STATUS_OF_ERROR = {
    "RUNTIME_DRAIN_REQUEST_INVALID": 400,
    "RUNTIME_DRAIN_NOT_FOUND": 404,
    "RUNTIME_DRAIN_ALREADY_STARTED": 409,
    "RUNTIME_DRAIN_COUNTERS_INVALID": 500,
}


@sequences
@pytest.mark.anyio
async def test_the_endpoints_go_through_a_story_as_the_reference_did(
    story: list[dict[str, Any]],
) -> None:
    http = HttpStory()
    for number, scene in enumerate(story):
        ((name, argument),) = scene["step"].items()
        answer = await http.take(name, argument)
        if "error" in scene:
            assert answer is not None
            status, problem = answer
            assert problem["code"] == scene["error"], number
            assert problem["status"] == status == STATUS_OF_ERROR[scene["error"]]
        elif answer is not None:
            assert answer == (202 if name == "begin" else 200, scene["result"]), number
        assert await http.intake() == scene["intake"], number
