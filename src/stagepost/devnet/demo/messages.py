"""Messages of the demonstration, all from one seed: many that end well, and some that each end badly in their
way; and a count of those that have ended, by which a bounded number is under way at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from hashlib import sha256
from random import Random

import msgspec

from stagepost.chain.contracts import PRIMES_UP_TO_MAX, ContractKind, primes_body, transfer_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.errors import ConfigError, ErrorCode, LocalProtocolError, StagepostError
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level, Status

MESSAGES_MIN = 20
MESSAGES_MAX = 5_000
ACCOUNTS = 16
FUNDS = 10
"""Balance of each account that is to be spent twice."""

_PER = 200
_TWINS, _SPENT_TWICE, _REFUSED, _CUT_OFF = 4, 2, 3, 5
"""Messages of 200, and at least one of each kind."""


class Fate(Enum):
    """The purpose that a message is made for; its receipts say what becomes of it."""

    GOOD = "good"
    TWIN = "the same body for the same account, twice: one of the two is taken"
    SPENT_TWICE = "two transfers of all that an account has: the contract lets one of them pass"
    REFUSED = "a contract that takes nothing, as the full node finds out by itself"
    CUT_OFF = "sent when too few validators are left to agree"


class DemoMessage(msgspec.Struct, frozen=True):
    data: bytes
    fate: Fate

    @property
    def message_id(self) -> bytes:
        return sha256(self.data).digest()


class DemoMessages(msgspec.Struct, frozen=True):
    """`groups` are sent in their order, the messages of a group at the same moment; `cut_off` after all of
    them.
    """

    groups: tuple[tuple[DemoMessage, ...], ...]
    cut_off: tuple[DemoMessage, ...]
    balances: tuple[tuple[bytes, int], ...]

    @property
    def count(self) -> int:
        return sum(map(len, self.groups)) + len(self.cut_off)


def demo_messages(count: int, seed: int, expires_at_s: int) -> DemoMessages:
    """Return the messages of a demonstration. All expire at `expires_at_s`, in Unix seconds."""
    if not MESSAGES_MIN <= count <= MESSAGES_MAX:
        raise ConfigError(
            f"the demonstration has {MESSAGES_MIN} to {MESSAGES_MAX} messages, not {count}",
            advice="give another number of messages",
            limit=MESSAGES_MAX,
            found=count,
        )
    pairs = [_twins(seed, number, expires_at_s) for number in range(_share(_TWINS, count))]
    funded = [_account(seed, number, ContractKind.BALANCE) for number in range(_share(_SPENT_TWICE, count))]
    pairs += [_spent_twice(seed, account, expires_at_s) for account in funded]
    refused = [_refused(seed, number, expires_at_s) for number in range(_share(_REFUSED, count))]
    cut_off = [
        _good(seed, count + number, Fate.CUT_OFF, expires_at_s) for number in range(_share(_CUT_OFF, count))
    ]
    good_count = count - 2 * len(pairs) - len(refused) - len(cut_off)
    good = [_good(seed, number, Fate.GOOD, expires_at_s) for number in range(good_count)]
    groups = [(message,) for message in good + refused] + pairs
    Random(f"{seed} order").shuffle(groups)
    return DemoMessages(tuple(groups), tuple(cut_off), tuple((account, FUNDS) for account in funded))


def _share(of_200: int, count: int) -> int:
    return max(1, of_200 * count // _PER)


def _account(seed: int, number: int, kind: ContractKind) -> bytes:
    """Return an account. Accounts stand in all parts of the address space."""
    inner = sha256(f"stagepost demo {seed} {kind.name} {number}".encode()).digest()
    return (number % ACCOUNTS * 256 // ACCOUNTS).to_bytes(1, "big") + inner[1:31] + bytes([kind])


def _good(seed: int, number: int, fate: Fate, expires_at_s: int) -> DemoMessage:
    account = _account(seed, number % ACCOUNTS, ContractKind.SUM_OF_PRIMES)
    up_to = 2 + number // ACCOUNTS
    if up_to > PRIMES_UP_TO_MAX:
        raise LocalProtocolError(
            f"message {number} asks for primes up to {up_to}, at most {PRIMES_UP_TO_MAX} are summed",
            limit=PRIMES_UP_TO_MAX,
            found=up_to,
        )
    return DemoMessage(CanonicalMessage(account, primes_body(up_to), expires_at_s).encode(), fate)


def _twins(seed: int, number: int, expires_at_s: int) -> tuple[DemoMessage, ...]:
    account = _account(seed, ACCOUNTS + number, ContractKind.SUM_OF_PRIMES)
    body = primes_body(2)
    return tuple(
        DemoMessage(CanonicalMessage(account, body, expires_at_s, salt).encode(), Fate.TWIN)
        for salt in (1, 2)
    )


def _spent_twice(seed: int, account: bytes, expires_at_s: int) -> tuple[DemoMessage, ...]:
    heirs = [_account(seed, ACCOUNTS + number, ContractKind.BALANCE) for number in range(2)]
    return tuple(
        DemoMessage(
            CanonicalMessage(account, transfer_body(heir, FUNDS), expires_at_s).encode(), Fate.SPENT_TWICE
        )
        for heir in heirs
    )


def _refused(seed: int, number: int, expires_at_s: int) -> DemoMessage:
    account = _account(seed, number, ContractKind.ALWAYS_REJECTS)
    return DemoMessage(CanonicalMessage(account, primes_body(2), expires_at_s, number).encode(), Fate.REFUSED)


class MessageWatch:
    """Messages that are under way. Ends are: final, refused by the full node, or refused or given up by two
    thirds of the validators.
    """

    def __init__(self, validators: int) -> None:
        self.listeners: list[Callable[[Receipt], None]] = []
        self._closing = -(-2 * validators // 3)
        self._open: set[bytes] = set()
        self._over: set[bytes] = set()
        self._closed_by: dict[bytes, set[bytes]] = {}
        self._timed_out: set[bytes] = set()
        self._change = asyncio.Event()

    def follow(self, message_id: bytes) -> None:
        if message_id not in self._over:
            self._open.add(message_id)

    def heard(self, receipt: Receipt) -> None:
        kind, message_id = receipt.kind, receipt.message_id
        is_closing = kind.status in (Status.REJECTED, Status.TIMEOUT)
        if kind.status is Status.TIMEOUT:
            self._timed_out.add(message_id)
        if is_closing:
            self._closed_by.setdefault(message_id, set()).add(receipt.source_id)
        if (
            kind.name == "Finalized"
            or (is_closing and kind.level is Level.FULLNODE)
            or len(self._closed_by.get(message_id, ())) >= self._closing
        ):
            self._over.add(message_id)
            self._open.discard(message_id)
        self._change.set()
        for listener in self.listeners:
            listener(receipt)

    async def room_for(self, count: int, window: int, within_s: float) -> None:
        await self._until(lambda: len(self._open) + count <= window, within_s)

    async def ends(self, within_s: float) -> None:
        await self._until(lambda: not self._open, within_s)

    async def timeouts(self, message_ids: set[bytes], within_s: float) -> None:
        """Wait until a validator has given up each message. If none does in time, that is no fault: silence
        is an answer, too.
        """
        try:
            await self._until(lambda: message_ids <= self._timed_out, within_s)
        except StagepostError:
            return

    async def _until(self, is_so: Callable[[], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            raise StagepostError(
                f"{len(self._open)} messages have not ended after {within_s:g} s",
                code=ErrorCode.NOT_READY,
                advice="use more processors, or give fewer --messages",
            ) from None
