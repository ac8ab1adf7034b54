"""What must hold of the chains of receipts, seen by somebody who reads the topics of all full nodes together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from stagepost.ground.crypto import ed25519
from stagepost.remp.receipts.chain_faults import LinkedReceipt, fault_between, why_unbound
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import LINK_HEADER, read_link_header

if TYPE_CHECKING:
    from tests.worlds.remp.primes_world import PrimesWorld

Chains = dict[tuple[bytes, bytes, bytes], list[LinkedReceipt]]
"""By validator, session and message."""


def chains_on_topics(world: PrimesWorld) -> tuple[Chains, list[tuple[bytes, str]]]:
    """Return the chains of all validators; and by validator, the receipts that no statement binds."""
    keys = {house.key_id: ed25519.public_key(house.seed) for house in world.validators}
    chains: Chains = defaultdict(list)
    unbound: list[tuple[bytes, str]] = []
    for house in world.full_nodes:
        for record in house.records():
            receipt = Receipt.from_json(record.value or b"")
            if receipt.source_id not in keys:
                continue
            header = record.headers.get(LINK_HEADER)
            if header is None:
                unbound.append((receipt.source_id, f"{receipt.kind.name} has no link"))
                continue
            linked = LinkedReceipt(receipt, read_link_header(header))
            reason = why_unbound(linked, keys[receipt.source_id])
            if reason is None:
                chains[receipt.source_id, *linked.link.chain].append(linked)
            else:
                unbound.append((receipt.source_id, f"{receipt.kind.name}: {reason}"))
    return chains, unbound


def proved_by_chains(world: PrimesWorld) -> dict[bytes, str]:
    """Return what the receipts on all topics prove, by validator: of each chain any two are looked at."""
    chains, _ = chains_on_topics(world)
    found: dict[bytes, str] = {}
    for (source, _, message_id), linked in chains.items():
        near: dict[int, list[LinkedReceipt]] = defaultdict(list)
        for one in linked:
            number = one.link.number
            for other in (*near[number - 1], *near[number], *near[number + 1]):
                fault = fault_between(other, one)
                if fault is not None:
                    kinds = (
                        f"{other.receipt.kind.name} ({other.link.number}), {one.receipt.kind.name} ({number})"
                    )
                    found.setdefault(source, f"{fault} on {message_id.hex()[:8]}: {kinds}")
            near[number].append(one)
    return found


def faults_of_chains(world: PrimesWorld, honest: Collection[bytes]) -> list[str]:
    """Return what is wrong with the chains of honest validators: nothing may be."""
    _, unbound = chains_on_topics(world)
    faults = [*unbound, *proved_by_chains(world).items()]
    return [f"{source.hex()[:8]}: {text}" for source, text in faults if source in honest]
