"""A forger who holds every key of every validator set, and brings proofs with all that is odd in them, under signatures that
hold. Two verifiers must say the same of each: what one accepts and the other one refuses is a fault of one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import NamedTuple

import msgspec

from stagepost.chain.accounts import account_value_hash
from stagepost.chain.agreement.candidate import candidate_hash
from stagepost.chain.agreement.votes import VoteKind, quorum, signed_bytes
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.genesis import Genesis
from stagepost.chain.hash_tree import EMPTY_HASH, leaf_hash, root_above
from stagepost.chain.master_block import MASTER_BLOCK_ID, MASTER_ROOT_ID, last_blocks
from stagepost.chain.master_state import PlanKind
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.proofs.proof_files import SEQNO_MAX, Checkpoint, read_checkpoint, write_checkpoint
from stagepost.chain.proofs.proof_form import (
    PROOF_ID,
    PROOF_VERSION,
    AbsenceProof,
    End,
    KeyBlockProof,
    MessageProof,
    NeverEnd,
    ProofPath,
    Seal,
    cut,
)
from stagepost.chain.proofs.proof_rules import (
    CheckedEnd,
    MessagePlace,
    ProofRefused,
    ProofVerifier,
    accounts_root,
    checkpoint_of,
    master_root_hash,
    place_of,
    shard_root_hash,
)
from stagepost.chain.rotation import Plan
from stagepost.errors import DecodeError, StagepostError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Reader, Writer
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD, BlockId
from tests.worlds.chain.chain_world import START_MS, a_genesis
from tests.worlds.chain.odd_proofs import (
    OddParts,
    OddWriter,
    other_bytes,
    other_checkpoint,
    other_spelling,
)
from tests.worlds.chain.proved_chain import (
    SEEDS,
    WINDOW_MS,
    ProvedChain,
    a_message,
    a_proving_configuration,
    a_signing_set,
    second,
)


class Ground(NamedTuple):
    """What a forger starts from: a network, a checkpoint of it or none, and a true proof."""

    genesis: Genesis
    checkpoint: Checkpoint | None
    proof: MessageProof
    message: ReadMessage
    newest: Checkpoint
    """Behind the last key block of the proof's way."""


class Opinions(NamedTuple):
    """What each verifier says: the end as text, or None where it refuses."""

    first: str | None
    second: str | None
    reasons: tuple[str, str]


def grounds() -> list[Ground]:
    """Return true proofs of every kind, from networks without and with key blocks, hand-overs, splits and checkpoints."""
    found: list[Ground] = []
    hand_over_ms = START_MS + 20_000
    chains = (
        ProvedChain(),
        ProvedChain(a_genesis(a_proving_configuration(1))),
        ProvedChain(a_genesis(a_proving_configuration(4, next_set=a_signing_set(7, "later", hand_over_ms)))),
        ProvedChain(a_genesis(a_proving_configuration(2))),
    )
    for number, chain in enumerate(chains):
        taken, twin, left, nobody = (
            a_message(1),
            a_message(1, salt=1),
            a_message(1, 20),
            a_message(77),
        )
        messages = taken, twin, left, nobody
        for message in messages:
            chain.maker.expect(message)
        if number == 3:
            changed = a_proving_configuration(5, name="later")
            chain.ledger.wanted.add(changed.hash)
            chain.master_block(configuration=changed)
        chain.carry_out(taken, *(a_message(one, 12) for one in range(2, 12)))
        if number == 1:
            chain.master_block(plans=[Plan(PlanKind.SPLIT, Shard(0, WHOLE_SHARD), chain.now_ms)])
        if number == 2:
            chain.pass_time(hand_over_ms)
        chain.pass_time(START_MS + 30_000)
        for message in messages:
            proof = chain.proof(message)
            newest = chain.maker.seals.newest if proof.way else checkpoint_of(chain.genesis)
            found.append(Ground(chain.genesis, None, proof, message, newest))
            if proof.way and proof.master is not None:
                found.append(Ground(chain.genesis, newest, proof, message, newest))
                short = cut(proof, [newest.seqno] * len(proof.way), newest.seqno)
                found.append(Ground(chain.genesis, newest, short, message, newest))
    return found


