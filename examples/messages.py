"""Numbered messages that can be replayed, in memory or in a file that several
processes share.

A producer that fills such a file until it is interrupted:

    python examples/messages.py feed.sqlite
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import time

KEPT = 10_000  # messages, the last ones
TICK = 0.05  # seconds between two messages of the producer

SCHEMA = """
PRAGMA journal_mode = WAL;  -- readers and the writer do not wait for each other
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS message (number INTEGER PRIMARY KEY, text TEXT NOT NULL);
"""


class Messages:
    """They are numbered from 1 without a gap; only the last ones are kept."""

    def __init__(self, file: str = ":memory:") -> None:
        # Not every server runs an app in the thread that has imported it.
        self._database = sqlite3.connect(
            file, isolation_level=None, check_same_thread=False
        )
        self._database.executescript(SCHEMA)

    def append(self, text: str) -> int:
        """Keep a message; gives its number."""
        insert = "INSERT INTO message (text) VALUES (?) RETURNING number"
        [(number,)] = self._database.execute(insert, [text]).fetchall()
        delete = "DELETE FROM message WHERE number <= ?"
        self._database.execute(delete, [number - KEPT])
        return int(number)

    def after(self, number: int) -> list[tuple[int, str]]:
        """Those behind that number, with their own."""
        select = "SELECT number, text FROM message WHERE number > ? ORDER BY number"
        return self._database.execute(select, [number]).fetchall()

    def close(self) -> None:
        self._database.close()


async def tick(messages: Messages) -> None:
    """Produce messages until cancelled."""
    while True:
        messages.append(time.strftime("it is %H:%M:%S"))
        await asyncio.sleep(TICK)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(tick(Messages(sys.argv[1])))
