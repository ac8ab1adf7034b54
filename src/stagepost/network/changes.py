"""Changes of a network: the proposal of a next validator set or configuration, and a member's approval of it.

A proposal names the network, the configuration upon which it stands and the key block that brought it, so that it can be used
once and there alone, also where a later change takes it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from stagepost.chain.agreement.votes import VALIDATORS_MAX, quorum
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet, fault_in_change
from stagepost.errors import ConfigError, ConfigFaults, DecodeError, FileFault
from stagepost.full_node.network import NetworkMember, RempNetwork, faults_among
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.network.cards import HEX_SIGNATURE, MemberCard, faults_in_card, signed_form
from stagepost.network.founding import SET_LIFETIME_MS, set_of, shard_session_size

PROPOSAL_VERSION = 2
APPROVAL_VERSION = 1
PROPOSAL_BYTES_MAX = 1024 * 1024
APPROVAL_BYTES_MAX = 4_096
ADDED_MAX = VALIDATORS_MAX
"""New members, at most, that one proposal brings: operators look at each, and validators check the signature of each card."""

_PROPOSAL_DOMAIN = b"stagepost network proposal\x00"
_APPROVAL_DOMAIN = b"stagepost network approval\x00"


class SetChange(msgspec.Struct, frozen=True, kw_only=True):
    """Wish of the proposer. `shard_validators` and `session_lifetime_ms` None keep what follows or stands; `from_ms` is
    when the next set begins to serve, at the earliest: it begins amid a session.
    """

    from_ms: int
    add: tuple[MemberCard, ...] = ()
    remove: tuple[str, ...] = ()
    shard_validators: int | None = None
    session_lifetime_ms: int | None = None


class ChangeProposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`network`: hash of the genesis; `base`: hash of the configuration in force; `key_block`: number of the key block that
    brought it, 0 for the genesis; `configuration`: the proposed one; `added`: cards of members that the network file does
    not hold yet.
    """

    stagepost_proposal: int = PROPOSAL_VERSION
    network: str
    base: str
    key_block: int = -1
    configuration: str
    added: tuple[MemberCard, ...] = ()
    proposer: str
    signature: str = ""

    @property
    def hash(self) -> str:
        return sha256(self.signed_bytes).hexdigest()

    @property
    def signed_bytes(self) -> bytes:
        return signed_form(_PROPOSAL_DOMAIN, msgspec.structs.replace(self, signature=""))

    @property
    def proposed(self) -> Configuration:
        return Configuration.decode(bytes.fromhex(self.configuration))


class ChangeApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Agreement of a member to one proposal, for other operators to see."""

    stagepost_approval: int = APPROVAL_VERSION
    proposal: str
    member: str
    signature: str = ""

    @property
    def signed_bytes(self) -> bytes:
        return signed_form(_APPROVAL_DOMAIN, msgspec.structs.replace(self, signature=""))


def propose(
    network: RempNetwork, base: Configuration, change: SetChange, seed: bytes, key_block: int = 0
) -> ChangeProposal:
    """Return the signed proposal of a change upon `base`, which `key_block` brought; `ConfigFaults` with everything that
    stands against it.
    """
    proposer = member_with(network, ed25519.public_key(seed))
    expected = keys_of(expected_set(base))
    serving = [one for one in network.members if one.key in expected]
    faults = [
        FileFault(
            "next set", f"{key.hex()} is not in the network file: run `stagepost network set members` first"
        )
        for key in sorted(expected - set(network.public_keys))
    ]
    faults += [*_faults_in_removals(change.remove, network, serving), *_faults_in_additions(change, serving)]
    if faults:
        raise ConfigFaults({"the proposal": faults})
    staying = [member for member in serving if member.name not in change.remove]
    added = [card.member for card in change.add if card.is_validator]
    configuration = _changed(base, [*staying, *added], change)
    proposal = ChangeProposal(
        network=network.chain.hash.hex(),
        base=base.hash.hex(),
        key_block=key_block,
        configuration=configuration.encode().hex(),
        added=tuple(card for card in change.add if card.member not in network.members),
        proposer=proposer.name,
    )
    signed = msgspec.structs.replace(proposal, signature=ed25519.sign(seed, proposal.signed_bytes).hex())
    faults = faults_in_proposal(signed, network, base, key_block)
    if faults:
        raise ConfigFaults({"the proposal": faults})
    return signed


def expected_set(base: Configuration) -> ValidatorSet:
    """Return the set that serves next under `base`, or that goes on serving if none follows: a proposal changes this one."""
    return base.next or base.current


def keys_of(validators: ValidatorSet) -> set[bytes]:
    return {one.public_key for one in validators.validators}


def _faults_in_removals(
    names: Sequence[str], network: RempNetwork, serving: Sequence[NetworkMember]
) -> Iterator[FileFault]:
    known, in_set = {one.name for one in network.members}, {one.name for one in serving}
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield FileFault("remove", f"{name} leaves more than once")
        if name not in known:
            text = f"{name!r} is not a member of this network; members are {', '.join(sorted(known))}"
            yield FileFault("remove", text)
        elif name not in in_set:
            yield FileFault(
                "remove", f"{name} is not in the validator set, which has {', '.join(sorted(in_set))}"
            )


def _faults_in_additions(change: SetChange, serving: Sequence[NetworkMember]) -> Iterator[FileFault]:
    names, in_set = [card.name for card in change.add], {one.key for one in serving}
    for place, card in enumerate(change.add):
        if names.index(card.name) < place:
            yield FileFault("add", f"{card.name} joins more than once")
        elif card.key in in_set:
            yield FileFault(
                "add", f"{card.name} is in the validator set already: a card for it needs another key"
            )


def _amid(from_ms: int, lifetime_ms: int) -> int:
    """Return the first moment from `from_ms` on that is amid two ends of master sessions, which are multiples of their life: the
    set changes the sessions, too, and messages in flight live through one change more easily than through two.
    """
    return from_ms + (lifetime_ms // 2 - from_ms) % lifetime_ms


def _changed(base: Configuration, members: list[NetworkMember], change: SetChange) -> Configuration:
    keys, wanted = keys_of(expected_set(base)), {member.key for member in members}
    lifetime = change.session_lifetime_ms
    from_ms = _amid(change.from_ms, base.master_lifetime_ms)
    if wanted == keys:
        following = base.next
    elif wanted == keys_of(base.current):
        following = None  # the set that was to follow does not come
    else:
        following = ValidatorSet(from_ms, from_ms + SET_LIFETIME_MS, set_of(members))
    size = change.shard_validators
    if size is None:
        derived = base.shard_validators == shard_session_size(len(keys))
        size = shard_session_size(len(members)) if derived else base.shard_validators
    return msgspec.structs.replace(
        base,
        next=following,
        shard_validators=size,
        master_lifetime_ms=base.master_lifetime_ms if lifetime is None else lifetime,
        shard_lifetime_ms=base.shard_lifetime_ms if lifetime is None else lifetime,
    )


def has_taken_effect(proposal: ChangeProposal, network: RempNetwork, base: Configuration) -> bool:
    """Return whether `base`, the configuration in force, is the proposed one, with its next set still to come or at work."""
    if proposal.network != network.chain.hash.hex():
        return False
    try:
        proposed = proposal.proposed
    except (DecodeError, ValueError):
        return False
    if base == proposed:
        return True
    begun = proposed.next
    return begun is not None and base == msgspec.structs.replace(proposed, current=begun, next=None)


def faults_in_proposal(
    proposal: ChangeProposal, network: RempNetwork, base: Configuration, key_block: int = 0
) -> list[FileFault]:
    """Return everything that stands against a proposal in this network, whose configuration in force is `base`, brought by
    `key_block`.
    """
    if has_taken_effect(proposal, network, base):
        return [FileFault("configuration", "it is the one in force: nothing is left to approve")]
    faults = []
    if proposal.stagepost_proposal != PROPOSAL_VERSION:
        found = proposal.stagepost_proposal
        text = f"is {found}; this release reads {PROPOSAL_VERSION}: propose it anew"
        faults.append(FileFault("stagepost_proposal", text))
    if proposal.network != network.chain.hash.hex():
        faults.append(
            FileFault("network", f"is {proposal.network}, another network than {network.chain.hash.hex()}")
        )
    if proposal.base != base.hash.hex():
        faults.append(
            FileFault(
                "base",
                f"stands upon configuration {proposal.base}; in force is {base.hash.hex()}: propose it anew",
            )
        )
    elif proposal.key_block != key_block:
        text = f"stands upon key block {proposal.key_block}; the newest is {key_block}: propose it anew"
        faults.append(FileFault("key_block", text))
    faults += faults_in_cards(proposal)
    if not faults:
        faults += faults_among(joined(network, proposal.added).members)
    faults += faults_in_proposer(proposal, network)
    configuration = _proposed_in(proposal, faults)
    if configuration is None:
        return faults
    fault = fault_in_change(base, configuration)
    if fault is not None:
        faults.append(FileFault("configuration", fault))
    return faults + _faults_in_next_set(proposal, configuration, network, base)


def _proposed_in(proposal: ChangeProposal, faults: list[FileFault]) -> Configuration | None:
    try:
        return proposal.proposed
    except (DecodeError, ValueError) as error:
        faults.append(FileFault("configuration", f"cannot be read: {error}"))
        return None


def faults_in_proposer(proposal: ChangeProposal, network: RempNetwork) -> list[FileFault]:
    """Return why no member of the network made this proposal."""
    return _faults_in_signature(proposal.proposer, proposal.signature, proposal.signed_bytes, network)


def faults_in_cards(proposal: ChangeProposal) -> list[FileFault]:
    """Return everything that is wrong in the cards of a proposal's new members."""
    if len(proposal.added) > ADDED_MAX:
        return [
            FileFault("added", f"{len(proposal.added)} new members; a proposal brings at most {ADDED_MAX}")
        ]
    return [
        FileFault(f"added {card.name}: {fault.where}", fault.text)
        for card in proposal.added
        for fault in faults_in_card(card)
    ]


