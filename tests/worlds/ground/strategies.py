"""Builders and Hypothesis strategies for everything that peers say, shared by the tests of the protocols."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any

import cbor2
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.cardano import state_query
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.statemachine.spec import Edge

COLD_SEED = bytes(range(32))
KES_SEED = bytes(range(32, 64))
EXPIRES_AT = 1_900_000_000

# A CBOR head of any width, written here a second time so that the package's writer is not its own witness.

UNSIGNED, BYTES, TEXT, ARRAY, MAP = 0, 2, 3, 4, 5
_WIDTHS = ((24, 1), (25, 2), (26, 4), (27, 8))


def written_head(major: int, argument: int, extra: int = 0) -> bytes:
    """The head of `major`, `extra` steps longer than its shortest form (as far as there are longer ones)."""
    forms = [bytes([major << 5 | argument])] if argument < 24 else []
    forms += [
        bytes([major << 5 | low]) + argument.to_bytes(width, "big")
        for low, width in _WIDTHS
        if argument < 1 << 8 * width
    ]
    return forms[min(extra, len(forms) - 1)]


@dataclass(frozen=True)
class MessageParts:
    """The fields of a message, valid in size but signed by nobody; `extra` lengthens its 13 heads in order."""

    message_id: bytes = b"\x11" * 32
    body: bytes = b"\x22" * 90
    kes_period: int = 1
    expires_at: int = EXPIRES_AT
    kes_signature: bytes = b"\x33" * 448
    kes_verification_key: bytes = b"\x44" * 32
    issue_number: int = 3
    start_kes_period: int = 0
    cold_signature: bytes = b"\x55" * 64
    cold_verification_key: bytes = b"\x66" * 32
    elements: int = 5
    extra: tuple[int, ...] = (0,) * 13

    def payload(self) -> bytes:
        extra = self.extra
        body = written_head(BYTES, len(self.body), extra[3]) + self.body
        period = written_head(UNSIGNED, self.kes_period, extra[4])
        expiry = written_head(UNSIGNED, self.expires_at, extra[5])
        if self.elements == 5:
            return written_head(ARRAY, 3, extra[2]) + body + period + expiry
        return written_head(ARRAY, 4, extra[2]) + self._id() + body + period + expiry

    def raw(self) -> bytes:
        extra = self.extra
        signature = written_head(BYTES, len(self.kes_signature), extra[6]) + self.kes_signature
        certificate = (
            written_head(ARRAY, 4, extra[7])
            + written_head(BYTES, len(self.kes_verification_key), extra[8])
            + self.kes_verification_key
            + written_head(UNSIGNED, self.issue_number, extra[9])
            + written_head(UNSIGNED, self.start_kes_period, extra[10])
            + written_head(BYTES, len(self.cold_signature), extra[11])
            + self.cold_signature
        )
        cold_key = (
            written_head(BYTES, len(self.cold_verification_key), extra[12]) + self.cold_verification_key
        )
        outer = written_head(ARRAY, self.elements, extra[0])
        first = outer + self._id() if self.elements == 5 else outer
        return first + self.payload() + signature + certificate + cold_key

    def _id(self) -> bytes:
        return written_head(BYTES, len(self.message_id), self.extra[1]) + self.message_id

    def decoded(self) -> DmqMessage:
        """Read back by the package; for tests of what surrounds messages."""
        return DmqMessage.decode(self.raw(), profile="seed")


def random_bytes(size: int | SearchStrategy[int]) -> SearchStrategy[bytes]:
    """Bytes whose content does not matter to the test: drawn as one seed, which is far cheaper."""
    sizes = st.just(size) if isinstance(size, int) else size
    return st.builds(lambda seed, length: Random(seed).randbytes(length), st.integers(0, 2**32), sizes)


WORD16, WORD32, WORD64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
BODY_SIZES = st.one_of(st.integers(90, 2_000), st.sampled_from((90, 255, 256, 2_000)))


def message_parts(*elements: int, any_width: bool = False) -> SearchStrategy[MessageParts]:
    widths = st.tuples(*[st.integers(0, 4)] * 13) if any_width else st.just((0,) * 13)
    return st.builds(
        MessageParts,
        random_bytes(32),
        random_bytes(BODY_SIZES),
        WORD64,
        WORD32,
        random_bytes(448),
        random_bytes(32),
        WORD64,
        WORD64,
        random_bytes(64),
        random_bytes(32),
        elements=st.sampled_from(elements or (5,)),
        extra=widths,
    )


def dmq_messages(*elements: int) -> SearchStrategy[DmqMessage]:
    return message_parts(*elements, any_width=True).map(MessageParts.decoded)


# Really signed messages


@cache
def a_certificate(start_kes_period: int = 0) -> OperationalCertificate:
    key = SigningKey.generate(KES_SEED)
    return issue(key.verification_key, issue_number=7, start_kes_period=start_kes_period, cold_seed=COLD_SEED)


@cache
def a_signed_message(
    body: bytes = b"b" * 90, kes_period: int = 1, expires_at: int = EXPIRES_AT, start_kes_period: int = 0
) -> DmqMessage:
    return sign_message(
        body,
        key=SigningKey.generate(KES_SEED),
        certificate=a_certificate(start_kes_period),
        cold_verification_key=ed25519.public_key(COLD_SEED),
        kes_period=kes_period,
        expires_at=expires_at,
    )


@cache
def a_signed_legacy_message(body: bytes = b"l" * 90) -> DmqMessage:
    """The 4-element layout, whose signed bytes are its raw payload with the id in it."""
    key = SigningKey.generate(KES_SEED)
    certificate = a_certificate()
    parts = MessageParts(
        message_id=blake2b(body, digest_size=32).digest(),
        body=body,
        kes_period=0,
        kes_verification_key=key.verification_key,
        issue_number=certificate.issue_number,
        start_kes_period=certificate.start_kes_period,
        cold_signature=certificate.cold_signature,
        cold_verification_key=ed25519.public_key(COLD_SEED),
        elements=4,
    )
    return replace(parts, kes_signature=key.sign(parts.payload())).decoded()


# CBOR of any shape


TAGS_WITHOUT_MEANING = st.integers(60_000, 65_000)
"""The other library acts on some tags, 43000 among them, and then refuses an item for its content and not its shape."""


def cbor_values() -> SearchStrategy[Any]:
    """Anything that CBOR can hold: tags, floats, maps and negative numbers included."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**64), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.binary(max_size=20)
        | st.text(max_size=10)
    )
    keys = st.integers(0, 1_000) | st.text(max_size=5)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(keys, inner, max_size=3)
            | st.builds(cbor2.CBORTag, TAGS_WITHOUT_MEANING, inner)
        ),
        max_leaves=8,
    )


