"""How `drainmw serve` logs; the library itself configures nothing."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from drainmw.log import NAME
from drainmw.text import without_credentials


def configure_logging() -> None:
    """Log to standard error: readable on a terminal, JSON elsewhere."""
    terminal = sys.stderr.isatty()
    renderer: Any = structlog.processors.JSONRenderer()
    if terminal:  # and never the local variables of a traceback
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=plain)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso"),
            _take_facts,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _masked,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_is_no_access)


def _is_no_access(record: logging.LogRecord) -> bool:
    """uvicorn writes each WebSocket handshake here, with its query string."""
    return '"WebSocket %s"' not in str(record.msg)


def _masked(_logger: Any, _method: str, event: Any) -> Any:
    """Whoever logs it: no credentials of a URL in a message or a traceback."""
    for name in ("event", "exception"):
        if isinstance(event.get(name), str):
            event[name] = without_credentials(event[name])
    return event


def _take_facts(_logger: Any, _method: str, event: Any) -> Any:
    """Our own records carry their facts beside the text of the message."""
    facts = getattr(event["_record"], NAME, None)
    return {**event, **facts} if isinstance(facts, dict) else event
