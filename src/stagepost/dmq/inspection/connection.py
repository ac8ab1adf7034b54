"""What holds for a whole connection: the handshake comes first, and it settles what may run behind it."""

from __future__ import annotations

from dataclasses import replace

from stagepost.dmq.inspection.faults import Fault
from stagepost.dmq.inspection.handshake import HandshakeRules
from stagepost.dmq.inspection.lane import Lane
from stagepost.dmq.inspection.reading import Said
from stagepost.dmq.inspection.report import Agreed
from stagepost.dmq.profiles import LOCAL_PROTOCOLS, MiniProtocol, Profile
from stagepost.errors import ErrorCode
from stagepost.ground.net.version_data import ConnectionKind
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.cbor import ARRAY, BYTE_STRING

_TWO_ELEMENTS = 0x82
_FOUR_ELEMENTS = 0x84
_EMPTY_LIST = 0x80
_LIST_AT = 2  # behind the message's head and tag, one byte each
_COUNT_WIDTHS = {0x98: 1, 0x99: 2}  # list heads that are followed by a count of so many bytes


class Connection:
    """`checks_order` is False where one direction alone does not tell what came first."""

    def __init__(self, *, checks_order: bool) -> None:
        self._checks_order = checks_order
        self._handshake = HandshakeRules()
        self._handshake_begun = False
        self._others_begun = False
        self.submission_seen: int | None = None

    @property
    def agreed(self) -> Agreed | None:
        return self._handshake.agreed

    def heard(self, said: Said, protocol: MiniProtocol) -> Fault | None:
        if protocol is not MiniProtocol.HANDSHAKE:
            return None
        return self._handshake.heard(said.message, said.item, said.base)

    def refuses(self, at: int, number: int, protocol: MiniProtocol) -> Fault | None:
        """Why a segment of `protocol` may not stand at offset `at` of the capture."""
        is_handshake = protocol is MiniProtocol.HANDSHAKE
        fault = self._out_of_order(is_handshake) if self._checks_order else None
        fault = fault or (None if is_handshake else self._not_agreed(number, protocol))
        self._handshake_begun |= is_handshake
        self._others_begun |= not is_handshake
        return None if fault is None else replace(fault, at=at)

    def _out_of_order(self, is_handshake: bool) -> Fault | None:
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

    def _not_agreed(self, number: int, protocol: MiniProtocol) -> Fault | None:
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

    def submission_version(self, profile: Profile, protocol: MiniProtocol, lane: Lane) -> int | None:
        """Which version this instance is: agreed, or told by its first message; None until enough of that is there."""
        if protocol is not MiniProtocol.MESSAGE_SUBMISSION:
            return 1
        version = 1 if profile.follows_documents else self._handshake.submission_version
        if version is None:
            version = _version_by_shape(lane)
        if version is not None:
            self.submission_seen = version
        return version


def _version_by_shape(lane: Lane) -> int | None:
    """In version 1 the initiator supplies, in version 2 it asks: who says such a thing tells which it is."""
    asks = _asks(lane.beginning)
    if asks is None:
        return None
    return 2 if asks is (lane.role is Role.CLIENT) else 1


def _asks(beginning: bytes) -> bool | None:
    """Whether a message of this beginning is an asker's; None if the bytes do not tell yet."""
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
    # Bare ids are asked for; pairs and messages, which are arrays, are supplied.
    return beginning[first_item_at] >> 5 == BYTE_STRING


def _refusal(rule: str, text: str, allowed: str, code: ErrorCode = ErrorCode.MUX_UNKNOWN_PROTOCOL) -> Fault:
    return Fault(0, code, rule, text, allowed)
