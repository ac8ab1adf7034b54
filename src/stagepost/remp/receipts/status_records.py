"""Records of the topic of statuses, and lines of a dump: a receipt with its key, headers and arrival time."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any

import msgspec

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.identifiers import INT64_MAX
from stagepost.ground.identifiers import STATUSES_TOPIC as STATUSES_TOPIC
from stagepost.remp.hex_text import JsonFault, read_object
from stagepost.remp.receipts.receipt import Counting, Quarantined, Receipt, check
from stagepost.remp.validator_sets import ValidatorSets

LINE_BYTES_MAX = 1 << 20
"""Bytes of a line of a dump, at most: room for the largest receipt with every character escaped."""


class StatusRecord(msgspec.Struct, frozen=True):
    """`value` is None for a null. `position` tells people where the record stood. `fault` says what is wrong
    with the line itself.
    """

    value: bytes | None
    key: str | None = None
    topic: str = STATUSES_TOPIC
    arrived_ms: int | None = None
    headers: Mapping[str, str] = {}
    position: str = ""
    fault: str = ""

    @property
    def session_hint(self) -> str | None:
        return self.headers.get("session")


def check_record(record: StatusRecord, sets: ValidatorSets) -> Counting | Quarantined:
    """Run all checks in their order, from the record's form to the signature."""
    receipt = read_record(record)
    return receipt if isinstance(receipt, Quarantined) else check(receipt, sets, record.arrived_ms)


def read_record(record: StatusRecord) -> Receipt | Quarantined:
    if record.fault or record.value is None:
        return Quarantined(ErrorCode.RECEIPT_FORMAT, record.fault or "the value is null")
    try:
        return Receipt.from_json(record.value, record_key=record.key)
    except DecodeError as error:
        return Quarantined(error.code, error.text.removeprefix(f"{error.code}: "))


def read_dump_line(line: bytes, position: str = "") -> StatusRecord:
    """Read a line of a dump, or a bare receipt. A line that is neither becomes a record with that line as its
    value.
    """
    try:
        members = dict(read_object(line))
    except JsonFault:
        return StatusRecord(line, position=position)
    if "value" not in members and "value_base64" not in members:
        return StatusRecord(line, position=position)
    value, fault = _value(members, line)
    key, topic, arrived_ms = members.get("key"), members.get("topic"), members.get("timestamp_ms")
    is_time = type(arrived_ms) is int and 0 <= arrived_ms <= INT64_MAX
    return StatusRecord(
        value,
        key if isinstance(key, str) else None,
        topic if isinstance(topic, str) else STATUSES_TOPIC,
        arrived_ms if is_time else None,
        _headers(members.get("headers")),
        position,
        fault,
    )


def _value(members: Mapping[str, Any], line: bytes) -> tuple[bytes | None, str]:
    if "value" in members and "value_base64" in members:
        return line, "value and value_base64 are both given"
    if "value" in members:
        value = members["value"]
        if value is None:
            return None, ""
        return (value.encode(), "") if isinstance(value, str) else (line, "value is not a text")
    try:
        return b64decode(members["value_base64"], validate=True), ""
    except (Base64Error, ValueError, TypeError):
        return line, "value_base64 is not base64"


def _headers(given: object) -> dict[str, str]:
    if not isinstance(given, list):
        return {}
    return {name: value for name, value in given if isinstance(name, str) and isinstance(value, str)}
