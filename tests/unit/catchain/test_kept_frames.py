"""A block is stored and sent as it came or was made: nobody encodes it again."""

from __future__ import annotations

from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import Block
from stagepost.catchain.effects import Effect, Persist, Send
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import Member, MemberOptions
from tests.worlds.catchain.members_world import verify_once


def member_of(index: int, payload: bytes) -> Member:
    graph = Graph(bytes([7]) * 32, [public_key_of(one) for one in range(4)], GraphRules(), verify=verify_once)
    options = MemberOptions(start_wait_s=0.0)
    return Member(graph, index, seed_of(index), lambda is_due, account: payload, Random(1), 0.0, options)


def only(effects: list[Effect], kind: type[Persist]) -> Persist:
    (found,) = [one for one in effects if isinstance(one, kind)]
    return found


def test_a_block_is_encoded_once_by_its_author_and_never_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Block] = []
    encode = Block.encode

    def counting(block: Block) -> bytes:
        encoded.append(block)
        return encode(block)

    monkeypatch.setattr(Block, "encode", counting)
    author, other = member_of(0, b"what is said"), member_of(1, b"")
    author.tick(0.0)
    written = only(author.speak_soon(1.0), Persist)
    sent = [one for one in author.stored(written.block_hash, 1.0) if isinstance(one, Send)]
    assert [one.peer for one in sent] == [1, 2, 3]
    assert {one.frame for one in sent} == {written.frame}
    kept = only(other.frame_received(0, sent[0].frame, 1.0), Persist)
    assert kept.frame is sent[0].frame
    assert not kept.is_own
    assert len(encoded) == 1
