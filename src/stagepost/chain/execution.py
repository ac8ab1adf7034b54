"""Execution of messages upon a state, one after the other: the collator and the validators that check it use
the same code.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stagepost.chain.accounts import EMPTY_ACCOUNT, Account, Inclusion, Transfer, uid_place
from stagepost.chain.configuration import Configuration
from stagepost.chain.contracts import NO_WAY, CallResult, Rejection, run
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.hash_tree import HashTree
from stagepost.chain.message_values import NEVER, ReadMessage
from stagepost.chain.shard_state import Due, ShardState, TakenMessages, dues_between, is_forgotten
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.remp.shard import BlockId

DUES_MAX = 100_000
"""Transfers under way, of all shards together, from which on no contract sends further ones."""


class MasterView(msgspec.Struct, frozen=True):
    """A final master block, as shard blocks refer to it: they are made in its view. `sessions` are at work
    after it.

    `dues` may be those of a later block: a transfer that has been credited for good is needed no more.
    """

    block_id: BlockId
    catchain_seqno: int
    time_ms: int
    sessions: frozenset[bytes]
    is_crowded: bool
    dues: tuple[Due, ...]

    @property
    def seqno(self) -> int:
        return self.block_id.seqno


def are_crowded(dues: Iterable[Due]) -> bool:
    return sum(len(due.transfers) for due in dues) >= DUES_MAX


class Execution:
    """The execution of one block. Transfers that are due are credited first, so that a message can spend
    them.
    """

    def __init__(
        self, start: ShardState, configuration: Configuration, view: MasterView, time_ms: int
    ) -> None:
        self._start = start
        self._configuration = configuration
        self._view = view
        self._time_ms = time_ms
        self._changed: dict[bytes, Account] = {}
        self._places: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        self._count = 0
        self.weight = 0
        self.transfers: list[Transfer] = []
        for transfer in dues_between(view.dues, start.master_seqno, view.seqno, start.shard):
            account = self._account(transfer.account)
            self._changed[transfer.account] = msgspec.structs.replace(
                account, balance=account.balance + transfer.amount
            )

    def take(self, message: ReadMessage) -> DeclinedCandidate | None:
        """Execute a message. Return None if it was executed; otherwise the reason, and nothing has changed."""
        external = message.external
        fault = self._fault_before_running(message)
        if fault is not None:
            return fault
        account = self._account(external.account)
        places: tuple[bytes, ...] = (external.message_id,)
        if self._configuration.guards_uids:
            places += (uid_place(external.uid),)
        if any(account.recent.get(place) is not None for place in places):
            return DeclinedCandidate(
                Rule.REPLAY,
                f"message {external.message_id.hex()} was included before, or one with its body",
                (external.message_id,),
            )
        outcome = run(external.account, account, message.content, self._configuration.limits.weight_max)
        if isinstance(outcome, CallResult) and outcome.transfers and self._view.is_crowded:
            outcome = Rejection(NO_WAY)
        if isinstance(outcome, Rejection):
            return DeclinedCandidate(Rule.REJECTED_BY_CONTRACT, outcome.text)
        limit = self._configuration.limits.weight_max
        if self.weight + outcome.weight > limit:
            return _over_limit("weight", self.weight + outcome.weight, limit)
        inclusion = Inclusion(external.message_id, self._view.catchain_seqno, self._time_ms)
        self._note(external.account, account, outcome, places, inclusion)
        self._bytes += len(external.body)
        self._count += 1
        return None

    @property
    def fullness(self) -> float:
        """Return the part of a block's limits that the executed messages take, by the limit that they reach first."""
        limits = self._configuration.limits
        return max(
            self.weight / limits.weight_max, self._bytes / limits.bytes_max, self._count / limits.messages_max
        )

    def finished(self) -> ShardState:
        """Return the state after the block; the caller adds the id of the block."""
        start = self._start
        recent, remembers_from_ms = self._still_remembered()
        if self._places:
            places = tuple(sorted(self._places))
            recent.append(TakenMessages(self._view.catchain_seqno, self._time_ms, places))
        accounts = start.accounts
        for address, account in self._changed.items():
            accounts = _with(accounts, address, account)
        return ShardState(
            start.shard,
            start.seqno + 1,
            (),
            self._time_ms,
            self._view.seqno,
            accounts,
            tuple(recent),
            remembers_from_ms,
            self._time_ms,
        )

    def _still_remembered(self) -> tuple[list[TakenMessages], int]:
        """Return what is remembered after the block, without what it adds, and from when on."""
        start, catchain_seqno = self._start, self._view.catchain_seqno
        kept: list[TakenMessages] = []
        from_ms = start.remembers_from_ms
        for number, taken in enumerate(start.recent):
            if taken.catchain_seqno + CATCHAINS_OF_LIFE > catchain_seqno:
                return kept + list(start.recent[number:]), from_ms  # all others are younger
            if is_forgotten(taken, catchain_seqno, start.parent_ms, self._configuration.remembered_ms):
                from_ms = max(from_ms, taken.time_ms + 1)
                for address, place in taken.places:
                    account = self._account(address)
                    recent = account.recent.without(place)
                    self._changed[address] = msgspec.structs.replace(account, recent=recent)
            else:
                kept.append(taken)
        return kept, from_ms

    def _account(self, address: bytes) -> Account:
        return self._changed.get(address) or self._start.accounts.get(address) or EMPTY_ACCOUNT

    def _fault_before_running(self, message: ReadMessage) -> DeclinedCandidate | None:
        external, limits = message.external, self._configuration.limits
        if not self._start.shard.holds(external.workchain, external.account):
            shard = f"{self._start.shard.workchain}:{self._start.shard.prefix:016x}"
            return DeclinedCandidate(
                Rule.WRONG_SHARD,
                f"message {external.message_id.hex()} goes to account "
                f"{external.workchain}:{external.account.hex()}, which is not in shard {shard}",
            )
        if self._count >= limits.messages_max:
            return _over_limit("messages", self._count + 1, limits.messages_max)
        if self._bytes + len(external.body) > limits.bytes_max:
            return _over_limit("bytes of messages", self._bytes + len(external.body), limits.bytes_max)
        expires_at_ms = message.expires_at_s * 1_000
        if message.expires_at_s == NEVER and self._configuration.must_expire:
            return DeclinedCandidate(
                Rule.EXPIRED,
                f"message {external.message_id.hex()} never expires, and this network takes only messages that do",
            )
        if message.expires_at_s != NEVER:
            if expires_at_ms <= self._time_ms:
                return DeclinedCandidate(
                    Rule.EXPIRED,
                    f"message {external.message_id.hex()} expired at {message.expires_at_s}, "
                    f"the block is of {self._time_ms / 1_000:.3f}",
                )
            if expires_at_ms > self._time_ms + self._configuration.expiry_ahead_max_ms:
                return DeclinedCandidate(
                    Rule.EXPIRED,
                    f"message {external.message_id.hex()} expires at {message.expires_at_s}, more than "
                    f"{self._configuration.expiry_ahead_max_ms / 1_000:.0f} s after the block",
                )
        return None

    def _note(
        self,
        address: bytes,
        account: Account,
        ran: CallResult,
        places: tuple[bytes, ...],
        inclusion: Inclusion,
    ) -> None:
        recent = account.recent
        for place in places:
            recent = recent.with_value(place, inclusion)
            self._places.append((address, place))
        self._changed[address] = Account(ran.balance, ran.memory, recent)
        self.weight += ran.weight
        self.transfers += ran.transfers


def _with(accounts: HashTree[Account], address: bytes, account: Account) -> HashTree[Account]:
    return accounts.without(address) if account.is_empty else accounts.with_value(address, account)


def _over_limit(what: str, found: int, limit: int) -> DeclinedCandidate:
    return DeclinedCandidate(Rule.OVER_LIMIT, f"{found} {what} in a block; at most {limit} are allowed")
