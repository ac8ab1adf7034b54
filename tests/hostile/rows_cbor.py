"""Misbehaviours in CBOR itself, said where a puller may speak; and the same by a supplier and by a program."""

from __future__ import annotations

from tests.hostile.attacker import KEEP_ALIVE, LOCAL_SUBMISSION, NOTIFICATION
from tests.hostile.cbor_bytes import BREAK, FALSE, NULL, TRUE, array, endless, head, octets, text, uint
from tests.hostile.playbook import PULL_V2, V1, Act, Close, Misbehaviour, Start, do, ends, says

SUBMISSION_PLACE = "message-submission"
_INVALID = Close("CBOR_INVALID", SUBMISSION_PLACE)
_LIMIT = Close("CBOR_LIMIT", SUBMISSION_PLACE)
_TRUNCATED = Close("CBOR_TRUNCATED", SUBMISSION_PLACE)
_TAGGED = b"\xc0"
_FLOAT = b"\xf9\x3c\x00"
_ID = octets(bytes(32))


def _bad(name: str, item: bytes, must: Close) -> Misbehaviour:
    return Misbehaviour(f"cbor: {name}", Start.NODE_V2, PULL_V2.says(item), must)


def _supplied(name: str, item: bytes, must: Close) -> Misbehaviour:
    act: Act = do(V1.open, V1.hears("ask_ids"), says(V1.says_on, item))
    return Misbehaviour(f"cbor: {name}, from a supplier", V1.start, act, must)


