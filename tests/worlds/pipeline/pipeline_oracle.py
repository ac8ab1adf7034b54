"""Tables recomputed from the lines of a dump by plain Python: `json`, `struct`, `hashlib` and `nacl`, nothing of ours.

Slow and simple on purpose. It keeps every receipt and looks through all of them for each answer, where the pipeline
keeps maxima and minima; the two can only agree if the rules are understood alike.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import nacl.bindings
import nacl.exceptions

from tests.worlds.remp.remp_oracle import receipt as signed_form

STATUSES = "stagepost.remp.statuses"
HEX64 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
HEX16 = re.compile(r"[0-9a-fA-F]{16}", re.ASCII)
NO_BLOCK = {"wc": 0, "shard": "8000000000000000", "seqno": 0, "root_hash": "00" * 32, "file_hash": "00" * 32}
LEVELS = ("Fullnode", "Queue", "Collator", "Shardchain", "Masterchain")
RANKS = ("New", "Ignored", "Duplicate", "Timeout", "Rejected", "Accepted")

# kind → status, level
KINDS = {
    **{f"IgnoredBy{'FullNode' if n == 0 else name}": ("Ignored", n) for n, name in enumerate(LEVELS)},
    **{f"RejectedBy{name}": ("Rejected", n) for n, name in enumerate(LEVELS)},
    "AcceptedByFullnode": ("Accepted", 0),
    "AcceptedByQueue": ("Accepted", 1),
    "IncludedIntoBlock": ("Accepted", 2),
    "IncludedIntoAcceptedBlock": ("Accepted", 3),
    "Finalized": ("Accepted", 4),
    "SentToValidators": ("SentToValidators", 0),
    "PutIntoQueue": ("New", 1),
    "Duplicate": ("Duplicate", 1),
    "Timeout": ("Timeout", 1),
}
OTHER_WORDS = {
    "rejectedbynode": "RejectedByFullnode",
    "addedtoblock": "IncludedIntoBlock",
    "addedintoblock": "IncludedIntoBlock",
    "incudedintoacceptedblock": "IncludedIntoAcceptedBlock",
    "addedtoshardchain": "IncludedIntoAcceptedBlock",
    "skippedasduplicate": "Duplicate",
    "rejectedaftertimeout": "Timeout",
}
BY_WORD = {**{kind.lower(): kind for kind in KINDS}, **OTHER_WORDS}


class Refused(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Row(NamedTuple):
    """A record as it stands in a dump."""

    topic: str
    offset: int
    arrived_ms: int | None
    key: str | None
    value: bytes | None
    is_fault: bool
    hint: str | None
    delivery_id: str | None
    dmq_id: str | None


class Said(NamedTuple):
    message_id: str
    kind: str
    status: str
    level: int
    timestamp: int
    source: str
    is_full_node: bool
    hint: str | None
    shard: tuple[int, str] | None
    total: int | None
    signed: bytes

    @property
    def place(self) -> tuple[int, int, int]:
        return self.timestamp, self.level, RANKS.index(self.status)


class End(NamedTuple):
    """End that a proof shows. `by` is the message that was executed in its place, or nothing."""

    kind: str
    block: int
    by: str = ""


class Recomputed(NamedTuple):
    messages: dict[str, dict[str, Any]]
    quarantine: Counter[tuple[str, int | None, str | None]]
    counted: int
    repeated: int
    rows: int
    receipts: set[bytes]
    as_of_ms: int | None


# Records


class Pairs(list[Any]):
    pass


def strict(data: bytes) -> list[tuple[str, Any]]:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=Pairs, parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # fails for half a surrogate pair
    except (ValueError, RecursionError):
        raise Refused("RECEIPT_FORMAT") from None
    if not isinstance(found, Pairs):
        raise Refused("RECEIPT_FORMAT")
    return found


def is_whole(value: object, least: int, greatest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= greatest


def read_row(line: bytes, number: int) -> Row:
    found: Any
    try:
        found = json.loads(line.decode("utf-8"))
        if b"NaN" in line or b"Infinity" in line:
            json.loads(line, parse_constant=lambda name: 1 // 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Row(STATUSES, number, None, None, line, True, None, None, None)
    given = "value" in found, "value_base64" in found
    if given == (False, False) and (found.get("key") is None or "message_id" in found):
        return Row(STATUSES, number, None, None, line, False, None, None, None)
    value, is_fault = None, False
    if given == (True, True):
        value, is_fault = line, True
    elif given[1] and found["value_base64"] is not None:
        try:
            value = base64.b64decode(found["value_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            value, is_fault = line, True
    elif isinstance(found.get("value"), str):
        value = found["value"].encode("utf-8", "surrogatepass")
    elif given[0] and found["value"] is not None:
        value, is_fault = line, True
    headers = found.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    offset: Any
    hint, arrived, offset = headers.get("session"), found.get("timestamp_ms"), found.get("offset")
    key = found.get("key")
    return Row(
        found.get("topic") or STATUSES,
        offset if is_whole(offset, 0, 2**63 - 1) else number,
        arrived if is_whole(arrived, 0, 2**63 - 1) else None,
        key if key is None or isinstance(key, str) else json.dumps(key),
        value,
        is_fault,
        hint.lower() if isinstance(hint, str) and HEX64.fullmatch(hint) else None,
        headers.get("delivery_id"),
        headers.get("dmq_id"),
    )


# The seven checks


def take(found: dict[str, Any], name: str, kind: str) -> Any:
    value = found.get(name)
    fits = {
        "text": isinstance(value, str),
        "hash": isinstance(value, str) and bool(HEX64.fullmatch(value)),
        "shard": isinstance(value, str) and bool(HEX16.fullmatch(value)),
        "time": is_whole(value, 0, 2**63 - 1),
        "int32": is_whole(value, -(2**31), 2**31 - 1),
        "uint32": is_whole(value, 0, 2**32 - 1),
    }[kind]
    if name not in found or not fits:
        raise Refused("RECEIPT_FORMAT")
    return value


def block(found: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    if not needed and not set(found) & {"block_id", "block_file_hash", "block_seqno", "shard", "wc"}:
        return NO_BLOCK
    return {
        "wc": take(found, "wc", "int32"),
        "shard": take(found, "shard", "shard"),
        "seqno": take(found, "block_seqno", "uint32"),
        "root_hash": take(found, "block_id", "hash"),
        "file_hash": take(found, "block_file_hash", "hash"),
    }


def master(found: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    if not needed and not set(found) & {"mc_block_id", "mc_block_file_hash", "mc_block_seqno"}:
        return NO_BLOCK
    return {
        "wc": -1,
        "shard": "8000000000000000",
        "seqno": take(found, "mc_block_seqno", "uint32"),
        "root_hash": take(found, "mc_block_id", "hash"),
        "file_hash": take(found, "mc_block_file_hash", "hash"),
    }


def checked(row: Row, sets: dict[str, Any]) -> Said:
    if row.value is None or row.is_fault or len(row.value) > 65_536:
        raise Refused("RECEIPT_FORMAT")
    pairs = strict(row.value)
    found: dict[str, Any] = {}
    names = Counter(name for name, _ in pairs)
    for name, value in pairs:
        found.setdefault(name, value)
    kinds = [value for name, value in pairs if name == "kind"]
    is_final = len(kinds) == 1 and isinstance(kinds[0], str) and BY_WORD.get(kinds[0].lower()) == "Finalized"
    hashes = [value for name, value in pairs if name == "block_file_hash"]
    if is_final and len(hashes) == 2 and "mc_block_file_hash" not in found:
        found["mc_block_file_hash"], found["block_file_hash"] = hashes
        names["block_file_hash"] = 1
    if max(names.values(), default=0) > 1:
        raise Refused("RECEIPT_FORMAT")
    word, message_id = take(found, "kind", "text"), take(found, "message_id", "hash").lower()
    timestamp, source = take(found, "timestamp", "time"), take(found, "source_id", "hash").lower()
    signature = take(found, "signature", "text")
    if row.key is not None and row.key.lower() != message_id:
        raise Refused("RECEIPT_FORMAT")
    kind = BY_WORD.get(word.lower())
    if kind is None:
        raise Refused("RECEIPT_KIND")
    status, level = KINDS[kind]
    said = fields_said(found, kind, status, level)
    if not signature:
        raise Refused("RECEIPT_UNSIGNED")
    public_key, is_full_node = key_of(sets, source, timestamp)
    allowed = level == 0 or kind == "Finalized" if is_full_node else level >= 1
    if not allowed:
        raise Refused("RECEIPT_ROLE")
    if row.arrived_ms is not None and timestamp - row.arrived_ms > 300_000:
        raise Refused("RECEIPT_FUTURE")
    signed = signed_form(message_id, said, timestamp, source)
    if not holds(signature, signed, public_key):
        raise Refused("RECEIPT_SIGNATURE")
    named = said.get("block_id", NO_BLOCK)
    shard = (named["wc"], named["shard"].lower()) if named["seqno"] else None
    total = said.get("total_validators")
    return Said(
        message_id, kind, status, level, timestamp, source, is_full_node, row.hint, shard, total, signed
    )


def fields_said(found: dict[str, Any], kind: str, status: str, level: int) -> dict[str, Any]:
    said: dict[str, Any] = {"status": status}
    if status == "SentToValidators":
        return {
            **said,
            "sent_to": take(found, "sent_to", "int32"),
            "total_validators": take(found, "total_validators", "int32"),
        }
    if status in ("New", "Timeout"):
        return said
    if status in ("Accepted", "Ignored", "Rejected"):
        said["level"] = LEVELS[level]
    if status == "Rejected":
        said["error"] = take(found, "error", "text")
        said["block_id"] = NO_BLOCK if level == 0 else block(found, needed=False)
        return said
    said["block_id"] = block(found, needed=True)
    if status == "Accepted":
        said["master_id"] = master(found, needed=kind == "Finalized")
    return said


def key_of(sets: dict[str, Any], source: str, timestamp: int) -> tuple[bytes, bool]:
    for node in sets["full_nodes"]:
        if node["key_id"] == source:
            return bytes.fromhex(node["public_key"]), True
    for session in sets["sessions"]:
        for validator in session["validators"]:
            if validator["key_id"] == source and meets(session, timestamp, timestamp):
                return bytes.fromhex(validator["public_key"]), False
    raise Refused("RECEIPT_SOURCE")


def meets(session: dict[str, Any], first: int, last: int) -> bool:
    start, end = session.get("from_ms"), session.get("to_ms")
    return (start is None or start <= last) and (end is None or first < end)


def holds(signature: str, signed: bytes, public_key: bytes) -> bool:
    if re.fullmatch(r"[0-9a-fA-F]{128}", signature, re.ASCII):
        raw = bytes.fromhex(signature)
    else:
        try:
            raw = base64.b64decode(signature.encode(), validate=True)
        except (binascii.Error, ValueError):
            return False
        if base64.b64encode(raw).decode() != signature or len(raw) != 64:
            return False
    try:
        nacl.bindings.crypto_sign_open(raw + signed, public_key)
    except nacl.exceptions.BadSignatureError:
        return False
    return True


def named_message(row: Row) -> str | None:
    if row.key is not None:
        return row.key.lower() if HEX64.fullmatch(row.key) else row.key
    try:
        if row.value is None or len(row.value) > 65_536:
            return None
        ids = [value for name, value in strict(row.value) if name == "message_id"]
    except Refused:
        return None
    return ids[0].lower() if len(ids) == 1 and isinstance(ids[0], str) and HEX64.fullmatch(ids[0]) else None


# Verdicts


def recompute(
    lines: Sequence[bytes],
    sets: dict[str, Any],
    *,
    as_of_ms: int | None = None,
    timeout_ms: int | None = None,
    ends: Mapping[str, Sequence[End]] | None = None,
) -> Recomputed:
    """Return the tables. `ends` are those that proofs show, by message, as another verifier than ours has checked them."""
    rows = [row for n, line in enumerate(lines) if (row := read_row(line, n)).topic == STATUSES]
    passed: list[tuple[Row, Said]] = []
    quarantine: Counter[tuple[str, int | None, str | None]] = Counter()
    bad: dict[str | None, set[bytes | None]] = defaultdict(set)
    for row in rows:
        try:
            passed.append((row, checked(row, sets)))
        except Refused as refusal:
            quarantine[refusal.reason, row.offset, named_message(row)] += 1
            bad[named_message(row)].add(None if row.value is None else hashlib.sha256(row.value).digest())
    if as_of_ms is None:
        arrivals = [row.arrived_ms for row in rows if row.arrived_ms is not None]
        told = [said.timestamp for _, said in passed if said.is_full_node]
        as_of_ms = max(arrivals) if arrivals else max(told, default=None)
    timeout_ms = sets.get("message_timeout_ms", 240_000) if timeout_ms is None else timeout_ms
    by_message: dict[str, list[tuple[Row, Said]]] = defaultdict(list)
    for row, said in passed:
        by_message[said.message_id].append((row, said))
    table = {}
    for message_id, pairs in by_message.items():
        proved = min((ends or {}).get(message_id, ()), default=None)
        line = life_line([said for _, said in pairs], sets, as_of_ms, timeout_ms, proved)
        for name in ("delivery_id", "dmq_id"):
            line[name] = min(filter(None, (getattr(row, name) for row, _ in pairs)), default=None)
        table[message_id] = {"message_id": message_id, **line, "receipts_bad": len(bad.get(message_id, ()))}
    receipts = {said.signed for _, said in passed}
    return Recomputed(
        table, quarantine, len(receipts), len(passed) - len(receipts), len(rows), receipts, as_of_ms
    )


STAGE_KINDS = {
    "sent_ms": ("SentToValidators",),
    "queued_ms": ("PutIntoQueue",),
    "included_ms": ("IncludedIntoBlock",),
    "accepted_ms": ("IncludedIntoAcceptedBlock",),
    "finalized_ms": ("Finalized",),
    "rejected_ms": tuple(kind for kind in KINDS if kind.startswith("Rejected")),
    "timeout_ms": ("Timeout",),
}


def life_line(
    receipts: list[Said],
    sets: dict[str, Any],
    as_of_ms: int | None,
    timeout_ms: int,
    proved: End | None = None,
) -> dict[str, Any]:
    sessions = {session["session_id"]: session for session in sets["sessions"]}
    index = {
        (session_id, one["key_id"]): one["index"]
        for session_id, session in sessions.items()
        for one in session["validators"]
    }
    size = {session_id: len(session["validators"]) for session_id, session in sessions.items()}
    rows: dict[Any, list[Said]] = defaultdict(list)
    for said in receipts:
        if not said.is_full_node:
            rows[said.source, said.hint, said.shard].append(said)

    def holding(key: Any) -> set[str]:
        times = [said.timestamp for said in rows[key]]
        return {s for s in sessions if (s, key[0]) in index and meets(sessions[s], min(times), max(times))}

    def candidates(key: Any) -> set[str]:
        held = holding(key)
        if key[1] in held:
            return {key[1]}
        of_shard = {s for s in held if (sessions[s]["wc"], sessions[s]["shard"].lower()) == key[2]}
        return of_shard or held

    def age(s: str) -> Any:
        session = sessions[s]
        return session["catchain_seqno"], session["wc"], int(session["shard"], 16), bytes.fromhex(s)

    of_row = {key: candidates(key) for key in rows}
    totals = [said.total for said in receipts if said.is_full_node and said.total is not None]
    decided = None
    if rows:
        hinted = {s: len({key[0] for key in rows if key[1] == s and s in holding(key)}) for s in sessions}
        speakers = {s: len({key[0] for key in rows if s in of_row[key]}) for s in sessions}
        heard = [s for s in sessions if 3 * hinted[s] > size[s]]
        decided = (
            max(heard, key=age)
            if heard
            else max(
                (s for s in sessions if speakers[s]),
                key=lambda s: (speakers[s], bool(totals) and size[s] == max(totals), age(s)),
            )
        )
    words: dict[int, list[Said]] = defaultdict(list)
    for key, said_here in rows.items():
        if decided in of_row[key]:
            words[index[decided, key[0]]] += said_here
    last = {member: max(said, key=lambda one: one.place) for member, said in words.items()}
    n = 0 if decided is None else size[decided]

    sent = [said.timestamp for said in receipts if said.kind == "SentToValidators"]
    firsts = sorted(min(one.timestamp for one in said) for said in words.values())
    first_seen = min(sent) if sent else firsts[: n // 3 + 1][-1] if firsts else None
    is_over = as_of_ms is not None and first_seen is not None and as_of_ms - first_seen > timeout_ms

    def signers(s: str) -> int:
        return len(
            {key[0] for key in rows if s in holding(key) and any(r.kind == "Finalized" for r in rows[key])}
        )

    rejecting = sorted(member for member, said in last.items() if said.status == "Rejected")
    closed = [member for member, said in last.items() if said.status in ("Rejected", "Timeout")]
    accepting = [m for m, s in last.items() if s.kind in ("IncludedIntoAcceptedBlock", "Finalized")]
    kinds_told = {said.kind for said in receipts if said.is_full_node}
    many = n > 0 and len(rejecting) >= -(-2 * n // 3)
    all_closed = n > 0 and len(closed) == n
    if proved is not None:
        refused = "rejected" if many else "expired"
        verdict = {"executed": "finalized", "executed_as": "executed_as", "never": refused}[proved.kind]
    elif "Finalized" in kinds_told or any(3 * signers(s) > size[s] for s in sessions):
        verdict = "finalized"
    elif accepting and 3 * len(accepting) > n:
        verdict = "accepted"
    elif "RejectedByFullnode" in kinds_told and not sent and not rows:
        verdict = "rejected_by_fullnode"
    elif many and (all_closed or is_over):
        verdict = "rejected"
    elif all_closed or is_over:
        verdict = "expired"
    elif many:
        verdict = "likely_rejected"
    elif accepting or any(said.kind == "IncludedIntoBlock" for said in last.values()):
        verdict = "included"
    else:
        verdict = "queued" if rows else "sent"
    queued = ("New", "Ignored", "Duplicate")
    return {
        "verdict": verdict,
        **{
            stage: min((said.timestamp for said in receipts if said.kind in kinds), default=None)
            for stage, kinds in STAGE_KINDS.items()
        },
        "session_id": decided,
        "validators": n or None,
        "queued_at": sorted(m for m, s in last.items() if s.status in queued or s.kind == "AcceptedByQueue"),
        "rejected_by": rejecting,
        "silent": [member for member in range(n) if member not in last],
        "receipts": len({said.signed for said in receipts}),
        "proof": "none" if proved is None else proved.kind,
        "proof_block": None if proved is None else proved.block,
        "executed_as": None if proved is None else proved.by or None,
    }
