"""`stagepost trace` and `stagepost verify` over dumps: lanes, verdicts, trouble, silence, and what cannot be read."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from rigs.remp_world import FULL_NODE, MESSAGE, seed_of, session, session_name, sets_file, status_named
from stagepost.cli import main as command
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId

START_MS = 1_700_000_000_000
BLOCK = BlockId(0, 0x3800_0000_0000_0000, 17, b"r" * 32, b"f" * 32)
MASTER = BlockId(-1, 1 << 63, 234, b"m" * 32, b"g" * 32)
OTHER = ExternalMessageId(MESSAGE[:4] + b"\xff" * 28)


def line(
    who: int, status: MessageStatus, after_ms: int, *, of: ExternalMessageId = MESSAGE, forged: bool = False
) -> str:
    receipt = Receipt(of, status, START_MS + after_ms, b"").sign(seed_of(who))
    if forged:
        receipt = receipt.with_signature(bytes(64))
    record: dict[str, Any] = {
        "key": of.hex(),
        "value": receipt.to_json(),
        "timestamp_ms": START_MS + after_ms,
    }
    record["headers"] = {"session": session_name(1).hex(), "dmq_id": "dd" * 32}
    return json.dumps(record)


def finalized() -> list[str]:
    lines = [line(FULL_NODE, SentToValidators(7, 7), 0)]
    for who in range(7):
        lines.append(line(who, New(), 44 + who))
    for who in (0, 1, 2, 4, 6):
        lines.append(line(who, Accepted(Level.COLLATOR, BLOCK), 236 + who))
        lines.append(line(who, Accepted(Level.SHARDCHAIN, BLOCK), 527 + who))
    lines.append(line(3, Rejected(Level.COLLATOR, "contract error 52"), 230))
    lines.append(line(5, status_named("IgnoredByCollator", block=BLOCK), 240))
    lines.append(line(5, status_named("Duplicate", block=BLOCK), 360, forged=True))
    lines.append(line(FULL_NODE, Accepted(Level.MASTERCHAIN, BLOCK, MASTER), 1_230))
    return lines


class Files:
    def __init__(self, folder: Path) -> None:
        self.dump = folder / "statuses.jsonl"
        self.sets = folder / "sets.json"
        self.sets.write_text(json.dumps(sets_file(session(1, range(7)), timeout_ms=240_000)))

    def write(self, *lines: str) -> None:
        self.dump.write_text("".join(f"{one}\n" for one in lines))

    def trace(self, *more: str, prefix: str = MESSAGE.hex()[:8], as_of_ms: int = START_MS + 2_000) -> int:
        given = ["--dump", str(self.dump), "--validator-sets", str(self.sets), "--as-of", str(as_of_ms)]
        return command.run(["trace", prefix, *given, *more])

    def verify(self, *more: str) -> int:
        return command.run(["verify", str(self.dump), "--validator-sets", str(self.sets), *more])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_finalized_message_is_shown_as_lanes(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(*finalized())
    assert files.trace() == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == [
        *(MESSAGE.hex()[:16] + "…" + MESSAGE.hex()[-6:], "Finalized"),
        *("shard", "0:3800000000000000", "·", "master", "block", "234"),
    ]
    assert shown[1] == "to queue 44 ms · optimistic 236 ms · accepted 527 ms · final 1.23 s"
    assert shown[2] == "5 of 7 validators accepted · 1 rejected · 1 returned · 21 of 22 signatures valid"
    assert shown[3] == "end not known yet", "a full node's word is a claim"
    assert shown[5].split() == ["0", "ms", "200", "400", "600", "800", "1000", "1200"]
    lanes = {text.split("  ")[0].strip(): text for text in shown[6:14]}
    assert list(lanes) == ["full node", *(f"V{number}" for number in range(1, 8))]
    assert lanes["full node"].count("●") == 1
    assert lanes["full node"].count("◆") == 1
    assert lanes["full node"].endswith("SentToValidators 7/7 → Finalized")
    assert [lanes["V1"].count(mark) for mark in "○●◆✕↩⚠"] == [1, 2, 0, 0, 0, 0]
    assert [lanes["V4"].count(mark) for mark in "○●◆✕↩⚠"] == [1, 0, 0, 1, 0, 0]
    assert lanes["V4"].endswith("RejectedByCollator: contract error 52")
    assert [lanes["V6"].count(mark) for mark in "○●◆✕↩⚠"] == [1, 0, 0, 0, 1, 1]
    assert lanes["V6"].endswith("IgnoredByCollator, Duplicate: SIGNATURE INVALID")
    assert "waiting" not in shown[-1]


def test_marks_stand_at_their_times(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(line(FULL_NODE, SentToValidators(7, 7), 0), line(0, New(), 610), line(1, New(), 305))
    files.trace()
    shown = capsys.readouterr().out.splitlines()
    lanes = {text[:14].strip(): text[16:] for text in shown}
    columns = [lanes["full node"].index("●"), lanes["V1"].index("○"), lanes["V2"].index("○")]
    assert columns == [0, 61, 30]


def test_an_open_message_says_who_is_silent_and_how_long_it_is_open(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(
        line(FULL_NODE, SentToValidators(7, 7), 0), *(line(who, New(), 50) for who in (0, 2, 3, 4, 6))
    )
    assert files.trace(as_of_ms=START_MS + 72_000) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "Queued at 5 of 7" in shown[0]
    assert shown[-1] == "waiting: 2 of 7 silent (V2, V6); open 1m 12s of 4m"
    assert sum(text.endswith("silent") and text.startswith("V") for text in shown) == 2


def test_a_life_that_is_over_is_expired(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(line(FULL_NODE, SentToValidators(7, 7), 0), line(0, New(), 50))
    files.trace(as_of_ms=START_MS + 240_001)
    shown = capsys.readouterr().out
    assert "Expired" in shown.splitlines()[0]
    assert shown.splitlines()[1].startswith("expired: not final within 4m; silent: V2, V3, V4 and 3 more")
    assert "waiting" not in shown


def test_only_trouble_leaves_out_the_lanes_in_which_all_went_well(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(*finalized())
    files.trace("--only-trouble")
    lanes = [text[:14].strip() for text in capsys.readouterr().out.splitlines()[6:-1]]
    assert lanes == ["V4", "V6"]


def test_json_holds_the_row_of_the_table_and_every_receipt(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(*finalized())
    assert files.trace("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["message_id"] == MESSAGE.hex()
    assert found["verdict"] == "finalized"
    assert found["finalized_ms"] == START_MS + 1_230
    assert found["rejected_by"] == [3]
    assert found["queued_at"] == [5]
    assert found["dmq_id"] == "dd" * 32
    assert (found["receipts"], found["receipts_bad"]) == (21, 1)
    assert len(found["all_receipts"]) == 22
    refused = [receipt for receipt in found["all_receipts"] if not receipt["counts"]]
    assert [(receipt["lane"], receipt["kind"], receipt["refused"]) for receipt in refused] == [
        ("V6", "Duplicate", "RECEIPT_SIGNATURE")
    ]


def test_a_beginning_that_fits_several_messages_lists_them(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(line(0, New(), 0), line(0, New(), 0, of=OTHER))
    assert files.trace() == 1
    said = capsys.readouterr().err
    assert "2 messages begin with 00010203" in said
    assert OTHER.hex() in said
    assert files.trace(prefix=OTHER.hex()[:10]) == 0


def test_an_unknown_id_is_said_to_be_unknown(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(line(0, New(), 0))
    assert files.trace(prefix="deadbeef") == 1
    assert "begins with deadbeef" in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["0001020", "xyzxyzxyz", "0" * 65])
def test_what_is_no_id_is_a_usage_fault(files: Files, prefix: str) -> None:
    files.write(line(0, New(), 0))
    assert files.trace(prefix=prefix) == 2


def test_what_a_stranger_wrote_cannot_steer_the_terminal(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(line(0, Rejected(Level.COLLATOR, "\x1b[2J\x07gone"), 0))
    files.trace()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "·[2J·gone" in shown


def test_copies_of_a_receipt_are_one_mark_and_rubbish_under_the_key_is_named(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    rubbish = json.dumps({"key": MESSAGE.hex(), "value": "{}"})
    files.write(line(0, New(), 0), line(0, New(), 0), rubbish)
    files.trace()
    shown = capsys.readouterr().out
    assert "1 of 1 signatures valid" in shown
    assert "not a receipt, line 3: kind is missing (RECEIPT_FORMAT)" in shown


def test_a_stranger_has_a_lane_of_his_own(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(line(0, New(), 0), line(55, New(), 10))
    files.trace()
    lanes = [text for text in capsys.readouterr().out.splitlines() if text.startswith("unknown")]
    assert len(lanes) == 1
    assert lanes[0].endswith("PutIntoQueue: UNKNOWN SIGNER")


# verify


def test_a_good_dump_is_verified(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    bare = Receipt(OTHER, New(), START_MS, b"").sign(seed_of(1)).to_json().replace("\n", "")
    encoded = json.dumps({"key": OTHER.hex(), "value_base64": b64encode(bare.encode()).decode()})
    elsewhere = json.dumps({"topic": "stagepost.dmq.messages", "key": "00", "value": "not for us"})
    files.write(line(0, New(), 0), line(0, New(), 0), bare, encoded, elsewhere, "")
    assert files.verify() == 0
    counts, advice = capsys.readouterr().out.splitlines()
    assert counts == "4 records of 2 messages · 2 valid · 2 repeated · 0 refused"
    assert advice.startswith("receipts are claims: they prove no end")


def test_every_reason_for_refusing_is_named_with_its_line(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    unsigned = Receipt(MESSAGE, New(), START_MS, b"x" * 32).to_json()
    early = json.loads(line(0, New(), 300_001)) | {"timestamp_ms": START_MS}
    files.write(
        "no json",
        json.dumps({"key": MESSAGE.hex(), "value": "{}", "value_base64": ""}),
        json.dumps({"key": OTHER.hex(), "value": json.loads(line(0, New(), 0))["value"]}),
        line(0, New(), 0).replace("PutIntoQueue", "PutAside"),
        json.dumps({"value": unsigned}),
        line(99, New(), 0),
        line(FULL_NODE, New(), 0),
        json.dumps(early),
        line(0, New(), 0, forged=True),
        line(0, New(), 0),
    )
    assert files.verify("--json") == 1
    *refused, counts = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(one["position"], one["reason"]) for one in refused] == [
        ("line 1", "RECEIPT_FORMAT"),
        ("line 2", "RECEIPT_FORMAT"),
        ("line 3", "RECEIPT_FORMAT"),
        ("line 4", "RECEIPT_KIND"),
        ("line 5", "RECEIPT_UNSIGNED"),
        ("line 6", "RECEIPT_SOURCE"),
        ("line 7", "RECEIPT_ROLE"),
        ("line 8", "RECEIPT_FUTURE"),
        ("line 9", "RECEIPT_SIGNATURE"),
    ]
    assert (counts["records"], counts["valid"], counts["refused"]) == (10, 1, 9)


def test_people_see_the_first_refused_ones_and_how_many_more(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(*("no json" for _ in range(21)))
    assert files.verify() == 1
    shown = capsys.readouterr().out.splitlines()
    assert sum(text.startswith("refused") for text in shown) == 20
    assert shown[20] == "          … and 1 more (--json shows all)"
    assert shown[-2] == "21 records of 0 messages · 0 valid · 0 repeated · 21 refused"


def test_an_empty_file_is_no_success(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write()
    assert files.verify() == 1
    assert "nothing to check" in capsys.readouterr().out


def test_a_missing_file_cannot_be_read(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert files.verify() == 3
    assert "statuses.jsonl cannot be read" in capsys.readouterr().err


def test_a_bad_sets_file_is_refused_with_all_its_faults(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(line(0, New(), 0))
    files.sets.write_text('{"sessions": [{"session_id": "x"}]}')
    assert files.verify() == 2
    assert "session_id" in capsys.readouterr().err


def test_a_line_without_end_is_refused_at_the_limit(
    files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagepost.trace import reading as trace_reading

    monkeypatch.setattr(trace_reading, "LINE_BYTES_MAX", 100)
    files.dump.write_bytes(b" " * 99 + b"\n")
    assert files.verify() == 1
    files.dump.write_bytes(b" " * 100 + b"\n")
    assert files.verify() == 3
    assert "line 1 has more than 100 bytes" in capsys.readouterr().err
