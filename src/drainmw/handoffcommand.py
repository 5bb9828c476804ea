"""The commands of a handoff: `seal`, `handoff`, `detach`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drainmw.targets import (
    INTERRUPTED,
    TARGET,
    Failed,
    OutOfReach,
    Refused,
    Target,
    asking,
    finite,
    named,
    nonce_form,
    nonce_option,
    print_json,
    print_moved,
    protocols_form,
    standing,
    targeted,
)

if TYPE_CHECKING:
    from drainmw.client import ControlClient
    from drainmw.contract import StateStatus, TakenReport
    from drainmw.handing import Handing

UNDO = ", or run it with --discard"


@click.command()
@targeted
@nonce_option
def seal(nonce: str | None, **where: Any) -> None:
    """Fix the state that goes over; `handoff` does it, too."""
    to = Target(**where)
    with asking(to) as client:
        print_moved(client.seal(nonce or standing(client)), to)


@click.command()
@targeted
@nonce_option
@click.option("--force", is_flag=True, help="Also where state would end with it.")
def detach(nonce: str | None, force: bool, **where: Any) -> None:
    """Give the work of an ended drain away for good; no resume after it."""
    to = Target(**where)
    with asking(to) as client:
        if not force:
            _check_claimed(client)
        print_moved(client.detach(nonce or standing(client)), to)


@click.command()
@click.option("--from", "old", required=True, metavar="TARGET", help=TARGET)
@click.option("--to", "new", required=True, metavar="TARGET", help=TARGET)
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
    callback=protocols_form,
    help="Of the state; may be repeated. [default: all that there is]",
)
@click.option(
    "--nonce", callback=nonce_form, help="Of the handoff. [default: a new one]"
)
@click.option(
    "--again", is_flag=True, help="To a fresh release, in place of one that has ended."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    callback=finite,
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
        Target(**named(target), token_file=file, as_json=as_json, token_flag=flag)
        for target, file, flag in (
            (old, from_token_file, "--from-token-file"),
            (new, to_token_file, "--to-token-file"),
        )
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
            drained = standing(source) if detach else ""
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
            print_moved(moved, giving)


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
        print_json(told)
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
        print_json(told)
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
