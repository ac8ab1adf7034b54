"""The contracts of the embedded chain: pure functions from an account and a message's body to their outcome.

The last byte of an account names its contract: so an account needs no deployment, and anybody can tell which
contract a message will meet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from stagepost.chain.accounts import SUPPLY_MAX, Account, Transfer
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

CALL_WEIGHT = 100
PRIMES_UP_TO_MAX = 10_000
FUNDED_FROM = 1

NO_CONTRACT = 11
BAD_BODY = 9
TOO_LITTLE = 37
NO_WAY = 38
NOT_FUNDED = 40
ALWAYS = 52

TRANSFER_ID = constructor_id(
    "stagepost.chain.transfer account:int256 amount:long salt:long = stagepost.chain.Body"
)
PRIMES_ID = constructor_id("stagepost.chain.sumOfPrimes up_to:int = stagepost.chain.Body")
_UINT64 = 1 << 64


class ContractKind(IntEnum):
    SUM_OF_PRIMES = 1  # adds up; takes the same message again and again, if nobody keeps it from that
    BALANCE = 2  # sends what it has
    ALWAYS_REJECTS = 3
    UNTIL_FUNDED = 4  # rejects while it has nothing, then counts
    HEAVY = 5  # fills a block by itself


class CallResult(msgspec.Struct, frozen=True):
    """The account's balance and memory after a call. `weight` counts towards the block's limit."""

    balance: int
    memory: bytes
    weight: int
    transfers: tuple[Transfer, ...] = ()


CODE_WORDS = {
    NO_CONTRACT: "no contract at this address",
    BAD_BODY: "the body is not for this contract",
    TOO_LITTLE: "no funds",
    NO_WAY: "no way to the recipient",
    NOT_FUNDED: "not funded yet",
    ALWAYS: "this contract refuses everything",
}
"""Words for the error codes of the embedded chain's contracts."""


class Rejection(msgspec.Struct, frozen=True):
    code: int

    @property
    def text(self) -> str:
        return f"Contract rejected message with error code {self.code}"


Outcome: TypeAlias = CallResult | Rejection
Contract: TypeAlias = Callable[[Account, bytes, int], Outcome]
"""Function of the account, the body and the greatest weight of a block."""


def run(address: bytes, account: Account, body: bytes, weight_max: int) -> Outcome:
    contract = CONTRACTS.get(address[-1])
    return Rejection(NO_CONTRACT) if contract is None else contract(account, body, weight_max)


def transfer_body(account: bytes, amount: int, salt: int = 0) -> bytes:
    writer = Writer()
    writer.write_constructor(TRANSFER_ID)
    writer.write_int256(account)
    writer.write_long(amount)
    writer.write_long(salt)
    return writer.written()


def primes_body(up_to: int) -> bytes:
    writer = Writer()
    writer.write_constructor(PRIMES_ID)
    writer.write_unsigned_int(up_to)
    return writer.written()


def sum_in(memory: bytes) -> tuple[int, int]:
    """Return the sum that a sum-of-primes account remembers, and the number of messages that made it."""
    if not memory:
        return 0, 0
    return int.from_bytes(memory[:8], "little"), int.from_bytes(memory[8:], "little")


@lru_cache(maxsize=PRIMES_UP_TO_MAX)
def sum_of_primes(up_to: int) -> int:
    is_prime = bytearray([1]) * (up_to + 1)
    total = 0
    for number in range(2, up_to + 1):
        if is_prime[number]:
            total += number
            is_prime[number * number :: number] = bytes(len(range(number * number, up_to + 1, number)))
    return total


def _sum_of_primes(account: Account, body: bytes, weight_max: int) -> Outcome:
    try:
        reader = Reader(body)
        reader.read_constructor(PRIMES_ID)
        up_to = reader.read_unsigned_int()
        reader.expect_end()
    except DecodeError:
        return Rejection(BAD_BODY)
    if up_to > PRIMES_UP_TO_MAX:
        return Rejection(BAD_BODY)
    total, count = sum_in(account.memory)
    total = (total + sum_of_primes(up_to)) % _UINT64
    memory = total.to_bytes(8, "little") + (count + 1).to_bytes(8, "little")
    return CallResult(account.balance, memory, CALL_WEIGHT + up_to // 10)


def _balance(account: Account, body: bytes, weight_max: int) -> Outcome:
    try:
        reader = Reader(body)
        reader.read_constructor(TRANSFER_ID)
        destination, amount = reader.read_int256(), reader.read_long()
        reader.read_long()
        reader.expect_end()
    except DecodeError:
        return Rejection(BAD_BODY)
    if not 0 < amount <= SUPPLY_MAX:
        return Rejection(BAD_BODY)
    if amount > account.balance:
        return Rejection(TOO_LITTLE)
    transfer = Transfer(destination, amount)
    return CallResult(account.balance - amount, account.memory, CALL_WEIGHT, (transfer,))


def _always_rejects(account: Account, body: bytes, weight_max: int) -> Outcome:
    return Rejection(ALWAYS)


def _until_funded(account: Account, body: bytes, weight_max: int) -> Outcome:
    if account.balance < FUNDED_FROM:
        return Rejection(NOT_FUNDED)
    count = int.from_bytes(account.memory, "little") + 1
    return CallResult(account.balance, count.to_bytes(8, "little"), CALL_WEIGHT)


def _heavy(account: Account, body: bytes, weight_max: int) -> Outcome:
    count = int.from_bytes(account.memory, "little") + 1
    return CallResult(account.balance, count.to_bytes(8, "little"), weight_max)


CONTRACTS: dict[int, Contract] = {
    ContractKind.SUM_OF_PRIMES: _sum_of_primes,
    ContractKind.BALANCE: _balance,
    ContractKind.ALWAYS_REJECTS: _always_rejects,
    ContractKind.UNTIL_FUNDED: _until_funded,
    ContractKind.HEAVY: _heavy,
}
