"""Rules by which a proof is checked, from the genesis of a network or from a checkpoint; nothing else is believed.

    way of key blocks → session → certificate → master block → shard block → state → account → place of the message

A proof holds under one assumption: fewer than a third of each validator set on the way ever sign what is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import NoReturn

import msgspec

from stagepost.chain.accounts import Inclusion, account_value_hash, inclusion_hash, uid_place
from stagepost.chain.agreement.candidate import candidate_hash
from stagepost.chain.agreement.certificate import Verify
from stagepost.chain.agreement.votes import VoteKind, quorum, signed_bytes
from stagepost.chain.configuration import Configuration
from stagepost.chain.genesis import Genesis
from stagepost.chain.hash_tree import EMPTY_HASH, KEY_BITS, leaf_hash, root_above
from stagepost.chain.master_block import MASTER_ROOT_ID, MasterBlock, decode_master_block, last_blocks
from stagepost.chain.master_state import MASTER_SHARD, session_facts, subset
from stagepost.chain.message_values import NEVER, ReadMessage
from stagepost.chain.messages import read_message
from stagepost.chain.proofs.proof_files import Checkpoint, read_file
from stagepost.chain.proofs.proof_form import (
    AbsenceProof,
    AccountProof,
    End,
    EndKind,
    ExecutedAsEnd,
    ExecutedEnd,
    KeyBlockProof,
    MasterProof,
    MessageProof,
    NeverEnd,
    Seal,
    ShardProof,
)
from stagepost.chain.shard_block import SHARD_ROOT_ID
from stagepost.chain.shard_state import SHARD_STATE_ID
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import ZERO_INT256, Writer
from stagepost.remp.sessions import session_id
from stagepost.remp.shard import MASTERCHAIN, WHOLE_SHARD, BlockId

SEALS_REMEMBERED = 1_024
"""Master blocks, at most, whose checked certificates a verifier remembers."""


class Refusal(StrEnum):
    """Reasons for which a proof is refused."""

    FORM = "the bytes are not a valid proof"
    OTHER_FILE = "the file names another kind or id than its proof"
    OTHER_MESSAGE = "the proof shows another end, or that of another message"
    UNKNOWN_BEGIN = "the proof begins at a key block that the verifier does not know"
    SECOND_KEY_BLOCK = "the proof has another key block than the checkpoint with the same number"
    SKIPPED_CHECKPOINT = "the proof goes past the checkpoint and not through it"
    NO_KEY_BLOCK = "a block on the way changes no configuration and no validator set"
    ORDER = "numbers or times on the way do not rise"
    AFTER_HAND_OVER = "the block is not before the hand-over to the next validator set"
    WRONG_SESSION = "the block is of another session"
    QUORUM = "the signatures are not exactly a quorum"
    SIGNATURE = "a signature does not verify"
    NOT_COMMITTED = "the shard block is not the last block of its shard in the master block"
    WRONG_SHARD = "the shard does not hold the account of the message"
    BAD_NEIGHBOUR = "the leaf beside an absent key does not share its path, or is the key itself"
    TWO_TREES = "id and uid are not absent from the same account"
    BAD_MESSAGE = "the bytes of the message are not a valid message"
    NEVER_EXPIRES = "a message that does not expire can only be proved executed"
    TOO_EARLY = "the state is from before the message expired"
    FORGOTTEN = "the state may have forgotten an execution of the message"
    OTHER_TIME = "the uid was taken outside the life of the message, or by the message itself"


class ProofRefused(StagepostError):
    """`refusal` is the rule that the proof breaks."""

    default_code = ErrorCode.PROOF_INVALID

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        text = f"{refusal.value}: {detail}" if detail else refusal.value
        super().__init__(
            f"the proof is refused: {text}",
            advice="ask another full node for the proof; whoever made this one is wrong, or lies",
            reason=refusal.name,
        )
        self.refusal = refusal


class CheckedMaster(msgspec.Struct, frozen=True):
    """A master block that is final. `configuration` was in force for it, `signers` of `validators` signed for it."""

    block_id: BlockId
    time_ms: int
    last_hash: bytes
    configuration: Configuration
    signers: int
    validators: int
    newest: Checkpoint
    key_blocks: int


class CheckedEnd(msgspec.Struct, frozen=True):
    """A proved end. `time_ms`: of the inclusion, or of the state in which the message is absent. `trusted_from`: number
    of the key block from which the verifier trusted, 0 for the genesis.
    """

    kind: EndKind
    message_id: bytes
    account: bytes
    executed_as: bytes | None
    time_ms: int
    shard_seqno: int
    master: CheckedMaster
    trusted_from: int


def checkpoint_of(genesis: Genesis) -> Checkpoint:
    return Checkpoint(genesis.hash, 0, ZERO_INT256, genesis.time_ms, genesis.configuration.encode())


class ProofVerifier:
    """Verifier of the proofs of one network. It remembers the newest key block that it has checked, and the master
    blocks whose certificates it has checked: a further message of one block costs no signature check.
    """

    def __init__(
        self, genesis: Genesis, checkpoint: Checkpoint | None = None, verify: Verify = ed25519.verify
    ) -> None:
        self.genesis = genesis
        self.checkpoint = checkpoint
        self.signature_checks = 0
        self._verify = verify
        self._start = checkpoint_of(genesis)
        self._checked: dict[bytes, CheckedMaster] = {}
        if checkpoint is not None and checkpoint.network != self._start.network:
            raise ProofRefused(Refusal.UNKNOWN_BEGIN, "the checkpoint is of another network than the genesis")

    def is_checkpoint_old(self, now_ms: int) -> bool:
        """Return whether the newest key block that the verifier has checked is older than the network's trust period."""
        newest = self.checkpoint or self._start
        return now_ms - newest.time_ms > self.genesis.trust_period_ms

    def check_file(self, content: bytes) -> CheckedEnd:
        try:
            proof, kind, message_id = read_file(content)
        except DecodeError as error:
            raise ProofRefused(Refusal.FORM, error.text) from error
        checked = self.check(proof)
        if checked.kind is not kind or checked.message_id != message_id:
            refuse(
                Refusal.OTHER_FILE,
                f"the file says {kind} of {message_id.hex()}, the proof {checked.kind} of {checked.message_id.hex()}",
            )
        return checked

    def require_never(self, content: bytes, message: bytes) -> None:
        """Return if the proof file shows that `message` was never executed; `ProofRefused` if it shows anything else."""
        checked = self.check_file(content)
        message_id = sha256(message).digest()
        if checked.kind is not EndKind.NEVER or checked.message_id != message_id:
            refuse(
                Refusal.OTHER_MESSAGE,
                f"it shows {checked.kind} of {checked.message_id.hex()}, not never of {message_id.hex()}",
            )

    def check(self, proof: MessageProof) -> CheckedEnd:
        """Return the end that the proof shows; `ProofRefused` if it shows none."""
        shared = _shared_digest(proof)
        master = self._checked.get(shared)
        if master is None:
            master = self.final_master(proof.begins_at, proof.way, proof.master)
            self._checked[shared] = master
            while len(self._checked) > SEALS_REMEMBERED:
                del self._checked[next(iter(self._checked))]
            if self.checkpoint is None or master.newest.seqno > self.checkpoint.seqno:
                self.checkpoint = master.newest if master.newest.seqno else self.checkpoint
        return check_end(proof, master)

    def final_master(
        self, begins_at: int, way: Sequence[KeyBlockProof], master: MasterProof | None
    ) -> CheckedMaster:
        """Return the master block that the shared part of a proof shows to be final; `ProofRefused` if it shows none.

        Neither the block nor its key blocks are remembered: `check` does that.
        """
        trusted = self._begin(begins_at)
        self._compare_with_checkpoint(trusted)
        seqnos = [trusted.seqno]
        last: MasterBlock | None = None
        configuration = Configuration.decode(trusted.configuration)
        signers = validators = 0
        for key_block in way:
            block_id, last = self._check_key_block(key_block, trusted, configuration)
            signers, validators = len(key_block.seal.signatures), len(configuration.current.validators)
            configuration = configuration_after(configuration, last)
            trusted = Checkpoint(
                trusted.network, last.seqno, block_id.root_hash, last.time_ms, configuration.encode()
            )
            seqnos.append(trusted.seqno)
            self._compare_with_checkpoint(trusted)
        if master is None:
            if last is None:
                refuse(Refusal.FORM, "it has no master block")
            block_id = BlockId(MASTERCHAIN, WHOLE_SHARD, last.seqno, trusted.root_hash, ZERO_INT256)
            found = CheckedMaster(
                block_id,
                last.time_ms,
                last_blocks(commit[-1] for commit in last.commits).hash,
                configuration,
                signers,
                validators,
                trusted,
                len(way),
            )
        else:
            found = self._check_last(master, trusted, configuration, len(way))
        require_through(self.checkpoint, seqnos, found.block_id.seqno)
        require_earlier(self.checkpoint, found)
        return found

    def _begin(self, begins_at: int) -> Checkpoint:
        if begins_at == 0:
            return self._start
        if self.checkpoint is not None and self.checkpoint.seqno == begins_at:
            return self.checkpoint
        return refuse(
            Refusal.UNKNOWN_BEGIN, f"it begins at key block {begins_at}; give the checkpoint of that block"
        )

    def _compare_with_checkpoint(self, found: Checkpoint) -> None:
        known = self.checkpoint
        if known is not None and known.seqno == found.seqno and known.root_hash != found.root_hash:
            refuse(
                Refusal.SECOND_KEY_BLOCK,
                f"key block {found.seqno} is {found.root_hash.hex()} here and {known.root_hash.hex()} in the checkpoint: "
                "a quorum of an earlier validator set has signed two histories",
            )

    def _check_key_block(
        self, key_block: KeyBlockProof, trusted: Checkpoint, configuration: Configuration
    ) -> tuple[BlockId, MasterBlock]:
        try:
            block = decode_master_block(key_block.block)
            block_id = block.block_id(key_block.block)
        except DecodeError as error:
            raise ProofRefused(Refusal.FORM, f"a key block: {error.text}") from error
        require_rising(block.seqno, block.time_ms, trusted)
        if not is_key_block(configuration, block):
            refuse(Refusal.NO_KEY_BLOCK, f"master block {block.seqno}")
        session = self._check_seal(
            key_block.seal, trusted, configuration, block_id.root_hash, block_id.file_hash
        )
        if block.session_id != session:
            refuse(Refusal.WRONG_SESSION, f"key block {block.seqno}")
        return block_id, block

    def _check_last(
        self, master: MasterProof, trusted: Checkpoint, configuration: Configuration, key_blocks: int
    ) -> CheckedMaster:
        require_rising(master.seqno, master.time_ms, trusted)
        require_before_hand_over(configuration, master.time_ms)
        seal = master.seal
        session = session_of(trusted, configuration, seal.catchain_seqno)
        root_hash = master_root_hash(master, session)
        self._check_seal(seal, trusted, configuration, root_hash, master.file_hash)
        block_id = BlockId(MASTERCHAIN, WHOLE_SHARD, master.seqno, root_hash, master.file_hash)
        return CheckedMaster(
            block_id,
            master.time_ms,
            master.last_hash,
            configuration,
            len(seal.signatures),
            len(configuration.current.validators),
            trusted,
            key_blocks,
        )

    def _check_seal(
        self,
        seal: Seal,
        trusted: Checkpoint,
        configuration: Configuration,
        root_hash: bytes,
        file_hash: bytes,
    ) -> bytes:
        """Return the id of the session that has certified the block."""
        session = session_of(trusted, configuration, seal.catchain_seqno)
        keys = [one.public_key for one in subset(configuration, MASTER_SHARD, seal.catchain_seqno)]
        slots = [seal.slot, *(slot for slot, _ in seal.later)]
        if any(later <= earlier for earlier, later in pairwise(slots)):
            refuse(Refusal.ORDER, "slots of candidates do not rise")
        candidate = candidate_hash(seal.slot, seal.parent, sha256(root_hash + file_hash).digest())
        for slot, block in seal.later:
            candidate = candidate_hash(slot, candidate, block)
        require_quorum([validator for validator, _ in seal.signatures], len(keys))
        signed = certified_bytes(session, slots[-1], candidate)
        for validator, signature in seal.signatures:
            self.signature_checks += 1
            if not self._verify(keys[validator], signed, signature):
                refuse(Refusal.SIGNATURE, f"validator {validator} of session {session.hex()}")
        return session


