"""What an agent answers, understood before anybody believes it.

A worker may run another version, or be no agent at all. What is missing or is no
count makes it unknown; what is there besides is left alone.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)

Number = Annotated[StrictInt, Field(ge=0)]
Kind = Literal["jobs", "schedules"]


class Answer(BaseModel):
    """To one of the questions."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    ask: ClassVar[str]


class Held(Answer):
    """It is held under that token."""

    ask = "hold"
    token: StrictStr


class Counted(Answer):
    """What it has, and the token of the hold under which it had that."""

    ask = "count"
    token: StrictStr | None
    counts: tuple[Number, Number]
    running: list[tuple[StrictStr, FiniteFloat, Kind]] = []
    overdue: Number | None = None
    handed_back: Number | None = Field(None, alias="handedBack")


class Settled(Answer):
    """Whether it has settled, under the hold that it was asked about."""

    ask = "settled"
    settled: StrictBool


class Released(Answer):
    """It has undone that hold, or never had it."""

    ask = "release"


class Failure(Answer):
    """It could not do what it was asked for."""

    error: StrictStr
    unavailable: StrictBool = False


A = TypeVar("A", bound=Answer)


def understood(line: bytes, kind: type[A]) -> A | Failure:
    """One line of JSON.

    Raises:
        ValueError: It is something else, and what.
    """
    try:
        return Failure.model_validate_json(line)
    except ValidationError:
        pass
    try:
        return kind.model_validate_json(line)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where or 'its answer'}: {first['msg']}") from None
