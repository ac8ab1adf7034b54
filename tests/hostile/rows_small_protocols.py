"""Misbehaviours in keep-alive and peer sharing, on either side of each."""

from __future__ import annotations

from tests.hostile.attacker import KEEP_ALIVE, OTHER_SIDE, PEER_SHARING
from tests.hostile.cbor_bytes import array, endless, uint
from tests.hostile.playbook import Close, Ignore, Misbehaviour, Scene, Start, do, hears, says


async def _wrong_cookie(scene: Scene) -> None:
    await scene.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    _, cookie = await scene.attacker.hear(KEEP_ALIVE)
    await scene.attacker.say(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint((cookie + 1) % 65_536)))


def _address(number: int) -> bytes:
    return array(uint(0), uint(0x0100007F + (number << 8)), uint(9))


async def _shares(scene: Scene, items: bytes) -> None:
    await scene.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    await scene.attacker.hear(PEER_SHARING)
    await scene.attacker.say(PEER_SHARING | OTHER_SIDE, array(uint(1), items))


async def _shares_too_many(scene: Scene) -> None:
    await _shares(scene, endless(*map(_address, range(11))))


async def _shares_a_third_kind(scene: Scene) -> None:
    await _shares(scene, endless(array(uint(2), uint(1), uint(9))))


async def _shares_beyond_the_limit(scene: Scene) -> None:
    await _shares(scene, endless(*map(_address, range(256))))


_KEEP_ALIVE = Close("PROTOCOL_STATE", "keep-alive")
_SHARING = "peer-sharing"
# fmt: off
SMALL_PROTOCOLS = (
    Misbehaviour("keep-alive: an answer that nobody asked for", Start.NODE_V2, says(KEEP_ALIVE, array(uint(1), uint(7))), _KEEP_ALIVE),
    Misbehaviour("keep-alive: wrong cookie", Start.NODE_V2_BOTH_WAYS, _wrong_cookie, _KEEP_ALIVE),
    Misbehaviour("keep-alive: a question for an answer", Start.NODE_V2_BOTH_WAYS, do(says(KEEP_ALIVE, array(uint(0), uint(7))), hears(KEEP_ALIVE), says(KEEP_ALIVE | OTHER_SIDE, array(uint(0), uint(7)))), _KEEP_ALIVE),
    Misbehaviour("keep-alive: done, and asked again", Start.NODE_V2, says(KEEP_ALIVE, array(uint(2)), array(uint(0), uint(7))), Ignore()),
    Misbehaviour("peer sharing: more peers than asked for", Start.NODE_V2_SHARING, _shares_too_many, Close("PROTOCOL_WINDOW", _SHARING)),
    Misbehaviour("peer sharing: an address of a third kind", Start.NODE_V2_SHARING, _shares_a_third_kind, Close("CBOR_INVALID", _SHARING)),
    Misbehaviour("peer sharing: 256 peers", Start.NODE_V2_SHARING, _shares_beyond_the_limit, Close("CBOR_LIMIT", _SHARING)),
    Misbehaviour("peer sharing: asks for 256", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(0), uint(256))), Close("CBOR_INVALID", _SHARING)),
    Misbehaviour("peer sharing: an answer that nobody asked for", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(1), array())), Close("PROTOCOL_STATE", _SHARING)),
)
# fmt: on
