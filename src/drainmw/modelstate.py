"""A state adapter made from a pydantic model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from drainmw.contract import STATE_BYTES_MAXIMUM
from drainmw.state import ExportPhase, ImportContext, Lift, check

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
    ) -> None:
        """`older` lifts the JSON of older versions; see `Lifts`.

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
        check(self)

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
        cursor, model = (
            exported if isinstance(exported, tuple) else (SNAPSHOT, exported)
        )
        value: object = model.model_dump(mode="json", by_alias=True, round_trip=True)
        return cursor, _Exported(value) if isinstance(value, dict) else value

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
