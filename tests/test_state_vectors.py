"""Every vector of the contract's state half, against what does no I/O.

`state-begin.json` leaves out what is held between two requests: whether one is
a retry is tried here, who answers the other is not. `state-handoff.json` is
tried from the answer of the source to the import, without the wire.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from drainmw.bodies import StateBeginRequest, parse_json
from drainmw.core.canonical import Digest, canonical, loads
from drainmw.core.envelope import Arriving, Terms, check_answer
from drainmw.errors import DrainError, StateRequestInvalid
from drainmw.state import Adapters, ImportContext, export, failure_of, receive

HERE = Path(__file__).parent / "contract"
CANONICAL = json.loads((HERE / "canonical.json").read_text())
EXPORTS = json.loads((HERE / "export.json").read_text())
BEGINS = json.loads((HERE / "state-begin.json").read_text())
# With its numbers read as an import is given them.
HANDOFFS = loads((HERE / "state-handoff.json").read_bytes())

Vector = dict[str, Any]


def test_there_are_as_many_vectors_as_the_contract_has() -> None:
    assert (len(CANONICAL), len(EXPORTS)) == (52, 22)
    assert (len(BEGINS["single"]), len(BEGINS["sequences"])) == (32, 5)
    assert len(HANDOFFS["cases"]) == 29


@pytest.mark.parametrize("vector", CANONICAL, ids=[v["json"] for v in CANONICAL])
def test_a_value_is_written_as_the_reference_wrote_it(vector: Vector) -> None:
    text = canonical(loads(vector["json"].encode()))
    assert text.decode() == vector["canonical"]
    assert str(Digest(text)) == vector["digest"]
    assert canonical(loads(text)) == text


# Exports


class Adapter:
    """An adapter whose answers the vector decides."""

    def __init__(
        self,
        protocol: str,
        schema_version: int,
        maximum_bytes: int,
        *,
        rejects: bool = False,
        fails: str | None = None,
    ) -> None:
        self.protocol = protocol
        self.schema_version = schema_version
        self.maximum_bytes = maximum_bytes
        self.rejects = rejects
        self.fails = fails
        self.imported: Vector | None = None

    def validate(self, value: Any) -> bool:
        return not self.rejects

    async def export_state(self) -> tuple[str, Any]:
        raise AssertionError("the vector says what it exports")

    async def import_state(self, value: Any, context: ImportContext) -> None:
        if self.fails is not None:
            raise Exception(self.fails)
        assert self.imported is None
        told = {
            "sourceRevision": context.source_revision,
            "targetRevision": context.target_revision,
            "cursor": context.cursor,
            "digest": context.digest,
        }
        self.imported = {"value": value, "context": told}


def exported(given: Vector) -> bytes:
    adapters = Adapters()
    adapters.add(
        Adapter(given["protocol"], given["schemaVersion"], given["maximumBytes"])
    )
    adapter = adapters.find(None)
    terms = Terms(
        adapter.protocol,
        adapter.schema_version,
        given["sourceRevision"],
        given["targetRevision"],
    )
    value = loads(given["valueJson"].encode())
    return export(adapter, terms, (given["cursor"], value)).body


@pytest.mark.parametrize("vector", EXPORTS)
def test_state_is_exported_as_the_reference_did(vector: Vector) -> None:
    if "error" in vector["result"]:
        with pytest.raises(DrainError) as refused:
            exported(vector["given"])
        assert refused.value.code == vector["result"]["error"]
        return
    body = exported(vector["given"])
    assert loads(body) == vector["result"]
    assert canonical(loads(body)) == body


# Begins


def begun(vector: Vector) -> StateBeginRequest:
    """What a new release of the adapter that the vectors name makes of it."""
    adapters = Adapters()
    adapters.add(Adapter("sessions/v1", 1, 1_048_576))
    body = json.dumps(vector["request"] | {"timeoutMs": vector["timeoutMs"]})
    request = StateBeginRequest.parse(parse_json(body.encode(), StateRequestInvalid))
    adapters.chosen(request)
    return request


@pytest.mark.parametrize(
    "vector", BEGINS["single"], ids=[v["name"] for v in BEGINS["single"]]
)
def test_a_begin_is_read_as_the_reference_did(vector: Vector) -> None:
    if "error" in vector:
        with pytest.raises(DrainError) as refused:
            begun(vector)
        assert refused.value.code == vector["error"]
        return
    request = begun(vector)
    assert vector["result"] == {"accepted": True, "duplicate": False}
    assert request.source.url == vector["request"]["source"]["url"]
    authorization = request.source.authorization.get_secret_value()
    assert authorization == vector["request"]["source"]["authorization"]
    assert request.timeout_ms == vector["timeoutMs"]


@pytest.mark.parametrize("name", BEGINS["sequences"])
def test_a_begin_is_a_retry_where_the_reference_took_it_for_one(name: str) -> None:
    first: StateBeginRequest | None = None
    for scene in BEGINS["sequences"][name]:
        if scene.get("error") == "RUNTIME_STATE_REQUEST_INVALID":
            with pytest.raises(StateRequestInvalid):
                begun(scene)
            continue
        request = begun(scene)
        if first is None:
            assert scene["result"] == {"accepted": True, "duplicate": False}
            first = request
        elif request.fingerprint == first.fingerprint:
            assert scene["result"] == {"accepted": True, "duplicate": True}
        else:
            assert scene["error"] == "RUNTIME_STATE_ALREADY_STARTED"


# Handoffs


async def handed_over(vector: Vector, adapter: Adapter) -> Vector:
    """What the status of the handoff says beyond its request."""
    request = begun({"request": HANDOFFS["request"], "timeoutMs": 5000})
    answer = vector["response"]
    length = answer["headers"].get("content-length")
    try:
        declared = None if length is None else int(length)
        check_answer(answer["status"], declared, adapter.maximum_bytes)
        arriving = Arriving(adapter.maximum_bytes)
        sent = answer["body"].encode()
        for start in range(0, len(sent), 100):
            arriving.add(sent[start : start + 100])
        value, envelope = receive(adapter, request, arriving.body)
        await adapter.import_state(value, ImportContext.of(envelope, request.nonce))
    except Exception as exc:
        return {"status": "failed", "failure": failure_of(exc)}
    told = {"cursor": envelope.cursor, "digest": envelope.digest}
    return {"status": "acknowledged"} | told


@pytest.mark.anyio
@pytest.mark.parametrize(
    "vector", HANDOFFS["cases"], ids=[v["name"] for v in HANDOFFS["cases"]]
)
async def test_an_answer_of_the_source_leads_to_what_the_reference_reported(
    vector: Vector,
) -> None:
    adapter = Adapter(
        "sessions/v1",
        1,
        vector["maximumBytes"],
        rejects=vector.get("adapterRejects", False),
        fails=vector.get("importFails"),
    )
    request = HANDOFFS["request"]
    asked = {name: request[name] for name in request if name != "source"}
    assert asked | await handed_over(vector, adapter) == vector["outcome"]
    assert adapter.imported == vector["imported"]
