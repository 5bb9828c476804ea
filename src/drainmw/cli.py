"""The `drainmw` command: parse, one call, print, exit code.

Exit codes: 0 drained or done, 1 the drain failed, 2 usage, 3 unreachable,
4 refused. What a command does not need, it does not import.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from drainmw.contract import STATE_PROTOCOL_FORM

if TYPE_CHECKING:
    from drainmw.client import ControlClient
    from drainmw.contract import StateStatus, Status, TakenReport
    from drainmw.handing import Handing

UNKNOWN = "0" * 40
INTERRUPTED = 130  # as shells have it: 128 and SIGINT
REPORT_PAUSE = 1.0  # seconds between two looks at the blockers
UNDO = ", or run it with --discard"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which control endpoints are asked, and how."""

    url: str | None
    control: Path | None
    token_file: Path | None
    as_json: bool


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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="drainmw")
def main() -> None:
    """Serve an ASGI app so that it can be drained, and drain it."""


_TARGET = "A URL, or the path of a control socket."


def _named(target: str) -> dict[str, Any]:
    """Where a TARGET is."""
    if target.startswith(("http://", "https://")):
        return {"url": target, "control": None}
    return {"url": None, "control": Path(target)}


# What asks a target


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


_nonce = _of_form("[A-Za-z0-9_-]{43}", "43 characters of base64url")
_revision = _of_form("[0-9a-f]{40}", "40 lower-case hex digits")
_protocol = _of_form(STATE_PROTOCOL_FORM, "1 to 128 of A-Z a-z 0-9 _ . : @ / -")


def _protocols(ctx: Any, param: Any, value: tuple[str, ...]) -> tuple[str, ...]:
    for protocol in value:
        _protocol(ctx, param, protocol)
    return tuple(dict.fromkeys(value))


def _finite(_ctx: Any, _param: Any, value: float) -> float:
    if not math.isfinite(value):  # which no range keeps out
        raise click.BadParameter("it must be a number of seconds from 0.1 to 600")
    return value


def _nonce_option(command: F) -> F:
    return click.option(
        "--nonce", callback=_nonce, help="Of the drain. [default: the one that stands]"
    )(command)


@main.command()
@targeted
@click.option("--nonce", callback=_nonce, help="Of the drain. [default: a new one]")
@click.option(
    "--source",
    callback=_revision,
    help="Revision that drains. [default: what it reports]",
)
@click.option(
    "--target",
    callback=_revision,
    help="Revision that takes over. [default: unknown]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=25.0,
    show_default=True,
    callback=_finite,
    help="Seconds until the drain fails.",
)
@click.option(
    "--handoff", is_flag=True, help="Leave what has not started to the next release."
)
@click.option("--wait", is_flag=True, help="Watch it until it has ended.")
def begin(
    nonce: str | None,
    source: str | None,
    target: str | None,
    timeout: float,
    handoff: bool,
    wait: bool,
    **where: Any,
) -> None:
    """Begin a drain, or join it. Safe to repeat with the same --nonce."""
    from drainmw.tokens import generate

    to = Target(**where)
    nonce = nonce or generate()
    with asking(to) as client:
        source = source or client.report()["revision"] or UNKNOWN
        target = target or UNKNOWN
        with _resumed_is_failed(wait):
            time = round(timeout * 1000)
            answer = client.begin(nonce, source, target, time, handoff=handoff)
        if to.as_json:
            _print_json({**answer, "nonce": nonce, "sourceRevision": source})
        else:
            verb = "joined" if answer["duplicate"] else "begun"
            click.echo(f"drain {verb}, nonce {nonce}")
        if wait:
            _watch(client, nonce, to)


@main.command()
@targeted
@_nonce_option
def wait(nonce: str | None, **where: Any) -> None:
    """Watch a drain until it has ended."""
    to = Target(**where)
    with asking(to) as client:
        _watch(client, nonce or _standing(client), to)


