"""Bytes of other implementations, and examples built from their codecs: read to the stated value, written back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2
import pytest

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.message import FIVE_AND_FOUR, FIVE_ONLY, DmqMessage, MessageLayout, read_message
from stagepost.dmq.profiles import PROFILES, MiniProtocol
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError
from stagepost.ground.crypto import kes
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.version_data import DMQ_CLIENT_V1, DMQ_VERSIONS, NETWORK_MAGICS, ConnectionKind
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.worlds.ground.strategies import MessageParts, written_head

FOLDER = Path(__file__).parents[2] / "vectors" / "dmq"


def vectors(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


BASE = {vector["id"]: vector for vector in vectors("base-protocols.json")["vectors"]}
DERIVED = {vector["id"]: vector for vector in vectors("derived-wire-examples.json")["messages"]}
MESSAGES = {vector["id"]: vector for vector in vectors("message-cbor.json")["vectors"]}
IDS = {vector["id"]: vector for vector in vectors("message-id.json")["vectors"]}
CONSTANTS = vectors("version-constants.json")


@dataclass(frozen=True)
class Place:
    """Where a vector is said."""

    protocol: MiniProtocol
    state: str
    version: int = 1

    def codec(self) -> Codec:
        return codec_for(PROFILES["dmq-node"], self.protocol, self.version, sizes=None)


PROPOSE = Place(MiniProtocol.HANDSHAKE, "Propose")
CONFIRM = Place(MiniProtocol.HANDSHAKE, "Confirm")
V1_INIT = Place(MiniProtocol.MESSAGE_SUBMISSION, "Init")
V1_IDLE = Place(MiniProtocol.MESSAGE_SUBMISSION, "Idle")
V1_BLOCKING = Place(MiniProtocol.MESSAGE_SUBMISSION, "MessageIdsBlocking")
V1_MESSAGES = Place(MiniProtocol.MESSAGE_SUBMISSION, "Messages")
V2_IDLE = Place(MiniProtocol.MESSAGE_SUBMISSION, "Idle", 2)
V2_BLOCKING = Place(MiniProtocol.MESSAGE_SUBMISSION, "MessageIdsBlocking", 2)
V2_NON_BLOCKING = Place(MiniProtocol.MESSAGE_SUBMISSION, "MessageIdsNonBlocking", 2)
V2_MESSAGES = Place(MiniProtocol.MESSAGE_SUBMISSION, "Messages", 2)
SUBMIT_IDLE = Place(MiniProtocol.LOCAL_MESSAGE_SUBMISSION, "Idle")
SUBMIT_BUSY = Place(MiniProtocol.LOCAL_MESSAGE_SUBMISSION, "Busy")
NOTIFY_IDLE = Place(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, "Idle")
NOTIFY_BLOCKING = Place(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, "BusyBlocking")
NOTIFY_NON_BLOCKING = Place(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, "BusyNonBlocking")

BASE_PLACES = {
    "handshake-propose": PROPOSE,
    "handshake-refuse-mismatch": CONFIRM,
    "handshake-refuse-refused": CONFIRM,
    "keepalive-request": Place(MiniProtocol.KEEP_ALIVE, "Client"),
    "keepalive-done": Place(MiniProtocol.KEEP_ALIVE, "Client"),
    "peersharing-request": Place(MiniProtocol.PEER_SHARING, "Idle"),
    "peersharing-done": Place(MiniProtocol.PEER_SHARING, "Idle"),
    "txsubmission2-request-ids": V1_IDLE,
    "txsubmission2-init": V1_INIT,
    "localtxsubmission-accept": SUBMIT_BUSY,
}
DERIVED_PLACES = {
    "v2-request-blocking": V2_IDLE,
    "v2-request-nonblocking": V2_IDLE,
    "v2-reply-ids": V2_BLOCKING,
    "v2-reply-ids-empty-nonblocking": V2_NON_BLOCKING,
    "v2-reply-no-ids": V2_BLOCKING,
    "v2-request-messages": V2_IDLE,
    "v2-reply-messages": V2_MESSAGES,
    "v2-done": V2_IDLE,
    "v1-init": V1_INIT,
    "v1-reply-ids": V1_BLOCKING,
    "v1-request-messages": V1_IDLE,
    "v1-reply-messages": V1_MESSAGES,
    "v1-done": V1_BLOCKING,
    "submit": SUBMIT_IDLE,
    "reject-invalid": SUBMIT_BUSY,
    "reject-already": SUBMIT_BUSY,
    "reject-expired": SUBMIT_BUSY,
    "reject-other": SUBMIT_BUSY,
    "reject-already-gouroboros-variant": SUBMIT_BUSY,
    "notify-request-nonblocking": NOTIFY_IDLE,
    "notify-request-blocking": NOTIFY_IDLE,
    "notify-reply-nonblocking": NOTIFY_NON_BLOCKING,
    "notify-reply-nonblocking-empty": NOTIFY_NON_BLOCKING,
    "notify-reply-blocking": NOTIFY_BLOCKING,
    "notify-reply-blocking-pallas-variant": NOTIFY_BLOCKING,
    "notify-reply-blocking-old-hasmore": NOTIFY_BLOCKING,
    "notify-done": NOTIFY_IDLE,
    "handshake-n2c-propose-mainnet": PROPOSE,
    "handshake-n2c-accept-mainnet": CONFIRM,
    "handshake-n2n-propose-preview": PROPOSE,
    "handshake-n2n-accept-v2": CONFIRM,
}


def offered(versions: tuple[handshake.OfferedVersion, ...]) -> dict[str, Any]:
    return {str(version.number): cbor2.loads(version.parameters) for version in versions}


def stated(message: Any) -> dict[str, Any]:
    """A message in the words of the vector files."""
    match message:
        case handshake.ProposeVersions(versions):
            return {"type": "ProposeVersions", "versions": offered(versions)}
        case handshake.AcceptVersion(version, parameters):
            return {"type": "AcceptVersion", "version": version, "data": cbor2.loads(parameters)}
        case handshake.Refuse(handshake.VersionMismatch(versions)):
            return {"type": "Refuse", "reason": "VersionMismatch", "versions": list(versions)}
        case handshake.Refuse(handshake.Refused(version, text)):
            return {"type": "Refuse", "reason": "Refused", "version": version, "text": text}
        case keep_alive.KeepAlive(cookie):
            return {"type": "KeepAlive", "cookie": cookie}
        case peer_sharing.ShareRequest(amount):
            return {"type": "ShareRequest", "amount": amount}
        case submission.RequestMessageIds(blocking, acknowledged, requested):
            return {"type": "RequestIds", "blocking": blocking, "ack": acknowledged, "req": requested}
        case submission.ReplyMessageIds(ids):
            pairs = [[announced.message_id.hex(), announced.size_in_bytes] for announced in ids]
            return {"type": "ReplyIds", "ids": pairs}
        case submission.ReplyNoMessageIds():
            return {"type": "ReplyNoIds"}
        case submission.RequestMessages(ids):
            return {"type": "RequestMessages", "ids": [message_id.hex() for message_id in ids]}
        case submission.ReplyMessages(messages):
            return {"type": "ReplyMessages", "count": len(messages)}
        case local_submission.SubmitMessage(DmqMessage()):
            return {"type": "Submit"}
        case local_submission.AcceptMessage():
            return {"type": "Accept"}
        case local_submission.RejectMessage(local_submission.Invalid(text)):
            return {"type": "Reject", "reason": "invalid", "text": text}
        case local_submission.RejectMessage(local_submission.AlreadyReceived()):
            return {"type": "Reject", "reason": "alreadyReceived"}
        case local_submission.RejectMessage(local_submission.Expired()):
            return {"type": "Reject", "reason": "expired"}
        case local_submission.RejectMessage(local_submission.Other(text)):
            return {"type": "Reject", "reason": "other", "text": text}
        case local_notification.RequestMessages(blocking):
            return {"type": "Request", "blocking": blocking}
        case local_notification.ReplyMessagesNonBlocking(messages, has_more):
            return {"type": "ReplyNonBlocking", "count": len(messages), "has_more": has_more}
        case local_notification.ReplyMessagesBlocking(messages):
            return {"type": "ReplyBlocking", "count": len(messages)}
        case _:
            return {"type": type(message).__name__}


def framed(data: bytes, place: Place) -> bytes | None:
    """The vector as it comes out of a stream that brings it byte by byte."""
    state = spec_for(PROFILES["dmq-node"], place.protocol, place.version).state(place.state)
    table = place.codec().table
    limits = ItemLimits(state.message_bytes_max, state.items_max, any_type=table.any_type)
    framer = Framer()
    item = None
    for position in range(len(data)):
        framer.feed(data[position : position + 1])
        item = framer.next_item(limits, headless_third=table.headless_third.get(place.state)) or item
    return item


def test_every_vector_of_the_two_files_is_placed() -> None:
    assert set(BASE_PLACES) == set(BASE)
    assert set(DERIVED_PLACES) == set(DERIVED)


@pytest.mark.parametrize("name", BASE)
def test_messages_of_other_implementations_are_read_and_written_back(name: str) -> None:
    vector, place = BASE[name], BASE_PLACES[name]
    data = bytes.fromhex(vector["cbor_hex"])
    codec = place.codec()

    message = codec.decode(data, place.state)

    assert stated(message) == vector["value"]
    assert codec.encode(message) == data
    assert framed(data, place) == data


@pytest.mark.parametrize("name", DERIVED)
def test_derived_examples_are_read_and_written_back(name: str) -> None:
    vector, place = DERIVED[name], DERIVED_PLACES[name]
    data = bytes.fromhex(vector["cbor_hex"])
    codec = place.codec()

    message = codec.decode(data, place.state)

    assert stated(message) == vector["value"]
    if vector.get("tolerant_only"):
        assert codec.encode(message) != data
        assert codec.decode(codec.encode(message), place.state) == message
    else:
        assert codec.encode(message) == data


@pytest.mark.parametrize("name", DERIVED)
def test_derived_examples_come_whole_out_of_a_stream(name: str) -> None:
    data = bytes.fromhex(DERIVED[name]["cbor_hex"])

    item = framed(data, DERIVED_PLACES[name])

    # The boolean that one old server wrote may come after its message; byte by byte it always does.
    late_boolean = name == "notify-reply-blocking-old-hasmore"
    assert item == (data[:-1] if late_boolean else data)


@pytest.mark.parametrize("name", [name for name in DERIVED if name.startswith("v")])
def test_derived_examples_of_submission_show_the_haskell_flavour_or_nothing(name: str) -> None:
    codec = DERIVED_PLACES[name].codec()
    codec.decode(bytes.fromhex(DERIVED[name]["cbor_hex"]), DERIVED_PLACES[name].state)

    assert codec.speaks.name == "haskell"


def test_toy_messages_are_refused_by_size_in_every_real_codec() -> None:
    for name in (
        "v2-reply-messages",
        "v1-reply-messages",
        "notify-reply-blocking",
        "notify-reply-nonblocking",
    ):
        place = DERIVED_PLACES[name]
        for profile in ("dmq-node", "gouroboros"):
            codec = codec_for(PROFILES[profile], place.protocol, place.version)
            with pytest.raises(DecodeError):
                codec.decode(bytes.fromhex(DERIVED[name]["cbor_hex"]), place.state)


# Messages


def test_the_current_layout_is_read_field_by_field_and_kept() -> None:
    vector = MESSAGES["pallas-current-5-element"]
    data, fields, facts = bytes.fromhex(vector["cbor_hex"]), vector["fields"], vector["crypto_facts"]
    reader = CborReader(data)

    message = read_message(reader, FIVE_ONLY, sizes=None)

    reader.finish("the message")
    certificate = message.operational_certificate
    assert message.encode() == data
    assert message.message_id.hex() == fields["message_id_hex"]
    assert message.body.hex() == fields["body_hex"]
    assert (message.kes_period, message.expires_at) == (fields["kes_period"], fields["expires_at"])
    assert message.kes_signature.hex() == fields["kes_signature_hex"]
    assert certificate.kes_verification_key.hex() == fields["opcert"]["kes_vk_hex"]
    assert certificate.issue_number == fields["opcert"]["issue_number"]
    assert certificate.start_kes_period == fields["opcert"]["start_kes_period"]
    assert certificate.cold_signature.hex() == fields["opcert"]["cold_signature_hex"]
    assert message.cold_verification_key.hex() == fields["cold_vk_hex"]
    assert message.pool_id.hex() == facts["derived_pool_id_hex"]
    assert certificate.verify(message.cold_verification_key) is facts["opcert_valid"]
    assert message.has_valid_id is facts["message_id_is_valid_hash"]


def test_the_signature_of_the_current_layout_is_valid_over_its_stated_text_only() -> None:
    vector = MESSAGES["pallas-current-5-element"]
    facts = vector["crypto_facts"]
    message = read_message(CborReader(bytes.fromhex(vector["cbor_hex"])), FIVE_ONLY, sizes=None)
    key = message.operational_certificate.kes_verification_key
    stated_text = bytes.fromhex(facts["kes_signature_is_valid_over_hex"])

    for period in range(64):
        assert kes.verify(key, period, stated_text, message.kes_signature) is (
            period == facts["kes_signature_valid_at_evolution"]
        )
    assert not kes.verify(key, 0, message.signed_bytes, message.kes_signature)


def test_the_older_layout_is_read_where_it_is_allowed() -> None:
    vector = MESSAGES["pallas-legacy-4-element"]
    data, fields = bytes.fromhex(vector["cbor_hex"]), vector["fields"]

    message = read_message(CborReader(data), FIVE_AND_FOUR, sizes=None)

    assert message.layout is MessageLayout.FOUR
    assert message.encode() == data
    assert message.message_id.hex() == fields["message_id_hex"]
    assert message.body.hex() == fields["body_hex"]
    assert (message.kes_period, message.expires_at) == (fields["kes_period"], fields["expires_at"])
    with pytest.raises(DecodeError, match="4 elements"):
        read_message(CborReader(data), FIVE_ONLY, sizes=None)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("profile", PROFILES)
def test_messages_of_toy_size_are_refused_by_size(name: str, profile: str) -> None:
    with pytest.raises(DecodeError):
        DmqMessage.decode(bytes.fromhex(MESSAGES[name]["cbor_hex"]), profile=profile)


# Ids


def payload_of(vector: dict[str, Any]) -> bytes:
    body = bytes.fromhex(vector["body_hex"])
    return (
        b"\x83"
        + written_head(2, len(body))
        + body
        + written_head(0, vector["kes_period"])
        + written_head(0, vector["expires_at"])
    )


def test_the_golden_id_is_the_hash_of_the_golden_payload() -> None:
    vector = IDS["cip-golden"]

    assert payload_of(vector).hex() == vector["derived_payload_cbor_hex"]
    assert blake2b(payload_of(vector), digest_size=32).hexdigest() == vector["message_id_hex"]


@pytest.mark.parametrize(
    ("name", "field", "valid"),
    [("cip-golden", "message_id_hex", True), ("mismatch", "bad_message_id_hex", False)],
)
def test_the_golden_id_is_accepted_and_its_neighbour_refused(name: str, field: str, valid: bool) -> None:
    vector = IDS[name]
    parts = MessageParts(
        message_id=bytes.fromhex(vector[field]),
        body=bytes.fromhex(vector["body_hex"]),
        kes_period=vector["kes_period"],
        expires_at=vector["expires_at"],
    )

    message = read_message(CborReader(parts.raw()), FIVE_ONLY, sizes=None)

    assert message.signed_bytes == payload_of(vector)
    assert message.has_valid_id is valid


# Constants


def test_version_numbers_are_those_of_running_nodes() -> None:
    assert CONSTANTS["n2c_v1_on_wire"] == DMQ_CLIENT_V1 == 1 | 1 << CONSTANTS["n2c_version_bit"]
    assert sorted(DMQ_VERSIONS[ConnectionKind.CLIENT]) == [CONSTANTS["n2c_v1_on_wire"]]
    assert sorted(DMQ_VERSIONS[ConnectionKind.NODE]) == CONSTANTS["n2n_versions"]


def test_network_magics_are_the_published_ones() -> None:
    assert dict(NETWORK_MAGICS) == CONSTANTS["network_magic"]


def test_mini_protocol_numbers_are_the_published_ones() -> None:
    names = {
        "sig-submission": "message-submission",
        "local-msg-submission": "local-message-submission",
        "local-msg-notification": "local-message-notification",
    }
    for file_name, profile_name in (("dmq-node", "dmq-node"), ("seed-documents", "seed")):
        ours = {protocol.value: number for protocol, number in PROFILES[profile_name].numbers.items()}
        for name, number in CONSTANTS["mini_protocol_numbers"][file_name].items():
            assert ours[names.get(name, name)] == number
