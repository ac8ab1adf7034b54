"""What must hold for what the chain's validators say to one another to agree: messages, queries, answers, final blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate, decode_certificate
from stagepost.chain.agreement.evidence import Evidence
from stagepost.chain.agreement.messages import FinalBlock, Proposal, Want, decode_final_block, decode_message
from stagepost.chain.agreement.queries import GetProgress, Progress, decode_answer, decode_query
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind
from stagepost.errors import DecodeError
from tests.fuzz.harness import Verdict, attempt, require

_ONE, _OTHER = bytes(range(32)), bytes(range(32, 64))
_READERS: tuple[Callable[[bytes], Any], ...] = (
    decode_message,
    decode_certificate,
    decode_final_block,
    decode_query,
    decode_answer,
)


def check_agreement(data: bytes) -> Verdict:
    """There is one way of writing each of them, so that what was read is written as it came."""
    verdict = Verdict.REFUSED
    for read in _READERS:
        value = attempt(partial(read, data), len(data), DecodeError)
        if value is not None:
            verdict = Verdict.ACCEPTED
            require(value.encode() == data, f"{read.__name__} read bytes that we would not write")
    return verdict


def agreement_samples() -> tuple[bytes, ...]:
    signed = tuple((who, bytes([who]) * 64) for who in range(3))
    certificate = Certificate(_ONE, 7, VoteKind.NOTARISE, _OTHER, signed)
    skipped = Certificate(_ONE, 8, VoteKind.SKIP, NO_BLOCK, signed)
    candidate = Candidate(9, _OTHER, b"a block")
    vote, other = (Vote(2, 9, VoteKind.FINALISE, block, bytes(64)) for block in (_ONE, _OTHER))
    messages = (
        vote,
        certificate,
        skipped,
        Proposal(candidate, bytes(64), (certificate, skipped)),
        Want(9),
        Evidence(_ONE, vote, other),
        FinalBlock(candidate, bytes(64), certificate),
        GetProgress(5, 6, 9, True, (_ONE, _OTHER), (7, 8)),
        Progress(9, (vote.encode(), certificate.encode())),
    )
    return tuple(message.encode() for message in messages)