def refuse(refusal: Refusal, detail: str = "") -> NoReturn:
    raise ProofRefused(refusal, detail)


# The way, the session and the certificate


def is_key_block(configuration: Configuration, block: MasterBlock) -> bool:
    """Return whether `block` carries a configuration, or hands over to the next set of `configuration`."""
    following = configuration.next
    return bool(block.configuration) or (following is not None and block.time_ms >= following.from_ms)


def configuration_after(configuration: Configuration, block: MasterBlock) -> Configuration:
    """Return the configuration in force after a key block."""
    chosen = configuration
    if block.configuration:
        try:
            chosen = Configuration.decode(block.configuration)
        except DecodeError as error:
            raise ProofRefused(
                Refusal.FORM, f"configuration of key block {block.seqno}: {error.text}"
            ) from error
    if chosen.next is not None and block.time_ms >= chosen.next.from_ms:
        chosen = msgspec.structs.replace(chosen, current=chosen.next, next=None)
    return chosen


def require_rising(seqno: int, time_ms: int, trusted: Checkpoint) -> None:
    if seqno <= trusted.seqno or time_ms <= trusted.time_ms:
        refuse(
            Refusal.ORDER,
            f"master block {seqno} of {time_ms} ms follows key block {trusted.seqno} of {trusted.time_ms} ms",
        )


