"""A program's way to a full node: hand in external messages, follow them, wait for them, and read their traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec

from stagepost.dmq.endpoints.local_node import is_away
from stagepost.errors import (
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    StagepostError,
)
from stagepost.full_node.local_client import IntakeAddress, IntakeConversation, Refused, Taken
from stagepost.ground.files.running_nodes import FullNodeFacts
from stagepost.ground.net.network import Network, SocketNetwork
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S
from stagepost.remp.receipts.status_records import StatusRecord
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.remp.verdict.trace import ENDED, Trace, trace_of
from stagepost.remp.verdict.verdict import Verdict

ID_DIGITS = 64
ASKED_FOR_S = 2.0
"""How long a question waits for news: a message may also end because its time is over, without any."""
AGAIN_S = 0.2
"""After the full node has gone away: it may be restarting."""
WAITS_AT_ONCE_MAX = 128
"""Each has a connection of its own; half of what a full node takes."""


class RefusedByFullNode(StagepostError):
    """The message was not passed on to anybody; the text says why."""


class Progress(msgspec.Struct, frozen=True):
    """Further statuses of a message, and how it stands with them."""

    records: tuple[StatusRecord, ...]
    verdict: Verdict | None
    as_of_ms: int

    @property
    def has_ended(self) -> bool:
        return self.verdict is not None and self.verdict.verdict in ENDED


class ExternalMessages:
    """Any number of tasks may use it at the same time."""

    def __init__(
        self,
        facts: FullNodeFacts,
        *,
        network: Network | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._address = IntakeAddress(
            Path(facts.local_socket), facts.network_magic, network or SocketNetwork(), connect_timeout_s
        )
        self._sets_path = Path(facts.validator_sets)
        self._kept: IntakeConversation | None = None
        self._turn = asyncio.Lock()
        self._waits = asyncio.Semaphore(WAITS_AT_ONCE_MAX)

    async def check(self) -> None:
        """Shake hands once."""
        await (await self._address.open()).close()

    async def submit(self, message: bytes, timeout_s: float) -> Taken:
        """`RefusedByFullNode` if it goes no further; `ProtocolTimeout` if there is no answer in time."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                outcome = await self._submit(message)
        except TimeoutError:
            raise ProtocolTimeout(
                f"the full node at {self._address.socket_path} did not answer within {timeout_s:g} s",
                advice="send it again: a message that was taken is not taken twice",
            ) from None
        if isinstance(outcome, Refused):
            raise RefusedByFullNode(
                outcome.text, code=outcome.code, advice=outcome.advice, message_id=outcome.message_id
            )
        return outcome

    async def follow(self, message_id: bytes) -> AsyncGenerator[Progress, None]:
        """Every status that there is and comes, each once, until the message has ended. Survives a restart of the node.

        Also yields now and then without a status, for a verdict may change by time alone.
        """
        known: set[tuple[bytes | None, str | None]] = set()
        async with self._waits:
            while True:
                try:
                    async with await self._address.open() as talk:
                        after = 0
                        within_s = 0.0
                        while True:
                            told = await talk.follow(message_id, after, within_s)
                            after = told.after
                            # Whatever there is comes at once, page by page; then it is waited for.
                            within_s = 0.0 if told.records else ASKED_FOR_S
                            fresh = tuple(
                                one for one in told.records if (one.value, one.session_hint) not in known
                            )
                            known.update((one.value, one.session_hint) for one in fresh)
                            progress = Progress(fresh, told.verdict, told.as_of_ms)
                            yield progress
                            if progress.has_ended and not told.records:
                                return
                except StagepostError as error:
                    if not is_away(error):
                        raise
                await asyncio.sleep(AGAIN_S)

    async def wait_for(self, message_id: bytes, awaited: Awaited, timeout_s: float) -> MessageVerdict:
        """Returns when it has come so far, when it has ended otherwise, or with how it stands when the time is over."""
        found = MessageVerdict(message_id.hex(), awaited, None, 0)
        try:
            async with asyncio.timeout(timeout_s), aclosing(self.follow(message_id)) as progresses:
                async for progress in progresses:
                    found = MessageVerdict(message_id.hex(), awaited, progress.verdict, progress.as_of_ms)
                    if found.is_reached or found.has_ended:
                        break
        except TimeoutError:
            if not found.as_of_ms:
                raise ProtocolTimeout(
                    f"the full node at {self._address.socket_path} said nothing of message {message_id.hex()} "
                    f"within {timeout_s:g} s",
                    advice="check that it runs",
                    message_id=message_id,
                ) from None
        return found

    async def trace(self, message_id: bytes, timeout_s: float) -> Trace:
        """Every receipt that there is now. `StagepostError` with `MSG_BAD_ID` if there is none."""
        records: list[StatusRecord] = []
        try:
            async with asyncio.timeout(timeout_s), await self._address.open() as talk:
                while True:
                    told = await talk.follow(message_id, len(records), 0.0)
                    if not told.records:
                        break
                    records += told.records
        except TimeoutError:
            raise ProtocolTimeout(
                f"the full node at {self._address.socket_path} did not tell the statuses of message "
                f"{message_id.hex()} within {timeout_s:g} s",
                message_id=message_id,
            ) from None
        if not records:
            raise StagepostError(
                f"the full node has no receipt of message {message_id.hex()}",
                code=ErrorCode.MSG_BAD_ID,
                advice="look whether the id and the node belong together",
                message_id=message_id,
            )
        sets = await asyncio.to_thread(ValidatorSets.load, self._sets_path)
        return trace_of(message_id, records, sets, told.as_of_ms)

    async def close(self) -> None:
        async with self._turn:
            kept, self._kept = self._kept, None
            if kept is not None:
                await kept.close()

    async def _submit(self, message: bytes) -> Taken | Refused:
        kept, self._kept = self._kept, None
        if kept is not None and not kept.is_over:
            try:
                return await self._submit_over(kept, message)
            except StagepostError as error:
                # A connection that was kept may end under us; the message has its id, so it is not taken twice.
                if not is_away(error):
                    raise
        return await self._submit_over(await self._address.open(), message)

    async def _submit_over(self, talk: IntakeConversation, message: bytes) -> Taken | Refused:
        outcome = await talk.submit(message)
        self._kept = talk
        return outcome


def id_bytes(message_id: str | bytes) -> bytes:
    """32 bytes, or 64 hexadecimal digits."""
    if isinstance(message_id, bytes) and len(message_id) * 2 == ID_DIGITS:
        return message_id
    if isinstance(message_id, str) and len(message_id) == ID_DIGITS:
        try:
            return bytes.fromhex(message_id)
        except ValueError:
            pass
    raise LocalProtocolError(
        f"{message_id!r} is no message id", code=ErrorCode.MSG_BAD_ID, advice="give all 64 hexadecimal digits"
    )
