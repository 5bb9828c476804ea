"""What comes in over the wire, read strictly."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from drainmw.contract import PROTOCOL, TIMEOUT_MS_MAXIMUM, TIMEOUT_MS_MINIMUM
from drainmw.errors import RequestInvalid


def parse_json(body: bytes) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no infinity.

    Raises:
        RequestInvalid: For whatever does not parse, however it does not.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise RequestInvalid("the body must be JSON in UTF-8") from None
    except RecursionError:
        raise RequestInvalid("the body is nested too deeply") from None
    except ValueError:  # JSONDecodeError, and the limit on digits of an integer
        raise RequestInvalid("the body must be a JSON document") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _whole_number(value: object) -> object:
    """Read a JSON number with an integer value: 5000, 5000.0 and 5e3 alike."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("not whole")
        return int(value)
    return value


# The engine behind these patterns knows no `$` before a trailing newline.
Nonce = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_-]{43}$")]
Revision = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{40}$")]
TimeoutMs = Annotated[
    int,
    BeforeValidator(_whole_number),
    Field(ge=TIMEOUT_MS_MINIMUM, le=TIMEOUT_MS_MAXIMUM),
]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


M = TypeVar("M", bound=_Wire)


class BeginRequest(_Wire):
    """The five members of a begin; others are ignored, as the contract says."""

    protocol: Literal["forgezero-drain/v1"]
    nonce: Nonce
    source_revision: Revision = Field(alias="sourceRevision")
    target_revision: Revision = Field(alias="targetRevision")
    timeout_ms: TimeoutMs = Field(alias="timeoutMs")

    @classmethod
    def parse(cls, value: object) -> BeginRequest:
        """Read a parsed JSON value.

        Raises:
            RequestInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value)


class NonceRequest(_Wire):
    """The body of a resume."""

    nonce: Nonce

    @classmethod
    def parse(cls, value: object) -> NonceRequest:
        """Read a parsed JSON value.

        Raises:
            RequestInvalid: Names the member and its right form.
        """
        return _parse(cls, value)


_RIGHT_FORM = {
    "protocol": f'exactly "{PROTOCOL}"',
    "nonce": "43 characters of base64url",
    "sourceRevision": "40 lower-case hex digits",
    "targetRevision": "40 lower-case hex digits",
    "timeoutMs": "a whole number from 100 to 600000",
}


def _parse(model: type[M], value: object) -> M:
    if not isinstance(value, dict):
        raise RequestInvalid("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        wrong = dict.fromkeys(str(error["loc"][0]) for error in exc.errors())
    raise RequestInvalid(
        "; ".join(f"{name} must be {_RIGHT_FORM[name]}" for name in wrong)
    )
