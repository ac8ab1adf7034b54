"""The vocabulary of cases: the state in which a case begins, what is done there, and what the node must do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    OTHER_SIDE,
    SEED_KEEP_ALIVE,
    Attacker,
    RawSegment,
    require,
)
from stagepost.dmq.conform.cbor_bytes import array, boolean, endless, octets, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message


class Start(Enum):
    """The state in which a case begins. In each but the bare ones an honest handshake came first."""

    NODE_BARE = auto()
    NODE_V1 = auto()
    NODE_V2 = auto()
    NODE_V1_BOTH_WAYS = auto()
    NODE_V2_BOTH_WAYS = auto()
    NODE_V2_SHARING = auto()
    LOCAL_BARE = auto()
    LOCAL = auto()
    LOCAL_SEED = auto()

    @property
    def is_local(self) -> bool:
        return self in (Start.LOCAL_BARE, Start.LOCAL, Start.LOCAL_SEED)


# What the node must do


@dataclass(frozen=True)
class MustClose:
    """End the connection, and name the rule: in its log, and in the metric under `place`."""

    code: str
    place: str


@dataclass(frozen=True)
class MustRefuse:
    """Say no in the handshake, with a text that names `code` if the reason carries one; then end the connection."""

    reason: int
    code: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class MustReject:
    """Say no to a submitted message and go on. `reason` is the wire's own number; 1 and 2 carry no text.
    `may_close`: the rules also allow to end the connection, because the bytes cannot be decoded."""

    reason: int
    code: str
    may_close: bool = False


@dataclass(frozen=True)
class MustGoOn:
    """Go on with this very connection; a refused message is counted under `code`, if one is given."""

    code: str = ""


@dataclass(frozen=True)
class MustEnd:
    """End the connection without blame: the rules allow what was done, or the network itself can do it."""


@dataclass(frozen=True)
class MustServe:
    """Answer as the rules say. The case itself compares every answer."""


Must: TypeAlias = MustClose | MustRefuse | MustReject | MustGoOn | MustEnd | MustServe


class Needs(Enum):
    """Act that a node must have been seen to do before a case can say anything about it."""

    NOTHING = auto()
    NO_GAP = auto()
    TAKEN = auto()
    TOLD = auto()
    JUDGED = auto()


@dataclass
class CaseStage:
    """Everything that a case has at hand. The node knows `renewed_pool` with issue number 5, and `poor_pool` without stake;
    `evolved_pool` signs at its KES key's evolution 3. `held` is a message that the node has already."""

    attacker: Attacker
    pool: Forger
    renewed_pool: Forger
    poor_pool: Forger
    evolved_pool: Forger
    held: ForgedMessage
    layout: int = 5
    stranger: Forger = field(default_factory=Forger)
    kept: dict[str, Any] = field(default_factory=dict)

    def message(self, **given: Any) -> ForgedMessage:
        return message(given.pop("by", self.pool), **{"layout": self.layout, **given})


Act: TypeAlias = Callable[[CaseStage], Awaitable[None]]

QUICKLY_S = 2.0
SLOW_FROM_S = 5.0


@dataclass(frozen=True)
class Case:
    """Attempt against a node under test. `within_s`: how long after the last thing done here the node may take; a busy machine gets
    some grace on top. A case whose start is a `Tongue` is for nodes that speak it. `needs`: a node of which that was not seen is
    not looked at. `is_flood`: more than 64 KiB are sent, or many connections are made."""

    name: str
    rule: str
    start: Start | Tongue
    act: Act
    must: Must
    within_s: float = QUICKLY_S
    needs: Needs = Needs.NOTHING
    is_flood: bool = False

    @property
    def tongue(self) -> Tongue | None:
        return self.start if isinstance(self.start, Tongue) else None

    @property
    def begins(self) -> Start:
        return self.start.start if isinstance(self.start, Tongue) else self.start

    @property
    def is_slow(self) -> bool:
        """Return whether the case waits for a time limit of the node: it is run beside others."""
        return self.within_s >= SLOW_FROM_S


