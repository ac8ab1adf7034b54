"""How a misbehaviour is written down: where it begins, what is done there, and what the node must do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from tests.hostile.attacker import KEEP_ALIVE, OTHER_SIDE, SEED_KEEP_ALIVE, Attacker
from tests.hostile.cbor_bytes import array, boolean, endless, octets, uint
from tests.hostile.forged_messages import Forger, Message, message


class Start(Enum):
    """The state in which the misbehaviour begins. In each but the bare ones an honest handshake came first."""

    NODE_BARE = auto()
    NODE_V1 = auto()
    NODE_V2 = auto()
    NODE_V1_BOTH_WAYS = auto()
    NODE_V2_BOTH_WAYS = auto()
    NODE_V2_SHARING = auto()
    LOCAL_BARE = auto()
    LOCAL = auto()

    @property
    def is_local(self) -> bool:
        return self in (Start.LOCAL_BARE, Start.LOCAL)


# What the node must do


@dataclass(frozen=True)
class Close:
    """End the connection, and name the rule: in its log, and in the metric under `place`."""

    code: str
    place: str


@dataclass(frozen=True)
class Refuse:
    """Say no in the handshake, with a text that names `code` if the reason carries one; then end the connection."""

    reason: int
    code: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reject:
    """Say no to a submitted message and go on. `reason` is the wire's own number; 1 and 2 carry no text."""

    reason: int
    code: str


@dataclass(frozen=True)
class Ignore:
    """Go on with this very connection; a refused message is counted under `code`, if one is given."""

    code: str = ""


@dataclass(frozen=True)
class Leave:
    """End the connection without blame: the rules allow what was done, or the network itself can do it."""


Must: TypeAlias = Close | Refuse | Reject | Ignore | Leave


@dataclass
class Scene:
    """What an attacker has at hand."""

    attacker: Attacker
    pool: Forger
    renewed_pool: Forger
    """Known to the node with issue number 5."""
    poor_pool: Forger
    """Known to the node, without stake."""
    held: Message
    """The node holds it already."""
    stranger: Forger = field(default_factory=Forger)
    kept: dict[str, Any] = field(default_factory=dict)

    def message(self, **given: Any) -> Message:
        return message(given.pop("by", self.pool), **given)


Act: TypeAlias = Callable[[Scene], Awaitable[None]]

QUICKLY_S = 2.0
SLOW_FROM_S = 5.0


@dataclass(frozen=True)
class Misbehaviour:
    """`within_s`: how long after the last thing done here the node may take. A busy machine gets some grace on top."""

    name: str
    start: Start
    act: Act
    must: Must
    within_s: float = QUICKLY_S

    @property
    def is_slow(self) -> bool:
        """Waits for a time limit of the node: run beside others."""
        return self.within_s >= SLOW_FROM_S


# Acts


def do(*acts: Act) -> Act:
    async def act(scene: Scene) -> None:
        for one in acts:
            await one(scene)

    return act


def sends(*pieces: bytes) -> Act:
    """Raw bytes on the socket, each piece in a write of its own."""

    async def act(scene: Scene) -> None:
        for piece in pieces:
            await scene.attacker.raw(piece)

    return act


def says(lane: int, *items: bytes) -> Act:
    """Each item in segments of its own."""

    async def act(scene: Scene) -> None:
        for item in items:
            await scene.attacker.say(lane, item)

    return act


def hears(lane: int) -> Act:
    async def act(scene: Scene) -> None:
        await scene.attacker.hear(lane)

    return act


async def ends(scene: Scene) -> None:
    scene.attacker.end_of_stream()


async def nothing(scene: Scene) -> None:
    """Silence."""


# Message submission, from either side and in every published way of writing it


