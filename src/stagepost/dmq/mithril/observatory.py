"""The live observatory: who signed which beacon, how late, with how much stake. Pure, and bounded in memory.

The pipeline computes the same figures from the topics, for all of history; here they are computed from what is remembered.
A figure that needs a stake or parameters which are not known is None, never 0.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.mithril.body import MithrilBody, NamesAsOf, SignatureForm, SignedEntity, decode_body
from stagepost.dmq.mithril.stake_parts import EpochStake, StakePart, joined_stake
from stagepost.errors import DecodeError
from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.ground.identifiers import PoolId

SIGHTINGS_MAX = 100_000
"""Signatures that are remembered: some 600 bytes each; then the beacon that was seen first is forgotten."""
SIGHTINGS_PER_SPEAKER_MAX = 8
"""Signatures of one pool for one beacon that are remembered; more of them say nothing new."""
COUNTER_MAX = 2**63 - 1
"""Number of a certificate or KES period, the greatest that a table can hold; a greater one counts as this."""
EPOCHS_OF_STAKE_MAX = 16
"""Epochs whose stake is remembered; of more, the oldest is forgotten."""


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """DMQ message with a Mithril body, as it arrived first."""

    dmq_id: bytes
    pool_id: PoolId
    arrived_ms: int
    entity: SignedEntity
    sigma: bytes
    body_hash: bytes
    indexes: bytes
    form: SignatureForm
    issue_number: int
    start_kes_period: int
    kes_period: int

    @classmethod
    def of(cls, message: DmqMessage, body: MithrilBody, arrived_ms: int) -> Sighting:
        return cls(
            bytes(message.message_id),
            message.pool_id,
            arrived_ms,
            body.entity,
            body.sigma,
            blake2b_256(message.body)[:16],
            array("I", body.indexes).tobytes(),
            body.form,
            min(message.issue_number, COUNTER_MAX),
            min(message.start_kes_period, COUNTER_MAX),
            min(message.kes_period, COUNTER_MAX),
        )

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Identity of a message: the older layout lets its sender choose the id."""
        return self.dmq_id, self.body_hash

    @property
    def index_numbers(self) -> Sequence[int]:
        found = array("I")
        found.frombytes(self.indexes)
        return found


class BeaconFigures(msgspec.Struct, frozen=True):
    """Figures of one beacon, in the columns of the table `mithril_beacons`. None: not known."""

    epoch: int
    variant: int
    beacon: str
    entity: str
    entity_before: str | None
    first_ms: int | None
    last_ms: int | None
    pools: int
    stake: int | None
    total_stake: int | None
    adoption_percent: float | None
    unstaked_pools: int | None
    unknown_pools: int | None
    indexes: int | None
    quorum: int | None
    quorum_percent: float | None
    expected_percent: float | None
    half_ms: int | None
    quorum_ms: int | None
    late: int
    repeats: int
    reencoded: int
    equivocating: int
    other_epoch: int | None


class PoolFigures(msgspec.Struct, frozen=True):
    """Figures of one pool in one epoch, in the columns of the table `mithril_pools`. None: not known."""

    epoch: int
    pool_id: str
    stake: int | None
    share_percent: float | None
    signed: int
    silent: int
    median_late_ms: int | None
    p95_late_ms: int | None
    late: int
    repeats: int
    reencoded: int
    equivocations: int
    other_epoch: int | None
    certificate_number: int | None
    certificates: int
    kes_periods_left: int | None
    forms: str | None


class _Speaker(msgspec.Struct, frozen=True):
    """Part of a pool in one beacon, of signatures that arrived in the beacon's epoch."""

    first_ms: int
    messages: int
    bodies: int
    sigmas: int

    @property
    def repeats(self) -> int:
        return self.messages - self.bodies

    @property
    def is_reencoded(self) -> bool:
        return self.bodies > self.sigmas

    @property
    def equivocates(self) -> bool:
        return self.sigmas > 1


def entity_names(entity: SignedEntity) -> tuple[str, str | None]:
    """Return the name by the newer numbering, or the older where only that fits, and the other name where it differs."""
    since, until = entity.name(NamesAsOf.SINCE_2630), entity.name(NamesAsOf.UNTIL_2617)
    shown = since or until or f"entity {entity.variant}"
    return shown, until if until != shown else None


