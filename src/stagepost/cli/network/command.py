"""`stagepost network`: found, join, change or show a network of validators and full nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.network.changes import change
from stagepost.cli.network.shared import FILE, in_force, moment, network_option, out_option, pretty
from stagepost.cli.options.shared import duration_option, json_option, print_table, printable

if TYPE_CHECKING:
    from stagepost.chain.configuration import Configuration
    from stagepost.errors import FileFault
    from stagepost.full_node.network import RempNetwork
    from stagepost.network.cards import MemberCard

KEY_FILE, CARD_FILE = "member.skey", "member.json"


@click.group()
def network() -> None:
    """Found, join, change or show a network of validators and full nodes.

    Each operator makes a key and a member card with `join`. One operator makes the network file from all cards with
    `init`. Later sets of validators are proposed and approved with `set`.

    \b
    Example:
      stagepost network join validator-1 --name validator-1 --address 10.0.0.1:4001
      stagepost network init */member.json --name example --out network.json
    """


@network.command()
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--name", help="Name of this member: lower-case letters, digits, hyphens.")
@click.option("--address", metavar="HOST:PORT", help="Address at which the other members reach this one.")
@click.option("--full-node", is_flag=True, help="The member is a full node, not a validator.")
@click.option(
    "--network",
    "network_file",
    metavar="FILE",
    type=FILE,
    help="Check this network file for the member in DIR.",
)
@click.option(
    "--genesis", metavar="HASH", help="With --network: the hash of the genesis that the operators agreed on."
)
@json_option
def join(
    folder: Path,
    name: str | None,
    address: str | None,
    full_node: bool,
    network_file: Path | None,
    genesis: str | None,
    as_json: bool,
) -> None:
    """Make a member's key and card in DIR; with --network, check that a network file holds that member.

    The key, member.skey, stays on this machine. The card, member.json, is public: send it to the operator who runs
    `network init`, or who proposes the next set. No existing file is changed.

    \b
    Example:
      stagepost network join validator-1 --name validator-1 --address 10.0.0.1:4001
      stagepost network join validator-1 --network network.json
    """
    if network_file is not None:
        if name is not None or address is not None or full_node:
            raise click.UsageError(
                "--network checks the member that DIR holds: give it without --name and --address"
            )
        _check_membership(folder, network_file, genesis, as_json)
        return
    if name is None or address is None:
        raise click.UsageError("give --name and --address to make a member, or --network to check one")
    if genesis is not None:
        raise click.UsageError("--genesis is checked together with --network")
    _make_member(folder, name, address, not full_node, as_json)


def _make_member(folder: Path, name: str, address: str, is_validator: bool, as_json: bool) -> None:
    import secrets

    import msgspec

    from stagepost.cli.options.shared import disable_core_dumps
    from stagepost.dmq.key_texts import ColdSigningKey
    from stagepost.dmq.keys import key_files
    from stagepost.errors import ConfigError
    from stagepost.full_node.network import FILE_MODE
    from stagepost.ground.files.data_folder import make_private
    from stagepost.ground.files.small_files import replace_file
    from stagepost.ground.net.network import TcpAddress, parse_address
    from stagepost.network.cards import make_card

    disable_core_dumps()
    where = parse_address(address)
    if not isinstance(where, TcpAddress):
        raise ConfigError(f"{address} is not HOST:PORT", advice="write it as in 10.0.0.1:4001")
    for file in (KEY_FILE, CARD_FILE):
        if (folder / file).exists():
            raise ConfigError(
                f"{folder / file} exists: a member's key is made once",
                advice="use another folder, or check the member with --network",
            )
    seed = secrets.token_bytes(32)
    card = make_card(seed, name, where.host, where.port, is_validator=is_validator)
    make_private(folder, "member folder", advice="choose another folder")
    key_files.save(folder / KEY_FILE, ColdSigningKey(seed))
    replace_file(folder / CARD_FILE, pretty(msgspec.json.encode(card)), FILE_MODE)
    if as_json:
        click.echo(msgspec.json.encode(card).decode())
        return
    click.echo(f"member      {card.name}, {'validator' if is_validator else 'full node'}, {where}")
    click.echo(f"public key  {card.public_key}")
    click.echo(f"secret      {folder / KEY_FILE}   stays on this machine")
    click.echo(f"card        {folder / CARD_FILE}   send it to the operator who founds the network")


def _check_membership(folder: Path, network_file: Path, genesis: str | None, as_json: bool) -> None:
    import msgspec

    from stagepost.errors import ConfigFaults, FileFault
    from stagepost.full_node.network import load_network
    from stagepost.full_node.process import seed_of
    from stagepost.ground.crypto import ed25519
    from stagepost.network.cards import load_card

    described = load_network(network_file, genesis)
    card = load_card(folder / CARD_FILE)
    found = described.chain.hash.hex()
    faults = []
    if ed25519.public_key(seed_of(folder / KEY_FILE)) != card.key:
        faults.append(FileFault(str(folder / KEY_FILE), f"is not the secret of {folder / CARD_FILE}"))
    if card.member not in described.members:
        faults.append(
            FileFault("members", f"{card.name} with the key and address of {folder / CARD_FILE} is missing")
        )
    if faults:
        raise ConfigFaults({str(network_file): faults})
    if as_json:
        click.echo(msgspec.json.encode({"member": card.name, "genesis": found}).decode())
        return
    role = "validator" if card.is_validator else "full"
    click.echo(f"{card.name} is a member of {printable(described.chain.name)}")
    click.echo(f"genesis     {found}   compare it with the other operators")
    click.echo(
        f"start it    stagepost node {role} --network {network_file} --genesis {found} --key {folder / KEY_FILE} "
        f"--data {folder / 'data'}"
    )


@network.command()
@click.argument("cards", metavar="CARD...", nargs=-1, required=True, type=FILE)
@click.option("--name", required=True, help="Name of the network, up to 64 bytes.")
@out_option
@click.option(
    "--magic",
    type=click.IntRange(0, 2**32 - 1),
    help="Network magic of its links. [from the name of the network]",
)
@duration_option("--session-lifetime", "lifetime_s", default="250s", help="Life of a session of validators.")
@click.option(
    "--shard-validators",
    type=click.IntRange(0, 100),
    help="Validators of a shard session, 0 for all. [all; of seven or more, half of them, odd, and at least 5]",
)
@click.option(
    "--takes-cells",
    is_flag=True,
    help="Also take bags of cells. They have no expiry, so the network cannot prove that one will never be executed.",
)
@json_option
def init(
    cards: Sequence[Path],
    name: str,
    out: Path,
    magic: int | None,
    lifetime_s: float,
    shard_validators: int | None,
    takes_cells: bool,
    as_json: bool,
) -> None:
    """Make the network file, with the genesis of its chain, from the cards of all members.

    Every CARD is a member.json. Send the file to all operators; each checks it with `network join DIR --network FILE`, and
    all compare the hash of the genesis. The file holds no secret. An existing file is not changed.

    \b
    Example:
      stagepost network init */member.json --name example --out network.json
    """
    import time
    from hashlib import sha256

    from stagepost.errors import ConfigError, ConfigFaults
    from stagepost.network.cards import load_card
    from stagepost.network.founding import FoundingTerms, found_network

    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists: a network is founded once", advice="give another file with --out")
    twice = sorted({str(path) for path in cards if cards.count(path) > 1})
    if twice:
        raise ConfigError(
            f"{', '.join(twice)}: given more than once", advice="give the card of each member once"
        )
    read: dict[str, MemberCard] = {}
    faults: dict[str, Sequence[FileFault]] = {}
    for path in cards:
        try:
            read[str(path)] = load_card(path)
        except ConfigFaults as error:
            faults |= error.faults
    if faults:
        raise ConfigFaults(faults)
    terms = FoundingTerms(
        name=name,
        network_magic=int.from_bytes(sha256(name.encode(errors="replace")).digest()[:4])
        if magic is None
        else magic,
        begins_ms=int(time.time() * 1_000),
        session_lifetime_ms=int(lifetime_s * 1_000),
        shard_validators=shard_validators,
        takes_cells=takes_cells,
    )
    described = found_network(read, terms)
    described.write(out)
    _print_network(described, described.chain.configuration, {}, as_json)


@network.command()
@network_option
@click.option(
    "--data", metavar="DIR", type=FILE, help="Data folder of a member; gives the configuration in force."
)
@json_option
def show(network: Path, data: Path | None, as_json: bool) -> None:
    """Show the members of a network, its validator set in force and the next one.

    Without --data the command knows the first configuration alone, and says so.

    \b
    Example:
      stagepost network show --network network.json --data validator-1/data
    """
    from stagepost.full_node.network import load_network

    described = load_network(network)
    facts: dict[str, Any] = {}
    configuration = described.chain.configuration
    if data is not None:
        configuration, facts = in_force(described, data)
    _print_network(described, configuration, facts, as_json)


def _print_network(
    described: RempNetwork, configuration: Configuration, facts: Mapping[str, Any], as_json: bool
) -> None:
    import msgspec

    from stagepost.chain.agreement.votes import quorum

    present = {one.public_key for one in configuration.current.validators}
    following = (
        None if configuration.next is None else {one.public_key for one in configuration.next.validators}
    )
    rows = [
        {
            "name": member.name,
            "role": "validator" if member.is_validator else "full node",
            "address": str(member.address),
            "in_set": member.key in present,
            "in_next_set": None if following is None else member.key in following,
            "public_key": member.public_key,
        }
        for member in described.members
    ]
    summary = {
        "name": described.chain.name,
        "genesis": described.chain.hash.hex(),
        "network_magic": described.network_magic,
        "configuration": configuration.hash.hex(),
        "validators": len(present),
        "quorum": quorum(len(present)),
        "shard_validators": configuration.shard_validators or len(present),
        "must_expire": configuration.must_expire,
        "next_from_ms": None if configuration.next is None else configuration.next.from_ms,
        **facts,
    }
    if as_json:
        click.echo(msgspec.json.encode({**summary, "members": rows}).decode())
        return
    click.echo(f"network     {printable(described.chain.name)}, magic {described.network_magic}")
    click.echo(f"genesis     {summary['genesis']}")
    source = (
        f"master block {facts['master_block']}" if facts else "the genesis: give --data for the one in force"
    )
    click.echo(f"configured  {summary['configuration'][:16]}… by {source}")
    click.echo(
        f"set         {len(present)} validators, {summary['quorum']} make a quorum; "
        f"{summary['shard_validators']} in a shard session"
    )
    if following is not None and configuration.next is not None:
        click.echo(f"next set    {len(following)} validators, from {moment(configuration.next.from_ms)}")
    if not configuration.must_expire:
        click.echo(
            "expiry      messages need none here: nobody can prove that such a message will never be executed"
        )
    click.echo()
    places = {True: "in the set", False: "", None: ""}
    table = [
        (
            str(row["name"]),
            str(row["role"]),
            str(row["address"]),
            places[bool(row["in_set"])] + _change(row["in_set"], row["in_next_set"]),
            str(row["public_key"])[:16] + "…",
        )
        for row in rows
    ]
    print_table(("member", "role", "address", "set", "public key"), table)


def _change(in_set: object, in_next: object) -> str:
    if in_next is None or in_set == in_next:
        return ""
    return ", leaves" if in_set else "joins"


network.add_command(change)
