"""The rules of a whole connection in a capture, and the evidence for its wire profile.

The handshake comes first, and it settles what may run after it. `HandshakeRules` holds the rules that its
state graph cannot hold, seen from outside of both sides. `ProfileEvidence` gathers what the messages show
about the profile, and weighs it at the end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.inspection.following import CapturedMessage, CaptureLane
from stagepost.dmq.inspection.report import HandshakeResult, ProfileFeature
from stagepost.dmq.inspection.rules import UnplacedFault, fault_of
from stagepost.dmq.profiles import (
    DMQ_NODE,
    GOUROBOROS,
    LOCAL_PROTOCOLS,
    PROFILES,
    SEED,
    MiniProtocol,
    Profile,
)
from stagepost.dmq.submission import Flavour
from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.net.handshake import (
    AcceptVersion,
    OfferedVersion,
    ProposeVersions,
    QueryReply,
    Refuse,
    ReplyVersions,
)
from stagepost.ground.net.version_data import (
    CARDANO_VERSIONS,
    DMQ_NODE_V2,
    DMQ_VERSIONS,
    ConnectionKind,
    VersionData,
    VersionShape,
    is_cardano,
    read_version_data,
)
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.cbor import ARRAY, BYTE_STRING, INDEFINITE_ARRAY
from stagepost.ground.wire.mux import Direction

_KNOWN: dict[int, tuple[ConnectionKind, VersionShape]] = {
    number: (kind, shape)
    for versions in (CARDANO_VERSIONS, DMQ_VERSIONS)
    for kind, shapes in versions.items()
    for number, shape in shapes.items()
}
_VERSION_AT = 2  # behind the head of the answer and its tag, one byte each


def version_data(offered: OfferedVersion) -> VersionData | None:
    """Return the decoded data; None if the version is unknown, or its data do not have its shape."""
    if offered.number not in _KNOWN:
        return None
    try:
        return read_version_data(offered.parameters, offered.number, _KNOWN[offered.number][1])
    except DecodeError:
        return None


class HandshakeRules:
    """Rules of one handshake. `agreed` is its result; `ended_by` names the answer after which nothing may
    follow."""

    def __init__(self) -> None:
        self.agreed: HandshakeResult | None = None
        self.ended_by: str | None = None
        self.is_over = False
        self._proposed: tuple[OfferedVersion, ...] | None = None

    @property
    def submission_version(self) -> int | None:
        if self.agreed is None:
            return None
        return 2 if self.agreed.version == DMQ_NODE_V2 else 1

    def heard(self, message: object, item: bytes, base: int) -> UnplacedFault | None:
        """Return the fault in `message`, if any. `item` are its bytes, which begin at lane offset `base`."""
        match message:
            case ProposeVersions(versions):
                self._proposed = versions
                return _unordered(versions, base, "Propose")
            case AcceptVersion(version, parameters):
                self.is_over = True
                return self._accepted(OfferedVersion(version, parameters), item, base)
            case ReplyVersions(versions):
                self.is_over = True
                self._crossed(versions)
                return _unordered(versions, base, "Confirm")
            case QueryReply():
                self.is_over, self.ended_by = True, "QueryReply"
                return self._unasked_query(base)
            case Refuse():
                self.is_over, self.ended_by = True, "Refuse"
        return None

    def _accepted(self, accepted: OfferedVersion, item: bytes, base: int) -> UnplacedFault | None:
        number = accepted.number
        proposal = self._proposal(number)
        if self._proposed is not None and proposal is None:
            proposed = ", ".join(str(offered.number) for offered in self._proposed) or "none"
            text = f"version {number} was accepted, which was not proposed"
            return UnplacedFault(
                base + _VERSION_AT,
                ErrorCode.HANDSHAKE_NO_VERSION,
                "VersionNotProposed",
                text,
                f"one of the proposed versions ({proposed}), or Refuse",
                "Confirm",
                base,
            )
        if number not in _KNOWN:
            self.agreed = HandshakeResult(number)
            return None
        data_at = base + len(item) - len(accepted.parameters)
        kind, shape = _KNOWN[number]
        try:
            theirs = read_version_data(accepted.parameters, number, shape)
        except DecodeError as error:
            wanted = f"data of the form [{', '.join(shape.value)}]"
            fault = fault_of(error, base=data_at, allowed=wanted, state="Confirm")
            return UnplacedFault(fault.at, fault.code, fault.rule, fault.text, fault.allowed, "Confirm", base)
        ours = None if proposal is None else version_data(proposal)
        if ours is not None and ours.network_magic != theirs.network_magic:
            text = f"network magic {theirs.network_magic} was answered, {ours.network_magic} was proposed"
            return UnplacedFault(
                data_at + (shape is not VersionShape.MAGIC),
                ErrorCode.HANDSHAKE_WRONG_NETWORK,
                "WrongNetworkMagic",
                text,
                f"network magic {ours.network_magic}, or Refuse",
                "Confirm",
                base,
            )
        self.agreed = HandshakeResult(number, kind.value, theirs.network_magic, _sharing(ours, theirs))
        return None

    def _crossed(self, theirs: tuple[OfferedVersion, ...]) -> None:
        """Settle two proposals that crossed: both sides pick the highest common version."""
        common = [
            offered for offered in theirs if self._proposal(offered.number) and offered.number in _KNOWN
        ]
        if common:
            chosen = max(common, key=lambda offered: offered.number)
            data = version_data(chosen)
            magic = None if data is None else data.network_magic
            self.agreed = HandshakeResult(chosen.number, _KNOWN[chosen.number][0].value, magic)

    def _unasked_query(self, base: int) -> UnplacedFault | None:
        if self._proposed is None:
            return None
        known = [data for data in map(version_data, self._proposed) if data is not None]
        if not known or any(data.query for data in known):
            return None
        return UnplacedFault(
            base,
            ErrorCode.PROTOCOL_STATE,
            "QueryNotAsked",
            "a query was answered, but no proposed version asks for one",
            "responder: AcceptVersion or Refuse",
            "Confirm",
            base,
        )

    def _proposal(self, number: int) -> OfferedVersion | None:
        return next((offered for offered in self._proposed or () if offered.number == number), None)


def _unordered(versions: tuple[OfferedVersion, ...], base: int, state: str) -> UnplacedFault | None:
    # Unknown versions may stand anywhere.
    numbers = [offered.number for offered in versions if offered.number in _KNOWN]
    if all(earlier < later for earlier, later in pairwise(numbers)):
        return None
    text = f"the proposed versions {', '.join(map(str, numbers))} are not in strictly ascending order"
    allowed = f"the versions as {', '.join(map(str, sorted(set(numbers))))}"
    return UnplacedFault(base, ErrorCode.CBOR_INVALID, "VersionsNotAscending", text, allowed, state, base)


def _sharing(ours: VersionData | None, theirs: VersionData) -> bool | None:
    if ours is None:
        return None
    one_way = ours.initiator_only or theirs.initiator_only
    return ours.peer_sharing and theirs.peer_sharing and not one_way


_TWO_ELEMENTS = 0x82
_FOUR_ELEMENTS = 0x84
_EMPTY_LIST = 0x80
_LIST_AT = 2  # behind the message's head and tag, one byte each
_COUNT_WIDTHS = {0x98: 1, 0x99: 2}  # list heads that are followed by a count of so many bytes


class ConnectionRules:
    """Rules of one connection. `checks_order` is False if one direction alone does not show the order."""

    def __init__(self, *, checks_order: bool) -> None:
        self._checks_order = checks_order
        self._handshake = HandshakeRules()
        self._handshake_begun = False
        self._others_begun = False
        self.submission_seen: int | None = None

    @property
    def agreed(self) -> HandshakeResult | None:
        return self._handshake.agreed

    def heard(self, said: CapturedMessage, protocol: MiniProtocol) -> UnplacedFault | None:
        if protocol is not MiniProtocol.HANDSHAKE:
            return None
        return self._handshake.heard(said.message, said.item, said.base)

    def refuses(self, at: int, number: int, protocol: MiniProtocol) -> UnplacedFault | None:
        """Return why a segment of `protocol` may not stand at offset `at` of the capture; None if it may."""
        is_handshake = protocol is MiniProtocol.HANDSHAKE
        fault = self._out_of_order(is_handshake) if self._checks_order else None
        fault = fault or (None if is_handshake else self._not_agreed(number, protocol))
        self._handshake_begun |= is_handshake
        self._others_begun |= not is_handshake
        return None if fault is None else replace(fault, at=at)

    def _out_of_order(self, is_handshake: bool) -> UnplacedFault | None:
        ended_by = self._handshake.ended_by
        if ended_by is not None:
            text = f"a segment follows {ended_by}, which ended the connection"
            return _refusal("AfterTheEnd", text, "nothing: the connection is over", ErrorCode.PROTOCOL_STATE)
        if is_handshake and self._others_begun and not self._handshake_begun:
            text = "a handshake begins after other mini-protocols have run"
            return _refusal("HandshakeNotFirst", text, "the handshake as the first of all")
        if not is_handshake and self._handshake_begun and not self._handshake.is_over:
            text = "another mini-protocol begins before the handshake has ended"
            return _refusal("HandshakeNotFirst", text, "mini-protocol 0 until a version is accepted")
        return None

    def _not_agreed(self, number: int, protocol: MiniProtocol) -> UnplacedFault | None:
        agreed = self._handshake.agreed
        if agreed is None or agreed.kind is None:
            return None
        is_local = protocol in LOCAL_PROTOCOLS
        if is_local is not (agreed.kind == ConnectionKind.CLIENT.value):
            text = f"{protocol.value} ({number}) does not run on a {agreed.kind} connection, which version {agreed.version} makes"
            return _refusal("NotOnThisConnection", text, f"the mini-protocols of {agreed.kind} connections")
        if protocol is MiniProtocol.PEER_SHARING and agreed.peer_sharing is False:
            text = "peer sharing runs, but the two sides did not agree to it"
            return _refusal("PeerSharingNotAgreed", text, "the other mini-protocols")
        return None

    def submission_version(self, profile: Profile, protocol: MiniProtocol, lane: CaptureLane) -> int | None:
        """Return the version of this instance, from the handshake or its first message; None until enough
        bytes are there."""
        if protocol is not MiniProtocol.MESSAGE_SUBMISSION:
            return 1
        version = 1 if profile.follows_documents else self._handshake.submission_version
        if version is None:
            version = _version_by_shape(lane)
        if version is not None:
            self.submission_seen = version
        return version


def _version_by_shape(lane: CaptureLane) -> int | None:
    """Return the version by the side that asks: the initiator supplies in version 1 and asks in version 2."""
    asks = _asks(lane.beginning)
    if asks is None:
        return None
    return 2 if asks is (lane.role is Role.CLIENT) else 1


def _asks(beginning: bytes) -> bool | None:
    """Return whether a message with this beginning asks for something; None if the bytes do not show that
    yet."""
    if not beginning:
        return None
    if beginning[0] != _TWO_ELEMENTS:
        return beginning[0] == _FOUR_ELEMENTS  # [tag, blocking, acknowledged, requested]
    if len(beginning) <= _LIST_AT:
        return None
    list_head = beginning[_LIST_AT]
    if list_head >> 5 != ARRAY or list_head == _EMPTY_LIST:
        return False
    first_item_at = _LIST_AT + 1 + _COUNT_WIDTHS.get(list_head, 0)
    if len(beginning) <= first_item_at:
        return None
    # A request lists bare ids; replies list pairs or messages, which are arrays.
    return beginning[first_item_at] >> 5 == BYTE_STRING


def _refusal(
    rule: str, text: str, allowed: str, code: ErrorCode = ErrorCode.MUX_UNKNOWN_PROTOCOL
) -> UnplacedFault:
    return UnplacedFault(0, code, rule, text, allowed)


_BY_FLAVOUR = {Flavour.HASKELL.value: DMQ_NODE.name, Flavour.CIP.value: GOUROBOROS.name}
_WITH_LIST = (
    submission.ReplyMessageIds,
    submission.RequestMessages,
    submission.ReplyMessages,
    local_notification.ReplyMessagesNonBlocking,
    local_notification.ReplyMessagesBlocking,
)
_SHORT_REASONS = (local_submission.AlreadyReceived, local_submission.Expired)
_FIRST_FIELD_AT = 2  # behind the message's head and tag, one byte each


@cache
def profiles_with(number: int) -> tuple[str, ...]:
    """Return the profiles in which `number` is a mini-protocol, in their usual order."""
    return tuple(profile.name for profile in PROFILES.values() if profile.protocol(number) is not None)


class ProfileEvidence:
    """Evidence for the wire profile. It keeps the first piece of each kind, so its size does not grow with
    the capture."""

    def __init__(self) -> None:
        self._found: dict[str, ProfileFeature] = {}
        self._flavours: dict[str, None] = {}

    @property
    def found(self) -> tuple[ProfileFeature, ...]:
        return tuple(self._found.values())

    @property
    def flavours(self) -> tuple[str, ...]:
        return tuple(self._flavours)

    @property
    def profiles(self) -> tuple[str, ...]:
        """Profiles that all evidence allows."""
        return tuple(
            name for name in PROFILES if all(name in piece.profiles for piece in self._found.values())
        )

    def number(self, number: int, protocol: MiniProtocol, offset: int, direction: Direction) -> None:
        if protocol is not MiniProtocol.HANDSHAKE:
            self._add(f"{protocol.value} {number}", offset, direction, *profiles_with(number))

    def version(self, version: int, offset: int, direction: Direction) -> None:
        if is_cardano(version):
            self._add(f"Cardano's version {version} accepted", offset, direction, SEED.name)

    def message(
        self,
        message: object,
        item: bytes,
        flavour: str | None,
        number: int,
        offset: int,
        direction: Direction,
    ) -> None:
        """Add the evidence in the form in which `message` was written."""
        if flavour is not None:
            self._flavours.setdefault(flavour)
        if SEED.name in profiles_with(number):
            return  # the number says it all, and readers there take either way of writing
        if flavour is not None:
            self._add(f"{flavour} tags", offset, direction, _BY_FLAVOUR[flavour])
        if isinstance(message, _WITH_LIST):
            if item[_FIRST_FIELD_AT] == INDEFINITE_ARRAY:
                self._add("indefinite lists", offset, direction, DMQ_NODE.name)
            else:
                self._add("definite lists", offset, direction, GOUROBOROS.name)
        if isinstance(message, local_submission.RejectMessage) and isinstance(message.reason, _SHORT_REASONS):
            if item[_FIRST_FIELD_AT] == _TWO_ELEMENTS:
                self._add("reject reasons 1 and 2 with two elements", offset, direction, GOUROBOROS.name)
            else:
                self._add("reject reasons 1 and 2 with one element", offset, direction, DMQ_NODE.name)

    def _add(self, text: str, offset: int, direction: Direction, *profiles: str) -> None:
        if text not in self._found:
            self._found[text] = ProfileFeature(offset, direction, text, frozenset(profiles))
