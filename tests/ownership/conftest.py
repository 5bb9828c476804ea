"""A runtime directory that the releases of a test share, and their journal."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import postgres_port, redis_url, valkey_port
from tests.ownership.journal import Journal

__all__ = ["postgres_port", "redis_url", "valkey_port"]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Its path is short: that of a socket has 108 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="dr"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")