class Forgery(NamedTuple):
    """The files that a verifier is given."""

    proof: bytes
    genesis: bytes
    checkpoint: bytes | None


class Forger:
    def __init__(self, random: Random, ground: Ground) -> None:
        self.random = random
        self.odd = OddParts(random, ground.proof, ground.message)
        self.ground = self._with_checkpoint(ground) if random.random() < 0.3 else ground
        self.genesis = ground.genesis.encode()
        newest = self.ground.newest
        rules = second.read_rules(newest.configuration)
        self.trusted = second.Trusted(newest.network, newest.seqno, newest.root_hash, newest.time_ms, rules)
        if random.random() < 0.05:
            self._found_otherwise()

    def forgery(self) -> Forgery:
        """Return files that are odd in some way; the true ones now and then."""
        random, proof = self.random, self.ground.proof
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            proof = self._changed(proof)
        if random.random() < 0.9:
            proof = self.mended(proof)
        if random.random() < 0.25:
            proof = self._with_seal(proof, self._odd_seal)
        try:
            message_id = place_of(proof.end, proof.shard).message_id
        except ProofRefused:
            message_id = self.ground.message.external.message_id
        writer = OddWriter(random, random.choice((0.0, 0.0, 0.0, 0.1)))
        write_proof(writer, proof)
        content = _spelled(proof.kind, message_id, writer.written())
        if random.random() < 0.25:
            content = other_bytes(random, content)
        if random.random() < 0.1:
            content = other_spelling(random, content)
        known = self.ground.checkpoint
        checkpoint = None if known is None else write_checkpoint(known)
        if checkpoint is not None and random.random() < 0.1:
            checkpoint = other_checkpoint(random, checkpoint)
        return Forgery(content, self.genesis, checkpoint)

    # What a verifier trusts

    def _with_checkpoint(self, ground: Ground) -> Ground:
        """Give the verifier a checkpoint that is not on the way of the proof, or one that is a little different."""
        random, change = self.random, msgspec.structs.replace
        master, proof = ground.proof.master, ground.proof
        seqno, time_ms = proof.shard.seqno, proof.shard.time_ms
        if master is not None:
            seqno, time_ms = master.seqno, master.time_ms
        known = ground.checkpoint or ground.newest
        seqnos = seqno - 1, seqno, seqno + 1, 0, known.seqno, known.seqno, (1 << 32) - 1
        known = change(
            known,
            seqno=min(max(0, random.choice(seqnos)), SEQNO_MAX),
            time_ms=random.choice((known.time_ms, time_ms - 1, time_ms, time_ms + 1)),
        )
        if random.random() < 0.3:
            known = random.choice(
                (
                    change(known, root_hash=self.odd.hash(known.root_hash)),
                    change(known, root_hash=known.root_hash[:31]),
                    change(known, network=self.odd.hash(known.network)),
                    change(known, configuration=ground.genesis.configuration.encode()),
                )
            )
        if proof.begins_at or (proof.way and random.random() < 0.5):
            proof = change(proof, begins_at=known.seqno, way=())
            return ground._replace(checkpoint=known, proof=proof, newest=known)
        return ground._replace(checkpoint=known)

    def _found_otherwise(self) -> None:
        """Found another network, as far as anybody can read its genesis, and make the proof one of that network."""
        random, data = self.random, bytearray(self.genesis)
        end = len(data)
        match random.randrange(5):
            case 0:
                data[5] = 0xFF
            case 1:
                place = end - 4 - 4 * random.randrange(1, 9)
                data[place : place + 4] = struct.pack("<I", random.choice((0, 1, 2, 1 << 31)))
            case 2:
                data += bytes(4)
            case 3:
                data[random.randrange(end)] ^= 1
            case _:
                data[4] = 65
        try:
            trusted, _ = second.read_genesis(bytes(data))
        except (second.Refused, ValueError):
            trusted = self.trusted
        self.genesis = bytes(data)
        if not self.ground.proof.begins_at and self.ground.checkpoint is None:
            self.trusted = trusted
            proof = msgspec.structs.replace(self.ground.proof, way=())
            self.ground = self.ground._replace(proof=proof)

    # The parts of a proof

    def _changed(self, proof: MessageProof) -> MessageProof:
        change: Callable[[MessageProof], MessageProof] = self.random.choice(
            (
                self._end,
                self._end,
                self._end,
                self.odd.shard,
                self.odd.shard,
                self._master,
                self._way,
                self._way,
                self._begin,
            )
        )
        return change(proof)

    def _begin(self, proof: MessageProof) -> MessageProof:
        known = self.ground.newest.seqno
        begins_at = self.random.choice((0, known, min(known + 1, SEQNO_MAX), 1, SEQNO_MAX, 1 << 31))
        return msgspec.structs.replace(proof, begins_at=begins_at)

    def _end(self, proof: MessageProof) -> MessageProof:
        return msgspec.structs.replace(proof, end=self.odd.end(proof.end))

    def _master(self, proof: MessageProof) -> MessageProof:
        random, master, change = self.random, proof.master, msgspec.structs.replace
        if master is None or random.random() < 0.1:
            return change(proof, master=None)
        newest, later = self.trusted, self.trusted.rules.later
        times = [newest.time_ms, newest.time_ms + 1, proof.shard.time_ms, proof.shard.time_ms - 1]
        if later:
            from_ms = int.from_bytes(later[:8], "little", signed=True)
            times += [from_ms, from_ms - 1]
        other = random.choice(
            (
                change(
                    master,
                    seqno=random.choice(
                        (newest.seqno, min(newest.seqno + 1, SEQNO_MAX), 0, SEQNO_MAX, 71_934, 71_935)
                    ),
                ),
                change(master, time_ms=random.choice(times)),
                change(master, time_ms=self.odd.time(master.time_ms)),
                change(master, state_hash=self.odd.hash(master.state_hash)),
                change(master, file_hash=self.odd.hash(master.file_hash)),
            )
        )
        return change(proof, master=other)

    # Key blocks

    def _way(self, proof: MessageProof) -> MessageProof:
        """Put a key block of the forger's in front of everything, in the middle of the way, or behind it."""
        random = self.random
        if proof.way and random.random() < 0.25:
            way = list(proof.way)
            random.shuffle(way)
            return msgspec.structs.replace(proof, way=tuple(random.choice((way[1:], way * 2, way))))
        return self.with_key_block(proof, self._key_block(proof))

    def with_key_block(self, proof: MessageProof, data: bytes) -> MessageProof:
        """Sign a key block, put it at the end of the way, and go on from there."""
        block = lenient_block(data)
        seal = self._sealed(EMPTY_HASH if block is None else block.root_hash, sha256(data).digest())
        self._behind(data)
        return msgspec.structs.replace(proof, way=(*proof.way, KeyBlockProof(data, seal)))

    def _behind(self, data: bytes) -> None:
        """Go on from a key block of the forger's, as far as anybody can read it."""
        block = lenient_block(data)
        if block is None:
            return
        rules = self.trusted.rules
        if block.configuration:
            try:
                rules = second.read_rules(block.configuration)
            except second.Refused:
                return
        if rules.hand_over_at(block.time_ms):
            rules = rules._replace(current=rules.later, later=b"")
        self.trusted = second.Trusted(
            self.trusted.network, block.seqno, block.root_hash, block.time_ms, rules
        )

    def _key_block(self, proof: MessageProof) -> bytes:
        random, before = self.random, self.trusted
        session = before.session(90)[0]
        if random.random() < 0.1:
            session = self.odd.hash(session)
        root_hash, file_hash = sha256(b"a").digest(), sha256(b"b").digest()
        try:
            place = place_of(proof.end, proof.shard)
            root_hash = shard_root_hash(proof.shard, loose_root(proof.end, place))
            file_hash = proof.shard.file_hash
        except (StagepostError, ValueError):
            pass
        block_id = BlockId(0, WHOLE_SHARD, proof.shard.seqno & 0xFFFF_FFFF, root_hash, file_hash)
        counts = [random.choice((1, 1, 2, 64, 65, 0)) if random.random() < 0.1 else 1]
        if random.random() < 0.06:
            counts = [64] * random.choice((16, 17))
        writer = Writer()
        writer.write_constructor(MASTER_BLOCK_ID)
        writer.write_int256(session)
        writer.write_unsigned_int(
            min((1 << 32) - 1, before.seqno + random.choice((0, 1, 1, 1, 1, 5, 1 << 30)))
        )
        block_id.write(writer)
        writer.write_long(before.time_ms + random.choice((0, 1, 1, 1_000, 400_000)))
        writer.write_vector_count(len(counts))
        for count in counts:
            writer.write_vector_count(count)
            for _ in range(count):
                block_id.write(writer)
        kinds = [random.choice((0, 1, 2, 3, 1 << 31)) for _ in range(random.choice((0, 0, 0, 1, 64, 65)))]
        if random.random() < 0.7:
            kinds = [kind for kind in kinds if kind in list(PlanKind)]
        writer.write_vector_count(len(kinds))
        for kind in kinds:
            writer.write_unsigned_int(kind)
            writer.write_unsigned_long(random.choice((0, WHOLE_SHARD, 1)))
            writer.write_long(random.choice((0, -1, START_MS)))
        writer.write_bytes(self._configuration())
        writer.write_int256(sha256(b"state").digest())
        data = writer.written()
        return (
            random.choice((data, data, data, data, data, data + bytes(4), data[:-4]))
            if random.random() < 0.2
            else data
        )

    def _configuration(self) -> bytes:
        """Return a configuration, odd in one of its fields."""
        random, change, before = self.random, msgspec.structs.replace, self.trusted
        rules = Configuration.decode(self.ground.newest.configuration)
        if random.random() < 0.2:
            return b""
        following = a_signing_set(
            random.choice((1, 4, 21)), "other", before.time_ms + random.choice((-1, 0, 1, 1_000, 400_000))
        )
        members = rules.current.validators
        odd = (
            rules,
            change(rules, next=following),
            change(rules, current=following),
            change(rules, current=change(rules.current, validators=())),
            change(rules, current=change(rules.current, validators=(*members, *members))),
            change(
                rules,
                current=change(
                    rules.current,
                    validators=tuple(
                        change(one, weight=random.choice((0, -1, 5, (1 << 63) - 1))) for one in members
                    ),
                ),
            ),
            change(rules, next=ValidatorSet(before.time_ms, before.time_ms, ())),
            change(
                rules, expiry_ahead_max_ms=random.choice((0, -1, (1 << 63) - 1, -(1 << 63), WINDOW_MS + 1))
            ),
            change(rules, shard_validators=random.choice((0, 1, (1 << 32) - 1))),
            change(rules, network_version=random.choice((0, 2, (1 << 32) - 1))),
            change(rules, takes_cells=True, must_expire=False),
        )
        data = random.choice(odd).encode()
        if random.random() < 0.2:
            # A flag, or another of the last numbers, is no number that it may be.
            place = len(data) - 4 * random.randrange(1, 9)
            data = data[:place] + struct.pack("<I", random.choice((2, 1 << 31))) + data[place + 4 :]
        return (
            random.choice((data, data, data, data, data + bytes(4), data[:-1]))
            if random.random() < 0.1
            else data
        )

    # Signatures

    def mended(self, proof: MessageProof) -> MessageProof:
        """Commit the shard block of the proof in its master block, and sign that as a quorum does."""
        master, shard, change = proof.master, proof.shard, msgspec.structs.replace
        if master is None:
            return proof
        try:
            root_hash = shard_root_hash(shard, loose_root(proof.end, place_of(proof.end, shard)))
            last_hash = root_above(leaf_hash(root_hash, shard.file_hash), root_hash, shard.path.siblings)
        except (StagepostError, ValueError):  # no message, or a path that is longer than any key
            last_hash = sha256(b"unknown").digest()
        master = change(master, last_hash=last_hash)
        if self.random.random() < 0.8:
            newest = self.trusted
            seqno = min(SEQNO_MAX, max(master.seqno, newest.seqno + 1))
            master = change(master, seqno=seqno, time_ms=max(master.time_ms, newest.time_ms + 1))
        return self._with_seal(change(proof, master=master), lambda seal: seal)

    def _with_seal(self, proof: MessageProof, odd: Callable[[Seal], Seal]) -> MessageProof:
        if proof.master is None:
            return proof
        master, catchain = proof.master, self.random.choice((1, 90, 90, 0, (1 << 31) - 1))
        root_hash = master_root_hash(master, self.trusted.session(catchain)[0])
        seal = odd(self._sealed(root_hash, master.file_hash, catchain))
        return msgspec.structs.replace(proof, master=msgspec.structs.replace(master, seal=seal))

    def _sealed(self, root_hash: bytes, file_hash: bytes, catchain: int = 90) -> Seal:
        random = self.random
        session, keys = self.trusted.session(catchain)
        slots = sorted(random.sample(range(1, 100), random.choice((1, 1, 1, 2, 5))))
        if random.random() < 0.04:
            odd = [0], [-1], [5, 5], [5, 4], [(1 << 31) - 1], list(range(1, 66)), list(range(1, 67))
            slots = random.choice(odd)
        candidate = candidate_hash(slots[0], session, sha256(root_hash + file_hash).digest())
        later = [(slot, sha256(b"%d" % slot).digest()) for slot in slots[1:]]
        for slot, block in later:
            candidate = candidate_hash(slot, candidate, block)
        signers = sorted(random.sample(range(len(keys)), min(quorum(len(keys)), len(keys))))
        signed = signed_bytes(session, slots[-1], VoteKind.FINALISE, candidate)
        signatures = tuple(
            (index, ed25519.sign(SEEDS.get(keys[index], bytes(32)), signed)) for index in signers
        )
        return Seal(catchain, slots[0], session, tuple(later), signatures)

    def _odd_seal(self, seal: Seal) -> Seal:
        random, change, signed = self.random, msgspec.structs.replace, list(seal.signatures)
        if not signed:
            return seal
        one = random.choice(signed)
        return random.choice(
            (
                seal,
                change(seal, signatures=tuple(signed[:-1])),
                change(seal, signatures=(*signed, one)),
                change(seal, signatures=(*signed[:-1], signed[0])),
                change(seal, signatures=tuple(reversed(signed))),
                change(seal, signatures=(*signed[:-1], (random.choice((128, 127, -1, len(signed))), one[1]))),
                change(seal, signatures=(*signed[:-1], (one[0], bytes(64)))),
                change(seal, signatures=()),
                change(seal, catchain_seqno=self.odd.unsigned(seal.catchain_seqno)),
                change(seal, slot=random.choice((0, -1, 1, seal.slot - 1))),
                change(seal, parent=self.odd.hash(seal.parent)),
                change(seal, later=(*seal.later, (99, bytes(32)))),
            )
        )

    # Bytes


