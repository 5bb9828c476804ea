"""A fetch does not hold up the event loop that it runs in, and reads no more than it
needs."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from drainmw.bodies import StateSource
from drainmw.fetching import acknowledge
from tests import fetching_first

HERE = Path(__file__).parent


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_first_fetch_of_a_process_imports_nothing_in_its_event_loop(
    loop: str,
) -> None:
    """In a process of its own: in this one everything is imported by now."""
    command = [sys.executable, "-m", fetching_first.__name__, loop]
    told = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=60
    )
    assert (told.stdout, told.stderr) == ("b'state'\n", "")


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_of_the_answer_to_a_word_nothing_is_read_but_its_status(
    encoding: str,
) -> None:
    """However much the source has to say."""
    sent = 0

    async def endless(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\n" % encoding.encode()
            + b"transfer-encoding: chunked\r\n\r\n"
        )
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
                sent += 65536
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/word"
        given = {"url": url, "authorization": f"Bearer {'t' * 43}"}
        source = StateSource.model_validate(given)
        async with asyncio.timeout(5):
            await acknowledge(source, url, "rooms/v1", "n" * 43, "acknowledged")
    assert sent < 2**23
