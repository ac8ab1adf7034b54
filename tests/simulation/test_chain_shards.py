"""Splits, merges and session switches under load: no account has two shards, nothing is lost, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stagepost.chain import execution, master_blocks, rotation, shard_state, snapshots
from stagepost.chain.accounts import Account
from stagepost.chain.contracts import CallResult
from stagepost.chain.execution import Execution
from stagepost.chain.following import FollowedChain
from stagepost.chain.history import KeptSession
from stagepost.chain.master_state import ShardEntry
from stagepost.chain.shard_state import Due
from stagepost.remp.ledger import CandidateLost, CandidateRefused, ShardDropped
from tests.worlds.chain.chain_load import run_once

SEEDS = 2
CHANGES = 50
SEEDS_TRIED = 3


@pytest.mark.parametrize("number", range(SEEDS))
def test_every_message_counts_once_through_fifty_changes(number: int, run_seed: int) -> None:
    """A failure names its own seed, and `run_once(seed)` repeats it."""
    seed = run_seed + number
    print(f"seed {seed}")
    chain = run_once(seed, CHANGES)

    assert chain.seen_bits >= 3
    assert min(chain.splits, chain.merges, chain.switches_of_session) > 0


def test_blocks_came_to_nothing_in_every_way() -> None:
    chain = run_once(1, CHANGES)

    assert all(chain.returned[kind] for kind in (CandidateLost, CandidateRefused, ShardDropped))


# The runs can fail


def forgets_what_was_taken(patch: pytest.MonkeyPatch) -> None:
    def note(
        self: Any, address: bytes, account: Account, ran: CallResult, places: object, inclusion: object
    ) -> None:
        self._changed[address] = Account(ran.balance, ran.memory, account.recent)
        self.transfers += ran.transfers

    patch.setattr(Execution, "_note", note)


def never_forgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(execution, "is_forgotten", lambda *_: False)


def credits_again(patch: pytest.MonkeyPatch) -> None:
    right = shard_state.dues_between
    patch.setattr(
        execution, "dues_between", lambda dues, after, up_to, shard: right(dues, after - 1, up_to, shard)
    )


def credits_nothing_when_a_session_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_state, "credited", lambda accounts, transfers: accounts)


def gives_both_halves_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_state, "part_of", lambda accounts, shard: accounts)


def merges_one_half_alone(patch: pytest.MonkeyPatch) -> None:
    right = rotation.sources_of
    patch.setattr(rotation, "sources_of", lambda shard, entries: right(shard, entries)[:1])


def lets_transfers_go_too_early(patch: pytest.MonkeyPatch) -> None:
    def still_due(dues: tuple[Due, ...], shards: tuple[ShardEntry, ...]) -> tuple[Due, ...]:
        newest = max(source.credited_to for entry in shards for source in entry.sources)
        return tuple(due for due in dues if due.master_seqno > newest)

    patch.setattr(master_blocks, "still_due", still_due)


def says_nothing_of_dropped_blocks(patch: pytest.MonkeyPatch) -> None:
    def close(self: Any, session: bytes) -> None:
        self.chains.pop(session)
        self._end(session)

    patch.setattr(FollowedChain, "_close", close)


def starts_from_blocks_that_were_dropped(patch: pytest.MonkeyPatch) -> None:
    """What the masterchain has not taken stays in the state of the session that follows."""
    right = FollowedChain._close

    def close(self: Any, session: bytes) -> None:
        chain = self.chains[session]
        for _, applied in chain.final:
            self.states[applied.block.previous[0]] = msgspec.structs.replace(
                applied.state, previous=applied.block.previous
            )
        right(self, session)

    patch.setattr(FollowedChain, "_close", close)


def keeps_no_place_in_its_snapshot(patch: pytest.MonkeyPatch) -> None:
    """After a restart every session seems to be without blocks."""
    patch.setattr(
        snapshots, "KeptSession", lambda session, base, previous: KeptSession(session, session, previous)
    )


DEFECTS = (
    forgets_what_was_taken,
    never_forgets,
    credits_again,
    credits_nothing_when_a_session_starts,
    gives_both_halves_everything,
    merges_one_half_alone,
    lets_transfers_go_too_early,
    says_nothing_of_dropped_blocks,
    starts_from_blocks_that_were_dropped,
    keeps_no_place_in_its_snapshot,
)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_TRIED + 1):
        try:
            run_once(seed, CHANGES)
        except (AssertionError, ValueError):
            return  # a check failed, or no state is left that a session could start from
    pytest.fail(f"{SEEDS_TRIED} runs found nothing wrong")