class LenientBlock(NamedTuple):
    seqno: int
    time_ms: int
    configuration: bytes
    root_hash: bytes


def lenient_block(data: bytes) -> LenientBlock | None:
    """Return what a key block's bytes say, whatever limits they break; None if they cannot be read at all."""
    reader = Reader(data)
    try:
        reader.read_raw(4)
        fields = data[4 : 4 + 32 + 4 + 80 + 8]
        reader.read_raw(32)
        seqno = reader.read_unsigned_int()
        reader.read_raw(80)
        time_ms, start = reader.read_long(), reader.offset
        last = []
        for _ in range(reader.read_int()):
            raw = [reader.read_raw(80) for _ in range(reader.read_int())]
            last += [BlockId(0, 0, 0, one[16:48], one[48:]) for one in raw[-1:]]
        commits, start = data[start : reader.offset], reader.offset
        reader.read_raw(20 * reader.read_int())
        plans = data[start : reader.offset]
        configuration = reader.read_bytes()
        state_hash = reader.read_int256()
    except DecodeError:
        return None
    hashes = (sha256(part).digest() for part in (commits, plans, configuration))
    head = struct.pack("<I", MASTER_ROOT_ID)
    root = sha256(b"".join((head, fields, last_blocks(last).hash, *hashes, state_hash))).digest()
    return LenientBlock(seqno, time_ms, configuration, root)


