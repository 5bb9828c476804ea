"""What comes in over the wire, read strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)

from drainmw.contract import (
    CURSOR_FORM,
    DIGEST_FORM,
    PROTOCOL,
    REVISION_FORM,
    SCHEMA_VERSION_MAXIMUM,
    STATE_PROTOCOL_FORM,
    TIMEOUT_MS_MAXIMUM,
    TIMEOUT_MS_MINIMUM,
)
from drainmw.errors import (
    DrainError,
    RequestInvalid,
    StateEnvelopeInvalid,
    StateRequestInvalid,
)
from drainmw.location import Location


def parse_json(body: bytes, invalid: type[RequestInvalid] = RequestInvalid) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no infinity.

    Raises:
        RequestInvalid: For whatever does not parse, however it does not; or
            that kind of it.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise invalid("the body must be JSON in UTF-8") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except ValueError:  # JSONDecodeError, and the limit on digits of an integer
        raise invalid("the body must be a JSON document") from None


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


def _only_true(value: object) -> bool:
    """A member that is ours: where it is anything else it is ignored."""
    return value is True


# The engine behind these patterns knows no `$` before a trailing newline.
Nonce = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_-]{43}$")]
Revision = Annotated[str, Field(strict=True, pattern=f"^{REVISION_FORM}$")]
TimeoutMs = Annotated[
    int,
    BeforeValidator(_whole_number),
    Field(ge=TIMEOUT_MS_MINIMUM, le=TIMEOUT_MS_MAXIMUM),
]
StateProtocol = Annotated[str, Field(strict=True, pattern=f"^{STATE_PROTOCOL_FORM}$")]
SchemaVersion = Annotated[
    int, BeforeValidator(_whole_number), Field(ge=1, le=SCHEMA_VERSION_MAXIMUM)
]
Epoch = Annotated[int, BeforeValidator(_whole_number), Field(ge=0)]
Cursor = Annotated[str, Field(strict=True, pattern=f"^{CURSOR_FORM}$")]
Digest = Annotated[str, Field(strict=True, pattern=f"^{DIGEST_FORM}$")]


def _authorization(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"Bearer [A-Za-z0-9_-]{43}", value):
        return value
    raise ValueError("not a bearer token")


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
    handoff: Annotated[bool, BeforeValidator(_only_true)] = False
    """Ours: what has not started may wait for the next release, which fetches it."""

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


class ResumeRequest(NonceRequest):
    """The body of a resume, which an operator may force."""

    force: Annotated[bool, Field(strict=True)] = False

    @classmethod
    def parse(cls, value: object) -> ResumeRequest:
        """Read a parsed JSON value.

        Raises:
            RequestInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value)


class ConfirmRequest(_Wire):
    """The nonce of a handoff, and what a detach of the old side has answered."""

    nonce: Nonce
    phase: Literal["detached"]
    epoch: Epoch

    @classmethod
    def parse(cls, value: object) -> ConfirmRequest:
        """Read a parsed JSON value.

        Raises:
            StateRequestInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value, StateRequestInvalid, _RIGHT_FORM_OF_STATE)


class AcknowledgeRequest(_Wire):
    """What the new side says of a handoff, by its nonce."""

    nonce: Nonce
    protocol: StateProtocol
    status: Literal["acknowledged", "discarded"]
    taker: dict[str, Any] | None = None

    @classmethod
    def parse(cls, value: object) -> AcknowledgeRequest:
        """Read a parsed JSON value.

        Raises:
            StateRequestInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value, StateRequestInvalid, _RIGHT_FORM_OF_STATE)


