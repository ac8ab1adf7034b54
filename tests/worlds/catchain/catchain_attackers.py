"""Members that hold real keys and break the rules, each in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

import msgspec

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import (
    BLOCK_BYTES_MAX,
    Block,
    Dependency,
    block_id,
    data_hash,
    decode_update,
)
from stagepost.catchain.budgets import AuthorAccount, Rates
from stagepost.catchain.effects import Effect, Persist, Reply, Send
from stagepost.catchain.queries import (
    BLOCKS_ASKED_MAX,
    BlockResult,
    GetBlockHistory,
    GetDifference,
    Sent,
    encode_answer,
    encode_query,
)
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.body_search import GIVEN_UP_AFTER_S
from stagepost.remp.queue.records import (
    RECORDS_MAX,
    Digest,
    Header,
    Ids,
    LinkChallenge,
    Record,
    RejectRecord,
    Totals,
    amounts_in,
    date_rules,
    decode_payload,
    encode_payload,
    payload_bytes,
)
from stagepost.remp.queue.state import SKEW_MS
from stagepost.remp.receipts.statements import StatementLink, empty_chain
from tests.worlds.catchain.catchain_world import SESSION, Peer, World
from tests.worlds.catchain.members_world import answer_came, frame_came, query_came
from tests.worlds.remp.queue_world import FULL_NODE, Validator, message

STORM_UNTIL_S = 8.0
FLOOD_AFTER_S = 3.0
FLOOD_PAUSE_S = 0.25
FLOOD_AGAIN_S = 12.0
RESTORED_AFTER_S = 4.0
RESTORE_AGAIN_AFTER_S = 0.5
LOST_BLOCKS = 2
COUNT_OFFSET = 152
"""Of the count of references in a frame whose block follows another one."""

LATE_BODY_S = GIVEN_UP_AFTER_S + 1.5
LATE_AT_ONCE = 4


FOREDATED_MS = SKEW_MS + 3_000
RATES = Rates(20, 200, 500, 2_000, 1 << 16, 1 << 19)
"""Smaller than in a network, so that a flood costs a run little."""

DATES = date_rules(0, SKEW_MS, RATES)


class Attacker(Validator):
    """Honest in all but what a subclass changes."""

    is_honest = False

    def sign(self, previous: Dependency, dependencies: tuple[Dependency, ...], payload: bytes) -> Block:
        graph = self.member.graph
        height = previous.height + 1
        of_data = data_hash(payload, previous, dependencies, graph.rules.version)
        signed = block_id(graph.incarnation, graph.key_ids[self.index], height, of_data)
        signature = ed25519.sign(seed_of(self.index), signed)
        return Block(graph.incarnation, self.index, height, previous, dependencies, signature, payload)

    def payload(
        self, records: Sequence[Record], number: int, account: AuthorAccount | None = None
    ) -> tuple[bytes, AuthorAccount]:
        """Return a payload with true date and totals, which follows the blocks of `account`, and the account after it."""
        before = self.member.account if account is None else account
        size = payload_bytes([Totals(), *records])
        totals = before.totals.plus(amounts_in(records, size), int(self.world.now * 1_000))
        budget = (self.world.dates or DATES).budget
        return encode_payload([totals, *records], number), budget.after(before, totals)

    def account_before(self, block: Block) -> AuthorAccount:
        """Return the account of the author's blocks up to the one that `block` follows."""
        graph = self.member.graph
        vertex = graph.get(graph.hash_of(block.previous))
        return AuthorAccount() if vertex is None else vertex.account

    def send_frame(self, peer: int, frame: bytes) -> None:
        self.world.send(self.index, peer, partial(frame_came, self.index, frame))

    def others(self) -> list[int]:
        return [peer for peer in range(self.world.size) if peer != self.index]


