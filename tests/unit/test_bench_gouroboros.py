"""Both systems verify their form of the same messages, and neither the other's. No time is asserted here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import beside_gouroboros
from bench.beside_gouroboros import (
    ANEW,
    AS_A_NODE,
    MESSAGE_BYTES,
    POOLS,
    TIMES_MIN,
    Compared,
    as_a_node_does,
    compare,
    everything_anew,
    readings,
    record,
)
from rigs.peer_builds import Unavailable, go_program
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.validation import check_certificate, check_id, check_kes_signature

FEW = POOLS + 10  # some pools twice


def test_both_forms_hold_the_same_message_signed_differently(tmp_path: Path) -> None:
    recorded = record(tmp_path, FEW)

    everything_anew(recorded)(0, FEW)
    as_a_node_does(recorded)(0, FEW)
    ours = DmqMessage.decode(recorded.raw(FEW - 1))
    theirs = DmqMessage.decode(recorded.theirs.read_bytes()[-MESSAGE_BYTES:])

    assert ours.signed_bytes == theirs.signed_bytes
    assert ours.kes_verification_key == theirs.kes_verification_key
    assert check_id(theirs) is None
    assert check_certificate(theirs) is not None
    assert check_kes_signature(theirs) is not None


def test_a_spoilt_message_is_noticed_both_ways(tmp_path: Path) -> None:
    recorded = record(tmp_path, 2)
    spoilt = bytearray(recorded.ours)
    spoilt[MESSAGE_BYTES // 2] ^= 1
    changed = beside_gouroboros.Recorded(bytes(spoilt), recorded.theirs, recorded.pools)

    for verify in (everything_anew(changed), as_a_node_does(changed)):
        with pytest.raises(AssertionError, match="message 0"):
            verify(0, 2)


def test_the_other_library_accepts_its_form_of_every_message() -> None:
    go_program(beside_gouroboros.PROGRAM)

    found = compare(messages=FEW, rounds=2)

    assert [one.name for one in found] == [ANEW, AS_A_NODE]
    assert all(one.ours_us > 0 and one.theirs_us > 0 and one.times > 0 for one in found)


def test_the_other_library_refuses_our_form(tmp_path: Path) -> None:
    program = go_program(beside_gouroboros.PROGRAM)
    recorded = record(tmp_path, 2)
    recorded.theirs.write_bytes(recorded.ours)

    with (
        beside_gouroboros.started(program, recorded) as theirs,
        pytest.raises(RuntimeError, match="cold signature verification failed"),
    ):
        theirs.verify(0, 1)


def test_missing_toolchain_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(name: str) -> Path:
        raise Unavailable("go", "there is no go on this machine")

    monkeypatch.setattr(beside_gouroboros, "build_go_program", unavailable)

    assert readings() == ([], [])
    assert "not run: there is no go on this machine" in capsys.readouterr().out


def test_only_the_way_of_a_node_has_a_budget() -> None:
    slow = TIMES_MIN * 0.99

    assert Compared(AS_A_NODE, 10.0, 10.0, slow).is_missed
    assert not Compared(AS_A_NODE, 10.0, 10.0, TIMES_MIN).is_missed
    assert not Compared(ANEW, 10.0, 10.0, slow).is_missed