def _faults_in_next_set(
    proposal: ChangeProposal, configuration: Configuration, network: RempNetwork, base: Configuration
) -> list[FileFault]:
    if configuration.current != base.current:
        return [FileFault("configuration", "changes the set in force; a proposal names the next set alone")]
    if configuration.next is None:
        return []
    present = {one.public_key for one in base.current.validators}
    following = {one.public_key for one in configuration.next.validators}
    # As text: a card that has faults of its own need not hold a key.
    known = {one.public_key for one in network.members if one.is_validator}
    known |= {card.public_key for card in proposal.added if card.is_validator}
    faults = [
        FileFault("next set", f"key {key} is not that of a validator with a card")
        for key in sorted({key.hex() for key in following} - known)
    ]
    faults += [
        FileFault("next set", f"validator {one.public_key.hex()} does not have the weight and id of its key")
        for one in configuration.next.validators
        if one != ChainValidator(one.public_key, key_id(one.public_key))
    ]
    begins_ms, ends_ms = configuration.next.from_ms, configuration.next.until_ms
    if begins_ms >= base.current.until_ms:
        faults.append(FileFault("next set", "begins after the end of the present one"))
    if ends_ms != begins_ms + SET_LIFETIME_MS:
        text = "is not planned for ten years: after its end nobody could propose the set that follows it"
        faults.append(FileFault("next set", text))
    needed = quorum(len(present))
    if len(present & following) < needed:
        text = f"keeps {len(present & following)} of {len(present)} validators; {needed} must stay: change it in steps"
        faults.append(FileFault("next set", text))
    return faults


def faults_in_reach(proposal: ChangeProposal, network: RempNetwork) -> list[FileFault]:
    """Return the validators of the proposed set that this network file has no address of: a node that votes for them could
    not reach them. The proposal has no other fault.
    """
    following = proposal.proposed.next
    known = set(network.public_keys)
    names = {card.key: card.name for card in proposal.added}
    return [
        FileFault(
            "next set",
            f"{names.get(one.public_key, one.public_key.hex())} is not in the network file: run "
            "`stagepost network set members` on every machine first",
        )
        for one in (() if following is None else following.validators)
        if one.public_key not in known
    ]