@main.command()
@targeted
@_nonce_option
def status(nonce: str | None, **where: Any) -> None:
    """Where a drain stands; exits with 1 once it has failed."""
    from drainmw.client import NoCounters
    from drainmw.console import Progress

    to = Target(**where)
    with asking(to) as client:
        nonce = nonce or _standing(client)
        try:
            answer = client.status(nonce)
        except NoCounters:
            if (ended := client.ended(nonce)) is None:
                raise
            answer = ended
    if to.as_json:
        _print_json(answer)
    else:
        progress = Progress()
        progress.show(answer)
        progress.stop()
    _exit_by(answer)


@main.command()
@targeted
def report(**where: Any) -> None:
    """Everything an operator wants to know."""
    from drainmw.console import describe

    to = Target(**where)
    with asking(to) as client:
        answer = client.report()
    if to.as_json:
        _print_json(answer)
    else:
        click.echo(describe(answer))


@main.command()
@targeted
def cordon(**where: Any) -> None:
    """Say not ready, keep serving."""
    to = Target(**where)
    with asking(to) as client:
        _print_moved(client.cordon(), to)


@main.command()
@targeted
def uncordon(**where: Any) -> None:
    """Take a cordon back."""
    to = Target(**where)
    with asking(to) as client:
        _print_moved(client.uncordon(), to)


@main.command()
@targeted
@_nonce_option
@click.option("--force", is_flag=True, help="Also where the new release has the state.")
def resume(nonce: str | None, force: bool, **where: Any) -> None:
    """Serve again, also after a drain has ended. The nonce is retired."""
    to = Target(**where)
    with asking(to) as client:
        _print_moved(client.resume(nonce or _standing(client), force=force), to)


@main.command()
@targeted
@_nonce_option
def seal(nonce: str | None, **where: Any) -> None:
    """Fix the state that goes over; `handoff` does it, too."""
    to = Target(**where)
    with asking(to) as client:
        _print_moved(client.seal(nonce or _standing(client)), to)


@main.command()
@targeted
@_nonce_option
@click.option("--force", is_flag=True, help="Also where state would end with it.")
def detach(nonce: str | None, force: bool, **where: Any) -> None:
    """Give the work of an ended drain away for good; no resume after it."""
    to = Target(**where)
    with asking(to) as client:
        if not force:
            _check_claimed(client)
        _print_moved(client.detach(nonce or _standing(client)), to)


