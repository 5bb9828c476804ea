"""The state adapter of a keyed queue: what it withdrew and what it parked."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from drainmw.contract import STATE_BYTES_MAXIMUM
from drainmw.errors import Misuse
from drainmw.sources.crossing import Load
from drainmw.sources.pieces import Body, Lane
from drainmw.sources.queue import KeyedQueue
from drainmw.state import ExportPhase, ImportContext, check
from drainmw.text import kind_of

ENVELOPE = 2048  # bytes of an envelope around the work, at most

Text = Annotated[str, Field(min_length=1)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Piece(_Wire):
    id: Text
    key: str
    lane: Lane
    handler: str
    args: list[Any]
    schedule: str | None = None
    of: Text | None = None
    checkpoint: Any = None


class _Value(_Wire):
    pieces: list[_Piece]
    paused: list[str]
    ended: list[str]


class QueueState:
    """Hands the work of a queue over; give it to `Drain.add_state` in both releases.

    Both must have the queue's handlers registered. In the new release the work goes
    before what the queue has accepted there: `pause()` that until the state is
    there, where the order of a key must hold across the cut.
    """

    schema_version = 1
    phase: ExportPhase = "drained"
    exact = True

    def __init__(
        self,
        queue: KeyedQueue,
        *,
        protocol: str | None = None,
        maximum_bytes: int = STATE_BYTES_MAXIMUM,
        workers: int = 1,
    ) -> None:
        """`protocol` is `queue/` and the queue's name by default. What is too much
        for `maximum_bytes` ends in the old release, whose `workers` share them.

        Raises:
            Misuse: It is no queue.
            StateAdapterInvalid: The protocol or the maximum is not in its form.
        """
        if not isinstance(queue, KeyedQueue):
            raise Misuse(f"QueueState takes a KeyedQueue, not {kind_of(queue)}")
        self.protocol = protocol or f"queue/{queue.name}"
        self.maximum_bytes = maximum_bytes
        check(self)
        self._crossing = queue.crossing
        self._crossing.room = max(0, maximum_bytes - ENVELOPE) // workers

    def validate(self, value: Any) -> bool:
        """Whether it is work in order, no id twice; pydantic's exception is a no."""
        ids = [piece.id for piece in _Value.model_validate(value).pieces]
        return len(set(ids)) == len(ids)

    # The old release

    async def seal(self) -> None:
        """Fix what goes over: the queue takes nothing, of work in flight neither."""
        self._crossing.is_sealed = True

    async def unseal(self) -> None:
        """Lift the seal. Idempotent."""
        self._crossing.is_sealed = False

    async def export_state(self) -> tuple[str, Any]:
        """What goes over, and how much it is."""
        return _exported(self._crossing.leaving())

    def combine(self, parts: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
        """One state of several workers, one behind the other, each id once."""
        values = [value for _, value in parts]
        ended = list(dict.fromkeys(_in_turn([value["ended"] for value in values])))
        known = set(ended)
        pieces: list[Body] = []
        for piece in (piece for value in values for piece in value["pieces"]):
            ids = {piece["id"], piece.get("of", piece["id"])}
            if known.isdisjoint(ids):
                pieces.append(piece)
                known |= ids
        paused = sorted({key for value in values for key in value["paused"]})
        return _exported(Load(pieces, paused, ended))

    # The new release

    async def import_state(self, value: Any, context: ImportContext) -> None:
        """Take the work, or this worker's share of the keys.

        Raises:
            HandlerUnknown: A handler is not registered here; nothing was taken.
            IntakeRefused: This release is held itself; nothing was taken.
        """
        pieces = [piece for piece in value["pieces"] if _is_ours(piece["key"], context)]
        paused = [key for key in value["paused"] if _is_ours(key, context)]
        load = Load(pieces, paused, value["ended"])
        self._crossing.take(context.nonce, load, provisional=context.provisional)

    async def confirm(self, context: ImportContext) -> None:
        """The work is ours: it starts. Idempotent."""
        self._crossing.confirm(context.nonce)

    async def discard(self, context: ImportContext) -> None:
        """Give back what is not confirmed. Idempotent."""
        self._crossing.discard(context.nonce)


def _exported(load: Load) -> tuple[str, Any]:
    parked = sum("of" in piece for piece in load.pieces)
    cursor = f"withdrawn-{len(load.pieces) - parked}.parked-{parked}"
    value = {"pieces": load.pieces, "paused": load.paused, "ended": load.ended}
    return cursor, value


def _in_turn(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first of each, then the second: the next release may not keep all."""
    for row in zip_longest(*lists):
        yield from (id for id in row if id is not None)


def _is_ours(key: str, context: ImportContext) -> bool:
    """All of a key goes to one worker."""
    number = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    return number % context.count == context.index
