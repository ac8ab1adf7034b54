"""Hashes and frames of published nodes, and the same by other means, in both versions."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.catchain.block import (
    Block,
    Dependency,
    HashVersion,
    block_hash,
    block_id,
    data_hash,
    decode_update,
    incarnation_of,
)
from tests.worlds.remp import remp_oracle

VECTORS = Path(__file__).parents[2] / "vectors" / "remp"
HASHES = json.loads((VECTORS / "catchain_hashes.json").read_text())
FRAMES = json.loads((VECTORS / "catchain_update_frames.json").read_text())["items"]
DUMP = json.loads((VECTORS / "received_block_dump.json").read_text())["items"]
NOTHING = Dependency(0, 0, bytes(32))
OLD = HashVersion.PAYLOAD_ONLY


@pytest.mark.parametrize("item", [*HASHES["payload_hash"]["items"], *DUMP])
def test_in_version_one_the_data_hash_covers_the_payload(item: dict[str, Any]) -> None:
    assert data_hash(bytes.fromhex(item["payload"]), NOTHING, (), OLD).hex() == item["data_hash"]


@pytest.mark.parametrize("item", HASHES["block_id_hash"]["items"])
def test_a_blocks_hash_covers_its_id(item: dict[str, Any]) -> None:
    of_data = data_hash(bytes.fromhex(item["payload"]), NOTHING, (), OLD)
    given_ids = bytes.fromhex(item["incarnation"]), bytes.fromhex(item["src_key_id"])
    assert block_hash(*given_ids, item["height"], of_data).hex() == item["hash"]
    again = remp_oracle.catchain_block_id(*given_ids, item["height"], of_data)
    assert sha256(again).hexdigest() == item["hash"]


@pytest.mark.parametrize("item", HASHES["block_update_hash"]["items"])
def test_the_hash_of_a_published_frame(item: dict[str, Any]) -> None:
    block = decode_update(bytes.fromhex(item["frame"]))
    found = block_hash(
        block.incarnation, bytes.fromhex(item["src_key_id"]), block.height, block.data_hash(OLD)
    )
    assert found.hex() == item["hash"]
    assert block.encode().hex() == item["frame"]


@pytest.mark.parametrize("item", FRAMES)
def test_frames_of_a_real_session_are_read_and_written_back(item: dict[str, Any]) -> None:
    block = decode_update(bytes.fromhex(item["frame"]))
    assert (block.source, block.height) == (item["src"], item["height"])
    assert block.incarnation.hex() == item["incarnation"]
    assert block.payload.hex() == item["payload"]
    assert block.signature.hex() == item["signature"]
    assert block.data_hash(OLD).hex() == item["data_hash"]
    previous = item["prev"]
    assert block.previous == Dependency(
        previous["src"], previous["height"], bytes.fromhex(previous["data_hash"]), b""
    )
    assert block.encode().hex() == item["frame"]


HASH = st.binary(min_size=32, max_size=32)
DEPENDENCY = st.builds(
    Dependency,
    st.integers(0, 20),
    st.integers(0, 1_000),
    HASH,
    st.binary(min_size=64, max_size=64) | st.just(b""),
)


@given(
    DEPENDENCY, st.lists(DEPENDENCY, max_size=4), st.binary(min_size=1, max_size=300), st.sampled_from([1, 2])
)
def test_other_means_give_the_same_hashes_in_both_versions(
    previous: Dependency, dependencies: list[Dependency], payload: bytes, version: int
) -> None:
    parts = [
        remp_oracle.dependency(one.source, one.height, one.data_hash, one.signature)
        for one in (previous, *dependencies)
    ]
    again = remp_oracle.catchain_data_hash(payload, parts[0], parts[1:], version)
    assert data_hash(payload, previous, dependencies, HashVersion(version)) == again
    assert block_id(bytes(32), bytes(32), 5, again) == remp_oracle.catchain_block_id(
        bytes(32), bytes(32), 5, again
    )
    block = Block(bytes(32), 1, 5, previous, tuple(dependencies), bytes(64), payload)
    assert decode_update(block.encode()) == block


@given(HASH, st.lists(HASH, max_size=25))
def test_the_id_of_a_graph_by_other_means(session: bytes, key_ids: list[bytes]) -> None:
    assert incarnation_of(session, key_ids) == remp_oracle.catchain_incarnation(session, key_ids)