def loose_root(end: End, place: MessagePlace) -> bytes:
    """Return the root of the accounts that the paths of `end` lead to, with whatever leaf stands beside the way."""
    if not isinstance(end, NeverEnd):
        return accounts_root(end, place)
    if isinstance(end.account, AbsenceProof):
        return _loose_absence(end.account, place.account)
    recent = _loose_absence(end.id_absence or AbsenceProof(ProofPath(()), None), place.message_id)
    value = account_value_hash(end.account.balance, end.account.memory, recent)
    return root_above(leaf_hash(place.account, value), place.account, end.account.path.siblings)


def _loose_absence(absence: AbsenceProof, key: bytes) -> bytes:
    leaf = EMPTY_HASH if absence.other is None else leaf_hash(*absence.other)
    return root_above(leaf, key, absence.path.siblings)


def write_proof(writer: Writer, proof: MessageProof) -> None:
    writer.write_constructor(PROOF_ID)
    writer.write_int(PROOF_VERSION)
    writer.write_unsigned_int(proof.begins_at)
    writer.write_vector_count(len(proof.way))
    for block in proof.way:
        block.write(writer)
    writer.write_vector_count(0 if proof.master is None else 1)
    if proof.master is not None:
        proof.master.write(writer)
    proof.shard.write(writer)
    proof.end.write(writer)


