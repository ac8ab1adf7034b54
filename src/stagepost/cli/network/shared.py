"""Parts that the commands of `stagepost network` share: options, the configuration in force, output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stagepost.chain.configuration import Configuration
    from stagepost.full_node.network import RempNetwork

FILE = click.Path(path_type=Path)

network_option = click.option(
    "--network", required=True, metavar="FILE", type=FILE, help="The network file, network.json."
)
key_option = click.option(
    "--key", required=True, metavar="FILE", type=FILE, help="Signing key of a member, member.skey."
)
out_option = click.option("--out", required=True, metavar="FILE", type=FILE, help="File to write.")


def in_force(described: RempNetwork, data: Path) -> tuple[Configuration, dict[str, Any]]:
    """Return the configuration in force by the chain in a data folder, and the master block that says so."""
    from stagepost.chain.node.reading import chain_folders, read_chain, read_ledger
    from stagepost.errors import ConfigError

    folder = chain_folders(data)[0]
    if read_chain(folder).genesis.hash != described.chain.hash:
        raise ConfigError(
            f"the chain in {folder} is of another network than {described.chain.name}",
            advice="give the data folder of a member of this network",
        )
    master = read_ledger(folder).master
    facts = {
        "master_block": master.seqno,
        "key_block": master.last_key_block_seqno,
        "time_ms": master.time_ms,
    }
    return master.configuration, facts


def print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts as one JSON object, or a line each; an empty list is "none"."""
    import msgspec

    if as_json:
        click.echo(msgspec.json.encode(facts).decode())
        return
    width = max(len(name) for name in facts) + 2
    for name, value in facts.items():
        text = ", ".join(value) or "none" if isinstance(value, list) else value
        if text is not None:
            click.echo(f"{name.replace('_', ' '):<{width}}{text}")


def moment(time_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")


def require_unused(out: Path, content: bytes | None = None) -> None:
    """Refuse to write over a file, which may be a key or a network file; one that holds `content` already may stay."""
    from stagepost.errors import ConfigError

    if not out.is_symlink() and (
        not out.exists() or (content is not None and out.is_file() and out.read_bytes() == content)
    ):
        return
    raise ConfigError(f"{out} exists and is not overwritten", advice="give another file with --out")


def pretty(content: bytes) -> bytes:
    import msgspec

    return msgspec.json.format(content, indent=1) + b"\n"
