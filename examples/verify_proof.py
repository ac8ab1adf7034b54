"""Check the proof of a message's end, offline, with nothing but this file and PyNaCl.

    python verify_proof.py PROOF --genesis network.json [--checkpoint FILE]

The program trusts the genesis of the network (or a checkpoint: a key block that you have checked before) and that fewer
than a third of each validator set ever sign what is false. Exit code 0: the proof holds; 1: it is refused; 2: a file
cannot be used. The format is in specs/proof.tl, specs/chain.tl and specs/agreement.tl.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

EMPTY, BYTES_MAX = bytes(32), 16 * 1024 * 1024
MASTERCHAIN, WHOLE, FINALISE = -1, 1 << 63, 3
KINDS = {"executed": "executed", "executedAs": "executed_as", "never": "never", "neverThere": "never"}


class Refused(Exception):
    """The proof breaks a rule, which the text names."""


def need(holds: bool, text: str) -> None:
    if not holds:
        raise Refused(text)


def digest(*parts: bytes) -> bytes:
    return sha256(b"".join(parts)).digest()


# Lines of the schemas, with short names for two prefixes and for tonNode.blockIdExt.
SCHEMA = """
pub.ed25519 key:int256 = PublicKey;
validator.groupNew workchain:int shard:long vertical_seqno:int last_key_block_seqno:int catchain_seqno:int
 config_hash:int256 members:vector validator.groupMember = validator.Group;
agreement.candidateId slot:int parent:int256 block:int256 = agreement.CandidateId;
agreement.voteId session:int256 slot:int kind:int block:int256 = agreement.VoteId;
C.message workchain:int account:int256 expires_at:int salt:long body:bytes = C.Message;
C.twin expires_at:int body:bytes = C.Twin;
C.shardRoot session:int256 workchain:int shard:long seqno:int previous:vector B master:B time:long ordering:int
 messages_hash:int256 state_hash:int256 = C.Root;
C.masterBlock session:int256 seqno:int previous:B time:long commits:vector C.commit plans:vector C.plan
 configuration:bytes state_hash:int256 = C.Block;
C.masterRoot session:int256 seqno:int previous:B time:long last_hash:int256 commits_hash:int256 plans_hash:int256
 configuration_hash:int256 state_hash:int256 = C.Root;
C.shardState workchain:int shard:long seqno:int time:long remembers_from:long master_seqno:int accounts:int256 =
 C.State;
C.account balance:long memory:bytes recent:int256 = C.Account;
C.inclusion message:int256 catchain_seqno:int time:long = C.Inclusion;
C.genesis name:string time:long trust_period:long configuration:bytes balances:vector C.balance = C.Genesis;
C.configuration network_version:int current:C.validatorSet next:vector C.validatorSet shard_validators:int
 master_lifetime:long shard_lifetime:long expiry_ahead_max:long proof_window:long must_expire:int behind_max:long
 skew:long rates:C.rates messages_max:int bytes_max:int weight_max:int shard_bits_max:int ordering:int takes_cells:int
 guards_uids:int = C.Configuration;
