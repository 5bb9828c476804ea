"""A state adapter made from a pydantic model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from drainmw.contract import STATE_BYTES_MAXIMUM
from drainmw.state import ExportPhase, Hook, ImportContext, Lift, check

SNAPSHOT = "snapshot"
"""The cursor of a model that was exported without one."""

M = TypeVar("M", bound=BaseModel)
Exported: TypeAlias = "M | tuple[str, M]"


class _Exported(dict[str, Any]):
    """A model as JSON."""


class ModelState(Generic[M]):
    """The state adapter of a pydantic model.

    `export` returns the model, or a cursor and the model; `load` takes the
    model and an `ImportContext`. Both may be async. What the model leaves out of
    its JSON, such as an excluded field or a secret, does not go over.
    """

    exact = True
    """A model with an integer beyond 53 bits is not exported."""

    def __init__(
        self,
        model: type[M],
        *,
        protocol: str,
        schema_version: int,
        export: Callable[[], Exported[M] | Awaitable[Exported[M]]],
        load: Callable[[M, ImportContext], Awaitable[None] | None],
        maximum_bytes: int = STATE_BYTES_MAXIMUM,
        older: Mapping[int, Lift] | None = None,
        phase: ExportPhase = "drained",
        combine: Callable[[list[M]], Exported[M] | Awaitable[Exported[M]]]
        | None = None,
        seal: Callable[[], object] | None = None,
        unseal: Callable[[], object] | None = None,
        confirm: Callable[[ImportContext], object] | None = None,
        discard: Callable[[ImportContext], object] | None = None,
    ) -> None:
        """`older` lifts the JSON of older versions; see `Lifts`.

        `combine` makes one model of those of several workers, and may return a
        cursor, too. The others are called as `drainmw.state` says. All may be async.

        Raises:
            StateAdapterInvalid: Something of it is not in its form.
        """
        self.protocol = protocol
        self.schema_version = schema_version
        self.maximum_bytes = maximum_bytes
        self.phase = phase
        self.older = {} if older is None else older
        self._model = model
        self._export = export
        self._load = load
        self._combine = combine
        self.combine: Hook | None = combine
        self.seal = seal
        self.unseal = unseal
        self.confirm = confirm
        self.discard = discard
        check(self)
        if combine is not None:
            self.combine = self._combined

    def validate(self, value: Any) -> bool:
        """Whether the model can be made of it; pydantic's exception is a no.

        What a model was exported as is not read: that takes as long and as much
        memory as an import, and the release that imports it reads it anyway.
        """
        if not isinstance(value, _Exported):
            self._read(value)
        return True

    async def export_state(self) -> tuple[str, Any]:
        """What `export` returned, as JSON."""
        given = self._export()
        exported = await given if inspect.isawaitable(given) else given
        return _written(exported)

    def prepare_import(self, text: bytes) -> M:
        """The model made of it."""
        return self._model.model_validate_json(text)

    async def import_state(self, value: Any, context: ImportContext) -> None:
        """Give `load` the model, or the one made of a value."""
        is_made = isinstance(value, self._model)
        model = value if is_made else self._read(value)
        done = self._load(model, context)
        if inspect.isawaitable(done):
            await done

    def _read(self, value: Any) -> M:
        """As JSON, so that strict models take the texts of dates and the like."""
        return self.prepare_import(to_json(value))

    def _combined(
        self, parts: list[tuple[str, Any]]
    ) -> tuple[str, Any] | Awaitable[tuple[str, Any]]:
        """What `combine` makes of the models of all workers, as JSON."""
        assert self._combine is not None
        read = self._model.model_validate_json
        made = self._combine([read(to_json(value)) for _, value in parts])
        return _later(made) if inspect.isawaitable(made) else _written(made)


async def _later(made: Awaitable[Exported[M]]) -> tuple[str, Any]:
    return _written(await made)


def _written(made: Exported[M]) -> tuple[str, Any]:
    cursor, model = made if isinstance(made, tuple) else (SNAPSHOT, made)
    value: object = model.model_dump(mode="json", by_alias=True, round_trip=True)
    return cursor, _Exported(value) if isinstance(value, dict) else value
