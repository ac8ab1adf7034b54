"""Captures for tests: segments of both sides, built with our own codecs or from bytes as they are written."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.message import DmqMessage, sign_message, write_certificate
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import issue
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.wire.cbor import write_array, write_bytes, write_unsigned
from stagepost.ground.wire.mux import Direction, Segment, lane_number

INITIATOR, RESPONDER = Direction.INITIATOR, Direction.RESPONDER
MAGIC = 2_147_483_650
PREVIEW = VersionData(MAGIC, initiator_only=False, peer_sharing=True)


def segment(direction: Direction, number: int, payload: bytes, timestamp_us: int = 1_000) -> bytes:
    return Segment(timestamp_us, lane_number(number, direction), payload).encode()


class Capture:
    """What both sides said, in order; each message in a segment of its own unless `cut` is smaller."""

    def __init__(self, profile: str = "dmq-node", submission_version: int = 1, cut: int = 12_288) -> None:
        self.profile: Profile = PROFILES[profile]
        self.version = submission_version
        self.cut = cut
        self.data = b""
        self.boundaries = [0]  # offsets at which everything begun is complete

    def say(self, direction: Direction, protocol: MiniProtocol, message: object) -> Capture:
        # The version 2 codec begins in dmq-node's flavour whatever the profile.
        payload = codec_for(self.profile, protocol, self.version).encode(message)
        return self.put(direction, self.profile.numbers[protocol], payload)

    def put(self, direction: Direction, number: int, payload: bytes) -> Capture:
        for start in range(0, len(payload), self.cut):
            self.data += segment(direction, number, payload[start : start + self.cut])
        self.boundaries.append(len(self.data))
        return self

    def handshake(self, kind: ConnectionKind) -> Capture:
        offer = self.profile.proposal_terms(kind, PREVIEW)
        if kind is ConnectionKind.NODE:
            offer = replace(offer, versions={self.version: next(iter(offer.versions.values()))})
        reply, _ = handshake.answer(offer.proposal(), offer)
        self.say(INITIATOR, MiniProtocol.HANDSHAKE, offer.proposal())
        return self.say(RESPONDER, MiniProtocol.HANDSHAKE, reply)


@cache
def a_message(text: bytes = b"hello", *, kes_period: int = 120) -> DmqMessage:
    key = SigningKey.generate(bytes(range(32)))
    cold = ColdSigningKey(b"\x07" * 32)
    certificate = issue(key.verification_key, issue_number=3, start_kes_period=118, cold_seed=cold.seed)
    return sign_message(
        text.ljust(100, b"."),
        key=key,
        certificate=certificate,
        cold_verification_key=cold.verification_key,
        kes_period=kes_period,
        expires_at=1_800_000_000,
    )


def message_bytes(
    message: DmqMessage, *, body: bytes | None = None, kes_signature: bytes | None = None
) -> bytes:
    """`message` with some of its parts replaced; neither id nor signature is made anew."""
    return write_array(
        write_bytes(message.message_id),
        write_array(
            write_bytes(message.body if body is None else body),
            write_unsigned(message.kes_period),
            write_unsigned(message.expires_at),
        ),
        write_bytes(message.kes_signature if kes_signature is None else kes_signature),
        write_certificate(message.operational_certificate),
        write_bytes(message.cold_verification_key),
    )


def older_layout(message: DmqMessage) -> bytes:
    """The fields of `message` in the layout of four elements; its signature does not hold for that."""
    return write_array(
        write_array(
            write_bytes(message.message_id),
            write_bytes(message.body),
            write_unsigned(message.kes_period),
            write_unsigned(message.expires_at),
        ),
        write_bytes(message.kes_signature),
        write_certificate(message.operational_certificate),
        write_bytes(message.cold_verification_key),
    )


def announced(*messages: DmqMessage) -> submission.ReplyMessageIds:
    return submission.ReplyMessageIds(
        tuple(submission.MessageIdAndSize(each.message_id, len(each.raw)) for each in messages)
    )


def a_submission(capture: Capture, *messages: DmqMessage) -> Capture:
    """A whole run of message submission: announce, ask for, deliver, acknowledge, end."""
    protocol = MiniProtocol.MESSAGE_SUBMISSION
    ids = tuple(each.message_id for each in messages)
    supplier, puller = (INITIATOR, RESPONDER) if capture.version == 1 else (RESPONDER, INITIATOR)
    if capture.version == 1:
        capture.say(supplier, protocol, submission.Init())
    capture.say(puller, protocol, submission.RequestMessageIds(True, 0, 10))
    capture.say(supplier, protocol, announced(*messages))
    # Asked for together with more ids, before the first answer has come.
    capture.say(puller, protocol, submission.RequestMessages(ids))
    capture.say(puller, protocol, submission.RequestMessageIds(False, 0, 5))
    capture.say(supplier, protocol, submission.ReplyMessages(messages))
    capture.say(supplier, protocol, submission.ReplyMessageIds(()))
    capture.say(puller, protocol, submission.RequestMessageIds(True, len(messages), 10))
    if capture.version == 1:
        return capture.say(supplier, protocol, submission.Done())
    capture.say(supplier, protocol, submission.ReplyNoMessageIds())
    return capture.say(puller, protocol, submission.Done())


def a_node_connection(profile: str, submission_version: int = 1, cut: int = 12_288) -> Capture:
    """Handshake, keep-alive, peer sharing where the profile has them, and a run of submission."""
    capture = Capture(profile, submission_version, cut).handshake(ConnectionKind.NODE)
    if MiniProtocol.KEEP_ALIVE in capture.profile.numbers:
        capture.say(INITIATOR, MiniProtocol.KEEP_ALIVE, keep_alive.KeepAlive(0xBEEF))
        capture.say(RESPONDER, MiniProtocol.KEEP_ALIVE, keep_alive.KeepAliveResponse(0xBEEF))
        peers = (peer_sharing.PeerAddress("1.2.3.4", 3141), peer_sharing.PeerAddress("::1", 3142))
        capture.say(INITIATOR, MiniProtocol.PEER_SHARING, peer_sharing.ShareRequest(5))
        capture.say(RESPONDER, MiniProtocol.PEER_SHARING, peer_sharing.SharePeers(peers))
        capture.say(INITIATOR, MiniProtocol.PEER_SHARING, peer_sharing.Done())
    return a_submission(capture, a_message(b"one"), a_message(b"two"))


def a_local_connection(profile: str, cut: int = 12_288) -> Capture:
    """Handshake, a submission accepted and one rejected, and both kinds of notification."""
    capture = Capture(profile, cut=cut).handshake(ConnectionKind.CLIENT)
    submit, notify = MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
    one, two = a_message(b"one"), a_message(b"two")
    capture.say(INITIATOR, submit, local_submission.SubmitMessage(one))
    capture.say(RESPONDER, submit, local_submission.AcceptMessage())
    capture.say(INITIATOR, submit, local_submission.SubmitMessage(two))
    capture.say(RESPONDER, submit, local_submission.RejectMessage(local_submission.Invalid("no such pool")))
    capture.say(INITIATOR, submit, local_submission.Done())
    capture.say(INITIATOR, notify, local_notification.RequestMessages(False))
    capture.say(RESPONDER, notify, local_notification.ReplyMessagesNonBlocking((one, two), False))
    capture.say(INITIATOR, notify, local_notification.RequestMessages(True))
    capture.say(RESPONDER, notify, local_notification.ReplyMessagesBlocking((one,)))
    return capture.say(INITIATOR, notify, local_notification.ClientDone())
