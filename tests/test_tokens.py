"""Tokens: made, read from a file, compared."""

import re
from pathlib import Path

import pytest

from drainmw import Drain
from drainmw.errors import SettingsError
from drainmw.settings import load
from drainmw.tokens import Tokens, generate, read

FIRST, SECOND, THIRD = "f" * 43, "s" * 43, "x" * 43


def bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()


def test_a_new_token_has_the_form_of_one_and_is_another_each_time() -> None:
    made = {generate() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", token) for token in made)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (FIRST, [FIRST]),
        (FIRST + "\n", [FIRST]),
        (f"{FIRST}\n{SECOND}", [FIRST, SECOND]),
        (f"{FIRST}\n{SECOND}\n", [FIRST, SECOND]),
        (f"{FIRST}\r\n{SECOND}\r\n", [FIRST, SECOND]),
    ],
)
def test_a_file_holds_one_token_or_two(
    tmp_path: Path, text: str, tokens: list[str]
) -> None:
    file = tmp_path / "token"
    file.write_bytes(text.encode())
    assert read(file) == tokens


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b" ",
        b"f" * 42,
        b"f" * 44,
        FIRST.encode() + b" ",
        FIRST.encode() + b"\n\n",
        b"\n" + FIRST.encode(),
        f"{FIRST} {SECOND}".encode(),
        f"{FIRST}\n{SECOND}\n{THIRD}".encode(),
        f"{FIRST}\nshort".encode(),
        b"\xff" * 43,
        "é".encode() * 43,
        b"f" * 10_000_000,
    ],
)
def test_any_other_file_stops_the_start_and_is_not_shown(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: empty, white space, or the wrong length; the variable is named."""
    file = tmp_path / "token"
    file.write_bytes(text)
    monkeypatch.setenv("DRAINMW_TOKEN_FILE", str(file))
    with pytest.raises(SettingsError, match="DRAINMW_TOKEN_FILE") as refused:
        Drain()
    assert "fff" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("kind", ["missing", "a directory"])
def test_a_file_that_cannot_be_read_stops_the_start(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path if kind == "a directory" else tmp_path / "none"
    monkeypatch.setenv("DRAINMW_TOKEN_FILE", str(path))
    wrong = "must be a regular file" if kind == "a directory" else "cannot be read"
    with pytest.raises(SettingsError, match=f"DRAINMW_TOKEN_FILE {wrong}"):
        Drain()


def test_both_tokens_of_a_file_open(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{FIRST}\n{SECOND}\n")
    tokens = Tokens(load({}, token_file=file))
    assert tokens.accept(bearer(FIRST))
    assert tokens.accept(bearer(SECOND))
    assert not tokens.accept(bearer(THIRD))


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + FIRST.encode(),
        FIRST.encode(),
        bearer(FIRST)[:-1],
        bearer(FIRST) + b"x",
        bearer(SECOND),
        b"Bearer \xff\xfe",
    ],
)
def test_nothing_else_opens(authorization: bytes | None) -> None:
    assert not Tokens(load({}, token=FIRST)).accept(authorization)


def test_no_token_accepts_nothing() -> None:
    tokens = Tokens(load({}))
    assert not tokens
    for authorization in (None, b"", b"Bearer ", bearer(FIRST), b"Bearer None"):
        assert not tokens.accept(authorization)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    tokens = Tokens(load({}, token_file=file))
    file.write_text(f"{SECOND}\n{FIRST}\n")
    assert tokens.accept(bearer(SECOND))
    file.write_text("")
    assert tokens.accept(bearer(SECOND))
    file.unlink()
    assert tokens.accept(bearer(FIRST))
    file.write_text(f"{THIRD}\n")
    assert tokens.accept(bearer(THIRD))
    assert not tokens.accept(bearer(FIRST))


def test_tokens_are_not_shown() -> None:
    assert FIRST not in repr(Tokens(load({}, token=FIRST)))


def test_a_changed_file_that_is_unusable_is_complained_of(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{FIRST}\n")
    tokens = Tokens(load({}, token_file=file))
    assert tokens.complaint is None
    file.write_text("half")
    assert tokens.accept(bearer(FIRST))
    assert tokens.complaint is not None
    assert tokens.complaint.endswith("; the tokens read before stay in force")
    assert "half" not in tokens.complaint
    file.write_text(f"{SECOND}\n")
    assert tokens.accept(bearer(SECOND))
    assert tokens.complaint is None
