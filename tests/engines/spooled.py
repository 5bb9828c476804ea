"""Worker processes on a spool, started, and always ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from drainmw.sources.remote import RemoteSource
from tests.engines.journal import Journal
from tests.engines.spool import Spool
from tests.processes import Process, running


class Workers:
    """The workers of one release, and the source of all of them."""

    def __init__(
        self, queue: Path, sockets: Path, journal: Journal, expected: int = 2
    ) -> None:
        self.spool = Spool(queue)
        self.sockets = sockets
        self.source = RemoteSource("spool", "pull", sockets, expected=expected)
        self._journal = journal
        self._ends = contextlib.ExitStack()

    def start(self, *names: str, slots: int = 2) -> list[Process]:
        """Start them side by side, and wait until they work."""
        folders = (str(self.spool.folder), str(self.sockets))
        program = ("-m", "tests.engines.spool", *folders)
        started = [
            self._ends.enter_context(running(*program, name, str(slots)))
            for name in names
        ]
        for process in started:
            process.out.wait_for_text("works\n")
        return started

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        self.spool.put(self._journal.path, ids, seconds)

    def end(self) -> None:
        self._ends.close()
