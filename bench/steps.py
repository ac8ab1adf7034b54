"""What is measured: each step that a message costs a node, with the limit that it must keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import cycle, islice
from typing import TypeVar

from nacl.bindings import crypto_sign_open

from bench.measure import Step
from bench.traffic import MESSAGE_BYTES, AllPools, Signers
from stagepost.dmq.message import USUAL_SHAPE, DmqMessage, sign_message
from stagepost.dmq.validation import MessageValidator, ValidationRules
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import issue
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.mux import Direction, lane_number, split_payload
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.receipt_fields import decode_members
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import WHOLE_SHARD, BlockId
from stagepost.remp.validator_sets import Session, SetMember, ValidatorSets

T = TypeVar("T")

DIFFERENT_MESSAGES = 400
PERIODS = kes.periods_of(kes.DMQ_DEPTH)
SUBMISSION_NUMBER = 11
SUBMISSION_INGRESS_BYTES_MAX = 101_640

_COLD_SEED = bytes(range(32))
_KES_SEED = bytes(range(32, 64))


def a_message() -> tuple[DmqMessage, kes.SigningKey]:
    """A signed message of exactly `MESSAGE_BYTES`, and the key that signed it."""
    key = kes.SigningKey.generate(_KES_SEED)
    certificate = issue(key.verification_key, issue_number=3, start_kes_period=500, cold_seed=_COLD_SEED)

    def signed(body_bytes: int) -> DmqMessage:
        return sign_message(
            bytes(index % 251 for index in range(body_bytes)),
            key=key,
            certificate=certificate,
            cold_verification_key=ed25519.public_key(_COLD_SEED),
            kes_period=500,
            expires_at=1_900_000_000,
        )

    overhead = len(signed(1_000).raw) - 1_000
    message = signed(MESSAGE_BYTES - overhead)
    assert len(message.raw) == MESSAGE_BYTES
    return message, key


def repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    return repeat


def in_turn(messages: Sequence[T], check: Callable[[T], object]) -> Callable[[int], None]:
    """A different message each time, as a node sees them: a processor that is shown one signature again and again
    learns its way through it by heart, and then checks it in 95 % of the time that another one takes."""
    following = cycle(messages)

    def repeat(count: int) -> None:
        for message in islice(following, count):
            check(message)

    return repeat


def unit() -> Callable[[int], None]:
    """V: one verification by libsodium of what a message of usual size signs, called as our own code calls it."""
    public_key = ed25519.public_key(_COLD_SEED)
    messages = different_messages()
    signatures = {message.message_id: ed25519.sign(_COLD_SEED, message.signed_bytes) for message in messages}
    return in_turn(
        messages,
        lambda message: crypto_sign_open(signatures[message.message_id] + message.signed_bytes, public_key),
    )


def different_messages() -> list[DmqMessage]:
    signers = Signers()
    return [signers.sign(number) for number in range(DIFFERENT_MESSAGES)]


@contextmanager
def steps() -> Iterator[list[Step]]:
    """The steps of one message on its way through a node, in that order. The last one needs an event loop of its own."""
    message, key = a_message()
    raw, content, receipt = message.raw, message.signed_bytes, _a_receipt()
    messages = different_messages()
    validator = MessageValidator(ValidationRules(), AllPools())
    assert not any(validator.check_signatures(message) for message in messages)
    with _segments_received(raw) as receive:
        yield [
            Step("KES verify, path not cached", in_turn(messages, _verify_cold), 1.15),
            Step(
                "KES verify, path cached",
                in_turn(messages, validator.check_signatures),
                1.05,
            ),
            Step("KES sign, no evolve", repeated(lambda: key.sign(content)), 0.55),
            Step("decode one message of 1.5 kB", repeated(lambda: DmqMessage.decode(raw)), 0.06),
            Step("id hash of one message", repeated(lambda: message.has_valid_id), 0.04),
            Step("receive one segment of 1.5 kB", receive, 0.04),
            Step("frame one message of 1.5 kB", repeated(lambda: _frame(raw))),
            Step("decode one receipt, checked", repeated(lambda: decode_members(receipt)), 0.02),
            Step("one receipt, JSON to values", repeated(lambda: Receipt.from_json(receipt))),
            Step("signer of a receipt, 1 session", _signers_found(1)),
            Step("signer of a receipt, 35,000 sessions", _signers_found(35_000), 0.08),
            Step("KES evolve, worst period", _evolve_at_half()),
            Step("KES key generation", repeated(lambda: kes.SigningKey.generate(_KES_SEED))),
        ]


def _a_receipt() -> bytes:
    """As a topic has it: pretty-printed, with a block."""
    block = BlockId(0, WHOLE_SHARD, 1_000, bytes(range(32)), bytes(range(32)))
    receipt = Receipt(
        ExternalMessageId(bytes(32)), Accepted(Level.COLLATOR, block), 1_700_000_000_000, bytes(32)
    )
    return receipt.sign(_COLD_SEED).to_json().encode()


SESSION_MS = 250_000
"""Milliseconds of a session: 35,000 of them are about a hundred days of one shard."""


@lru_cache(maxsize=2)
def _signers_found(sessions: int) -> Callable[[int], None]:
    """Look a key up at times that are spread over all of its sessions."""
    public_key = ed25519.public_key(_COLD_SEED)
    members = (SetMember(0, public_key, key_id(public_key)),)
    sets = ValidatorSets(
        {},
        [
            Session(
                number.to_bytes(32),
                0,
                WHOLE_SHARD,
                number,
                members,
                number * SESSION_MS,
                (number + 1) * SESSION_MS,
            )
            for number in range(sessions)
        ],
    )
    sets.source(members[0].key_id, 0)  # the index is made by the first look-up
    times = [step * 7_919 % (sessions * SESSION_MS) for step in range(1_000)]
    return in_turn(times, lambda time_ms: sets.source(members[0].key_id, time_ms))


def _verify_cold(message: DmqMessage) -> bool:
    return kes.verify(message.kes_verification_key, 0, message.signed_bytes, message.kes_signature)


_REPLY_LIMITS = ItemLimits(bytes_max=98_000, known_shape=USUAL_SHAPE)


def _frame(raw: bytes) -> None:
    framer = Framer()
    framer.feed(raw)
    assert framer.next_item(_REPLY_LIMITS) is not None


def _evolve_at_half() -> Callable[[int], None]:
    """Half-way through its life the whole right half of the tree is made anew."""
    key = kes.SigningKey.generate(_KES_SEED)
    while key.period < PERIODS // 2 - 1:
        key.evolve()
    secret = bytearray(key.to_bytes())

    def repeat(count: int) -> None:
        for _ in range(count):
            # Unchecked and by copy: reading the key in the regular way costs as much as evolving it.
            kes.SigningKey(bytearray(secret), kes.DMQ_DEPTH).evolve()

    return repeat


@contextmanager
def _segments_received(raw: bytes) -> Iterator[Callable[[int], None]]:
    """Bytes written into the bearer's own buffer, as asyncio does it, until the mini-protocol has read them."""
    loop = asyncio.new_event_loop()
    (segment,) = split_payload(raw, lane_number(SUBMISSION_NUMBER, Direction.INITIATOR), 1)

    async def receive(count: int) -> None:
        bearer = Bearer(peer="bench")
        channel = bearer.channel(SUBMISSION_NUMBER, Direction.RESPONDER, SUBMISSION_INGRESS_BYTES_MAX)
        size = len(segment)
        for _ in range(count):
            bearer.get_buffer(-1)[:size] = segment
            bearer.buffer_updated(size)
            await channel.read()

    try:
        yield lambda count: loop.run_until_complete(receive(count))
    finally:
        loop.close()