# fmt: off
CBOR = (
    _bad("too deep", array(uint(1), TRUE, uint(0), b"\x81" * 10 + b"\x00"), _LIMIT),
    _bad("deep without end", b"\x81" * 5_000, _LIMIT),
    _bad("indefinite arrays without end", b"\x9f" * 5_000, _LIMIT),
    _bad("too many items", array(uint(4), endless(*[uint(0)] * 5_000)), _LIMIT),
    _bad("array of 2^32 items declared", array(uint(4), head(4, 1 << 32)), _LIMIT),
    _bad("array of 2^64 - 1 items declared", array(uint(4), head(4, (1 << 64) - 1)), _LIMIT),
    _bad("bytes of 2^63 declared", array(uint(4), endless(head(2, 1 << 63))), _LIMIT),
    _bad("text of 2^40 declared", array(uint(4), head(3, 1 << 40)), _LIMIT),
    _bad("message longer than its state allows", array(uint(4), endless(*[_ID] * 2_000)), _LIMIT),
    _bad("list longer than a message may hold", array(uint(4), endless(*[_ID] * 1_100)), _LIMIT),
    _bad("negative integer", array(uint(1), TRUE, b"\x20", uint(1)), _INVALID),
    _bad("float", array(uint(1), TRUE, uint(0), _FLOAT), _INVALID),
    _bad("null", array(uint(1), NULL, uint(0), uint(1)), _INVALID),
    _bad("undefined", array(uint(1), b"\xf7", uint(0), uint(1)), _INVALID),
    _bad("simple value", array(uint(1), b"\xf8\xff", uint(0), uint(1)), _INVALID),
    _bad("tag", array(uint(1), TRUE, uint(0), _TAGGED + uint(1)), _INVALID),
    _bad("map", array(uint(4), b"\xa0"), _INVALID),
    _bad("reserved initial byte", array(uint(1), TRUE, uint(0), b"\x1c"), _INVALID),
    _bad("break without a list", BREAK, _INVALID),
    _bad("break inside a definite array", b"\x84\x01\xf5" + BREAK, _INVALID),
    _bad("integer instead of a boolean", array(uint(1), uint(1), uint(0), uint(1)), _INVALID),
    _bad("text instead of an integer", array(uint(1), TRUE, text("0"), uint(1)), _INVALID),
    _bad("integer written too long", array(uint(1), TRUE, uint(0), uint(1, 24)), _INVALID),
    _bad("tag written too long", array(uint(1, 25), TRUE, uint(0), uint(1)), _INVALID),
    _bad("array length written too long", head(4, 4, 24) + b"\x01\xf5\x00\x01", _INVALID),
    _bad("byte string length written too long", array(uint(4), endless(head(2, 32, 25) + bytes(32))), _INVALID),
    _bad("more than 16 bits", array(uint(1), TRUE, uint(0), uint(70_000)), _INVALID),
    _bad("indefinite byte string", array(uint(4), endless(b"\x5f" + octets(bytes(16)) * 2 + BREAK)), _INVALID),
    _bad("indefinite text", array(uint(4), b"\x7f" + text("a") + BREAK), _INVALID),
    _bad("message as an indefinite array", endless(uint(1), TRUE, uint(0), uint(1)), _INVALID),
    _bad("message without a tag", array(), _INVALID),
    _bad("not an array", uint(1), _INVALID),
    _bad("unknown tag", array(uint(99)), _INVALID),
    _bad("one element too many", array(uint(1), TRUE, uint(0), uint(1), uint(0)), _INVALID),
    _bad("one element missing", array(uint(1), TRUE, uint(0)), _INVALID),
    _bad("id of 31 bytes", array(uint(4), endless(octets(bytes(31)))), _INVALID),
    _bad("id of 33 bytes", array(uint(4), endless(octets(bytes(33)))), _INVALID),
    _bad("random bytes", bytes(range(0xC1, 0xFE)), _INVALID),
    _supplied("pair of one element", array(uint(1), endless(array(_ID))), _INVALID),
    _supplied("pair as an indefinite array", array(uint(1), endless(endless(_ID, uint(900)))), _INVALID),
    _supplied("size of 33 bits", array(uint(1), endless(array(_ID, uint(1 << 32)))), _INVALID),
    _supplied("ids in a map", array(uint(1), b"\xa1" + _ID + uint(900)), _INVALID),
    _supplied("5,000 ids", array(uint(1), endless(*[array(_ID, uint(900))] * 5_000)), _LIMIT),
    Misbehaviour("cbor: cut short at the end of the stream", Start.NODE_V2, do(PULL_V2.says(b"\x84\x01\xf5"), ends), _TRUNCATED),
    Misbehaviour("cbor: a supplier's cut short at the end of the stream", V1.start, do(V1.open, V1.hears("ask_ids"), says(V1.says_on, b"\x82\x01\x9f"), ends), _TRUNCATED),
    Misbehaviour("cbor: keep-alive with a cookie of 17 bits", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), uint(70_000))), Close("CBOR_INVALID", "keep-alive")),
    Misbehaviour("cbor: keep-alive with a tag", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), _TAGGED + uint(7))), Close("CBOR_INVALID", "keep-alive")),
    Misbehaviour("cbor: keep-alive longer than it may be", Start.NODE_V2, says(KEEP_ALIVE, array(uint(0), head(2, 70_000))), Close("CBOR_LIMIT", "keep-alive")),
    Misbehaviour("cbor: a program's request cut short at the end of the stream", Start.LOCAL, do(says(NOTIFICATION, b"\x82\x00"), ends), Close("CBOR_TRUNCATED", "local-message-notification")),
    Misbehaviour("cbor: submission of what is no CBOR", Start.LOCAL, says(LOCAL_SUBMISSION, b"\x82\x00\x1c"), Close("CBOR_INVALID", "local-message-submission")),
    Misbehaviour("cbor: submission with a float", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), _FLOAT)), Close("CBOR_INVALID", "local-message-submission")),
    Misbehaviour("cbor: submission too deep", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), b"\x81" * 20 + b"\x00")), Close("CBOR_LIMIT", "local-message-submission")),
    Misbehaviour("cbor: submission of bytes without end", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), head(2, 1 << 50))), Close("CBOR_LIMIT", "local-message-submission")),
    Misbehaviour("cbor: request with an integer for a boolean", Start.LOCAL, says(NOTIFICATION, array(uint(0), uint(0))), Close("CBOR_INVALID", "local-message-notification")),
    Misbehaviour("cbor: request with one element too many", Start.LOCAL, says(NOTIFICATION, array(uint(0), FALSE, FALSE)), Close("CBOR_INVALID", "local-message-notification")),
)
# fmt: on
