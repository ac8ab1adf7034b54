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
from stagepost.errors import ErrorCode, TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.message import MESSAGE_BYTES_MAX, ExternalMessage

MESSAGE_ID = constructor_id(
    "stagepost.chain.message workchain:int account:int256 expires_at:int salt:long body:bytes "
    "= stagepost.chain.Message"
)
REMEMBERED_BYTES_MAX = 1_024
REMEMBERED_MAX = 4_096


class CanonicalMessage(msgspec.Struct, frozen=True):
    """`salt` distinguishes messages that would be equal: it changes the id and leaves the uid as it is."""

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

    @classmethod
    def decode(cls, data: bytes) -> CanonicalMessage:
        reader = Reader(data)
        reader.read_constructor(MESSAGE_ID)
        workchain, account = reader.read_int(), reader.read_int256()
        expires_at_s, salt = reader.read_unsigned_int(), reader.read_long()
        body = reader.read_bytes(MESSAGE_BYTES_MAX, "body")
        reader.expect_end()
        return cls(account, body, expires_at_s, salt, workchain)


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
    external = ExternalMessage(
        sha256(data).digest(), sha256(message.body).digest(), message.workchain, message.account, data
    )
    return ReadMessage(external, message.expires_at_s, message.body)


_read_again = lru_cache(maxsize=REMEMBERED_MAX)(_read)


def cell_reader() -> Callable[[bytes], ReadMessage]:
    """Return the reader of bags of cells. Only chains that take these need the extra `ton`; `ConfigError` if
    it is not installed.
    """
    from stagepost.chain.cell_messages import read_cell_message

    return read_cell_message
