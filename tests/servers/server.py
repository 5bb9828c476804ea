"""A running server: its control endpoints, and work that is in flight in it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from websockets.sync.client import ClientConnection, connect

from tests.gate import Gate
from tests.servers.matrix import SAMPLE, Kind
from tests.servers.process import listening
from tests.servers.wire import PATIENCE as PATIENCE_OF_A_CLIENT
from tests.servers.wire import Answer, Connection

T = TypeVar("T")

BEGIN = "/.forgezero/runtime/drain/v1/begin"
STATUS = "/.forgezero/runtime/drain/v1/status"
OWN = "/.drainmw/v1"
SOURCE = "a" * 40
TARGET = "b" * 40
IDLE = {"http": 0, "websocket": 0, "jobs": 0, "schedules": 0}
COUNTED = (
    *("uploads", "sockets", "cleaned", "background"),
    *("streams", "ignored", "flooded"),
)
PAUSE = 0.005  # seconds between two looks at something that will happen
PATIENCE = 5.0  # seconds until a look gives up
LOOKS = 20  # at what must not happen, while nothing is waited for


def new_nonce() -> str:
    """43 characters of base64url."""
    return secrets.token_urlsafe(32)


class Held:
    """A GET that is in flight until the test lets it go."""

    def __init__(self, gate: Gate, answer: Future[Answer]) -> None:
        self._gate = gate
        self._answer = answer

    def let_go(self) -> None:
        self._gate.open()

    def answer(self) -> Answer:
        """Wait for it; let it go first."""
        return self._answer.result()


class Server:
    """One server process with an app behind the middleware."""

    def __init__(
        self, kind: Kind, port: int, token: str | None, log: Path, prefix: str = ""
    ) -> None:
        """`prefix` stands before every path that is asked for."""
        self.kind = kind
        self.port = port
        self.log = log
        self.token = token
        self._prefix = prefix
        self.patience = PATIENCE_OF_A_CLIENT
        self._clients = ThreadPoolExecutor(64, thread_name_prefix="client")

    def close(self) -> None:
        """Wait for the clients that `start` started."""
        self._clients.shutdown()

    # As a client of the app

    def ask(
        self, method: str, path: str, body: bytes | None = None, /, **headers: str
    ) -> Answer:
        """One request on a connection of its own."""
        with Connection(self.port, patience=self.patience) as connection:
            return connection.ask(method, self._prefix + path, body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        """One GET on a connection of its own."""
        return self.ask("GET", path, **headers)

    def connect(self) -> Connection:
        """A connection of one's own."""
        return Connection(self.port)

    def in_background(self, client: Callable[..., T], *args: Any) -> Future[T]:
        """Run a client beside the test."""
        return self._clients.submit(client, *args)

    def start(self, path: str) -> Future[Answer]:
        """Send a GET, and return once it is in flight."""
        before = self.in_flight()["http"]
        answer = self.in_background(self.get, path)
        self.until(lambda: self.in_flight()["http"] > before)
        return answer

    @contextmanager
    def held(self, path: str = "/held") -> Iterator[Held]:
        """A GET that is in flight in the app, until it is let go."""
        with Gate() as gate:
            answer = self.in_background(self.get, f"{path}?gate={gate.port}")
            gate.until_reached()
            yield Held(gate, answer)

    @contextmanager
    def websocket(self, path: str) -> Iterator[ClientConnection]:
        """An open WebSocket."""
        url = f"ws://127.0.0.1:{self.port}{self._prefix}{path}"
        with connect(url, proxy=None) as websocket:
            yield websocket

    # As its operator

    def control(
        self, method: str, path: str, content: object = None, /, **headers: str
    ) -> Answer:
        """One request that carries the token, to a full path below no prefix."""
        if self.token is not None:
            headers.setdefault("authorization", f"Bearer {self.token}")
        if content is None:
            return self.ask(method, path, **headers)
        headers.setdefault("content_type", "application/json")
        return self.ask(method, path, json.dumps(content).encode(), **headers)

    def send_begin_head(self, connection: Connection, length: int) -> None:
        """Send a begin, as far as its body, on a connection of the caller's."""
        connection.send_head(
            "POST",
            self._prefix + BEGIN,
            authorization=f"Bearer {self.token}",
            content_type="application/json",
            content_length=str(length),
        )

    def try_begin(self, nonce: str, timeout: float = 5.0) -> Answer:
        """Send a begin, whatever the answer."""
        return self.control("POST", BEGIN, begin_request(nonce, timeout))

    def begin(self, timeout: float = 5.0) -> str:
        """Begin a drain; gives its nonce."""
        nonce = new_nonce()
        answer = self.try_begin(nonce, timeout)
        assert answer.status == 202, answer
        assert answer.json() == {"accepted": True, "duplicate": False}
        return nonce

    def try_status(self, nonce: str) -> Answer:
        """Ask for the status, whatever the answer."""
        return self.control("GET", f"{STATUS}?nonce={nonce}")

    def status(self, nonce: str) -> dict[str, Any]:
        """What the status endpoint says of that drain."""
        answer = self.try_status(nonce)
        assert answer.status == 200, answer
        status: dict[str, Any] = answer.json()
        return status

    def report(self) -> dict[str, Any]:
        """What the report endpoint says."""
        answer = self.control("GET", f"{OWN}/report")
        assert answer.status == 200, answer
        report: dict[str, Any] = answer.json()
        return report

    def try_resume(self, nonce: str) -> Answer:
        """Send a resume, whatever the answer."""
        return self.control("POST", f"{OWN}/resume", {"nonce": nonce})

    def resume(self, nonce: str) -> int:
        """Serve again; gives the epoch."""
        answer = self.try_resume(nonce)
        assert answer.status == 200, answer
        assert answer.json()["phase"] == "serving"
        epoch: int = answer.json()["epoch"]
        return epoch

    def in_flight(self) -> dict[str, int]:
        """The four counters of the report."""
        counters: dict[str, int] = self.report()["inFlight"]
        return counters

    def counters(self) -> dict[str, int]:
        """The side effects that the sample app counts; only while serving."""
        counters: dict[str, int] = self.get("/counters").json()
        return dict.fromkeys(COUNTED, 0) | counters

    def written(self) -> str:
        """Its log, as far as it has been written."""
        return self.log.read_text(errors="replace")

    # Waiting

    def outcome(self, nonce: str) -> dict[str, Any]:
        """The first status that is not `draining`."""
        self.until(lambda: self.status(nonce)["status"] != "draining")
        return self.status(nonce)

    def goes_on(self, nonce: str) -> bool:
        """Whether a drain that has work waits for it, however often one looks."""
        return {self.status(nonce)["status"] for _ in range(LOOKS)} == {"draining"}

    def until(self, happened: Callable[[], object]) -> float:
        """Look until it has happened; gives the monotonic time of that look."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if happened():
                return time.monotonic()
            time.sleep(PAUSE)
        raise AssertionError(f"it did not happen: {self.report()}")

    def be_as_new(self) -> None:
        """Serve again and be idle, whatever a test left behind."""
        nonce = self.report()["nonce"]
        if nonce is not None:
            self.resume(nonce)
        if self.report()["phase"] == "cordoned":
            self.control("POST", f"{OWN}/uncordon")
        self.until(lambda: self.in_flight() == IDLE)


def begin_request(nonce: str, timeout: float = 5.0) -> dict[str, Any]:
    """The body of a begin."""
    return {
        "protocol": "forgezero-drain/v1",
        "nonce": nonce,
        "sourceRevision": SOURCE,
        "targetRevision": TARGET,
        "timeoutMs": round(timeout * 1000),
    }


CLOSE_WINDOW = 1.0  # seconds
CLOSE_TIMEOUT = 0.5  # seconds
SHORT_PATIENCE = {
    "DRAINMW_CONTROL_BODY_TIMEOUT": "0.5",
    "DRAINMW_REFUSED_BODY_TIMEOUT": "2",
    "DRAINMW_CLOSE_WINDOW": str(CLOSE_WINDOW),
    "DRAINMW_CLOSE_TIMEOUT": str(CLOSE_TIMEOUT),
}
"""Settings under which nothing that is slow on purpose takes long."""


@contextmanager
def running(
    kind: Kind,
    folder: Path,
    *,
    app: str = SAMPLE,
    options: tuple[str, ...] = (),
    token: bool = True,
    prefix: str = "",
    **environment: str,
) -> Iterator[Server]:
    """Run that server in a process of its own."""
    log = folder / "output.log"
    secret = secrets.token_urlsafe(32) if token else None
    environment = SHORT_PATIENCE | environment
    if secret is not None:
        environment["DRAINMW_TOKEN"] = secret

    def arguments(port: int) -> list[str]:
        return [*kind.arguments(port, app), *options]

    with listening(arguments, log, **environment) as port:
        server = Server(kind, port, secret, log, prefix)
        try:
            yield server
        finally:
            server.close()
