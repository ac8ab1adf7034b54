"""Receipts, key ids, block hashes and session ids by plain `struct` and `hashlib`, written apart from the code they check."""

from __future__ import annotations

import hashlib
import struct
from typing import Any
from zlib import crc32

LEVELS = ("Fullnode", "Queue", "Collator", "Shardchain", "Masterchain")
STATUS_LINES = {
    "SentToValidators": "tonNode.rempSentToValidators sent_to:int total_validators:int",
    "New": "tonNode.rempNew",
    "Rejected": "tonNode.rempRejected level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt error:string",
    "Accepted": "tonNode.rempAccepted level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt "
    "master_id:tonNode.blockIdExt",
    "Ignored": "tonNode.rempIgnored level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt",
    "Duplicate": "tonNode.rempDuplicate block_id:tonNode.blockIdExt",
    "Timeout": "tonNode.rempTimeout",
}


def tag(line: str) -> bytes:
    return struct.pack("<I", crc32(line.encode()))


def text(value: bytes) -> bytes:
    head = bytes([len(value)]) if len(value) < 254 else b"\xfe" + struct.pack("<I", len(value))[:3]
    data = head + value
    return data + b"\0" * (-len(data) % 4)


def block_id(fields: dict[str, Any]) -> bytes:
    shard = int(fields["shard"], 16)
    return (
        struct.pack("<iQI", fields["wc"], shard, fields["seqno"])
        + bytes.fromhex(fields["root_hash"])
        + bytes.fromhex(fields["file_hash"])
    )


def status(fields: dict[str, Any]) -> bytes:
    name = fields["status"]
    data = tag(f"{STATUS_LINES[name]} = tonNode.RempMessageStatus")
    if "level" in fields:
        data += tag(f"tonNode.remp{fields['level']} = tonNode.RempMessageLevel")
    if name == "SentToValidators":
        data += struct.pack("<ii", fields["sent_to"], fields["total_validators"])
    for key in ("block_id", "master_id"):
        if key in fields:
            data += block_id(fields[key])
    if "error" in fields:
        data += text(fields["error"].encode())
    return data


def receipt(message_id: str, status_fields: dict[str, Any], timestamp: int, source_id: str) -> bytes:
    line = (
        "tonNode.rempReceipt message_id:int256 status:tonNode.RempMessageStatus timestamp:long source_id:int256 "
        "= tonNode.RempReceipt"
    )
    return (
        tag(line)
        + bytes.fromhex(message_id)
        + status(status_fields)
        + struct.pack("<q", timestamp)
        + bytes.fromhex(source_id)
    )


def key_id(public_key: bytes) -> bytes:
    return hashlib.sha256(tag("pub.ed25519 key:int256 = PublicKey") + public_key).digest()


def session_id(item: dict[str, Any]) -> bytes:
    line = (
        "validator.groupNew workchain:int shard:long vertical_seqno:int last_key_block_seqno:int "
        "catchain_seqno:int config_hash:int256 members:vector validator.groupMember = validator.Group"
    )
    data = tag(line) + struct.pack(
        "<iQiii",
        item["workchain"],
        int(item["shard_u64"]),
        item["vertical_seqno"],
        item["last_key_block_seqno"],
        item["catchain_seqno"],
    )
    data += bytes.fromhex(item["config_hash"]) + struct.pack("<i", len(item["members"]))
    for member in item["members"]:
        data += bytes.fromhex(member["public_key_hash"] + member["adnl"]) + struct.pack(
            "<q", member["weight"]
        )
    return hashlib.sha256(data).digest()


def dependency(source: int, height: int, data_hash: bytes, signature: bytes) -> bytes:
    return struct.pack("<ii", source, height) + data_hash + text(signature)


def catchain_data_hash(payload: bytes, previous: bytes, dependencies: list[bytes], version: int) -> bytes:
    """`previous` and `dependencies` as `dependency` gives them."""
    of_payload = hashlib.sha256(payload).digest()
    if version == 1:
        return of_payload
    line = "catchain.block.data prev:catchain.block.dep deps:vector catchain.block.dep = catchain.block.Data"
    data = tag(line) + previous + struct.pack("<i", len(dependencies)) + b"".join(dependencies)
    return hashlib.sha256(of_payload + hashlib.sha256(data).digest()).digest()


def catchain_block_id(incarnation: bytes, source_key_id: bytes, height: int, data_hash: bytes) -> bytes:
    line = "catchain.block.id incarnation:int256 src:int256 height:int data_hash:int256 = catchain.block.Id"
    return tag(line) + incarnation + source_key_id + struct.pack("<i", height) + data_hash


def catchain_incarnation(session: bytes, key_ids: list[bytes]) -> bytes:
    line = "catchain.firstblock unique_hash:int256 nodes:vector int256 = catchain.FirstBlock"
    first = tag(line) + session + struct.pack("<i", len(key_ids)) + b"".join(key_ids)
    return hashlib.sha256(tag("pub.overlay name:bytes = PublicKey") + text(first)).digest()
