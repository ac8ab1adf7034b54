"""The quick way to read a receipt says nothing that the careful way would not say."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.errors import DecodeError
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.receipt_fields import BLOCK_FIELDS, MASTER_FIELDS, read_usual
from stagepost.remp.receipts.status import KINDS

HASH = "0123456789abcdef" * 4
USUAL: dict[str, Any] = {
    "message_id": HASH,
    "timestamp": 1_700_000_000_000,
    "source_id": "AB" * 32,
    "signature": "c2ln",
    "sent_to": 3,
    "total_validators": 7,
    "error": "no",
    "block_id": HASH,
    "block_file_hash": HASH,
    "block_seqno": 7,
    "shard": "3800000000000000",
    "wc": -1,
    "mc_block_id": HASH,
    "mc_block_file_hash": HASH,
    "mc_block_seqno": 9,
}
COMMON = ("message_id", "timestamp", "source_id", "signature")
odd_values = st.sampled_from(
    [
        *(
            "",
            " ",
            'a"b',
            "\\",
            "\ud800",
            "é",
            "0 " * 32,
            HASH[:-1],
            HASH + "0",
            "g" * 64,
            "٣" * 64,
            "０" * 16,
        ),
        *(0, -1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, 1.0, True, None),
        *([], {}, [HASH], {"kind": "Timeout"}),
    ]
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Receipts of any kind, most of them with something amiss."""
    kind = draw(st.sampled_from([kind.name for kind in KINDS] + ["Putintoqueue", "AddedToBlock", "Nothing"]))
    groups = ((), ("error",), BLOCK_FIELDS, (*BLOCK_FIELDS, *MASTER_FIELDS), ("sent_to", "total_validators"))
    names = [*COMMON, *draw(st.sampled_from(groups))]
    members: list[tuple[str, Any]] = [("kind", kind), *((name, USUAL[name]) for name in names)]
    match draw(st.sampled_from(["as it is", "value", "twice", "missing", "other", "order"])):
        case "value":
            place = draw(st.integers(0, len(members) - 1))
            members[place] = (members[place][0], draw(odd_values))
        case "twice":
            members.append((draw(st.sampled_from(members))[0], draw(odd_values)))
        case "missing":
            del members[draw(st.integers(0, len(members) - 1))]
        case "other":
            members.append((draw(st.sampled_from(["wc", "extra", "error", "mc_block_id"])), draw(odd_values)))
        case "order":
            members = draw(st.permutations(members))
    escapes = draw(st.booleans())
    inside = ", ".join(f"{json.dumps(n)}: {json.dumps(v, ensure_ascii=escapes)}" for n, v in members)
    text = "{" + inside + "}" + draw(st.sampled_from(["", "", "", " ", "x", "{}"]))
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=600)
@given(data=texts())
def test_what_is_read_quickly_is_what_is_read_carefully(data: bytes) -> None:
    quickly = read_usual(data)
    try:
        carefully = Receipt._from_any_json(data, None)
    except DecodeError:
        assert quickly is None
        return
    if quickly is not None:
        found = (carefully.message_id, carefully.status, carefully.timestamp_ms, carefully.source_id)
        assert quickly == (*found, carefully.signature_text)


def test_what_we_write_is_read_quickly() -> None:
    for kind in KINDS:
        groups = {
            "nothing": (),
            "error": ("error",),
            "error; the block if one is named": ("error",),
            "sent_to and total_validators": ("sent_to", "total_validators"),
            "the block and the master block": (*BLOCK_FIELDS, *MASTER_FIELDS),
        }
        names = (*COMMON, *groups.get(kind.fields.value, BLOCK_FIELDS))
        said = {"kind": kind.name, **{name: USUAL[name] for name in names}}
        written = Receipt.from_json(json.dumps(said)).to_json().encode()
        assert read_usual(written) is not None, kind.name