# Acts


def do(*acts: Act) -> Act:
    async def act(stage: CaseStage) -> None:
        for one in acts:
            await one(stage)

    return act


def sends(*pieces: bytes | RawSegment) -> Act:
    """Send bytes or segments as they are, all in one write."""

    async def act(stage: CaseStage) -> None:
        target = stage.attacker.target
        await stage.attacker.raw(
            b"".join(piece if isinstance(piece, bytes) else piece.bytes_for(target) for piece in pieces)
        )

    return act


def says(lane: int, *items: bytes) -> Act:
    """Say each item in segments of its own."""

    async def act(stage: CaseStage) -> None:
        for item in items:
            await stage.attacker.say(lane, item)

    return act


def hears(lane: int) -> Act:
    async def act(stage: CaseStage) -> None:
        await stage.attacker.hear(lane)

    return act


async def ends(stage: CaseStage) -> None:
    stage.attacker.end_of_stream()


async def nothing(stage: CaseStage) -> None:
    """Silence."""


# ForgedMessage submission, from either side and in every published way of writing it


@dataclass(frozen=True)
class Tongue:
    """Way of speaking message submission. `opens`: what has to be said before the first request."""

    name: str
    start: Start
    says_on: int
    hears_on: int
    tags: dict[str, int]
    is_definite: bool = False
    opens: tuple[tuple[int, bytes], ...] = ()
    awaits_init: bool = False
    role: str = "supplier"

    @property
    def key(self) -> str:
        """Return the name by which `Abilities` know it."""
        return f"{self.role} {self.name}"

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

    async def open(self, stage: CaseStage) -> None:
        for lane, item in self.opens:
            await stage.attacker.say(lane, item)
        if self.awaits_init:
            await stage.attacker.hear(self.hears_on)

    def says(self, *items: bytes) -> Act:
        return do(self.open, says(self.says_on, *items))

    def hears(self, what: str) -> Act:
        """Wait until the node has said `what`, and keep it."""

        async def act(stage: CaseStage) -> None:
            heard = await stage.attacker.hear(self.hears_on)
            require(heard[0] == self.tags[what], f"the node said {heard!r}, expected {what}")
            stage.kept[what] = heard

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
    Tongue("v2", Start.NODE_V2, 11, 11 | OTHER_SIDE, _V2_HASKELL, role="puller"),
    Tongue("v2-cip", Start.NODE_V2, 11, 11 | OTHER_SIDE, _V2_CIP, True, role="puller"),
    Tongue(
        "v1",
        Start.NODE_V1_BOTH_WAYS,
        11 | OTHER_SIDE,
        11,
        _V1_HASKELL,
        opens=((KEEP_ALIVE, _PING),),
        awaits_init=True,
        role="puller",
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
        role="puller",
    ),
)
V1, V1_CIP, SEED, V2 = SUPPLIERS
PULL_V2, PULL_V2_CIP, PULL_V1, PULL_SEED = PULLERS
ALL_TONGUES = frozenset(tongue.key for tongue in (*SUPPLIERS, *PULLERS))


def supplies(
    tongue: Tongue,
    make: Callable[[CaseStage], ForgedMessage],
    *,
    announced_size: int | None = None,
    announced_as: Callable[[CaseStage], bytes] | None = None,
) -> Act:
    """Announce one message and serve it; done when the node has acknowledged it, or is gone."""

    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        offered = make(stage)
        identifier = announced_as(stage) if announced_as else offered.identifier
        size = len(offered.raw) if announced_size is None else announced_size
        await serve(stage, tongue, [(identifier, size)], [offered.raw])

    return act


async def serve(
    stage: CaseStage, tongue: Tongue, announced: list[tuple[bytes, int]], served: list[bytes]
) -> None:
    """An honest supplier's loop over dishonest goods."""
    attacker = stage.attacker
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
        require(not (is_announced and blocking), "the node blocks while an id is unacknowledged")
        is_announced = True
