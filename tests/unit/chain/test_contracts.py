"""The contracts: each does what its name says, and refuses everything else with its own code."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.chain_messages import address
from stagepost.chain.accounts import EMPTY_ACCOUNT, SUPPLY_MAX, Account, Transfer
from stagepost.chain.configuration import CALL_WEIGHT_MAX
from stagepost.chain.contracts import (
    ALWAYS,
    BAD_BODY,
    NO_CONTRACT,
    NOT_FUNDED,
    PRIMES_UP_TO_MAX,
    TOO_LITTLE,
    CallResult,
    ContractKind,
    Rejection,
    primes_body,
    run,
    sum_in,
    sum_of_primes,
    transfer_body,
)

LIMIT = 50_000
HERE = address(ContractKind.BALANCE, 1)
THERE = address(ContractKind.BALANCE, 2)


def having(amount: int) -> Account:
    return msgspec.structs.replace(EMPTY_ACCOUNT, balance=amount)


@given(st.integers(0, 500))
def test_primes_are_added_up(up_to: int) -> None:
    naive = sum(one for one in range(2, up_to + 1) if all(one % other for other in range(2, one)))

    assert sum_of_primes(up_to) == naive


def test_a_sum_of_primes_takes_the_same_message_again_and_again() -> None:
    account, here = EMPTY_ACCOUNT, address(ContractKind.SUM_OF_PRIMES)
    for times in range(1, 4):
        outcome = run(here, account, primes_body(10), LIMIT)
        assert isinstance(outcome, CallResult)
        account = msgspec.structs.replace(account, memory=outcome.memory)
        assert sum_in(account.memory) == (17 * times, times)


def test_primes_have_a_greatest_number() -> None:
    here = address(ContractKind.SUM_OF_PRIMES)
    outcome = run(here, EMPTY_ACCOUNT, primes_body(PRIMES_UP_TO_MAX), LIMIT)

    assert isinstance(outcome, CallResult)
    assert outcome.weight <= CALL_WEIGHT_MAX
    assert run(here, EMPTY_ACCOUNT, primes_body(PRIMES_UP_TO_MAX + 1), LIMIT) == Rejection(BAD_BODY)


def test_a_transfer_takes_what_is_there_and_no_more() -> None:
    outcome = run(HERE, having(10), transfer_body(THERE, 10), LIMIT)

    assert isinstance(outcome, CallResult)
    assert (outcome.balance, outcome.transfers) == (0, (Transfer(THERE, 10),))
    assert run(HERE, having(10), transfer_body(THERE, 11), LIMIT) == Rejection(TOO_LITTLE)


@pytest.mark.parametrize("amount", [0, -1, -SUPPLY_MAX])
def test_a_transfer_of_nothing_or_less_is_no_transfer(amount: int) -> None:
    assert run(HERE, having(10), transfer_body(THERE, amount), LIMIT) == Rejection(BAD_BODY)


@pytest.mark.parametrize("kind", [ContractKind.BALANCE, ContractKind.SUM_OF_PRIMES])
@given(st.binary(max_size=80))
def test_any_other_body_is_rejected(kind: ContractKind, body: bytes) -> None:
    assert run(address(kind), having(10), body, LIMIT) == Rejection(BAD_BODY)


def test_one_always_rejects_as_the_documents_show_it() -> None:
    outcome = run(address(ContractKind.ALWAYS_REJECTS), having(1), b"please", LIMIT)

    assert outcome == Rejection(ALWAYS)
    assert isinstance(outcome, Rejection)
    assert outcome.text == "Contract rejected message with error code 52"


def test_one_rejects_until_it_is_funded_and_then_counts() -> None:
    here = address(ContractKind.UNTIL_FUNDED)

    assert run(here, EMPTY_ACCOUNT, b"", LIMIT) == Rejection(NOT_FUNDED)
    outcome = run(here, having(1), b"", LIMIT)
    assert isinstance(outcome, CallResult)
    assert (outcome.balance, int.from_bytes(outcome.memory, "little")) == (1, 1)


def test_a_heavy_one_weighs_a_whole_block() -> None:
    outcome = run(address(ContractKind.HEAVY), EMPTY_ACCOUNT, b"", LIMIT)

    assert isinstance(outcome, CallResult)
    assert outcome.weight == LIMIT


@pytest.mark.parametrize("last", [0, 6, 255])
def test_an_account_without_a_contract_rejects(last: int) -> None:
    assert run(bytes(31) + bytes([last]), having(5), b"", LIMIT) == Rejection(NO_CONTRACT)
