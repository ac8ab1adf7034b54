"""Ledger with one session for all messages, which makes no blocks: enough chain for a full node among bare validators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import CollatedBlock, DryRun, FinalBlock, LedgerEvent, LedgerSession, ParsedMessage
from stagepost.remp.message import ExternalMessage
from stagepost.remp.sessions import Member, SessionFacts
from stagepost.remp.shard import Shard

WHOLE_SHARD = Shard(0, 1 << 63)
NEVER_MS = 1 << 52


class OneSessionLedger:
    """Ledger of one session, of the validators with `public_keys`. `parse` reads the messages of the world."""

    def __init__(
        self, parse: Callable[[bytes], ExternalMessage], public_keys: Iterable[bytes], seqno: int
    ) -> None:
        self._parse = parse
        keys = tuple(public_keys)
        members = tuple(Member(key_id(key), key_id(key), 1) for key in keys)
        facts = SessionFacts(WHOLE_SHARD.workchain, WHOLE_SHARD.prefix, 0, 0, seqno, bytes(32), members)
        self._session = LedgerSession(facts, keys, seqno, (), 0, 0, NEVER_MS)

    def parse(self, data: bytes) -> ParsedMessage:
        return ParsedMessage(self._parse(data))

    def dry_run(self, message: ExternalMessage, now_ms: int) -> DryRun:
        return DryRun(None)

    def holds_twin(self, message: ExternalMessage) -> bool:
        return False

    def holds(self, message: ExternalMessage) -> bool:
        return False

    def shard_of(self, workchain: int, account: bytes) -> Shard | None:
        return WHOLE_SHARD

    def session(self, shard: Shard) -> LedgerSession | None:
        return self._session

    def sessions(self) -> Sequence[LedgerSession]:
        return (self._session,)

    def master_session(self) -> LedgerSession:
        return self._session

    def coming(self, workchain: int, account: bytes, now_ms: int, until_ms: int) -> Sequence[LedgerSession]:
        return ()

    def collate(
        self, session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        return None

    def messages_of(self, payload: bytes) -> tuple[ExternalMessage, ...]:
        return ()

    def events(self) -> list[LedgerEvent]:
        return []

    def history(self, from_catchain_seqno: int) -> Iterator[FinalBlock]:
        return iter(())