def beacon_figures(
    entity: SignedEntity, sightings: Iterable[Sighting], stake: EpochStake | None
) -> BeaconFigures:
    """Return the figures of one beacon from its signatures, each message once."""
    every = list(sightings)
    within = [one for one in every if _is_within(one, stake)]
    speakers = _speakers(within)
    first_ms = min((one.arrived_ms for one in within), default=None)
    name, before = entity_names(entity)
    stakes = {} if stake is None else {pool: stake.stakes.get(pool) for pool in speakers}
    known = sum(one for one in stakes.values() if one)
    total = None if stake is None else stake.total_stake
    parameters = None if stake is None else stake.parameters
    indexes = None
    if parameters is not None:
        drawn = parameters.m
        claimed = (one for one in within if stakes.get(one.pool_id))
        indexes = len({index for one in claimed for index in one.index_numbers if index < drawn})
    quorum = None if parameters is None else parameters.k
    share = None if not total else float(known) / float(total)
    return BeaconFigures(
        epoch=entity.epoch,
        variant=entity.variant,
        beacon=entity.beacon,
        entity=name,
        entity_before=before,
        first_ms=first_ms,
        last_ms=max((one.arrived_ms for one in within), default=None),
        pools=len(speakers),
        stake=None if stake is None else known,
        total_stake=total,
        adoption_percent=None if share is None else 100.0 * share,
        unstaked_pools=None if stake is None else sum(1 for one in stakes.values() if one == 0),
        unknown_pools=None if stake is None else sum(1 for one in stakes.values() if one is None),
        indexes=indexes,
        quorum=quorum,
        quorum_percent=None if indexes is None or quorum is None else 100.0 * indexes / quorum,
        expected_percent=None
        if parameters is None or share is None
        else 100.0 * parameters.expected_indexes(share) / parameters.k,
        half_ms=_reached_ms(speakers, stake, 0.5),
        quorum_ms=None if parameters is None else _reached_ms(speakers, stake, parameters.quorum_share),
        late=sum(1 for one in speakers.values() if one.first_ms - (first_ms or 0) > entity.timeout_ms),
        repeats=sum(one.repeats for one in speakers.values()),
        reencoded=sum(one.is_reencoded for one in speakers.values()),
        equivocating=sum(one.equivocates for one in speakers.values()),
        other_epoch=None if stake is None else len(every) - len(within),
    )


def pool_figures(
    epoch: int, sightings: Iterable[Sighting], stake: EpochStake | None
) -> Iterator[PoolFigures]:
    """Yield the figures of every pool that signed in the epoch or has stake in it, by pool id."""
    beacons: dict[SignedEntity, list[Sighting]] = defaultdict(list)
    by_pool: dict[PoolId, list[Sighting]] = defaultdict(list)
    for one in sightings:
        by_pool[one.pool_id].append(one)
        if _is_within(one, stake):
            beacons[one.entity].append(one)
    parts: dict[PoolId, list[tuple[SignedEntity, int, _Speaker]]] = defaultdict(list)
    for entity, some in beacons.items():
        first_ms = min(one.arrived_ms for one in some)
        for pool_id, speaker in _speakers(some).items():
            parts[pool_id].append((entity, speaker.first_ms - first_ms, speaker))
    staked = () if stake is None else (pool for pool, amount in stake.stakes.items() if amount)
    for pool_id in sorted({*by_pool, *staked}):
        mine = parts.get(pool_id, [])
        own = None if stake is None else stake.stakes.get(pool_id)
        delays = sorted(delay for _, delay, _ in mine)
        spoke = by_pool.get(pool_id, [])
        latest = max(spoke, key=lambda one: (one.arrived_ms, one.dmq_id), default=None)
        total = None if stake is None else stake.total_stake
        yield PoolFigures(
            epoch=epoch,
            pool_id=pool_id.hex(),
            stake=own,
            share_percent=None if own is None or not total else 100.0 * (float(own) / float(total)),
            signed=len(mine),
            silent=len(beacons) - len(mine),
            median_late_ms=ranked(delays, 0.5),
            p95_late_ms=ranked(delays, 0.95),
            late=sum(1 for entity, delay, _ in mine if delay > entity.timeout_ms),
            repeats=sum(one.repeats for _, _, one in mine),
            reencoded=sum(one.is_reencoded for _, _, one in mine),
            equivocations=sum(one.equivocates for _, _, one in mine),
            other_epoch=None if stake is None else sum(1 for one in spoke if not _is_within(one, stake)),
            certificate_number=max((one.issue_number for one in spoke), default=None),
            certificates=len({one.issue_number for one in spoke}),
            kes_periods_left=None
            if stake is None or latest is None
            else latest.start_kes_period - latest.kes_period + stake.kes_evolutions_max - 1,
            forms=",".join(sorted({one.form.value for one in spoke})) or None,
        )


