"""A chain whose master blocks carry real certificates, and proofs made from it: what provers, verifiers and forgers need."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import msgspec

from stagepost.chain.agreement.candidate import Candidate, candidate_hash
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.votes import VoteKind, quorum, signed_bytes
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.genesis import Genesis
from stagepost.chain.hash_tree import leaf_hash
from stagepost.chain.history import KeptBlock
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.master_state import MASTER_SHARD, subset
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.messages import CanonicalMessage, read_message
from stagepost.chain.node.final_proof import final_block, kept_block
from stagepost.chain.proofs.proof_files import Checkpoint, write_checkpoint, write_file
from stagepost.chain.proofs.proof_form import (
    End,
    KeyBlockPart,
    KeyBlockProof,
    MasterProof,
    MessageProof,
    ProofPath,
    Seal,
)
from stagepost.chain.proofs.proof_making import MadeProof, ProofMaker, ShardEvidence, assembled
from stagepost.chain.proofs.proof_rules import (
    CheckedEnd,
    ProofRefused,
    ProofVerifier,
    Refusal,
    accounts_root,
    checkpoint_of,
    master_root_hash,
    place_of,
    session_of,
    shard_root_hash,
)
from stagepost.ground.crypto import ed25519
from tests.worlds.chain.chain_world import START_MS, DecidedChain, a_genesis

WINDOW_MS = 60_000
"""Milliseconds of `expiry_ahead_max` and of `proof_window` in these chains."""


def seeds(count: int, name: str = "validator") -> list[bytes]:
    return [sha256(b"seed %s %d" % (name.encode(), number)).digest() for number in range(count)]


SEEDS = {
    ed25519.public_key(seed): seed for name in ("validator", "later", "other") for seed in seeds(21, name)
}


def a_signing_set(count: int = 7, name: str = "validator", from_ms: int = START_MS) -> ValidatorSet:
    keys = [ed25519.public_key(seed) for seed in seeds(count, name)]
    members = tuple(ChainValidator(key, sha256(key).digest()) for key in keys)
    return ValidatorSet(from_ms, from_ms + 86_400_000, members)


def a_proving_configuration(
    count: int = 7, *, next_set: ValidatorSet | None = None, name: str = "validator", **given: int
) -> Configuration:
    return Configuration(
        a_signing_set(count, name),
        next_set,
        shard_validators=min(count, 4),
        master_lifetime_ms=600_000,
        shard_lifetime_ms=600_000,
        expiry_ahead_max_ms=given.get("ahead_ms", WINDOW_MS),
        proof_window_ms=given.get("window_ms", WINDOW_MS),
    )


def an_account(number: int) -> bytes:
    return sha256(b"account %d" % number).digest()[:31] + bytes([ContractKind.SUM_OF_PRIMES])


def a_message(
    account: bytes | int = 0, up_to: int = 10, *, expires_at_s: int = START_MS // 1_000 + 30, salt: int = 0
) -> ReadMessage:
    address = an_account(account) if isinstance(account, int) else account
    body = CanonicalMessage(address, primes_body(up_to), expires_at_s, salt).encode()
    return read_message(body, takes_cells=False)


class ProvedChain(DecidedChain):
    """While `is_held_back`, master blocks get a NOTARISE certificate alone, and become final by a later one."""

    def __init__(self, genesis: Genesis | None = None) -> None:
        super().__init__(genesis or a_genesis(a_proving_configuration()))
        self.maker = ProofMaker(self.genesis)
        self.finals: list[FinalBlock] = []
        self.made: dict[bytes, MadeProof] = {}
        self.is_held_back = False
        self._tops: dict[bytes, tuple[bytes, int]] = {}
        self._keys: dict[bytes, tuple[bytes, ...]] = {}
        self.ledger.following.on_master = self._heard_of_master

    def _heard_of_master(self, kept: KeptBlock, applied: AppliedMaster | None) -> None:
        self.maker.take(final_block(kept), applied)
        self.made |= {made.message_id: made for made in self.maker.ready()}

    def finalise(self, session: bytes, payload: bytes) -> None:
        master = self.ledger.master_session()
        if session != master.session_id:
            super().finalise(session, payload)
            return
        self._keys[session] = master.public_keys
        self.close(session, payload)

    def close(self, session: bytes, payload: bytes) -> None:
        """Certify a block of a session of the masterchain, which may have ended."""
        parent, slot = self._tops.get(session, (session, 0))
        candidate = Candidate(slot + 1, parent, payload)
        kind = VoteKind.NOTARISE if self.is_held_back else VoteKind.FINALISE
        final = FinalBlock(candidate, bytes(64), certified(session, candidate, self._keys[session], kind))
        self._tops[session] = candidate.hash, candidate.slot
        self.finals.append(final)
        kept = kept_block(final)
        self.ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)

    def carry_out(self, *messages: ReadMessage, after_ms: int = 100) -> None:
        """Put the messages into blocks of their shards, and these into a master block."""
        for session in self.ledger.sessions():
            mine = [
                one.external
                for one in messages
                if session.shard.holds(one.external.workchain, one.external.account)
            ]
            self.shard_block(session.session_id, mine)
        self.master_block(after_ms=after_ms)

    def pass_time(self, until_ms: int) -> None:
        """Make a block of each shard dated at least `until_ms`, and a master block with them."""
        self.now_ms = max(self.now_ms, until_ms)
        self.carry_out()

    def proof(self, message: ReadMessage) -> MessageProof:
        """Return the proof of an awaited message's end."""
        return self.assembled(self.made[message.external.message_id])

    def assembled(self, made: MadeProof) -> MessageProof:
        return assembled(made.own, made.sealed.part, self.key_block)

    def key_block(self, root_hash: bytes) -> KeyBlockPart | None:
        return self.maker.seals.key_blocks.get(root_hash)

    def file(self, message: ReadMessage) -> bytes:
        return write_file(self.proof(message), message.external.message_id)