class Equivocator(Attacker):
    """Tells one half one thing and the other half another, at the same height."""

    forks = True

    def perform(self, effects: list[Effect]) -> None:
        kept: list[Effect] = []
        for effect in effects:
            if (
                isinstance(effect, Send)
                and decode_update(effect.frame).source == self.index
                and effect.peer % 2
            ):
                block = decode_update(effect.frame)
                number = 10_000 + self.index * 1_000 + block.height
                seqno = self.queue.session.masterchain_seqno
                lie = [header_of(message(number), Origin(FULL_NODE, 0, 1), seqno)]
                payload, _ = self.payload(lie, -block.height, self.account_before(block))
                other = self.sign(block.previous, block.dependencies, payload)
                self.send_frame(effect.peer, other.encode())
            else:
                kept.append(effect)
        super().perform(kept)


class Withholder(Attacker):
    """Never tells one member anything, and answers none of its questions."""

    def perform(self, effects: list[Effect]) -> None:
        victim = (self.index + 1) % self.world.size
        super().perform(
            [one for one in effects if not (isinstance(one, Send | Reply) and one.peer == victim)]
        )


class Whisperer(Attacker):
    """Tells only one member, and answers nobody."""

    def perform(self, effects: list[Effect]) -> None:
        confidant = (self.index + 1) % self.world.size
        super().perform(
            [
                one
                for one in effects
                if not isinstance(one, Reply) and not (isinstance(one, Send) and one.peer != confidant)
            ]
        )


class StaleBuilder(Attacker):
    """Refers again to what its own chain covers already."""

    is_ill = True

    def perform(self, effects: list[Effect]) -> None:
        super().perform(effects)
        for effect in effects:
            if not (isinstance(effect, Persist) and effect.is_own):
                continue
            block = decode_update(effect.frame)
            if block.dependencies and block.height > 1:
                payload, _ = self.payload([], 5_000 + block.height)
                ill = self.sign(
                    block.reference(self.member.graph.rules.version), block.dependencies[:1], payload
                )
                for peer in self.others():
                    self.send_frame(peer, ill.encode())


class Phantom(Attacker):
    """Rests its blocks upon one that nobody will ever be given."""

    def start(self) -> None:
        super().start()
        payload, account = self.payload([], 6_000)
        hidden = self.sign(self.member.graph.top(self.index).reference, (), payload)
        version = self.member.graph.rules.version
        visible = self.sign(hidden.reference(version), (), self.payload([], 6_001, account)[0])
        for peer in self.others():
            self.world.after(1.0, partial(self.send_frame, peer, visible.encode()))


class Avalanche(Attacker):
    """Shows a long chain from its end, so that everybody asks for all of it."""

    def start(self) -> None:
        super().start()
        version = self.member.graph.rules.version
        previous = self.member.graph.top(self.index).reference
        chain: list[Block] = []
        account = self.member.account
        for number in range(120):
            payload, account = self.payload([], 7_000 + number, account)
            chain.append(self.sign(previous, (), payload))
            previous = chain[-1].reference(version)
        for number, block in enumerate(reversed(chain)):
            for peer in self.others():
                self.world.after(1.0 + number * 0.001, partial(self.send_frame, peer, block.encode()))


