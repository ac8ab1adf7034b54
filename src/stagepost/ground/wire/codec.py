"""Codecs: encode and decode the messages of one protocol instance, in whichever dialect the peer shows.

Published nodes number the messages of one protocol differently. The place of a message in the conversation
tells the dialects apart, so a decoder that knows the state reads all of them; we answer in the one that the
peer showed first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError, RemoteProtocolError, WireRule
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import KnownShape
from stagepost.ground.wire.layout import Layout, read_head
from stagepost.ground.wire.mux_queues import SharedBytes

BEGINNING_BYTES = 2
"""Bytes of the head and the tag of every message that has a usual shape."""


CONSTANT_BYTES_MAX = 4
"""Bytes of a message that consists of a tag and booleans; `decode_usual` looks up only messages of this length at most."""

_NONE = (None, None)


@dataclass(frozen=True)
class Dialect:
    """Published way of writing a protocol's messages."""

    name: str
    layouts: tuple[Layout, ...]


class CodecTable:
    """Layouts that may be read in each state, computed once for all instances of a protocol."""

    def __init__(
        self,
        protocol: str,
        said_in: Mapping[str, Collection[type[object]]],
        dialects: Sequence[Dialect],
        *,
        any_type: bool = False,
        headless_third: Mapping[str, bytes] | None = None,
        known_shape: KnownShape | None = None,
        shares_messages: bool = False,
    ) -> None:
        self.protocol = protocol
        self.dialects = tuple(dialects)
        self.any_type = any_type
        self.headless_third = dict(headless_third or {})
        self.known_shape = known_shape
        self.shares_messages = shares_messages
        self._last_written: tuple[Any, Layout, bytes] | None = None
        self._by_state: dict[str, dict[tuple[int, int], tuple[Layout, Dialect | None]]] = {}
        for state, messages in said_in.items():
            choices: dict[tuple[int, int], tuple[Layout, Dialect | None]] = {}
            for dialect in self.dialects:
                for layout in dialect.layouts:
                    if layout.message in messages:
                        _add_choice(choices, layout, dialect, f"{protocol} in {state}")
            self._by_state[state] = choices
        self.usual = {
            (state, layout.beginning): (layout, dialect)
            for state, choices in self._by_state.items()
            for layout, dialect in choices.values()
            if layout.usual_list is not None
        }
        self.constants = {
            (state, layout.write(message)): (message, dialect)
            for state, choices in self._by_state.items()
            for layout, dialect in choices.values()
            for message in layout.constants()
        }
        self.writers = {
            dialect.name: {layout.message: layout for layout in dialect.layouts} for dialect in self.dialects
        }

    def layout_for(self, state: str, length: int, tag: int) -> tuple[Layout, Dialect | None] | None:
        return self._by_state.get(state, {}).get((length, tag))

    def write(self, layout: Layout, message: Any) -> bytes:
        """Return the encoded message.

        A message that one instance has just sent is the next message of most others, so the table keeps the
        last one.
        """
        last = self._last_written
        if last is not None and last[1] is layout and last[0] == message:
            return last[2]
        written = SharedBytes(layout.write(message))
        self._last_written = (message, layout, written)
        return written

    def states_that_know(self, length: int, tag: int) -> list[str]:
        return [state for state, choices in self._by_state.items() if (length, tag) in choices]


def _add_choice(
    choices: dict[tuple[int, int], tuple[Layout, Dialect | None]],
    layout: Layout,
    dialect: Dialect,
    where: str,
) -> None:
    for length in layout.lengths:
        known = choices.get((length, layout.tag))
        if known is None:
            choices[length, layout.tag] = (layout, dialect)
        else:
            # Dialects may share a tag if it means the same message; such a message does not show the dialect.
            if known[0].message is not layout.message:
                raise LocalProtocolError(f"{where}: tag {layout.tag} means two things", found=layout.tag)
            choices[length, layout.tag] = (known[0], None)


class Codec:
    """Codec of one instance: the shared table, and the dialect that is spoken on this connection."""

    __slots__ = ("_settled", "speaks", "table")

    def __init__(self, table: CodecTable, speaks: str) -> None:
        self.table = table
        self.speaks = next(dialect for dialect in table.dialects if dialect.name == speaks)
        self._settled = len(table.dialects) == 1

    @property
    def is_settled(self) -> bool:
        """Return whether the peer has sent a message that only one dialect writes this way."""
        return self._settled

    def encode(self, message: Any) -> bytes:
        table = self.table
        layout = table.writers[self.speaks.name].get(type(message))
        if layout is None:
            text = f"{table.protocol}: {type(message).__name__} cannot be said in dialect {self.speaks.name}"
            raise LocalProtocolError(text, found=type(message).__name__)
        return table.write(layout, message) if table.shares_messages else layout.write(message)

    def decode_usual(self, data: bytes, state: str, items_max: int) -> Any | None:
        """Return the message if `data` is exactly one message in its usual shape, which needs no further
        check; else None."""
        table = self.table
        message: Any | None
        if len(data) <= CONSTANT_BYTES_MAX:
            message, dialect = table.constants.get((state, data), _NONE)
        else:
            layout, dialect = table.usual.get((state, data[:BEGINNING_BYTES]), _NONE)
            message = None if layout is None else layout.read_usual(data, items_max)
        if message is not None and dialect is not None and not self._settled:
            self.speaks = dialect
            self._settled = True
        return message

    def decode(self, data: bytes, state: str) -> Any:
        """Return the one whole message in `data`, sent in `state`; nothing may be left over."""
        message = self.decode_usual(data, state, len(data))
        if message is not None:
            return message
        reader = CborReader(data)
        length, tag = read_head(reader)
        found = self.table.layout_for(state, length, tag)
        if found is None:
            raise self._unknown(length, tag, state)
        layout, dialect = found
        message = layout.read_fields(reader, length)
        reader.finish(layout.message.__name__)
        if dialect is not None and not self._settled:
            self.speaks = dialect
            self._settled = True
        return message

    def _unknown(self, length: int, tag: int, state: str) -> RemoteProtocolError:
        protocol = self.table.protocol
        elsewhere = self.table.states_that_know(length, tag)
        if elsewhere:
            text = f"{protocol}: message [{tag}, …] of {length} elements said in {state}; it belongs in {', '.join(elsewhere)}"
            return RemoteProtocolError(text, code=ErrorCode.PROTOCOL_STATE, state=state, found=tag)
        text = f"{protocol}: no message of {length} elements has tag {tag} (state {state})"
        return DecodeError(
            text,
            code=ErrorCode.CBOR_INVALID,
            state=state,
            found=tag,
            offset=0,
            rule=WireRule.UNKNOWN_MESSAGE,
        )
