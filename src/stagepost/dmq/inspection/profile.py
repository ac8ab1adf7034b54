"""Which wire profile a capture shows, and by what: evidence is gathered as it passes and weighed at the end."""

from __future__ import annotations

from functools import cache

from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.inspection.report import Evidence
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, SEED, MiniProtocol
from stagepost.dmq.submission import Flavour
from stagepost.ground.net.version_data import is_cardano
from stagepost.ground.wire.cbor import INDEFINITE_ARRAY
from stagepost.ground.wire.mux import Direction

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
_TWO_ELEMENTS = 0x82


@cache
def profiles_with(number: int) -> tuple[str, ...]:
    """The profiles in which `number` is a mini-protocol, in their usual order."""
    return tuple(profile.name for profile in PROFILES.values() if profile.protocol(number) is not None)


class ProfileEvidence:
    """Keeps the first piece of each kind, so that its size does not grow with the capture."""

    def __init__(self) -> None:
        self._found: dict[str, Evidence] = {}
        self._flavours: dict[str, None] = {}

    @property
    def found(self) -> tuple[Evidence, ...]:
        return tuple(self._found.values())

    @property
    def flavours(self) -> tuple[str, ...]:
        return tuple(self._flavours)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles that all evidence allows."""
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
        """What the way in which `message` was written shows."""
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
            self._found[text] = Evidence(offset, direction, text, frozenset(profiles))
