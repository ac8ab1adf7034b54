"""Payloads of the blocks that a leader proposes, and whether a block would have anything in it: messages,
commits, plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from stagepost.chain.agreement.effects import Propose
from stagepost.chain.configuration import Configuration, fault_in_change
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_state import MASTER_SHARD
from stagepost.chain.rotation import Plan, planned
from stagepost.remp.ledger import CollatedBlock, LedgerSession
from stagepost.remp.message import ExternalMessage

PASSED_MS = 2_000
"""Milliseconds after a message's expiry at which an idle shard gets the block that proves its end."""

IDLE_PAUSE_MS = 5_000
"""Milliseconds between the last block of a shard and one that is made for expired messages, at least."""

ROTATIONS_APART_MS = 5_000
"""Milliseconds, at most, from a key block that this validator proposes to the rotations before and after it; a quarter of a
session's life, if that is less."""

TRY_AGAIN_MS = 2_000
"""Milliseconds from a block of this validator with a configuration or plan that did not take effect to its next one; doubled with
each.
"""

TRY_AGAIN_MAX_MS = 10_000
"""Milliseconds of that pause, at most, for each validator of the set: while too few of them want a configuration or plan, the
others decline each block that carries it, and the block's slot is lost.
"""


class Collator(Protocol):
    """The source of messages for blocks."""

    def has_messages(self, session: LedgerSession) -> bool: ...

    def has_expired(self, session: LedgerSession, after_ms: int, until_ms: int) -> bool:
        """Return whether it knows of a message of the session's shard that expired after `after_ms` and no later than
        `until_ms`.
        """

    def take(self, session: LedgerSession) -> Iterable[ExternalMessage]:
        """Return messages in order; the caller reads while the block has room."""

    def collated(self, session: LedgerSession, collated: CollatedBlock) -> None:
        """Take the report on each message that the block maker read."""


class _Pauses:
    """Pauses between this validator's blocks that carry a wish: it does not know how many others share it."""

    def __init__(self) -> None:
        self._pause_ms = 0
        self._tried_ms = 0

    def end(self) -> None:
        self._pause_ms = 0

    def is_over(self, now_ms: int) -> bool:
        # A clock that was put back ends the pause.
        return not 0 <= now_ms - self._tried_ms < self._pause_ms

    def tried(self, validators: int, now_ms: int) -> None:
        """Note that this validator, of so many, has put its wish into a block."""
        self._pause_ms = min(max(TRY_AGAIN_MS, 2 * self._pause_ms), TRY_AGAIN_MAX_MS * validators)
        self._tried_ms = now_ms


class _WantedConfigurations:
    """Configurations that this validator proposes in turn."""

    def __init__(self) -> None:
        self._wanted: tuple[Configuration, ...] = ()
        self._turn = 0
        self._pauses = _Pauses()

    def replace(self, wanted: Sequence[Configuration]) -> None:
        """Propose these from now on; others than before are proposed at once."""
        if self._wanted != tuple(wanted):
            self._wanted, self._turn = tuple(wanted), 0
            self._pauses.end()

    def due(self, base: Configuration, now_ms: int) -> Configuration | None:
        """Return the one to propose now, of those that can follow `base`; None during a pause."""
        if not self._pauses.is_over(now_ms):
            return None
        turned = (*self._wanted[self._turn :], *self._wanted[: self._turn])
        return next((one for one in turned if fault_in_change(base, one) is None), None)

    def tried(self, configuration: Configuration, now_ms: int) -> None:
        """Note that this validator has put the configuration into a block."""
        self._turn = (self._wanted.index(configuration) + 1) % len(self._wanted)
        self._pauses.tried(len(configuration.current.validators), now_ms)


