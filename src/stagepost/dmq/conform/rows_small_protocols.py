"""Cases of keep-alive and peer sharing, on either side of each."""

from __future__ import annotations

from stagepost.dmq.conform.attacker import KEEP_ALIVE, OTHER_SIDE, PEER_SHARING
from stagepost.dmq.conform.cbor_bytes import array, endless, uint
from stagepost.dmq.conform.playbook import (
    Case,
    CaseStage,
    MustClose,
    MustGoOn,
    Start,
    do,
    hears,
    says,
)


async def _wrong_cookie(stage: CaseStage) -> None:
    await stage.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    _, cookie = await stage.attacker.hear(KEEP_ALIVE)
    await stage.attacker.say(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint((cookie + 1) % 65_536)))


def _address(number: int) -> bytes:
    return array(uint(0), uint(0x0100007F + (number << 8)), uint(9))


async def _shares(stage: CaseStage, items: bytes) -> None:
    await stage.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    await stage.attacker.hear(PEER_SHARING)
    await stage.attacker.say(PEER_SHARING | OTHER_SIDE, array(uint(1), items))


async def _shares_too_many(stage: CaseStage) -> None:
    await _shares(stage, endless(*map(_address, range(11))))


async def _shares_a_third_kind(stage: CaseStage) -> None:
    await _shares(stage, endless(array(uint(2), uint(1), uint(9))))


async def _shares_beyond_the_limit(stage: CaseStage) -> None:
    await _shares(stage, endless(*map(_address, range(256))))


_KEEP_ALIVE = MustClose("PROTOCOL_STATE", "keep-alive")
_SHARING = "peer-sharing"
# fmt: off
SMALL_PROTOCOLS = (
    Case("keep-alive: an answer that nobody asked for", "keepalive.state", Start.NODE_V2, says(KEEP_ALIVE, array(uint(1), uint(7))), _KEEP_ALIVE),
    Case("keep-alive: wrong cookie", "keepalive.cookie", Start.NODE_V2_BOTH_WAYS, _wrong_cookie, _KEEP_ALIVE),
    Case("keep-alive: a question for an answer", "keepalive.state", Start.NODE_V2_BOTH_WAYS, do(says(KEEP_ALIVE, array(uint(0), uint(7))), hears(KEEP_ALIVE), says(KEEP_ALIVE | OTHER_SIDE, array(uint(0), uint(7)))), _KEEP_ALIVE),
    Case("keep-alive: done, and asked again", "keepalive.again", Start.NODE_V2, says(KEEP_ALIVE, array(uint(2)), array(uint(0), uint(7))), MustGoOn()),
    Case("peer sharing: more peers than asked for", "sharing.count", Start.NODE_V2_SHARING, _shares_too_many, MustClose("PROTOCOL_WINDOW", _SHARING)),
    Case("peer sharing: an address of a third kind", "sharing.shape", Start.NODE_V2_SHARING, _shares_a_third_kind, MustClose("CBOR_INVALID", _SHARING)),
    Case("peer sharing: 256 peers", "sharing.count", Start.NODE_V2_SHARING, _shares_beyond_the_limit, MustClose("CBOR_LIMIT", _SHARING)),
    Case("peer sharing: asks for 256", "sharing.shape", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(0), uint(256))), MustClose("CBOR_INVALID", _SHARING)),
    Case("peer sharing: an answer that nobody asked for", "sharing.state", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(1), array())), MustClose("PROTOCOL_STATE", _SHARING)),
)
# fmt: on