def ranked(ordered: Sequence[int], share: float) -> int | None:
    """Return the least value that `share` of the values do not exceed; None of nothing."""
    if not ordered:
        return None
    return ordered[max(0, -(-int(share * 1_000) * len(ordered) // 1_000) - 1)]


def _is_within(sighting: Sighting, stake: EpochStake | None) -> bool:
    """Return whether a signature arrived in the epoch that it signs for; also where the epoch's time is not known."""
    return stake is None or stake.from_ms <= sighting.arrived_ms < stake.to_ms


def _speakers(sightings: Iterable[Sighting]) -> dict[PoolId, _Speaker]:
    by_pool: dict[PoolId, list[Sighting]] = defaultdict(list)
    for one in sightings:
        by_pool[one.pool_id].append(one)
    return {
        pool: _Speaker(
            min(one.arrived_ms for one in some),
            len({one.key for one in some}),
            len({one.body_hash for one in some}),
            len({one.sigma for one in some}),
        )
        for pool, some in by_pool.items()
    }


def _reached_ms(speakers: Mapping[PoolId, _Speaker], stake: EpochStake | None, share: float) -> int | None:
    """Return the time from the first signature until the signers have a share of all stake; None if they have not."""
    if stake is None or not stake.total_stake:
        return None
    begin_ms, known = min((one.first_ms for one in speakers.values()), default=0), 0
    for pool_id, one in sorted(speakers.items(), key=lambda item: (item[1].first_ms, item[0])):
        known += stake.stakes.get(pool_id) or 0
        if float(known) / float(stake.total_stake) >= share:
            return one.first_ms - begin_ms
    return None


class Observatory:
    """Memory of signatures by beacon, and of stake by epoch."""

    def __init__(self, sightings_max: int = SIGHTINGS_MAX) -> None:
        self._sightings_max = sightings_max
        self._beacons: OrderedDict[SignedEntity, dict[PoolId, dict[tuple[bytes, bytes], Sighting]]] = (
            OrderedDict()
        )
        self._parts: dict[int, list[StakePart]] = {}
        self._stakes: dict[int, EpochStake | None] = {}
        self._count = 0
        self.messages = 0
        self.other_bodies = 0
        self.forgotten_beacons = 0

    def hear(self, message: DmqMessage, arrived_ms: int) -> Sighting | None:
        """Take a message whose signature was checked; return None, and count it, if its body is not Mithril's."""
        self.messages += 1
        try:
            body = decode_body(message.body)
        except DecodeError:
            self.other_bodies += 1
            return None
        sighting = Sighting.of(message, body, arrived_ms)
        speakers = self._beacons.setdefault(body.entity, {})
        held = speakers.setdefault(sighting.pool_id, {})
        known = held.get(sighting.key)
        if known is None and len(held) >= SIGHTINGS_PER_SPEAKER_MAX:
            return sighting
        if known is None or arrived_ms < known.arrived_ms:
            self._count += known is None
            held[sighting.key] = sighting
        while self._count > self._sightings_max and len(self._beacons) > 1:
            self._forget_beacon()
        return sighting

    def _forget_beacon(self) -> None:
        _, speakers = self._beacons.popitem(last=False)
        self._count -= sum(map(len, speakers.values()))
        self.forgotten_beacons += 1

    def learn(self, part: StakePart) -> None:
        """Take a part of the stake of one epoch."""
        name = (part.network_magic, part.digest, part.part)
        held = (
            one
            for one in self._parts.get(part.epoch, ())
            if (one.network_magic, one.digest, one.part) != name
        )
        self._parts[part.epoch] = [*held, part]
        self._stakes[part.epoch] = joined_stake(self._parts[part.epoch])
        while len(self._parts) > EPOCHS_OF_STAKE_MAX:
            oldest = min(self._parts)
            del self._parts[oldest], self._stakes[oldest]

    def stake(self, epoch: int) -> EpochStake | None:
        return self._stakes.get(epoch)

    @property
    def sightings(self) -> int:
        return self._count

    @property
    def epochs(self) -> list[int]:
        """Return the epochs of remembered beacons and of known stake, ascending."""
        known = {epoch for epoch, stake in self._stakes.items() if stake is not None}
        return sorted({entity.epoch for entity in self._beacons} | known)

    def _of(self, entity: SignedEntity) -> Iterator[Sighting]:
        for held in self._beacons[entity].values():
            yield from held.values()

    def beacons(self, epoch: int | None = None) -> list[BeaconFigures]:
        """Return the figures of remembered beacons, in the order of epoch, variant and beacon."""
        wanted = (entity for entity in self._beacons if epoch in (None, entity.epoch))
        return [
            beacon_figures(entity, self._of(entity), self.stake(entity.epoch))
            for entity in sorted(wanted, key=lambda one: (one.epoch, *one))
        ]

    def pools(self, epoch: int) -> list[PoolFigures]:
        """Return the figures of the pools in one epoch, of the beacons that are remembered."""
        sightings = (one for entity in self._beacons if entity.epoch == epoch for one in self._of(entity))
        return list(pool_figures(epoch, sightings, self.stake(epoch)))