class OfferRequest(_Wire):
    """The members of a request for an offer of state.

    The protocol may be left out, the nonce of the handoff, and which process the
    new release is.
    """

    protocol: StateProtocol | None = None
    nonce: Nonce | None = None
    source_revision: Revision = Field(alias="sourceRevision")
    target_revision: Revision = Field(alias="targetRevision")
    taker: dict[str, Any] | None = None
    timeout_ms: TimeoutMs = Field(alias="timeoutMs")

    @classmethod
    def parse(cls, value: object) -> OfferRequest:
        """Read a parsed JSON value.

        Raises:
            StateRequestInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value, StateRequestInvalid, _RIGHT_FORM_OF_STATE)


class StateSource(_Wire):
    """Where the state is fetched, and what opens it there."""

    url: str = Field(strict=True)
    authorization: Annotated[SecretStr, BeforeValidator(_authorization)]

    @property
    def location(self) -> Location:
        """What to connect to, and what to ask for.

        Raises:
            StateSourceInvalid: It is not this host, or not clearly so.
        """
        return Location.read(self.url)


class OriginBody(_Wire):
    """Who the old side is, as its offer has it."""

    acknowledge: str = Field(strict=True)
    epoch: Epoch | None = None
    timeout_ms: TimeoutMs | None = Field(alias="timeoutMs", default=None)
    process: dict[str, Any] | None = None


class StateBeginRequest(_Wire):
    """The members of the begin of a handoff; others are ignored."""

    protocol: StateProtocol
    nonce: Nonce
    schema_version: SchemaVersion = Field(alias="schemaVersion")
    source_revision: Revision = Field(alias="sourceRevision")
    target_revision: Revision = Field(alias="targetRevision")
    source: StateSource
    origin: OriginBody | None = None
    timeout_ms: TimeoutMs = Field(alias="timeoutMs")

    @classmethod
    def parse(cls, value: object) -> StateBeginRequest:
        """Read a parsed JSON value.

        Raises:
            StateRequestInvalid: Names each member that is wrong and its right form.
            StateSourceInvalid: Its source is not this host, or not clearly so.
        """
        request = _parse(cls, value, StateRequestInvalid, _RIGHT_FORM_OF_STATE)
        Location.read(request.source.url)
        if request.origin is not None:
            Location.read(request.origin.acknowledge)
        return request

    @property
    def within(self) -> float:
        """Seconds until it fails; no more than the old side waits for its word."""
        offered = self.origin.timeout_ms if self.origin is not None else None
        return min(self.timeout_ms, offered or self.timeout_ms) / 1000

    @property
    def fingerprint(self) -> str:
        """Of everything but its time, by which a retry is known; tells no token."""
        told = self.model_dump(mode="json", by_alias=True, exclude={"timeout_ms"})
        told["source"]["authorization"] = self.source.authorization.get_secret_value()
        return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


class EnvelopeBody(_Wire):
    """The members of an envelope; others are ignored."""

    protocol: StateProtocol
    schema_version: SchemaVersion = Field(alias="schemaVersion")
    source_revision: Revision = Field(alias="sourceRevision")
    target_revision: Revision = Field(alias="targetRevision")
    cursor: Cursor
    value: Any
    digest: Digest

    @classmethod
    def parse(cls, value: object) -> EnvelopeBody:
        """Read a parsed JSON value.

        Raises:
            StateEnvelopeInvalid: Names each member that is wrong and its right form.
        """
        return _parse(cls, value, StateEnvelopeInvalid, _RIGHT_FORM_OF_STATE)


_RIGHT_FORM = {
    "protocol": f'exactly "{PROTOCOL}"',
    "nonce": "43 characters of base64url",
    "sourceRevision": "40 lower-case hex digits",
    "targetRevision": "40 lower-case hex digits",
    "timeoutMs": "a whole number from 100 to 600000",
    "force": "true or false",
}
_RIGHT_FORM_OF_STATE = _RIGHT_FORM | {
    "protocol": "1 to 128 of the characters A-Z a-z 0-9 _ . : @ / -",
    "schemaVersion": f"a whole number from 1 to {SCHEMA_VERSION_MAXIMUM}",
    "source": 'an object with a url and an authorization, "Bearer" and a token',
    "origin": "as the offer of the old side has it",
    "phase": 'exactly "detached"',
    "taker": "an object, the process of the new release as it tells it",
    "epoch": "a whole number, as the detach answered",
    "status": '"acknowledged" or "discarded"',
    "cursor": "1 to 512 of the characters A-Z a-z 0-9 _ . : @ / + - =",
    "value": "there",
    "digest": '"sha256:" and 64 lower-case hex digits',
}


def _parse(
    model: type[M],
    value: object,
    invalid: type[DrainError] = RequestInvalid,
    forms: Mapping[str, str] = _RIGHT_FORM,
) -> M:
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        wrong = dict.fromkeys(str(error["loc"][0]) for error in exc.errors())
    raise invalid("; ".join(f"{name} must be {forms[name]}" for name in wrong))
