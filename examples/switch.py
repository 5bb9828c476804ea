"""Stands in for a load balancer: one port, and whatever connects to it is sent to
the release that is in service just then.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Switch:
    """Use `switching`."""

    address: str

    def __init__(self, url: str) -> None:
        self.url = url
        """Where the next connection goes; those that there are stay."""

    async def forward(self, client: StreamReader, to_client: StreamWriter) -> None:
        to = urlsplit(self.url)
        # Whose other side is gone is cut; at the end, everybody is.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            with contextlib.closing(to_client):
                release, to_release = await asyncio.open_connection(
                    to.hostname, to.port
                )
                await asyncio.gather(
                    _copy(client, to_release), _copy(release, to_client)
                )


async def _copy(source: StreamReader, sink: StreamWriter) -> None:
    with contextlib.closing(sink):  # what was written is still sent
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def switching(url: str) -> AsyncIterator[Switch]:
    """A switch on a free port of this host."""
    switch = Switch(url)
    server = await asyncio.start_server(switch.forward, "127.0.0.1", 0)
    switch.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with contextlib.closing(server):
        yield switch
