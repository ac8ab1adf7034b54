"""Parts of a proof that are odd in one way each, at the edges of what the rules and the form allow; and odd spellings of it."""

from __future__ import annotations

import struct
from hashlib import sha256
from random import Random
from typing import Any

import msgspec

from stagepost.chain.hash_tree import EMPTY_HASH
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.proofs.proof_form import (
    AbsenceProof,
    AccountProof,
    End,
    ExecutedAsEnd,
    ExecutedEnd,
    MessageProof,
    NeverEnd,
    ProofPath,
)
from stagepost.ground.wire.tl import Writer
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import (
    WINDOW_MS,
)

INT_EDGES = (
    0,
    1,
    2,
    -1,
    127,
    128,
    253,
    254,
    255,
    256,
    257,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    -(1 << 31),
)
LONG_EDGES = (*INT_EDGES, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1, START_MS)


class OddParts:
    """Changes parts of `proof`, which shows the end of `message`."""

    def __init__(self, random: Random, proof: MessageProof, message: ReadMessage) -> None:
        self.random = random
        self.proof = proof
        self.known = message

    def end(self, end: End) -> End:
        random, change = self.random, msgspec.structs.replace
        kind = random.randrange(5)
        if kind == 0:
            return self._of_other_kind(end)
        if isinstance(end, ExecutedEnd):
            return random.choice(
                (
                    lambda: change(end, message_id=self.hash(end.message_id)),
                    lambda: change(end, address=self.hash(end.address)),
                    lambda: change(end, account=self._account(end.account)),
                    lambda: change(end, path=self.path(end.path)),
                    lambda: change(end, catchain_seqno=self.unsigned(end.catchain_seqno)),
                    lambda: change(end, time_ms=self.time(end.time_ms)),
                )
            )()
        if kind == 1:
            return change(end, message=self._message(end.message))
        if isinstance(end, ExecutedAsEnd):
            return random.choice(
                (
                    lambda: change(end, by=random.choice((self.hash(end.by), sha256(end.message).digest()))),
                    lambda: change(end, account=self._account(end.account)),
                    lambda: change(end, path=self.path(end.path)),
                    lambda: change(end, catchain_seqno=self.unsigned(end.catchain_seqno)),
                    lambda: change(end, time_ms=self.time(end.time_ms)),
                )
            )()
        if isinstance(end.account, AbsenceProof):
            return change(end, account=self._absence(end.account))
        return random.choice(
            (
                lambda: change(end, account=self._account(end.account)),
                lambda: change(end, id_absence=self._absence(end.id_absence)),
                lambda: change(end, uid_absence=self._absence(end.uid_absence)),
                lambda: change(end, id_absence=end.uid_absence, uid_absence=end.id_absence),
                # The account's recent messages are none at all.
                lambda: change(
                    end, **dict.fromkeys(("id_absence", "uid_absence"), AbsenceProof(ProofPath(()), None))
                ),
            )
        )()

    def _of_other_kind(self, end: End) -> End:
        random, message = self.random, self.known.external
        account = (
            end.account if isinstance(end.account, AccountProof) else AccountProof(ProofPath(()), 0, b"")
        )
        path = self.path(ProofPath(()))
        nowhere = AbsenceProof(path, None)
        at_ms = self.time(START_MS + 20_000)
        return random.choice(
            (
                ExecutedEnd(message.message_id, message.account, account, path, 1, at_ms),
                ExecutedAsEnd(message.body, account, path, self.hash(message.message_id), 1, at_ms),
                NeverEnd(message.body, account, nowhere, nowhere),
                NeverEnd(message.body, self._absence(nowhere)),
            )
        )

    def _account(self, account: Any) -> Any:
        random, change = self.random, msgspec.structs.replace
        return random.choice(
            (
                change(account, path=self.path(account.path)),
                change(account, balance=random.choice(LONG_EDGES[:17])),
                change(account, memory=bytes(random.choice((0, 1, 253, 254, 1_023, 1_024, 1_025)))),
            )
        )

    def _absence(self, absence: AbsenceProof | None) -> AbsenceProof:
        random, change = self.random, msgspec.structs.replace
        absence = absence or AbsenceProof(ProofPath(()), None)
        external = self.known.external
        keys = external.account, external.message_id, sha256(b"uid" + external.uid).digest()
        other = random.choice(keys)
        beside = bytes([*other[:31], other[31] ^ 1])
        return random.choice(
            (
                change(absence, path=self.path(absence.path)),
                change(absence, other=None),
                change(absence, other=(other, self.hash(EMPTY_HASH))),
                change(absence, other=(beside, self.hash(EMPTY_HASH))),
                change(absence, other=(self.hash(other), self.hash(EMPTY_HASH))),
            )
        )

    def path(self, path: ProofPath) -> ProofPath:
        random, siblings = self.random, list(path.siblings)
        match random.randrange(6):
            case 0:
                siblings = siblings[: random.randrange(len(siblings) + 1)]
            case 1:
                siblings.insert(random.randrange(len(siblings) + 1), self.hash(EMPTY_HASH))
            case 2:
                siblings += [EMPTY_HASH] * random.choice((1, 8, 248, 256, 257))
            case 3 if siblings:
                siblings[random.randrange(len(siblings))] = EMPTY_HASH
            case 4:
                siblings = [
                    self.hash(EMPTY_HASH) for _ in range(random.choice((0, 1, 7, 8, 9, 255, 256, 257)))
                ]
            case _:
                random.shuffle(siblings)
        return ProofPath(tuple(siblings))

    def _message(self, data: bytes) -> bytes:
        random = self.random
        message = CanonicalMessage.decode(self.known.external.body)
        shard_s = self.proof.shard.time_ms // 1_000
        expiries = 0, 1, shard_s, shard_s + 1, shard_s - 1, WINDOW_MS // 1_000, (1 << 32) - 1, 1 << 31
        changed = random.choice(
            (
                msgspec.structs.replace(message, expires_at_s=random.choice(expiries)),
                msgspec.structs.replace(message, salt=random.choice(LONG_EDGES[:16])),
                msgspec.structs.replace(
                    message, body=bytes(random.choice((0, 253, 254, 65_480, 65_481, 65_500, 65_600)))
                ),
                msgspec.structs.replace(message, workchain=random.choice((-1, 1, 0))),
                msgspec.structs.replace(message, account=self.hash(message.account)),
            )
        ).encode()
        return random.choice(
            (changed, changed, data[:-1], data + bytes(4), b"", bytes.fromhex("b5ee9c72") + data)
        )

    def shard(self, proof: MessageProof) -> MessageProof:
        random, shard, change = self.random, proof.shard, msgspec.structs.replace
        prefixes = 0, 1, WHOLE_SHARD, 3 << 62, 1 << 62, (1 << 64) - 1, shard.shard.prefix ^ 1
        other = random.choice(
            (
                lambda: change(shard, path=self.path(shard.path)),
                lambda: change(shard, file_hash=self.hash(shard.file_hash)),
                lambda: change(shard, session_id=self.hash(shard.session_id)),
                lambda: change(shard, shard=Shard(random.choice((0, -1, 1)), random.choice(prefixes))),
                lambda: change(shard, seqno=self.unsigned(shard.seqno)),
                lambda: change(shard, previous=shard.previous * random.choice((0, 2, 16, 17))),
                lambda: change(
                    shard,
                    master=msgspec.structs.replace(shard.master, seqno=self.unsigned(shard.master.seqno)),
                ),
                lambda: change(shard, time_ms=self.time(shard.time_ms)),
                lambda: change(shard, time_ms=self.time(shard.time_ms)),
                lambda: change(shard, ordering=self.unsigned(shard.ordering)),
                lambda: change(shard, remembers_from_ms=self.time(shard.remembers_from_ms)),
                lambda: change(shard, remembers_from_ms=self._remembers()),
            )
        )()
        return change(proof, shard=other)

    def _remembers(self) -> int:
        read = self.known
        return read.expires_at_s * 1_000 - WINDOW_MS + self.random.choice((-1, 0, 1))

    def hash(self, found: bytes) -> bytes:
        random = self.random
        place = random.randrange(len(found))
        flipped = found[:place] + bytes([found[place] ^ (1 << random.randrange(8))]) + found[place + 1 :]
        return random.choice((flipped, flipped, EMPTY_HASH, bytes([255]) * 32, sha256(found).digest()))

    def unsigned(self, found: int) -> int:
        return self.random.choice((found + 1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)) & 0xFFFF_FFFF

    def time(self, found: int) -> int:
        """Return a time at one of the edges of the rules, or of the number."""
        proof, read = self.proof, self.known
        expires_ms = read.expires_at_s * 1_000
        edges = (
            proof.shard.time_ms,
            expires_ms,
            expires_ms - WINDOW_MS,
            found,
            proof.shard.time_ms if proof.master is None else proof.master.time_ms,
        )
        least, most = -(1 << 63), (1 << 63) - 1
        random = self.random
        if random.random() < 0.15:
            return random.choice((0, -1, least, most))
        return max(least, min(random.choice(edges) + random.choice((-1, 0, 1)), most))


