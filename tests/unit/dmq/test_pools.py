"""The pools file: what it gives, and every fault of it at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq import pools as pools_module
from stagepost.dmq.pools import (
    KES_EVOLUTIONS_LIMIT,
    NAME_CHARACTERS_MAX,
    STAKE_MAX,
    PoolDistribution,
    parse_pools,
)
from stagepost.errors import ConfigFaults, ErrorCode, FileFault
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.identifiers import PoolId

POOL = PoolId(bytes(range(28)))
OTHER = PoolId(bytes(28))


def a_file(**changes: Any) -> dict[str, Any]:
    return {
        "max_kes_evolutions": 62,
        "slots_per_kes_period": 129_600,
        "pools": [{"pool_id": POOL.hex(), "stake": 1_000_000, "name": "mine"}],
    } | changes


def parse(file: Any) -> PoolDistribution:
    return parse_pools(json.dumps(file).encode(), "pools.json")


def faults_of(content: bytes) -> dict[str, str]:
    with pytest.raises(ConfigFaults) as caught:
        parse_pools(content, "pools.json")
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert list(caught.value.faults) == ["pools.json"]
    return {fault.where: fault.text for fault in caught.value.faults["pools.json"]}


def test_a_pool_is_found_by_its_id_whichever_way_it_is_written() -> None:
    for text in (POOL.hex(), POOL.hex().upper(), format_pool_id(POOL)):
        distribution = parse(a_file(pools=[{"pool_id": text, "stake": 5}]))

        assert distribution.stake(POOL) == 5


def test_the_distribution_answers_as_validation_asks() -> None:
    distribution = parse(a_file(pools=[{"pool_id": POOL.hex(), "stake": 0}]))

    assert distribution.is_ready
    assert distribution.kes_evolutions_max == 62
    assert distribution.slots_per_kes_period == 129_600
    assert distribution.stake(POOL) == 0, "known, not eligible"
    assert distribution.stake(OTHER) is None


def test_a_pool_may_have_the_id_of_zeros() -> None:
    assert parse(a_file(pools=[{"pool_id": OTHER.hex(), "stake": 1}])).stake(OTHER) == 1


def test_fields_that_are_not_named_are_ignored() -> None:
    file = a_file(comment="ours", pools=[{"pool_id": POOL.hex(), "stake": 1, "margin": 0.5}])

    assert parse(file).stake(POOL) == 1


def test_a_file_without_any_pool_lets_nobody_send() -> None:
    assert parse(a_file(pools=[])).stake(POOL) is None


def test_every_fault_is_listed_with_its_place() -> None:
    file = {
        "max_kes_evolutions": "62",
        "pools": [
            {"pool_id": "pool1xyz", "stake": -1},
            {"stake": True},
            7,
            {"pool_id": POOL.hex(), "stake": 1.5, "name": ""},
        ],
    }

    faults = faults_of(json.dumps(file).encode())

    assert faults.keys() == {
        "max_kes_evolutions",
        "slots_per_kes_period",
        "pools[0].pool_id",
        "pools[0].stake",
        "pools[1].pool_id",
        "pools[1].stake",
        "pools[2]",
        "pools[3].stake",
        "pools[3].name",
    }
    assert faults["max_kes_evolutions"] == 'expected a number, found "62" (remove the quotes)'
    assert faults["slots_per_kes_period"] == "expected a number, found nothing"
    assert faults["pools[1].stake"] == "expected a number, found true"


def test_a_pool_that_comes_twice_is_a_fault_in_whichever_form() -> None:
    file = a_file(pools=[{"pool_id": POOL.hex(), "stake": 1}, {"pool_id": format_pool_id(POOL), "stake": 2}])

    assert "pools[0].pool_id" in faults_of(json.dumps(file).encode())["pools[1].pool_id"]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"max_kes_evolutions": 0}, "max_kes_evolutions"),
        ({"max_kes_evolutions": KES_EVOLUTIONS_LIMIT + 1}, "max_kes_evolutions"),
        ({"slots_per_kes_period": 0}, "slots_per_kes_period"),
        ({"pools": {}}, "pools"),
        ({"pools": [{"pool_id": POOL.hex(), "stake": STAKE_MAX + 1}]}, "pools[0].stake"),
        (
            {"pools": [{"pool_id": POOL.hex(), "stake": 0, "name": "x" * (NAME_CHARACTERS_MAX + 1)}]},
            "pools[0].name",
        ),
        ({"pools": [{"pool_id": POOL.hex()[:-2], "stake": 0}]}, "pools[0].pool_id"),
    ],
)
def test_a_value_beyond_its_limit_is_a_fault(changes: dict[str, Any], where: str) -> None:
    assert faults_of(json.dumps(a_file(**changes)).encode()).keys() == {where}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_kes_evolutions": 1},
        {"max_kes_evolutions": KES_EVOLUTIONS_LIMIT},
        {"slots_per_kes_period": 1},
        {"pools": [{"pool_id": POOL.hex(), "stake": STAKE_MAX, "name": "x" * NAME_CHARACTERS_MAX}]},
    ],
)
def test_a_value_at_its_limit_is_fine(changes: dict[str, Any]) -> None:
    assert parse(a_file(**changes)).is_ready


def test_more_pools_than_can_be_remembered_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "POOLS_MAX", 2)
    entries = [{"pool_id": bytes([n] * 28).hex(), "stake": 1} for n in range(3)]

    assert parse(a_file(pools=entries[:2])).is_ready
    assert faults_of(json.dumps(a_file(pools=entries)).encode()).keys() == {"pools"}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "line 1, column 1"),
        (b"{", "line 1, column 2"),
        (b'{"pools": [,]}', "line 1, column 12"),
        (b"[]", "the whole file"),
        (b"null", "the whole file"),
        (b"{} {}", "line 1, column 4"),
        (b"\xff{}", "byte 0"),
        (b'{"pools": 1, "pools": 2}', "pools"),
        (b'{"pools": NaN}', "the whole file"),
        (b'{"pools": ' + b"[" * 100_000, "the whole file"),
        (b'{"pools": ' + b"[" * 40 + b"]" * 40 + b"}", "the whole file"),
        (b'{"pools": ' + b"9" * 10_000 + b"}", "the whole file"),
    ],
)
def test_what_is_no_json_object_is_one_fault(content: bytes, where: str) -> None:
    assert faults_of(content).keys() == {where}


def distribution_or_faults(content: bytes) -> PoolDistribution | Mapping[str, Sequence[FileFault]]:
    try:
        return parse_pools(content, "pools.json")
    except ConfigFaults as error:
        return error.faults


@given(st.binary(max_size=200))
def test_any_bytes_give_a_distribution_or_faults(content: bytes) -> None:
    found = distribution_or_faults(content)

    assert isinstance(found, PoolDistribution) or found["pools.json"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pool_id", "stake", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON, _JSON, _JSON)
def test_any_values_give_a_distribution_or_faults(evolutions: Any, slots: Any, entries: Any) -> None:
    file = {"max_kes_evolutions": evolutions, "slots_per_kes_period": slots, "pools": entries}
    found = distribution_or_faults(json.dumps(file).encode())

    if isinstance(found, PoolDistribution):
        assert all(len(pool) == 28 and stake >= 0 for pool, stake in found.stakes.items())
    else:
        assert found["pools.json"]
