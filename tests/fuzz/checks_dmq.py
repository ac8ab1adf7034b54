"""What must hold for the decoders of DMQ: the message, the handshake and every mini-protocol in every state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from stagepost.dmq import local_notification, local_submission
from stagepost.dmq.message import LAYOUTS_BY_PROFILE, DmqMessage, MessageLayout, read_message
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError, RemoteProtocolError
from stagepost.ground.net import handshake
from stagepost.ground.net.handshake import ProposeVersions
from stagepost.ground.net.version_data import DMQ_NODE_V1, VersionShape, read_version_data, write_version_data
from stagepost.ground.statemachine.spec import State
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.fuzz.checks_wire import independent
from tests.fuzz.harness import Verdict, attempt, require
from tests.fuzz.samples import all_terms, profiles_with

# Message


def check_message(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for profile, layouts in LAYOUTS_BY_PROFILE.items():
        message = attempt(partial(DmqMessage.decode, data, profile=profile), len(data), DecodeError)
        if message is None:
            continue
        require(message.layout in layouts, f"{profile} accepted the layout {message.layout}")
        require(message.raw == data == message.encode(), "the message does not keep its bytes")
        require(message.signed_bytes in data, "the signed bytes are not a piece of the message")
        # Without sizes the message is read item by item, so the two ways of reading check each other.
        require(
            message == read_message(CborReader(data), layouts, None), "the quick way reads another message"
        )
        other = independent(data)
        require(other is not None and other.end == len(data), "cbor2 refuses what was accepted")
        assert other is not None
        require(_fields(message) == other.value, f"cbor2 reads {other.value!r}")
        # Values that may not be signed must still be answered, not raise.
        _ = message.has_valid_id, message.pool_id, message.kes_evolution, message.key
        verdict = Verdict.AGREED
    return verdict


def _fields(message: DmqMessage) -> list[Any]:
    payload: list[Any] = [message.body, message.kes_period, message.expires_at]
    certificate = message.operational_certificate
    rest = [
        message.kes_signature,
        [
            certificate.kes_verification_key,
            certificate.issue_number,
            certificate.start_kes_period,
            certificate.cold_signature,
        ],
        message.cold_verification_key,
    ]
    if message.layout is MessageLayout.FOUR:
        return [[message.message_id, *payload], *rest]
    return [message.message_id, payload, *rest]


# Mini-protocols


class Place(NamedTuple):
    """A state of a conversation, and the profiles that have it: they read alike and write differently."""

    protocol: MiniProtocol
    version: int
    state: State
    limits: ItemLimits
    headless_third: bytes | None
    profiles: list[Profile]

    def codec(self, choice: int = 0) -> Codec:
        return codec_for(self.profiles[choice % len(self.profiles)], self.protocol, self.version)


def places(*protocols: MiniProtocol, versions: Sequence[int] = (1,)) -> list[Place]:
    """Every state in which something can be said, of every spec."""
    found: dict[tuple[str, str], Place] = {}
    for protocol in protocols:
        for profile in profiles_with(protocol):
            for version in versions:
                spec = spec_for(profile, protocol, version)
                table = codec_for(profile, protocol, version).table
                for state in spec.states:
                    if state.speaker is None:
                        continue
                    limits = ItemLimits(state.message_bytes_max, state.items_max, any_type=table.any_type)
                    headless_third = table.headless_third.get(state.name)
                    place = Place(protocol, version, state, limits, headless_third, [])
                    found.setdefault((spec.name, state.name), place).profiles.append(profile)
    return list(found.values())


def conversation_check(where: Sequence[Place]) -> Callable[[bytes], Verdict]:
    """A check that hears the bytes in each of the places."""

    def check(data: bytes) -> Verdict:
        choice = crc32(data)
        framed: dict[tuple[ItemLimits, bytes | None], bytes | None] = {}
        verdict = Verdict.REFUSED
        for place in where:
            framing = place.limits, place.headless_third
            if framing not in framed:
                bound = max(len(data), place.limits.bytes_max)
                framed[framing] = attempt(partial(_first_item, data, *framing), bound)
            item = framed[framing]
            if item is not None:
                verdict = max(verdict, _hear(item, place, choice))
        # Even bytes that no one frames as one message must get an orderly answer from the codec.
        place = where[choice % len(where)]
        attempt(lambda: place.codec().decode(data, place.state.name), len(data))
        return verdict

    return check


def _first_item(data: bytes, limits: ItemLimits, headless_third: bytes | None) -> bytes | None:
    """As a conversation takes it from its channel, here in two pieces; what follows is framed as well."""
    framer = Framer()
    items: list[bytes] = []
    # A boolean that comes late is told from the next message only if it is in another piece than the rest.
    cut = len(data) // 2 if headless_third is None else len(data) - 1
    for piece in (data[:cut], data[cut:]):
        framer.feed(piece)
        while True:
            try:
                item = framer.next_item(limits, headless_third=headless_third)
            except DecodeError:
                if not items:
                    raise
                return items[0]
            require(framer.offset + framer.buffered <= len(data), "more bytes came out than went in")
            if item is None:
                break
            require(bool(item), "an item of no bytes")
            items.append(item)
    require(framer.offset + framer.buffered == len(data), "bytes went missing")
    require(not items or data.startswith(items[0]), "the item is not the beginning of the stream")
    return items[0] if items else None


def _hear(item: bytes, place: Place, choice: int) -> Verdict:
    codec = place.codec(choice)
    heard = attempt(lambda: (codec.decode(item, place.state.name),), len(item))
    if heard is None:
        return Verdict.REFUSED
    (message,) = heard
    again = codec.encode(message)
    _check_said_again(message, again, place, choice)
    return _compare(message, item, again)


def _check_said_again(message: object, again: bytes, place: Place, choice: int) -> None:
    """What was heard can be said in the dialect it came in, and is heard alike."""
    same = place.codec(choice).decode(again, place.state.name)
    require(same == message, f"{message} is heard differently again")
    # A list that came with its length may go out with a break, which is one byte more.
    length_max = place.limits.bytes_max + 1
    require(len(again) <= length_max, f"{type(message).__name__} of {len(again)} bytes cannot be said again")


# Read and forgotten: a text behind a reason that has none, a boolean behind a blocking reply.
_WITH_SURPLUS = (local_submission.RejectMessage, local_notification.ReplyMessagesBlocking)


def _compare(message: object, item: bytes, again: bytes) -> Verdict:
    other = independent(item)
    if other is None:
        require(_is_tolerance(message), f"cbor2 refuses what was accepted as {type(message).__name__}")
        return Verdict.ACCEPTED
    require(other.end == len(item), f"cbor2 stops at {other.end} of {len(item)} bytes")
    # The same bytes mean the same. Asked twice, cbor2 may show one set in two orders: NaN has no stable hash.
    if again != item and not isinstance(message, _WITH_SURPLUS):
        ours = independent(again)
        require(ours is not None and repr(ours.value) == repr(other.value), f"cbor2 reads {other.value!r}")
    return Verdict.AGREED


def _is_tolerance(message: object) -> bool:
    """Whether we may accept what cbor2 refuses."""
    match message:
        case local_notification.ReplyMessagesBlocking():  # its third element is announced and may be missing
            return True
        case local_submission.SubmitMessage(message=MalformedMessage()):  # a text that is no UTF-8
            return True
    return type(message).__module__ == handshake.__name__  # its data may hold tags that cbor2 acts on


# Handshake

_HANDSHAKE_PLACES = places(MiniProtocol.HANDSHAKE)
_hear_handshake = conversation_check(_HANDSHAKE_PLACES)


def check_handshake(data: bytes) -> Verdict:
    verdict = max(_check_version_data(data), _hear_handshake(data))
    place = _HANDSHAKE_PLACES[0]
    proposal = attempt(lambda: place.codec().decode(data, handshake.PROPOSE.name), len(data))
    if isinstance(proposal, ProposeVersions):
        _check_answers(proposal, place)
    reply = attempt(lambda: place.codec().decode(data, handshake.CONFIRM.name), len(data))
    if reply is not None:
        for terms in all_terms():
            attempt(partial(handshake.conclude, reply, terms), len(data))
    return verdict


def _check_answers(proposal: ProposeVersions, place: Place) -> None:
    for terms in all_terms():
        try:
            said, agreement = handshake.answer(proposal, terms)
        except RemoteProtocolError:
            continue
        encoded = place.codec().encode(said)
        require(len(encoded) <= handshake.MESSAGE_BYTES_MAX, f"the answer has {len(encoded)} bytes")
        require(place.codec().decode(encoded, handshake.CONFIRM.name) == said, "our own answer is unreadable")
        if agreement is None:
            require(isinstance(said, handshake.Refuse), "agreed upon nothing, and not refused")
        else:
            require(agreement.version in terms.versions, f"agreed upon version {agreement.version}")
            require(agreement.network_magic == terms.ours.network_magic, "agreed upon another network")


def _check_version_data(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for shape in VersionShape:
        value = attempt(partial(read_version_data, data, DMQ_NODE_V1, shape), len(data), DecodeError)
        if value is not None:
            require(write_version_data(value, shape) == data, f"{shape.name} would be written differently")
            verdict = Verdict.ACCEPTED
    return verdict