class BlockMaker:
    """`plans`: splits and merges that we propose until the masterchain takes them or they become impossible."""

    def __init__(self, ledger: EmbeddedLedger, collator: Collator | None) -> None:
        self.plans: list[Plan] = []
        self._plan_pauses = _Pauses()
        self._wanted = _WantedConfigurations()
        self._key_block = 0
        self._ledger = ledger
        self._collator = collator

    def payload(self, session: LedgerSession, asked: Propose, now_ms: int) -> bytes | None:
        """Return a block's payload; None if it would be empty, or if its parent cannot be built upon."""
        parent = asked.parent_hash
        if not asked.is_wanted and not self.is_wanted(session, parent, now_ms):
            return None
        if session.shard == MASTER_SHARD:
            configuration, plans = self._configuration_upon(parent, now_ms), self._plans_upon(parent, now_ms)
            payload = self._ledger.collate_master(
                session.session_id, parent, now_ms, plans=plans, configuration=configuration
            )
            if payload is not None and configuration is not None:
                self._wanted.tried(configuration, now_ms)
            if payload is not None and plans:
                self._plan_pauses.tried(len(self._ledger.master.configuration.current.validators), now_ms)
            return payload
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
            return (
                is_asked_for
                or self._ledger.is_block_wanted(session.session_id, parent)
                or self._is_time_to_pass(session, parent, now_ms)
            )
        if self._plans_upon(parent, now_ms) or self._configuration_upon(parent, now_ms) is not None:
            return True
        return self._ledger.is_master_block_wanted(now_ms, parent)

    def _is_time_to_pass(self, session: LedgerSession, parent: bytes, now_ms: int) -> bool:
        """Return whether an empty block is wanted because of the time alone: it proves the end of all messages that
        expired before it. Nobody outside can ask for one. Half of a session's life without a block wants one, too.
        """
        chain = self._ledger.chain(session.session_id)
        state = None if chain is None else chain.state_after(parent)
        if chain is None or state is None or now_ms < state.parent_ms + IDLE_PAUSE_MS:
            return False
        is_first = parent == session.session_id
        if is_first and now_ms >= (session.from_ms + session.ends_ms) // 2:
            return True
        collator = self._collator
        return collator is not None and collator.has_expired(session, state.parent_ms, now_ms - PASSED_MS)

    def propose_configurations(self, configurations: Sequence[Configuration]) -> None:
        """Propose these in turn until the masterchain changes to one of them, or to another one."""
        self._wanted.replace(configurations)
        self._key_block = self._ledger.master.last_key_block_seqno

    def forget_plans(self) -> None:
        """Forget the plans and the configuration that the masterchain has taken, or can never take."""
        master = self._ledger.master
        if master.last_key_block_seqno != self._key_block:
            self._wanted.replace(())
        possible = [plan for plan in self.plans if not isinstance(planned(master, [plan]), str)]
        if len(possible) < len(self.plans):
            self.plans[:] = possible
            self._plan_pauses.end()

    def _plans_upon(self, parent: bytes, now_ms: int) -> list[Plan]:
        state = self._ledger.following.master_after(parent)
        chosen: list[Plan] = []
        for plan in self.plans if self._plan_pauses.is_over(now_ms) else ():
            after = None if state is None else planned(state, [plan])
            if after is not None and not isinstance(after, str):
                chosen.append(plan)
                state = after
        return chosen

    def _configuration_upon(self, parent: bytes, now_ms: int) -> Configuration | None:
        """Return the configuration to propose upon `parent`; None in a pause, or where another rotation is near. A key block rotates, too, and
        queues close a message after two rotations. A session whose time is over ends with the key block.
        """
        state = self._ledger.following.master_after(parent)
        if state is None or state.last_key_block_seqno != self._key_block:
            return None
        wanted = self._wanted.due(state.configuration, now_ms)
        if wanted is None:
            return None
        apart_ms = min(ROTATIONS_APART_MS, state.configuration.master_lifetime_ms // 4)
        coming = (
            [state.session.ends_ms] if wanted.next is None else [state.session.ends_ms, wanted.next.from_ms]
        )
        is_near = now_ms < state.session.from_ms + apart_ms or any(
            0 < at - now_ms < apart_ms for at in coming
        )
        return None if is_near else wanted
