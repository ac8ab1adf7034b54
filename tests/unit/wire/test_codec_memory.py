"""What the codec remembers changes no message: neither the short ones that are read, nor the last one written."""

from __future__ import annotations

import pytest

from stagepost.dmq.local_notification import ReplyMessagesBlocking, RequestMessages
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, MiniProtocol
from stagepost.dmq.specs import codec_for
from stagepost.dmq.submission import Flavour
from stagepost.errors import DecodeError, RemoteProtocolError
from stagepost.wire import codec as codec_module
from stagepost.wire.codec import SMALL_BYTES_MAX, SMALL_KNOWN_MAX
from tests.pool_signers import Signer

NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
A, B = Signer().sign(1), Signer().sign(2)


def test_a_short_request_reads_the_same_the_second_time() -> None:
    codec = codec_for(DMQ_NODE, NOTIFICATION)

    for _ in range(2):
        assert codec.decode(b"\x82\x00\xf5", "Idle") == RequestMessages(blocking=True)
        assert codec.decode(b"\x82\x00\xf4", "Idle") == RequestMessages(blocking=False)


def test_a_request_known_from_one_state_is_still_refused_in_another() -> None:
    codec = codec_for(DMQ_NODE, NOTIFICATION)
    codec.decode(b"\x82\x00\xf5", "Idle")

    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            codec.decode(b"\x82\x00\xf5", "BusyBlocking")


def test_a_fault_is_not_remembered_as_a_message() -> None:
    codec = codec_for(DMQ_NODE, NOTIFICATION)

    for _ in range(2):
        with pytest.raises(DecodeError):
            codec.decode(b"\x82\x00\xf5\x00", "Idle")


def test_a_remembered_message_still_shows_the_dialect_of_each_peer() -> None:
    cip_request = b"\x84\x01\xf5\x00\x01"  # RequestMessageIds of version 1, as the other flavour numbers it
    for _ in range(2):
        codec = codec_for(DMQ_NODE, MiniProtocol.MESSAGE_SUBMISSION, 1)
        assert not codec.is_settled

        codec.decode(cip_request, "Idle")

        assert codec.speaks.name == Flavour.CIP.value


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_for(DMQ_NODE, MiniProtocol.KEEP_ALIVE)
    monkeypatch.setattr(codec.table, "small_known", {})
    monkeypatch.setattr(codec_module, "SMALL_KNOWN_MAX", 3)

    for cookie in range(10):
        codec.decode(b"\x82\x00" + bytes([cookie]), "Client")

    assert len(codec.table.small_known) == 3
    assert (SMALL_BYTES_MAX, SMALL_KNOWN_MAX) == (8, 1_024)


def test_a_reply_is_written_once_for_many_and_anew_for_others() -> None:
    first, second = codec_for(DMQ_NODE, NOTIFICATION), codec_for(DMQ_NODE, NOTIFICATION)

    written = first.encode(ReplyMessagesBlocking((A, B)))

    assert second.encode(ReplyMessagesBlocking((A, B))) is written
    assert written == b"\x82\x02\x9f" + A.raw + B.raw + b"\xff"
    assert second.encode(ReplyMessagesBlocking((B,))) == b"\x82\x02\x9f" + B.raw + b"\xff"
    assert first.encode(ReplyMessagesBlocking((A, B))) == written


def test_each_profile_writes_its_own_list_form() -> None:
    codec_for(DMQ_NODE, NOTIFICATION).encode(ReplyMessagesBlocking((A,)))

    assert codec_for(GOUROBOROS, NOTIFICATION).encode(ReplyMessagesBlocking((A,))) == b"\x82\x02\x81" + A.raw
