"""Records of the layers before: each passes, or has its reason; copies are known by what they say."""

from __future__ import annotations

import json

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.errors import ErrorCode
from stagepost.pipeline.steps import other_checks
from stagepost.pipeline.steps.other_checks import OtherChecks
from stagepost.pipeline.steps.record_checks import NOT_CHECKED, Checked
from stagepost.topics.topic import DELIVERY_EVENTS, DMQ_MESSAGES, MESSAGES
from tests.worlds.dmq.pool_signers import Signer
from tests.worlds.pipeline.pipeline_others import EVENT, GOOD, broken

ID = GOOD[0].message_id.hex()
RAW = GOOD[0].encode()


def dmq(key: str | None, value: bytes | None) -> Checked:
    return OtherChecks().check(DMQ_MESSAGES, key, value)


def event(key: str | None = None, **changes: object) -> Checked:
    value = json.dumps({**EVENT, **changes}).encode()
    return OtherChecks().check(DELIVERY_EVENTS, key, value)


def altered(part: bytes, at: int = 0) -> bytes:
    raw = bytearray(RAW)
    raw[raw.index(part) + at] ^= 1
    return bytes(raw)


def test_a_dmq_message_that_proves_itself_passes_under_its_id_and_no_key_is_needed() -> None:
    assert dmq(ID, RAW) == dmq(ID.upper(), RAW) == dmq(None, RAW)
    assert dmq(ID, RAW).reason is None
    assert dmq(ID, RAW).message_id == ID
    assert dmq(ID, RAW).signed_hash != dmq(GOOD[1].message_id.hex(), GOOD[1].encode()).signed_hash


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, ErrorCode.CBOR_TRUNCATED),
        (b"", ErrorCode.CBOR_TRUNCATED),
        (b"\xff", ErrorCode.CBOR_INVALID),
        (RAW[:-1], ErrorCode.CBOR_TRUNCATED),
        (RAW + b"\0", ErrorCode.CBOR_INVALID),
        (altered(GOOD[0].kes_signature, 5), ErrorCode.KES_SIGNATURE),
        (altered(GOOD[0].operational_certificate.cold_signature), ErrorCode.OPCERT_SIGNATURE),
    ],
)
def test_every_kind_of_bad_dmq_message_has_its_reason(value: bytes | None, reason: ErrorCode) -> None:
    found = dmq(ID, value)
    assert found.reason == reason
    assert found.message_id == ID
    assert found.raw_hash is not None


def test_a_dmq_message_under_another_key_or_with_another_id_or_out_of_its_period_is_refused() -> None:
    assert dmq(GOOD[1].message_id.hex(), RAW).reason == ErrorCode.MSG_BAD_ID
    changed = dmq(None, altered(GOOD[0].body[-8:]))
    assert changed.reason == ErrorCode.MSG_BAD_ID
    late = Signer(start_kes_period=10).sign(1)
    assert dmq(None, late.encode()).reason is None
    assert dmq(None, broken().encode()).reason == ErrorCode.KES_SIGNATURE


def test_a_message_that_comes_from_many_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_checks, "OUTCOMES_REMEMBERED_MAX", 2)
    checks = OtherChecks()
    for message in [*GOOD[:2], *GOOD[:2], broken(), broken()]:
        checks.check(DMQ_MESSAGES, None, message.encode())
    assert checks.signatures_looked_at == 3
    checks.check(DMQ_MESSAGES, None, RAW)
    assert checks.signatures_looked_at == 4, "the oldest was forgotten"


def test_a_delivery_event_passes_and_is_the_same_however_it_is_written() -> None:
    known = event()
    assert known.reason is None
    assert known.message_id == EVENT["delivery_id"]
    spaced = json.dumps(EVENT, indent=2, sort_keys=True).encode()
    assert OtherChecks().check(DELIVERY_EVENTS, EVENT["delivery_id"].upper(), spaced) == known
    assert event(status="Failed").signed_hash != known.signed_hash
    assert event(more=1) == known


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "Lost"},
        {"tier": 1},
        {"timestamp_ms": -1},
        {"timestamp_ms": 2**63},
        {"timestamp_ms": "5"},
        {"attempt": -1},
        {"acked_by": "relay"},
        {"key": "cd" * 32},
    ],
)
def test_an_event_with_a_wrong_field_is_refused(changes: dict[str, object]) -> None:
    assert event(**changes).reason == ErrorCode.RECEIPT_FORMAT  # type: ignore[arg-type]  # `key` is one of them
    assert event(timestamp_ms=2**63 - 1).reason is None


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"\xff", b"null", b"{}"])
def test_what_is_no_event_is_refused(value: bytes | None) -> None:
    assert OtherChecks().check(DELIVERY_EVENTS, "k", value).reason == ErrorCode.RECEIPT_FORMAT


def test_topics_that_nobody_knows_are_taken_as_they_are() -> None:
    assert OtherChecks().check(MESSAGES, "k", b"anything") == NOT_CHECKED
    assert OtherChecks().check("another", None, None) == NOT_CHECKED


def test_the_message_of_another_layout_is_read_as_well() -> None:
    assert isinstance(DmqMessage.decode(RAW, profile=other_checks.PROFILE), DmqMessage)
