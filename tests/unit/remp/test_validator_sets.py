"""The validator-sets file: what it says, and every fault of it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rigs.remp_world import FULL_NODE, public_key_of, session, session_name, sets_file, source_of
from stagepost.errors import ConfigFaults, StorageError
from stagepost.remp.validator_sets import MESSAGE_TIMEOUT_MS, ValidatorSets, parse_validator_sets


def faults_of(file: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ConfigFaults) as raised:
        parse_validator_sets(json.dumps(file).encode(), "sets.json")
    return [(fault.where, fault.text) for fault in raised.value.faults["sets.json"]]


def test_a_file_says_who_signs_and_when(tmp_path: Path) -> None:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps(sets_file(session(1, range(3), from_ms=5, to_ms=9), timeout_ms=77)))
    sets = ValidatorSets.load(path)
    assert sets.message_timeout_ms == 77
    assert sets.full_nodes == {source_of(FULL_NODE): public_key_of(FULL_NODE)}
    found = sets.sessions[session_name(1)]
    assert (found.size, found.from_ms, found.to_ms, found.shard) == (3, 5, 9, 1 << 63)
    assert ValidatorSets.load(str(path)).sessions == sets.sessions


def test_the_timeout_and_the_full_nodes_may_be_left_out() -> None:
    sets = parse_validator_sets(json.dumps({"sessions": [session(1, range(2))]}).encode(), "sets.json")
    assert sets.message_timeout_ms == MESSAGE_TIMEOUT_MS
    assert sets.full_nodes == {}


def test_an_absent_file_is_named() -> None:
    with pytest.raises(StorageError, match=r"absent\.json cannot be read"):
        ValidatorSets.load("absent.json")


def changed(where: str, **values: Any) -> dict[str, Any]:
    file = sets_file(session(1, range(3)), session(2, range(3, 6), seqno=101))
    part = {
        "session": file["sessions"][0],
        "validator": file["sessions"][0]["validators"][1],
        "full node": file["full_nodes"][0],
    }[where]
    part.update(values)
    return file


@pytest.mark.parametrize(
    ("file", "where", "text"),
    [
        (changed("validator", key_id="00" * 32), "sessions[0].validators[1].key_id", "for this public key"),
        (changed("full node", key_id="00" * 32), "full_nodes[0].key_id", "for this public key"),
        (
            changed("validator", public_key=public_key_of(0).hex(), key_id=source_of(0).hex()),
            "sessions[0].validators[1].public_key",
            "found it again",
        ),
        (
            changed(
                "validator", public_key=public_key_of(FULL_NODE).hex(), key_id=source_of(FULL_NODE).hex()
            ),
            "sessions[0].validators[1].public_key",
            "not a full node's",
        ),
        (changed("session", session_id=session_name(2).hex()), "sessions[1].session_id", "found it again"),
        (changed("validator", index=3), "sessions[0].validators", "none with 1"),
        (changed("validator", index=0), "sessions[0].validators[1].index", "found 0 again"),
        (changed("session", validators=[]), "sessions[0].validators", "at least one validator"),
        (changed("session", from_ms=7, to_ms=7), "sessions[0].to_ms", "after from_ms"),
        (changed("session", shard="80"), "sessions[0].shard", "16 hexadecimal digits"),
        (changed("session", wc="0"), "sessions[0].wc", "remove the quotes"),
    ],
)
def test_each_fault_is_found_at_its_place(file: dict[str, Any], where: str, text: str) -> None:
    found = faults_of(file)
    assert any(place == where and text in words for place, words in found), found


def test_all_faults_are_listed_at_once() -> None:
    file = changed("validator", key_id="00" * 32)
    file["sessions"][1]["to_ms"] = -1
    file["sessions"][1]["wc"] = None
    assert len(faults_of(file)) == 3


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"sessions": 1}', b"{}"])
def test_what_is_no_sets_file_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigFaults):
        parse_validator_sets(content, "sets.json")
