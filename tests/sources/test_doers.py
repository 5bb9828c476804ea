"""Who runs as a task of this loop."""

import asyncio

import pytest

from drainmw.sources.doers import doers

pytestmark = pytest.mark.anyio


class Worker:
    async def run(self, started: asyncio.Event) -> None:
        started.set()
        await asyncio.Event().wait()


class Special(Worker):
    """One of a class below."""


async def test_whose_method_is_a_task_is_found_until_it_ends() -> None:
    worker, started = Special(), asyncio.Event()
    Worker()  # which does nothing

    async def main() -> None:
        await worker.run(started)

    task = asyncio.create_task(main())
    await started.wait()
    assert doers(Worker) == doers(Special) == [worker]
    assert doers(int) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert doers(Worker) == []


def test_without_a_loop_nobody_is() -> None:
    assert doers(object) == []
