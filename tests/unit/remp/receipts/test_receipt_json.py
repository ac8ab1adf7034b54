"""The first two checks of a receipt: is it one, and is its kind known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stagepost.errors import DecodeError
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    New,
    Rejected,
    Timeout,
    kind_of,
)
from stagepost.remp.receipts.receipt import RECEIPT_BYTES_MAX, Receipt, read_signature
from stagepost.remp.receipts.status import (
    ALIASES,
    FIRST_KINDS,
    KIND_OF,
    KINDS,
    LEGAL_STEPS,
    Colour,
    Fields,
    Level,
    is_legal_step,
    kind_named,
)
from stagepost.remp.shard import UNKNOWN_BLOCK

HASH = "ab" * 32
BLOCK = {"block_id": HASH, "block_file_hash": HASH, "block_seqno": 7, "shard": "3800000000000000", "wc": 0}
MASTER = {"mc_block_id": HASH, "mc_block_file_hash": HASH, "mc_block_seqno": 9}
EXTRA: dict[Fields, dict[str, Any]] = {
    Fields.NOTHING: {},
    Fields.COUNTS: {"sent_to": 3, "total_validators": 7},
    Fields.ERROR: {"error": "no"},
    Fields.ERROR_AND_NAMED_BLOCK: {"error": "no", **BLOCK},
    Fields.BLOCK: BLOCK,
    Fields.BLOCK_AND_NAMED_MASTER: BLOCK,
    Fields.BLOCK_AND_MASTER: {**BLOCK, **MASTER},
}


def receipt_of(kind: str, **fields: Any) -> dict[str, Any]:
    common = {"message_id": "cd" * 32, "timestamp": 5, "source_id": "ef" * 32, "signature": "x", "kind": kind}
    return common | fields


def code_of(data: bytes | str, record_key: str | None = None) -> str | None:
    try:
        Receipt.from_json(data, record_key=record_key)
    except DecodeError as error:
        return str(error.code)
    return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_written_as_it_was_read(kind: Any) -> None:
    said = receipt_of(kind.name, **EXTRA[kind.fields])
    receipt = Receipt.from_json(json.dumps(said))
    assert receipt.kind is kind
    assert json.loads(receipt.to_json()) == said


def test_kinds_and_pairs_of_status_and_level_are_in_one_to_one_relation() -> None:
    assert len(KIND_OF) == len(KINDS) == len({kind.name for kind in KINDS}) == 19
    for kind in KINDS:
        assert kind_named(kind.name) is kind
        assert kind_named(kind.name.upper()) is kind


def test_every_alias_means_a_kind_and_is_none_itself() -> None:
    names = {kind.name.lower() for kind in KINDS}
    for alias, name in ALIASES.items():
        assert alias not in names
        found = kind_named(alias)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize(
    ("word", "means"),
    [
        ("RejectedByNode", "RejectedByFullnode"),
        ("RejectedbyShardchain", "RejectedByShardchain"),
        ("IncudedIntoAcceptedBlock", "IncludedIntoAcceptedBlock"),
        ("BlockRejectedByValidator", "IgnoredByShardchain"),
        ("BlockRejectedByMasterchain", "IgnoredByMasterchain"),
        ("SkippedAsDuplicate", "Duplicate"),
        ("IgnoredAfterVoting", "IgnoredByShardchain"),
        ("RejectedAfterTimeout", "Timeout"),
        ("AddedToMasterchain", "Finalized"),
        ("PutIntoQuenue", "PutIntoQueue"),
    ],
)
def test_words_of_documents_and_older_nodes_are_understood(word: str, means: str) -> None:
    found = kind_named(word)
    assert found is not None
    assert found.name == means


def test_the_colours_say_what_will_never_be_included_and_what_is_final() -> None:
    by_colour = {colour: {kind.name for kind in KINDS if kind.colour is colour} for colour in Colour}
    assert by_colour[Colour.RED] == {"RejectedByFullnode", "RejectedByShardchain", "Timeout"}
    assert by_colour[Colour.BLUE] == {"Finalized"}
    assert by_colour[Colour.QUIET] == {"Duplicate"}, "that another validator was faster is no trouble"
    assert "RejectedByCollator" in by_colour[Colour.ORANGE]
    assert "PutIntoQueue" in by_colour[Colour.GREEN]


def test_what_is_closed_can_only_become_final() -> None:
    for name in ("RejectedByQueue", "RejectedByCollator", "RejectedByShardchain", "Timeout"):
        assert LEGAL_STEPS[name] == {"Finalized"}
    assert LEGAL_STEPS["Finalized"] == frozenset()
    assert set(LEGAL_STEPS) == {kind.name for kind in KINDS if kind.level is not Level.FULLNODE}


@pytest.mark.parametrize(
    ("before", "after", "is_legal"),
    [
        (None, "PutIntoQueue", True),
        (None, "IncludedIntoBlock", False),
        ("PutIntoQueue", "IncludedIntoBlock", True),
        ("PutIntoQueue", "PutIntoQueue", True),
        ("IncludedIntoBlock", "PutIntoQueue", False),
        ("IncludedIntoBlock", "IgnoredByShardchain", True),
        ("IgnoredByShardchain", "PutIntoQueue", True),
        ("IncludedIntoAcceptedBlock", "RejectedByCollator", False),
        ("IncludedIntoAcceptedBlock", "IgnoredByMasterchain", True),
        ("RejectedByCollator", "IncludedIntoBlock", False),
        ("Timeout", "Finalized", True),
        ("Finalized", "Timeout", False),
    ],
)
def test_a_validator_may_say_what_the_state_machine_leads_to(
    before: str | None, after: str, is_legal: bool
) -> None:
    first = None if before is None else kind_named(before)
    second = kind_named(after)
    assert second is not None
    assert is_legal_step(first, second) is is_legal
    assert set(LEGAL_STEPS) >= FIRST_KINDS


def test_a_group_that_is_absent_stands_for_the_unknown_block() -> None:
    rejected = Receipt.from_json(json.dumps(receipt_of("RejectedByCollator", error="no"))).status
    assert isinstance(rejected, Rejected)
    assert rejected.block_id == UNKNOWN_BLOCK
    included = Receipt.from_json(json.dumps(receipt_of("IncludedIntoBlock", **BLOCK))).status
    assert isinstance(included, Accepted)
    assert included.master_id == UNKNOWN_BLOCK


def test_fields_that_a_kind_does_not_have_are_ignored() -> None:
    said = receipt_of("RejectedByFullnode", error="no", block_id="nonsense", wc="more nonsense")
    status = Receipt.from_json(json.dumps(said)).status
    assert status == Rejected(Level.FULLNODE, "no")


def test_two_file_hashes_of_an_early_finalized_are_the_master_blocks_and_the_blocks() -> None:
    said = receipt_of("Finalized", **BLOCK, **MASTER)
    del said["mc_block_file_hash"]
    text = json.dumps(said).replace(
        '"block_file_hash": "' + HASH, '"block_file_hash": "' + "11" * 32 + '", "block_file_hash": "' + HASH
    )
    status = Receipt.from_json(text).status
    assert isinstance(status, Accepted)
    assert status.master_id.file_hash == bytes([0x11]) * 32
    assert status.block_id.file_hash == bytes.fromhex(HASH)


PUT = receipt_of("PutIntoQueue")
TWICE = json.dumps(receipt_of("IncludedIntoBlock", **BLOCK))[:-1] + ', "block_file_hash": "' + HASH + '"}'
WITH_BOTH = (
    json.dumps(receipt_of("Finalized", **BLOCK, **MASTER))[:-1] + ', "block_file_hash": "' + HASH + '"}'
)


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("no object", "[]"),
        ("nothing", ""),
        ("null", "null"),
        ("trailing data", json.dumps(PUT) + " 1"),
        ("two objects", json.dumps(PUT) * 2),
        ("not UTF-8", b'{"kind": "\xff"}'),
        ("a lone surrogate in a field that nobody reads", json.dumps({**PUT, "other": "\ud800"})),
        ("a lone surrogate in a name", json.dumps({**PUT, "\udc00": 1})),
        ("NaN in a field that nobody reads", json.dumps({**PUT, "other": float("nan")})),
        ("infinity deep inside", json.dumps({**PUT, "other": [{"x": float("inf")}]})),
        ("a common field twice", json.dumps(PUT)[:-1] + ', "kind": "PutIntoQueue"}'),
        ("a field twice that nobody reads", json.dumps(PUT)[:-1] + ', "z": 1, "z": 1}'),
        ("a file hash twice outside of Finalized", TWICE),
        ("a file hash twice beside the master block's", WITH_BOTH),
        ("no timestamp", json.dumps({name: PUT[name] for name in PUT if name != "timestamp"})),
        ("a timestamp with a fraction", json.dumps({**PUT, "timestamp": 1.0})),
        ("a true timestamp", json.dumps({**PUT, "timestamp": True})),
        ("a timestamp in quotes", json.dumps({**PUT, "timestamp": "5"})),
        ("a negative timestamp", json.dumps({**PUT, "timestamp": -1})),
        ("a timestamp beyond 64 bits", json.dumps({**PUT, "timestamp": 1 << 63})),
        (
            "a number of five thousand digits",
            json.dumps(PUT).replace('"timestamp": 5', '"timestamp": ' + "9" * 5_000),
        ),
        ("a short id", json.dumps({**PUT, "message_id": "ab"})),
        ("an id that is not hexadecimal", json.dumps({**PUT, "message_id": "zz" * 32})),
        ("an id with a line end", json.dumps({**PUT, "message_id": "cd" * 32 + "\n"})),
        ("a signature that is no text", json.dumps({**PUT, "signature": None})),
        ("a kind that is no text", json.dumps({**PUT, "kind": 1})),
        ("too long", json.dumps({**PUT, "other": "x" * RECEIPT_BYTES_MAX})),
        ("too deep", json.dumps(PUT)[:-1] + ', "other": ' + "[" * 30_000 + "]" * 30_000 + "}"),
        ("half a block", json.dumps(receipt_of("RejectedByQueue", error="no", wc=0))),
        ("half a master block", json.dumps(receipt_of("IncludedIntoBlock", **BLOCK, mc_block_seqno=1))),
        ("no block where one must be", json.dumps(receipt_of("Duplicate"))),
        ("no error", json.dumps(receipt_of("RejectedByFullnode"))),
        (
            "a sequence number beyond 32 bits",
            json.dumps(receipt_of("Duplicate", **{**BLOCK, "block_seqno": 1 << 32})),
        ),
        ("a shard of fifteen digits", json.dumps(receipt_of("Duplicate", **{**BLOCK, "shard": "3" * 15}))),
        (
            "counts beyond 32 bits",
            json.dumps(receipt_of("SentToValidators", sent_to=1 << 31, total_validators=1)),
        ),
    ],
)
def test_what_is_no_receipt_is_refused_for_its_format(why: str, data: bytes | str) -> None:
    assert code_of(data) == "RECEIPT_FORMAT"


def test_a_receipt_of_exactly_the_greatest_size_is_read() -> None:
    room = RECEIPT_BYTES_MAX - len(json.dumps({**PUT, "other": ""}))
    assert code_of(json.dumps({**PUT, "other": "x" * room})) is None
    assert code_of(json.dumps({**PUT, "other": "x" * (room + 1)})) == "RECEIPT_FORMAT"


def test_the_records_key_must_be_the_messages_id_in_either_case() -> None:
    assert code_of(json.dumps(PUT), "CD" * 32) is None
    assert code_of(json.dumps(PUT), "cd" * 31 + "ce") == "RECEIPT_FORMAT"
    # A kind that means nothing is the later check.
    assert code_of(json.dumps({**PUT, "kind": "Nonsense"}), "00" * 32) == "RECEIPT_FORMAT"


def test_an_unknown_kind_is_told_apart_before_its_fields_are_looked_at() -> None:
    assert code_of(json.dumps(receipt_of("Nonsense", error=5))) == "RECEIPT_KIND"
    assert code_of(json.dumps({**PUT, "kind": "Nonsense", "timestamp": -1})) == "RECEIPT_FORMAT"


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("00" * 64, True),
        ("AB" * 64, True),
        ("A" * 86 + "==", True),
        ("A" * 85 + "B==", False),  # bits behind the last byte
        ("A" * 86, False),
        ("A" * 84 + "\n==", False),
        ("_" * 86 + "==", False),
        ("zz" * 64, False),
        ("0 " * 64, False),
        ("", False),
        ("ü" * 88, False),
    ],
)
def test_a_signature_is_standard_base64_or_hexadecimal_of_64_bytes(text: str, is_read: bool) -> None:
    assert (read_signature(text) is not None) is is_read


def test_statuses_know_their_kind() -> None:
    for status, name in (
        (New(), "PutIntoQueue"),
        (Timeout(), "Timeout"),
        (Duplicate(), "Duplicate"),
        (Ignored(Level.FULLNODE), "IgnoredByFullNode"),
        (Accepted(Level.MASTERCHAIN), "Finalized"),
    ):
        assert kind_of(status).name == name
