"""Cases of malformed CBOR, said where a puller may speak; and the same by a supplier and by a program."""

from __future__ import annotations

from stagepost.dmq.conform.attacker import KEEP_ALIVE, LOCAL_SUBMISSION, NOTIFICATION
from stagepost.dmq.conform.cbor_bytes import (
    BREAK,
    FALSE,
    NULL,
    TRUE,
    array,
    endless,
    head,
    octets,
    text,
    uint,
)
from stagepost.dmq.conform.playbook import (
    PULL_V2,
    V1,
    Act,
    Case,
    MustClose,
    Start,
    do,
    ends,
    says,
)

SUBMISSION_PLACE = "message-submission"
_INVALID = MustClose("CBOR_INVALID", SUBMISSION_PLACE)
_LIMIT = MustClose("CBOR_LIMIT", SUBMISSION_PLACE)
_TRUNCATED = MustClose("CBOR_TRUNCATED", SUBMISSION_PLACE)
_TAGGED = b"\xc0"
_FLOAT = b"\xf9\x3c\x00"
_ID = octets(bytes(32))


def _bad(name: str, rule: str, item: bytes, must: MustClose) -> Case:
    return Case(f"cbor: {name}", rule, PULL_V2, PULL_V2.says(item), must)


def _supplied(name: str, rule: str, item: bytes, must: MustClose) -> Case:
    act: Act = do(V1.open, V1.hears("ask_ids"), says(V1.says_on, item))
    return Case(f"cbor: {name}, from a supplier", rule, V1, act, must)