@main.command()
@click.option("--from", "old", required=True, metavar="TARGET", help=_TARGET)
@click.option("--to", "new", required=True, metavar="TARGET", help=_TARGET)
@click.option(
    "--from-token-file",
    type=click.Path(path_type=Path),
    help="[default: DRAINMW_TOKEN_FILE, or DRAINMW_TOKEN]",
)
@click.option(
    "--to-token-file",
    type=click.Path(path_type=Path),
    help="[default: DRAINMW_TOKEN_FILE, or DRAINMW_TOKEN]",
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    callback=_protocols,
    help="Of the state; may be repeated. [default: all that there is]",
)
@click.option("--nonce", callback=_nonce, help="Of the handoff. [default: a new one]")
@click.option(
    "--again", is_flag=True, help="To a fresh release, in place of one that has ended."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    callback=_finite,
    help="Seconds until the handoff fails.",
)
@click.option("--detach", is_flag=True, help="Then give the old release's work away.")
@click.option(
    "--discard", is_flag=True, help="Undo it, so that the old one can be resumed."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def handoff(
    old: str,
    new: str,
    from_token_file: Path | None,
    to_token_file: Path | None,
    protocols: tuple[str, ...],
    nonce: str | None,
    again: bool,
    timeout: float,
    detach: bool,
    discard: bool,
    as_json: bool,
) -> None:
    """Let a new release take the state of an old one over.

    A TARGET is a URL, or the path of a control socket. What is handed over is
    provisional until the old release is detached, or has ended. Run it again to
    finish what was interrupted.
    """
    from drainmw.client import Unreachable
    from drainmw.handing import Handing

    if old == new:
        raise click.UsageError("--from and --to must be two releases")
    if discard and (detach or again):
        raise click.UsageError("--discard excludes --detach and --again")
    giving, taking = (
        Target(**_named(target), token_file=file, as_json=as_json)
        for target, file in ((old, from_token_file), (new, to_token_file))
    )
    with asking(giving) as source, asking(taking) as target:
        handing = Handing(source, target, timeout_ms=round(timeout * 1000))
        if discard:
            undone = list(handing.discard(protocols, nonce))
            if not undone:
                raise Refused("the new release has nothing that can be discarded")
            for taken in undone:
                _print_discarded(taken, as_json)
            return
        try:
            drained = _standing(source) if detach else ""
            for told in handing.hand_over(protocols, nonce, again=again):
                _print_handoff(told, handing, as_json)
        except KeyboardInterrupt:
            going = ", ".join(handing.nonces.values())
            click.echo(f"drainmw: the handoff {going} goes on", err=True)
            click.get_current_context().exit(INTERRUPTED)
        except Unreachable as exc:
            owned = handing.owned(protocols, nonce)
            if not owned:
                raise
            for told in owned:
                _print_handoff(told, handing, as_json)
            click.echo(f"drainmw: {exc}; the new release owns the state", err=True)
            return
        if detach:
            if lost := list(handing.lost()):
                raise Failed(f"{'; '.join(lost)}: {_LOST}")
            _check_claimed(source)
            with _finished_by("the state has gone over and is provisional there", UNDO):
                moved = source.detach(drained)
            with _finished_by("the old release is detached, and the new one not told"):
                handing.confirm(moved)
            _print_moved(moved, giving)


def _check_claimed(source: ControlClient) -> None:
    from drainmw.handing import unclaimed

    if kept := ", ".join(unclaimed(source)):
        raise Refused(
            f"the state of {kept} has not gone over, and would end with the old "
            "release: `drainmw handoff` hands it over, `drainmw detach --force` gives "
            "it up"
        )


_LOST = (
    "the old release still has the whole. Run it with --discard, or end the new "
    "release; then hand over to a fresh one with --again"
)


def _print_handoff(told: StateStatus, handing: Handing, as_json: bool) -> None:
    if as_json:
        _print_json(told)
    elif told["status"] == "acknowledged":
        click.echo(f"{told['protocol']} handed over, cursor {told['cursor']}")
    elif told["status"] == "pending" and handing.is_slow():
        click.echo(f"{told['protocol']} on its way, nonce {told['nonce']}", err=True)
    if told["status"] == "failed":
        raise Failed(f"{told['protocol']}: {told['failure']}; {handing.kept(told)}")


def _print_discarded(taken: TakenReport, as_json: bool) -> None:
    protocol, nonce = taken["protocol"], taken["nonce"]
    if as_json:
        told = {"protocol": protocol, "nonce": nonce, "status": "discarded"}
        _print_json(told)
    else:
        click.echo(f"{protocol} discarded; the old release has it")


@contextmanager
def _finished_by(reached: str, otherwise: str = "") -> Iterator[None]:
    """What fails from here on tells how far it has come, and how it goes on."""
    from drainmw.client import Denied, Unreachable
    from drainmw.errors import DrainNotFound

    advice = f"{reached}; run this again{otherwise}"
    try:
        yield
    except Unreachable as exc:
        raise OutOfReach(f"{exc}; {advice}") from None
    except (Denied, DrainNotFound) as exc:
        raise Refused(f"{exc}; {advice}") from None


@main.command()
def token() -> None:
    """Print a new control token."""
    from secrets import token_urlsafe

    click.echo(token_urlsafe(32))


# What serves


@main.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 picks a free one, which is logged.",
)
@click.option("--uds", type=click.Path(path_type=Path), help="Instead of a port.")
@click.option("--revision", help="Of this release. [env: DRAINMW_REVISION]")
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    help="Open a control socket there; its directory must be of mode 0700.",
)
@click.option("--workers", type=click.IntRange(1, 255), default=1, show_default=True)
@click.option(
    "--lame-duck",
    type=float,
    help="Seconds cordoned at SIGTERM. [env: DRAINMW_LAME_DUCK; default: 0]",
)
@click.option(
    "--drain-timeout",
    "timeout",
    type=float,
    help="Seconds to drain in at SIGTERM. [env: DRAINMW_TIMEOUT; default: 25]",
)
@click.option(
    "--graceful-timeout",
    type=float,
    help="Seconds to stop in after it. [env: DRAINMW_GRACEFUL_TIMEOUT; default: 3]",
)
@click.pass_context
def serve(ctx: click.Context, /, workers: int, **options: Any) -> None:
    """Serve an app; drain it at SIGTERM, then stop."""
    from drainmw import crew
    from drainmw import serve as single
    from drainmw.errors import Misuse

    if not options["host"]:
        raise click.UsageError("--host must name an address; 0.0.0.0 is all of them")
    run = single.run if workers == 1 else crew.run
    if options["uds"] is not None and _given(ctx, "host", "port"):
        raise click.UsageError("--uds takes the place of --host and --port")
    try:
        code = run(single.Options(**options, workers=workers))
    except Misuse as exc:
        raise Usage(str(exc)) from None
    ctx.exit(code)


