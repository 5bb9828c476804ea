"""A process that fetches, and says which imports its event loop waited for.

Its argument is the module of that loop.
"""

import asyncio
import importlib
import socket
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from drainmw.bodies import StateSource
from drainmw.fetching import fetch


class Finder(MetaPathFinder):
    """Finds nothing."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> None:
        """Tell of what the main thread imports."""
        if threading.current_thread() is threading.main_thread():
            print(fullname)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The state, in five bytes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstate")
    await writer.drain()
    writer.close()


async def main() -> None:
    """Fetch once."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = await asyncio.start_server(answer, sock=listener)
    url = f"http://127.0.0.1:{port}/"
    source = StateSource.model_validate(
        {"url": url, "authorization": f"Bearer {'t' * 43}"}
    )
    await asyncio.to_thread(len, "")  # which imports, too
    sys.meta_path.insert(0, Finder())
    print(bytes(await fetch(source, 5)))
    server.close()


if __name__ == "__main__":
    loops = importlib.import_module(sys.argv[1])
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(main())
