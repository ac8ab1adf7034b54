"""Validators that break the rules of queue sessions, each in one way: at the switch, before it, with bodies, or with
blocks of the graph. Chain and agreement of such a validator stay honest; `primes_faults` has those that are not.

A dishonest validator runs the real code. A `HostileSeat` stands between its session runner and the other members, and
changes, drops or adds what goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from rigs.chain_messages import address
from stagepost.catchain.block import UPDATE_ID, Block, Dependency, block_id, data_hash, decode_update
from stagepost.catchain.budgets import AuthorAccount
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.message_values import NEVER
from stagepost.chain.messages import CanonicalMessage
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.links.overlay import Answered, OverlayEvents
from stagepost.remp.message import BODY_ID, QUERY_ID, MessageBody, MessageQuery
from stagepost.remp.queue.message_states import is_open
from stagepost.remp.queue.records import (
    Digest,
    Header,
    Ids,
    Record,
    RejectRecord,
    Totals,
    decode_payload,
    encode_payload,
    payload_beside,
)
from stagepost.remp.queue.reliable_queue import NOTHING_WRITTEN
from stagepost.validator.session_plan import SessionPlan
from stagepost.validator.session_runner import SessionRunner
from stagepost.validator.sessions import ClosableOverlay
from stagepost.validator.validator import RempValidator
from tests.worlds.chain.chain_world import EXPIRES_AT_S

if TYPE_CHECKING:
    from tests.worlds.remp.primes_world import ValidatorHouse

FLOOD = 60
"""Messages, in one flood before a switch."""

HANDED_ON_MAX = 30
"""Records, at most, of each kind that an attacker hands on with a lie."""

REPLAY_EVERY_S = 2.0
TWIN_AFTER_S = 0.2
LOOK_EVERY_S = 0.1
NEAR_MS = 400
"""Milliseconds before its end from which on a session's switch is near."""

A_FRIEND = sha256(b"a full node that nobody knows").digest()
FLOODED_ACCOUNTS = tuple(
    address(ContractKind.SUM_OF_PRIMES, 1_000 + one, first_bits=one * 32) for one in range(8)
)
"""Accounts that take floods, in all shards: nobody adds up what they hold."""

_BLOCK, _BODY, _QUERY = (constructor_bytes(one) for one in (UPDATE_ID, BODY_ID, QUERY_ID))