def _spelled(kind: str, message_id: bytes, data: bytes) -> bytes:
    return (
        f'{{"stagepost_proof":1,"kind":"{kind}","id":"{message_id.hex()}","proof":"{data.hex()}"}}'.encode()
    )


def both_say(files: Forgery) -> Opinions:
    """Return what both verifiers say; any error but a refusal is theirs, and goes up."""
    reasons = ["", ""]
    first = other = None
    try:
        known = None if files.checkpoint is None else read_checkpoint(files.checkpoint)
        first = _text(ProofVerifier(Genesis.decode(files.genesis), known).check_file(files.proof))
    except (ProofRefused, DecodeError) as refused:
        reasons[0] = str(refused)
    try:
        trusted, _ = second.read_genesis(files.genesis)
        known = None if files.checkpoint is None else second.read_checkpoint(files.checkpoint)
    except (second.Refused, ValueError, KeyError, TypeError) as unusable:  # as its command line has it
        return Opinions(first, None, (reasons[0], str(unusable)))
    try:
        seen = second.verify(files.proof, trusted, known)
    except second.Refused as refused:
        reasons[1] = str(refused)
    else:
        fields = (
            "kind",
            "id",
            "account",
            "executed_as",
            "time_ms",
            "block",
            "root_hash",
            "signers",
            "validators",
        )
        other = repr([seen[name] for name in (*fields, "trusted_from", "key_blocks", "newest_ms")])
    return Opinions(first, other, (reasons[0], reasons[1]))


def _text(found: CheckedEnd) -> str:
    by, master = found.executed_as, found.master
    return repr(
        [
            str(found.kind),
            found.message_id.hex(),
            found.account.hex(),
            None if by is None else by.hex(),
            found.time_ms,
            master.block_id.seqno,
            master.block_id.root_hash.hex(),
            master.signers,
            master.validators,
            found.trusted_from,
            master.key_blocks,
            master.newest.time_ms,
        ]
    )
