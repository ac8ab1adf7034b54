"""Lines of a dump with receipts and proofs of messages that a chain has really ended, and liars among both."""

from __future__ import annotations

import base64
from typing import Any

from rigs.receipt_lines import a_block, a_master_block, line_of
from rigs.remp_world import FULL_NODE, seed_of, session, sets_file
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.proofs.proof_form import MasterPart, OwnPart
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.topics.topic import PROOFS
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import ProvedChain, a_message, second
from tests.worlds.pipeline.pipeline_oracle import End

MEMBERS = range(4)
LATER_MS = 300_000
"""Milliseconds from the beginning to the arrival of the last record: every life is over by then."""


def proved_sets() -> dict[str, Any]:
    return sets_file(session(1, MEMBERS, seqno=100, shard="8000000000000000"), timeout_ms=240_000)


class ProvedLines:
    """Five messages: executed, never, taken by a twin, claimed Finalized without a proof, and refused by all although executed.

    `ends` are the ends as the single-file verifier finds them in the proofs.
    """

    def __init__(self) -> None:
        self.chain = ProvedChain()
        self.executed, self.never, self.claimed, self.refused = (a_message(one) for one in (1, 2, 3, 4))
        self.twin, self.first = a_message(5, salt=1), a_message(5, salt=2)
        for one in (self.executed, self.never, self.refused, self.twin):
            self.chain.maker.expect(one)
        self.chain.carry_out(self.executed, self.refused, self.first)
        self.chain.pass_time(START_MS + 31_000)
        self.genesis = self.chain.genesis.encode()
        trusted, _ = second.read_genesis(self.genesis)
        self.ends: dict[str, list[End]] = {}
        for one in (self.executed, self.never, self.refused, self.twin):
            found = second.verify(self.chain.file(one), trusted)
            self.ends[name_of(one)] = [End(found["kind"], found["block"], found.get("executed_as") or "")]
        self.claims = [line for one in self._messages for line in self._claims(one)]
        self.proofs = self._proof_lines()

    @property
    def _messages(self) -> tuple[ReadMessage, ...]:
        return self.executed, self.never, self.claimed, self.refused, self.twin

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [*self.claims, *self.proofs, self.last_line]

    @property
    def last_line(self) -> dict[str, Any]:
        late = _signed(a_message(9), FULL_NODE, SentToValidators(3, 4), START_MS + LATER_MS)
        return line_of(late, START_MS + LATER_MS)

    def _claims(self, message: ReadMessage) -> list[dict[str, Any]]:
        block, at_ms = a_block(5), START_MS + 50
        said: list[tuple[int, MessageStatus]] = [(FULL_NODE, SentToValidators(3, 4))]
        said += [(one, New()) for one in MEMBERS]
        if message is self.refused:
            said += [(one, Rejected(Level.COLLATOR, "contract error", block)) for one in MEMBERS]
        elif message is not self.twin:
            # The full node says Finalized of all three: of one that was executed, one that never was, one that nobody knows.
            said.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block, a_master_block(7))))
        return [
            line_of(_signed(message, who, status, at_ms + place), at_ms + place)
            for place, (who, status) in enumerate(said)
        ]

    def _proof_lines(self) -> list[dict[str, Any]]:
        """Return own parts before the shared parts that they rest on."""
        made = [
            self.chain.made[one.external.message_id] for one in self._messages if name_of(one) in self.ends
        ]
        own = [proof_line(one.message_id.hex(), one.own.encode()) for one in made]
        shared = {one.own.master.hex(): one.sealed.part.encode() for one in made}
        return [*own, *(proof_line(key, value) for key, value in shared.items())]

    def made_up(self) -> list[dict[str, Any]]:
        """Return proofs that hold nowhere: of the claimed message under a block of liars, and under another's path."""
        made = self.chain.made[self.executed.external.message_id]
        stolen = proof_line(name_of(self.claimed), made.own.encode())
        part = made.sealed.part
        assert isinstance(part, MasterPart)
        broken = bytearray(part.encode())
        broken[-1] ^= 1
        moved = OwnPart(ZERO_INT256[:-1] + b"\1", made.own.shard, made.own.end)
        return [
            stolen,
            proof_line(name_of(self.executed), moved.encode()),
            proof_line(moved.master.hex(), bytes(broken)),
            proof_line(name_of(self.claimed), b"no proof"),
        ]

    def contradiction(self) -> list[dict[str, Any]]:
        """Return a second proof that holds, by which the message that expired was executed: a quorum has signed two histories."""
        other = ProvedChain()
        other.maker.expect(self.never)
        other.carry_out(self.never)
        made = other.made[self.never.external.message_id]
        trusted, _ = second.read_genesis(self.genesis)
        found = second.verify(other.file(self.never), trusted)
        self.ends[name_of(self.never)].append(End(found["kind"], found["block"]))
        return [
            proof_line(made.message_id.hex(), made.own.encode()),
            proof_line(made.own.master.hex(), made.sealed.part.encode()),
        ]


def name_of(message: ReadMessage) -> str:
    return message.external.message_id.hex()


def proof_line(key: str, value: bytes, arrived_ms: int = START_MS + 40_000) -> dict[str, Any]:
    return {
        "topic": PROOFS,
        "key": key,
        "value_base64": base64.b64encode(value).decode(),
        "timestamp_ms": arrived_ms,
    }


def _signed(message: ReadMessage, who: int, status: MessageStatus, at_ms: int) -> Receipt:
    return Receipt(ExternalMessageId(message.external.message_id), status, at_ms, b"").sign(seed_of(who))
