"""A pydantic model goes over whole, or not at all."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    field_validator,
)

from drainmw.core.canonical import canonical, loads
from drainmw.core.envelope import Terms
from drainmw.errors import (
    StateAdapterInvalid,
    StateEnvelopeInvalid,
    StateExportInvalid,
    StateValueInvalid,
)
from drainmw.modelstate import ModelState
from drainmw.state import (
    HOOKS,
    HookName,
    ImportContext,
    StateAdapter,
    called,
    export,
    hook_of,
    receive,
)
from tests.rig import NONCE, SOURCE, TARGET
from tests.test_state_begin import begin

pytestmark = pytest.mark.anyio


class Seen(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    at: datetime.datetime
    rooms: set[int]
    key: bytes

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def initial(self) -> str:
        return self.name[0]


class Presence(BaseModel):
    seen: dict[int, Seen]
    load: float = 0.0


@dataclass
class Chat:
    """An app that keeps presence."""

    presence: Presence
    context: ImportContext | None = None

    def take(self, presence: Presence, context: ImportContext) -> None:
        self.presence, self.context = presence, context

    async def take_later(self, presence: Presence, context: ImportContext) -> None:
        self.take(presence, context)

    def state(self, **members: Any) -> ModelState[Presence]:
        keywords: dict[str, Any] = {
            "protocol": "presence/v1",
            "schema_version": 1,
            "export": lambda: self.presence,
            "load": self.take,
        }
        return ModelState(Presence, **keywords | members)


NOW = datetime.datetime(2026, 11, 30, 12, 30, 1, 5, tzinfo=datetime.UTC)
ANN = Seen(name="ann", at=NOW, rooms={1, 2}, key=b"k")
PRESENCE = Presence(seen={7: ANN}, load=1.0)


def terms(adapter: StateAdapter) -> Terms:
    return Terms(adapter.protocol, adapter.schema_version, SOURCE, TARGET)


def as_sent(value: Any) -> Any:
    return loads(canonical(value))


async def handed_over(old: StateAdapter, new: StateAdapter) -> str:
    """Export from one and import into the other; returns the cursor."""
    out = export(old, terms(old), await old.export_state())
    asked = begin(protocol=new.protocol, schemaVersion=old.schema_version)
    value, envelope = receive(new, asked, out.body)
    await new.import_state(value, ImportContext.of(envelope, NONCE))
    return envelope.cursor


async def test_a_model_goes_over_with_all_its_types() -> None:
    old, new = Chat(PRESENCE), Chat(Presence(seen={}))
    assert await handed_over(old.state(), new.state()) == "snapshot"
    assert new.presence == PRESENCE
    assert new.context is not None
    assert new.context.cursor == "snapshot"


async def test_export_and_load_may_be_async_and_tell_a_cursor() -> None:
    async def exported() -> tuple[str, Presence]:
        return "position-5", PRESENCE

    old, new = Chat(Presence(seen={})), Chat(Presence(seen={}))
    cursor = await handed_over(
        old.state(export=exported), new.state(load=new.take_later)
    )
    assert (cursor, new.presence) == ("position-5", PRESENCE)


async def test_a_model_that_is_no_object_goes_over_as_well() -> None:
    class Names(RootModel[list[str]]):
        pass

    imported: list[list[str]] = []
    state = ModelState(
        Names,
        protocol="names/v1",
        schema_version=1,
        export=lambda: Names(["ann"]),
        load=lambda names, context: imported.append(names.root),
    )
    await handed_over(state, state)
    assert imported == [["ann"]]


async def test_an_older_model_is_lifted_as_json() -> None:
    def lift(value: Any) -> Any:
        return {"seen": value["seen"], "load": value["percent"] / 100}

    class Before(BaseModel):
        seen: dict[int, Seen]
        percent: int

    old = ModelState(
        Before,
        protocol="presence/v1",
        schema_version=1,
        export=lambda: Before(seen={7: ANN}, percent=50),
        load=lambda model, context: None,
    )
    new = Chat(Presence(seen={}))
    await handed_over(old, new.state(schema_version=2, older={1: lift}))
    assert new.presence == Presence(seen={7: ANN}, load=0.5)


def test_a_value_that_is_not_of_the_model_is_refused() -> None:
    state = Chat(PRESENCE).state()
    wrong = {"seen": {"7": {"name": "secret"}}}
    with pytest.raises(StateExportInvalid, match="ValidationError") as refused:
        export(state, terms(state), ("c-1", wrong))
    assert "secret" not in str(refused.value)


async def test_a_model_with_a_number_that_json_lacks_is_not_exported() -> None:
    state = Chat(Presence(seen={}, load=float("inf"))).state()
    with pytest.raises(StateValueInvalid):
        export(state, terms(state), await state.export_state())


async def test_a_model_is_exported_exactly_or_not_at_all() -> None:
    class Counter(BaseModel):
        number: int

    def counter(number: int) -> ModelState[Counter]:
        return ModelState(
            Counter,
            protocol="counter/v1",
            schema_version=1,
            export=lambda: Counter(number=number),
            load=lambda model, context: imported.append(model.number),
        )

    imported: list[int] = []
    for number in (0, 2**53 - 1, -(2**53) + 1):
        await handed_over(counter(number), counter(0))
    assert imported == [0, 2**53 - 1, -(2**53) + 1]
    for number in (2**53, 1_193_472_034_958_348_289, 2**64):
        with pytest.raises(StateExportInvalid, match="make them texts"):
            await handed_over(counter(number), counter(0))


@pytest.mark.parametrize(
    "members",
    [
        {"protocol": "has space"},
        {"schema_version": 0},
        {"maximum_bytes": 0},
        {"older": {3: str}},
        {"combine": "sum"},
        {"discard": True},
    ],
)
def test_a_model_is_checked_when_it_is_made(members: dict[str, Any]) -> None:
    with pytest.raises(StateAdapterInvalid):
        Chat(PRESENCE).state(**members)


class Watched(BaseModel):
    """It tells each time that it is read."""

    name: str = Field(min_length=1)
    read: ClassVar[list[str]] = []

    @field_validator("name")
    @classmethod
    def note(cls, name: str) -> str:
        cls.read.append(name)
        return name


def watched(model: Watched, imported: list[Watched]) -> ModelState[Watched]:
    return ModelState(
        Watched,
        protocol="watched/v1",
        schema_version=1,
        export=lambda: model,
        load=lambda model, context: imported.append(model),
    )


async def test_a_model_is_read_once_and_where_it_is_imported() -> None:
    """It takes too long for an event loop, and too much memory to do it in vain."""
    imported: list[Watched] = []
    old, new = (watched(Watched(name="ann"), imported) for _ in range(2))
    Watched.read.clear()
    out = export(old, terms(old), await old.export_state())
    assert Watched.read == []
    prepared, envelope = receive(new, begin(protocol=new.protocol), out.body)
    assert Watched.read == ["ann"]
    await new.import_state(prepared, ImportContext.of(envelope, NONCE))
    assert Watched.read == ["ann"]
    assert imported == [Watched(name="ann")]


async def test_a_model_that_went_wrong_is_not_imported() -> None:
    imported: list[Watched] = []
    wrong = Watched(name="ann")
    wrong.name = ""
    state = watched(wrong, imported)
    out = export(state, terms(state), await state.export_state())
    with pytest.raises(StateEnvelopeInvalid, match="refuses the value: Validation"):
        receive(state, begin(protocol=state.protocol), out.body)
    assert imported == []


async def test_what_others_make_of_an_export_is_read() -> None:
    """Such as the states of several workers, made one."""
    state = watched(Watched(name="ann"), [])
    _, value = await state.export_state()
    Watched.read.clear()
    assert state.validate({**value})
    assert Watched.read == ["ann"]


async def test_a_value_is_imported_as_json_too() -> None:
    imported: list[Watched] = []
    state = watched(Watched(name="ann"), imported)
    out = export(state, terms(state), await state.export_state())
    _, envelope = receive(state, begin(protocol=state.protocol), out.body)
    await state.import_state({"name": "bob"}, ImportContext.of(envelope, NONCE))
    assert imported == [Watched(name="bob")]


async def test_a_model_is_read_in_the_form_that_was_sent() -> None:
    state = Chat(PRESENCE).state()
    _, value = await state.export_state()
    assert state.validate(value)
    assert state.validate(as_sent(value))
    with pytest.raises(ValueError, match="seen"):
        state.validate({})


# What else it may do


@pytest.mark.parametrize("name", [hook for hook in HOOKS if hook != "prepare_import"])
def test_a_model_has_no_hook_that_it_was_not_given(name: HookName) -> None:
    assert hook_of(Chat(PRESENCE).state(), name) is None
    assert hook_of(Chat(PRESENCE).state(**{name: print}), name) is not None


@pytest.mark.parametrize("name", ["seal", "unseal", "confirm", "discard"])
@pytest.mark.parametrize("later", [False, True])
async def test_a_hook_is_what_was_given_and_may_be_async(
    name: HookName, later: bool
) -> None:
    heard: list[tuple[Any, ...]] = []

    async def hear(*told: Any) -> None:
        heard.append(told)

    given = hear if later else lambda *told: heard.append(told)
    hook = hook_of(Chat(PRESENCE).state(**{name: given}), name)
    assert hook is not None
    await called(hook, "told")
    assert heard == [("told",)]


BOB = Seen(name="bob", at=NOW, rooms=set(), key=b"")


def together(models: list[Presence]) -> Presence:
    seen = {key: seen for model in models for key, seen in model.seen.items()}
    return Presence(seen=seen, load=sum(model.load for model in models))


def with_cursor(models: list[Presence]) -> tuple[str, Presence]:
    return f"of-{len(models)}", together(models)


async def together_later(models: list[Presence]) -> Presence:
    return together(models)


@pytest.mark.parametrize(
    ("combine", "cursor"),
    [(together, "snapshot"), (with_cursor, "of-2"), (together_later, "snapshot")],
)
async def test_the_models_of_several_workers_are_made_one(
    combine: Any, cursor: str
) -> None:
    """Each comes as its worker has sent it."""
    parts = []
    for presence in (PRESENCE, Presence(seen={8: BOB}, load=0.5)):
        of, value = await Chat(presence).state().export_state()
        parts.append((of, as_sent(value)))
    state = Chat(PRESENCE).state(combine=combine)
    hook = hook_of(state, "combine")
    assert hook is not None
    exported = await called(hook, parts)
    assert exported[0] == cursor
    assert state.validate(as_sent(exported[1]))
    whole = Presence.model_validate_json(canonical(exported[1]))
    assert whole == Presence(seen={7: ANN, 8: BOB}, load=1.5)
