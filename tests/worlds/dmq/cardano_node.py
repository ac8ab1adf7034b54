"""A pretend cardano-node: it speaks the local handshake and local state query, and can lie, stall and go away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stagepost.dmq.endpoints.state_query_server import AnswerQuery, WriteRaw, serve_state_queries
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Listener, Network, UnixAddress
from stagepost.ground.net.version_data import CARDANO_QUERY_VERSIONS, VersionShape
from tests.worlds.dmq.cardano_answers import ERA_NAMES, LedgerState, mismatch

ONLY_23 = {32791: VersionShape.MAGIC_QUERY}
STAKE = "stake"
EPOCH = "epoch"
PEERS = "peers"


@dataclass
class Question:
    """A question that was asked, by its kind, at a moment of the loop."""

    kind: str
    at_s: float


@dataclass
class PretendCardanoNode:
    """The ledger may be replaced between two questions; an acquired state stays what it was."""

    ledger: LedgerState
    versions: Mapping[int, VersionShape] = field(default_factory=lambda: CARDANO_QUERY_VERSIONS)
    replaced: dict[str, bytes] = field(default_factory=dict)
    """Answers to give instead of the ledger's own, by kind of question."""
    raw: dict[str, list[bytes]] = field(default_factory=dict)
    """Bytes to send instead of a result message, piece by piece."""
    closes_at: set[str] = field(default_factory=set)
    stalls_at: set[str] = field(default_factory=set)
    era_changes: int = 0
    """How often the era changes between the question for the era and the next one."""
    asked: list[Question] = field(default_factory=list)
    connections: int = 0
    held: int = 0
    """Ledger states that are acquired and not released."""
    raw_bytes_written: int = 0
    _listener: Listener | None = None

    async def start(self, network: Network, path: Path) -> None:
        self._listener = await network.serve(UnixAddress(path), self.serve)

    async def stop(self) -> None:
        assert self._listener is not None
        await self._listener.close(0.1)
        self._listener = None

    def count(self, kind: str) -> int:
        return sum(1 for question in self.asked if question.kind == kind)

    @property
    def magic(self) -> int:
        return self.ledger.magic

    async def serve(self, bearer: Bearer) -> None:
        self.connections += 1
        await serve_state_queries(bearer, self, self.versions)

    def acquire(self, write: WriteRaw) -> AnswerQuery:
        self.held += 1
        return partial(self._answer, self.ledger, write)

    def release(self) -> None:
        self.held -= 1

    async def _answer(self, ledger: LedgerState, write: WriteRaw, query: bytes) -> bytes | None:
        kind = kind_of(query)
        self.asked.append(Question(kind, asyncio.get_running_loop().time()))
        if kind in self.closes_at:
            return None
        if kind in self.stalls_at:
            await asyncio.Event().wait()
        for piece in self.raw.get(kind, ()):
            await write(piece)
            self.raw_bytes_written += len(piece)
        if kind in self.raw:
            await asyncio.Event().wait()
        if kind in self.replaced:
            return self.replaced[kind]
        if kind == EPOCH and self.era_changes:
            self.era_changes -= 1
            return mismatch(ledger.era, (ledger.era + 1) % len(ERA_NAMES))
        # A real node closes on a query that it cannot read.
        return ledger.answers().get(query)


_KINDS = {"8101": "start", "820082028101": "era", "820082028100": "history"}
_LEAVES = {b"\x81\x01": EPOCH, b"\x81\x0b": "genesis", b"\x82\x14\x80": STAKE, b"\x82\x18\x22\x00": PEERS}


def kind_of(query: bytes) -> str:
    """The kind of a question, told by its bytes."""
    if query.hex() in _KINDS:
        return _KINDS[query.hex()]
    return next((kind for leaf, kind in _LEAVES.items() if query.endswith(leaf)), "unknown")
