"""The graph: what is refused at sight, when a block is delivered, who is blamed for what."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import Block, Dependency, HashVersion, block_id, data_hash, root_reference
from stagepost.catchain.graph import Graph, GraphRules, State, Vertex
from stagepost.catchain.payloads import NOTHING, VECTOR_ID, ForkProof, proof_behind, upper_part
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Writer
from tests.worlds.catchain.members_world import verify_once

SIZE = 5
INCARNATION = bytes([7]) * 32
RULES = GraphRules(height_max=10)


def make_graph(rules: GraphRules = RULES) -> Graph:
    return Graph(INCARNATION, [public_key_of(one) for one in range(SIZE)], rules, verify=verify_once)


GRAPH = make_graph()
ROOT = root_reference(INCARNATION, SIZE)


def signed(
    source: int,
    previous: Dependency = ROOT,
    dependencies: Sequence[Dependency] = (),
    payload: bytes = b"something",
    version: HashVersion = HashVersion.WITH_REFERENCES,
) -> Block:
    height = previous.height + 1
    of_data = data_hash(payload, previous, dependencies, version)
    key_id = GRAPH.key_ids[source]
    signature = ed25519.sign(seed_of(source), block_id(INCARNATION, key_id, height, of_data))
    return Block(INCARNATION, source, height, previous, tuple(dependencies), signature, payload)


def ref(block: Block) -> Dependency:
    return block.reference(HashVersion.WITH_REFERENCES)


def receive(graph: Graph, *blocks: Block) -> tuple[list[Block], list[int]]:
    """Checked, received and stored, in this order; what was delivered and who was blamed."""
    delivered: list[Block] = []
    blamed: list[int] = []
    for block in blocks:
        assert graph.check(block) is None
        vertex, outcome = graph.receive(block)
        blamed += outcome.blamed
        outcome = graph.stored(vertex)
        delivered += [one.block for one in outcome.delivered if one.block is not None]
        blamed += outcome.blamed
    return delivered, blamed


def vertex_of(graph: Graph, block: Block) -> Vertex:
    found = graph.get(graph.hash_of(ref(block)))
    assert found is not None
    return found


# At sight

A1, B1, C1 = signed(0), signed(1), signed(2)
A2 = signed(0, ref(A1), [ref(B1)])


def changed(block: Block, **fields: Any) -> Block:
    return msgspec.structs.replace(block, **fields)


@pytest.mark.parametrize(
    ("rule", "block"),
    [
        ("WrongIncarnation", changed(A1, incarnation=bytes(32))),
        ("UnknownSource", changed(A1, source=SIZE)),
        ("UnknownSource", changed(A1, source=-1)),
        ("HeightOutOfRange", changed(A1, height=0)),
        ("HeightOutOfRange", changed(A1, height=11)),
        ("EmptyPayload", signed(0, payload=b"")),
        ("TooLarge", signed(0, payload=b"x" * (RULES.block_bytes_max + 1))),
        ("TooManyDependencies", signed(0, ROOT, [ref(signed(one)) for one in (1, 2, 3, 4)] + [ref(B1)])),
        ("WrongPrevious", changed(A2, previous=ref(B1))),
        ("WrongPrevious", changed(A2, previous=ROOT)),
        ("WrongPrevious", changed(A2, height=3)),
        ("WrongPrevious", changed(A1, previous=Dependency(SIZE, 0, bytes(32)))),
        ("RepeatedDependency", signed(0, ROOT, [ref(B1), ref(signed(1, ref(B1)))])),
        ("WrongDependency", signed(0, ref(A1), [ref(signed(0, ref(A1)))])),
        ("WrongDependency", signed(0, ROOT, [Dependency(SIZE, 1, bytes(32))])),
        ("WrongDependency", signed(0, ROOT, [Dependency(1, 0, bytes(32))])),
        ("ForgedDependency", signed(0, ROOT, [Dependency(1, 1, bytes(32), bytes(64))])),
        ("ForgedPrevious", signed(0, Dependency(0, 1, bytes(32), bytes(64)))),
        ("BadSignature", changed(A1, signature=bytes(64))),
        ("BadSignature", changed(A1, payload=b"something else")),
        ("BadSignature", changed(A2, dependencies=())),
    ],
)
def test_a_block_that_no_honest_member_sends_is_refused_by_name(rule: str, block: Block) -> None:
    refusal = make_graph().check(block)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text


def test_blocks_at_the_edge_of_every_limit_are_taken() -> None:
    four = [ref(signed(one)) for one in (1, 2, 3, 4)]
    assert GRAPH.check(signed(0, ROOT, four)) is None
    assert GRAPH.check(signed(0, payload=b"x" * RULES.block_bytes_max)) is None
    block = A1
    for _ in range(RULES.height_max - 1):
        block = signed(0, ref(block))
    assert block.height == RULES.height_max
    assert GRAPH.check(block) is None


def test_in_version_one_the_references_are_not_covered() -> None:
    old = make_graph(GraphRules(HashVersion.PAYLOAD_ONLY))
    block = signed(0, version=HashVersion.PAYLOAD_ONLY)
    assert old.check(block) is None
    reference = signed(1, version=HashVersion.PAYLOAD_ONLY).reference(HashVersion.PAYLOAD_ONLY)
    assert old.check(changed(block, dependencies=(reference,))) is None
    assert make_graph().check(block) is not None


# Delivery


def test_a_block_waits_for_everything_that_it_rests_on() -> None:
    graph = make_graph()
    b2 = signed(1, ref(B1), [ref(A2)])
    assert receive(graph, b2) == ([], [])
    assert [one.height for one in graph.missing_parents(vertex_of(graph, b2))] == [1, 2]
    assert receive(graph, A2) == ([], [])
    assert [one.hash for one in graph.missing_parents(vertex_of(graph, b2))] == [graph.hash_of(ref(B1))]
    below = [graph.hash_of(ref(one)) for one in (A1, B1)]
    assert [one.hash for one in graph.missing_parents(vertex_of(graph, A2))] == below
    assert receive(graph, A1) == ([A1], [])
    assert receive(graph, B1) == ([B1, A2, b2], [])
    assert graph.undelivered() == []


def test_what_waits_counts_as_received_up_to_the_first_gap() -> None:
    graph = make_graph()
    a3 = signed(0, ref(A2))
    receive(graph, a3)
    assert graph.received_height(0) == 0
    receive(graph, A1)
    assert (graph.top(0).height, graph.received_height(0)) == (1, 1)
    receive(graph, A2)
    assert (graph.top(0).height, graph.received_height(0)) == (1, 3), "they wait for a block of another"
    receive(graph, B1)
    assert (graph.top(0).height, graph.received_height(0)) == (3, 3)


def test_a_block_waits_for_the_disk_too() -> None:
    graph = make_graph()
    first, _ = graph.receive(A1)
    second, _ = graph.receive(signed(0, ref(A1)))
    assert graph.stored(second).delivered == []
    assert graph.stored(first).delivered == [first, second]


def test_the_same_block_twice_is_one() -> None:
    graph = make_graph()
    assert receive(graph, A1) == ([A1], [])
    vertex, outcome = graph.receive(A1)
    assert vertex is vertex_of(graph, A1)
    assert not outcome.delivered
    assert len(graph) == 1


def test_chains_and_heights_are_those_of_what_is_delivered() -> None:
    graph = make_graph()
    receive(graph, A1, signed(0, ref(signed(0, ref(A1)))))
    assert graph.delivered_height(0) == 1
    assert graph.top(0) is vertex_of(graph, A1)
    receive(graph, signed(0, ref(A1)))
    assert graph.delivered_height(0) == 3
    assert [one.height for one in graph.delivered(0, range(2, 9))] == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_delivers_the_same_blocks_causes_first(seed: int) -> None:
    """Forks, ill blocks and honest ones together: members that see all of it agree about each block."""
    random = Random(seed)
    blocks: list[Block] = []
    heads = dict.fromkeys(range(SIZE), ROOT)
    for number in range(30):
        source = random.randrange(SIZE)
        others = [one for one in range(SIZE) if one != source and heads[one] != ROOT]
        chosen = [heads[one] for one in random.sample(others, min(len(others), random.randrange(3)))]
        previous = heads[source]
        if source == 0 and number % 3 == 0 and blocks:
            previous = random.choice([ROOT, *[ref(one) for one in blocks if one.source == 0]])
        if previous.height >= RULES.height_max:
            continue
        block = signed(source, previous, chosen, b"%d" % number)
        blocks.append(block)
        heads[source] = ref(block)
    results = []
    for _ in range(3):
        graph = make_graph()
        shuffled = list(blocks)
        random.shuffle(shuffled)
        delivered, _ = receive(graph, *shuffled)
        seen = {graph.incarnation}
        for one in delivered:
            assert all(graph.hash_of(parent) in seen for parent in (one.previous, *one.dependencies))
            seen.add(graph.hash_of(ref(one)))
        states = {block.payload: vertex_of(graph, block).state for block in blocks}
        results.append((states, set(graph.blamed)))
    assert results[0] == results[1] == results[2]


# Forks


OTHER_A1 = signed(0, payload=b"something else")


def test_two_blocks_at_one_height_prove_a_fork() -> None:
    graph = make_graph()
    receive(graph, A1)
    delivered, blamed = receive(graph, OTHER_A1)
    assert blamed == [0]
    proof = graph.blamed[0]
    assert proof is not None
    assert proof.is_contradictory
    assert delivered == [OTHER_A1], "an honest member may have built on it before it knew"
    assert graph.delivered_height(0) == 0


def test_a_reference_is_proof_enough() -> None:
    graph = make_graph()
    receive(graph, A1)
    assert receive(graph, signed(1, ROOT, [ref(OTHER_A1)])) == ([], [0])


def test_whoever_built_on_different_branches_before_he_knew_is_not_blamed() -> None:
    graph = make_graph()
    b1, c1 = signed(1, ROOT, [ref(A1)]), signed(2, ROOT, [ref(OTHER_A1)])
    d1 = signed(3, ROOT, [ref(b1), ref(c1)])
    delivered, blamed = receive(graph, A1, OTHER_A1, b1, c1, d1)
    assert blamed == [0]
    assert delivered[-1] == d1


def test_a_proof_in_a_block_makes_everybody_blame_the_forker() -> None:
    proof = ForkProof(ref(A1), ref(OTHER_A1))
    graph = make_graph()
    delivered, blamed = receive(graph, signed(1, payload=proof.encode()))
    assert len(delivered) == 1
    assert blamed == [0]
    assert upper_part(proof.encode()) is None
    assert upper_part(NOTHING) is None


def test_a_proof_behind_a_payload_counts_like_one_alone_and_the_payload_is_for_the_parts_above() -> None:
    proof = ForkProof(ref(A1), ref(OTHER_A1))
    payload = proof_behind(b"records of the parts above", proof)
    graph = make_graph()
    delivered, blamed = receive(graph, signed(1, payload=payload))
    assert len(delivered) == 1
    assert blamed == [0]
    assert upper_part(payload) == b"records of the parts above"


FALSE_PARTS = (b"records", ForkProof(ref(A1), ref(A1)).encode())


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"records",),
        FALSE_PARTS,
        (b"records", b"no proof"),
        (NOTHING, ForkProof(ref(A1), ref(OTHER_A1)).encode()),
        (proof_behind(b"records", ForkProof(ref(A1), ref(OTHER_A1))), b"another vector"),
        (b"records", ForkProof(ref(A1), ref(OTHER_A1)).encode(), b"more"),
    ],
)
def test_a_vector_of_anything_else_is_ill(parts: tuple[bytes, ...]) -> None:
    writer = Writer()
    writer.write_constructor(VECTOR_ID)
    writer.write_vector_count(len(parts))
    for part in parts:
        writer.write_bytes(part)
    graph = make_graph()
    _, blamed = receive(graph, signed(1, payload=writer.written()))
    assert blamed == [1]
    assert parts is FALSE_PARTS or parts[1:] == (b"no proof",) or upper_part(writer.written()) is None


def test_building_on_a_forker_after_his_proof_is_ill_and_blamed() -> None:
    proof = ForkProof(ref(A1), ref(OTHER_A1))
    b1 = signed(1, payload=proof.encode())
    b2 = signed(1, ref(b1), [ref(A1)])
    graph = make_graph()
    _, blamed = receive(graph, A1, b1, b2)
    assert set(blamed) == {0, 1}
    assert vertex_of(graph, b2).state is State.ILL


def test_building_on_a_second_branch_is_ill() -> None:
    b1 = signed(1, ROOT, [ref(A1)])
    b2 = signed(1, ref(b1), [ref(OTHER_A1)])
    graph = make_graph()
    _, blamed = receive(graph, A1, OTHER_A1, b1, b2)
    assert set(blamed) == {0, 1}


@pytest.mark.parametrize(
    "proof",
    [
        ForkProof(ref(A1), ref(A1)),
        ForkProof(ref(A1), ref(B1)),
        ForkProof(ref(A1), ref(A2)),
        ForkProof(ref(A1), Dependency(0, 1, bytes(32), bytes(64))),
        ForkProof(Dependency(9, 1, bytes(32)), Dependency(9, 1, bytes([1]) * 32)),
    ],
)
def test_a_proof_that_proves_nothing_falls_back_on_its_author(proof: ForkProof) -> None:
    graph = make_graph()
    block = signed(1, payload=proof.encode())
    _, blamed = receive(graph, block)
    assert blamed == [1]
    assert make_graph().learn_fork(proof) is None


def test_a_proof_that_came_from_elsewhere_is_checked_and_believed() -> None:
    graph = make_graph()
    outcome = graph.learn_fork(ForkProof(ref(A1), ref(OTHER_A1)))
    assert outcome is not None
    assert outcome.blamed == [0]
    again = graph.learn_fork(ForkProof(ref(A1), ref(OTHER_A1)))
    assert again is not None
    assert again.blamed == []


# Ill blocks


def test_a_reference_to_what_the_authors_own_chain_covers_is_ill() -> None:
    graph = make_graph()
    b1 = signed(1, ROOT, [ref(A1)])
    b2 = signed(1, ref(b1), [ref(A1)])
    _, blamed = receive(graph, A1, b1, b2)
    assert vertex_of(graph, b2).state is State.ILL
    assert blamed == [1]


def test_whatever_rests_on_an_ill_block_is_ill_and_its_author_blamed() -> None:
    b1 = signed(1, ROOT, [ref(A1)])
    b2 = signed(1, ref(b1), [ref(A1)])
    c1 = signed(2, ROOT, [ref(b2)])
    d1 = signed(3, ROOT, [ref(c1)])
    for order in ([A1, b1, b2, c1, d1], [d1, c1, b2, b1, A1]):
        graph = make_graph()
        _, blamed = receive(graph, *order)
        assert set(blamed) == {1, 2, 3}
        assert {vertex_of(graph, one).state for one in (b2, c1, d1)} == {State.ILL}
        assert vertex_of(graph, b1).state is State.DELIVERED


def test_in_version_one_an_ill_block_blames_nobody_for_anybody_could_have_changed_it() -> None:
    old = HashVersion.PAYLOAD_ONLY
    graph = make_graph(GraphRules(old))
    a1 = signed(0, version=old)
    b1 = signed(1, ROOT, [a1.reference(old)], b"1", old)
    b2 = signed(1, b1.reference(old), [a1.reference(old)], b"2", old)
    _, blamed = receive(graph, a1, b1, b2)
    vertex = graph.get(graph.hash_of(b2.reference(old)))
    assert vertex is not None
    assert vertex.state is State.ILL
    assert blamed == []
