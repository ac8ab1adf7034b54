"""The rules of the handshake that its state graph cannot hold, seen from outside of both sides."""

from __future__ import annotations

from itertools import pairwise

from stagepost.dmq.inspection.faults import Fault, fault_of
from stagepost.dmq.inspection.report import Agreed
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
    read_version_data,
)

_KNOWN: dict[int, tuple[ConnectionKind, VersionShape]] = {
    number: (kind, shape)
    for versions in (CARDANO_VERSIONS, DMQ_VERSIONS)
    for kind, shapes in versions.items()
    for number, shape in shapes.items()
}
_VERSION_AT = 2  # behind the head of the answer and its tag, one byte each


def version_data(offered: OfferedVersion) -> VersionData | None:
    """None if the version is unknown, or its data have another shape than they should."""
    if offered.number not in _KNOWN:
        return None
    try:
        return read_version_data(offered.parameters, offered.number, _KNOWN[offered.number][1])
    except DecodeError:
        return None


class HandshakeRules:
    """One handshake. `agreed` is what it came to; `ended_by` names the answer after which nothing may follow."""

    def __init__(self) -> None:
        self.agreed: Agreed | None = None
        self.ended_by: str | None = None
        self.is_over = False
        self._proposed: tuple[OfferedVersion, ...] | None = None

    @property
    def submission_version(self) -> int | None:
        if self.agreed is None:
            return None
        return 2 if self.agreed.version == DMQ_NODE_V2 else 1

    def heard(self, message: object, item: bytes, base: int) -> Fault | None:
        """`item` are the bytes of `message`, which begin at lane offset `base`."""
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

    def _accepted(self, accepted: OfferedVersion, item: bytes, base: int) -> Fault | None:
        number = accepted.number
        proposal = self._proposal(number)
        if self._proposed is not None and proposal is None:
            proposed = ", ".join(str(offered.number) for offered in self._proposed) or "none"
            text = f"version {number} was accepted, which was not proposed"
            return Fault(
                base + _VERSION_AT,
                ErrorCode.HANDSHAKE_NO_VERSION,
                "VersionNotProposed",
                text,
                f"one of the proposed versions ({proposed}), or Refuse",
                "Confirm",
                base,
            )
        if number not in _KNOWN:
            self.agreed = Agreed(number)
            return None
        data_at = base + len(item) - len(accepted.parameters)
        kind, shape = _KNOWN[number]
        try:
            theirs = read_version_data(accepted.parameters, number, shape)
        except DecodeError as error:
            wanted = f"data of the form [{', '.join(shape.value)}]"
            fault = fault_of(error, base=data_at, allowed=wanted, state="Confirm")
            return Fault(fault.at, fault.code, fault.rule, fault.text, fault.allowed, "Confirm", base)
        ours = None if proposal is None else version_data(proposal)
        if ours is not None and ours.network_magic != theirs.network_magic:
            text = f"network magic {theirs.network_magic} was answered, {ours.network_magic} was proposed"
            return Fault(
                data_at + (shape is not VersionShape.MAGIC),
                ErrorCode.HANDSHAKE_WRONG_NETWORK,
                "WrongNetworkMagic",
                text,
                f"network magic {ours.network_magic}, or Refuse",
                "Confirm",
                base,
            )
        self.agreed = Agreed(number, kind.value, theirs.network_magic, _sharing(ours, theirs))
        return None

    def _crossed(self, theirs: tuple[OfferedVersion, ...]) -> None:
        """Both sides proposed at the same time: both pick the highest common version."""
        common = [
            offered for offered in theirs if self._proposal(offered.number) and offered.number in _KNOWN
        ]
        if common:
            chosen = max(common, key=lambda offered: offered.number)
            data = version_data(chosen)
            magic = None if data is None else data.network_magic
            self.agreed = Agreed(chosen.number, _KNOWN[chosen.number][0].value, magic)

    def _unasked_query(self, base: int) -> Fault | None:
        if self._proposed is None:
            return None
        known = [data for data in map(version_data, self._proposed) if data is not None]
        if not known or any(data.query for data in known):
            return None
        return Fault(
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


def _unordered(versions: tuple[OfferedVersion, ...], base: int, state: str) -> Fault | None:
    # Versions that nobody here knows may stand anywhere.
    numbers = [offered.number for offered in versions if offered.number in _KNOWN]
    if all(earlier < later for earlier, later in pairwise(numbers)):
        return None
    text = f"the proposed versions {', '.join(map(str, numbers))} are not in strictly ascending order"
    allowed = f"the versions as {', '.join(map(str, sorted(set(numbers))))}"
    return Fault(base, ErrorCode.CBOR_INVALID, "VersionsNotAscending", text, allowed, state, base)


def _sharing(ours: VersionData | None, theirs: VersionData) -> bool | None:
    if ours is None:
        return None
    one_way = ours.initiator_only or theirs.initiator_only
    return ours.peer_sharing and theirs.peer_sharing and not one_way
