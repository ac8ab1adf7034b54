"""What the demo prints: the bar on a terminal alone, numbers grouped, and nothing that was not counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stagepost.cli.demo.output import Output
from stagepost.cli.demo.tables import TablesAbsent, make_tables
from stagepost.devnet.demo.findings import DemoFindings, RefusedReceipt
from stagepost.errors import StagepostError

FOUND = DemoFindings(
    {"finalized": 1_186, "expired": 5, "likely_rejected": 1},
    850,
    2_400,
    3_914,
    3_913,
    (RefusedReceipt("RECEIPT_SIGNATURE", "V6", 1),),
)
REFUSED = {"MSG_EXPIRY_TOO_FAR": 2, "KES_SIGNATURE": 4, "POOL_UNKNOWN": 1}


def test_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.begun(7, Path("here"))
    output.progress(1, 2)
    output.sent(2, 2)
    output.findings(FOUND, REFUSED)
    output.no_tables("left out, as asked")
    output.next_steps(Path("here"), "16923245" + "0" * 56)

    shown = capsys.readouterr()
    assert shown.err == "", "the bar is for terminals"
    assert shown.out.splitlines() == [
        "seed 7 · 3 DMQ nodes · 1 full node · 7 validators · data in here",
        "sending     ━━━━━━━━━━━━━━━━━━━━ 2/2",
        "delivered   1 186 finalized · 5 expired · 1 likely_rejected       time to final p50 850 ms  p95 2.4 s",
        "refused     4 bad signature · 2 too far in the future · 1 POOL_UNKNOWN",
        "receipts    3 914 signed, 3 913 verified, 1 refused (invalid signature, V6)",
        "tables      left out, as asked",
        "next        stagepost serve --data here                     the same in a browser",
        "            stagepost trace 16923245 --data here",
        "            stagepost demo --live                           a network that runs, and that you can break",
    ]


def test_a_bar_grows_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    output = Output(as_json=False)
    output.progress(0, 4)
    output.progress(1, 4)
    assert capsys.readouterr().err.split("\r")[1:] == [
        f"sending     {' ' * 20} 0/4",
        f"sending     {'━' * 5}{' ' * 15} 1/4",
    ]


def test_objects_are_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.findings(FOUND, {})
    output.tables({"messages": 3})
    delivered, refused, receipts, tables = map(json.loads, capsys.readouterr().out.splitlines())
    assert delivered["verdicts"] == FOUND.verdicts
    assert refused == {"part": "refused", "codes": {}}
    assert receipts["refused"] == [{"reason": "RECEIPT_SIGNATURE", "source": "V6", "count": 1}]
    assert tables == {"part": "tables", "rows": {"messages": 3}}


@pytest.mark.parametrize(("script", "expected"), [("exit 2", TablesAbsent), ("exit 1", StagepostError)])
def test_tables_that_do_not_come_are_told_apart_from_those_that_cannot(
    script: str, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that makes them is another one here, which ends in each of the two ways."""
    real = subprocess.Popen

    def other(command: list[str], **options: object) -> object:
        assert command[3:6] == ["-q", "pipeline", "run"]
        return real(["sh", "-c", f"echo no Java here; {script}"], **options)  # type: ignore[call-overload]

    monkeypatch.setattr("stagepost.cli.demo.tables.subprocess.Popen", other)
    with pytest.raises(expected) as caught:
        make_tables(tmp_path)
    assert ("no Java here" in str(caught.value)) is (expected is TablesAbsent)
