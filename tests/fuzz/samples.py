"""Valid bytes to start from: made by the project's encoders from fixed keys, and taken from the vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.message import DmqMessage, sign_message, write_certificate
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.version_data import ConnectionKind, VersionData, known_versions
from stagepost.ground.wire.cbor import write_array, write_bytes, write_unsigned
from stagepost.ground.wire.mux import Direction, lane_number, split_payload

VECTORS = Path(__file__).parents[1] / "vectors"
NETWORK_MAGIC = 2_147_483_690
START_KES_PERIOD = 1_000
EXPIRES_AT = 1_900_000_000
COLD_SEED = bytes(range(32))
COLD_KEY = ed25519.public_key(COLD_SEED)


@cache
def signing_key(period: int = 0) -> kes.SigningKey:
    key = kes.SigningKey.generate(bytes(range(32, 64)))
    while key.period < period:
        key.evolve()
    return key


@cache
def certificate() -> OperationalCertificate:
    return issue(
        signing_key().verification_key,
        issue_number=7,
        start_kes_period=START_KES_PERIOD,
        cold_seed=COLD_SEED,
    )


@cache
def a_message(body_bytes: int = 90, period: int = 0) -> DmqMessage:
    return sign_message(
        bytes(index * 7 % 256 for index in range(body_bytes)),
        key=signing_key(period),
        certificate=certificate(),
        cold_verification_key=COLD_KEY,
        kes_period=START_KES_PERIOD + period,
        expires_at=EXPIRES_AT,
    )


@cache
def an_older_message(body_bytes: int = 90) -> DmqMessage:
    """The same fields in the layout of four elements, which signs its own id."""
    message_id = bytes(range(100, 132))
    body = bytes(index * 11 % 256 for index in range(body_bytes))
    payload = write_array(
        write_bytes(message_id),
        write_bytes(body),
        write_unsigned(START_KES_PERIOD),
        write_unsigned(EXPIRES_AT),
    )
    signature = signing_key().sign(payload)
    raw = write_array(
        payload, write_bytes(signature), write_certificate(certificate()), write_bytes(COLD_KEY)
    )
    return DmqMessage.decode(raw, profile="seed")


def messages() -> tuple[bytes, ...]:
    ours = (a_message(), a_message(700, period=5), a_message(2_000), an_older_message())
    return (*(message.raw for message in ours), *vectors("message-cbor.json"))


def vectors(*names: str, field: str = "cbor_hex") -> tuple[bytes, ...]:
    """Every value of `field` in the named files."""
    found = []
    for name in names:
        content = json.loads((VECTORS / "dmq" / name).read_text())
        found += [bytes.fromhex(digits) for digits in _values(content, field)]
    return tuple(found)


def protocol_vectors() -> tuple[bytes, ...]:
    return vectors("derived-wire-examples.json", "base-protocols.json")


def _values(content: Any, field: str) -> Iterator[str]:
    if isinstance(content, dict):
        if isinstance(content.get(field), str):
            yield content[field]
        content = list(content.values())
    if isinstance(content, list):
        for entry in content:
            yield from _values(entry, field)


# What is said in each mini-protocol, as encoded by every profile that has it.


def submission_messages() -> tuple[bytes, ...]:
    ids = tuple(MessageId(bytes((number,)) * 32) for number in range(3))
    sizes = tuple(submission.MessageIdAndSize(message_id, 1_500) for message_id in ids)
    said: list[object] = [
        submission.Init(),
        submission.RequestMessageIds(blocking=True, acknowledged=0, requested=10),
        submission.RequestMessageIds(blocking=False, acknowledged=300, requested=33),
        submission.ReplyMessageIds(sizes),
        submission.ReplyMessageIds(()),
        submission.RequestMessages(ids),
        submission.ReplyMessages((a_message(), a_message(700, period=5))),
        submission.ReplyMessages((an_older_message(),)),
        submission.ReplyMessages(()),
        submission.Done(),
    ]
    encoded = _encoded(MiniProtocol.MESSAGE_SUBMISSION, said)
    newer = codec_for(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION, 2)
    encoded += [newer.encode(message) for message in [*said[1:], submission.ReplyNoMessageIds()]]
    return (*encoded, *protocol_vectors())


def local_submission_messages() -> tuple[bytes, ...]:
    reasons: tuple[local_submission.RejectReason, ...] = (
        local_submission.Invalid("the certificate's counter went back"),
        local_submission.AlreadyReceived(),
        local_submission.Expired(),
        local_submission.Other("später"),
    )
    said: list[object] = [
        local_submission.SubmitMessage(a_message()),
        local_submission.SubmitMessage(an_older_message()),
        local_submission.AcceptMessage(),
        *(local_submission.RejectMessage(reason) for reason in reasons),
        local_submission.Done(),
    ]
    return (*_encoded(MiniProtocol.LOCAL_MESSAGE_SUBMISSION, said), *protocol_vectors())


def local_notification_messages() -> tuple[bytes, ...]:
    some = (a_message(), a_message(700, period=5))
    said: list[object] = [
        local_notification.RequestMessages(blocking=True),
        local_notification.RequestMessages(blocking=False),
        local_notification.ReplyMessagesNonBlocking(some, has_more=True),
        local_notification.ReplyMessagesNonBlocking((), has_more=False),
        local_notification.ReplyMessagesBlocking(some),
        local_notification.ReplyMessagesBlocking((an_older_message(),)),
        local_notification.ClientDone(),
    ]
    encoded = _encoded(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, said)
    blocking = [item for item in encoded if item.startswith(b"\x82\x02")]
    headless = [local_notification.HEADLESS_BLOCKING_REPLY + item[2:] for item in blocking]
    return (*encoded, *headless, *(item + b"\xf4" for item in headless), *protocol_vectors())


def upkeep_messages() -> tuple[bytes, ...]:
    peers = (
        peer_sharing.PeerAddress("127.0.0.1", 3_001),
        peer_sharing.PeerAddress("2001:db8::1", 65_535),
    )
    kept: list[object] = [keep_alive.KeepAlive(65_535), keep_alive.KeepAliveResponse(3), keep_alive.Done()]
    shared: list[object] = [
        peer_sharing.ShareRequest(10),
        peer_sharing.SharePeers(peers),
        peer_sharing.SharePeers(()),
        peer_sharing.Done(),
    ]
    return (
        *_encoded(MiniProtocol.KEEP_ALIVE, kept),
        *_encoded(MiniProtocol.PEER_SHARING, shared),
        *protocol_vectors(),
    )


def handshake_messages() -> tuple[bytes, ...]:
    said: list[object] = []
    for terms in all_terms():
        answer, _ = handshake.answer(terms.proposal(), terms)
        said += [terms.proposal(), answer, handshake.QueryReply(terms.table())]
        said += [handshake.ReplyVersions(terms.table())]
    said += [
        handshake.Refuse(handshake.VersionMismatch((1, 2))),
        handshake.Refuse(handshake.HandshakeDecodeError(2, "no array")),
        handshake.Refuse(handshake.Refused(4_097, "wrong network")),
    ]
    version_data = [offered.parameters for terms in all_terms() for offered in terms.table()]
    unknown = b"\x82\x00\xa1\x19\x30\x39\xa2\x61a\xf6\x01\xfb\x40\x09\x21\xfb\x54\x44\x2d\x18"
    return (
        *_encoded(MiniProtocol.HANDSHAKE, said),
        *dict.fromkeys(version_data),
        unknown,
        *protocol_vectors(),
    )


@cache
def all_terms() -> tuple[handshake.Terms, ...]:
    return tuple(
        handshake.Terms(
            kind, VersionData(NETWORK_MAGIC, query=query), known_versions(kind, with_cardano=with_cardano)
        )
        for kind in ConnectionKind
        for with_cardano in (False, True)
        for query in (False, True)
    )


def _encoded(protocol: MiniProtocol, said: list[object]) -> list[bytes]:
    encoded = []
    for profile in profiles_with(protocol):
        codec = codec_for(profile, protocol)
        encoded += [codec.encode(message) for message in said]
    return list(dict.fromkeys(encoded))


def profiles_with(protocol: MiniProtocol) -> list[Profile]:
    return [profile for profile in PROFILES.values() if protocol in profile.numbers]


# Streams


def streams() -> tuple[bytes, ...]:
    """Segments as they stand on a connection, of one and of several mini-protocols."""
    proposal = handshake_messages()[0]
    announcement = submission_messages()[2]
    reply = next(item for item in submission_messages() if len(item) > 1_000)
    opening = _segments(proposal, 0, Direction.INITIATOR) + _segments(announcement, 11, Direction.RESPONDER)
    long = _segments(reply, 11, Direction.INITIATOR, 200)
    whole = b"".join(
        _segments(item, 15, direction) for item in (b"\x82\x00\xf5", b"\x81\x03") for direction in Direction
    )
    fixed = b"".join(
        header + payload
        for header, payload in zip(
            vectors("derived-wire-examples.json", field="header_hex"),
            vectors("derived-wire-examples.json", field="payload_hex"),
            strict=True,
        )
    )
    return opening, long, whole, opening + long + whole, fixed


def _segments(payload: bytes, protocol: int, direction: Direction, bytes_max: int = 12_288) -> bytes:
    return b"".join(split_payload(payload, lane_number(protocol, direction), 0x0102_0304, bytes_max))
