"""The logger: structlog in front of the standard logger `drainmw`.

The library configures nothing. An app that has configured structlog sees our
events through its own processors; any other sees records of the standard
logger `drainmw`, with the event and its facts as the message. Nothing is ever
printed. A traceback that shows the credentials of a URL is masked in both.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import structlog

from drainmw.text import printable, without_credentials

NAME = "drainmw"


class Masked(Exception):
    """Stands in a log for an exception that shows a secret; it says all the rest."""


def _mask(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The first processor: `exc_info` in whatever form, fit to be shown."""
    given = event.get("exc_info")
    exc = given[1] if isinstance(given, tuple) else given
    if not isinstance(exc, BaseException):
        exc = sys.exc_info()[1]
    if given and exc is not None:
        text = "".join(traceback.format_exception(exc))
        shown = without_credentials(text)
        if shown != text:
            event["exc_info"] = (Masked, Masked(shown), None)
    return event


def _as_record(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> dict[str, Any]:
    """The last processor: one line of text, and the facts as an attribute."""
    facts = dict(event)
    name = facts.pop("event")
    exc_info = facts.pop("exc_info", None)
    text = " ".join([str(name), *(f"{k}={_value(v)}" for k, v in facts.items())])
    return {
        "msg": text,
        "exc_info": exc_info,
        "extra": {NAME: {"event": name, **facts}},
    }


def _value(value: object) -> str:
    text = printable(str(value))
    return repr(text) if not text or " " in text else text


_standard: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(NAME),
    processors=[structlog.stdlib.filter_by_level, _mask, _as_record],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=False,
)


def logger() -> Any:
    """Where events go now: asked anew each time, since an app configures late."""
    if structlog.is_configured():
        own = [_mask, *structlog.get_config()["processors"]]
        return structlog.wrap_logger(None, own, logger_factory_args=(NAME,))
    return _standard
