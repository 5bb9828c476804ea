"""Which policy a connection has: by its route, by the app's own choice, by kind."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from drainmw.core.policy import Policy, normal, of_route
from drainmw.log import logger
from drainmw.settings import Settings
from drainmw.text import failure_text, route_path, shown_path


class Policies:
    """Answers for one release, from its settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_failed = False
        """Then a traceback has been logged; one is enough for thousands."""

    def of_websocket(self, scope: Any) -> Policy:
        """Of a WebSocket."""
        own = self._settings
        return self._of(scope, own.websocket_policy, own.websocket_grace)

    def of_response(self, scope: Any, *, is_event_stream: bool) -> Policy:
        """Of a response that has started."""
        own = self._settings
        default = own.event_stream_policy if is_event_stream else own.response_policy
        return self._of(scope, default, own.stream_grace)

    def _of(self, scope: Any, default: str, grace: float) -> Policy:
        policy = (
            of_route(self._settings.policies, route_path(scope))
            or self._chosen(scope)
            or Policy(default)
        )
        return policy if policy.grace is not None else replace(policy, grace=grace)

    def _chosen(self, scope: Any) -> Policy | None:
        """What the app's own function says; one that fails has said nothing."""
        choose = self._settings.policy
        if choose is None:
            return None
        try:
            answer: object = choose(dict(scope))
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("policy must answer at once, not by a coroutine")
            return None if answer is None else normal(answer)  # type: ignore[arg-type]
        except Exception as exc:
            logger().error(
                "policy failed",
                path=shown_path(route_path(scope)),
                consequence="that of its kind is used",
                error=failure_text(exc),
                exc_info=not self._has_failed,
            )
            self._has_failed = True
            return None