# fmt: off
CBOR = (
    _bad("too deep", "cbor.shape", array(uint(1), TRUE, uint(0), b"\x81" * 10 + b"\x00"), _LIMIT),
    _bad("deep without end", "cbor.early", b"\x81" * 5_000, _LIMIT),
    _bad("indefinite arrays without end", "cbor.early", b"\x9f" * 5_000, _LIMIT),
    _bad("too many items", "cbor.shape", array(uint(4), endless(*[uint(0)] * 5_000)), _LIMIT),
    _bad("array of 2^32 items declared", "cbor.early", array(uint(4), head(4, 1 << 32)), _LIMIT),
    _bad("array of 2^64 - 1 items declared", "cbor.early", array(uint(4), head(4, (1 << 64) - 1)), _LIMIT),
    _bad("bytes of 2^63 declared", "cbor.early", array(uint(4), endless(head(2, 1 << 63))), _LIMIT),
    _bad("text of 2^40 declared", "cbor.early", array(uint(4), head(3, 1 << 40)), _LIMIT),
    _bad("message longer than its state allows", "cbor.size", array(uint(4), endless(*[_ID] * 2_000)), _LIMIT),
    _bad("list longer than a message may hold", "submission.requested", array(uint(4), endless(*[_ID] * 1_100)), _LIMIT),
    _bad("negative integer", "cbor.shape", array(uint(1), TRUE, b"\x20", uint(1)), _INVALID),
    _bad("float", "cbor.shape", array(uint(1), TRUE, uint(0), _FLOAT), _INVALID),
    _bad("null", "cbor.shape", array(uint(1), NULL, uint(0), uint(1)), _INVALID),
    _bad("undefined", "cbor.shape", array(uint(1), b"\xf7", uint(0), uint(1)), _INVALID),
    _bad("simple value", "cbor.shape", array(uint(1), b"\xf8\xff", uint(0), uint(1)), _INVALID),
    _bad("tag", "cbor.shape", array(uint(1), TRUE, uint(0), _TAGGED + uint(1)), _INVALID),
    _bad("map", "cbor.shape", array(uint(4), b"\xa0"), _INVALID),
    _bad("reserved initial byte", "cbor.malformed", array(uint(1), TRUE, uint(0), b"\x1c"), _INVALID),
    _bad("break without a list", "cbor.malformed", BREAK, _INVALID),
    _bad("break inside a definite array", "cbor.malformed", b"\x84\x01\xf5" + BREAK, _INVALID),
    _bad("integer instead of a boolean", "cbor.shape", array(uint(1), uint(1), uint(0), uint(1)), _INVALID),
    _bad("text instead of an integer", "cbor.shape", array(uint(1), TRUE, text("0"), uint(1)), _INVALID),
    _bad("integer written too long", "cbor.shortest", array(uint(1), TRUE, uint(0), uint(1, 24)), _INVALID),
    _bad("tag written too long", "cbor.shortest", array(uint(1, 25), TRUE, uint(0), uint(1)), _INVALID),
    _bad("array length written too long", "cbor.shortest", head(4, 4, 24) + b"\x01\xf5\x00\x01", _INVALID),
    _bad("byte string length written too long", "cbor.shortest", array(uint(4), endless(head(2, 32, 25) + bytes(32))), _INVALID),
    _bad("more than 16 bits", "cbor.shape", array(uint(1), TRUE, uint(0), uint(70_000)), _INVALID),
    _bad("indefinite byte string", "cbor.shape", array(uint(4), endless(b"\x5f" + octets(bytes(16)) * 2 + BREAK)), _INVALID),
    _bad("indefinite text", "cbor.shape", array(uint(4), b"\x7f" + text("a") + BREAK), _INVALID),
    _bad("message as an indefinite array", "cbor.shape", endless(uint(1), TRUE, uint(0), uint(1)), _INVALID),
    _bad("message without a tag", "cbor.shape", array(), _INVALID),
    _bad("not an array", "cbor.shape", uint(1), _INVALID),
    _bad("unknown tag", "cbor.shape", array(uint(99)), _INVALID),
    _bad("one element too many", "cbor.shape", array(uint(1), TRUE, uint(0), uint(1), uint(0)), _INVALID),
    _bad("one element missing", "cbor.shape", array(uint(1), TRUE, uint(0)), _INVALID),
    _bad("id of 31 bytes", "cbor.shape", array(uint(4), endless(octets(bytes(31)))), _INVALID),
    _bad("id of 33 bytes", "cbor.shape", array(uint(4), endless(octets(bytes(33)))), _INVALID),
    _bad("random bytes", "cbor.shape", bytes(range(0xC1, 0xFE)), _INVALID),
    _supplied("pair of one element", "cbor.shape", array(uint(1), endless(array(_ID))), _INVALID),
    _supplied("pair as an indefinite array", "cbor.shape", array(uint(1), endless(endless(_ID, uint(900)))), _INVALID),
    _supplied("size of 33 bits", "cbor.shape", array(uint(1), endless(array(_ID, uint(1 << 32)))), _INVALID),
    _supplied("ids in a map", "cbor.shape", array(uint(1), b"\xa1" + _ID + uint(900)), _INVALID),
    _supplied("5,000 ids", "cbor.size", array(uint(1), endless(*[array(_ID, uint(900))] * 5_000)), _LIMIT),
    Case("cbor: cut short at the end of the stream", "cbor.truncated", PULL_V2, do(PULL_V2.says(b"\x84\x01\xf5"), ends), _TRUNCATED),
    Case("cbor: a supplier's cut short at the end of the stream", "cbor.truncated", V1, do(V1.open, V1.hears("ask_ids"), says(V1.says_on, b"\x82\x01\x9f"), ends), _TRUNCATED),
    Case("cbor: keep-alive with a cookie of 17 bits", "cbor.shape", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), uint(70_000))), MustClose("CBOR_INVALID", "keep-alive")),
    Case("cbor: keep-alive with a tag", "cbor.shape", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), _TAGGED + uint(7))), MustClose("CBOR_INVALID", "keep-alive")),
    Case("cbor: keep-alive longer than it may be", "cbor.early", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), head(2, 70_000))), MustClose("CBOR_LIMIT", "keep-alive")),
    Case("cbor: a program's request cut short at the end of the stream", "cbor.truncated", Start.LOCAL, do(says(NOTIFICATION, b"\x82\x00"), ends), MustClose("CBOR_TRUNCATED", "local-message-notification")),
    Case("cbor: submission of what is no CBOR", "cbor.malformed", Start.LOCAL, says(LOCAL_SUBMISSION, b"\x82\x00\x1c"), MustClose("CBOR_INVALID", "local-message-submission")),
    Case("cbor: submission with a float", "cbor.shape", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), _FLOAT)), MustClose("CBOR_INVALID", "local-message-submission")),
    Case("cbor: submission too deep", "cbor.shape", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), b"\x81" * 20 + b"\x00")), MustClose("CBOR_LIMIT", "local-message-submission")),
    Case("cbor: submission of bytes without end", "cbor.early", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), head(2, 1 << 50))), MustClose("CBOR_LIMIT", "local-message-submission")),
    Case("cbor: request with an integer for a boolean", "cbor.shape", Start.LOCAL, says(NOTIFICATION, array(uint(0), uint(0))), MustClose("CBOR_INVALID", "local-message-notification")),
    Case("cbor: request with one element too many", "cbor.shape", Start.LOCAL, says(NOTIFICATION, array(uint(0), FALSE, FALSE)), MustClose("CBOR_INVALID", "local-message-notification")),
)
# fmt: on
