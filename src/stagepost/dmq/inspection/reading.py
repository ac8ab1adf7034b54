"""Turns whole items of a lane into typed messages, or into the fault that keeps them from being one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stagepost.dmq.inspection.faults import (
    MESSAGE_TOO_LONG,
    NOT_IN_THIS_STATE,
    OUT_OF_TURN,
    Fault,
    fault_of,
    side,
)
from stagepost.dmq.inspection.lane import Lane
from stagepost.dmq.local_submission import SubmitMessage
from stagepost.dmq.message import read_message
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.specs import codec_for
from stagepost.errors import DecodeError, ErrorCode, ProtocolError
from stagepost.ground.statemachine.spec import State
from stagepost.ground.wire.cbor import Reader
from stagepost.ground.wire.framing import ItemLimits
from stagepost.ground.wire.layout import read_head

_SUBMITTED_MESSAGE_AT = 2  # behind the head and tag of a submission, one byte each


@dataclass(frozen=True, slots=True)
class Said:
    """One whole message of a lane. `flavour` is None if every dialect writes it so."""

    base: int  # lane offset at which it begins
    item: bytes
    message: Any
    state: str
    flavour: str | None


class MessageReader:
    """Reads for one instance. Unless it `knows_state`, one direction alone does not tell where things were said."""

    def __init__(
        self, profile: Profile, protocol: MiniProtocol, submission_version: int, *, knows_state: bool
    ) -> None:
        self._knows_state = knows_state
        self._profile = profile
        self._codec = codec_for(profile, protocol, submission_version)

    def take(self, lane: Lane, states: Sequence[State], allowed: str) -> Said | Fault | None:
        """The lane's next message; None while it is not complete."""
        table = self._codec.table
        limits = ItemLimits(
            max(state.message_bytes_max for state in states),
            max(state.items_max for state in states),
            any_type=table.any_type,
        )
        headless = next(filter(None, (table.headless_third.get(state.name) for state in states)), None)
        only = states[0].name if len(states) == 1 else ""
        try:
            item = lane.next_item(limits, headless)
        except DecodeError as error:
            return fault_of(error, base=lane.offset, allowed=allowed, state=only)
        if item is None:
            return None
        try:
            return self._read(item, lane.offset - len(item), states, allowed)
        except ProtocolError as error:
            fault = fault_of(error, base=lane.offset - len(item), allowed=allowed, state=only)
        if not self._knows_state and fault.rule == NOT_IN_THIS_STATE:
            text = f"{table.protocol}: the {side(lane.role)} never says such a message"
            return replace(fault, text=text, rule=OUT_OF_TURN)
        return fault

    def _read(self, item: bytes, base: int, states: Sequence[State], allowed: str) -> Said | Fault:
        table = self._codec.table
        head = read_head(Reader(item))
        knowing = [state for state in states if table.layout_for(state.name, *head) is not None]
        state = (knowing or states)[0]
        name = state.name if len(knowing) == 1 or len(states) == 1 else ""
        limit = max(each.message_bytes_max for each in knowing or states)
        if len(item) > limit:
            text = f"the message has {len(item)} bytes, the limit in {state.name} is {limit}"
            return Fault(base, ErrorCode.CBOR_LIMIT, MESSAGE_TOO_LONG, text, allowed, name, base)
        message = self._codec.decode(item, state.name)
        if isinstance(message, SubmitMessage) and isinstance(message.message, MalformedMessage):
            return self._malformed(message.message, base, name)
        known = table.layout_for(state.name, *head)
        dialect = known[1] if known is not None and len(table.dialects) > 1 else None
        return Said(base, item, message, name, None if dialect is None else dialect.name)

    def _malformed(self, submitted: MalformedMessage, base: int, state: str) -> Fault:
        """Nodes close or reject here, and none takes the message. It is read again to learn the place."""
        allowed = "a message of the layouts and sizes that this profile admits"
        error = DecodeError(submitted.text, code=submitted.code)
        try:
            read_message(Reader(submitted.raw), self._profile.message_layouts)
        except DecodeError as again:
            error = again
        fault = fault_of(error, base=base + _SUBMITTED_MESSAGE_AT, allowed=allowed, state=state)
        return replace(fault, message_at=base)