def require_through(checkpoint: Checkpoint | None, passed: Sequence[int], seqno: int) -> None:
    """Require that the way to master block `seqno` passed the checkpoint, unless the block is older."""
    if checkpoint is not None and checkpoint.seqno <= seqno and checkpoint.seqno not in passed:
        refuse(Refusal.SKIPPED_CHECKPOINT, f"master block {seqno} is not before key block {checkpoint.seqno}")


def require_earlier(checkpoint: Checkpoint | None, master: CheckedMaster) -> None:
    """Require that a master block with a number before the checkpoint's is of an earlier time, too: nobody who buys the keys
    of a set that has left can end a message that was sent after the checkpoint.
    """
    seqno = master.block_id.seqno
    if checkpoint is not None and seqno < checkpoint.seqno and master.time_ms >= checkpoint.time_ms:
        refuse(
            Refusal.ORDER,
            f"master block {seqno} of {master.time_ms} ms is before key block {checkpoint.seqno} of {checkpoint.time_ms} ms",
        )


def require_before_hand_over(configuration: Configuration, time_ms: int) -> None:
    following = configuration.next
    if following is not None and time_ms >= following.from_ms:
        refuse(
            Refusal.AFTER_HAND_OVER,
            f"it is of {time_ms} ms, the next set works from {following.from_ms} ms on",
        )


