"""The chain on a real disk: what a restart finds, what goes when, and what is refused by name."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rigs.agreement_keys import certified_by_all, public_key_of
from rigs.chain_messages import some_primes
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.effects import Record
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet
from stagepost.chain.genesis import Genesis
from stagepost.chain.node.final_proof import PENDING_MAX, Proof, kept_block
from stagepost.chain.node.reading import chain_folders, show_chain
from stagepost.chain.node.store import STORE_FILE, ChainStore, open_chain_store
from stagepost.chain.snapshots import restored, snapshot_of
from stagepost.cli.chain import chain as chain_command
from stagepost.errors import StorageError
from stagepost.ground.files.owner_lock import LockConflict
from tests.worlds.chain.chain_world import START_MS, DecidedChain

SIZE = 4


def a_genesis(name: str = "store") -> Genesis:
    keys = [public_key_of(number) for number in range(SIZE)]
    members = tuple(ChainValidator(key, sha256(key).digest()) for key in keys)
    configuration = Configuration(
        ValidatorSet(START_MS, START_MS + 86_400_000, members),
        master_lifetime_ms=2_000,
        shard_lifetime_ms=2_000,
    )
    return Genesis(name, START_MS, configuration)


class CertifiedChain(DecidedChain):
    """A chain whose blocks have real certificates, kept in a store."""

    def __init__(self, genesis: Genesis, store: ChainStore) -> None:
        super().__init__(genesis)
        self.ledger = restored(genesis, store)
        self._tops: dict[bytes, tuple[bytes, int]] = {}

    def finalise(self, session: bytes, payload: bytes, kind: VoteKind = VoteKind.FINALISE) -> None:
        ledger = self.ledger
        members = {one.session_id: one for one in (ledger.master_session(), *ledger.sessions())}[session]
        parent, slot = self._tops.get(session, (session, 0))
        candidate = Candidate(slot + 1, parent, payload)
        self._tops[session] = candidate.hash, slot + 1
        kept = kept_block(certified_by_all(Session(session, members.public_keys, session), candidate, kind))
        ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)

    def grow(self, count: int) -> None:
        for number in range(count):
            self.shard_block(self.whole.session_id, [some_primes(number, salt=self.now_ms)])
            self.master_block(after_ms=300)


def with_store(folder: Path, act: Callable[[ChainStore], None], *, keeps_all: bool = True) -> None:
    async def main() -> None:
        store = open_chain_store(folder, a_genesis(), keeps_all=keeps_all)
        store.begin()
        try:
            act(store)
            await asyncio.sleep(0)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_restart_finds_the_same_chain_and_goes_on(tmp_path: Path) -> None:
    states: list[bytes] = []

    def first(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        grown.grow(6)
        states.append(grown.ledger.master.hash)

    def second(store: ChainStore) -> None:
        assert store.damage == ()
        ledger = restored(a_genesis(), store)
        states.append(ledger.master.hash)
        session = ledger.following.final_blocks[0]
        assert session.messages != ()

    with_store(tmp_path, first)
    with_store(tmp_path, second)
    assert states[0] == states[1]


def test_what_was_said_goes_with_the_block_that_makes_it_useless(tmp_path: Path) -> None:
    session: list[bytes] = []

    def first(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        session.append(grown.whole.session_id)
        records = [Record(slot, b"slot %d" % slot) for slot in (1, 2, 3)] + [Record(None, b"evidence")]
        store.put_records(session[0], records, lambda: None)
        store.put_records(b"o" * 32, records[:1], lambda: None)
        grown.shard_block(session[0], [])
        grown.shard_block(session[0], [])

    def second(store: ChainStore) -> None:
        assert store.load_records(session[0]) == [b"slot 3", b"evidence"]
        assert store.load_records(b"o" * 32) == [b"slot 1"]
        assert sorted(store.sessions) == sorted([session[0], b"o" * 32])
        store.end_session(session[0])

    def third(store: ChainStore) -> None:
        assert store.sessions == [b"o" * 32]

    for act in (first, second, third):
        with_store(tmp_path, act)


def test_the_archive_gives_the_first_block_of_a_slot_or_later(tmp_path: Path) -> None:
    def act(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        session = grown.whole.session_id
        for _ in range(3):
            grown.shard_block(session, [])
        kept = store.of_session(session)
        assert [Proof.decode(one.certificate).certificate.slot for one in kept] == [1, 2, 3]
        for slot, place in ((0, 0), (1, 0), (2, 1), (3, 2)):
            record = store.archived(session, slot)
            assert record is not None
            assert kept[place].payload in record
        assert store.archived(session, 4) is None
        assert store.archived(b"o" * 32, 1) is None

    with_store(tmp_path, act)


def test_a_snapshot_takes_the_place_of_sessions_that_had_ended(tmp_path: Path) -> None:
    states: list[bytes] = []

    def first(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        grown.grow(30)
        before = len(list(store.blocks()))
        store.keep_snapshot(snapshot_of(grown.ledger))
        after = len(list(store.blocks()))
        assert after < before / 2
        grown.grow(2)
        states.append(grown.ledger.master.hash)

    def second(store: ChainStore) -> None:
        states.append(restored(a_genesis(), store).master.hash)

    with_store(tmp_path, first, keeps_all=False)
    with_store(tmp_path, second, keeps_all=False)
    assert states[0] == states[1]
    shown = show_chain(tmp_path)
    assert shown.from_snapshot is not None
    assert shown.faults == []
    assert shown.master_state_hash == states[0].hex()


def test_another_genesis_is_refused_by_name(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: CertifiedChain(a_genesis(), store).grow(1))
    with pytest.raises(StorageError, match="the chain in the data folder is store"):
        open_chain_store(tmp_path, a_genesis("another"))
    with_store(tmp_path, lambda store: None)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    def act(store: ChainStore) -> None:
        with pytest.raises(LockConflict):
            open_chain_store(tmp_path, a_genesis())

    with_store(tmp_path, act)


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / STORE_FILE) as connection:
        connection.execute(statement)
    connection.close()


def test_a_damaged_block_and_those_that_rest_on_it_are_left_out_and_named(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: CertifiedChain(a_genesis(), store).grow(5))
    change(tmp_path, "UPDATE blocks SET content = zeroblob(9) WHERE key = 3")

    def act(store: ChainStore) -> None:
        assert any("blocks" in sentence for sentence in store.damage)
        ledger = restored(a_genesis(), store)
        assert ledger.master.seqno == 1

    shown = CliRunner().invoke(chain_command, ["show", "--data", str(tmp_path)], standalone_mode=False)
    assert shown.exception is None
    assert shown.return_value == 1
    assert "a row of blocks was set aside" in shown.output
    assert "final blocks are left out: those before them are missing" in shown.output
    with_store(tmp_path, act)


def test_show_names_a_certificate_that_does_not_hold(tmp_path: Path) -> None:
    def act(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        grown.grow(2)
        kept = grown.ledger.following.kept
        assert isinstance(kept, ChainStore)
        session = grown.whole.session_id
        (first, *_) = store.of_session(session)
        proof = Proof.decode(first.certificate)
        forged = msgspec.structs.replace(
            proof.certificate,
            signatures=tuple((who, bytes(64)) for who, _ in proof.certificate.signatures),
        )
        bad = msgspec.structs.replace(proof, certificate=forged).encode()
        row = msgspec.structs.replace(first, certificate=bad)
        store._writer.soon(lambda book: book.put_block(1, row, ()))

    with_store(tmp_path, act)
    shown = show_chain(tmp_path)
    assert [fault for fault in shown.faults if "is not its own" in fault] != []
    result = CliRunner().invoke(chain_command, ["show", "--data", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 1


def test_a_block_whose_proof_is_a_later_one_that_was_not_written_is_told_and_is_no_fault(
    tmp_path: Path,
) -> None:
    """A process may be stopped between the two: then the last block has the certificate of its votes alone."""

    def act(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        grown.grow(2)
        vars(grown)["finalise"] = partial(grown.finalise, kind=VoteKind.NOTARISE)
        grown.shard_block(grown.whole.session_id, [some_primes(9, salt=grown.now_ms)])

    with_store(tmp_path, act)
    shown = show_chain(tmp_path)
    assert shown.faults == []
    assert [one.unproved for one in shown.sessions if one.unproved] == [1]
    result = CliRunner().invoke(chain_command, ["show", "--data", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 0
    assert "all hold; the last 1 wait for theirs" in result.output


@pytest.mark.parametrize(("count", "is_fault"), [(PENDING_MAX, False), (PENDING_MAX + 1, True)])
def test_more_unproved_blocks_than_agreement_leaves_open_are_a_fault(
    tmp_path: Path, count: int, is_fault: bool
) -> None:
    def act(store: ChainStore) -> None:
        grown = CertifiedChain(a_genesis(), store)
        grown.grow(1)
        vars(grown)["finalise"] = partial(grown.finalise, kind=VoteKind.NOTARISE)
        for number in range(count):
            grown.shard_block(grown.whole.session_id, [some_primes(number, salt=grown.now_ms)])

    with_store(tmp_path, act)
    shown = show_chain(tmp_path)
    assert ["have no proof that they are final" in fault for fault in shown.faults] == [True] * is_fault
    assert sum(one.unproved for one in shown.sessions) == (0 if is_fault else count)


def test_show_prints_shards_sessions_and_certificates_of_every_folder(tmp_path: Path) -> None:
    for name in ("validator-0", "validator-1"):
        with_store(tmp_path / name, lambda store: CertifiedChain(a_genesis(), store).grow(8))
    assert [folder.name for folder in chain_folders(tmp_path)] == ["validator-0", "validator-1"]
    result = CliRunner().invoke(chain_command, ["show", "--data", str(tmp_path)], standalone_mode=False)
    assert result.exception is None
    assert result.return_value == 0
    assert result.output.count("masterchain: block 8") == 2
    assert "0:8000000000000000" in result.output
    assert "finalise" in result.output
    assert "all hold" in result.output
    with pytest.raises(StorageError, match="there is no chain"):
        chain_folders(tmp_path / "validator-0" / "nothing")
