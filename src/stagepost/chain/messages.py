"""External messages as the chain reads them: its own canonical form, and bags of cells where the chain takes
those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

import msgspec

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.message_values import CELLS_MAGIC, NEVER, ReadMessage
from stagepost.errors import DecodeError, ErrorCode, TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, Reader, Writer, constructor_bytes, constructor_id
from stagepost.remp.message import MESSAGE_BYTES_MAX, ExternalMessage

MESSAGE_ID = constructor_id(
    "stagepost.chain.message workchain:int account:int256 expires_at:int salt:long body:bytes "
    "= stagepost.chain.Message"
)
DRAFT_ID = constructor_id(
    "stagepost.chain.draft workchain:int account:int256 life:int salt:long body:bytes = stagepost.chain.Draft"
)
_TWIN_ID = constructor_id("stagepost.chain.twin expires_at:int body:bytes = stagepost.chain.Twin")
CLIENT_LIFE_S = 60
"""Seconds, by default, from the first transmission on a direct link to the expiry."""

LIFE_S_MAX = 7 * 86_400
"""Seconds, at most, from the first transmission of a draft to its expiry: no chain looks further ahead."""

REMEMBERED_BYTES_MAX = 1_024
REMEMBERED_MAX = 4_096


_DRAFT = constructor_bytes(DRAFT_ID)


class CanonicalMessage(msgspec.Struct, frozen=True):
    """`salt` distinguishes messages that would be equal: it changes the id and leaves the uid as it is. The
    expiry is part of the uid: messages with one uid expire together.
    """

    account: bytes
    body: bytes
    expires_at_s: int = NEVER
    salt: int = 0
    workchain: int = WORKCHAIN

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(MESSAGE_ID)
        writer.write_int(self.workchain)
        writer.write_int256(self.account)
        writer.write_unsigned_int(self.expires_at_s)
        writer.write_long(self.salt)
        writer.write_bytes(self.body)
        return writer.written()

    @property
    def uid(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_TWIN_ID)
        writer.write_unsigned_int(self.expires_at_s)
        writer.write_bytes(self.body)
        return sha256(writer.written()).digest()

    @classmethod
    def decode(cls, data: bytes) -> CanonicalMessage:
        reader = Reader(data)
        reader.read_constructor(MESSAGE_ID)
        workchain, account = reader.read_int(), reader.read_int256()
        expires_at_s, salt = reader.read_unsigned_int(), reader.read_long()
        body = reader.read_bytes(MESSAGE_BYTES_MAX, "body")
        reader.expect_end()
        return cls(account, body, expires_at_s, salt, workchain)


class MessageDraft(msgspec.Struct, frozen=True):
    """A message without the second at which it expires. An outbox keeps a draft; its first transmission fixes the second,
    `life_s` later, and so the id of the message.
    """

    account: bytes
    body: bytes
    life_s: int
    salt: int = 0
    workchain: int = WORKCHAIN

    def stamped(self, first_sent_ms: int) -> CanonicalMessage:
        """Return the message that was first sent at `first_sent_ms`, in Unix milliseconds."""
        expires_at_s = -(-first_sent_ms // 1_000) + self.life_s
        return CanonicalMessage(self.account, self.body, expires_at_s, self.salt, self.workchain)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(DRAFT_ID)
        writer.write_int(self.workchain)
        writer.write_int256(self.account)
        writer.write_unsigned_int(self.life_s)
        writer.write_long(self.salt)
        writer.write_bytes(self.body)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> MessageDraft:
        reader = Reader(data)
        reader.read_constructor(DRAFT_ID)
        workchain, account = reader.read_int(), reader.read_int256()
        life_s, salt = reader.read_unsigned_int(), reader.read_long()
        body = reader.read_bytes(MESSAGE_BYTES_MAX, "body")
        reader.expect_end()
        if not 1 <= life_s <= LIFE_S_MAX:
            raise TlDecodeError(
                f"{life_s} s is not a valid life of a draft; it is 1 to {LIFE_S_MAX} s",
                limit=LIFE_S_MAX,
                found=life_s,
            )
        return cls(account, body, life_s, salt, workchain)


def draft_of(data: bytes, life_s: int) -> MessageDraft | None:
    """Return the draft of a message that has no expiry; None for one that has, and for all other bytes."""
    try:
        message = CanonicalMessage.decode(data)
    except DecodeError:
        return None
    if message.expires_at_s != NEVER:
        return None
    return MessageDraft(message.account, message.body, life_s, message.salt, message.workchain)


def with_expiry(data: bytes, first_sent_ms: int, life_s: int = CLIENT_LIFE_S) -> bytes:
    """Return a message that expires `life_s` after its first transmission. Bytes that name their expiry, and bytes that
    are not a message of the chain's own form, stay as they are.
    """
    draft = draft_of(data, life_s)
    return data if draft is None else draft.stamped(first_sent_ms).encode()


def stamped_draft(data: bytes, first_sent_ms: int) -> bytes:
    """Return the message of the draft in `data`; any other bytes as they are. `DecodeError` for a draft that cannot be
    read.
    """
    if data[:CONSTRUCTOR_BYTES] != _DRAFT:
        return data
    return MessageDraft.decode(data).stamped(first_sent_ms).encode()


def read_message(data: bytes, *, takes_cells: bool) -> ReadMessage:
    """Read a message; `DecodeError` if this chain does not take it. The results for short messages are
    cached, because the same message comes from a full node, from other validators, in candidates and in
    blocks.
    """
    return (_read_again if len(data) <= REMEMBERED_BYTES_MAX else _read)(data, takes_cells)


def _read(data: bytes, takes_cells: bool) -> ReadMessage:
    if len(data) > MESSAGE_BYTES_MAX:
        raise TlDecodeError(
            f"the message has {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are accepted",
            code=ErrorCode.MSG_BODY_SIZE,
            limit=MESSAGE_BYTES_MAX,
            found=len(data),
        )
    if data[:4] == CELLS_MAGIC:
        if not takes_cells:
            raise TlDecodeError("the message is a bag of cells, and this chain takes none")
        from stagepost.chain.cell_messages import (
            read_cell_message,
        )  # only chains that take them need the extra

        return read_cell_message(data)
    message = CanonicalMessage.decode(data)
    external = ExternalMessage(sha256(data).digest(), message.uid, message.workchain, message.account, data)
    return ReadMessage(external, message.expires_at_s, message.body)


_read_again = lru_cache(maxsize=REMEMBERED_MAX)(_read)


def cell_reader() -> Callable[[bytes], ReadMessage]:
    """Return the reader of bags of cells. Only chains that take these need the extra `ton`; `ConfigError` if
    it is not installed.
    """
    from stagepost.chain.cell_messages import read_cell_message

    return read_cell_message