def cbor_items() -> SearchStrategy[bytes]:
    return cbor_values().map(cbor2.dumps)


# What peers say

MESSAGE_IDS = random_bytes(32).map(MessageId)
TEXTS = st.text(max_size=40)
PEERS = st.one_of(
    st.builds(peer_sharing.PeerAddress, st.ip_addresses(v=4).map(lambda address: address.compressed), WORD16),
    st.builds(peer_sharing.PeerAddress, st.integers(2**120, 2**128 - 1).map(lambda n: _v6(n)), WORD16),
)


def _v6(number: int) -> str:
    return ipaddress.IPv6Address(number).compressed


def tuples_of(item: SearchStrategy[Any], min_size: int = 0, max_size: int = 4) -> SearchStrategy[Any]:
    return st.lists(item, min_size=min_size, max_size=max_size).map(tuple)


def offered_versions() -> SearchStrategy[Any]:
    offers = st.lists(
        st.builds(handshake.OfferedVersion, WORD32, cbor_items()),
        max_size=4,
        unique_by=lambda offered: offered.number,
    )
    return offers.map(tuple)


def fields_of(kind: type[object], *elements: int) -> dict[str, SearchStrategy[Any]]:
    """Strategies for the fields of a protocol message; messages inside have one of the layouts `elements`."""
    return _all_fields(elements).get(kind, {})


@cache
def _all_fields(elements: tuple[int, ...]) -> dict[type[object], dict[str, SearchStrategy[Any]]]:
    messages = dmq_messages(*elements)
    announced = st.builds(submission.MessageIdAndSize, MESSAGE_IDS, WORD32)
    points = st.none() | st.builds(state_query.ChainPoint, WORD64, random_bytes(32))
    return {
        submission.RequestMessageIds: {
            "blocking": st.booleans(),
            "acknowledged": WORD16,
            "requested": WORD16,
        },
        submission.ReplyMessageIds: {"ids": tuples_of(announced)},
        submission.RequestMessages: {"ids": tuples_of(MESSAGE_IDS)},
        submission.ReplyMessages: {"messages": tuples_of(messages, max_size=3)},
        local_submission.SubmitMessage: {"message": messages},
        local_submission.RejectMessage: {
            "reason": st.one_of(
                st.builds(local_submission.Invalid, TEXTS),
                st.just(local_submission.AlreadyReceived()),
                st.just(local_submission.Expired()),
                st.builds(local_submission.Other, TEXTS),
            )
        },
        local_notification.RequestMessages: {"blocking": st.booleans()},
        local_notification.ReplyMessagesNonBlocking: {
            "messages": tuples_of(messages, max_size=3),
            "has_more": st.booleans(),
        },
        local_notification.ReplyMessagesBlocking: {"messages": tuples_of(messages, 1, 3)},
        keep_alive.KeepAlive: {"cookie": WORD16},
        keep_alive.KeepAliveResponse: {"cookie": WORD16},
        peer_sharing.ShareRequest: {"amount": st.integers(0, 255)},
        peer_sharing.SharePeers: {"peers": tuples_of(PEERS)},
        state_query.AcquirePoint: {"point": points},
        state_query.ReacquirePoint: {"point": points},
        state_query.AcquireFailure: {"fault": st.sampled_from(state_query.AcquireFault)},
        state_query.StateQuery: {"query": cbor_items()},
        state_query.StateResult: {"answer": cbor_items()},
        handshake.ProposeVersions: {"versions": offered_versions()},
        handshake.ReplyVersions: {"versions": offered_versions()},
        handshake.QueryReply: {"versions": offered_versions()},
        handshake.AcceptVersion: {"version": WORD32, "parameters": cbor_items()},
        handshake.Refuse: {
            "reason": st.one_of(
                st.builds(handshake.VersionMismatch, tuples_of(WORD32)),
                st.builds(handshake.HandshakeDecodeError, WORD32, TEXTS),
                st.builds(handshake.Refused, WORD32, TEXTS),
            )
        },
    }


