"""Probes, and the doors of control: no address and no header opens them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.servers.matrix import SERVERS
from tests.servers.server import (
    BEGIN,
    OWN,
    STATUS,
    Server,
    begin_request,
    new_nonce,
    running,
)

SPOOFS: tuple[dict[str, str], ...] = (
    {},
    {"x_forwarded_for": "127.0.0.1"},
    {"x_forwarded_for": "127.0.0.1, 10.0.0.1", "x_real_ip": "127.0.0.1"},
    {"forwarded": "for=127.0.0.1;host=localhost"},
    {"authorization": "Bearer " + "A" * 43},
    {"authorization": "Bearer "},
)
ENDPOINTS = (
    ("POST", BEGIN),
    ("GET", f"{STATUS}?nonce={'A' * 43}"),
    ("GET", f"{OWN}/report"),
    ("GET", f"{OWN}/metrics"),
    ("POST", f"{OWN}/cordon"),
    ("POST", f"{OWN}/uncordon"),
    ("POST", f"{OWN}/resume"),
)


def test_while_serving_both_probes_are_ours_and_say_200(server: Server) -> None:
    ready = server.get("/readyz")
    assert (ready.status, ready.json()) == (200, {"ready": True, "phase": "serving"})
    alive = server.get("/livez")
    assert (alive.status, alive.json()) == (200, {"alive": True, "phase": "serving"})
    assert server.ask("HEAD", "/readyz").status == 200


def test_at_begin_readiness_says_no_at_once_and_all_else_stays(
    server: Server,
) -> None:
    with server.held() as held:
        server.begin()
        began = time.monotonic()
        ready = server.get("/readyz")
        assert time.monotonic() - began < 0.05
        assert ready.status == 503
        assert ready.json()["code"] == "RUNTIME_NOT_READY"
        told = (ready.json()["detail"], ready.json()["phase"])
        assert told == ("draining", "draining")
        assert not ready.is_refusal
        assert server.get("/livez").status == 200
        assert server.control("GET", f"{OWN}/metrics").status == 200
        assert server.control("GET", f"{OWN}/report").status == 200
        assert server.ask("HEAD", "/readyz").status == 503
        held.let_go()
    assert held.answer().status == 200


def test_what_is_not_get_or_head_is_no_probe(server: Server) -> None:
    server.begin()
    assert server.ask("POST", "/readyz", b"").is_refusal
    assert server.ask("POST", "/livez", b"").is_refusal
    assert server.ask("OPTIONS", "/livez").is_refusal


@pytest.mark.parametrize("path", ["/livez-orders", "/livez/", "/readyz/x", "//livez"])
def test_nothing_beside_the_probes_is_exempt(server: Server, path: str) -> None:
    server.begin()
    assert server.get(path).is_refusal


@pytest.mark.parametrize(
    "path", [f"{OWN}", f"{OWN}/reports", f"{BEGIN}/x", "/.drainmw/v1/report/"]
)
def test_nothing_beside_the_control_endpoints_is_exempt(
    server: Server, path: str
) -> None:
    server.begin()
    assert server.control("GET", path).is_refusal


@pytest.mark.parametrize("headers", SPOOFS)
def test_without_the_token_no_address_and_no_header_opens_control(
    server: Server, headers: dict[str, str]
) -> None:
    for method, path in ENDPOINTS:
        answer = server.ask(method, path, **headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["code"] == "RUNTIME_CONTROL_UNAUTHORIZED"
    assert server.report()["phase"] == "serving"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://shop.example"},
        {"sec_fetch_site": "cross-site"},
        {"origin": "null", "content_type": "text/plain"},
    ],
)
def test_marks_of_a_browser_close_control_even_with_the_token(
    server: Server, headers: dict[str, str]
) -> None:
    answer = server.control("POST", BEGIN, begin_request(new_nonce()), **headers)
    assert answer.status == 403
    assert answer.json()["code"] == "RUNTIME_CONTROL_FORBIDDEN"
    assert server.report()["phase"] == "serving"


def test_a_wrong_method_is_a_405_that_names_the_right_ones(server: Server) -> None:
    nonce = server.begin()
    for method, path, allowed in (
        ("GET", BEGIN, "POST"),
        ("OPTIONS", BEGIN, "POST"),
        ("HEAD", BEGIN, "POST"),
        ("POST", f"{STATUS}?nonce={nonce}", "GET, HEAD"),
        ("OPTIONS", f"{OWN}/report", "GET, HEAD"),
    ):
        answer = server.control(method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
    head = server.control("HEAD", f"{STATUS}?nonce={nonce}")
    assert (head.status, head.body) == (200, b"")


def test_a_begin_that_is_not_json_by_its_type_is_a_415(server: Server) -> None:
    answer = server.control(
        "POST", BEGIN, begin_request(new_nonce()), content_type="text/plain"
    )
    assert answer.status == 415
    assert answer.json()["code"] == "RUNTIME_CONTROL_MEDIA_TYPE"
    assert server.report()["phase"] == "serving"


@pytest.fixture(scope="module")
def tokenless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of which nobody said how control is opened."""
    with running(SERVERS[0], tmp_path_factory.mktemp("tokenless"), token=False) as it:
        yield it


@pytest.mark.parametrize("headers", SPOOFS)
def test_with_no_token_configured_control_is_closed(
    tokenless: Server, headers: dict[str, str]
) -> None:
    for method, path in ENDPOINTS:
        answer = tokenless.ask(method, path, **headers)
        assert answer.status == 403
        assert answer.json()["code"] == "RUNTIME_CONTROL_FORBIDDEN"
    assert tokenless.get("/hello").status == 200


def test_with_no_token_configured_the_log_says_so_once(tokenless: Server) -> None:
    lines = tokenless.log.read_text().splitlines()
    said = [line for line in lines if "control endpoints closed" in line]
    assert len(said) == 1
    assert "DRAINMW_TOKEN" in said[0]