class HostileSeat:
    """The place of a dishonest validator in one session. This class changes nothing; each subclass breaks one rule."""

    channel: ClosableOverlay

    def __init__(self, attack: SessionAttack, plan: SessionPlan, runner: SessionRunner) -> None:
        self.attack = attack
        self.plan = plan
        self.runner = runner
        self.is_closed = False

    def begin(self) -> None:
        """The runner starts after this call."""

    # From the members to the runner

    def pushed(self, peer: int, frame: bytes) -> None:
        self.runner.pushed(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self.runner.asked(peer, query, reply)

    def linked(self, peer: int) -> None:
        self.runner.linked(peer)

    # From the runner to the members

    def push(self, peer: int, frame: bytes) -> bool:
        return self.channel.push(peer, frame)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        self.channel.ask(peer, query, answered, timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        """An attacker refuses nobody."""

    async def close(self) -> None:
        self.is_closed = True
        await self.channel.close()

    # The switch

    def switch_is_near(self) -> None:
        """Soon another session follows this one."""

    def hand_on(self, old: SessionRunner, honestly: Callable[[], None]) -> None:
        """Hand on from `old`, a session that this one follows."""
        honestly()

    # For subclasses

    @property
    def now(self) -> float:
        return self.attack.house.world.clock.unix_s()

    @property
    def friend(self) -> int:
        return (self.plan.index + 1) % len(self.plan.public_keys)

    def announce(self, records: Iterable[Record]) -> None:
        self.runner.perform(self.runner.queue.forward_into(list(records), [], self.now))

    def ghost(self, name: str, seqno: int, timestamp_ms: int) -> Header:
        """Return a header whose message nobody has."""
        identity = sha256(
            f"{name} of {self.attack.house.number} in {self.plan.session_id.hex()}".encode()
        ).digest()
        return Header(identity, identity, 0, identity, A_FRIEND, 0, seqno, timestamp_ms)

    def own_block(self, frame: bytes) -> Block | None:
        """Return the block in a frame, if this validator made it."""
        block = decode_update(frame) if frame.startswith(_BLOCK) else None
        return block if block is not None and block.source == self.plan.index else None

    def sign(self, previous: Dependency, dependencies: tuple[Dependency, ...], payload: bytes) -> Block:
        graph = self.runner.graph
        height = previous.height + 1
        of_data = data_hash(payload, previous, dependencies, graph.rules.version)
        signed = block_id(graph.incarnation, graph.key_ids[self.plan.index], height, of_data)
        signature = ed25519.sign(self.attack.house.seed, signed)
        return Block(graph.incarnation, self.plan.index, height, previous, dependencies, signature, payload)


class Forgetter(HostileSeat):
    """Hands nothing on."""

    def hand_on(self, old: SessionRunner, honestly: Callable[[], None]) -> None:
        pass


class FavouringForwarder(HostileSeat):
    """Sends blocks to one member alone, answers nobody else, and keeps bodies."""

    def push(self, peer: int, frame: bytes) -> bool:
        return frame.startswith(_BODY) or peer != self.friend or super().push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if peer == self.friend or query.startswith(_QUERY):
            super().asked(peer, query, reply)


class FalseForwarder(HostileSeat):
    """Calls what is open processed, and what is processed open."""

    def hand_on(self, old: SessionRunner, honestly: Callable[[], None]) -> None:
        entries = old.queue.entries()
        was_open = [one for one in entries if is_open(one.status)][:HANDED_ON_MAX]
        lies = tuple(Ids(one.message_id, one.header.uid) for one in was_open)
        was_closed = [one.header for one in entries if not is_open(one.status)][:HANDED_ON_MAX]
        self.announce([*was_closed, Digest(self.plan.masterchain_seqno, lies, lies)])


class LateFlooder(HostileSeat):
    """Fills the queue just before it ends."""

    def switch_is_near(self) -> None:
        shard, ledger = self.plan.shard, self.attack.validator.ledger
        expires_at_s = EXPIRES_AT_S if ledger.master.configuration.must_expire else NEVER
        accounts = [one for one in FLOODED_ACCOUNTS if shard.holds(0, one)]
        for number in range(FLOOD if accounts else 0):
            body = primes_body(2 + number % 7)
            salt = int.from_bytes(self.plan.session_id[:4], "little") * FLOOD + number
            data = CanonicalMessage(accounts[number % len(accounts)], body, expires_at_s, salt).encode()
            self.runner.offer(ledger.parse(data).message, A_FRIEND)


class Miser(HostileSeat):
    """Announces messages and keeps their bodies."""

    def push(self, peer: int, frame: bytes) -> bool:
        return frame.startswith(_BODY) or super().push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if not query.startswith(_QUERY):
            super().asked(peer, query, reply)


class OldSessionReplayer(HostileSeat):
    """Announces everything that it ever heard of, as old as it is, and sends blocks of earlier sessions."""

    def begin(self) -> None:
        self.attack.later(REPLAY_EVERY_S, self._replay)

    def push(self, peer: int, frame: bytes) -> bool:
        if frame.startswith(_BLOCK):
            self.attack.frames.setdefault(self.plan.session_id, []).append(frame)
        return super().push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        body = (
            self.attack.bodies.get(MessageQuery.decode(query).message_id)
            if query.startswith(_QUERY)
            else None
        )
        if body is None:
            super().asked(peer, query, reply)
        else:
            reply(MessageBody(body).encode())

    def _replay(self) -> None:
        if self.is_closed:
            return
        self.attack.later(REPLAY_EVERY_S, self._replay)
        for one in self.runner.queue.entries():
            self.attack.headers[one.message_id] = one.header
            if one.body is not None:
                self.attack.bodies[one.message_id] = one.body.body
        lowest = self.attack.validator.queues.cache.window.lowest
        self.announce([one for one in self.attack.headers.values() if one.masterchain_seqno < lowest][-20:])
        for session_id, frames in self.attack.frames.items():
            if session_id != self.plan.session_id:
                for frame in frames[-5:]:
                    for peer in self.plan.others:
                        self.channel.push(peer, frame)


class Resubmitter(HostileSeat):
    """Announces what is final, as if it had come today."""

    def switch_is_near(self) -> None:
        cache, ledger = self.attack.validator.queues.cache, self.attack.validator.ledger
        final = [one for block in list(ledger.history(0))[-10:] for one in block.messages]
        known = [one for one in (cache.get(message.message_id) for message in final) if one is not None]
        headers = [
            msgspec.structs.replace(one.header, masterchain_seqno=cache.window.current) for one in known
        ][:HANDED_ON_MAX]
        self.attack.relabelled(header.message_id for header in headers)
        self.announce(headers)


class ExpiredResubmitter(HostileSeat):
    """Keeps all bytes for ever, and hands what has expired to every later session and to both halves of a split, as if
    it had come today.
    """

    def begin(self) -> None:
        self.attack.later(REPLAY_EVERY_S, self._resubmit)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        wanted = MessageQuery.decode(query).message_id if query.startswith(_QUERY) else b""
        if wanted in self.attack.bodies:
            reply(MessageBody(self.attack.bodies[wanted]).encode())
        else:
            super().asked(peer, query, reply)

    def _resubmit(self) -> None:
        if self.is_closed:
            return
        self.attack.later(REPLAY_EVERY_S, self._resubmit)
        for one in self.runner.queue.entries():
            if one.body is not None:
                self.attack.bodies[one.message_id] = one.body.body
                self.attack.headers[one.message_id] = one.header
        seqno = self.attack.validator.queues.cache.window.current
        expired = [
            msgspec.structs.replace(header, masterchain_seqno=seqno)
            for message_id, header in self.attack.headers.items()
            if 0 < CanonicalMessage.decode(self.attack.bodies[message_id]).expires_at_s < self.now
        ]
        self.attack.relabelled(one.message_id for one in expired)
        self.announce(expired[-HANDED_ON_MAX:])


class EquivocatorSeat(HostileSeat):
    """Tells one half one thing and the other half another, at the same height."""

    def push(self, peer: int, frame: bytes) -> bool:
        block = self.own_block(frame)
        if block is None or peer % 2 == 0:
            return super().push(peer, frame)
        lie = self.ghost(f"height {block.height}", self.plan.masterchain_seqno, int(self.now * 1_000))
        self.attack.relabelled([lie.message_id])
        other = self.sign(
            block.previous, block.dependencies, payload_beside(block.payload, [lie], -block.height)
        )
        return super().push(peer, other.encode())


class WithholderSeat(HostileSeat):
    """Never tells one member anything, and answers none of its questions."""

    def push(self, peer: int, frame: bytes) -> bool:
        return peer == self.friend or super().push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if peer != self.friend:
            super().asked(peer, query, reply)


class WhispererSeat(HostileSeat):
    """Tells only one member, and answers nobody."""

    def push(self, peer: int, frame: bytes) -> bool:
        return peer != self.friend or super().push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        pass


class ReplayerSeat(HostileSeat):
    """Sends blocks of another session, garbage, and everything twice."""

    def push(self, peer: int, frame: bytes) -> bool:
        if frame.startswith(_BLOCK):
            old = msgspec.structs.replace(
                decode_update(frame), incarnation=sha256(b"an older session").digest()
            )
            for one in (old.encode(), frame, frame[: len(frame) // 2]):
                super().push(peer, one)
        return super().push(peer, frame)


class LiarSeat(HostileSeat):
    """Announces what it has not, dates it far ahead, and calls everybody's messages processed."""

    def begin(self) -> None:
        queue = self.runner.queue
        honest = queue.next_payload

        def lying(
            now: float, account: AuthorAccount = NOTHING_WRITTEN, *, is_due: bool = False
        ) -> bytes | None:
            payload = honest(now, account, is_due=is_due)
            if payload is None:
                return None
            number, seqno = 20_000 + queue.open_count, self.plan.masterchain_seqno
            ghost = self.ghost(f"ghost {number}", seqno, 1 << 60)
            late = self.ghost(f"late {number}", seqno + 50, 1)
            known = tuple(Ids(one, bytes(32)) for one in sorted(queue.known_ids)[:20])
            rejects = [RejectRecord(one.message_id, one.uid, seqno, "a lie") for one in known]
            lies: list[Header | Digest | RejectRecord] = [ghost, late, Digest(seqno, known, known), *rejects]
            self.attack.relabelled([ghost.message_id])
            queue.block_delivered(self.plan.index, encode_payload([Totals(), ghost], 0), self.now)
            return payload_beside(payload, lies, number)

        queue.next_payload = lying  # type: ignore[method-assign]  # this one validator means harm


class BackdaterSeat(HostileSeat):
    """Dates its blocks and announcements to 1970, so that its messages would go first."""

    def begin(self) -> None:
        queue = self.runner.queue
        honest, said = queue.next_payload, [0]

        def lying(
            now: float, account: AuthorAccount = NOTHING_WRITTEN, *, is_due: bool = False
        ) -> bytes | None:
            payload = honest(now, account, is_due=is_due)
            if payload is None:
                return None
            said[0] += 1
            return encode_payload([_backdated(one) for one in decode_payload(payload)], -said[0])

        queue.next_payload = lying  # type: ignore[method-assign]  # this one validator means harm


def _backdated(record: Record) -> Record:
    if isinstance(record, Header):
        return msgspec.structs.replace(record, timestamp_ms=1)
    return msgspec.structs.replace(record, date_ms=1) if isinstance(record, Totals) else record


class TwinSeat(HostileSeat):
    """Two processes with one key: the second speaks whenever the first does, of something else."""

    def __init__(self, attack: SessionAttack, plan: SessionPlan, runner: SessionRunner) -> None:
        super().__init__(attack, plan, runner)
        self._height = 0

    def push(self, peer: int, frame: bytes) -> bool:
        block = self.own_block(frame)
        if block is not None and block.height > self._height:
            self._height = block.height
            twin = self.sign(block.previous, block.dependencies, b"the twin %d" % block.height).encode()
            for other in self.plan.others:
                self.attack.later(TWIN_AFTER_S, lambda other=other: self.channel.push(other, twin))  # type: ignore[misc]
        return super().push(peer, frame)


class SessionAttack:
    """A dishonest validator over all its sessions: its seats, and what it keeps from one to the next."""

    def __init__(self, house: ValidatorHouse, kind: type[HostileSeat]) -> None:
        self.house = house
        self.kind = kind
        self.seats: dict[bytes, HostileSeat] = {}
        self.headers: dict[bytes, Header] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.frames: dict[bytes, list[bytes]] = {}
        self.validator: RempValidator
        self._warned: set[bytes] = set()

    def enter(self, validator: RempValidator) -> None:
        """Take the seats of a validator that has not started yet."""
        self.validator = validator
        queues = validator.queues
        open_channel, forward = queues._make_overlay, queues._forward

        def make_overlay(plan: SessionPlan, events: OverlayEvents) -> ClosableOverlay:
            assert isinstance(events, SessionRunner)
            seat = self.seats[plan.session_id] = self.kind(self, plan, events)
            seat.channel = open_channel(plan, seat)
            seat.begin()
            return seat

        def hand_on(old: SessionRunner, new: SessionRunner) -> None:
            self.seats[new.plan.session_id].hand_on(old, lambda: forward(old, new))

        queues._make_overlay = make_overlay
        queues._forward = hand_on  # type: ignore[method-assign]  # this one validator means harm
        self.later(LOOK_EVERY_S, self._look_ahead)

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Act unless the validator has been started anew."""
        validator = self.validator

        def due() -> None:
            if self.house.validator is validator:
                act()

        self.house.world.at(seconds, due)

    def relabelled(self, message_ids: Iterable[bytes]) -> None:
        """Note messages that are announced as younger than they are, which is the same as sending them anew."""
        self.house.world.relabelled.update(message_ids)

    def _look_ahead(self) -> None:
        self.later(LOOK_EVERY_S, self._look_ahead)
        ends = {
            entry.session.session_id: min(
                entry.session.ends_ms, entry.plan_at_ms if entry.plan else entry.session.ends_ms
            )
            for entry in self.validator.ledger.master.shards
        }
        for queue_id, seat in self.seats.items():
            session_id = self.validator.bridge.session_of(queue_id)
            if session_id is None or session_id in self._warned or session_id not in ends:
                continue
            if ends[session_id] <= self.house.world.now_ms + NEAR_MS:
                self._warned.add(session_id)
                seat.switch_is_near()


SESSION_ATTACKERS: tuple[type[HostileSeat], ...] = (
    Forgetter, FavouringForwarder, FalseForwarder, LateFlooder, Miser, OldSessionReplayer, Resubmitter,
    ExpiredResubmitter, EquivocatorSeat, WithholderSeat, WhispererSeat, ReplayerSeat, LiarSeat, BackdaterSeat,
    TwinSeat,
)  # fmt: skip
ATTACKERS_BY_NAME = {kind.__name__: kind for kind in SESSION_ATTACKERS}
