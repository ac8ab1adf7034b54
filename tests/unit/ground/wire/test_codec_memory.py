"""What a codec remembers of the last reply written changes no message."""

from __future__ import annotations

from stagepost.dmq.local_notification import ReplyMessagesBlocking
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, MiniProtocol
from stagepost.dmq.specs import codec_for
from tests.worlds.dmq.pool_signers import Signer

NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
A, B = Signer().sign(1), Signer().sign(2)


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
