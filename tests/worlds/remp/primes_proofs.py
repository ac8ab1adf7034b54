"""Proofs in a network of primes: each full node keeps them as it does in production, and all are checked in the end.

No message has two ends, a proved end is what the chain shows, an end never turns back, and the verifier in a single file
accepts every proof.
"""

from __future__ import annotations

from collections.abc import Collection

from rigs.memory_topic import MemoryTopic
from stagepost.chain.genesis import Genesis
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.proofs.proof_files import write_file
from stagepost.chain.proofs.proof_form import (
    KeyBlockPart,
    MasterPart,
    OwnPart,
    ProofPart,
    decode_part,
)
from stagepost.chain.proofs.proof_making import ProofMaker, assembled
from stagepost.full_node.proof_keeping import ProofKeeper
from stagepost.full_node.status_topic import RETRY_S
from stagepost.ground.identifiers import PROOFS_TOPIC
from stagepost.remp.ledger import ParsedMessage
from stagepost.remp.verdict.state import ProvedEnd
from tests.worlds.chain.proved_chain import second

EXECUTED, NEVER, EXECUTED_AS = "executed", "never", "executed_as"


class ProofShelf:
    """The proofs of one full node, with the ends that were told and those that changed afterwards."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self.topic = MemoryTopic(PROOFS_TOPIC)
        self.ends: dict[bytes, ProvedEnd] = {}
        self.faults: list[str] = []
        self.expected: set[bytes] = set()
        """Messages of which the full node was to keep the proof, unless the chain had forgotten too much already."""

        self.keeper = ProofKeeper(ProofMaker(genesis), self.topic.writer(retry_s=RETRY_S))
        self.keeper.on_proved = self._proved

    def follow(self, follower: ChainFollower) -> None:
        self._following = follower.ledger.following
        follower.ledger.following.on_master = lambda kept, applied: self.keeper.take(
            final_block(kept), applied
        )

    def expect(self, parsed: ParsedMessage) -> None:
        """Await the end of a message, as long as anybody can prove it."""
        self.keeper.expect(parsed)
        configuration, message = self._following.master.configuration, parsed.message
        if parsed.expires_at_s is not None:
            first_ms = parsed.expires_at_s * 1_000 - configuration.expiry_ahead_max_ms
            states = self._following.states.values()
            holding = [one for one in states if one.shard.holds(message.workchain, message.account)]
            if any(one.remembers_from_ms > first_ms for one in holding):
                return
        self.expected.add(message.message_id)

    def _proved(self, message_id: bytes, end: ProvedEnd) -> None:
        before = self.ends.setdefault(message_id, end)
        if before != end:
            self.faults.append(f"message {message_id.hex()} ended as {before}, and then as {end}")

    def files(self) -> dict[bytes, bytes]:
        """Return the proof files that the topic gives, by message."""
        parts = self._parts()
        shared = {key: part for key, part in parts if isinstance(part, KeyBlockPart | MasterPart)}

        def key_block(root_hash: bytes) -> KeyBlockPart | None:
            found = shared.get(root_hash)
            return found if isinstance(found, KeyBlockPart) else None

        return {
            key: write_file(assembled(part, shared[part.master], key_block), key)
            for key, part in parts
            if isinstance(part, OwnPart)
        }

    def key_blocks(self) -> set[bytes]:
        """Return the key blocks by which proofs on the topic go, by root hash."""
        return {key for key, part in self._parts() if isinstance(part, KeyBlockPart)}

    def _parts(self) -> list[tuple[bytes, ProofPart]]:
        return [
            (bytes.fromhex((one.key or b"").decode()), decode_part(one.value or b""))
            for batch in self.topic.reader().batches(0, 0)
            for one in batch
        ]


def faults_of_proofs(shelf: ProofShelf, final: Collection[bytes], expired: Collection[bytes]) -> list[str]:
    """Return what is wrong with the proofs of a full node when all is over. `final`: messages in committed blocks;
    `expired`: those whose expiry is over.
    """
    faults = list(shelf.faults)
    files = shelf.files()
    trusted, _ = second.read_genesis(shelf.genesis.encode())
    for message_id, end in shelf.ends.items():
        name = f"message {message_id.hex()}"
        if (end.kind == EXECUTED) is not (message_id in final):
            faults.append(
                f"{name} is proved {end.kind}, and is {'' if message_id in final else 'not '}in the chain"
            )
        if end.kind == EXECUTED_AS and bytes.fromhex(end.executed_as or "") not in final:
            faults.append(f"{name} is proved executed as {end.executed_as}, which is not in the chain")
        try:
            seen = second.verify(files[message_id], trusted, None)
        except second.Refused as refused:
            faults.append(f"the proof of {name} is refused: {refused}")
            continue
        if (seen["kind"], seen["id"]) != (end.kind, message_id.hex()):
            faults.append(f"the proof of {name} shows {seen['kind']} of {seen['id']}, not {end.kind}")
    faults += [
        f"message {message_id.hex()} has ended, and there is no proof"
        for message_id in sorted(shelf.expected & ({*final, *expired} - shelf.ends.keys()))
    ]
    return faults