def saying(edge: Edge, *elements: int) -> SearchStrategy[Any]:
    """Messages that take this edge."""
    fixed = {name: st.just(value) for name, value in edge.where.items()}
    return st.builds(edge.message, **{**fields_of(edge.message, *elements), **fixed})


# One good example of everything

_IDS = (b"\x01" * 32, b"\x02" * 32)
_SIZES = tuple(submission.MessageIdAndSize(MessageId(entry), 1_500) for entry in _IDS)
_POINT = state_query.ChainPoint(610_040, b"\x0a" * 32)
_OFFER = (handshake.OfferedVersion(1, cbor2.dumps([42, False, 1, False])),)


def examples_of(kind: type[object]) -> tuple[Any, ...]:
    """Hand-picked messages of one type: every `where` of its edges, empty and filled lists, every reason."""
    return _all_examples().get(kind) or (kind(),)


@cache
def _all_examples() -> dict[type[object], tuple[Any, ...]]:
    first = MessageParts().decoded()
    # In longer forms than needed, which must come back as they are.
    second = MessageParts(
        body=b"\x77" * 300, kes_period=2**64 - 1, extra=(1, 1, 1, 1, 0, 1, 1, 1, 1, 2, 3, 1, 1)
    )
    longer = second.decoded()
    return {
        submission.RequestMessageIds: (
            submission.RequestMessageIds(True, 0, 33),
            submission.RequestMessageIds(False, 3, 65_535),
        ),
        submission.ReplyMessageIds: (submission.ReplyMessageIds(_SIZES), submission.ReplyMessageIds(())),
        submission.RequestMessages: (submission.RequestMessages(tuple(map(MessageId, _IDS))),),
        submission.ReplyMessages: (submission.ReplyMessages((first, longer)), submission.ReplyMessages(())),
        local_submission.SubmitMessage: (local_submission.SubmitMessage(first),),
        local_submission.RejectMessage: (
            local_submission.RejectMessage(local_submission.Invalid("InvalidSigId")),
            local_submission.RejectMessage(local_submission.AlreadyReceived()),
            local_submission.RejectMessage(local_submission.Expired()),
            local_submission.RejectMessage(local_submission.Other("QUEUE_FULL: später")),
        ),
        local_notification.RequestMessages: (
            local_notification.RequestMessages(True),
            local_notification.RequestMessages(False),
        ),
        local_notification.ReplyMessagesNonBlocking: (
            local_notification.ReplyMessagesNonBlocking((first, longer), True),
            local_notification.ReplyMessagesNonBlocking((), False),
        ),
        local_notification.ReplyMessagesBlocking: (
            local_notification.ReplyMessagesBlocking((first,)),
            local_notification.ReplyMessagesBlocking((first, longer)),
        ),
        state_query.AcquirePoint: (state_query.AcquirePoint(None), state_query.AcquirePoint(_POINT)),
        state_query.ReacquirePoint: (state_query.ReacquirePoint(_POINT), state_query.ReacquirePoint(None)),
        state_query.AcquireFailure: tuple(map(state_query.AcquireFailure, state_query.AcquireFault)),
        state_query.StateQuery: (state_query.StateQuery(cbor2.dumps([0, [2, [1]]])),),
        state_query.StateResult: (state_query.StateResult(cbor2.dumps({b"pool": [1, -2, 2**70, None]})),),
        keep_alive.KeepAlive: (keep_alive.KeepAlive(12_345),),
        keep_alive.KeepAliveResponse: (keep_alive.KeepAliveResponse(65_535),),
        peer_sharing.ShareRequest: (peer_sharing.ShareRequest(7),),
        peer_sharing.SharePeers: (
            peer_sharing.SharePeers(
                (peer_sharing.PeerAddress("1.2.3.4", 3_141), peer_sharing.PeerAddress("::1", 1))
            ),
            peer_sharing.SharePeers(()),
        ),
        handshake.ProposeVersions: (handshake.ProposeVersions(_OFFER),),
        handshake.ReplyVersions: (handshake.ReplyVersions(_OFFER),),
        handshake.QueryReply: (handshake.QueryReply(_OFFER),),
        handshake.AcceptVersion: (handshake.AcceptVersion(2, cbor2.dumps([42, True, 0, False])),),
        handshake.Refuse: (
            handshake.Refuse(handshake.VersionMismatch((1, 2))),
            handshake.Refuse(handshake.HandshakeDecodeError(1, "what is this")),
            handshake.Refuse(handshake.Refused(2, "another network")),
        ),
    }


def an_example(edge: Edge) -> Any:
    """The first hand-picked message that takes this edge."""
    return next(message for message in examples_of(edge.message) if edge.accepts(message))
