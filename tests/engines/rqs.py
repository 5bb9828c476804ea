"""RQ's workers, each in a process of its own, as the scenario drives them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from redis import Redis
from rq import Queue

from drainmw.sources.base import Counts
from drainmw.sources.rq import RQWorkers
from drainmw.sources.rqrelease import VARIABLE
from tests.engines.journal import Journal
from tests.processes import Process, running

WORKER = "drainmw.sources.rq.DrainableWorker"


class Release:
    """The workers of one release, on a queue that all releases share."""

    def __init__(
        self, url: str, journal: Journal, release: str, expected: int = 1
    ) -> None:
        self.url = url
        self.release = release
        self.redis = Redis.from_url(url)
        self.queue = Queue("work", connection=self.redis)
        self.source = RQWorkers(self.redis, release, expected=expected)
        self._journal = journal
        self._ends = contextlib.ExitStack()

    def start(
        self, number: int, *options: str, queues: Sequence[str] = ("work",)
    ) -> list[Process]:
        """Start them side by side, and wait until they work."""
        program = ("-m", "rq.cli", "worker", "--url", self.url, *options)
        started = [
            self._ends.enter_context(
                running(
                    *(*program, "--worker-class", WORKER, *queues),
                    environment={VARIABLE: self.release},
                )
            )
            for _ in range(number)
        ]
        for process in started:
            process.out.wait_for_text("Listening on work")
        return started

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        for id in ids:
            self.queue.enqueue(
                "tests.engines.journal.work", str(self._journal.path), id, seconds
            )

    async def count(self) -> Counts:
        """As the source says."""
        answer = self.source.count()
        return answer if isinstance(answer, Counts) else await answer

    def end(self) -> None:
        self._ends.close()
        self.redis.close()
