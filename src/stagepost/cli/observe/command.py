"""`stagepost observe`: by stake, who signs Mithril's beacons on a DMQ network. Needs two sockets and no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import (
    duration_option,
    json_option,
    path_option,
    print_table,
    socket_and_magic,
    with_local_node,
)

if TYPE_CHECKING:
    from stagepost.cli.observe.running import Observer

DMQ_BIT = 2**31
"""Difference between the magic numbers of a DMQ network and of its Cardano network."""
EPOCHS_SHOWN = 2
SILENT_SHOWN = 3
UNKNOWN = "unknown"


@click.command()
@with_local_node
@path_option(
    "--cardano-socket", help="Socket of a cardano-node, which knows the stake; without it stake is unknown."
)
@click.option(
    "--cardano-magic",
    type=click.IntRange(0, 2**32 - 1),
    help="Magic number of the Cardano network. [from the DMQ network's]",
)
@path_option(
    "--record", help="Data folder to record messages and stake in, as topics that `stagepost pipeline` reads."
)
@click.option(
    "--parameters",
    metavar="K,M,PHI_F",
    help="Mithril's parameters of the network. [known for mainnet, else the quorum is unknown]",
)
@click.option(
    "--names-as-of",
    type=click.Choice(["2630", "2617"]),
    default="2630",
    show_default=True,
    help="Release of Mithril by whose numbering entities are named.",
)
@duration_option("--until-idle", default=None, help="End when no message has come for this time.")
@duration_option("--for", "duration_s", default=None, help="End after this time.")
@duration_option("--every", default="30s", help="Show the figures again after this time.")
@json_option
def observe(
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    cardano_socket: Path | None,
    cardano_magic: int | None,
    record: Path | None,
    parameters: str | None,
    names_as_of: str,
    until_idle: float | None,
    duration_s: float | None,
    every: float,
    as_json: bool,
) -> None:
    """Show by stake which pools sign Mithril's beacons on a DMQ network: adoption, quorum, lateness, silence, equivocation.

    The command uses the local socket of any CIP-0137 node. Figures that need the stake are "unknown" until a cardano-node has answered.

    \b
    Example:
      stagepost observe --socket dmq-node.socket --cardano-socket node.socket --record observed
      stagepost observe --socket dmq-node.socket --until-idle 5s --json
    """
    import asyncio

    from stagepost.cli.observe.running import ObserveOptions, Observer
    from stagepost.dmq.mithril.parameters import parse_parameters

    socket_path, magic = socket_and_magic(socket, network_magic, data)
    options = ObserveOptions(
        socket=Path(socket_path),
        network_magic=magic,
        profile=profile,
        cardano_socket=cardano_socket,
        cardano_magic=magic % DMQ_BIT if cardano_magic is None else cardano_magic,
        parameters=None if parameters is None else parse_parameters(parameters),
        record=record,
        idle_timeout_s=until_idle,
        duration_s=duration_s,
        every_s=every,
    )

    def show(observer: Observer) -> None:
        if as_json:
            _show_json(observer)
        else:
            _show_text(observer, names_as_of)

    asyncio.run(Observer(options, show, lambda text: click.echo(text, err=True)).run())


def _show_json(observer: Observer) -> None:
    import msgspec

    live = observer.live
    for epoch in live.epochs[-EPOCHS_SHOWN:]:
        for kind, rows in (("beacon", live.beacons(epoch)), ("pool", live.pools(epoch))):
            for row in rows:
                click.echo(json.dumps({"type": kind, **msgspec.to_builtins(row)}))
    summary = {
        "type": "observer",
        "messages": live.messages,
        "other_bodies": live.other_bodies,
        "invalid": observer.invalid,
        "forgotten_beacons": live.forgotten_beacons,
        "stake": observer.stake_words,
    }
    click.echo(json.dumps(summary))


def _show_text(observer: Observer, names_as_of: str) -> None:
    live = observer.live
    click.echo(
        f"messages    {live.messages} valid, {live.other_bodies} with bodies of other programs, {observer.invalid} invalid"
    )
    click.echo(f"stake       {observer.stake_words}")
    if live.forgotten_beacons:
        click.echo(
            f"forgotten   {live.forgotten_beacons} beacons, the oldest; --record and the tables have them"
        )
    for epoch in live.epochs[-EPOCHS_SHOWN:]:
        stake = live.stake(epoch)
        known = (
            "set stake unknown"
            if stake is None
            else f"set stake of {len(stake.stakes)} pools, {_ada(stake.total_stake)}"
        )
        click.echo(f"\nepoch {epoch}   {known}")
        rows = [
            (
                (one.entity_before if names_as_of == "2617" else None) or one.entity,
                one.beacon,
                str(one.pools),
                _percent(one.adoption_percent),
                _percent(one.quorum_percent),
                "–" if one.half_ms is None else f"{one.half_ms / 1_000:.1f} s",
                str(one.late),
                str(one.equivocating),
            )
            for one in live.beacons(epoch)
        ]
        if rows:
            print_table(
                ("entity", "beacon", "pools", "adoption", "quorum", "half after", "late", "equivocating"),
                rows,
            )
        _show_silent(observer, epoch)


def _show_silent(observer: Observer, epoch: int) -> None:
    """Print who with stake signed nothing here; without a known stake nobody can tell."""
    if observer.live.stake(epoch) is None:
        click.echo(f"silent      {UNKNOWN}, without the stake of the epoch")
        return
    silent = [one for one in observer.live.pools(epoch) if not one.signed and one.stake]
    silent.sort(key=lambda one: -(one.stake or 0))
    share = sum(one.share_percent or 0.0 for one in silent)
    names = ", ".join(f"{one.pool_id[:12]}… {_percent(one.share_percent)}" for one in silent[:SILENT_SHOWN])
    click.echo(
        f"silent      {len(silent)} {'pool' if len(silent) == 1 else 'pools'} with {_percent(share)} of the stake{': ' if names else ''}{names}"
    )


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} %"


def _ada(lovelace: int) -> str:
    return f"{lovelace // 1_000_000:,} ADA".replace(",", " ")