class OddWriter(Writer):
    """Writer that now and then writes a length, the padding or the last bit of a value otherwise than TL has it."""

    def __init__(self, random: Random, oddness: float) -> None:
        super().__init__()
        self.random = random
        self.oddness = oddness

    def write_bytes(self, value: bytes) -> None:
        random = self.random
        if random.random() >= self.oddness:
            super().write_bytes(value)
            return
        pad = -(1 + len(value)) % 4
        match random.randrange(4):
            case 0:
                self.write_raw(b"\xfe" + len(value).to_bytes(3, "little") + value + bytes(-len(value) % 4))
            case 1 if len(value) < 254 and pad:
                self.write_raw(bytes([len(value)]) + value + bytes(pad - 1) + b"\x01")
            case 2 if value:
                super().write_bytes(value[:-1] + bytes([value[-1] ^ 1]))
            case _:
                super().write_bytes(value + b"\x00")

    def write_vector_count(self, count: int) -> None:
        super().write_vector_count(count + (self.random.random() < self.oddness / 4))


def other_bytes(random: Random, content: bytes) -> bytes:
    """Change bytes of the proof where the form alone decides: counts, lengths, padding, bits of paths."""
    begin = content.index(b'"proof":"') + 9
    data = bytearray.fromhex(content[begin:-2].decode())
    for _ in range(random.choice((1, 1, 2))):
        if not data:
            break
        place = random.randrange(len(data))
        match random.randrange(6):
            case 0:
                data[place] ^= 1 << random.randrange(8)
            case 1:
                data[place] = random.choice((0, 1, 0xFE, 0xFF, 0x80))
            case 2:
                data[place:place] = bytes(random.choice((1, 4, 32)))
            case 3:
                del data[place : place + random.choice((1, 4, 32))]
            case 4:
                # A short length in the long form.
                spot = 4 * (place // 4)
                data[spot : spot + 1] = b"\xfe" + bytes([data[spot], 0, 0])
            case _:
                spot = 4 * (place // 4)
                data[spot : spot + 4] = struct.pack("<I", random.choice(LONG_EDGES) & 0xFFFF_FFFF)
    return content[:begin] + bytes(data).hex().encode() + content[-2:]


def other_spelling(random: Random, content: bytes) -> bytes:
    """Spell the JSON of a proof file otherwise, or say something else in it."""
    place = random.randrange(len(content))
    begin, end = content.index(b'"id":"') + 6, content.index(b'"id":"') + 70
    return random.choice(
        (
            content[:place] + b" " + content[place:],
            content + b"\n",
            content[:-1] + b',"id":"' + content[begin:end] + b'"}',
            content[:begin] + content[begin:end].upper() + content[end:],
            content[:begin] + b"\\u00" + b"%02x" % content[begin] + content[begin + 1 :],
            content[:begin] + content[begin + 2 :],
            content[:begin] + bytes(64).hex().encode() + content[end:],
            content.replace(
                b'"stagepost_proof":1', random.choice((b'"stagepost_proof":1.0', b'"stagepost_proof":01'))
            ),
            content.replace(b'"kind":"never"', b'"kind":"neverThere"'),
            content.replace(b'"kind":"', b'"kind":"\xff'),
            content.decode(errors="replace").encode("utf-16"),
            b"\xef\xbb\xbf" + content,
            content[:place],
        )
    )


def other_checkpoint(random: Random, content: bytes) -> bytes:
    """Spell the JSON of a checkpoint otherwise, or say something else in it."""
    place = random.randrange(len(content))
    return random.choice(
        (
            content[:place] + b" " + content[place:],
            content + b"\n",
            content.upper(),
            content[:20] + content[20:].replace(b"a", b"A", 1),
            content.replace(b'"stagepost_checkpoint":1', b'"stagepost_checkpoint":2'),
            content.replace(b'"stagepost_checkpoint":1', b'"stagepost_checkpoint":true'),
            content.replace(b'"seqno":', b'"seqno":-'),
            content.replace(b'"time_ms":', b'"time_ms":1e'),
            content[:-1] + b',"more":1}',
            content[:place],
        )
    )
