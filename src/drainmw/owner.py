"""Whether this process may run the schedules of one name, tick by tick.

An owner is a source of the clock kind: it counts the ticks that run here, and
while it is held nothing is fired. A tick is counted before it is claimed, and
the owner looks again once the claim stands; one that may not begin after all
is given back, to be fired by whoever owns next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from drainmw.core.lease import Outcome, Tick
from drainmw.core.timetable import due_ms, moment
from drainmw.errors import LeaseLost, OwnershipUnavailable
from drainmw.flag import Flag, Pulse
from drainmw.log import logger
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.feeding import Work, current
from drainmw.tenure import Client, Home, Tenure

TOLD = 5  # interrupted ticks that a report names


class Owner:
    """Who asks it before each tick fires none that another process fires.

    Made by `Drain.own`. `gained` is set while this process may fire, `lost`
    while it may not. Asking is safe from any thread and loop.
    """

    intake: Intake = "clock"

    def __init__(self, name: str, home: Home) -> None:
        self.name = name
        self.gained = Flag()
        self.lost = Flag()
        self.lost.set()
        self.trouble: str | None = None
        """Why nobody can tell whose it is, if so."""
        self.clients: list[Client] = []
        self.counts_overdue: list[Callable[[], int]] = []
        self.schedules: set[str] = set()
        """What its clocks fire, by name."""
        self.tenure = Tenure(name, home)
        self.tenure.on_turn = self.refresh
        self._home = home
        self._held = False
        self._here: dict[Tick, float] = {}
        """Being claimed, or running; since when."""
        self._claims = 0
        self._changed = Pulse()

    def __repr__(self) -> str:
        return f"<Owner {self.name}, {'mine' if self.is_mine else 'not mine'}>"

    # What a scheduler asks

    @property
    def is_mine(self) -> bool:
        """Whether this process may fire now. Asks nobody, so it is cheap."""
        return self.tenure.stands and self._may_begin

    @property
    def generation(self) -> int | None:
        """Of the lease, while this process holds it; for stores of your own."""
        return self.tenure.generation

    def tick(self, due: datetime | float, schedule: str | None = None) -> Firing:
        """Use it as `async with owner.tick(due) as mine:`, and fire if it is.

        `due` is when the tick was due, in the same words in every release: a time
        with its zone, or seconds since 1970. Ticks of one schedule are claimed in
        their order; an older one than the last is nobody's any more.
        """
        return Firing(self, schedule or self.name, due_ms(due))

    async def since(self, schedule: str, due: datetime | float) -> datetime | None:
        """The last tick of a schedule that anybody has claimed; `None` if not mine.

        A schedule that nobody knows begins after `due`.
        """
        generation, tenure = self.generation, self.tenure
        if generation is None or not self.is_mine:
            return None
        me, start = self._home.instance, due_ms(due)
        try:
            last = await self._home.call(
                lambda: tenure.transact(
                    lambda lease: lease.since(
                        me, generation, schedule, start, anew=tenure.begins_anew
                    )
                )
            )
        except (LeaseLost, OwnershipUnavailable) as exc:
            self._note(exc)
            return None
        return moment(last)

    def add_client(self, client: Client) -> None:
        """Run a coroutine beside the ownership, from its start to its end."""
        self.clients.append(client)
        self._home.start_client(client)

    # What a drain asks

    async def hold(self) -> None:
        """Fire nothing more. What is being claimed runs, or is given back."""
        self._held = True
        self.refresh()
        await self._changed.until(lambda: not self._claims)

    def count(self) -> Counts:
        """The ticks that run here."""
        return Counts(schedules=len(self._here))

    async def settled(self) -> None:
        """Return when none does."""
        await self._changed.until(lambda: not self._here)

    async def release(self) -> None:
        """Fire again, where it is ours."""
        self._held = False
        self.refresh()

    def running(self) -> list[Running]:
        """The ticks that run here, oldest first."""
        return [
            Running(f"{tick.schedule} {tick.moment.isoformat()}", since)
            for tick, since in list(self._here.items())
        ]

    @property
    def overdue(self) -> int:
        """Ticks that are due and wait, as far as it is known here."""
        return sum(count() for count in self.counts_overdue)

    # What looks after it, in the loop of the store

    async def look(self, *, may_own: bool, clocks_held: bool) -> None:
        """Get it, keep it, or give it up: whatever is right now."""
        tenure = self.tenure
        try:
            if tenure.generation is None and may_own:
                await tenure.get()
            elif tenure.generation is None:
                await tenure.settle()
            elif may_own or not clocks_held:
                await tenure.renew()
            else:
                await self.give_up()
            self.trouble = None
        except LeaseLost as exc:
            self._note(exc)
            await self._home.store.drop(self.name)
        except OwnershipUnavailable as exc:
            self._note(exc)
        self.refresh()

    async def give_up(self) -> None:
        """Let anybody have it. Ticks that run here go on.

        Raises:
            LeaseLost, OwnershipUnavailable: It is not given up.
        """
        if self.tenure.generation is None:
            return
        self.tenure.is_leaving = True
        self.refresh()
        await self.tenure.give_up()

    def restart(self) -> None:
        """Begin in a new loop; in one that is gone nobody ends what ran there."""
        self.tenure.unwritten |= dict.fromkeys(self._here, Outcome.INTERRUPTED)
        self._be_idle()

    def forget(self) -> None:
        """Be another process: nothing here is ours."""
        self.tenure.unwritten.clear()
        self._be_idle()

    def refresh(self) -> None:
        """Set the flags as it is now."""
        if self.is_mine:
            self.lost.clear()
            self.gained.set()
        else:
            self.gained.clear()
            self.lost.set()

    def warnings(self) -> Iterator[str]:
        """What an operator should know."""
        if self.trouble is not None:
            yield f"schedules of {self.name} stand still: {self.trouble}"
        for tick in self.tenure.interrupted[-TOLD:]:
            yield (
                f"tick of {tick.schedule} due {tick.moment.isoformat()} was "
                "interrupted: it may have run in part, and is not repeated"
            )

    @property
    def _may_begin(self) -> bool:
        return not self._held and self._home.may_fire()

    def _be_idle(self) -> None:
        self._here.clear()
        self._claims = 0
        self.tenure.restart()
        self.refresh()

    def _note(self, exc: LeaseLost | OwnershipUnavailable) -> None:
        if isinstance(exc, LeaseLost):
            logger().warning("schedules lost", schedules=self.name, reason=str(exc))
            self.tenure.end()
        else:
            if self.trouble != str(exc):
                logger().warning(
                    "ownership unavailable", schedules=self.name, error=str(exc)
                )
            self.trouble = str(exc)
        self.refresh()

    # Ticks

    async def _begin(self, schedule: str, due: int) -> Tick | None:
        """The tick, where it is to be fired here; then `_end` it."""
        generation = self.generation
        if generation is None or not self.is_mine:
            return None
        tick = Tick(schedule, due, generation, self._home.instance)
        if tick in self._here:
            return None
        claim = _Claim(tick)
        self._here[tick] = self._home.clock()
        begins = False
        try:
            begins = await self._home.call(lambda: self._granted(claim))
        except OwnershipUnavailable as exc:
            self._note(exc)
        except asyncio.CancelledError:
            claim.is_wanted = False
            if claim.is_granted:
                self.tenure.unwritten[tick] = Outcome.UNSTARTED
            raise
        finally:
            if not begins:
                self._here.pop(tick, None)
            self._changed.beat()
        return tick if begins else None

    async def _granted(self, claim: _Claim) -> bool:
        """Claim it, and look again; what must not begin after all is given back.

        Runs to its end in the loop of the store, also where nobody waits any more.
        """
        tick, tenure = claim.tick, self.tenure
        self._claims += 1
        try:
            claim.is_granted = await tenure.transact(lambda lease: lease.claim(tick))
            if not claim.is_granted:
                return False
            if claim.is_wanted and self._may_begin and not tenure.is_leaving:
                return True
            tenure.unwritten[tick] = Outcome.UNSTARTED
            await tenure.settle()
        except LeaseLost as exc:
            self._note(exc)
        except OwnershipUnavailable as exc:
            tenure.unwritten[tick] = Outcome.UNSTARTED  # it may stand there
            self._note(exc)
        finally:
            self._claims -= 1
            self._changed.beat()
        return False

    async def _end(self, tick: Tick, outcome: Outcome) -> None:
        """Note what became of it; what cannot be noted now is noted later."""
        self.tenure.unwritten[tick] = outcome
        try:
            await self._home.call(self.tenure.settle)
        except OwnershipUnavailable as exc:
            self._note(exc)
        finally:
            self._here.pop(tick, None)
            self._changed.beat()


@dataclass(slots=True)
class _Claim:
    tick: Tick
    is_wanted: bool = True
    """Whoever asked for it still waits."""
    is_granted: bool = False


class Firing:
    """One tick, as `Owner.tick` gives it; entered once."""

    def __init__(self, owner: Owner, schedule: str, due: int) -> None:
        self._owner = owner
        self._schedule = schedule
        self._due = due
        self._tick: Tick | None = None
        self._work = Work(owner)

    async def __aenter__(self) -> bool:
        self._tick = await self._owner._begin(self._schedule, self._due)
        if self._tick is None:
            return False
        self._token = current.set(self._work)
        return True

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """A tick that fails has ended; one that is cancelled is interrupted."""
        if self._tick is None:
            return
        with contextlib.suppress(ValueError):  # it is left in another context
            current.reset(self._token)
        self._work.over()
        cut = exc_type is not None and not issubclass(exc_type, Exception)
        outcome = Outcome.INTERRUPTED if cut else Outcome.ENDED
        await self._owner._end(self._tick, outcome)
