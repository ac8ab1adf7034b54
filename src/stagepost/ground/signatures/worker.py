"""A process beside the node that does nothing but check Ed25519 signatures.

A thread needs Python's lock before and after every signature, while the loop has it; what the loop does in Python and
what the library computes overlap fully only in two processes. This one is asked and answers through pipes, in order:

    question  length of the rest, number, and whether the first forgery ends it; for each claim its length, the key, what it signed
    answer    number of the question, count of claims, one byte for each claim

It holds no secret and decides nothing. It ends when the node's end of its pipe is closed, however that came about.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Protocol

from stagepost.ground.crypto.ed25519 import PUBLIC_KEY_BYTES, Claim, verify_signed

READY = b"R"
FORGED, VALID, NOT_LOOKED_AT = range(3)

_QUESTION = Struct(">IQ?")
ANSWER = Struct(">QI")
_CLAIM = Struct(">I")


class Questions(Protocol):
    def read(self, size: int, /) -> bytes:
        """Return `size` bytes; fewer only at the end."""
        ...


def question(number: int, claims: Sequence[Claim], *, gives_up: bool) -> bytes:
    """Return the bytes of a question, whose answer carries `number`. `gives_up` tells the process to skip all claims after the first
    forgery."""
    parts = [b""]
    length = 0
    for key, signed in claims:
        parts += (_CLAIM.pack(len(signed)), key, signed)
        length += _CLAIM.size + PUBLIC_KEY_BYTES + len(signed)
    parts[0] = _QUESTION.pack(length, number, gives_up)
    return b"".join(parts)


def serve(questions: Questions, answers: int) -> None:
    """Answer questions until there are no more."""
    os.write(answers, READY)
    while len(head := questions.read(_QUESTION.size)) == _QUESTION.size:
        length, number, gives_up = _QUESTION.unpack(head)
        claims = questions.read(length)
        if len(claims) < length:
            return
        verdicts = _answer(claims, gives_up)
        os.write(answers, ANSWER.pack(number, len(verdicts)) + verdicts)


def _answer(claims: bytes, gives_up: bool) -> bytes:
    verdicts = bytearray()
    is_given_up = False
    for key, signed in _read_claims(claims):
        if is_given_up:
            verdicts.append(NOT_LOOKED_AT)
        elif verify_signed(key, signed):
            verdicts.append(VALID)
        else:
            verdicts.append(FORGED)
            is_given_up = gives_up
    return bytes(verdicts)


def _read_claims(claims: bytes) -> Iterator[Claim]:
    position = 0
    while position < len(claims):
        (length,) = _CLAIM.unpack_from(claims, position)
        start = position + _CLAIM.size
        middle = start + PUBLIC_KEY_BYTES
        position = middle + length
        yield claims[start:middle], claims[middle:position]


def main() -> None:
    # A terminal's Ctrl-C and a service manager's stop signal reach every process; this one ends when the node
    # closes its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        serve(sys.stdin.buffer, sys.stdout.fileno())
    except BrokenPipeError:
        return  # nobody hears the answers any more


if __name__ == "__main__":
    main()
