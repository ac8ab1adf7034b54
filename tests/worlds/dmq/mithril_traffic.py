"""Traffic of a Mithril network on DMQ: pools that sign beacons on time, late, twice, for another epoch, or not at all.

The plan says what everybody did, so an oracle needs to decode nothing. Messages are signed with real KES keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b, sha256
from random import Random

from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from tests.worlds.dmq.mithril_bodies import Entity, body, sigma_of

MAGIC = 2
EPOCH_MS = 86_400_000
BEGIN_MS = 1_790_000_000_000
"""In the middle of a day, so that every epoch lies on two days."""
FIRST_EPOCH = 640
KES_EVOLUTIONS_MAX = 62
K, M, PHI_F = 60, 500, 0.2

UNSTAKED, STRANGER, SOMETIMES, SILENT, RENEWED = range(5)
"""Pools with a part of their own: stake 0; in no set; in every second set; never signs; renews its certificate."""


@dataclass(frozen=True)
class TrafficPool:
    """Pool `number`, with keys of its own."""

    number: int

    @cached_property
    def cold_seed(self) -> bytes:
        return blake2b(b"cold %d" % self.number, digest_size=32).digest()

    @cached_property
    def key(self) -> SigningKey:
        return SigningKey.generate(blake2b(b"kes %d" % self.number, digest_size=32).digest())

    @cached_property
    def name(self) -> str:
        return pool_id(ed25519.public_key(self.cold_seed)).hex()

    @cached_property
    def cold_key(self) -> bytes:
        return ed25519.public_key(self.cold_seed)

    @cache  # noqa: B019  # pools live as long as their traffic
    def certificate(self, issue_number: int, period: int) -> OperationalCertificate:
        return issue(
            self.key.verification_key,
            issue_number=issue_number,
            start_kes_period=period,
            cold_seed=self.cold_seed,
        )

    def sign(self, content: bytes, expires_at: int, issue_number: int, period: int = 100) -> DmqMessage:
        return sign_message(
            content,
            key=self.key,
            certificate=self.certificate(issue_number, period),
            cold_verification_key=self.cold_key,
            kes_period=period,
            expires_at=expires_at,
        )


@dataclass(frozen=True)
class Planned:
    """One message of one pool for one beacon."""

    pool: int
    epoch: int
    entity: Entity
    arrived_ms: int
    sigma: bytes
    indexes: tuple[int, ...]
    form: str
    expires_at: int
    issue_number: int = 1
    arrived_again_ms: int | None = None

    @property
    def content(self) -> bytes:
        return body(self.entity, self.sigma, self.indexes, self.pool, self.form)


@dataclass(frozen=True)
class EpochPlan:
    """Stake of one epoch as it is recorded. `is_whole` False: a part of it is missing."""

    epoch: int
    stakes: dict[str, int]
    has_parameters: bool = True
    is_whole: bool = True
    is_recorded: bool = True

    @property
    def from_ms(self) -> int:
        return BEGIN_MS + (self.epoch - FIRST_EPOCH) * EPOCH_MS

    @property
    def is_known(self) -> bool:
        return self.is_whole and self.is_recorded


@dataclass(frozen=True)
class TopicRecord:
    """Record of a topic, before it is written to a dump or a log."""

    topic: str
    key: str
    value: bytes
    arrived_ms: int


@dataclass
class Traffic:
    """Everything that happened, and the records that a recorder would have written of it."""

    pools: int
    epochs: int
    seed: int
    per_part: int = 10
    beacons: int = 5
    plans: list[Planned] = field(default_factory=list)
    stakes: dict[int, EpochPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = Random(self.seed)
        self.members = [TrafficPool(number) for number in range(self.pools)]
        for epoch in range(FIRST_EPOCH, FIRST_EPOCH + self.epochs):
            self.stakes[epoch] = self._stake(epoch, random)
            for entity in entities(epoch)[: self.beacons]:
                self.plans.extend(self._beacon(epoch, entity, random))

    def _stake(self, epoch: int, random: Random) -> EpochPlan:
        stakes = {
            member.name: 0 if member.number == UNSTAKED else int(10**12 * random.lognormvariate(0, 1.5)) + 1
            for member in self.members
            if member.number != STRANGER and (member.number != SOMETIMES or epoch % 2 == 0)
        }
        last = FIRST_EPOCH + self.epochs - 1
        return EpochPlan(epoch, stakes, epoch != FIRST_EPOCH + 1, epoch != last - 1, epoch != last)

    def _beacon(self, epoch: int, entity: Entity, random: Random) -> Iterator[Planned]:
        begin_ms = self.stakes[epoch].from_ms + random.randrange(EPOCH_MS // 2)
        for member in self.members:
            if member.number == SILENT or random.random() < 0.2:
                continue
            chance = random.random()
            after_ms = random.randrange(1, 400_000)
            if chance < 0.04:
                after_ms += 4_000_000
            elif chance < 0.07:
                after_ms += EPOCH_MS
            elif chance < 0.08:
                after_ms -= 2 * EPOCH_MS
            first = Planned(
                pool=member.number,
                epoch=epoch,
                entity=entity,
                arrived_ms=begin_ms + after_ms,
                sigma=sigma_of(member.number, entity),
                indexes=tuple(sorted(random.sample(range(M + 20), random.randrange(4, 12)))),
                form=random.choice(("legacy", "cbor")),
                expires_at=(begin_ms + after_ms) // 1_000 + 1_800,
                issue_number=1 + (member.number == RENEWED and epoch > FIRST_EPOCH),
            )
            if random.random() < 0.05:
                yield replace(first, arrived_again_ms=first.arrived_ms + random.randrange(-500, 90_000))
            else:
                yield first
            yield from _more(first, random)

    def signed(self, plan: Planned) -> DmqMessage:
        return self.members[plan.pool].sign(plan.content, plan.expires_at, plan.issue_number)

    def messages(self) -> Iterator[tuple[DmqMessage, int]]:
        """Every message with each of its arrivals."""
        for plan in self.plans:
            message = self.signed(plan)
            yield message, plan.arrived_ms
            if plan.arrived_again_ms is not None:
                yield message, plan.arrived_again_ms

    def other_messages(self) -> list[tuple[DmqMessage, int]]:
        """Messages that count for nothing: bodies of other programs, and one with a changed signature."""
        found = [
            (self.members[6].sign(bytes([n]) * 120, BEGIN_MS // 1_000 + n, 1), BEGIN_MS + n) for n in range(3)
        ]
        # Valid, with a KES period that no table can hold.
        found.append((self.members[7].sign(b"\xff" * 120, BEGIN_MS // 1_000, 2**64 - 1, 2**64 - 1), BEGIN_MS))
        plan = next(one for one in self.plans if one.pool > RENEWED)
        whole = self.signed(replace(plan, sigma=sigma_of("forged")))
        raw = bytearray(whole.raw)
        raw[raw.index(whole.kes_signature) + 5] ^= 1
        return [*found, (DmqMessage.decode(bytes(raw)), plan.arrived_ms)]

    def records(self) -> list[TopicRecord]:
        """The records of both topics, in no order."""
        found = [
            TopicRecord("stagepost.dmq.messages", message.message_id.hex(), message.raw, arrived_ms)
            for message, arrived_ms in (*self.messages(), *self.other_messages())
        ]
        for plan in self.stakes.values():
            if plan.is_recorded:
                found += self.stake_records(plan)
        first = self.stakes[FIRST_EPOCH]
        # Asked earlier, on a fork, and asked again after a restart.
        forked = replace(first, stakes={name: 2 * stake for name, stake in first.stakes.items()})
        found += self.stake_records(forked, taken_after_ms=-1_000)
        found += self.stake_records(first, taken_after_ms=5_000)[:1]
        Random(self.seed).shuffle(found)
        return found

    def stake_records(self, plan: EpochPlan, taken_after_ms: int = 0) -> list[TopicRecord]:
        pools = sorted(plan.stakes.items())
        pieces = [dict(pools[at : at + self.per_part]) for at in range(0, len(pools), self.per_part)]
        kept = pieces if plan.is_whole else pieces[1:]
        parameters = {"k": K, "m": M, "phi_f": PHI_F} if plan.has_parameters else {}
        taken_ms = plan.from_ms + 30_000 + taken_after_ms
        digest = sha256(repr((plan.epoch, pools)).encode()).hexdigest()[:32]
        found = []
        for piece in kept:
            number = pieces.index(piece)
            value = {
                "network_magic": MAGIC, "era": 6, "epoch": plan.epoch, "from_ms": plan.from_ms,
                "to_ms": plan.from_ms + EPOCH_MS, "taken_ms": taken_ms, "kes_evolutions_max": KES_EVOLUTIONS_MAX,
                "digest": digest, "part": number, "parts": len(pieces), "pools": len(pools),
                "total_stake": sum(plan.stakes.values()), "stakes": piece, **parameters,
            }  # fmt: skip
            key = f"{MAGIC}:{plan.epoch}:{number}"
            found.append(TopicRecord("stagepost.dmq.stake", key, json.dumps(value).encode(), taken_ms))
        return found


def entities(epoch: int) -> Sequence[Entity]:
    """The beacons of an epoch: one of each kind, and two whose number does not tell the numbering."""
    return (
        (0, (epoch,)),
        (1, (epoch - 1,)),
        (2, (epoch, 9_000 + epoch)),
        (3, (epoch, 9_000 + epoch)),
        (4, (epoch, 13_000_000 + epoch, 15)),
    )


def _more(first: Planned, random: Random) -> Iterator[Planned]:
    """Further messages of the same pool for the same beacon."""
    chance = random.random()
    later_ms = first.arrived_ms + random.randrange(1, 60_000)
    if chance < 0.04:  # the same body again
        yield replace(first, arrived_ms=later_ms, expires_at=first.expires_at + 60)
    elif chance < 0.08:  # the same signature in the other form
        other = "cbor" if first.form == "legacy" else "legacy"
        yield replace(first, arrived_ms=later_ms, form=other)
    elif chance < 0.12:  # another signature
        yield replace(first, arrived_ms=later_ms, sigma=sigma_of("other", first.pool, first.entity))
