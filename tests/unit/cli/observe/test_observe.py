"""`stagepost observe`: two sockets in, figures by stake out, and topics from which the pipeline computes the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.cli.main import run
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.mithril.observatory import Observatory
from stagepost.dmq.mithril.stake_parts import decode_stake_part
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import DMQ_MESSAGES, STAKE
from tests.worlds.dmq.background_node import cardano_in_background, node_in_background
from tests.worlds.dmq.cardano_answers import LedgerState
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.mithril_bodies import body, sigma_of
from tests.worlds.dmq.mithril_traffic import TrafficPool
from tests.worlds.dmq.small_node import MAGIC

LEDGER = LedgerState(epoch_s=10**9)  # so that its first epoch lasts until long after now
SIGNERS = [TrafficPool(number) for number in range(4)]
STAKES = {SIGNERS[0].name: 600, SIGNERS[1].name: 300, SIGNERS[2].name: 100}
"""The fourth is in no set."""


def messages() -> list[DmqMessage]:
    entity = (2, (LEDGER.epoch, 9_000))
    found = [
        SIGNERS[number].sign(
            body(entity, sigma_of(number), range(5 * number, 5 * number + 10)), 1_900_000_000, 1
        )
        for number in (0, 1, 3)
    ]
    return [*found, SIGNERS[0].sign(b"x" * 100, 1_900_000_000, 1)]


def observe(folder: Path, *more: str, with_stake: bool = True) -> int:
    pools = {bytes.fromhex(name): (stake, stake, stake) for name, stake in STAKES.items()}
    cardano = PretendCardanoNode(LEDGER.with_pools(pools))
    with (
        node_in_background(folder / "dmq.socket") as node,
        cardano_in_background(folder / "node.socket", cardano),
    ):
        node.messages += messages()
        arguments = [
            "--socket",
            str(folder / "dmq.socket"),
            "--network-magic",
            str(MAGIC),
            "--until-idle",
            "1s",
        ]
        if with_stake:
            arguments += [
                "--cardano-socket",
                str(folder / "node.socket"),
                "--cardano-magic",
                str(LEDGER.magic),
            ]
        return run(["observe", *arguments, *more])


def rows(text: str, kind: str) -> list[dict[str, Any]]:
    return [row for line in text.splitlines() if (row := json.loads(line)).pop("type") == kind]


def test_figures_come_from_two_sockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert observe(tmp_path, "--json", "--parameters", "10,100,0.2") == 0

    said = capsys.readouterr().out
    (beacon,) = rows(said, "beacon")
    assert (beacon["pools"], beacon["stake"], beacon["total_stake"]) == (3, 900, 1_000)
    assert beacon["adoption_percent"] == pytest.approx(90.0)
    assert (beacon["indexes"], beacon["quorum_percent"], beacon["unknown_pools"]) == (15, 150.0, 1)
    silent = [row["pool_id"] for row in rows(said, "pool") if not row["signed"]]
    assert silent == [SIGNERS[2].name]
    (summary,) = rows(said, "observer")
    assert (summary["messages"], summary["other_bodies"], summary["invalid"]) == (4, 1, 0)


def test_the_recorded_topics_give_the_same_figures_and_a_second_run_adds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observe(tmp_path, "--json", "--record", str(tmp_path / "data")) == 0
    shown = rows(capsys.readouterr().out, "beacon")
    first = recorded(tmp_path / "data")

    live = Observatory()
    for value, _ in first[STAKE]:
        live.learn(decode_stake_part(value))
    for value, arrived_ms in first[DMQ_MESSAGES]:
        live.hear(DmqMessage.decode(value), arrived_ms)
    assert [msgspec.to_builtins(one) for one in live.beacons()] == shown

    assert observe(tmp_path, "--json", "--record", str(tmp_path / "data")) == 0
    assert rows(capsys.readouterr().out, "beacon") == shown
    assert recorded(tmp_path / "data") == first


def recorded(folder: Path) -> dict[str, list[tuple[bytes, int]]]:
    found = {}
    for name in (DMQ_MESSAGES, STAKE):
        reader = open_topic(folder, name).reader()
        batches = reader.batches(0, 0, reader.end_offset(0))
        found[name] = [(read.value or b"", read.timestamp_ms) for batch in batches for read in batch]
    return found


def test_without_a_cardano_node_stake_is_unknown_and_never_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observe(tmp_path, with_stake=False) == 0

    said = capsys.readouterr().out
    assert "stake unknown" in said
    line = next(one for one in said.splitlines() if "CardanoDatabase" in one)
    assert line.split()[:4] == ["CardanoDatabase", f"{LEDGER.epoch}/9000", "3", "unknown"]
    assert "0.0 %" not in said


def test_text_names_silent_pools_and_the_former_numbering(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observe(tmp_path, "--names-as-of", "2617") == 0

    said = capsys.readouterr().out
    assert "CardanoImmutableFilesFull" in said
    assert f"silent      1 pool with 10.0 % of the stake: {SIGNERS[2].name[:12]}… 10.0 %" in said


def test_parameters_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("1,2", "0,5,0.2", "6,5,0.2", "1,5,1.0", "a,b,c"):
        assert run(["observe", "--socket", "nowhere", "--parameters", text]) == 2
    assert "for example 1944,16948,0.2" in capsys.readouterr().err


def test_a_node_that_stays_away_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["observe", "--socket", "none.socket", "--for", "3s"]) == 0
    said = capsys.readouterr().err
    assert said.count("the DMQ node is away, trying again") == 1