@dataclass(frozen=True)
class Tongue:
    """One way of speaking message submission. `opens`: what has to be said before the first request."""

    name: str
    start: Start
    says_on: int
    hears_on: int
    tags: dict[str, int]
    is_definite: bool = False
    opens: tuple[tuple[int, bytes], ...] = ()
    awaits_init: bool = False

    def tag(self, what: str) -> bytes:
        return uint(self.tags[what])

    def list_of(self, *items: bytes) -> bytes:
        return array(*items) if self.is_definite else endless(*items)

    def ask_ids(self, blocking: bool, acknowledged: int, requested: int) -> bytes:
        return array(self.tag("ask_ids"), boolean(blocking), uint(acknowledged), uint(requested))

    def ids(self, *announced: tuple[bytes, int]) -> bytes:
        pairs = (array(octets(identifier), uint(size)) for identifier, size in announced)
        return array(self.tag("ids"), self.list_of(*pairs))

    def ask(self, *identifiers: bytes) -> bytes:
        return array(self.tag("ask"), self.list_of(*map(octets, identifiers)))

    def messages(self, *raw: bytes) -> bytes:
        return array(self.tag("messages"), self.list_of(*raw))

    def bare(self, what: str) -> bytes:
        return array(self.tag(what))

    # Acts

    async def open(self, scene: Scene) -> None:
        for lane, item in self.opens:
            await scene.attacker.say(lane, item)
        if self.awaits_init:
            await scene.attacker.hear(self.hears_on)

    def says(self, *items: bytes) -> Act:
        return do(self.open, says(self.says_on, *items))

    def hears(self, what: str) -> Act:
        """Answer nothing until the node has asked for `what`, which is kept."""

        async def act(scene: Scene) -> None:
            heard = await scene.attacker.hear(self.hears_on)
            assert heard[0] == self.tags[what], f"the node said {heard!r}, expected {what}"
            scene.kept[what] = heard

        return act


_V1_HASKELL = {"init": 6, "ask_ids": 0, "ids": 1, "ask": 2, "messages": 3, "done": 4}
_V1_CIP = {"init": 0, "ask_ids": 1, "ids": 2, "ask": 3, "messages": 4, "done": 5}
_V2_HASKELL = {"ask_ids": 1, "ids": 2, "none": 3, "ask": 4, "messages": 5, "done": 6}
_V2_CIP = {"ask_ids": 1, "ids": 2, "ask": 3, "messages": 4, "done": 5}
_PING = array(uint(0), uint(7))

SUPPLIERS = (
    Tongue("v1", Start.NODE_V1, 11, 11 | OTHER_SIDE, _V1_HASKELL, opens=((11, b"\x81\x06"),)),
    Tongue("v1-cip", Start.NODE_V1, 11, 11 | OTHER_SIDE, _V1_CIP, True, opens=((11, b"\x81\x00"),)),
    Tongue("seed", Start.NODE_V1, 17, 17 | OTHER_SIDE, _V1_CIP, True, opens=((17, b"\x81\x00"),)),
    Tongue("v2", Start.NODE_V2_BOTH_WAYS, 11 | OTHER_SIDE, 11, _V2_HASKELL, opens=((KEEP_ALIVE, _PING),)),
)
PULLERS = (
    Tongue("v2", Start.NODE_V2, 11, 11 | OTHER_SIDE, _V2_HASKELL),
    Tongue("v2-cip", Start.NODE_V2, 11, 11 | OTHER_SIDE, _V2_CIP, True),
    Tongue(
        "v1",
        Start.NODE_V1_BOTH_WAYS,
        11 | OTHER_SIDE,
        11,
        _V1_HASKELL,
        opens=((KEEP_ALIVE, _PING),),
        awaits_init=True,
    ),
    Tongue(
        "seed",
        Start.NODE_V1_BOTH_WAYS,
        17 | OTHER_SIDE,
        17,
        _V1_CIP,
        True,
        opens=((SEED_KEEP_ALIVE, _PING),),
        awaits_init=True,
    ),
)
V1, V1_CIP, SEED, V2 = SUPPLIERS
PULL_V2, PULL_V2_CIP, PULL_V1, PULL_SEED = PULLERS


def supplies(
    tongue: Tongue,
    make: Callable[[Scene], Message],
    *,
    announced_size: int | None = None,
    announced_as: Callable[[Scene], bytes] | None = None,
) -> Act:
    """Announce one message and serve it; done when the node has acknowledged it, or is gone."""

    async def act(scene: Scene) -> None:
        await tongue.open(scene)
        offered = make(scene)
        identifier = announced_as(scene) if announced_as else offered.identifier
        size = len(offered.raw) if announced_size is None else announced_size
        await serve(scene, tongue, [(identifier, size)], [offered.raw])

    return act


async def serve(
    scene: Scene, tongue: Tongue, announced: list[tuple[bytes, int]], served: list[bytes]
) -> None:
    """An honest supplier's loop over dishonest goods."""
    attacker = scene.attacker
    acknowledged = 0
    is_announced = False
    while True:
        heard = await attacker.hear(tongue.hears_on)
        if heard[0] == tongue.tags["ask"]:
            await attacker.say(tongue.says_on, tongue.messages(*served))
            continue
        _, blocking, newly, _ = heard
        acknowledged += newly
        if is_announced and acknowledged >= len(announced):
            return
        await attacker.say(tongue.says_on, tongue.ids(*(() if is_announced else announced)))
        assert not (is_announced and blocking), "a blocking request while ids are outstanding"
        is_announced = True
