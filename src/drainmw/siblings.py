"""The other workers of a release, as one asks them about its state.

Each listens on a socket in the directory of their group, which only their owner
can enter, and is asked by HTTP. Who gives no answer is named; nobody's silence
is taken for a state that is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from drainmw.errors import DrainError, GroupError, StateAdapterNotFound
from drainmw.record import ReleaseRecord
from drainmw.sources.holds import together
from drainmw.text import failure_text

PART_PATH = "/sibling/part"
SEAL_PATH = "/sibling/seal"
UNSEAL_PATH = "/sibling/unseal"
IMPORT_PATH = "/sibling/import"
SETTLE_PATH = "/sibling/settle"

COMES_UP = 1.0  # seconds in which a worker that has joined can be asked
PAUSE = 0.02


class SiblingFailed(DrainError):
    """Raised when another worker could not do what it was asked; in its words."""

    code = "RUNTIME_GROUP_WORKER_FAILED"


class _NotReached(Exception):
    """Raised where a worker was not asked at all."""


class Siblings:
    """The other workers, whichever they are now."""

    def __init__(self, record: Callable[[], ReleaseRecord]) -> None:
        self._record = record

    @property
    def record(self) -> ReleaseRecord:
        """What all of them share."""
        return self._record()

    @property
    def count(self) -> int:
        """How many workers live, this one among them."""
        return len(self.record.members())

    async def ask(
        self,
        pid: int,
        path: str,
        *,
        within: float,
        params: Mapping[str, Any] | None = None,
        content: bytes = b"",
    ) -> bytes:
        """What a worker answers.

        Raises:
            SiblingFailed: It could not do that.
            GroupError: It gives no answer.
        """
        try:
            async with asyncio.timeout(within):
                answer = await self._asked(
                    pid, "POST", path, params=params, content=content
                )
        except TimeoutError:
            raise GroupError(f"worker {pid} gave no answer in {within:.3g} s") from None
        except _NotReached as exc:
            raise GroupError(str(exc)) from None
        if answer.is_success:
            return answer.content
        raise SiblingFailed(_detail(answer))

    async def ask_all(
        self,
        path: str,
        *,
        within: float,
        params: Mapping[str, Any] | None = None,
    ) -> dict[int, bytes]:
        """What every other live worker answers; the first failure counts for all.

        Raises:
            SiblingFailed: One could not do that.
            GroupError: One gives no answer.
        """
        pids = list(self.record.addresses())
        answers = await together(
            *(self.ask(pid, path, within=within, params=params) for pid in pids)
        )
        return dict(zip(pids, answers, strict=True))

    async def tell_all(
        self, path: str, *, within: float, params: Mapping[str, Any]
    ) -> None:
        """Tell every other live worker, also where one of them gives no answer."""
        told = [
            self.ask(pid, path, within=within, params=params)
            for pid in self.record.addresses()
        ]
        await asyncio.gather(*told, return_exceptions=True)

    async def forward(
        self, method: str, target: str, content: bytes, within: float
    ) -> httpx.Response:
        """Let one of the workers answer, for who is none of them.

        Where one breaks off another is asked for what changes nothing. What may
        have been done by halves is not repeated in silence: whoever ended has
        taken its state along.

        Raises:
            StateAdapterNotFound: None of them has any state.
            GroupError: There is none, or none that answers.
        """
        pids = list(self.record.addresses())
        if not pids:
            raise GroupError("no worker has come up yet")
        headers = {"content-type": "application/json"} if content else {}
        try:
            async with asyncio.timeout(within):
                for pid in pids:
                    try:
                        return await self._asked(
                            pid, method, target, content=content, headers=headers
                        )
                    except _NotReached:
                        continue
                    except GroupError:
                        if method != "GET":
                            raise
        except TimeoutError:
            raise GroupError(f"no worker gave an answer in {within:.3g} s") from None
        raise StateAdapterNotFound(None, [])

    async def _asked(
        self, pid: int, method: str, target: str, **how: Any
    ) -> httpx.Response:
        loop = asyncio.get_running_loop()
        until = loop.time() + COMES_UP
        while True:
            address = self.record.addresses().get(pid)
            if address is None:
                raise _NotReached(f"worker {pid} has ended")
            try:
                return await _sent(address, method, target, **how)
            except httpx.ConnectError as exc:
                if loop.time() > until:
                    reason = failure_text(exc)
                    unreached = f"worker {pid} is not reached: {reason}"
                    raise _NotReached(unreached) from None
            except httpx.HTTPError as exc:
                raise GroupError(f"worker {pid}: {failure_text(exc)}") from None
            await asyncio.sleep(PAUSE)


async def _sent(address: Path, method: str, target: str, **how: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(address), verify=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://sibling", timeout=None, trust_env=False
    ) as client:
        return await client.request(method, target, **how)


def _detail(answer: httpx.Response) -> str:
    try:
        told = answer.json()
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return f"it answered with status {answer.status_code}"
    return str(told.get("detail") or told.get("code"))
