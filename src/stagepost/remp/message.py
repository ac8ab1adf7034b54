"""An external message as validators know it: where it goes, what it is, and by which way it came."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stagepost.remp.queue.records import Header

MESSAGES_TOPIC = "stagepost.remp.messages"
"""Where full nodes take messages from: a topic of their own folder, and the topic of reliable delivery of this name."""


class ExternalMessage(msgspec.Struct, frozen=True):
    """What a ledger reads in a message's bytes. `uid` is the hash of its body alone: two ids may share one."""

    message_id: bytes
    uid: bytes
    workchain: int
    account: bytes
    body: bytes


class UidKey(NamedTuple):
    """Equal bodies to different accounts are different messages."""

    workchain: int
    account: bytes
    uid: bytes


class Origin(msgspec.Struct, frozen=True):
    """The full node that sent it, the validator that announced it, and when."""

    source_key_id: bytes
    source_index: int
    timestamp_ms: int


def uid_key(header: Header) -> UidKey:
    return UidKey(header.workchain, header.account, header.uid)


def header_of(message: ExternalMessage, origin: Origin, masterchain_seqno: int) -> Header:
    return Header(
        message.message_id,
        message.uid,
        message.workchain,
        message.account,
        origin.source_key_id,
        origin.source_index,
        masterchain_seqno,
        origin.timestamp_ms,
    )
