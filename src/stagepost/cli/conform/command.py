"""`stagepost conform`: try anybody's DMQ node with misbehaviour and honest work, and name each deviation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from stagepost.cli.options.shared import NETWORK_MAGIC, duration_option, path_option

if TYPE_CHECKING:
    from stagepost.dmq.conform.attacker import NodeTarget
    from stagepost.dmq.conform.playbook import Case

COULD_NOT_LOOK = 2
_PROFILES = ["auto", "dmq-node", "gouroboros", "seed"]


@click.command()
@click.argument("places", metavar="ADDRESS|SOCKET", nargs=-1)
@click.option(
    "--network-magic",
    type=click.IntRange(0, 2**32 - 1),
    default=NETWORK_MAGIC,
    show_default=True,
    help="Magic number of the node's DMQ network.",
)
@click.option(
    "--profile",
    type=click.Choice(_PROFILES),
    default="auto",
    show_default=True,
    help="Wire profile of the node; `auto` tries all of them first and plays the cases of those that it speaks.",
)
@path_option(
    "--new-pools",
    metavar="DIR",
    help="Make a folder with keys of pools and a pools file for the node under test; play nothing.",
)
@path_option(
    "--pools",
    metavar="DIR",
    help="Folder of --new-pools whose pools the node knows. [new pools, which no node knows]",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Cases or rules to try, such as 'message.*'.")
@click.option(
    "--floods", is_flag=True, help="Play cases that send much, too; asks first. Never on a public network."
)
@click.option("--yes", is_flag=True, help="Do not ask before floods.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Cases that are played at once, beside those that wait for a time limit; 1 plays all one by one.",
)
@duration_option("--grace", "grace_s", default="3s", help="Time on top of every time limit.")
@click.option("--list", "show_list", is_flag=True, help="Print the cases with their rules; play nothing.")
@click.option(
    "--serve",
    is_flag=True,
    help="Listen at ADDRESS and SOCKET, and try the node or program that connects there.",
)
@click.option(
    "--topology",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --serve: write a topology file that lets a node dial every address of the kit.",
)
@duration_option(
    "--wait", "wait_s", default="60s", help="With --serve: time without a connection after which to stop."
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report as an HTML page, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def conform(
    context: click.Context,
    places: tuple[str, ...],
    network_magic: int,
    profile: str,
    new_pools: Path | None,
    pools: Path | None,
    only: tuple[str, ...],
    floods: bool,
    yes: bool,
    at_once: int,
    grace_s: float,
    show_list: bool,
    serve: bool,
    topology: Path | None,
    wait_s: float,
    report: Path | None,
    as_json: bool,
) -> None:
    """Try a DMQ node of any make as peers and programs see it, and name each rule that it breaks.

    ADDRESS is the node's HOST:PORT for peers, SOCKET the path of its local socket, with a slash; give either or both. The
    node must know the pools of --pools, without a gap between the messages of one pool (--min-sig-delay 0.01s), so
    that every case can be judged. Cases misbehave on purpose: try a node that nobody depends on.

    With --serve the kit waits for the node or program under test. ADDRESS is the first of its addresses for a node that
    dials (port 0 takes free ports), SOCKET a local socket that the kit makes: let a program connect to it again and again,
    submit messages and ask for messages.

    Exit code 0 if every rule holds, 1 if the node deviates, 2 if the command could not look at some case.

    \b
    Example:
      stagepost conform --new-pools kit
      stagepost conform 127.0.0.1:3141 ./dmq-node.socket --network-magic 2147483690 --pools kit
      stagepost conform --serve 127.0.0.1:0 ./kit.socket --topology topology.json --report report.html
    """
    import asyncio

    from stagepost.cli.conform import text
    from stagepost.cli.conform.page import check_page, write_page
    from stagepost.dmq.conform.attacker import NothingToTry
    from stagepost.dmq.conform.cases import CASES
    from stagepost.dmq.conform.kit import KitOptions, load_cast, try_node
    from stagepost.dmq.conform.kit import new_pools as make_pools
    from stagepost.dmq.conform.runner import Cast
    from stagepost.dmq.conform.serving import CLIENT_CASES, ServeOptions, try_client

    if show_list:
        for line in text.case_lines(CLIENT_CASES if serve else CASES):
            click.echo(line)
        return
    if new_pools is not None:
        click.echo(f"{make_pools(new_pools)}: give this pools file to the node, and {new_pools} to --pools")
        return
    target = replace(_target_of(places, network_magic, context), patience_s=10.0 + grace_s)
    if floods:
        _allow_floods(network_magic, yes)
    _check_only(only, [*CLIENT_CASES] if serve else CASES)
    if report is not None:
        check_page(report)
    cast = Cast() if pools is None else load_cast(pools)
    options = KitOptions(profile, only, floods, at_once, grace_s)
    progress = text.CaseProgress(sys.stderr, is_shown=not as_json and sys.stderr.isatty())
    served = ServeOptions(only, wait_s, grace_s)
    try:
        if serve:
            found = asyncio.run(try_client(target, served, _say, progress.add, topology))
        else:
            found = asyncio.run(try_node(target, cast, options, progress.add))
    except OSError as error:
        reason = error.strerror or str(error) or "no answer in time"
        advice = "check the address or path" if serve else "check the address or path, and that the node runs"
        _end_unseen(context, f"{' and '.join(places)}: {reason}", advice)
    except NothingToTry as error:
        progress.clear()
        _end_unseen(context, text.plain(str(error)), error.advice)
    progress.clear()
    if report is not None:
        write_page(report, found)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        for line in text.report_lines(found):
            click.echo(line)
    context.exit(found.exit_code)


def _end_unseen(context: click.Context, reason: str, advice: str) -> NoReturn:
    click.echo(f"could not look: {reason}", err=True)
    click.echo(f"  {advice}", err=True)
    context.exit(COULD_NOT_LOOK)


def _check_only(patterns: Iterable[str], cases: Iterable[Case]) -> None:
    names = {name for case in cases for name in (case.name, case.rule)}
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise click.BadParameter(
                f"no case and no rule is named so: {pattern!r}; --list shows them", param_hint="--only"
            )


def _say(line: str) -> None:
    click.echo(line, err=True)


def _target_of(places: tuple[str, ...], magic: int, context: click.Context) -> NodeTarget:
    from stagepost.dmq.conform.attacker import NodeTarget
    from stagepost.ground.net.network import TcpAddress, parse_address

    target = NodeTarget(None, None, magic)
    for place in places:
        address = parse_address(place)
        if isinstance(address, TcpAddress):
            if target.port is not None:
                raise click.UsageError("two addresses were given: one node has one", context)
            target = replace(target, host=address.host, port=address.port)
        else:
            if target.socket is not None:
                raise click.UsageError("two sockets were given: one node has one", context)
            target = replace(target, socket=address.path)
    if not places:
        raise click.UsageError("give the node's HOST:PORT, its ./SOCKET, or both", context)
    return target


def _allow_floods(magic: int, yes: bool) -> None:
    from stagepost.dmq.validation import PUBLIC_MAGICS
    from stagepost.errors import ConfigError

    if magic in PUBLIC_MAGICS:
        raise ConfigError(
            f"{magic} is the magic number of a public network, where the kit plays no floods",
            advice="leave --floods out, or try a node of a private network",
        )
    if not yes:
        click.confirm(
            "Floods send many megabytes and open many connections. Play them?", abort=True, err=True
        )
