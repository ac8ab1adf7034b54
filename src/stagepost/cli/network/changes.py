"""`stagepost network set`: propose, approve, withdraw or show a change of a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.network.shared import (
    FILE,
    in_force,
    key_option,
    moment,
    network_option,
    out_option,
    pretty,
    print_facts,
    require_unused,
)
from stagepost.cli.options.shared import duration_option, json_option

if TYPE_CHECKING:
    from stagepost.chain.configuration import Configuration
    from stagepost.full_node.network import RempNetwork
    from stagepost.network.cards import MemberCard
    from stagepost.network.changes import ChangeProposal


@click.group(name="set")
def change() -> None:
    """Propose, approve, withdraw or show the next validator set or configuration.

    A change takes effect when more than two thirds of the validators vote for it; each votes for a proposal after its operator has approved it.

    \b
    Example:
      stagepost network set propose --network network.json --data validator-1/data --key validator-1/member.skey \\
        --add validator-5/member.json --out proposal.json
    """


@change.command()
@network_option
@key_option
@click.option(
    "--data",
    required=True,
    metavar="DIR",
    type=FILE,
    help="Data folder of a member; gives the configuration in force.",
)
@click.option(
    "--add", multiple=True, metavar="CARD", type=FILE, help="Card of a member that joins; may be repeated."
)
@click.option(
    "--remove", multiple=True, metavar="NAME", help="Validator that leaves the set; may be repeated."
)
@click.option(
    "--replace",
    multiple=True,
    metavar="NAME=CARD",
    help="Replace the validator NAME by the member on CARD, for example to change its key.",
)
@duration_option("--in", "in_s", default="10m", help="Time from now at which the next set begins to serve.")
@click.option(
    "--shard-validators", type=click.IntRange(0, 100), help="Validators of a shard session, 0 for all."
)
@duration_option("--session-lifetime", "lifetime_s", default=None, help="Life of a session of validators.")
@out_option
@json_option
def propose(
    network: Path,
    key: Path,
    data: Path,
    add: Sequence[Path],
    remove: Sequence[str],
    replace: Sequence[str],
    in_s: float,
    shard_validators: int | None,
    lifetime_s: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """Write a signed proposal of the next set or configuration. Nothing changes until validators approve it.

    \b
    Example:
      stagepost network set propose --network network.json --data validator-1/data --key validator-1/member.skey \\
        --add validator-5/member.json --remove validator-2 --out proposal.json
    """
    import time

    import msgspec

    from stagepost.errors import ConfigError
    from stagepost.full_node.network import FILE_MODE, load_network
    from stagepost.full_node.process import seed_of
    from stagepost.ground.files.small_files import replace_file
    from stagepost.network.cards import load_card
    from stagepost.network.changes import SetChange
    from stagepost.network.changes import propose as proposal_of

    require_unused(out)
    described = load_network(network)
    base, block = in_force(described, data)
    pairs = [one.partition("=") for one in replace]
    wrong = [name for name, sign, card in pairs if not (name and sign and card)]
    if wrong:
        raise ConfigError(
            f"--replace {wrong[0]!r} is not NAME=CARD", advice="write it as in validator-2=new/member.json"
        )
    wish = SetChange(
        from_ms=int((time.time() + in_s) * 1_000),
        add=tuple(load_card(path) for path in (*add, *(Path(card) for _, _, card in pairs))),
        remove=(*remove, *(name for name, _, _ in pairs)),
        shard_validators=shard_validators,
        session_lifetime_ms=None if lifetime_s is None else int(lifetime_s * 1_000),
    )
    proposal = proposal_of(described, base, wish, seed_of(key), block["key_block"])
    replace_file(out, pretty(msgspec.json.encode(proposal)), FILE_MODE)
    print_facts(_proposal_facts(proposal, described, base), as_json)


@change.command()
@click.argument("proposal", metavar="PROPOSAL", type=FILE)
@network_option
@key_option
@click.option(
    "--data", required=True, metavar="DIR", type=FILE, help="Data folder of the validator that approves."
)
@click.option(
    "--out", metavar="FILE", type=FILE, help="Also write the signed approval, for other operators to see."
)
@json_option
def approve(proposal: Path, network: Path, key: Path, data: Path, out: Path | None, as_json: bool) -> None:
    """Let the validator of this data folder vote for a proposal, from now on and after a restart.

    \b
    Example:
      stagepost network set approve proposal.json --network network.json --key validator-1/member.skey \\
        --data validator-1/data
    """
    import msgspec

    from stagepost.errors import ConfigFaults
    from stagepost.full_node.network import FILE_MODE, load_network
    from stagepost.full_node.process import seed_of
    from stagepost.ground.crypto import ed25519
    from stagepost.ground.files.audit import record_action, user_name
    from stagepost.ground.files.data_folder import require_owner
    from stagepost.ground.files.small_files import replace_file
    from stagepost.network.approvals import require_validators_user, write_approved
    from stagepost.network.changes import approve as approval_of
    from stagepost.network.changes import approving, faults_in_proposal, faults_in_reach

    described, found = load_network(network), _load_proposal(proposal)
    base, block = in_force(described, data)
    faults = faults_in_proposal(found, described, base, block["key_block"]) or faults_in_reach(
        found, described
    )
    if faults:
        raise ConfigFaults({str(proposal): faults})
    seed = seed_of(key)
    approval = approval_of(found, described, seed)
    content = pretty(msgspec.json.encode(approval))
    require_owner(data, ed25519.public_key(seed))
    if out is not None:
        require_unused(out, content)
    require_validators_user(data)
    record_action(data, f"network set approve {found.hash}", through="cli", who=user_name())
    write_approved(data, found)
    if out is not None:
        replace_file(out, content, FILE_MODE)
    click.echo(f"approved    {found.hash}")
    click.echo(
        f"by          {approval.member}; its validator votes for it within a second, or when it starts"
    )
    if not approving([approval], described, base):
        click.echo(f"but         {approval.member} is not in the set in force: this approval does not count")


@change.command()
@click.argument("proposal", metavar="PROPOSAL", type=FILE)
@click.option("--data", required=True, metavar="DIR", type=FILE, help="Data folder of the validator.")
@json_option
def withdraw(proposal: Path, data: Path, as_json: bool) -> int:
    """Take an approval back, as long as the proposal has not taken effect. Exit code 1 if there was none.

    \b
    Example:
      stagepost network set withdraw proposal.json --data validator-1/data
    """
    from stagepost.errors import StorageError
    from stagepost.ground.files.audit import record_action, user_name
    from stagepost.network.approvals import withdraw as withdraw_approval

    found = _load_proposal(proposal)
    if not data.is_dir():
        raise StorageError(
            f"there is no folder {data}", advice="give the data folder of the validator with --data"
        )
    record_action(data, f"network set withdraw {found.hash}", through="cli", who=user_name())
    was_there = withdraw_approval(data, found)
    print_facts({"withdrawn" if was_there else "not_approved_here": found.hash}, as_json)
    return DONE if was_there else NOT_THAT_OUTCOME


@change.command(name="show")
@click.argument("proposal", metavar="PROPOSAL", type=FILE)
@click.argument("approvals", metavar="[APPROVAL]...", nargs=-1, type=FILE)
@network_option
@click.option(
    "--data",
    required=True,
    metavar="DIR",
    type=FILE,
    help="Data folder of a member; gives the configuration in force.",
)
@json_option
def show_proposal(proposal: Path, approvals: Sequence[Path], network: Path, data: Path, as_json: bool) -> int:
    """Check a proposal and its approvals, and show what would change. Exit code 1 while approvals are missing.

    \b
    Example:
      stagepost network set show proposal.json approval-*.json --network network.json --data validator-1/data
    """
    from stagepost.chain.agreement.votes import quorum
    from stagepost.errors import ConfigFaults
    from stagepost.full_node.network import load_network
    from stagepost.network.cards import load_json
    from stagepost.network.changes import (
        APPROVAL_BYTES_MAX,
        ChangeApproval,
        approving,
        faults_in_approval,
        faults_in_proposal,
        has_taken_effect,
    )

    described, found = load_network(network), _load_proposal(proposal)
    base, block = in_force(described, data)
    if has_taken_effect(found, described, base):
        following = found.proposed.next
        begins = None if following is None else moment(following.from_ms)
        state = "it has taken effect: nothing is left to approve"
        print_facts(
            {"proposal": found.hash, "proposer": found.proposer, "state": state, "from": begins}, as_json
        )
        return DONE
    faults = {str(proposal): faults_in_proposal(found, described, base, block["key_block"])}
    read = []
    for path in approvals:
        one = load_json(path, APPROVAL_BYTES_MAX, "an approval", ChangeApproval)
        faults[str(path)] = faults_in_approval(one, found, described)
        read.append(one)
    if any(faults.values()):
        raise ConfigFaults(faults)
    names = approving(read, described, base)
    needed = quorum(len(base.current.validators))
    facts = _proposal_facts(found, described, base)
    print_facts({**facts, "approved_by": names, "approvals_needed": needed}, as_json)
    return DONE if len(names) >= needed else NOT_THAT_OUTCOME


@change.command()
@click.argument("source", metavar="PROPOSAL|CARD", type=FILE)
@network_option
@json_option
def members(source: Path, network: Path, as_json: bool) -> None:
    """Add the new members of a proposal, or the full node on a card, to the network file; members keep their places.

    Do this on every machine before the proposal is approved: nodes must know the addresses of the members that join. A
    full node is in no set, so its card is enough. A running node takes up the new members within a second.

    \b
    Example:
      stagepost network set members proposal.json --network network.json
      stagepost network set members full-node-2/member.json --network network.json
    """
    from stagepost.errors import ConfigFaults
    from stagepost.full_node.network import load_network
    from stagepost.ground.files.audit import record_action, user_name
    from stagepost.network.changes import cards_of, faults_in_joining, joined

    described, found = load_network(network), _load_joining(source)
    faults = faults_in_joining(described, found)
    if faults:
        raise ConfigFaults({str(source): faults})
    after = joined(described, cards_of(found))
    names = ", ".join(one.name for one in after.members[len(described.members) :])
    record_action(network.resolve().parent, f"network set members {names}", through="cli", who=user_name())
    after.write(network.resolve())  # a link goes on naming the file that nodes read
    new = [one.name for one in after.members[len(described.members) :]]
    print_facts({"network": str(network), "members": len(after.members), "new": new}, as_json)


def _load_joining(path: Path) -> ChangeProposal | MemberCard:
    """Read the proposal or the member card at `path`."""
    import msgspec

    from stagepost.network.cards import MemberCard, load_json
    from stagepost.network.changes import PROPOSAL_BYTES_MAX

    content = load_json(path, PROPOSAL_BYTES_MAX, "a proposal or a member card", dict[str, msgspec.Raw])
    if "stagepost_member" in content:
        return load_json(path, PROPOSAL_BYTES_MAX, "a member card", MemberCard)
    return _load_proposal(path)


def _load_proposal(path: Path) -> ChangeProposal:
    from stagepost.network.cards import load_json
    from stagepost.network.changes import PROPOSAL_BYTES_MAX, ChangeProposal

    return load_json(path, PROPOSAL_BYTES_MAX, "a proposal", ChangeProposal)


def _proposal_facts(proposal: ChangeProposal, described: RempNetwork, base: Configuration) -> dict[str, Any]:
    """Return all that a proposal would change, by names."""
    from stagepost.network.changes import expected_set, joined, keys_of, settings_changed

    after, pending = proposal.proposed, base.next
    names = {member.key: member.name for member in joined(described, proposal.added).members}
    present, following = keys_of(expected_set(base)), keys_of(expected_set(after))
    replaced = (
        None if pending is None or pending == after.next else f"the next set, {moment(pending.from_ms)}"
    )
    return {
        "proposal": proposal.hash,
        "proposer": proposal.proposer,
        "instead_of": replaced,
        "validators": len(base.current.validators),
        "validators_next": len(following),
        "joins": sorted(names.get(key, key.hex()) for key in following - present),
        "leaves": sorted(names.get(key, key.hex()) for key in present - following),
        "from": None if after.next is None else moment(after.next.from_ms),
        "new_members": [
            f"{card.name} ({'validator' if card.is_validator else 'full node'} at {card.member.address})"
            for card in proposal.added
        ],
        "settings": [f"{name}: {change}" for name, change in settings_changed(base, after).items()],
    }
