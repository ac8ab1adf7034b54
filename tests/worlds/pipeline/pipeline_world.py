"""Dumps of receipts with real signatures: many messages, sets of several sizes, and what goes wrong with records."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rigs.receipt_lines import EPOCH_MS, SHARDS, a_block, a_master_block, line_of, signed
from rigs.remp_world import FULL_NODE, seed_of, session, session_name, sets_file, status_named
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
    Timeout,
)
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from tests.worlds.pipeline.pipeline_oracle import recompute

SIZES = (4, 7, 21, 60)
TIMEOUT_MS = 240_000

# Sessions: sizes 4, 7, 21, 60; the second set of seven shares three members with the first; windows follow on another.
SESSIONS: tuple[dict[str, Any], ...] = (
    session(1, range(4), seqno=100, shard=SHARDS[0]),
    session(2, range(100, 107), seqno=100, shard=SHARDS[1], to_ms=EPOCH_MS + 60_000),
    session(3, range(104, 111), seqno=101, shard=SHARDS[1], from_ms=EPOCH_MS + 30_000),
    session(4, range(200, 221), seqno=100, shard=SHARDS[0]),
    session(5, range(300, 360), seqno=100, shard=SHARDS[1]),
)
MEMBERS: tuple[Sequence[int], ...] = (
    range(4),
    range(100, 107),
    range(104, 111),
    range(200, 221),
    range(300, 360),
)
STRANGER = 9_999


def world_sets() -> dict[str, Any]:
    return sets_file(*SESSIONS, timeout_ms=TIMEOUT_MS)


def sets_bytes(sets: dict[str, Any] | None = None) -> bytes:
    return json.dumps(sets or world_sets()).encode()


def written(line: dict[str, Any] | bytes) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def a_life(number: int, choices: Random) -> list[dict[str, Any]]:
    """One message's way: who speaks, how far it comes, who refuses it, what the records' headers say."""
    place = choices.randrange(len(SESSIONS))
    members, now = MEMBERS[place], EPOCH_MS + choices.randrange(0, 90_000)
    if place in (1, 2):  # near the change from one session to the next
        now = EPOCH_MS + choices.randrange(10_000, 50_000)
    shard, hint = SESSIONS[place]["shard"], session_name(place + 1).hex()
    block = a_block(1 + number % 50, shard)
    headers = {"session": choices.choice([hint, hint, hint.upper(), "none", session_name(9).hex(), None])}
    if choices.random() < 0.3:
        headers |= {"delivery_id": f"{number:032x}", "dmq_id": f"{number:064x}"}
    headers = {name: value for name, value in headers.items() if value is not None}
    found: list[tuple[int, MessageStatus, int]] = []
    fate = choices.choice(
        ["final", "final", "final", "open", "refused", "rejected", "timeout", "mixed", "silent"]
    )
    if fate == "refused":
        found.append((FULL_NODE, Rejected(Level.FULLNODE, "dry run failed"), now))
    else:
        found.append((FULL_NODE, SentToValidators(min(3, len(members)), len(members)), now))
    heard = [] if fate in ("refused", "silent") else [one for one in members if choices.random() < 0.9]
    if len(heard) > 21:
        heard = heard[: choices.randrange(1, len(heard))]
    for one in heard:
        at = now + choices.randrange(20, 400)
        found.append((one, New(), at))
        steps: list[MessageStatus] = []
        if fate == "final":
            steps = [Accepted(Level.COLLATOR, block), Accepted(Level.SHARDCHAIN, block)]
        elif fate == "rejected":
            steps = [Rejected(Level.COLLATOR, "contract error 52", block)]
        elif fate == "timeout":
            steps = [Timeout()]
        elif fate == "mixed":
            steps = [choices.choice(ODD_STEPS)(block) for _ in range(choices.randrange(4))]
        for status in steps:
            at += choices.randrange(0, 300)
            found.append((one, status, at))
    if fate == "final":
        found.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block, a_master_block(7)), now + 1_500))
    return [
        line_of(signed(number, who, status, at), at + choices.randrange(0, 50), headers=headers)
        for who, status, at in found
    ]


ODD_STEPS: tuple[Callable[[BlockId], MessageStatus], ...] = (
    lambda block: Ignored(Level.COLLATOR, block),
    lambda block: Duplicate(block),
    lambda block: Duplicate(),
    lambda block: Rejected(Level.QUEUE, ""),
    lambda block: Accepted(Level.QUEUE, block),
    lambda block: Accepted(Level.COLLATOR, block),
    lambda block: Accepted(Level.MASTERCHAIN, block, a_master_block(9)),
    lambda block: New(),
    lambda block: Timeout(),
)


def _altered(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        value = json.loads(line["value"])
        for name, new in changes.items():
            value[name] = new(value) if callable(new) else new
        return {**line, "value": json.dumps({k: v for k, v in value.items() if v is not ...})}

    return change


def _resigned(who: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        receipt = Receipt.from_json(line["value"]).sign(seed_of(who))
        return {**line, "value": receipt.to_json()}

    return change


def _other_signature(value: dict[str, Any]) -> str:
    raw = bytearray(base64.b64decode(value["signature"]))
    raw[5] ^= 1
    return base64.b64encode(raw).decode()


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any] | bytes]]] = {
    "no JSON": ("RECEIPT_FORMAT", lambda line: {**line, "value": "{"}),
    "a line that is no JSON": ("RECEIPT_FORMAT", lambda line: b"{" + written(line)),
    "a line nested deeply": ("RECEIPT_FORMAT", lambda line: _deep(20_000)),
    "a line nested deeply beside its value": (
        "RECEIPT_FORMAT",
        lambda line: written(line)[:-1] + b', "x": ' + _deep(20_000) + b"}",
    ),
    "a value nested deeply": (
        "RECEIPT_FORMAT",
        lambda line: {**line, "value": line["value"][:-1] + f', "x": {_deep(10_000).decode()}}}'},
    ),
    "an empty line": ("RECEIPT_FORMAT", lambda line: b""),
    "a line that is a list": ("RECEIPT_FORMAT", lambda line: b"[1]"),
    "not UTF-8": ("RECEIPT_FORMAT", lambda line: {**_without_value(line), "value_base64": "/w=="}),
    "a line not UTF-8": ("RECEIPT_FORMAT", lambda line: written(line).replace(b'"key"', b'"k\xff"')),
    "NaN": ("RECEIPT_FORMAT", lambda line: {**line, "value": line["value"][:-1] + ', "x": NaN}'}),
    "half a surrogate pair": (
        "RECEIPT_FORMAT",
        lambda line: {**line, "value": line["value"][:-1] + ', "x": "\ud800"}'},
    ),
    "trailing data": ("RECEIPT_FORMAT", lambda line: {**line, "value": line["value"] + " 1"}),
    "null": ("RECEIPT_FORMAT", lambda line: written({**line, "value": None})),
    "a number for a value": ("RECEIPT_FORMAT", lambda line: {**line, "value": 5}),
    "a name twice": (
        "RECEIPT_FORMAT",
        lambda line: {**line, "value": line["value"][:-1] + ', "kind": "Timeout"}'},
    ),
    "a field missing": ("RECEIPT_FORMAT", _altered(timestamp=...)),
    "a time as text": ("RECEIPT_FORMAT", _altered(timestamp="1")),
    "a time before 1970": ("RECEIPT_FORMAT", _altered(timestamp=-1)),
    "bad digits": ("RECEIPT_FORMAT", _altered(source_id="zz" * 32)),
    "another key": ("RECEIPT_FORMAT", lambda line: {**line, "key": "00" * 32}),
    "a key that is no text": ("RECEIPT_FORMAT", lambda line: {**line, "key": 5}),
    "too large": ("RECEIPT_FORMAT", _altered(extra="x" * 65_536)),
    "both values": ("RECEIPT_FORMAT", lambda line: {**line, "value_base64": "e30="}),
    "bad base64": ("RECEIPT_FORMAT", lambda line: {**_without_value(line), "value_base64": "*"}),
    "an unknown kind": ("RECEIPT_KIND", _altered(kind="Lost")),
    "unsigned": ("RECEIPT_UNSIGNED", _altered(signature="")),
    "an unknown key": ("RECEIPT_SOURCE", _resigned(STRANGER)),
    "the wrong role": ("RECEIPT_ROLE", lambda line: _of_wrong_role(line)),
    "from the future": ("RECEIPT_FUTURE", lambda line: {**line, "timestamp_ms": _time(line) - 300_001}),
    "a flipped bit": ("RECEIPT_SIGNATURE", _altered(signature=_other_signature)),
    "no base64": ("RECEIPT_SIGNATURE", _altered(signature="?")),
    "another time": ("RECEIPT_SIGNATURE", _altered(timestamp=lambda value: value["timestamp"] - 1)),
}
"""Every kind of bad record: what it is called, the reason that it gets, how it is made from a good one."""


def _deep(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b"]}" * (levels // 2)


def _passes(line: dict[str, Any]) -> bool:
    return not recompute([written(line)], world_sets()).quarantine


def _without_value(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "value"}


def _time(line: dict[str, Any]) -> int:
    return int(json.loads(line["value"])["timestamp"])


def _of_wrong_role(line: dict[str, Any]) -> dict[str, Any]:
    receipt = Receipt.from_json(line["value"])
    wrong = Receipt(receipt.message_id, SentToValidators(1, 4), EPOCH_MS, b"").sign(seed_of(0))
    return {**line, "value": wrong.to_json()}


def a_dump(messages: int, seed: int, *, bad: float = 0.05, repeats: float = 0.05) -> list[bytes]:
    """Lines in an order of chance, with copies (equal, or with another hint or arrival) and bad records among them."""
    choices = Random(seed)
    lines = [line for number in range(messages) for line in a_life(number, choices)]
    found: list[dict[str, Any] | bytes] = list(lines)
    for _ in range(int(len(lines) * repeats)):
        line = choices.choice(lines)
        changes: list[dict[str, Any]] = [{}, {"headers": {}}, {"timestamp_ms": _time(line) + 5_000}]
        found.append({**line, **choices.choice(changes)})
    # Made from lines that pass, or another fault than the one that is meant might be found first.
    good, names = [line for line in lines if _passes(line)], list(FAULTS)
    for count in range(max(int(len(lines) * bad), len(names) if bad else 0)):
        found.append(FAULTS[names[count % len(names)]][1](choices.choice(good)))
    found += [json.dumps(json.loads(choices.choice(lines)["value"])).encode() for _ in range(3)]
    choices.shuffle(found)
    return [written(line) for line in found]


def any_status(kind_name: str, block: BlockId) -> MessageStatus:
    """As the receipts of other tests have it; what is final names its master block, too."""
    if kind_name == "Finalized":
        return Accepted(Level.MASTERCHAIN, block, a_master_block(3))
    return status_named(kind_name, block=block)
