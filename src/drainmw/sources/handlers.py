"""Handlers of keyed work by name: what both releases must know to hand work over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from drainmw.errors import HandlerUnknown, Misuse

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


class Handlers:
    """Those of one queue."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}
        self._names: dict[Handler, str] = {}

    def add(self, name: str, handler: H) -> H:
        """Register one; gives it back.

        Raises:
            Misuse: The name is taken, or it cannot be called.
        """
        if not callable(handler):
            raise Misuse(f"handler {name} must be a function, not {handler!r}")
        if name in self._by_name:
            raise Misuse(f"there is a handler registered as {name} already")
        self._by_name[name] = handler
        self._names[handler] = name
        return handler

    def under(self, name: str) -> Callable[[H], H]:
        """A decorator that registers what it is given under that name.

        Raises:
            Misuse: It is no name.
        """
        given: object = name
        if not isinstance(given, str) or not given:
            raise Misuse(
                f'a handler is registered as in @queue.handler("resize"), '
                f"not by {given!r}"
            )
        return partial(self.add, name)

    def named(self, name: str) -> Handler:
        """The one of that name.

        Raises:
            HandlerUnknown: There is none.
        """
        if name not in self._by_name:
            raise HandlerUnknown(name, sorted(self._by_name))
        return self._by_name[name]

    def found(self, handler: str | Handler) -> tuple[Handler, str | None]:
        """What is to be called, and its name if it has one.

        Raises:
            HandlerUnknown: There is none of that name.
            Misuse: It is neither a name nor can it be called.
        """
        if isinstance(handler, str):
            return self.named(handler), handler
        if not callable(handler):
            raise Misuse(f"run takes a handler or the name of one, not {handler!r}")
        try:
            return handler, self._names.get(handler)
        except TypeError:  # it has no hash, and so it is not registered
            return handler, None
