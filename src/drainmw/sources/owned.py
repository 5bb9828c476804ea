"""An engine's clock that runs only where it is owned.

Held is the same as: not ours, or a drain has begun. Start the engine paused,
since it may not be this process's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from drainmw.errors import Misuse
from drainmw.flag import own_cancellation_only
from drainmw.log import logger
from drainmw.sources.base import (
    Counts,
    Intake,
    Particular,
    Running,
    WorkSource,
    check_owner,
)
from drainmw.sources.counting import running_of
from drainmw.text import failure_text, kind_of

if TYPE_CHECKING:
    from drainmw.owner import Owner

AGAIN = 0.5  # seconds until an engine that gave no answer is asked again


class Owned:
    """A clock source around one that knows nothing of ownership."""

    intake: Intake = "clock"

    def __init__(self, source: WorkSource, owner: Owner) -> None:
        """Give this to `Drain.add_source`, in the place of that source.

        Raises:
            Misuse: It is no clock that can stand by, or that is no owner.
        """
        if isinstance(source, type) or not isinstance(source, WorkSource):
            raise Misuse(
                "Owned takes a source, such as APSchedulerSource(scheduler), "
                f"not {kind_of(source)}"
            )
        if source.intake != "clock":
            raise Misuse(f"{source.name} is fed by {source.intake}, not by a clock")
        if isinstance(source, Particular) and source.unowned is not None:
            raise Misuse(f"{source.name} {source.unowned}")
        check_owner(owner, "Owned")
        self.name = source.name
        self._source = source
        self._owner = owner
        self._draining = False
        self._released = False
        """Whether the engine may be running, as far as we have told it."""
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        owner.add_client(self._follow)

    async def hold(self) -> None:
        """Hold the engine, whoever owns it."""
        self._draining = True
        await self._apply(anew=True)

    def count(self) -> Counts | Awaitable[Counts]:
        """What the engine holds."""
        return self._source.count()

    async def settled(self) -> None:
        """Return when the engine has settled."""
        await self._source.settled()

    async def release(self) -> None:
        """Let the engine go on where it is ours; else as soon as it is."""
        self._draining = False
        await self._apply()

    def running(self) -> Iterable[Running]:
        """What the engine still runs, if it can say so."""
        return running_of(self._source)

    @property
    def overdue(self) -> int | None:
        """Of the engine, if it knows."""
        return getattr(self._source, "overdue", None)

    @property
    def handed_back(self) -> int | None:
        """Of the engine, if it knows."""
        return getattr(self._source, "handed_back", None)

    async def _apply(self, *, anew: bool = False) -> None:
        """Hold or release the engine, as it is right now."""
        async with self._locked():
            while (released := self._may_run) is not self._released or anew:
                anew = False
                if released:
                    await self._source.release()
                else:
                    await self._source.hold()
                self._released = released

    @property
    def _may_run(self) -> bool:
        return self._owner.is_mine and not self._draining

    def _locked(self) -> asyncio.Lock:
        """The lock of the running loop: another one's has been closed."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock

    async def _follow(self) -> None:
        """Hold it while it is another's, release it while it is ours."""
        anew = True
        while True:
            mine = self._owner.is_mine
            try:
                with own_cancellation_only():
                    await self._apply(anew=anew)
                anew = False
            except Exception as exc:
                error = failure_text(exc)
                logger().warning("source failed", source=self.name, error=error)
                await asyncio.sleep(AGAIN)
                continue
            await (self._owner.lost if mine else self._owner.gained)
