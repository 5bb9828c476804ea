"""The `drainmw` command: parse, one call, print, exit code.

Exit codes: 0 drained or done, 1 the drain failed, 2 usage, 3 unreachable,
4 refused. What a command does not need, it does not import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drainmw.handoffcommand import detach, handoff, seal
from drainmw.targets import (
    INTERRUPTED,
    Failed,
    Target,
    Usage,
    asking,
    finite,
    nonce_form,
    nonce_option,
    print_json,
    print_moved,
    revision_form,
    standing,
    targeted,
)

if TYPE_CHECKING:
    from drainmw.client import ControlClient
    from drainmw.contract import Status

UNKNOWN = "0" * 40
REPORT_PAUSE = 1.0  # seconds between two looks at the blockers


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="drainmw")
def main() -> None:
    """Serve an ASGI app so that it can be drained, and drain it."""


for _command in (seal, handoff, detach):
    main.add_command(_command)


@main.command()
@targeted
@click.option("--nonce", callback=nonce_form, help="Of the drain. [default: a new one]")
@click.option(
    "--source",
    callback=revision_form,
    help="Revision that drains. [default: what it reports]",
)
@click.option(
    "--target",
    callback=revision_form,
    help="Revision that takes over. [default: unknown]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=25.0,
    show_default=True,
    callback=finite,
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
            print_json({**answer, "nonce": nonce, "sourceRevision": source})
        else:
            verb = "joined" if answer["duplicate"] else "begun"
            click.echo(f"drain {verb}, nonce {nonce}")
        if wait:
            _watch(client, nonce, to)


@main.command()
@targeted
@nonce_option
def wait(nonce: str | None, **where: Any) -> None:
    """Watch a drain until it has ended."""
    to = Target(**where)
    with asking(to) as client:
        _watch(client, nonce or standing(client), to)


@main.command()
@targeted
@nonce_option
def status(nonce: str | None, **where: Any) -> None:
    """Where a drain stands; exits with 1 once it has failed."""
    from drainmw.client import NoCounters
    from drainmw.console import Progress

    to = Target(**where)
    with asking(to) as client:
        nonce = nonce or standing(client)
        try:
            answer = client.status(nonce)
        except NoCounters:
            if (ended := client.ended(nonce)) is None:
                raise
            answer = ended
    if to.as_json:
        print_json(answer)
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
        print_json(answer)
    else:
        click.echo(describe(answer))


@main.command()
@targeted
def cordon(**where: Any) -> None:
    """Say not ready, keep serving."""
    to = Target(**where)
    with asking(to) as client:
        print_moved(client.cordon(), to)


@main.command()
@targeted
def uncordon(**where: Any) -> None:
    """Take a cordon back."""
    to = Target(**where)
    with asking(to) as client:
        print_moved(client.uncordon(), to)


@main.command()
@targeted
@nonce_option
@click.option("--force", is_flag=True, help="Also where the new release has the state.")
def resume(nonce: str | None, force: bool, **where: Any) -> None:
    """Serve again, also after a drain has ended. The nonce is retired."""
    to = Target(**where)
    with asking(to) as client:
        print_moved(client.resume(nonce or standing(client), force=force), to)


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
                    print_json(answer)
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


def _given(ctx: click.Context, *names: str) -> bool:
    default = click.core.ParameterSource.DEFAULT
    return any(ctx.get_parameter_source(name) is not default for name in names)
