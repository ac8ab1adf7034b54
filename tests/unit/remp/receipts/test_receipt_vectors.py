"""Published and derived vectors of receipts, key ids and sessions, and a second reading of them by other means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Duplicate
from stagepost.remp.receipts.receipt import Receipt, read_receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.sessions import (
    Member,
    SessionFacts,
    queue_id,
    queue_members,
    session_id,
    unsafe_rotation_id,
)
from tests.worlds.remp import remp_oracle

VECTORS = Path(__file__).parents[3] / "vectors" / "remp"


def items(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())["items"]
    return found


SIGNED = json.loads((VECTORS / "receipt_signed_derived.json").read_text())
SEED = bytes.fromhex(SIGNED["secret_key"])


@pytest.mark.parametrize("item", SIGNED["items"], ids=lambda item: item["json"]["kind"])
def test_a_signed_receipt_is_the_same_in_json_and_in_bytes_and_its_signature_holds(
    item: dict[str, Any],
) -> None:
    receipt = Receipt.from_json(json.dumps(item["json"]))
    assert receipt.signed_bytes.hex() == item["tl_boxed"]
    assert json.loads(receipt.to_json()) == item["json"]
    assert read_receipt(receipt.signed_bytes) == msgspec.structs.replace(receipt, signature_text="")
    assert receipt.signature == bytes.fromhex(item["signature_hex"])
    assert receipt.is_signed_by(bytes.fromhex(SIGNED["public_key"]))
    assert msgspec.structs.replace(receipt, source_id=bytes(32), signature_text="").sign(SEED) == receipt


@pytest.mark.parametrize("item", SIGNED["items"], ids=lambda item: item["json"]["kind"])
def test_other_means_give_the_same_signed_bytes(item: dict[str, Any]) -> None:
    said = item["json"]
    again = remp_oracle.receipt(said["message_id"], item["status"], said["timestamp"], said["source_id"])
    assert again.hex() == item["tl_boxed"]
    assert Receipt.from_json(json.dumps(said)).signed_bytes == again


@pytest.mark.parametrize("item", items("receipt_roundtrip.json"), ids=lambda item: item["json"]["kind"])
def test_receipts_of_the_published_round_trip_keep_every_field(item: dict[str, Any]) -> None:
    receipt = Receipt.from_json(json.dumps(item["json"]))
    assert json.loads(receipt.to_json()) == item["json"]
    fields = item["fields"]
    assert receipt.kind.status.value == fields["status"]
    assert receipt.signed_bytes.hex() == item["tl_boxed"]
    again = remp_oracle.receipt(fields["message_id"], fields, fields["timestamp"], fields["source_id"])
    assert receipt.signed_bytes == again


def test_the_public_sample_is_read_although_nobody_signed_it() -> None:
    (item,) = items("receipt_public_sample.json")
    receipt = Receipt.from_json(json.dumps(item["receipt"]))
    assert receipt.signature_text == ""
    assert receipt.signed_bytes.hex() == item["tl_boxed_derived"]


@pytest.mark.parametrize("item", items("combined_receipt_derived.json"))
def test_a_combined_receipt_is_written_as_it_was_read(item: dict[str, Any]) -> None:
    combined = CombinedReceipt.decode(bytes.fromhex(item["tl_boxed"]))
    assert combined.encode().hex() == item["tl_boxed"]
    for receipt, said in zip(combined.receipts, item["receipts"], strict=True):
        again = remp_oracle.receipt(said["message_id"], said["status"], said["timestamp"], item["source_id"])
        assert receipt.signed_bytes == again


def test_a_duplicate_stays_a_duplicate_in_a_packet_and_signatures_travel_with_it() -> None:
    plain = read_receipt(bytes.fromhex(SIGNED["items"][0]["tl_boxed"]))
    receipts = tuple(
        msgspec.structs.replace(plain, status=status).sign(SEED)
        for status in (Duplicate(), Accepted(Level.SHARDCHAIN))
    )
    combined = CombinedReceipt(key_id(ed25519.public_key(SEED)), receipts)
    again = CombinedReceipt.decode(combined.encode())
    assert again == combined
    assert all(receipt.is_signed_by(ed25519.public_key(SEED)) for receipt in again.receipts)


@pytest.mark.parametrize("item", items("key_ids.json"), ids=lambda item: item["key_id"][:8])
def test_key_ids_of_a_real_network(item: dict[str, Any]) -> None:
    public_key = bytes.fromhex(item["public_key"])
    assert key_id(public_key).hex() == item["key_id"]
    assert remp_oracle.key_id(public_key).hex() == item["key_id"]


def facts_of(item: dict[str, Any]) -> SessionFacts:
    members = tuple(
        Member(bytes.fromhex(one["public_key_hash"]), bytes.fromhex(one["adnl"]), one["weight"])
        for one in item["members"]
    )
    return SessionFacts(
        item["workchain"],
        int(item["shard_u64"]),
        item["vertical_seqno"],
        item["last_key_block_seqno"],
        item["catchain_seqno"],
        bytes.fromhex(item["config_hash"]),
        members,
    )


@pytest.mark.parametrize("item", items("session_ids.json"), ids=lambda item: str(item["workchain"]))
def test_session_ids_of_real_validator_groups(item: dict[str, Any]) -> None:
    assert session_id(facts_of(item)).hex() == item["serialized_sha256_is_session_id"]
    assert remp_oracle.session_id(item).hex() == item["serialized_sha256_is_session_id"]
    assert queue_id(facts_of(item)) != session_id(facts_of(item))


@pytest.mark.parametrize("item", items("session_id_unsafe_rotation.json"))
def test_the_id_of_a_session_that_was_started_anew_by_hand(item: dict[str, Any]) -> None:
    found = unsafe_rotation_id(session_id(facts_of(item)), item["rotation_id"])
    assert found.hex() == item["unsafe_session_id"]


@pytest.mark.parametrize("item", items("signed_tl_dht_node.json"))
def test_a_real_signed_object_verifies(item: dict[str, Any]) -> None:
    public_key = bytes.fromhex(item["public_key"])
    assert ed25519.verify(public_key, bytes.fromhex(item["signed_bytes"]), bytes.fromhex(item["signature"]))
    assert key_id(public_key).hex() == item["key_id"]


def test_queue_members_are_previous_then_present_ones_each_address_once() -> None:
    a, b, c, d = (Member(bytes([n]) * 32, bytes([n + 100]) * 32, 1) for n in range(4))
    assert queue_members([[a, b], [b, c]], [c, d]) == (a, b, c, d)
    assert queue_members([], [a, a]) == (a,)
