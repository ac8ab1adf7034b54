"""Proofs at a full node: kept on the topic before anybody hears of them, awaited over a restart, read and checked again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from stagepost.chain.node.final_proof import final_block
from stagepost.chain.proofs.proof_form import AwaitedPart, decode_part
from stagepost.chain.proofs.proof_making import ProofMaker
from stagepost.chain.proofs.proof_rules import ProofVerifier
from stagepost.cli.prove import prove
from stagepost.cli.verify import verify
from stagepost.full_node.proof_keeping import ProofKeeper
from stagepost.ground.identifiers import PROOFS_TOPIC
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.topics.batch import Batch
from stagepost.topics.log.file_topic import FileTopicReader, create_topic
from stagepost.topics.topic import Record
from stagepost.trace.kept_proofs import GENESIS_FILE, kept_proof, kept_proof_file, load_genesis, proved_end
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import ProvedChain, a_message
from tests.worlds.full_node.full_node_desk import a_desk, primes

EXECUTED = ProvedEnd("executed", 1, 5, 7)
NEVER = ProvedEnd("never", 2, 5, 7)


class KeptChain(ProvedChain):
    """A chain whose proofs a full node keeps in `data`."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self.topic = create_topic(data, PROOFS_TOPIC)
        self.ends: list[tuple[bytes, ProvedEnd]] = []
        (data / GENESIS_FILE).write_bytes(self.genesis.encode())

    def live(self) -> ProofKeeper:
        """Begin a life of the node, which reads the stored blocks and the topic."""
        maker = ProofMaker(self.genesis)
        for final in self.finals:
            maker.take(final, None)
        keeper = ProofKeeper(maker, self.topic.writer(retry_s=1.0))
        keeper.on_proved = lambda message_id, end: self.ends.append((message_id, end))
        keeper.start(self.topic.reader(), 0)
        self.ledger.following.on_master = lambda kept, applied: keeper.take(final_block(kept), applied)
        return keeper


def test_a_message_that_one_life_awaits_the_next_one_proves(tmp_path: Path) -> None:
    taken, left = a_message(1), a_message(2)

    async def lives() -> KeptChain:
        chain = KeptChain(tmp_path)
        first = chain.live()
        first.expect(taken.parsed)
        first.expect(left.parsed)
        chain.carry_out(taken)
        await first.close()
        assert chain.ends == [(taken.external.message_id, EXECUTED)]
        second = chain.live()
        assert second.awaited == 1
        chain.pass_time(START_MS + 30_000)
        await second.close()
        return chain

    chain = asyncio.run(lives())

    assert chain.ends[1:] == [(left.external.message_id, NEVER)]
    assert proved_end(tmp_path, taken.external.message_id) == EXECUTED
    assert proved_end(tmp_path, left.external.message_id) == NEVER
    assert kept_proof(tmp_path, a_message(3).external.message_id) is None