class Replayer(Attacker):
    """Sends blocks of another session, garbage, and everything twice."""

    def perform(self, effects: list[Effect]) -> None:
        for effect in list(effects):
            if isinstance(effect, Send):
                block = decode_update(effect.frame)
                old = Block(
                    sha256(b"an older session").digest(),
                    block.source,
                    block.height,
                    block.previous,
                    block.dependencies,
                    block.signature,
                    block.payload,
                )
                self.send_frame(effect.peer, old.encode())
                self.send_frame(effect.peer, effect.frame)
                self.send_frame(effect.peer, effect.frame[: len(effect.frame) // 2])
        super().perform(effects)


class Liar(Attacker):
    """Announces what it has not, dates it far ahead, and calls everybody's messages processed."""

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        payload = super().next_payload(is_due, account)
        if payload is None:
            return None
        number = 20_000 + self.index * 1_000 + self.queue.open_count
        seqno = self.queue.session.masterchain_seqno
        ghost = header_of(message(number), Origin(FULL_NODE, 0, 1 << 60), seqno)
        late = header_of(message(number + 500), Origin(FULL_NODE, 0, 1), seqno + 50)
        known = [Ids(one, bytes(32)) for one in sorted(self.queue.known_ids)[:20]]
        rejects = [RejectRecord(one.message_id, one.uid, seqno, "a lie") for one in known]
        lies: list[Header | Digest | RejectRecord] = [
            ghost,
            late,
            Digest(seqno, tuple(known), tuple(known)),
            *rejects,
        ]
        self.queue.block_delivered(self.index, encode_payload([Totals(), ghost], 0), self.world.now)
        return self.payload(lies, number, account)[0]


class Twin(Attacker):
    """Two processes with one key: the second speaks whenever the first does, of something else."""

    forks = True

    def perform(self, effects: list[Effect]) -> None:
        super().perform(effects)
        for effect in effects:
            if isinstance(effect, Persist) and effect.is_own:
                block = decode_update(effect.frame)
                payload, _ = self.payload([], 8_000 + block.height, self.account_before(block))
                twin = self.sign(block.previous, block.dependencies, payload)
                for peer in self.others():
                    self.world.after(0.2, partial(self.send_frame, peer, twin.encode()))


class Stormer(Attacker):
    """Asks for everything all the time, and shows blocks so high up that all below would have to be fetched."""

    def start(self) -> None:
        super().start()
        self._storm(self.life, 0)

    def _storm(self, life: int, number: int) -> None:
        if not self.is_up or life != self.life or self.world.now > STORM_UNTIL_S:
            return
        graph = self.member.graph
        everything = encode_query(GetDifference((0,) * graph.size))
        high = Dependency(self.index, 1_000 + 10 * number, sha256(b"%d" % number).digest(), bytes(64))
        visible = self.sign(high, (), b"high up")
        for peer in self.others():
            self.world.send(self.index, peer, partial(query_came, self.index, number, everything))
            own = graph.top(self.index)
            history = encode_query(GetBlockHistory(own.hash, BLOCKS_ASKED_MAX, ()))
            self.world.send(self.index, peer, partial(query_came, self.index, number, history))
            self.send_frame(peer, visible.encode())
        self.world.after(0.25, partial(self._storm, life, number + 1))


class FalseSizes(Attacker):
    """Says that there is more, or less, than there is: in frames, in lists, in payloads."""

    def perform(self, effects: list[Effect]) -> None:
        for effect in list(effects):
            if isinstance(effect, Send):
                longer = effect.frame + bytes(BLOCK_BYTES_MAX)
                shorter = effect.frame[:-8]
                # The count of references stands behind the reference to the previous block.
                many = bytearray(effect.frame)
                many[COUNT_OFFSET : COUNT_OFFSET + 4] = (1_000_000).to_bytes(4, "little")
                for frame in (longer, shorter, bytes(many)):
                    self.send_frame(effect.peer, frame)
        super().perform(effects)

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        payload = super().next_payload(is_due, account)
        if payload is None:
            return None
        counted = bytearray(payload)
        counted[12:16] = (60).to_bytes(4, "little")
        return bytes(counted)


class Overanswerer(Attacker):
    """Answers five times, also what nobody asked, and with blocks that nobody wants."""

    def perform(self, effects: list[Effect]) -> None:
        for effect in list(effects):
            if isinstance(effect, Reply):
                unasked = encode_answer(Sent(7))
                block = self.member.graph.top(self.index).block
                for number in range(1, 5):
                    self._answer(effect.peer, effect.number, effect.answer)
                    self._answer(effect.peer, effect.number + number, unasked)
                    if block is not None:
                        self._answer(effect.peer, effect.number + number, encode_answer(BlockResult(block)))
        super().perform(effects)

    def _answer(self, peer: int, number: int, answer: bytes) -> None:
        self.world.send(self.index, peer, partial(answer_came, self.index, number, answer))


class FarAhead(Attacker):
    """Its clock is a year ahead: whatever it is handed comes from then."""

    def hand_over(self, one: ExternalMessage) -> None:
        if self.is_up:
            self.bodies[one.message_id] = one
            self.do(self.queue.offer(one, FULL_NODE, self.world.now + 365 * 86_400))


class Backdater(Attacker):
    """Dates its blocks and whatever it announces to 1970."""

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        return redated(super().next_payload(is_due, account), lambda date_ms: 0)


class Foredater(Attacker):
    """Dates its blocks ahead, by more than clocks may differ."""

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        date_ms = int(self.world.now * 1_000) + FOREDATED_MS
        return redated(super().next_payload(is_due, account), lambda _: date_ms)


def redated(payload: bytes | None, date_of: Callable[[int], int]) -> bytes | None:
    """Return a payload with other dates of itself and of what it announces."""
    if payload is None:
        return None
    records: list[Record] = []
    for one in decode_payload(payload):
        if isinstance(one, Totals):
            records.append(msgspec.structs.replace(one, date_ms=date_of(one.date_ms)))
        elif isinstance(one, Header):
            records.append(msgspec.structs.replace(one, timestamp_ms=date_of(one.timestamp_ms)))
        else:
            records.append(one)
    return encode_payload(records, int.from_bytes(payload[-4:], "little", signed=True))


class OlderDisk(Attacker):
    """Honest, but started again from an image of its disk that is older than what it has said."""

    def start(self) -> None:
        super().start()
        if self.life == 1:
            self.world.after(RESTORED_AFTER_S, self._go_back)

    def _go_back(self) -> None:
        own = [frame for frame in self.disk if decode_update(frame).source == self.index]
        if len(own) < LOST_BLOCKS or not self._is_heard_beyond(len(own) - LOST_BLOCKS):
            # A member that has said nothing, or nothing that another member holds, has nothing to contradict.
            self.world.after(RESTORE_AGAIN_AFTER_S, self._go_back)
            return
        self.crash()
        self.recovered, self.halted = 0, None
        last = {id(frame) for frame in own[-LOST_BLOCKS:]}
        self.disk = [frame for frame in self.disk if id(frame) not in last]
        self.start()

    def _is_heard_beyond(self, height: int) -> bool:
        others = (peer for peer in self.world.peers if peer.is_up and peer is not self)
        return any(peer.member.graph.top(self.index).height > height for peer in others)


class Flooder(Attacker):
    """Announces many times what it may, with true dates and totals, and has none of the bodies."""

    is_provable = True
    headers = 600

    def start(self) -> None:
        super().start()
        self.world.after(FLOOD_AFTER_S, partial(self.flood, self.life))

    def flood(self, life: int) -> None:
        """Write the blocks of the flood beside the own core, which never speaks again."""
        if not self.is_up or life != self.life:
            return
        self.member._is_halted = True
        account, previous = self.member.account, self.member.graph.top(self.index).reference
        version, seqno = self.member.graph.rules.version, self.queue.session.masterchain_seqno
        for first in range(0, self.headers, RECORDS_MAX - 1):
            numbers = range(first, min(first + RECORDS_MAX - 1, self.headers))
            origin = Origin(FULL_NODE, self.index, int(self.world.now * 1_000))
            headers = [
                header_of(message(100_000 * (self.index + 1) + number), origin, seqno) for number in numbers
            ]
            payload, account = self.flood_payload(headers, first, account)
            block = self.sign(previous, (), payload)
            previous = block.reference(version)
            frame = block.encode()
            for peer in self.others():
                self.send_frame(peer, frame)
                # Faults may have taken the first ones.
                self.world.at(max(self.world.now, FLOOD_AGAIN_S), partial(self.send_frame, peer, frame))

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        return self.payload(headers, 9_000 + number, account)


class LawfulFlooder(Flooder):
    """Announces for ever as much as its budget allows, and has none of the bodies."""

    is_provable = False

    def flood(self, life: int) -> None:
        self.member._is_halted = True
        self._go_on(life, self.member.account, self.member.graph.top(self.index).reference, 0)

    def _go_on(self, life: int, account: AuthorAccount, previous: Dependency, number: int) -> None:
        if not self.is_up or life != self.life:
            return
        now_ms = int(self.world.now * 1_000)
        dates = self.world.dates or DATES
        count = min(dates.budget.left(account, now_ms)[0], RECORDS_MAX - 1)
        payload, account = self.payload(self.lawful_records(number, count), 9_000 + number, account)
        block = self.sign(previous, (), payload)
        for peer in self.others():
            self.send_frame(peer, block.encode())
        reference = block.reference(self.member.graph.rules.version)
        self.world.after(
            FLOOD_PAUSE_S, partial(self._go_on, life, account, reference, number + max(1, count))
        )

    def lawful_records(self, number: int, count: int) -> list[Record]:
        origin = Origin(FULL_NODE, self.index, int(self.world.now * 1_000))
        seqno = self.queue.session.masterchain_seqno
        first = 100_000 * (self.index + 1) + number
        return [header_of(message(one), origin, seqno) for one in range(first, first + count)]


class LateBodies(LawfulFlooder):
    """Announces for ever, and brings each body only when nobody asks for it urgently any more."""

    def lawful_records(self, number: int, count: int) -> list[Record]:
        records = super().lawful_records(number, min(count, LATE_AT_ONCE))
        first = 100_000 * (self.index + 1) + number
        for one in map(message, range(first, first + len(records))):
            self.world.after(LATE_BODY_S, partial(self.bring, one))
        return records

    def bring(self, late: ExternalMessage) -> None:
        if self.is_up:
            self.bodies[late.message_id] = late
            for peer in self.others():
                self.send_body(peer, late.message_id)


def challenge_of(accused: int, number: int) -> LinkChallenge:
    return LinkChallenge(key_id(public_key_of(accused)), empty_chain(SESSION, message(number).message_id))


class ChallengeFlooder(LawfulFlooder):
    """Challenges all others for ever as often as its budget allows, about messages of which nobody has heard."""

    def lawful_records(self, number: int, count: int) -> list[Record]:
        others = self.others()
        return [challenge_of(others[one % len(others)], number + one) for one in range(count)]


class RepeatedChallenger(Flooder):
    """Asks the same of the same member again and again, so that it answers for ever."""

    headers = 126

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        return self.payload([challenge_of(self.others()[0], 1)], 9_000 + number, account)


class Unanswering(Attacker):
    """Honest, but answers no challenge."""

    def answer(self, newest: StatementLink) -> None:
        pass


class FalseTotals(Flooder):
    """Floods, and states totals that grow as slowly as is allowed."""

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        payload, _ = self.payload(headers, 9_000 + number, account)
        totals = account.totals.plus((1, 0, len(payload)), int(self.world.now * 1_000))
        return encode_payload([totals, *headers], 9_000 + number), DATES.budget.after(account, totals)


class TurnedBackDates(Flooder):
    """Dates a block before its last one, so that the same time allows its messages again and again."""

    headers = 126

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        at_ms = int(self.world.now * 1_000) - number
        totals = account.totals.plus(amounts_in(headers, payload_bytes([Totals(), *headers])), 0)
        totals = msgspec.structs.replace(totals, date_ms=at_ms)
        return encode_payload([totals, *headers], 9_000 + number), DATES.budget.after(account, totals)


class Undated(Flooder):
    """Writes payloads without date and totals, which would count nowhere."""

    headers = 63

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        return encode_payload(headers, 9_000 + number), account


ATTACKERS: tuple[type[Attacker], ...] = (
    Equivocator, Withholder, Whisperer, StaleBuilder, Phantom, Avalanche, Replayer, Liar, Twin, Stormer, FalseSizes,
    Overanswerer, FarAhead, OlderDisk, Backdater, Foredater, Flooder, LawfulFlooder, FalseTotals, TurnedBackDates, Undated,
    ChallengeFlooder, RepeatedChallenger, Unanswering,
)  # fmt: skip


LATER_ATTACKERS: tuple[type[Attacker], ...] = (LateBodies,)
"""Attackers that no seed draws by lot: the seeds that once went wrong keep their meaning."""


def is_honest(peer: Peer) -> bool:
    return not isinstance(peer, Attacker)


def world_with(size: int, seed: int, attackers: dict[int, type[Attacker]], loss: float) -> World:
    def make(world: World, index: int) -> Peer:
        return attackers.get(index, Validator)(world, index)

    return World(size, seed, loss=loss, make_peer=make, dates=DATES)
