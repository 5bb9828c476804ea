"""A balancer at its smallest: one port, whose new connections go where it points."""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATIENCE = 5.0  # seconds


class Switch:
    """Forwards bytes. Use `switching`, which runs it in a thread of its own."""

    port: int

    def __init__(self, backend: int) -> None:
        self.backend = backend
        """The port that the next connection goes to."""
        self._listens = threading.Event()
        self._ended: asyncio.Event
        self._loop: asyncio.AbstractEventLoop

    async def serve(self) -> None:
        """Forward until `end` is called; what is still open then is cut."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._ended.wait()
        server.close()

    def wait_until_it_listens(self) -> None:
        assert self._listens.wait(PATIENCE), "the switch does not listen"

    def end(self) -> None:
        """May be called from any thread, once it listens."""
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _forward(self, client: StreamReader, to_client: StreamWriter) -> None:
        # Python 3.11 logs the cancellation of a handler as an error.
        with suppress(OSError, asyncio.CancelledError), _closing(to_client):
            server, to_server = await asyncio.open_connection("127.0.0.1", self.backend)
            with _closing(to_server):
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_pump(client, to_server))
                    ways.create_task(_pump(server, to_client))


async def _pump(source: StreamReader, sink: StreamWriter) -> None:
    """Pass on what comes and at last its end; one that breaks ends the other."""
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
        return
    sink.transport.abort()


@contextmanager
def _closing(writer: StreamWriter) -> Iterator[None]:
    """Close it once what was written is sent; at once if that is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


@contextmanager
def switching(backend: int) -> Iterator[Switch]:
    """A switch on a free port that points to that backend."""
    switch = Switch(backend)
    thread = threading.Thread(target=lambda: asyncio.run(switch.serve()), name="switch")
    thread.start()
    switch.wait_until_it_listens()
    try:
        yield switch
    finally:
        switch.end()
        thread.join()