def settings_changed(base: Configuration, after: Configuration) -> dict[str, str]:
    """Return each setting that changes, by name, as "before -> after"; the validator sets are not settings."""
    before, later = (_settings(one) for one in (base, after))
    return {name: f"{before[name]} -> {later[name]}" for name in before if before[name] != later[name]}


def _settings(configuration: Configuration) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(configuration).items():
        if name in ("current", "next"):
            continue
        if isinstance(value, msgspec.Struct):
            found |= {f"{name}.{inner}": one for inner, one in msgspec.structs.asdict(value).items()}
        else:
            found[name] = getattr(value, "name", value)
    return found


def approve(proposal: ChangeProposal, network: RempNetwork, seed: bytes) -> ChangeApproval:
    """Return the approval of the member with this secret; the caller has checked the proposal."""
    member = member_with(network, ed25519.public_key(seed))
    if not member.is_validator:
        raise ConfigError(
            f"{member.name} is a full node, and validators approve proposals",
            advice="give the key of a validator with --key, and its data folder with --data",
        )
    approval = ChangeApproval(proposal=proposal.hash, member=member.name)
    return msgspec.structs.replace(approval, signature=ed25519.sign(seed, approval.signed_bytes).hex())


def faults_in_approval(
    approval: ChangeApproval, proposal: ChangeProposal, network: RempNetwork
) -> list[FileFault]:
    """Return why this is not an approval of this proposal by a validator of the network."""
    if approval.stagepost_approval != APPROVAL_VERSION:
        found = approval.stagepost_approval
        return [FileFault("stagepost_approval", f"is {found}; this release reads {APPROVAL_VERSION}")]
    if approval.proposal != proposal.hash:
        return [FileFault("proposal", f"approves {approval.proposal}, another proposal than {proposal.hash}")]
    return _faults_in_signature(approval.member, approval.signature, approval.signed_bytes, network)


def approving(approvals: Sequence[ChangeApproval], network: RempNetwork, base: Configuration) -> list[str]:
    """Return the names of the validators in force among those who approved, each once."""
    present = {one.public_key for one in base.current.validators}
    names = {one.member for one in approvals}
    return sorted(member.name for member in network.members if member.name in names and member.key in present)


def joined(network: RempNetwork, cards: Sequence[MemberCard]) -> RempNetwork:
    """Return the network with the members on `cards` behind the others: the places of members never change."""
    held = set(network.members)
    added = tuple(card.member for card in cards if card.member not in held)
    return msgspec.structs.replace(network, members=(*network.members, *added))


def cards_of(source: ChangeProposal | MemberCard) -> tuple[MemberCard, ...]:
    """Return the cards of the members that a proposal adds, or the card itself."""
    return (source,) if isinstance(source, MemberCard) else source.added


def faults_in_joining(network: RempNetwork, source: ChangeProposal | MemberCard) -> list[FileFault]:
    """Return why the new members of a proposal, or the full node on a card, cannot be added to the network file."""
    if isinstance(source, MemberCard):
        faults = faults_in_card(source)
        if source.is_validator:
            text = "is a validator: it joins by a proposal, `stagepost network set propose --add CARD`"
            faults.append(FileFault(source.name, text))
        return faults + faults_among(joined(network, [source]).members)
    faults = faults_in_cards(source) + faults_in_proposer(source, network)
    if source.network != network.chain.hash.hex():
        faults.append(FileFault("network", f"is {source.network}, another network"))
    return faults + faults_among(joined(network, source.added).members)


def member_with(network: RempNetwork, public_key: bytes) -> NetworkMember:
    """Return the member with this key; `ConfigError` if there is none."""
    return network.members[network.place_of(public_key)]


def _faults_in_signature(name: str, signature: str, signed: bytes, network: RempNetwork) -> list[FileFault]:
    member = next((one for one in network.members if one.name == name), None)
    if member is None:
        return [FileFault("signature", f"is that of {name}, who is not a member of this network")]
    is_valid = HEX_SIGNATURE.fullmatch(signature) is not None and ed25519.verify(
        member.key, signed, bytes.fromhex(signature)
    )
    return [] if is_valid else [FileFault("signature", f"is not that of {name}")]
