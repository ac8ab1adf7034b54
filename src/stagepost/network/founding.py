"""Founding of a network: the network file, with the genesis of its chain, from the cards of its members."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stagepost.chain.agreement.votes import VALIDATORS_MAX
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet, fault_in
from stagepost.chain.genesis import NAME_BYTES_MAX, Genesis
from stagepost.errors import ConfigFaults, FileFault
from stagepost.full_node.network import MAGIC_MAX, NetworkMember, RempNetwork, faults_among
from stagepost.ground.wire.tl import key_id
from stagepost.network.cards import MemberCard

SET_LIFETIME_MS = 10 * 365 * 86_400_000
"""Milliseconds for which a validator set serves, unless another one follows it earlier."""

SHARD_SESSIONS_FROM = 7
"""Validators of a set, at least, for shard sessions that are smaller than the set."""

SHARD_SESSION_MIN = 5
"""Validators of a shard session, at least, where it is smaller than the set."""


class FoundingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Choices of the founders. `shard_validators` None takes the size that follows from the number of validators."""

    name: str
    network_magic: int
    begins_ms: int
    session_lifetime_ms: int = 250_000
    shard_validators: int | None = None
    takes_cells: bool = False


def shard_session_size(validators: int) -> int:
    """Return the validators of a shard session: the least odd number of at least half of the set, and at least five.

    0, which means all, for sets of fewer than seven.
    """
    if validators < SHARD_SESSIONS_FROM:
        return 0
    return max(SHARD_SESSION_MIN, (validators + 1) // 2 | 1)


def found_network(cards: Mapping[str, MemberCard], terms: FoundingTerms) -> RempNetwork:
    """Return the network of these cards, which are named by their files; `ConfigFaults` with all that is wrong.

    The same cards and terms give the same bytes, in whatever order the cards come.
    """
    members = tuple(
        sorted((card.member for card in cards.values()), key=lambda one: (not one.is_validator, one.name))
    )
    faults = faults_among(members)
    validators = [one for one in members if one.is_validator]
    if not 1 <= len(validators) <= VALIDATORS_MAX:
        faults.append(
            FileFault("members", f"{len(validators)} are validators; a network has 1 to {VALIDATORS_MAX}")
        )
    if len(validators) == len(members):
        faults.append(FileFault("members", "none is a full node, so nobody could hand in a message"))
    if not 0 <= terms.network_magic <= MAGIC_MAX:
        faults.append(FileFault("network_magic", f"{terms.network_magic} is not 0 to {MAGIC_MAX}"))
    if not terms.name.isprintable():
        faults.append(FileFault("name", f"{terms.name!r} has characters that cannot be printed"))
    elif not 1 <= len(terms.name.encode()) <= NAME_BYTES_MAX:
        faults.append(FileFault("name", f"has {len(terms.name.encode())} bytes, not 1 to {NAME_BYTES_MAX}"))
    configuration = _first_configuration(validators, terms)
    fault = fault_in(configuration) if validators else None
    if fault is not None:
        faults.append(FileFault("configuration", fault))
    if faults:
        raise ConfigFaults({"the network of these cards": faults})
    genesis = Genesis(terms.name, terms.begins_ms, configuration)
    return RempNetwork(terms.network_magic, genesis.encode().hex(), members)


def _first_configuration(validators: list[NetworkMember], terms: FoundingTerms) -> Configuration:
    size = terms.shard_validators
    return Configuration(
        ValidatorSet(terms.begins_ms, terms.begins_ms + SET_LIFETIME_MS, set_of(validators)),
        shard_validators=shard_session_size(len(validators)) if size is None else size,
        master_lifetime_ms=terms.session_lifetime_ms,
        shard_lifetime_ms=terms.session_lifetime_ms,
        must_expire=not terms.takes_cells,
        takes_cells=terms.takes_cells,
    )


def set_of(members: list[NetworkMember]) -> tuple[ChainValidator, ...]:
    """Return the members as validators of a set."""
    return tuple(ChainValidator(one.key, key_id(one.key)) for one in members)