# Small things


@contextmanager
def asking(to: Target) -> Iterator[ControlClient]:
    """A client of the target; its errors become messages and exit codes."""
    from drainmw.client import ControlClient, Unreachable, found
    from drainmw.errors import DrainError, SettingsError

    try:
        with ControlClient(**found(to.url, to.control, to.token_file)) as client:
            yield client
    except SettingsError as exc:
        raise Usage(str(exc)) from None
    except Unreachable as exc:
        raise OutOfReach(str(exc)) from None
    except DrainError as exc:
        raise Refused(str(exc)) from None


def _standing(client: ControlClient) -> str:
    nonce = client.report()["nonce"]
    if nonce is None:
        raise Refused("no drain has begun there; `drainmw begin` begins one")
    return nonce


def _watch(client: ControlClient, nonce: str, to: Target) -> None:
    """Show a drain until it has ended, and exit by how it did."""
    import time

    from drainmw.client import Denied, Unreachable
    from drainmw.console import Progress
    from drainmw.errors import DrainNotFound

    progress = Progress()
    last: Status | None = None
    next_report = 0.0
    try:
        for answer in client.watch(nonce):
            if to.as_json:
                if answer != last:
                    _print_json(answer)
            else:
                moved = last is None or answer["inFlight"] != last["inFlight"]
                due = moved or time.monotonic() >= next_report
                if answer["status"] == "draining" and due:
                    with suppress(Denied, Unreachable):  # the watch is patient
                        progress.learn(client.report())
                    next_report = time.monotonic() + REPORT_PAUSE
                progress.show(answer)
            last = answer
    except DrainNotFound as exc:
        if not exc.resumed:
            raise
        raise Failed("the drain was resumed; this release serves again") from None
    except KeyboardInterrupt:
        progress.stop()
        again = "`drainmw wait` watches it again, `drainmw resume` ends it"
        click.echo(f"drainmw: the drain goes on; {again}", err=True)
        click.get_current_context().exit(INTERRUPTED)
    finally:
        progress.stop()
    if last is not None:
        _exit_by(last)


@contextmanager
def _resumed_is_failed(waits: bool) -> Iterator[None]:
    """A begin that waits and finds its drain resumed has seen it fail."""
    from drainmw.client import Denied

    try:
        yield
    except Denied as exc:
        if waits and exc.resumed:
            raise Failed(str(exc)) from None
        raise


def _exit_by(answer: Status) -> None:
    if answer["status"] == "failed":
        click.get_current_context().exit(Failed.exit_code)


def _print_moved(answer: Any, to: Target) -> None:
    if to.as_json:
        _print_json(answer)
    else:
        click.echo(f"{answer['phase']}  (epoch {answer['epoch']})")


def _print_json(answer: Any) -> None:
    click.echo(json.dumps(answer))


def _given(ctx: click.Context, *names: str) -> bool:
    default = click.core.ParameterSource.DEFAULT
    return any(ctx.get_parameter_source(name) is not default for name in names)
