"""Shares of submitters: their edges, what is given back, and one greedy submitter beside others at a full node."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from rigs.chain_messages import SIMULATED_EXPIRY_S, address
from stagepost.chain.contracts import ContractKind
from stagepost.chain.messages import CanonicalMessage
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.staged_sending import BLOCKS_MAX, SubmitterShares
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.sessions import member_ids
from tests.unit.full_node.test_remp_full_node import Desk, at_a_desk, primes


def has_room(shares: SubmitterShares, submitter: str) -> bool:
    before = shares.refused
    with suppress(StagepostError):
        shares.check(submitter)
    return shares.refused == before


def fill(shares: SubmitterShares, submitter: str, blocks: float = 1.0) -> int:
    """Let `submitter` take what it gets; return how many messages that are."""
    taken = 0
    while has_room(shares, submitter):
        shares.take(submitter, f"{submitter} {len(shares._charged)}".encode(), blocks)
        taken += 1
    return taken


def test_a_single_submitter_gets_half_and_each_later_one_half_of_the_rest() -> None:
    shares = SubmitterShares(blocks_max=32, messages_max=1_000)
    assert [fill(shares, name) for name in ("a", "b", "c", "d", "e", "f")] == [16, 8, 4, 2, 1, 1]
    assert shares.total.blocks == 32
    assert not has_room(shares, "g")
    assert has_room(shares, ""), "the node's own process has no limit"


def test_greedy_submitters_that_come_again_and_again_have_equal_parts() -> None:
    shares = SubmitterShares(blocks_max=32, messages_max=1_000)
    random = Random(26)
    names = ("a", "b", "c")
    taken: list[tuple[str, bytes]] = []
    for number in range(3_000):
        name = random.choice(names)
        if has_room(shares, name):
            message_id = b"%d" % number
            shares.take(name, message_id, 1.0)
            taken.append((name, message_id))
        if number % 3 == 0 and taken:
            shares.give_back(taken.pop(0)[1])
    assert {shares.charge_of(name).messages for name in names} <= {7, 8, 9}


def test_the_number_of_messages_is_shared_by_the_same_rule() -> None:
    shares = SubmitterShares(blocks_max=32, messages_max=10)
    assert [fill(shares, name, 0.0) for name in ("a", "b", "c")] == [5, 3, 1]


def test_what_is_given_back_is_free_and_nobody_stays_in_the_books() -> None:
    shares = SubmitterShares(blocks_max=4, messages_max=100)
    for number in range(2):
        shares.take("a", bytes([number]), 1.0)
    assert not has_room(shares, "a")
    shares.take("a", bytes([0]), 1.0)
    shares.take("b", bytes([0]), 1.0)
    assert shares.total.messages == 2, "a message is charged once"
    shares.give_back(bytes([0]))
    shares.give_back(bytes([0]))
    assert has_room(shares, "a")
    shares.give_back(bytes([1]))
    assert (len(shares), shares.total.messages, shares.total.blocks) == (0, 0, 0.0)


def heavy(number: int) -> bytes:
    account = address(ContractKind.HEAVY, number)
    return CanonicalMessage(account, b"%d" % number, SIMULATED_EXPIRY_S).encode()


def heavy_from(desk: Desk, submitter: str, numbers: range) -> list[bytes]:
    """Submit messages that fill a block each; return those that the node takes."""
    codes: dict[int, ErrorCode] = {}
    for number in numbers:
        try:
            desk.node.submit(heavy(number), submitter=submitter)
        except StagepostError as error:
            codes[number] = error.code
    assert set(codes.values()) <= {ErrorCode.QUEUE_FULL}
    return [heavy(number) for number in numbers if number not in codes]


def test_1500_costly_messages_of_one_submitter_leave_a_few_blocks_of_backlog() -> None:
    def scenario(desk: Desk) -> None:
        taken = heavy_from(desk, "uid:1000", range(1_500))
        assert len(taken) == BLOCKS_MAX / 2, "each fills a block"
        assert desk.node.shares.refused == 1_500 - len(taken)
        assert desk.node.receive(primes(5), submitter="uid:1001").refused is None
        with pytest.raises(StagepostError) as again:
            desk.node.submit(taken[0], submitter="uid:1000")
        assert again.value.code is ErrorCode.MSG_DUPLICATE, "its first sending goes on"

    at_a_desk(scenario)


def test_a_message_that_is_final_makes_room_for_another_of_its_submitter() -> None:
    def scenario(desk: Desk) -> None:
        taken = heavy_from(desk, "uid:1000", range(20))
        desk.in_a_final_block(taken[0])
        more = heavy_from(desk, "uid:1000", range(20, 40))
        assert len(more) == 1

    at_a_desk(scenario)


def test_a_message_that_all_members_refuse_makes_room() -> None:
    def scenario(desk: Desk) -> None:
        taken = heavy_from(desk, "uid:1000", range(20))
        message_id = desk.node.id_of(taken[0])
        for member in sorted(member_ids(desk.chain.whole.facts)):
            receipt = Receipt(
                ExternalMessageId(message_id), Rejected(Level.QUEUE, "no"), desk.node.now_ms, member
            )
            assert desk.node.shares.charge_of("uid:1000").messages == len(taken)
            desk.node._receipt_checked(receipt, None)
        assert desk.node.shares.charge_of("uid:1000").messages == len(taken) - 1

    at_a_desk(scenario)


def test_a_message_that_cannot_be_sent_is_charged_to_nobody() -> None:
    def scenario(desk: Desk) -> None:
        desk.node.sending._options = type(desk.node.sending._options)(messages_max=0)
        with pytest.raises(StagepostError):
            desk.node.submit(primes(5), submitter="uid:1000")
        assert len(desk.node.shares) == 0

    at_a_desk(scenario)
