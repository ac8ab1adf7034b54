"""Records of stake: a distribution in parts that fit a topic, and every fault of a foreign record named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stagepost.dmq.cardano.stake_record import StakeRecord
from stagepost.dmq.mithril.parameters import MAINNET_MAGIC, LotteryParameters, known_parameters
from stagepost.dmq.mithril.stake_parts import (
    LOVELACE_MAX,
    POOLS_PER_PART,
    STAKE_PART_BYTES_MAX,
    StakePart,
    decode_stake_part,
    joined_stake,
    stake_parts,
)
from stagepost.errors import ConfigError, DecodeError
from stagepost.ground.identifiers import PoolId
from tests.worlds.dmq.cardano_answers import vectors


def a_record(pools: int, stake: int = 45 * 10**15 // 3_000) -> StakeRecord:
    stakes = {PoolId(number.to_bytes(28, "big")): stake for number in range(pools)}
    return StakeRecord(2, 0, 6, 640, 2_000.0, 1_000.0, 1_500.0, 62, stakes)


@pytest.mark.parametrize("pools", [1, POOLS_PER_PART, POOLS_PER_PART + 1, 3_000])
def test_a_distribution_comes_back_whole_from_its_parts(pools: int) -> None:
    parts = stake_parts(a_record(pools), LotteryParameters(1_944, 16_948, 0.2))
    raw = [msgspec.json.encode(part) for part in parts]

    assert len(parts) == -(-pools // POOLS_PER_PART)
    assert all(len(one) <= STAKE_PART_BYTES_MAX for one in raw)
    found = joined_stake(map(decode_stake_part, reversed(raw)))
    assert found is not None
    assert dict(found.stakes) == a_record(pools).stakes
    assert (found.from_ms, found.to_ms, found.taken_ms) == (1_000_000, 2_000_000, 1_500_000)
    assert joined_stake(decode_stake_part(one) for one in raw[1:]) is None


def test_the_same_stake_asked_again_is_the_same_distribution() -> None:
    again = msgspec.structs.replace(a_record(3), taken_unix_s=1_700.0)

    assert stake_parts(a_record(3), None)[0].digest == stake_parts(again, None)[0].digest
    assert stake_parts(a_record(4), None)[0].digest != stake_parts(again, None)[0].digest


def part(**changes: Any) -> bytes:
    (found,) = stake_parts(a_record(2), None)
    return msgspec.json.encode(msgspec.structs.replace(found, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1}, {"epoch": 2**32}, {"to_ms": 1_000_000}, {"part": 1}, {"parts": 0}, {"pools": 1}, {"kes_evolutions_max": 0},
        {"total_stake": -1}, {"stakes": {"ab": 1}}, {"stakes": {"AB" * 28: 1}}, {"stakes": {"ab" * 28: -1}}, {"digest": "x"},
        {"k": 5}, {"k": 5, "m": 4, "phi_f": 0.2}, {"network_magic": 2**32},
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_is_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match="not a record of stake"):
        decode_stake_part(part(**changes))


def test_limits_hold_at_their_edges() -> None:
    assert isinstance(decode_stake_part(part(total_stake=LOVELACE_MAX)), StakePart)
    for content in (
        part(total_stake=LOVELACE_MAX + 1),
        b"{" * 1_000,
        b"",
        b"\xff",
        part() + b" " * STAKE_PART_BYTES_MAX,
    ):
        with pytest.raises(DecodeError):
            decode_stake_part(content)
    many = {number.to_bytes(28, "big").hex(): 1 for number in range(POOLS_PER_PART + 1)}
    with pytest.raises(DecodeError, match="number of pools"):
        decode_stake_part(part(stakes=many, pools=1_000))


def test_the_lottery_is_that_of_the_published_examples() -> None:
    known = vectors("mithril-body")
    for example in known["lottery_examples"]:
        parameters = LotteryParameters(1, example["m"], example["phi_f"])
        assert parameters.expected_indexes(example["stake_share"]) == pytest.approx(
            example["expected_indexes"], abs=1e-3
        )
    quorum = known["quorum"]
    parameters = LotteryParameters(quorum["k"], quorum["m"], quorum["phi_f"])
    assert parameters.quorum_share == pytest.approx(quorum["share_for_k"], abs=5e-4)
    assert known_parameters(MAINNET_MAGIC, 619) == parameters
    assert known_parameters(MAINNET_MAGIC, 618) == LotteryParameters(2_422, 20_973, 0.2)
    assert known_parameters(2, 700) is None
    with pytest.raises(ConfigError):
        LotteryParameters(2, 1, 0.2)