def test_a_message_whose_proof_is_due_at_once_is_not_kept_for_the_next_life(tmp_path: Path) -> None:
    """Else anybody could fill the disk with large messages that have expired."""

    async def live() -> KeptChain:
        chain = KeptChain(tmp_path)
        keeper = chain.live()
        chain.pass_time(START_MS + 30_000)
        keeper.expect(a_message(2).parsed)
        keeper.expect(a_message(3, expires_at_s=START_MS // 1_000 + 50).parsed)
        await keeper.close()
        return chain

    chain = asyncio.run(live())
    records = [one for batch in chain.topic.reader().batches(0, 0) for one in batch]
    awaited = [one.key for one in records if isinstance(decode_part(one.value or b""), AwaitedPart)]

    assert chain.ends == [(a_message(2).external.message_id, ProvedEnd("never", 1, 5, 7))]
    assert awaited == [a_message(3, expires_at_s=START_MS // 1_000 + 50).external.message_id.hex().encode()]


def test_a_proof_is_written_and_verified_by_the_commands(tmp_path: Path) -> None:
    message, out = a_message(1), tmp_path / "proof.json"

    async def live() -> None:
        chain = KeptChain(tmp_path)
        keeper = chain.live()
        keeper.expect(message.parsed)
        chain.carry_out(message)
        await keeper.close()

    asyncio.run(live())
    run, identifier = CliRunner(), message.external.message_id.hex()
    genesis = str(tmp_path / GENESIS_FILE)

    unknown = run.invoke(prove, ["00" * 32, "--data", str(tmp_path)], standalone_mode=False)
    written = run.invoke(
        prove, [identifier, "--data", str(tmp_path), "--out", str(out)], standalone_mode=False
    )
    checked = run.invoke(verify, [str(out), "--genesis", genesis, "--json"], standalone_mode=False)
    out.write_bytes(out.read_bytes().replace(b"executed", b"never"))
    spoiled = run.invoke(verify, [str(out), "--genesis", genesis], standalone_mode=False)

    assert (unknown.return_value, written.return_value) == (4, 0)
    assert checked.return_value == 0
    assert '"signers": 5' in checked.output
    assert spoiled.return_value == 1
    assert "refused   OTHER_FILE" in spoiled.output


def test_a_proof_is_found_by_one_reading_from_the_end_whatever_lies_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reading for each part, a proof behind many key blocks took seconds on a topic of an hour."""
    monkeypatch.setattr("stagepost.trace.kept_proofs.READ_AT_ONCE", 3)
    messages = [a_message(number) for number in range(1, 6)]

    async def live() -> None:
        chain = KeptChain(tmp_path)
        keeper = chain.live()
        present = chain.genesis.configuration
        for number, message in enumerate(messages):
            chain.ledger.wanted.add(msgspec.structs.replace(present, skew_ms=number).hash)
            chain.master_block(configuration=msgspec.structs.replace(present, skew_ms=number))
            keeper.expect(message.parsed)
            chain.carry_out(message)
        await keeper.close()

    asyncio.run(live())
    end = create_topic(tmp_path, PROOFS_TOPIC).reader().end_offset(0)
    read: list[int] = []
    batches = FileTopicReader.batches

    def counted(
        reader: FileTopicReader, partition: int, start: int, end: int | None = None
    ) -> Iterator[Batch]:
        for batch in batches(reader, partition, start, end):
            read.extend(range(batch.base_offset, batch.next_offset))
            yield batch

    monkeypatch.setattr(FileTopicReader, "batches", counted)
    verifier = ProofVerifier(load_genesis(tmp_path / GENESIS_FILE))
    for number, message in enumerate(messages, start=1):
        read.clear()
        proof = kept_proof(tmp_path, message.external.message_id)
        assert proof is not None
        checked = verifier.check(proof)
        assert (checked.message_id, checked.master.key_blocks) == (message.external.message_id, number)
        assert len(read) == len(set(read)) <= end, "each record is read once at most"
        assert max(read) == end - 1


def test_a_proof_whose_parts_stand_in_another_order_is_found_all_the_same(tmp_path: Path) -> None:
    message, other = a_message(1), tmp_path / "other"

    async def live() -> None:
        chain = KeptChain(tmp_path)
        keeper = chain.live()
        keeper.expect(message.parsed)
        chain.carry_out(message)
        await keeper.close()
        parts = [one for batch in chain.topic.reader().batches(0, 0) for one in batch]
        turned = [Record(one.key, one.value) for one in reversed(parts)]
        other.mkdir()
        writer = create_topic(other, PROOFS_TOPIC).writer()
        await writer.append([Record(b"not hexadecimal", b"x"), *turned, Record(turned[0].key, b"no part")])
        await writer.close()

    asyncio.run(live())

    assert kept_proof_file(other, message.external.message_id) == kept_proof_file(
        tmp_path, message.external.message_id
    )


def test_a_made_up_proof_on_the_topic_proves_nothing(tmp_path: Path) -> None:
    message = a_message(1)

    async def live() -> None:
        chain = KeptChain(tmp_path)
        keeper = chain.live()
        keeper.expect(message.parsed)
        chain.carry_out(message)
        await keeper.close()

    asyncio.run(live())
    elsewhere = ProvedChain()
    other = elsewhere.genesis.encode().replace(b"test", b"fest")
    (tmp_path / GENESIS_FILE).write_bytes(other)

    assert proved_end(tmp_path, message.external.message_id) is None


def test_proofs_of_late_are_told_without_reading_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes longer the more the topic holds: after an hour at 100 messages a second, seconds for each proof."""
    monkeypatch.setattr("stagepost.full_node.proof_keeping.MADE_KEPT_MAX", 1)
    reads: list[bytes] = []

    def read(data: Path, message_id: bytes) -> bytes | None:
        reads.append(message_id)
        return kept_proof_file(data, message_id)

    monkeypatch.setattr("stagepost.full_node.intake_desk.kept_proof_file", read)

    async def live() -> None:
        async with a_desk(tmp_path) as found:
            first, second, open_one = (primes(number) for number in (10, 20, 30))
            for one in (first, second, open_one):
                found.desk.submit(one, "a program")
            ids = [found.chain.ledger.parse(one).message.message_id for one in (first, second, open_one)]
            assert await found.desk.proof(ids[0]) is None
            assert reads == [], "of a message whose end is awaited the topic holds no proof"
            async with asyncio.timeout(30.0):
                for number, one in enumerate((first, second), start=1):
                    found.in_a_final_block(one)
                    while found.proofs.kept < number:
                        await asyncio.sleep(0.01)
            for message_id in ids[:2]:
                assert await found.desk.proof(message_id) == kept_proof_file(tmp_path, message_id) is not None
            assert reads == ids[:1], "the older one is read from the topic"
            assert await found.desk.proof(ids[2]) is None

    asyncio.run(live())
