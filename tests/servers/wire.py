"""HTTP/1.1 as a client sees it on one connection, which it can look at."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from types import TracebackType
from typing import Any, Self

PATIENCE = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; of equal ones the last."""
    body: bytes
    at: float
    """Monotonic seconds at its last byte."""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_refusal(self) -> bool:
        """A 503 that we sent, and no server of its own."""
        return self.status == 503 and "drainmw-refused" in self.headers

    @property
    def closes(self) -> bool:
        """Whether it says that it is the last one of its connection."""
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """One TCP connection to 127.0.0.1."""

    def __init__(self, port: int, *, patience: float = PATIENCE) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), patience)
        self._host = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it; a second time changes nothing."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def send_head(self, method: str, path: str, **headers: str) -> None:
        """Send a request without its body; `x_y` names the header `x-y`."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        self.send("\r\n".join([*lines, "\r\n"]).encode())

    def answer(self, method: str = "GET") -> Answer:
        """Read one answer."""
        response = HTTPResponse(self._socket, method=method)
        try:
            response.begin()
            body = response.read()
        finally:
            response.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, time.monotonic())

    def ask(
        self, method: str, path: str, body: bytes | None = None, /, **headers: str
    ) -> Answer:
        """Send one request and read its answer."""
        if body is not None:
            headers["content_length"] = str(len(body))
        self.send_head(method, path, **headers)
        self.send(body or b"")
        return self.answer(method)

    def head(self) -> bytes:
        """Read up to the end of one head, and nothing behind it."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.read(1)
            if not byte:
                raise AssertionError(f"the connection ended in a head: {head!r}")
            head += byte
        return head

    def read(self, most: int = 65536) -> bytes:
        """What has arrived, at least one byte; nothing at its end."""
        return self._socket.recv(most)

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the server closes it; it must not send anything else."""
        self._socket.settimeout(seconds)
        try:
            left = self._socket.recv(1)
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(PATIENCE)
        if left:
            raise AssertionError(f"more came on the connection: {left!r}")
        return True


def ask(
    port: int, method: str, path: str, body: bytes | None = None, /, **headers: str
) -> Answer:
    """One request on a connection of its own."""
    with Connection(port) as connection:
        return connection.ask(method, path, body, **headers)
