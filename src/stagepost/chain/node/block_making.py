"""Payloads of the blocks that a leader proposes, and whether a block would have anything in it: messages,
commits, plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stagepost.chain.agreement.effects import Propose
from stagepost.chain.configuration import Configuration
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_state import MASTER_SHARD
from stagepost.chain.rotation import Plan, planned
from stagepost.remp.ledger import CollatedBlock, LedgerSession
from stagepost.remp.message import ExternalMessage


class Collator(Protocol):
    """The source of messages for blocks."""

    def has_messages(self, session: LedgerSession) -> bool: ...

    def take(self, session: LedgerSession) -> Iterable[ExternalMessage]:
        """Return messages in order; the caller reads while the block has room."""

    def collated(self, session: LedgerSession, collated: CollatedBlock) -> None:
        """Take the report on each message that the block maker read."""


class BlockMaker:
    """`plans`: splits and merges that we propose until the masterchain takes them or they become impossible."""

    def __init__(self, ledger: EmbeddedLedger, collator: Collator | None) -> None:
        self.plans: list[Plan] = []
        self._configuration: Configuration | None = None
        self._key_block = 0
        self._ledger = ledger
        self._collator = collator

    def payload(self, session: LedgerSession, asked: Propose, now_ms: int) -> bytes | None:
        """Return a block's payload; None if it would be empty, or if its parent cannot be built upon."""
        parent = asked.parent_hash
        if not asked.is_wanted and not self.is_wanted(session, parent, now_ms):
            return None
        if session.shard == MASTER_SHARD:
            return self._ledger.collate_master(
                session.session_id,
                parent,
                now_ms,
                plans=self._plans_upon(parent),
                configuration=self._configuration_upon(parent),
            )
        collator = self._collator
        messages = () if collator is None else collator.take(session)
        collated = self._ledger.collate(session.session_id, parent, messages, now_ms)
        if collated is None:
            return None
        if collator is not None:
            collator.collated(session, collated)
        return collated.payload

    def is_wanted(self, session: LedgerSession, parent: bytes, now_ms: int) -> bool:
        """Return whether a block upon `parent` would have something in it."""
        if session.shard != MASTER_SHARD:
            is_asked_for = self._collator is not None and self._collator.has_messages(session)
            return is_asked_for or self._ledger.is_block_wanted(session.session_id, parent)
        if self._plans_upon(parent) or self._configuration_upon(parent) is not None:
            return True
        return self._ledger.is_master_block_wanted(now_ms, parent)

    def propose_configuration(self, configuration: Configuration) -> None:
        """Propose `configuration` until the masterchain changes to it, or to another one."""
        self._configuration = configuration
        self._key_block = self._ledger.master.last_key_block_seqno

    def forget_plans(self) -> None:
        """Forget the plans and the configuration that the masterchain has taken, or can never take."""
        master = self._ledger.master
        if master.last_key_block_seqno != self._key_block:
            self._configuration = None
        self.plans[:] = [plan for plan in self.plans if not isinstance(planned(master, [plan]), str)]

    def _plans_upon(self, parent: bytes) -> list[Plan]:
        state = self._ledger.following.master_after(parent)
        chosen: list[Plan] = []
        for plan in self.plans:
            after = None if state is None else planned(state, [plan])
            if after is not None and not isinstance(after, str):
                chosen.append(plan)
                state = after
        return chosen

    def _configuration_upon(self, parent: bytes) -> Configuration | None:
        state = self._ledger.following.master_after(parent)
        is_over = state is None or state.last_key_block_seqno != self._key_block
        return None if is_over else self._configuration