def certified(
    session: bytes,
    candidate: Candidate,
    public_keys: Sequence[bytes],
    kind: VoteKind = VoteKind.FINALISE,
    signers: Iterable[int] | None = None,
) -> Certificate:
    """Return a certificate of exactly a quorum, unless `signers` says who signs."""
    signed = signed_bytes(session, candidate.slot, kind, candidate.hash)
    chosen = range(quorum(len(public_keys))) if signers is None else signers
    signatures = tuple((index, ed25519.sign(SEEDS[public_keys[index]], signed)) for index in chosen)
    return Certificate(session, candidate.slot, kind, candidate.hash, signatures)


def forged(
    chain: ProvedChain,
    evidence: ShardEvidence,
    end: End,
    *,
    checkpoint: Checkpoint | None = None,
    configuration: Configuration | None = None,
    time_ms: int | None = None,
    seqno: int | None = None,
    signers: Iterable[int] | None = None,
    way: tuple[KeyBlockProof, ...] = (),
) -> MessageProof:
    """Return a proof whose master block forgers have made up and signed: it commits the evidence's shard block alone.

    They sign with the keys of `configuration`, behind `checkpoint`; the genesis' where none is given.
    """
    trusted = checkpoint or checkpoint_of(chain.genesis)
    rules = configuration or Configuration.decode(trusted.configuration)
    catchain_seqno = 90
    session = session_of(trusted, rules, catchain_seqno)
    shard = msgspec.structs.replace(evidence.shard, path=ProofPath(()))
    root_hash = shard_root_hash(shard, accounts_root(end, place_of(end, shard)))
    filled = [sha256(b"%d" % number).digest() for number in range(5)]
    seal = Seal(catchain_seqno, 1, session, (), ())
    at_ms = trusted.time_ms + 500_000 if time_ms is None else time_ms
    master = MasterProof(
        trusted.seqno + 1_000 if seqno is None else seqno,
        evidence.sealed.block.previous,
        at_ms,
        leaf_hash(root_hash, shard.file_hash),
        filled[0],
        filled[1],
        filled[2],
        filled[3],
        filled[4],
        seal,
    )
    block = sha256(master_root_hash(master, session) + master.file_hash).digest()
    candidate = candidate_hash(1, session, block)
    keys = [one.public_key for one in subset(rules, MASTER_SHARD, catchain_seqno)]
    chosen = list(range(quorum(len(keys))) if signers is None else signers)
    signed = signed_bytes(session, 1, VoteKind.FINALISE, candidate)
    signatures = tuple((index, ed25519.sign(SEEDS[keys[index]], signed)) for index in chosen)
    sealed = msgspec.structs.replace(master, seal=msgspec.structs.replace(seal, signatures=signatures))
    return MessageProof(0, way, sealed, shard, end)


def opinions(
    content: bytes, genesis: Genesis, checkpoint: Checkpoint | None = None
) -> tuple[CheckedEnd | Refusal, dict[str, object] | str]:
    """Return what both verifiers say of a proof file: the end that it shows, or why it is refused."""
    try:
        first: CheckedEnd | Refusal = ProofVerifier(genesis, checkpoint).check_file(content)
    except ProofRefused as refused:
        first = refused.refusal
    trusted, _ = second.read_genesis(genesis.encode())
    known = None if checkpoint is None else second.read_checkpoint(write_checkpoint(checkpoint))
    try:
        return first, second.verify(content, trusted, known)
    except second.Refused as refused:
        return first, str(refused)


def _example(name: str) -> ModuleType:
    """Return a program of `examples/`, which is no package."""
    path = Path(__file__).parents[3] / "examples" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


second = _example("verify_proof")