def session_of(trusted: Checkpoint, configuration: Configuration, catchain_seqno: int) -> bytes:
    """Return the id of the masterchain's session, which is computed and never believed."""
    members = subset(configuration, MASTER_SHARD, catchain_seqno)
    facts = session_facts(
        trusted.network, configuration, MASTER_SHARD, catchain_seqno, trusted.seqno, members
    )
    return session_id(facts)


def master_root_hash(master: MasterProof, session: bytes) -> bytes:
    writer = Writer()
    writer.write_constructor(MASTER_ROOT_ID)
    writer.write_int256(session)
    master.write_root(writer)
    return sha256(writer.written()).digest()


def require_quorum(signers: Sequence[int], validators: int) -> None:
    wanted = quorum(validators)
    if len(signers) != wanted or list(signers) != sorted(set(signers)) or signers[-1] >= validators:
        refuse(Refusal.QUORUM, f"{len(signers)} signed, exactly {wanted} of {validators} must, each once")


def certified_bytes(session: bytes, slot: int, candidate: bytes) -> bytes:
    return signed_bytes(session, slot, VoteKind.FINALISE, candidate)


# From the master block down to the message


class MessagePlace(msgspec.Struct, frozen=True):
    """Id and account of the message of a proof. `read` is None for an executed message, whose bytes a proof need not hold."""

    message_id: bytes
    workchain: int
    account: bytes
    read: ReadMessage | None = None


