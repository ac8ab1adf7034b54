"""Desk at which people and programs submit external messages to a full node, and ask for the verdict of each."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec

from stagepost.chain.proofs.proof_files import write_file
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.full_node.followed import FollowedMessage, FollowedStatuses
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.local_client import AcceptedSubmission
from stagepost.full_node.proof_keeping import ProofKeeper
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.remp.verdict.verdict import Verdict
from stagepost.remp.verdict.words import end_words, verdict_words
from stagepost.topics.topic import Record
from stagepost.trace.kept_proofs import kept_proof_file, proved_end
from stagepost.trace.reading import NotOneMessage, records_of_key

READ_AT_ONCE = 4
"""Rows that are read from the disk at a time."""


class IntakeDesk:
    """Desk of one full node and its data folder. `proofs`: its keeper, which knows the proofs of late without the topic."""

    def __init__(self, full_node: FullNode, data: Path, proofs: ProofKeeper | None = None) -> None:
        self.taken = 0
        self.refused = 0
        self._full_node = full_node
        self._data = data
        self._proofs = proofs
        self._statuses = FollowedStatuses(
            lambda message_id: records_of_key(data, message_id.hex()),
            lambda: full_node.sets,
            self._end_of,
        )
        self._reading = asyncio.Semaphore(READ_AT_ONCE)

    @property
    def now_ms(self) -> int:
        return self._full_node.now_ms

    @property
    def followed(self) -> int:
        return len(self._statuses)

    def written(self, record: Record) -> None:
        """Tell those who follow the message of `record`, which the topic holds on disk."""
        key = "" if record.key is None else record.key.decode(errors="replace")
        if key not in self._statuses:
            return
        self._statuses.heard(StatusRecord(record.value, key, STATUSES_TOPIC, self.now_ms, record.headers))

    def proved(self, message_id: bytes, end: ProvedEnd) -> None:
        """Tell those who follow a message of its end, whose proof the topic holds on disk."""
        self._statuses.proved(message_id, end)

    async def proof(self, message_id: bytes) -> bytes | None:
        """Return the proof file of a message's end; None as long as the end is not known."""
        keeper = self._proofs
        if keeper is not None:
            if keeper.awaits(message_id):
                return None
            made = keeper.proof_of(message_id)
            if made is not None:
                return write_file(made, message_id)
        async with self._reading:
            return await asyncio.to_thread(kept_proof_file, self._data, message_id)

    def _end_of(self, message_id: bytes) -> ProvedEnd | None:
        keeper = self._proofs
        if keeper is not None and keeper.awaits(message_id):
            return None
        found = None if keeper is None else keeper.end_of(message_id)
        return found or proved_end(self._data, message_id)

    def submit(self, data: bytes, submitter: str) -> AcceptedSubmission:
        """Submit a message of `submitter`, who is charged for it. `StagepostError` if the full node does not send it: the bytes are not a message, the account
        refuses it, or the node is not ready; `StorageError` while the disk refuses. A message that the node knows already
        is accepted as well, and is not sent twice."""
        try:
            submission = self._full_node.receive(data, submitter=submitter)
        except StagepostError as error:
            if error.code is ErrorCode.MSG_DUPLICATE and error.message_id is not None:
                return AcceptedSubmission(error.message_id, is_new=False)
            self.refused += 1
            if isinstance(error, DecodeError):
                raise StagepostError(
                    f"refused here, nothing was sent: the bytes are not a valid external message: {error.text}",
                    code=error.code,
                    advice="submit the exact bytes of the message, as the chain reads them",
                    limit=error.limit,
                ) from error
            raise
        if submission.refused is not None:
            self.refused += 1
            raise StagepostError(
                f"refused here, nothing was sent: {submission.refused}",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="the full node sent it to no validator; submit it again when the reason is gone",
                message_id=submission.message_id,
                reason=submission.refused,
            )
        self.taken += 1
        return AcceptedSubmission(submission.message_id, is_new=True)

    def following(self, message_id: bytes) -> AbstractAsyncContextManager[FollowedMessage]:
        """Follow a message as long as the context lasts. `StagepostError` with `QUEUE_FULL` if too many are followed,
        `StorageError` if the topic cannot be read."""
        return self._statuses.following(message_id)

    def verdict(self, followed: FollowedMessage) -> Verdict | None:
        return self._statuses.verdict(followed, self.now_ms)

    async def row(self, message_id: bytes) -> dict[str, Any]:
        """Return the row of table `messages`; `NotOneMessage` if no receipt of this message counts."""
        async with self._reading, self.following(message_id) as followed:
            as_of_ms = self.now_ms
            verdict = self.verdict(followed)
            headers = [record.headers for record in followed.records]
        if verdict is None:
            raise NotOneMessage(
                f"message {message_id.hex()} has no receipt that counts",
                {},
                advice="if the message was just submitted, try again; the trace shows receipts that do not count",
            )
        ids = {
            name: next((given[name] for given in headers if name in given), None)
            for name in ("delivery_id", "dmq_id")
        }
        row = msgspec.to_builtins(verdict)
        words = {"words": verdict_words(verdict), "end": end_words(verdict)}
        return {"message_id": message_id.hex(), **row, **ids, **words, "as_of_ms": as_of_ms}
