"""Proofs of the messages that a full node follows: made from the chain that the node follows, kept on the topic of proofs.

The disk comes first: nobody hears of a proof before the topic holds it. A message whose end is awaited stands on the topic
as well, so that the next life of the node can prove that it was never executed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.message_values import NEVER, ReadMessage
from stagepost.chain.messages import read_message
from stagepost.chain.proofs.proof_form import (
    AwaitedPart,
    ExecutedAsEnd,
    KeyBlockPart,
    MasterPart,
    MessageProof,
    OwnPart,
    decode_part,
    kind_of,
)
from stagepost.chain.proofs.proof_making import MadeProof, ProofMaker, assembled
from stagepost.errors import DecodeError, LocalProtocolError, StorageError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.ledger import ParsedMessage
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.topics.log.appends import LoopAnswers
from stagepost.topics.topic import Place, Record, RetryingWriter, TopicReader

log = logging.getLogger(__name__)

PROVED_KEPT_MAX = 65_536
"""Messages, at most, whose proved end is remembered; an older one is read from the topic."""

MADE_KEPT_MAX = 4_096
"""Proofs, at most, that are remembered whole; an older one is read from the topic, which takes longer the more it holds."""

SHARED_KEPT_MAX = 4_096
"""Master blocks, at most, whose part is known to be on the topic; one that is not known is written again."""

OnProved = Callable[[bytes, ProvedEnd], None]


class ProofKeeper:
    """Keeper of the proofs of one full node. `on_proved` hears of each proof once the topic holds it on disk."""

    def __init__(self, maker: ProofMaker, writer: RetryingWriter) -> None:
        self.on_proved: OnProved = lambda message_id, end: None
        self.kept = 0
        self._maker = maker
        self._writer = writer
        self._written: dict[bytes, None] = {}
        self._proved: dict[bytes, ProvedEnd] = {}
        self._made: dict[bytes, tuple[OwnPart, KeyBlockPart | MasterPart]] = {}
        self._answers: LoopAnswers | None = None

    @property
    def fault(self) -> StorageError | None:
        """Return why the disk refuses proofs now; None while it takes them."""
        return self._writer.fault

    @property
    def awaited(self) -> int:
        """Return how many messages have no proved end yet."""
        return len(self._maker)

    def awaits(self, message_id: bytes) -> bool:
        """Return whether the end of the message is awaited: then `on_proved` will tell it, and no topic need be read."""
        return message_id in self._maker

    def end_of(self, message_id: bytes) -> ProvedEnd | None:
        """Return the end of a message that was proved of late; None for any other message."""
        return self._proved.get(message_id)

    def proof_of(self, message_id: bytes) -> MessageProof | None:
        """Return a proof that was made of late; None for any other message."""
        own, shared = self._made.get(message_id, (None, None))
        if own is None or shared is None:
            return None
        try:
            return assembled(own, shared, self._maker.seals.key_blocks.get)
        except LocalProtocolError:
            return None  # the topic has the key block that this life of the node has not seen

    def start(self, reader: TopicReader, since_ms: int) -> None:
        """Await the messages again that an earlier life of the node awaited; `since_ms` is the oldest time that counts."""
        awaited: dict[bytes, bytes] = {}
        for partition in range(reader.partitions):
            for batch in reader.batches(partition, reader.start_offset(partition)):
                if batch.timestamps[-1] < since_ms:
                    continue
                for one in batch:
                    try:
                        part = decode_part(one.value or b"")
                    except DecodeError:
                        continue  # another program has written it
                    if isinstance(part, AwaitedPart):
                        awaited[one.key or b""] = part.message
                    elif isinstance(part, OwnPart):
                        awaited.pop(one.key or b"", None)
        for message in awaited.values():
            try:
                self._maker.expect(read_message(message, takes_cells=True))
            except DecodeError as error:
                log.warning("an awaited message is not read", extra={"reason": error.text})
        self._write_ready()

    def expect(self, parsed: ParsedMessage) -> None:
        """Await the end of a message that the node has begun to follow. The topic holds the message only if the next life
        of the node has to await it: not if its proof is due now, nor if the chain has forgotten what would prove its end.
        """
        message_id = parsed.message.message_id
        if message_id in self._maker or message_id in self._proved:
            return
        expires_at_s = NEVER if parsed.expires_at_s is None else parsed.expires_at_s
        self._maker.expect(ReadMessage(parsed.message, expires_at_s, b""))
        if message_id in self._maker:
            part = AwaitedPart(parsed.message.body)
            self._append([Record(message_id.hex().encode(), part.encode())], [])
        self._write_ready()

    def take(self, final: FinalBlock, applied: AppliedMaster | None) -> None:
        """Take the next final block of the masterchain, and write the proofs that it makes possible."""
        self._maker.take(final, applied)
        self._write_ready()

    async def close(self) -> None:
        await self._writer.close()
        if self._answers is not None:
            self._answers.give_all()

    def _write_ready(self) -> None:
        made = self._maker.ready()
        if not made:
            return
        records: list[Record] = []
        for one in made:
            records += self._shared_records(one)
            records.append(Record(one.message_id.hex().encode(), one.own.encode()))
        self._append(records, made)

    def _shared_records(self, made: MadeProof) -> list[Record]:
        """Return the shared parts of a proof that the topic does not hold yet, key blocks first."""
        records: list[Record] = []
        root_hash: bytes = made.sealed.block_id.root_hash
        part = made.sealed.part
        while root_hash not in self._written:
            self._written[root_hash] = None
            records.append(Record(root_hash.hex().encode(), part.encode()))
            if part.key == ZERO_INT256:
                break
            root_hash = part.key
            part = self._key_block(root_hash)
        while len(self._written) > SHARED_KEPT_MAX:
            del self._written[next(iter(self._written))]
        return records[::-1]

    def _key_block(self, root_hash: bytes) -> KeyBlockPart:
        return self._maker.seals.key_blocks[root_hash]

    def _append(self, records: Sequence[Record], made: Sequence[MadeProof]) -> None:
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = LoopAnswers(loop)
        answers = self._answers
        self._writer.append_soon(records, lambda outcome: answers.give(lambda: self._appended(made, outcome)))

    def _appended(self, made: Sequence[MadeProof], outcome: list[Place] | StorageError) -> None:
        if isinstance(outcome, StorageError):
            # The writer closed while the disk refused: the next life makes these proofs again.
            log.error("proofs were not written before the end", extra={"reason": outcome.text})
            return
        for one in made:
            end = made_end(one)
            self._proved[one.message_id] = end
            self._made[one.message_id] = one.own, one.sealed.part
            self.kept += 1
            while len(self._proved) > PROVED_KEPT_MAX:
                del self._proved[next(iter(self._proved))]
            while len(self._made) > MADE_KEPT_MAX:
                del self._made[next(iter(self._made))]
            self.on_proved(one.message_id, end)


def made_end(made: MadeProof) -> ProvedEnd:
    """Return the end that a proof of the node's own making shows."""
    sealed, end = made.sealed, made.own.end
    part = sealed.part
    seal = part.block.seal if isinstance(part, KeyBlockPart) else part.master.seal
    by = end.by.hex() if isinstance(end, ExecutedAsEnd) else None
    return ProvedEnd(kind_of(end).value, sealed.block_id.seqno, len(seal.signatures), sealed.validators, by)