def check_end(proof: MessageProof, master: CheckedMaster) -> CheckedEnd:
    """Return the end that `proof` shows under a master block that is final."""
    shard, end = proof.shard, proof.end
    place = place_of(end, shard)
    require_committed(shard, shard_root_hash(shard, accounts_root(end, place)), master)
    require_shard(shard, place)
    time_ms = shard.time_ms if isinstance(end, NeverEnd) else end.time_ms
    require_no_later(time_ms, shard, master)
    by = None
    if isinstance(end, ExecutedAsEnd):
        by = end.by
        require_twin(end, place, expires_ms(place), master.configuration.expiry_ahead_max_ms)
    elif isinstance(end, NeverEnd):
        require_expired(shard, expires_ms(place), master.configuration.expiry_ahead_max_ms)
    return CheckedEnd(
        proof.kind, place.message_id, place.account, by, time_ms, shard.seqno, master, proof.begins_at
    )


def place_of(end: End, shard: ShardProof) -> MessagePlace:
    if isinstance(end, ExecutedEnd):
        return MessagePlace(end.message_id, shard.shard.workchain, end.address)
    try:
        read = read_message(end.message, takes_cells=False)
    except DecodeError as error:
        raise ProofRefused(Refusal.BAD_MESSAGE, error.text) from error
    external = read.external
    return MessagePlace(external.message_id, external.workchain, external.account, read)


def accounts_root(end: End, place: MessagePlace) -> bytes:
    """Return the root of the accounts that the paths of `end` lead to."""
    if isinstance(end, NeverEnd):
        if isinstance(end.account, AbsenceProof):
            return absent_root(end.account, place.account)
        return _with_account(end.account, place.account, absent_recent(end, place))
    message_id = place.message_id if isinstance(end, ExecutedEnd) else end.by
    inclusion = inclusion_hash(Inclusion(message_id, end.catchain_seqno, end.time_ms))
    key = message_id if isinstance(end, ExecutedEnd) else _uid_key(place)
    recent = root_above(leaf_hash(key, inclusion), key, end.path.siblings)
    return _with_account(end.account, place.account, recent)


def _with_account(account: AccountProof, address: bytes, recent: bytes) -> bytes:
    value = account_value_hash(account.balance, account.memory, recent)
    return root_above(leaf_hash(address, value), address, account.path.siblings)


def absent_recent(end: NeverEnd, place: MessagePlace) -> bytes:
    """Return the root of the recent messages from which both the id and the uid are absent."""
    if end.id_absence is None or end.uid_absence is None:
        refuse(Refusal.FORM, "it does not show that both the id and the uid are absent")
    found = absent_root(end.id_absence, place.message_id)
    if absent_root(end.uid_absence, _uid_key(place)) != found:
        refuse(Refusal.TWO_TREES)
    return found


def absent_root(absence: AbsenceProof, key: bytes) -> bytes:
    """Return the root of a tree in which `key` has no leaf."""
    siblings = absence.path.siblings
    if absence.other is None:
        return root_above(EMPTY_HASH, key, siblings)
    other, value = absence.other
    shift = KEY_BITS - len(siblings)
    if other == key or int.from_bytes(other, "big") >> shift != int.from_bytes(key, "big") >> shift:
        refuse(Refusal.BAD_NEIGHBOUR, f"key {other.hex()} beside {key.hex()}")
    return root_above(leaf_hash(other, value), key, siblings)


