"""One bounded fetch of exported state, over loopback and nothing else; and the word
that it has arrived, on the same way.

A `Location` leaves nothing to resolve: the address is connected to as it stands
there. No proxy of the environment is used, no redirect followed, nothing
decompressed, and no more is read than the adapter takes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from importlib import import_module

import httpx

from drainmw.bodies import StateSource
from drainmw.core.envelope import Arriving, check_answer
from drainmw.errors import StateEnvelopeInvalid, StateSourceUnreachable
from drainmw.location import Location
from drainmw.text import failure_text

LAZY = "anyio._backends._asyncio"
"""What a first request imports, besides what a first client does."""
HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


@cache
def prepare() -> None:
    """Import what a fetch needs, which takes some 40 ms, the first time.

    For whoever will fetch, while no event loop waits. Where nobody has called it,
    `fetch` does, in a thread.
    """
    _client()
    with suppress(ImportError):  # it is only sooner
        import_module(LAZY)


async def fetch(source: StateSource, maximum: int) -> bytearray:
    """The body that the source answers with, whatever is in it.

    It takes as long as the source does: the caller has the deadline.

    Raises:
        StateFetchError: There is no answer, or none that may be read.
    """
    await asyncio.to_thread(prepare)
    location = source.location
    *before, last = location.addresses
    for address in before:
        try:
            return await _fetched(source, address, maximum)
        except ConnectionRefusedError:
            continue  # `localhost` is two addresses
    try:
        return await _fetched(source, last, maximum)
    except ConnectionRefusedError as exc:
        raise StateSourceUnreachable(str(exc)) from None


async def _fetched(source: StateSource, address: str, maximum: int) -> bytearray:
    location = source.location
    url = f"http://{_host(address)}:{location.port}{location.target}"
    headers = HEADERS | {
        "host": location.authority,
        "authorization": source.authorization.get_secret_value(),
    }
    async with _client() as client:
        try:
            async with client.stream("GET", url, headers=headers) as answer:
                return await _body(answer, maximum)
        except httpx.ConnectError as exc:
            raise ConnectionRefusedError(failure_text(exc)) from None
        except httpx.HTTPError as exc:
            raise StateSourceUnreachable(failure_text(exc)) from None


async def acknowledge(
    source: StateSource, url: str, protocol: str, nonce: str, status: str
) -> None:
    """Tell the source what has become of the handoff of that nonce.

    Raises:
        StateFetchError: It does not answer, or will not have it.
    """
    location = Location.read(url)
    headers = HEADERS | {
        "host": location.authority,
        "authorization": source.authorization.get_secret_value(),
    }
    told = {"protocol": protocol, "nonce": nonce, "status": status}
    target = f"http://{_host(location.addresses[0])}:{location.port}{location.target}"
    async with _client() as client:
        try:
            # Only its status is looked at; of its body nothing is read.
            async with client.stream(
                "POST", target, json=told, headers=headers
            ) as answer:
                check_answer(answer.status_code, None, 0)
        except httpx.HTTPError as exc:
            raise StateSourceUnreachable(failure_text(exc)) from None


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        verify=False,  # there is no TLS; certificates take 15 ms to read
    )


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _body(answer: httpx.Response, maximum: int) -> bytearray:
    declared = answer.headers.get("content-length", "")
    length = int(declared) if declared.isdecimal() else None
    check_answer(answer.status_code, length, maximum)
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise StateEnvelopeInvalid("the source answers in a content encoding")
    arriving = Arriving(maximum)
    async for part in answer.aiter_raw():
        arriving.add(part)
    return arriving.body