C.subset workchain:int shard:long catchain_seqno:int public_key:int256 = C.Subset;
P.proof version:int from:int way:vector P.keyBlock master:vector P.master shard:P.shard end:P.End = P.Proof;
P.executed id:int256 address:int256 account:P.account path:P.path catchain_seqno:int time:long = P.End;
P.executedAs message:bytes account:P.account path:P.path by:int256 catchain_seqno:int time:long = P.End;
P.never message:bytes account:P.account id:P.absence uid:P.absence = P.End;
P.neverThere message:bytes account:P.absence = P.End
"""
NAMES = {"C.": "stagepost.chain.", "P.": "stagepost.proof.", "B": "tonNode.blockIdExt"}
LONG = re.sub(r"\b(?:C\.|P\.|B\b)", lambda found: NAMES[found[0]], SCHEMA)
LINES = [" ".join(line.split()) for line in LONG.split(";")]
# Constructor ids, as they stand in front of boxed objects, by the last word of each name.
TAGS = {line.split()[0].split(".")[-1]: struct.pack("<I", crc32(line.encode())) for line in LINES}


class Cursor:
    """Reader of one TL object; it refuses every byte that a writer would have written otherwise."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def raw(self, count: int) -> bytes:
        need(self.at + count <= len(self.data), f"the bytes end at offset {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        found: int = struct.unpack("<" + form, self.raw(struct.calcsize("<" + form)))[0]
        return found

    def hash(self) -> bytes:
        return self.raw(32)

    def count(self, limit: int) -> int:
        found = self.number("i")
        need(0 <= found <= limit, f"a list has {found} items; at most {limit} are accepted")
        return found

    def bytes(self, limit: int) -> bytes:
        length, head = self.raw(1)[0], 1
        if length == 254:
            length, head = int.from_bytes(self.raw(3), "little"), 4
            need(length > 253, "a length is written in a form that is too long")
        need(length != 255 and length <= limit, f"a value has {length} bytes; at most {limit} are accepted")
        found = self.raw(length)
        need(not any(self.raw(-(head + length) % 4)), "padding is not zero")
        return found

    def box(self, *names: str) -> str:
        found = self.raw(4)
        name = next((one for one in names if TAGS[one] == found), "")
        need(bool(name), f"no object of the expected kind is at offset {self.at - 4}")
        return name

    def end(self) -> None:
        need(self.at == len(self.data), f"bytes are left over from offset {self.at}")


def padded(value: bytes) -> bytes:
    head = bytes([len(value)]) if len(value) < 254 else b"\xfe" + len(value).to_bytes(3, "little")
    return head + value + bytes(-(len(head) + len(value)) % 4)


def read_path(cursor: Cursor) -> list[bytes]:
    depth = cursor.count(256)
    bits = "".join(f"{byte:08b}" for byte in cursor.bytes(32))
    need(len(bits) == depth + -depth % 8 and "1" not in bits[depth:], "a path has other bits than levels")
    there = [cursor.hash() for _ in range(cursor.count(256))]
    need(len(there) == bits.count("1") and EMPTY not in there, "a path has other siblings than it announces")
    return [there.pop(0) if bit == "1" else EMPTY for bit in bits[:depth]]


def leaf(key: bytes, value: bytes) -> bytes:
    return digest(b"\x00", key, value)


def climb(found: bytes, key: bytes, path: list[bytes]) -> bytes:
    """Return the root of a tree that has `found` at the end of the way of `key`."""
    for level in reversed(range(len(path))):
        is_right = key[level // 8] >> (7 - level % 8) & 1
        found = digest(b"\x01", path[level], found) if is_right else digest(b"\x01", found, path[level])
    return found


def absent(cursor: Cursor, key: bytes) -> bytes:
    """Return the root of a tree in which `key` is absent: its place is empty, or has the leaf of another key."""
    path = read_path(cursor)
    if not cursor.count(1):
        return climb(EMPTY, key, path)
    other, value, drop = cursor.hash(), cursor.hash(), 256 - len(path)
    is_on_path = int.from_bytes(other, "big") >> drop == int.from_bytes(key, "big") >> drop
    need(other != key and is_on_path, "the leaf beside an absent key does not share its path, or is the key")
    return climb(leaf(other, value), key, path)


def tree(leaves: dict[bytes, bytes], level: int = 0) -> bytes:
    if len(leaves) < 2:
        return next((leaf(key, value) for key, value in leaves.items()), EMPTY)
    sides: list[dict[bytes, bytes]] = [{}, {}]
    for key, value in leaves.items():
        sides[key[level // 8] >> (7 - level % 8) & 1][key] = value
    return digest(b"\x01", tree(sides[0], level + 1), tree(sides[1], level + 1))


class Rules(NamedTuple):
    head: bytes
    current: bytes
    later: bytes
    rest: bytes

    @property
    def members(self) -> list[bytes]:
        """Public key, address and weight of each validator."""
        return [self.current[at : at + 72] for at in range(20, len(self.current), 72)]

    def hand_over_at(self, time_ms: int) -> bool:
        return bool(self.later) and time_ms >= int.from_bytes(self.later[:8], "little", signed=True)

    @property
    def ahead_max(self) -> int:
        return int.from_bytes(self.rest[20:28], "little", signed=True)

    def hash(self) -> bytes:
        return digest(self.head, self.current, struct.pack("<i", bool(self.later)), self.later, self.rest)


def read_set(cursor: Cursor) -> bytes:
    start = cursor.at
    cursor.raw(16)
    cursor.raw(72 * cursor.count(128))
    return cursor.data[start : cursor.at]


def read_rules(data: bytes) -> Rules:
    cursor = Cursor(data)
    cursor.box("configuration")
    cursor.number("I")
    current = read_set(cursor)
    later = read_set(cursor) if cursor.count(1) else b""
    rest = data[cursor.at :]
    need(len(rest) == 4 + 8 + 8 + 8 + 8 + 4 + 8 + 8 + 6 * 4 + 7 * 4, "a configuration has another length")
    need(max(struct.unpack("<I", rest[36:40]) + struct.unpack("<3I", rest[-12:])) < 2, "a flag is not 0 or 1")
    return Rules(data[:8], current, later, rest)


class Trusted(NamedTuple):
    """A key block from which the verifier goes on; number 0 is the genesis."""

    network: bytes
    seqno: int
    root_hash: bytes
    time_ms: int
    rules: Rules

    def session(self, catchain: int) -> tuple[bytes, list[bytes]]:
        """Return the id of the masterchain's session, which is the whole set, and its keys in order."""
        where, number = struct.pack("<iQ", MASTERCHAIN, WHOLE), struct.pack("<I", catchain)
        drawn = sorted(self.rules.members, key=lambda one: digest(TAGS["subset"], where, number, one[:32]))
        members = b"".join(digest(TAGS["ed25519"], one[:32]) + one[32:] for one in drawn)
        facts = where + struct.pack("<iI", 0, self.seqno) + number + digest(self.network, self.rules.hash())
        session = digest(TAGS["groupNew"], facts, struct.pack("<i", len(drawn)), members)
        return session, [one[:32] for one in drawn]


def read_genesis(content: bytes) -> tuple[Trusted, int]:
    """Return the genesis and its trust period in milliseconds, from a network file or from the genesis' bytes."""
    data = bytes.fromhex(json.loads(content)["genesis"]) if content[:1] == b"{" else content
    cursor = Cursor(data)
    cursor.box("genesis")
    cursor.bytes(64).decode()
    time_ms, trust_period = cursor.number("q"), cursor.number("q")
    rules = read_rules(cursor.bytes(160 * 1024))
    cursor.raw(40 * cursor.count(1_000_000))
    cursor.end()
    return Trusted(digest(data), 0, EMPTY, time_ms, rules), trust_period


def read_checkpoint(content: bytes) -> Trusted:
    found = json.loads(content)
    network, root_hash = bytes.fromhex(found["network"]), bytes.fromhex(found["root_hash"])
    seqno, time_ms, rules = found["seqno"], found["time_ms"], bytes.fromhex(found["configuration"])
    need({type(seqno), type(time_ms)} == {int} and not (seqno >> 32 or time_ms >> 63), "invalid numbers")
    head = f'{{"stagepost_checkpoint":1,"network":"{network.hex()}","seqno":{seqno},"root_hash":"{root_hash.hex()}"'
    spelled = f'{head},"time_ms":{time_ms},"configuration":"{rules.hex()}"}}'
    need(content == spelled.encode() and len(root_hash) == 32, "a checkpoint is spelled otherwise than one")
    return Trusted(network, seqno, root_hash, time_ms, read_rules(rules))


class Seal(NamedTuple):
    catchain: int
    steps: list[tuple[int, bytes]]
    parent: bytes
    signatures: list[tuple[int, bytes]]

    def check(self, trusted: Trusted, block: bytes) -> None:
        """Require a quorum of FINALISE votes of the session upon the candidate of `block`, or upon a later one."""
        session, keys = trusted.session(self.catchain)
        candidate, last = self.parent, 0
        for slot, found in [(self.steps[0][0], block), *self.steps[1:]]:
            need(slot > last, "slots of candidates do not rise")
            candidate, last = digest(TAGS["candidateId"], struct.pack("<i", slot), candidate, found), slot
        signers, quorum = [index for index, _ in self.signatures], 2 * len(keys) // 3 + 1
        need(len(signers) == quorum, f"{len(signers)} signed; exactly {quorum} of {len(keys)} must")
        need(signers == sorted(set(signers) & set(range(len(keys)))), "signers do not rise, or are unknown")
        signed = TAGS["voteId"] + session + struct.pack("<ii", last, FINALISE) + candidate
        for index, signature in self.signatures:
            try:
                VerifyKey(keys[index]).verify(signed, signature)
            except (BadSignatureError, ValueError):
                raise Refused(f"the signature of validator {index} does not verify") from None


def read_seal(cursor: Cursor) -> Seal:
    catchain, slot, parent = cursor.number("I"), cursor.number("i"), cursor.hash()
    later = [(cursor.number("i"), cursor.hash()) for _ in range(cursor.count(64))]
    signatures = [(cursor.number("i"), cursor.raw(64)) for _ in range(cursor.count(128))]
    return Seal(catchain, [(slot, b""), *later], parent, signatures)


class Master(NamedTuple):
    seqno: int
    time_ms: int
    root_hash: bytes
    last_hash: bytes
    signers: int
    validators: int


def pass_key_block(cursor: Cursor, trusted: Trusted) -> tuple[Trusted, Master]:
    """Check a key block; return what is trusted behind it, and the block as a master block."""
    data, seal = cursor.bytes(256 * 1024), read_seal(cursor)
    block = Cursor(data)
    block.box("masterBlock")
    session, seqno = block.hash(), block.number("I")
    block.raw(80)
    time_ms = block.number("q")
    cuts, last, committed = [block.at], {}, 0
    for _ in range(block.count(1 << 16)):
        commit = [block.raw(80) for _ in range(block.count(64))]
        need(bool(commit), "a commit holds no block")
        last[commit[-1][16:48]], committed = commit[-1][48:], committed + len(commit)
    need(committed <= 1_024, "a master block commits more than 1024 blocks")
    cuts.append(block.at)
    for _ in range(block.count(64)):
        need(block.number("I") in (1, 2) and bool(block.raw(16)), "a plan is neither split nor merge")
    cuts.append(block.at)
    configuration, state_hash = block.bytes(160 * 1024), block.hash()
    block.end()
    need(seqno > trusted.seqno and time_ms > trusted.time_ms, "numbers or times of key blocks do not rise")
    need(session == trusted.session(seal.catchain)[0], f"key block {seqno} is of another session")
    is_key_block = bool(configuration) or trusted.rules.hand_over_at(time_ms)
    need(is_key_block, f"block {seqno} changes no configuration and no validator set")
    commits, plans = digest(data[cuts[0] : cuts[1]]), digest(data[cuts[1] : cuts[2]])
    parts = (tree(last), commits, plans, digest(configuration), state_hash)
    root_hash = digest(TAGS["masterRoot"], data[4 : cuts[0]], *parts)
    seal.check(trusted, digest(root_hash, digest(data)))
    rules = read_rules(configuration) if configuration else trusted.rules
    if rules.hand_over_at(time_ms):
        rules = rules._replace(current=rules.later, later=b"")
    master = Master(seqno, time_ms, root_hash, parts[0], len(seal.signatures), len(trusted.rules.members))
    return Trusted(trusted.network, seqno, root_hash, time_ms, rules), master


def pass_master(cursor: Cursor, trusted: Trusted) -> Master:
    start, seqno = cursor.at, cursor.number("I")
    cursor.raw(80)
    time_ms, last_hash = cursor.number("q"), cursor.hash()
    cursor.raw(4 * 32)
    fields, file_hash, seal = cursor.data[start : cursor.at], cursor.hash(), read_seal(cursor)
    need(seqno > trusted.seqno and time_ms > trusted.time_ms, "the block is not behind its key block")
    need(not trusted.rules.hand_over_at(time_ms), "the block is not before the hand-over to the next set")
    root_hash = digest(TAGS["masterRoot"], trusted.session(seal.catchain)[0], fields)
    seal.check(trusted, digest(root_hash, file_hash))
    return Master(seqno, time_ms, root_hash, last_hash, len(seal.signatures), len(trusted.rules.members))


class Shard(NamedTuple):
    path: list[bytes]
    file_hash: bytes
    root: bytes
    state: bytes
    time_ms: int
    remembers_from: int

    def check(self, accounts: bytes, master: Master, workchain: int, account: bytes, time_ms: int) -> None:
        root_hash = digest(TAGS["shardRoot"], self.root, digest(TAGS["shardState"], self.state, accounts))
        found = climb(leaf(root_hash, self.file_hash), root_hash, self.path)
        need(found == master.last_hash, "the shard block is not the last of its shard in the master block")
        own, prefix = struct.unpack_from("<iQ", self.state)
        differing, lowest = int.from_bytes(account[:8], "big") ^ prefix, prefix & -prefix
        is_held = bool(lowest) and own == workchain and differing < 2 * lowest
        need(is_held, "the shard does not hold the account of the message")
        need(time_ms <= self.time_ms <= master.time_ms, "the end is later than the block that holds it")


def read_shard(cursor: Cursor) -> Shard:
    path, file_hash, start = read_path(cursor), cursor.hash(), cursor.at
    cursor.hash()
    workchain, prefix, seqno = cursor.number("i"), cursor.number("Q"), cursor.number("I")
    cursor.raw(80 * cursor.count(16))
    master_seqno = int.from_bytes(cursor.raw(80)[12:16], "little")
    time_ms = cursor.number("q")
    cursor.raw(4 + 32)
    root, remembers_from = cursor.data[start : cursor.at], cursor.number("q")
    state = struct.pack("<iQIqqI", workchain, prefix, seqno, time_ms, remembers_from, master_seqno)
    return Shard(path, file_hash, root, state, time_ms, remembers_from)


def read_message(data: bytes) -> tuple[bytes, bytes, int, bytes, int]:
    """Return id, key of the uid, workchain, account and expiry in milliseconds."""
    cursor = Cursor(data)
    cursor.box("message")
    workchain, account, expires_at = cursor.number("i"), cursor.hash(), cursor.number("I")
    cursor.raw(8)
    body = cursor.bytes(65_535)
    cursor.end()
    need(expires_at != 0, "a message that does not expire can only be proved executed")
    uid = digest(TAGS["twin"], struct.pack("<I", expires_at), padded(body))
    return digest(data), digest(b"uid", uid), workchain, account, expires_at * 1_000


def read_account(cursor: Cursor) -> tuple[list[bytes], int, bytes]:
    return read_path(cursor), cursor.number("q"), cursor.bytes(1_024)


def with_account(address: bytes, held: tuple[list[bytes], int, bytes], recent: bytes) -> bytes:
    path, balance, memory = held
    value = digest(TAGS["account"], struct.pack("<q", balance), padded(memory), recent)
    return climb(leaf(address, value), address, path)


def included(key: bytes, path: list[bytes], by: bytes, catchain: int, time_ms: int) -> bytes:
    return climb(leaf(key, digest(TAGS["inclusion"], by, struct.pack("<Iq", catchain, time_ms))), key, path)


def check_end(cursor: Cursor, shard: Shard, master: Master, ahead_max: int) -> dict[str, object]:
    kind = cursor.box(*KINDS)
    found: dict[str, object] = {"kind": KINDS[kind], "executed_as": None}
    if kind == "executed":
        identifier, account, held = cursor.hash(), cursor.hash(), read_account(cursor)
        path, catchain, time_ms = read_path(cursor), cursor.number("I"), cursor.number("q")
        recent = included(identifier, path, identifier, catchain, time_ms)
        workchain = struct.unpack_from("<i", shard.state)[0]
        shard.check(with_account(account, held, recent), master, workchain, account, time_ms)
        return found | {"id": identifier.hex(), "account": account.hex(), "time_ms": time_ms}
    identifier, uid_key, workchain, account, expires_ms = read_message(cursor.bytes(65_535))
    time_ms, first_ms = shard.time_ms, expires_ms - ahead_max
    if kind == "executedAs":
        held, path, by = read_account(cursor), read_path(cursor), cursor.hash()
        catchain, time_ms = cursor.number("I"), cursor.number("q")
        recent = included(uid_key, path, by, catchain, time_ms)
        need(by != identifier, "the uid was taken by the message itself")
        need(first_ms <= time_ms < expires_ms, "the uid was taken outside the life of the message")
        found["executed_as"] = by.hex()
    else:
        held = read_account(cursor) if kind == "never" else ([], 0, b"")
        need(time_ms >= expires_ms, "the state is from before the message expired")
        need(shard.remembers_from <= first_ms, "the state may have forgotten an execution of the message")
        recent = absent(cursor, identifier if kind == "never" else account)
        if kind == "never":
            need(recent == absent(cursor, uid_key), "id and uid are absent from different accounts")
    accounts = recent if kind == "neverThere" else with_account(account, held, recent)
    shard.check(accounts, master, workchain, account, time_ms)
    return found | {"id": identifier.hex(), "account": account.hex(), "time_ms": time_ms}


def verify(content: bytes, genesis: Trusted, checkpoint: Trusted | None = None) -> dict[str, object]:
    """Return what the proof file shows; raise `Refused` if it shows nothing."""
    need(len(content) <= BYTES_MAX, f"the file has more than {BYTES_MAX} bytes")
    try:
        said = json.loads(content)
        kind, identifier, data = str(said["kind"]), str(said["id"]), bytes.fromhex(said["proof"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused("the file is not a proof") from None
    spelled = f'{{"stagepost_proof":1,"kind":"{kind}","id":"{identifier}","proof":"{data.hex()}"}}'
    need(content == spelled.encode(errors="replace"), "the file is spelled otherwise than a proof")
    known = checkpoint or genesis
    need(known.network == genesis.network, "the checkpoint is of another network")
    cursor = Cursor(data)
    cursor.box("proof")
    need(cursor.number("i") == 1, "the proof is of another version")
    begins_at = cursor.number("I")
    need(begins_at in (0, known.seqno), f"the proof begins at key block {begins_at}; give its checkpoint")
    trusted = known if begins_at else genesis
    passed, master, ways = {trusted.seqno: trusted.root_hash}, None, cursor.count(4_096)
    for _ in range(ways):
        trusted, master = pass_key_block(cursor, trusted)
        passed[trusted.seqno] = trusted.root_hash
    is_one = passed.get(known.seqno, known.root_hash) == known.root_hash
    need(is_one, f"SECOND KEY BLOCK {known.seqno}: a quorum of an earlier set has signed two histories")
    if cursor.count(1):
        master = pass_master(cursor, trusted)
    if master is None:
        raise Refused("the proof has no master block")
    is_before = master.seqno < known.seqno and master.time_ms < known.time_ms
    need(known.seqno in passed or is_before, "the proof goes past the checkpoint, or is not earlier")
    found = check_end(cursor, read_shard(cursor), master, trusted.rules.ahead_max)
    cursor.end()
    need((found["kind"], found["id"]) == (kind, identifier), "the file names another end than its proof")
    found |= {"block": master.seqno, "root_hash": master.root_hash.hex(), "signers": master.signers}
    trust = {"validators": master.validators, "trusted_from": begins_at, "key_blocks": ways}
    return found | trust | {"newest_ms": trusted.time_ms}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the proof of a message's end, offline.")
    parser.add_argument("proof", type=Path)
    parser.add_argument("--genesis", type=Path, required=True, help="network file, or the bytes of a genesis")
    parser.add_argument("--checkpoint", type=Path, help="a key block that was checked before")
    given = parser.parse_args()
    try:
        with given.proof.open("rb") as proof, given.genesis.open("rb") as first:
            content, head = proof.read(BYTES_MAX + 1), first.read(4 * BYTES_MAX)
        with (given.checkpoint or given.genesis).open("rb") as newest:
            checkpoint = read_checkpoint(newest.read(BYTES_MAX)) if given.checkpoint else None
        genesis, trust_period = read_genesis(head)
    except (OSError, Refused, ValueError, KeyError, TypeError, RecursionError) as error:
        print(f"a file cannot be used: {error}", file=sys.stderr)
        return 2
    try:
        found = verify(content, genesis, checkpoint)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    newest_ms = max(int(str(found.pop("newest_ms"))), 0 if checkpoint is None else checkpoint.time_ms)
    if time.time() * 1_000 - newest_ms > trust_period:
        print("warning: the newest key block is older than the network's trust period", file=sys.stderr)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
