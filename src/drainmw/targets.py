"""What the commands that ask a target share: options, errors, the client."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from drainmw.contract import STATE_PROTOCOL_FORM

if TYPE_CHECKING:
    from drainmw.client import ControlClient

INTERRUPTED = 130  # as shells have it: 128 and SIGINT

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which control endpoints are asked, and how."""

    url: str | None
    control: Path | None
    token_file: Path | None
    as_json: bool
    token_flag: str = "--token-file"
    """What has named the file."""


class Problem(click.ClickException):
    """Ends the command with a message on standard error."""

    def show(self, file: Any = None) -> None:
        """The message, under the name of the command."""
        click.echo(f"drainmw: {self.format_message()}", file=file, err=True)


class Failed(Problem):
    """The drain failed."""

    exit_code = 1


class Usage(Problem):
    """The call or the configuration has to be mended."""

    exit_code = 2


class OutOfReach(Problem):
    """There is no answer."""

    exit_code = 3


class Refused(Problem):
    """The answer is no."""

    exit_code = 4


TARGET = "A URL, or the path of a control socket."


def named(target: str) -> dict[str, Any]:
    """Where a TARGET is."""
    if target.startswith(("http://", "https://")):
        return {"url": target, "control": None}
    return {"url": None, "control": Path(target)}


def targeted(command: F) -> F:
    """The options by which a command finds its target."""
    for option in reversed(
        (
            click.option("--url", help="Base URL of the app. [env: DRAINMW_URL]"),
            click.option(
                "--control",
                type=click.Path(path_type=Path),
                help="Control socket of `drainmw serve`. [env: DRAINMW_CONTROL]",
            ),
            click.option(
                "--token-file",
                type=click.Path(path_type=Path),
                help="File of the token. [env: DRAINMW_TOKEN_FILE, or DRAINMW_TOKEN]",
            ),
            click.option("--json", "as_json", is_flag=True, help="For machines."),
        )
    ):
        command = option(command)
    return command


def _of_form(pattern: str, form: str) -> Callable[..., str | None]:
    """A check of a flag, before anybody is asked."""

    def check(_ctx: Any, _param: Any, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(pattern, value):
            raise click.BadParameter(f"it must be {form}")
        return value

    return check


nonce_form = _of_form("[A-Za-z0-9_-]{43}", "43 characters of base64url")
revision_form = _of_form("[0-9a-f]{40}", "40 lower-case hex digits")
_protocol = _of_form(STATE_PROTOCOL_FORM, "1 to 128 of A-Z a-z 0-9 _ . : @ / -")


def protocols_form(ctx: Any, param: Any, value: tuple[str, ...]) -> tuple[str, ...]:
    """A check of each; said twice is said once."""
    for protocol in value:
        _protocol(ctx, param, protocol)
    return tuple(dict.fromkeys(value))


def finite(_ctx: Any, _param: Any, value: float) -> float:
    """A check of seconds, of which a range lets `nan` pass."""
    if not math.isfinite(value):
        raise click.BadParameter("it must be a number of seconds from 0.1 to 600")
    return value


def nonce_option(command: F) -> F:
    """The drain that a command is about."""
    return click.option(
        "--nonce",
        callback=nonce_form,
        help="Of the drain. [default: the one that stands]",
    )(command)


@contextmanager
def asking(to: Target) -> Iterator[ControlClient]:
    """A client of the target; its errors become messages and exit codes."""
    from drainmw.client import ControlClient, Unreachable, found
    from drainmw.errors import DrainError, SettingsError

    try:
        where = found(to.url, to.control, to.token_file, flag=to.token_flag)
        with ControlClient(**where) as client:
            yield client
    except SettingsError as exc:
        raise Usage(str(exc)) from None
    except Unreachable as exc:
        raise OutOfReach(str(exc)) from None
    except DrainError as exc:
        raise Refused(str(exc)) from None


def standing(client: ControlClient) -> str:
    """The nonce of the drain that stands there.

    Raises:
        Refused: None has begun.
    """
    nonce = client.report()["nonce"]
    if nonce is None:
        raise Refused("no drain has begun there; `drainmw begin` begins one")
    return nonce


def print_moved(answer: Any, to: Target) -> None:
    """Where the release stands now."""
    if to.as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['phase']}  (epoch {answer['epoch']})")


def print_json(answer: Any) -> None:
    """One line for machines."""
    click.echo(json.dumps(answer))
