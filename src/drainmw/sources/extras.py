"""The engines, each an extra: an import that fails says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of what that extra of drainmw installs.

    Raises:
        ModuleNotFoundError: It is not installed here.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            f"{exc.msg}; it comes with pip install 'drainmw[{name}]'",
            name=exc.name,
            path=exc.path,
        ) from None
