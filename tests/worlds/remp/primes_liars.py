"""Liars besides a network of primes: one that makes false proofs of what it sees, and one that has the keys of a shard's
whole session for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import product
from random import Random

import msgspec

from rigs.agreement_keys import certified_by_all
from stagepost.chain.agreement.candidate import Candidate, candidate_hash
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import quorum
from stagepost.chain.history import KeptBlock
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.master_state import MASTER_SHARD, subset
from stagepost.chain.messages import read_message
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.node.following_messages import Final
from stagepost.chain.proofs.proof_files import write_file
from stagepost.chain.proofs.proof_form import (
    End,
    ExecutedEnd,
    MasterPart,
    MessageProof,
    NeverEnd,
    OwnPart,
    Seal,
)
from stagepost.chain.proofs.proof_making import (
    SealBook,
    SealedMaster,
    ShardEvidence,
    assembled,
    end_in,
    evidence_of,
)
from stagepost.chain.proofs.proof_rules import certified_bytes, checkpoint_of, master_root_hash, session_of
from stagepost.chain.session_chain import SessionChain
from stagepost.chain.shard_blocks import AppliedBlock, make_block
from stagepost.chain.shard_state import ShardState
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.shard import BlockId
from tests.worlds.chain.proved_chain import second
from tests.worlds.remp.primes_proofs import ProofShelf

LIES_EACH_MAX = 4
"""Lies of one kind that are tried in a run; they differ by message and block."""

EVIDENCES_MAX = 64
LATER_MS = 1 << 42


class FalseProver:
    """Sees all that a full node sees, and makes of it proofs of what is not so. Nobody may believe one."""

    def __init__(
        self,
        follower: ChainFollower,
        shelf: ProofShelf,
        messages: Iterable[bytes],
        random: Random,
        seeds: dict[bytes, bytes],
    ) -> None:
        self.believed: list[str] = []
        self.tried: dict[str, int] = {}
        self._shelf = shelf
        self._random = random
        self._seeds = seeds
        self._messages = [read_message(data, takes_cells=False) for data in messages]
        self._seals = SealBook(shelf.genesis)
        self._applied: dict[BlockId, AppliedMaster] = {}
        self._evidences: list[ShardEvidence] = []
        self._dropped: list[AppliedBlock] = []
        self._trusted, _ = second.read_genesis(shelf.genesis.encode())
        following = follower.ledger.following
        honest = following.on_master

        def on_master(kept: KeptBlock, applied: AppliedMaster | None) -> None:
            honest(kept, applied)
            self._take(kept, applied)

        following.on_master = on_master
        drop = following._drop_open

        def drop_open(chain: SessionChain) -> None:
            self._dropped += [applied for _, applied in chain.final]
            drop(chain)

        following._drop_open = drop_open  # type: ignore[method-assign]  # it does the same, and is seen doing it

    def _take(self, kept: KeptBlock, applied: AppliedMaster | None) -> None:
        if applied is not None:
            self._applied[applied.block_id] = applied
        for sealed in self._seals.take(final_block(kept)):
            for blocks in self._applied.pop(sealed.block_id).commits:
                self._evidences.append(evidence_of(sealed, blocks[-1]))
        del self._evidences[:-EVIDENCES_MAX]

    def lie(self, executed: Iterable[bytes]) -> None:
        """Try every kind of lie. `executed`: the messages in committed blocks."""
        is_executed = set(executed)
        for name, lies in (
            ("a dropped block", self._of_dropped_blocks()),
            ("a forgotten execution", self._of_forgotten(is_executed)),
            ("an earlier state", self._of_earlier_states(is_executed)),
            ("the other half", self._of_other_halves(is_executed)),
            ("a ground number", self._of_minorities(is_executed)),
        ):
            for number, (sealed, evidence, end) in enumerate(lies):
                if number >= LIES_EACH_MAX:
                    break
                own = OwnPart(sealed.block_id.root_hash, evidence.shard, end)
                self._try(name, assembled(own, sealed.part, self._seals.key_blocks.get))
        self._skip_key_blocks()
        for message_id, file in list(self._shelf.files().items())[:LIES_EACH_MAX]:
            self._alter(message_id, file)

    def _skip_key_blocks(self) -> None:
        """Show true ends without the key blocks before them, by which another configuration is in force."""
        behind = [one for one in self._evidences if one.sealed.part.key != ZERO_INT256]
        for evidence, message in product(behind[:LIES_EACH_MAX], self._messages):
            end, part = end_in(evidence, message), evidence.sealed.part
            holds = evidence.state.shard.holds(message.external.workchain, message.external.account)
            if end is not None and holds and isinstance(part, MasterPart):
                self._try("a skipped key block", MessageProof(0, (), part.master, evidence.shard, end))

    def _try(self, name: str, proof: MessageProof) -> None:
        message_id = end_id(proof.end)
        self._refuse(name, lambda: write_file(proof, message_id))

    def _alter(self, message_id: bytes, file: bytes) -> None:
        place = self._random.randrange(file.index(b'"proof":"') + 9, len(file) - 2)
        digit = b"0123456789abcdef"[(int(file[place : place + 1], 16) + self._random.randrange(1, 16)) % 16]
        self._refuse("a changed digit", lambda: file[:place] + bytes([digit]) + file[place + 1 :])
        other = bytes([message_id[0] ^ 1, *message_id[1:]])
        self._refuse("another id", lambda: file.replace(message_id.hex().encode(), other.hex().encode()))

    def _refuse(self, name: str, made: Callable[[], bytes]) -> None:
        self.tried[name] = self.tried.get(name, 0) + 1
        try:
            seen = second.verify(made(), self._trusted, None)
        except second.Refused:
            return
        self.believed.append(f"{name}: {seen['kind']} of {seen['id']}")

    # Kinds of lies

    def _of_dropped_blocks(self) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        """Show a shard block that its session made final and the masterchain never held."""
        for dropped in self._dropped:
            for message in self._messages:
                if message.external.message_id not in dropped.message_ids or not self._evidences:
                    continue
                sealed = self._evidences[-1].sealed
                block = msgspec.structs.replace(sealed.block, commits=((dropped.block_id,),))
                evidence = evidence_of(msgspec.structs.replace(sealed, block=block), dropped)
                end = end_in(evidence, message)
                if end is not None:
                    yield sealed, evidence, end

    def _of_forgotten(self, executed: set[bytes]) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        """Show the state of a chain that has forgotten an execution, as if it remembered everything."""
        yield from self._never(lambda state: msgspec.structs.replace(state, remembers_from_ms=0), executed)

    def _of_earlier_states(self, executed: set[bytes]) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        """Show a state from before the execution, as if it were of later."""
        yield from self._never(
            lambda state: msgspec.structs.replace(state, time_ms=LATER_MS, remembers_from_ms=0), executed
        )

    def _of_other_halves(self, executed: set[bytes]) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        """Show the state of a shard that does not hold the account."""
        yield from self._never(
            lambda state: msgspec.structs.replace(state, time_ms=LATER_MS, remembers_from_ms=0),
            executed,
            is_of_other=True,
        )

    def _of_minorities(self, executed: set[bytes]) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        """Show a master block that as many as may lie have signed, in the places of a whole quorum, for a session whose
        number they chose.
        """
        trusted, configuration = checkpoint_of(self._shelf.genesis), self._shelf.genesis.configuration
        for sealed, evidence, end in self._of_earlier_states(executed):
            if not isinstance(sealed.part, MasterPart) or sealed.part.key != ZERO_INT256:
                continue
            master, number = sealed.part.master, self._random.randrange(1, 1 << 31)
            session = session_of(trusted, configuration, number)
            keys = [one.public_key for one in subset(configuration, MASTER_SHARD, number)]
            block = sha256(master_root_hash(master, session) + master.file_hash).digest()
            signed = certified_bytes(session, 1, candidate_hash(1, session, block))
            liars = keys[: (len(keys) - 1) // 3]
            signatures = tuple(
                (place, ed25519.sign(self._seeds[liars[place % len(liars)]], signed))
                for place in range(quorum(len(keys)))
            )
            seal = Seal(number, 1, session, (), signatures)
            part = msgspec.structs.replace(sealed.part, master=msgspec.structs.replace(master, seal=seal))
            yield msgspec.structs.replace(sealed, part=part), evidence, end

    def _never(
        self, change: Callable[[ShardState], ShardState], executed: set[bytes], *, is_of_other: bool = False
    ) -> Iterator[tuple[SealedMaster, ShardEvidence, End]]:
        for evidence in self._evidences:
            lie = msgspec.structs.replace(evidence, state=change(evidence.state))
            for message in self._messages:
                external = message.external
                holds = evidence.state.shard.holds(external.workchain, external.account)
                if external.message_id not in executed or holds is is_of_other:
                    continue
                end = end_in(lie, message)
                if isinstance(end, NeverEnd):
                    yield evidence.sealed, evidence, end


def end_id(end: End) -> bytes:
    if isinstance(end, ExecutedEnd):
        return end.message_id
    return read_message(end.message, takes_cells=False).external.message_id


class HeldSession:
    """The keys of all members of the shard sessions at work, in one hand: it makes blocks final besides the chain, and
    shows them to some. `seeds` are by public key.
    """

    def __init__(self, seeds: dict[bytes, bytes], random: Random) -> None:
        self.shown = 0
        self._seeds = seeds
        self.random = random

    def strike(self, source: ChainFollower, victims: Iterable[ChainFollower], now_ms: int) -> None:
        """Show a block upon the last one that `source` knows: a second one, a bad one, or one without a master block."""
        ledger, random = source.ledger, self.random
        session = random.choice(ledger.sessions())
        chain, final = ledger.chain(session.session_id), source.chains.get(session.session_id)
        if chain is None or final is None:
            return
        view, kind = ledger.following.view, random.choice(("second", "bad", "of no master"))
        if kind == "of no master":
            block_id = msgspec.structs.replace(view.block_id, seqno=view.block_id.seqno + 500)
            view = msgspec.structs.replace(view, block_id=block_id)
        applied, _ = make_block(
            chain.top, session.session_id, chain.configuration, view, (), now_ms + random.randrange(1, 400)
        )
        payload = (
            applied.payload if kind != "bad" else applied.payload[:-1] + bytes([applied.payload[-1] ^ 1])
        )
        of_session = Session(session.session_id, session.public_keys, session.session_id)
        candidate = Candidate(final._slot + random.randrange(1, 3), final._top, payload)
        block = certified_by_all(of_session, candidate, seeds=self._seeds)
        number = final.count + 1
        for victim in victims:
            victim._take(0, Final(session.session_id, number, block.encode()))
            self.shown += 1
