"""Messages for a devnet: distinct sums of primes to accounts of all shards, followed until each has its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec

from stagepost.chain.contracts import PRIMES_UP_TO_MAX, ContractKind, primes_body, sum_in, sum_of_primes
from stagepost.chain.messages import MessageDraft
from stagepost.devnet.devnet import Devnet
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Status
from stagepost.remp.verdict.verdict import Conclusion, verdict

ACCOUNTS = 16
MESSAGES_MAX = ACCOUNTS * (PRIMES_UP_TO_MAX - 2)
LIFE_S = 600
"""Seconds from the sending of a message to its expiry: longer than validators keep one that is not final."""

LOOK_EVERY_S = 0.1
SHOWN_WITHIN_S = 20.0
CLOSING = frozenset({Status.REJECTED, Status.TIMEOUT})
ENDS = frozenset(
    one.value
    for one in (
        Conclusion.FINALIZED,
        Conclusion.REJECTED_BY_FULLNODE,
        Conclusion.REJECTED,
        Conclusion.EXPIRED,
    )
)


class SumMessage(msgspec.Struct, frozen=True):
    account: bytes
    up_to: int

    def data(self, now_ms: int) -> bytes:
        """Return the bytes of the message as it is first sent at `now_ms`, in Unix milliseconds."""
        return MessageDraft(self.account, primes_body(self.up_to), LIFE_S).stamped(now_ms).encode()


def account_of(run: bytes, number: int) -> bytes:
    """Return an account. Accounts stand in all parts of the address space, so every shard has some."""
    inner = sha256(run + number.to_bytes(4, "big")).digest()
    first = (number * 256 // ACCOUNTS).to_bytes(1, "big")
    return first + inner[1:31] + bytes([ContractKind.SUM_OF_PRIMES])


class StatusBook:
    """Every receipt, by message, as it comes."""

    def __init__(self) -> None:
        self.receipts: dict[bytes, list[Receipt]] = {}
        self.final: set[bytes] = set()

    def __call__(self, receipt: Receipt) -> None:
        self.receipts.setdefault(receipt.message_id, []).append(receipt)
        if receipt.kind.name == "Finalized":
            self.final.add(receipt.message_id)


class DevnetMessages:
    """`wrong_sums`: accounts that hold something else than the sum of the final messages to them, each
    counted once.
    """

    def __init__(self, network: Devnet, book: StatusBook, count: int) -> None:
        self._network = network
        self._book = book
        run = f"{network.plan.seed} {network.front.height}".encode()
        self.messages = [
            SumMessage(account_of(run, number % ACCOUNTS), 2 + number // ACCOUNTS) for number in range(count)
        ]
        self._sums: dict[bytes, SumMessage] = {}
        self._began_ms = network.front.now_ms

    async def send(self, per_second: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number, message in enumerate(self.messages):
            ahead_s = begun + number / per_second - loop.time()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            self._sums[await self._network.front.submit(message.data(self._network.front.now_ms))] = message

    async def ends(self, progress: Callable[[int], None] = lambda ended: None) -> None:
        """Return when every message is final, refused, or out of time."""
        open_ids = set(self._sums)
        while open_ids:
            open_ids -= self._book.final
            for message_id in [one for one in open_ids if self._may_be_over(one)]:
                if self._verdict(message_id) in ENDS:
                    open_ids.remove(message_id)
            progress(len(self._sums) - len(open_ids))
            if open_ids:
                await asyncio.sleep(LOOK_EVERY_S)
        await self._shown()

    async def _shown(self) -> None:
        """Wait until the sums are right, at most `SHOWN_WITHIN_S`: a final state may reach the disk that
        another process reads a moment later.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + SHOWN_WITHIN_S
        while self.wrong_sums() and loop.time() < until:
            await asyncio.sleep(LOOK_EVERY_S)

    def verdicts(self) -> Mapping[str, int]:
        return Counter(self._verdict(message_id) for message_id in self._sums)

    def wrong_sums(self) -> list[str]:
        wanted: dict[bytes, tuple[int, int]] = {}
        for message_id, message in self._sums.items():
            total, count = wanted.get(message.account, (0, 0))
            if message_id in self._book.final:
                total, count = total + sum_of_primes(message.up_to), count + 1
            wanted[message.account] = total, count
        found: list[str] = []
        for there, (account, sum_and_count) in zip(
            self._network.front.accounts(list(wanted)), wanted.items(), strict=True
        ):
            has = (0, 0) if there is None else sum_in(there.memory)
            if has != sum_and_count:
                found.append(f"account {account.hex()} holds {has}, its final messages make {sum_and_count}")
        return found

    def _may_be_over(self, message_id: bytes) -> bool:
        """Return, cheaply, whether any validator has closed the message, or nothing was heard of it for as
        long as it lives.
        """
        receipts = self._book.receipts.get(message_id, ())
        return any(receipt.kind.status in CLOSING for receipt in receipts) or self._is_silent(message_id)

    def _is_silent(self, message_id: bytes) -> bool:
        receipts = self._book.receipts.get(message_id, ())
        last_ms = max((receipt.timestamp_ms for receipt in receipts), default=self._began_ms)
        return self._network.front.now_ms - last_ms > self._network.plan.message_timeout_s * 1_000

    def _verdict(self, message_id: bytes) -> str:
        if message_id in self._book.final:
            return Conclusion.FINALIZED.value
        front = self._network.front
        found = verdict(self._book.receipts.get(message_id, ()), front.sets, front.now_ms)
        if found is not None:
            return found.verdict
        # A message without any receipt has no verdict, and must not be waited for for ever.
        return Conclusion.EXPIRED.value if self._is_silent(message_id) else Conclusion.SENT.value
