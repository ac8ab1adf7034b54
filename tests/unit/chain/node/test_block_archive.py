"""The archive of a chain: memory that does not grow, blocks that a joining node still gets, proofs that go on from a snapshot."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from rigs.agreement_keys import certified_by_all, public_key_of
from rigs.chain_messages import some_primes
from rigs.validator_processes import until
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.session import Session
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import KeptBlock
from stagepost.chain.master_block import MASTER_BLOCK_ID
from stagepost.chain.node import block_archive
from stagepost.chain.node.block_archive import ARCHIVE_FILE
from stagepost.chain.node.final_proof import final_block, kept_block
from stagepost.chain.node.follower import ARCHIVE_READS_MAX, ChainFollower, SnapshotKeeper
from stagepost.chain.node.following_messages import BLOCKS_MAX, GetFinals, decode_finals
from stagepost.chain.node.reading import show_chain
from stagepost.chain.node.store import ChainStore, open_chain_store
from stagepost.chain.proofs.proof_making import SealBook, SealedMaster
from stagepost.chain.snapshots import restored
from stagepost.errors import StorageError
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.storage import sqlite_file
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.ledger import MasterApplied
from tests.unit.chain.node.test_chain_store import a_genesis
from tests.worlds.chain.chain_replay import replay
from tests.worlds.chain.chain_world import DecidedChain

GENESIS = a_genesis("archive")
ROUNDS = 220
"""Master blocks: about forty sessions of the masterchain, more than twice the catchains that a message may live."""


class ArchivedChain(DecidedChain):
    """A chain with real certificates in a store, as a full node keeps it. `everything`: its blocks, whatever the store holds;
    `sealed`: the master blocks whose seals this life made."""

    def __init__(self, store: ChainStore, genesis: Genesis = GENESIS) -> None:
        super().__init__(genesis)
        self.store = store
        self.everything: list[KeptBlock] = []
        self.sealed: list[SealedMaster] = []
        self.seals = SealBook(genesis, store.snapshot())
        self.ledger = restored(genesis, store, None, lambda kept, _: self._seal(kept))
        self.now_ms = max(self.now_ms, self.ledger.master.time_ms)
        self._keeper = SnapshotKeeper(store, self.seals)
        self._tops: dict[bytes, tuple[bytes, int]] = {}
        for one in store.blocks():
            self._tops[one.session_id] = one.candidate, final_block(one).candidate.slot

    def _seal(self, kept: KeptBlock) -> None:
        self.sealed += self.seals.take(final_block(kept))

    def finalise(self, session: bytes, payload: bytes) -> None:
        members = {one.session_id: one for one in (self.ledger.master_session(), *self.ledger.sessions())}
        parent, slot = self._tops.get(session, (session, 0))
        candidate = Candidate(slot + 1, parent, payload)
        self._tops[session] = candidate.hash, slot + 1
        kept = kept_block(
            certified_by_all(Session(session, members[session].public_keys, session), candidate)
        )
        self.everything.append(kept)
        self.ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)

    async def grow(self, rounds: int) -> None:
        for number in range(rounds):
            self.shard_block(self.whole.session_id, [some_primes(number, salt=self.now_ms)])
            configuration = None
            if number == rounds // 3:
                before = self.ledger.master.configuration
                configuration = msgspec.structs.replace(before, proof_window_ms=before.proof_window_ms + 1)
            for event in self.master_block(configuration=configuration, after_ms=300):
                if isinstance(event, MasterApplied) and event.started:
                    self._keeper.session_rotated(self.ledger)
            await asyncio.sleep(0.001)


def with_chain(
    folder: Path, act: Callable[[ArchivedChain], Awaitable[None]], *, keep_ms: int | None = None
) -> ArchivedChain:
    async def main() -> ArchivedChain:
        store = open_chain_store(folder, GENESIS, has_archive=True, archive_keep_ms=keep_ms)
        chain = ArchivedChain(store)
        store.begin()
        try:
            await act(chain)
        finally:
            await store.close()
        return chain

    return asyncio.run(main())


def grown(folder: Path, rounds: int = ROUNDS, keep_ms: int | None = None) -> ArchivedChain:
    return with_chain(folder, lambda chain: chain.grow(rounds), keep_ms=keep_ms)


def rows(folder: Path) -> int:
    with sqlite3.connect(folder / ARCHIVE_FILE) as connection:
        count = connection.execute("SELECT count(*) FROM blocks").fetchone()[0]
    return int(count)


def sessions_of(chain: ArchivedChain) -> dict[bytes, list[KeptBlock]]:
    found: dict[bytes, list[KeptBlock]] = {}
    for kept in chain.everything:
        found.setdefault(kept.session_id, []).append(kept)
    return found


async def answered(follower: ChainFollower, *places: tuple[bytes, int]) -> list[bytes]:
    """Return the candidates that the follower gives to a node that asks for these places."""
    reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    follower.asked(0, GetFinals(places).encode(), reply.set_result)
    return [one.record for one in decode_finals(await reply).blocks]


def a_follower(store: ChainStore) -> ChainFollower:
    keys = [public_key_of(number) for number in range(5)]
    seals = SealBook(GENESIS, store.snapshot())
    return ChainFollower(GENESIS, store, keys, keys[4], SystemClock(), Random(1), seals=seals)


def test_memory_holds_a_few_catchains_and_the_archive_all_before(tmp_path: Path) -> None:
    async def act(chain: ArchivedChain) -> None:
        await chain.grow(ROUNDS)
        await until(lambda: len(list(chain.store.blocks())) < ROUNDS, "the archive has taken the old blocks")

    chain = with_chain(tmp_path, act)
    held = list(chain.store.blocks())
    assert len(chain.everything) == 2 * ROUNDS
    assert rows(tmp_path) + len(held) >= len(chain.everything)
    again = open_chain_store(tmp_path, GENESIS, has_archive=True)
    assert len(list(again.blocks())) == len(held)

    async def close() -> None:
        await again.close()

    asyncio.run(close())
    shown = show_chain(tmp_path)
    assert shown.faults == []
    assert shown.from_snapshot is not None


def test_a_joining_node_gets_every_block_from_the_genesis_on(tmp_path: Path) -> None:
    chain = grown(tmp_path)

    async def act() -> None:
        store = open_chain_store(tmp_path, GENESIS, has_archive=True)
        follower = a_follower(store)
        found: list[bytes] = []
        for session_id, blocks in sessions_of(chain).items():
            records = await answered(follower, (session_id, 1))
            assert records == [final_block(one).encode() for one in blocks][:BLOCKS_MAX]
            found += records
        assert len(found) == len(chain.everything)
        await follower.store.close()

    asyncio.run(act())
    played = replay(GENESIS, [kept.payload for kept in chain.everything])
    assert played.master.hash == chain.ledger.master.hash


def test_sessions_in_memory_and_in_the_archive_come_in_one_answer(tmp_path: Path) -> None:
    chain = grown(tmp_path)
    sessions = list(sessions_of(chain).items())
    (old, old_blocks), (new, new_blocks) = sessions[0], sessions[-1]

    async def act() -> None:
        store = open_chain_store(tmp_path, GENESIS, has_archive=True)
        assert not store.of_session(old)
        assert store.of_session(new)
        records = await answered(a_follower(store), (new, 1), (old, 2))
        assert records == [final_block(one).encode() for one in (*new_blocks, *old_blocks[1:])]
        await store.close()

    asyncio.run(act())


def test_no_more_answers_than_the_limit_wait_for_the_archive(tmp_path: Path) -> None:
    chain = grown(tmp_path)
    old = chain.everything[0].session_id

    async def act() -> None:
        store = open_chain_store(tmp_path, GENESIS, has_archive=True)
        follower = a_follower(store)
        at_once = [asyncio.create_task(answered(follower, (old, 1))) for _ in range(ARCHIVE_READS_MAX + 1)]
        found = [len(one) for one in await asyncio.gather(*at_once)]
        assert found.count(0) == 1
        assert await answered(follower, (old, 1))
        await store.close()

    asyncio.run(act())


def test_seals_go_on_from_a_snapshot_as_if_made_from_the_genesis(tmp_path: Path) -> None:
    first = grown(tmp_path)
    second = grown(tmp_path, rounds=30)
    whole = SealBook(GENESIS)
    expected = {
        one.block_id: one
        for kept in (*first.everything, *second.everything)
        if kept.payload[:4] == constructor_bytes(MASTER_BLOCK_ID)
        for one in whole.take(final_block(kept))
    }
    assert second.store.snapshot() is not None
    assert len(whole.key_blocks) == 2
    assert second.seals.newest == whole.newest
    assert second.seals.key_blocks == whole.key_blocks
    assert len(second.sealed) >= 30
    assert all(expected[one.block_id] == one for one in second.sealed)
    assert len(second.sealed) < len(expected)


def test_a_store_without_a_checkpoint_lets_go_of_nothing(tmp_path: Path) -> None:
    async def act(chain: ArchivedChain) -> None:
        chain._keeper = SnapshotKeeper(chain.store)
        await chain.grow(ROUNDS)
        assert len(list(chain.store.blocks())) == len(chain.everything)

    with_chain(tmp_path, act)
    assert rows(tmp_path) == 0


def test_a_store_of_a_node_that_makes_no_proofs_archives_without_a_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_chain_store(tmp_path, GENESIS, has_archive=True, makes_proofs=False)
        chain = ArchivedChain(store)
        chain._keeper = SnapshotKeeper(store)
        store.begin()
        await chain.grow(ROUNDS)
        await until(lambda: len(list(store.blocks())) < ROUNDS, "the archive has taken the old blocks")
        old = chain.everything[0].session_id
        assert not store.of_session(old)
        assert await store.read_archive(old, 0, BLOCKS_MAX, 1 << 20)
        await store.close()

    asyncio.run(main())


def test_blocks_go_from_the_archive_after_the_time_that_they_are_kept(tmp_path: Path) -> None:
    kept_for_ever = grown(tmp_path / "all")
    short = grown(tmp_path / "short", keep_ms=10_000)
    assert 0 < rows(tmp_path / "short") < rows(tmp_path / "all")
    assert short.ledger.master.hash == kept_for_ever.ledger.master.hash
    second = grown(tmp_path / "short", rounds=2, keep_ms=10_000)
    assert second.seals.key_blocks.items() >= kept_for_ever.seals.key_blocks.items()


def test_one_write_removes_so_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_archive, "ROWS_PRUNED_AT_ONCE", 1)
    grown(tmp_path / "one", keep_ms=10_000)
    monkeypatch.undo()
    grown(tmp_path / "all", keep_ms=10_000)
    assert rows(tmp_path / "all") < rows(tmp_path / "one")


def test_blocks_stay_in_the_store_while_the_archive_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[StorageError] = []

    async def refused(chain: ArchivedChain) -> None:
        chain.store.on_error = faults.append

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(sqlite_file.SqliteFile, "run", full)
            await chain.grow(ROUNDS)
            assert "disk is full" in faults[0].text
            assert chain.store.fault is faults[-1]
            assert len(list(chain.store.blocks())) == len(chain.everything)
        await chain.grow(20)
        await until(lambda: len(list(chain.store.blocks())) < ROUNDS, "the archive has taken the old blocks")
        assert chain.store.fault is None

    chain = with_chain(tmp_path, refused)
    assert rows(tmp_path) + len(list(chain.store.blocks())) >= len(chain.everything)


def test_a_kill_between_archive_and_store_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            ChainStore, "_archived", lambda *_: None
        )  # the process ends before it hears of the write
        first = grown(tmp_path)
    assert rows(tmp_path) > 0

    async def act(chain: ArchivedChain) -> None:
        await chain.grow(ROUNDS)
        await until(
            lambda: len(list(chain.store.blocks())) < 2 * ROUNDS, "the archive has taken the old blocks"
        )

    second = with_chain(tmp_path, act)
    assert second.sealed
    everything = first.everything + second.everything
    assert replay(GENESIS, [one.payload for one in everything]).master.hash == second.ledger.master.hash


def test_a_damaged_row_ends_the_answer_before_it(tmp_path: Path) -> None:
    chain = grown(tmp_path)
    session_id = chain.everything[0].session_id
    with sqlite3.connect(tmp_path / ARCHIVE_FILE) as connection:
        connection.execute(
            "UPDATE blocks SET content = zeroblob(length(content)) WHERE session = ? AND place = 1",
            (session_id,),
        )

    async def act() -> None:
        store = open_chain_store(tmp_path, GENESIS, has_archive=True)
        assert len(await answered(a_follower(store), (session_id, 1))) == 1
        assert await answered(a_follower(store), (session_id, 2)) == []
        assert await answered(a_follower(store), (session_id, 3))
        await store.close()

    asyncio.run(act())


def test_a_damaged_archive_is_set_aside_and_reported(tmp_path: Path) -> None:
    grown(tmp_path)
    (tmp_path / ARCHIVE_FILE).write_bytes(b"not a database, and long enough for a header" * 40)
    second = grown(tmp_path, rounds=3)
    (sentence,) = second.store.damage
    assert ARCHIVE_FILE in sentence
    assert "damaged" in sentence
    aside = [one.name for one in tmp_path.iterdir() if one.name.startswith(f"{ARCHIVE_FILE}.damaged")]
    assert len(aside) == 1
    assert second.sealed


def test_an_archive_of_another_layout_is_refused_untouched(tmp_path: Path) -> None:
    grown(tmp_path, rounds=2)
    with sqlite3.connect(tmp_path / ARCHIVE_FILE) as connection:
        connection.execute("ALTER TABLE blocks ADD COLUMN further INTEGER")
    connection.close()
    content = (tmp_path / ARCHIVE_FILE).read_bytes()
    with pytest.raises(StorageError, match=block_archive.WHAT):
        open_chain_store(tmp_path, GENESIS, has_archive=True)
    assert (tmp_path / ARCHIVE_FILE).read_bytes() == content
    open_chain_store(tmp_path, GENESIS)  # the folder's lock was let go
