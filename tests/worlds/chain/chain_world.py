"""An embedded chain decided by one: the same ledger that validators use, with somebody who says what is final."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from stagepost.chain.configuration import (
    ChainValidator,
    Configuration,
    Limits,
    Ordering,
    ValidatorSet,
)
from stagepost.chain.declined import Switches
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import MemoryHistory
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.rotation import Plan
from stagepost.remp.ledger import CollatedBlock, LedgerEvent, LedgerSession
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard

START_MS = 1_800_000_000_000
EXPIRES_AT_S = START_MS // 1_000 + 1_500
"""Expiry of messages of a simulated run, in Unix seconds: later than its end, and no further ahead than a chain allows."""

LIFETIME_MS = 60_000


def validators(count: int, name: str = "validator") -> tuple[ChainValidator, ...]:
    keys = (sha256(b"%s %d" % (name.encode(), number)).digest() for number in range(count))
    return tuple(ChainValidator(key, sha256(key).digest()) for key in keys)


def a_set(count: int = 7, name: str = "validator", from_ms: int = START_MS) -> ValidatorSet:
    return ValidatorSet(from_ms, from_ms + 86_400_000, validators(count, name))


def a_configuration(
    *,
    next_set: ValidatorSet | None = None,
    limits: Limits | None = None,
    ordering: Ordering = Ordering.QUEUE,
    takes_cells: bool = False,
    shard_bits_max: int = 4,
    expiry_ahead_max_ms: int = 300_000,
    proof_window_ms: int = 0,
    must_expire: bool | None = None,
    shard_validators: int = 4,
) -> Configuration:
    return Configuration(
        a_set(),
        next_set,
        shard_validators=shard_validators,
        master_lifetime_ms=LIFETIME_MS,
        shard_lifetime_ms=LIFETIME_MS,
        expiry_ahead_max_ms=expiry_ahead_max_ms,
        proof_window_ms=proof_window_ms,
        must_expire=not takes_cells if must_expire is None else must_expire,
        limits=limits or Limits(),
        shard_bits_max=shard_bits_max,
        ordering=ordering,
        takes_cells=takes_cells,
    )


def a_genesis(
    configuration: Configuration | None = None, balances: Sequence[tuple[bytes, int]] = (), name: str = "test"
) -> Genesis:
    return Genesis(name, START_MS, configuration or a_configuration(), tuple(balances))


class DecidedChain:
    """Whatever is proposed is final at once, unless a test keeps it back."""

    def __init__(self, genesis: Genesis | None = None, switches: Switches | None = None) -> None:
        self.genesis = genesis or a_genesis()
        self.kept = MemoryHistory()
        self.ledger = EmbeddedLedger(self.genesis, self.kept, switches)
        self.now_ms = START_MS + 1_000
        self.events: list[LedgerEvent] = []

    @property
    def whole(self) -> LedgerSession:
        """The session of the only shard."""
        (session,) = self.ledger.sessions()
        return session

    def session(self, shard: Shard) -> LedgerSession:
        session = self.ledger.session(shard)
        assert session is not None
        return session

    def propose(self, session: bytes, messages: Iterable[ExternalMessage]) -> CollatedBlock | None:
        self.now_ms += 100
        chain = self.ledger.chain(session)
        assert chain is not None
        return self.ledger.collate(session, chain.top_hash, messages, self.now_ms)

    def finalise(self, session: bytes, payload: bytes) -> None:
        self.ledger.finalised(session, sha256(payload).digest(), payload, b"certified")

    def shard_block(self, session: bytes, messages: Iterable[ExternalMessage]) -> CollatedBlock:
        collated = self.propose(session, messages)
        assert collated is not None
        self.finalise(session, collated.payload)
        return collated

    def master_payload(
        self, plans: Sequence[Plan] = (), configuration: Configuration | None = None, after_ms: int = 100
    ) -> bytes:
        self.now_ms += after_ms
        payload = self.ledger.collate_master(
            self.ledger.master.session.session_id,
            self.ledger.following.master_hash,
            self.now_ms,
            plans=plans,
            configuration=configuration,
        )
        assert payload is not None
        return payload

    def master_block(
        self, plans: Sequence[Plan] = (), configuration: Configuration | None = None, after_ms: int = 100
    ) -> list[LedgerEvent]:
        session = self.ledger.master.session.session_id
        payload = self.master_payload(plans, configuration, after_ms)
        self.finalise(session, payload)
        return self.heard()

    def heard(self) -> list[LedgerEvent]:
        events = self.ledger.events()
        self.events += events
        return events

    def payloads(self) -> list[bytes]:
        return [kept.payload for kept in self.kept.blocks()]