def shard_root_hash(shard: ShardProof, accounts: bytes) -> bytes:
    """Return the root hash of the shard block whose state has these accounts."""
    state = Writer()
    state.write_constructor(SHARD_STATE_ID)
    state.write_int(shard.shard.workchain)
    state.write_unsigned_long(shard.shard.prefix)
    state.write_unsigned_int(shard.seqno)
    state.write_long(shard.time_ms)
    state.write_long(shard.remembers_from_ms)
    state.write_unsigned_int(shard.master.seqno)
    state.write_int256(accounts)
    root = Writer()
    root.write_constructor(SHARD_ROOT_ID)
    shard.write_root(root)
    root.write_int256(sha256(state.written()).digest())
    return sha256(root.written()).digest()


def require_committed(shard: ShardProof, root_hash: bytes, master: CheckedMaster) -> None:
    """Require that the shard block is the last one of its shard in the master block."""
    leaf = leaf_hash(root_hash, shard.file_hash)
    if root_above(leaf, root_hash, shard.path.siblings) != master.last_hash:
        refuse(
            Refusal.NOT_COMMITTED,
            f"block {shard.seqno} of shard {shard.shard.prefix:016x}, or its state, is not the one in master block "
            f"{master.block_id.seqno}",
        )


def require_no_later(time_ms: int, shard: ShardProof, master: CheckedMaster) -> None:
    """Require that the inclusion is not later than the shard block, nor that later than the master block: what bounds the
    time of a master block bounds the time of the end.
    """
    if not time_ms <= shard.time_ms <= master.time_ms:
        refuse(
            Refusal.ORDER,
            f"the end is of {time_ms} ms, its shard block of {shard.time_ms} ms, the master block of {master.time_ms} ms",
        )


def require_shard(shard: ShardProof, place: MessagePlace) -> None:
    if not shard.shard.prefix or not shard.shard.holds(place.workchain, place.account):
        refuse(Refusal.WRONG_SHARD, f"{place.workchain}:{place.account.hex()} in {shard.shard.prefix:016x}")


def expires_ms(place: MessagePlace) -> int:
    """Return when the message expires, in Unix milliseconds; refuse one that never does."""
    if place.read is None or place.read.expires_at_s == NEVER:
        refuse(Refusal.NEVER_EXPIRES)
    return place.read.expires_at_s * 1_000


def require_expired(shard: ShardProof, expires_at_ms: int, ahead_max_ms: int) -> None:
    if shard.time_ms < expires_at_ms:
        refuse(Refusal.TOO_EARLY, f"it is of {shard.time_ms} ms, the message expires at {expires_at_ms} ms")
    if shard.remembers_from_ms > expires_at_ms - ahead_max_ms:
        refuse(
            Refusal.FORGOTTEN,
            f"it remembers from {shard.remembers_from_ms} ms on, the message could be included from "
            f"{expires_at_ms - ahead_max_ms} ms on",
        )


def require_twin(end: ExecutedAsEnd, place: MessagePlace, expires_at_ms: int, ahead_max_ms: int) -> None:
    is_within = expires_at_ms - ahead_max_ms <= end.time_ms < expires_at_ms
    if end.by == place.message_id or not is_within:
        refuse(Refusal.OTHER_TIME, f"message {end.by.hex()} took it at {end.time_ms} ms")


def _uid_key(place: MessagePlace) -> bytes:
    if place.read is None:
        return refuse(Refusal.BAD_MESSAGE)
    return uid_place(place.read.external.uid)


def _shared_digest(proof: MessageProof) -> bytes:
    writer = Writer()
    writer.write_unsigned_int(proof.begins_at)
    # Without the count, a master block's bytes would also be those of a key block.
    writer.write_vector_count(len(proof.way))
    for block in proof.way:
        block.write(writer)
    if proof.master is not None:
        proof.master.write(writer)
    return sha256(writer.written()).digest()
