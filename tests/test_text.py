"""What comes from outside, made fit to be shown."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.text import (
    failure_text,
    printable,
    route_path,
    shown_path,
    without_credentials,
)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "/"),
        ("/orders/1", "/orders/1"),
        ("/%1b%5d0;x%07%0afake line", "/%251b%255d0;x%2507%250afake%20line"),
        ("/\x1b]0;x\x07\nfake line", "/%1B%5D0;x%07%0Afake%20line"),
        ("/\u202egnp", "/%E2%80%AEgnp"),
        ("/\ud800", "/%3F"),
        ("/é", "/%C3%A9"),
        ("/a?b#c", "/a%3Fb%23c"),
        ("/\x9b31m", "/%C2%9B31m"),
    ],
)
def test_a_path_is_shown_percent_encoded(path: str, shown: str) -> None:
    """V1: nothing of it is executed or breaks a line."""
    assert shown_path(path) == shown


@given(st.text(max_size=300))
def test_a_shown_path_is_short_printable_ascii(path: str) -> None:
    shown = shown_path(path)
    assert len(shown) <= 128
    assert shown.isascii()
    assert shown.isprintable()
    assert " " not in shown


@given(st.text(max_size=100))
def test_printable_text_steers_no_terminal_and_breaks_no_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:secret@host refused", "redis://***@host refused"),
        ("redis://user:secret@host:6379/0", "redis://***@host:6379/0"),
        ("amqp+ssl://u:secret@h and http://v:secret@i", None),
        ("postgresql://u:se/cr#et?x@host/db", "postgresql://***@host/db"),
        ("postgresql://u:secret@w@host/db", "postgresql://***@host/db"),
        ("no secret here: a@b.example", "no secret here: a@b.example"),
        ("http://host/path", "http://host/path"),
        ("https://user@host", "https://***@host"),
        ("('redis://:secret@host', 6379)", "('redis://***@host', 6379)"),
        ("rediss://host/0?password=secret&db=1", "rediss://host/0?password=***"),
        ("sentinel://:secret@a:1;sentinel://:secret@b:2", "sentinel://***@b:2"),
        ("host=db password=secret user=u", "host=db password=*** user=u"),
        ("host=db password='my \\'secret' port=1", "host=db password=*** port=1"),
        ("{'password': 'secret', 'db': 0}", "{'password': ***, 'db': 0}"),
        ('{"PASSWORD":"my secret"}', '{"PASSWORD":***}'),
        ("Connection(password=secret,db=0)", "Connection(password=***"),
        ("password='half a secret", "password=***"),
        (
            "password authentication failed for u",
            "password authentication failed for u",
        ),
    ],
)
def test_a_password_is_masked_wherever_it_stands(text: str, masked: str | None) -> None:
    """V2: the secret is in no log, status or report."""
    shown = without_credentials(text)
    assert masked is None or shown == masked
    assert "secret" not in shown or "no secret here" in shown


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (Exception("BROKER_GONE"), "BROKER_GONE"),
        (KeyError(), "KeyError"),
        (ValueError("  "), "ValueError"),
        (OSError(111, "refused"), "[Errno 111] refused"),
        (Exception("a\nb\x1b"), "a\\nb\\x1b"),
        (Exception("x://u:p@h\nnext"), "x://***@h\\nnext"),
    ],
)
def test_a_failure_is_a_message_or_a_class(exc: Exception, text: str) -> None:
    assert failure_text(exc) == text


@pytest.mark.parametrize(
    "piece", ["a", "a.", "a:", "a://", "@", "a://b@", " a", "pwd", "pwd='", "pwd=' "]
)
def test_a_long_message_of_an_adapter_takes_no_time_and_is_cut(piece: str) -> None:
    asked = time.perf_counter()
    text = failure_text(Exception(piece * 30_000))
    assert time.perf_counter() - asked < 0.5
    assert len(text) < 1010


def test_a_secret_is_masked_before_a_message_is_cut() -> None:
    for begin in ("redis://:", "password='"):
        end = "'" if begin.endswith("'") else "@host"
        for filler in range(960, 1010):
            said = f"{'x' * filler} {begin}secret{end}"
            assert "sec" not in failure_text(Exception(said))


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/x", "", "/x"),
        ("/api/x", "/api", "/x"),
        ("/x", "/api", "/x"),
        ("/apis/x", "/api", "/apis/x"),
        ("/api", "/api", "/api"),
        ("/api/api/x", "/api", "/api/x"),
        ("/x", "/", "/x"),
    ],
)
def test_the_path_below_the_root_path(path: str, root: str, below: str) -> None:
    assert route_path({"path": path, "root_path": root}) == below
    assert route_path({"path": below}) == below
