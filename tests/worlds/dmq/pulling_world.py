"""One node that pulls from many suppliers, honest and hostile, in virtual time: real endpoints over memory channels.

Suppliers that lie do so below the endpoint, for the endpoint would stop them. The judge knows no cryptography: a
message is forged if its signature is not the one that all builders use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random

from rigs.memory_channels import MemoryChannel, memory_channels
from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.submission_config import begins_with_init
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.puller import Puller, puller_for
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.outcome import ACCEPTED, Outcome, Rejected, rejected
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, SEED, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.dmq.submission import (
    Init,
    MessageIdAndSize,
    ReplyMessageIds,
    ReplyMessages,
    RequestMessageIds,
    RequestMessages,
)
from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.net.channel import ProtocolChannel
from stagepost.ground.net.conversation import Conversation, Trace
from stagepost.ground.statemachine.spec import Role
from tests.worlds.ground.strategies import MessageParts

NOW_UNIX_S = 1_700_000_000
GOOD_SIGNATURE = b"\x33" * 448
WAYS: tuple[tuple[Profile, int], ...] = ((DMQ_NODE, 2), (DMQ_NODE, 1), (GOUROBOROS, 1), (SEED, 1))


def a_message(
    number: int, *, pool: int = 0, body_bytes: int = 90, expires_in_s: int = 1_000, issue_number: int = 3
) -> DmqMessage:
    """Its id is the hash of its payload; its signature is good in the eyes of `Node`."""
    parts = MessageParts(
        body=number.to_bytes(8, "big") + b"b" * (body_bytes - 8),
        expires_at=NOW_UNIX_S + expires_in_s,
        cold_verification_key=pool.to_bytes(32, "big"),
        issue_number=issue_number,
    )
    return replace(parts, message_id=blake2b(parts.payload(), digest_size=32).digest()).decoded()


def messages(count: int, first: int = 0) -> list[DmqMessage]:
    return [a_message(number, pool=number) for number in range(first, first + count)]


def forged(message: DmqMessage) -> DmqMessage:
    """The same payload, and so the same id, under another signature."""
    raw = message.raw.replace(GOOD_SIGNATURE, b"\x77" * 448)
    return DmqMessage.decode(raw, profile="seed")


def legacy(message_id: bytes, *, pool: int = 0) -> DmqMessage:
    """The older layout, with an id of its sender's choice."""
    parts = MessageParts(
        message_id=message_id,
        expires_at=NOW_UNIX_S + 1_000,
        cold_verification_key=pool.to_bytes(32, "big"),
        elements=4,
    )
    return parts.decoded()


def announced(message: DmqMessage) -> MessageIdAndSize:
    return MessageIdAndSize(message.message_id, len(message.raw))


@dataclass
class Node:
    """A mempool and the simplest judge in front of it."""

    mempool: Mempool = field(default_factory=Mempool)
    bell: Bell = field(default_factory=Bell)
    judging_s: float = 0.001
    judge: Callable[[DmqMessage], Rejected | None] = lambda message: None
    submissions: list[tuple[str, MessageId]] = field(default_factory=list)

    def offer(
        self,
        messages: Sequence[DmqMessage],
        source: str,
        settled: Callable[[list[Outcome]], None],
        *,
        gives_up: bool = False,
    ) -> None:
        def judge() -> None:
            settled([self._submit(message, source) for message in messages])

        asyncio.get_running_loop().call_later(self.judging_s, judge)

    def _submit(self, message: DmqMessage, source: str) -> Outcome:
        self.submissions.append((source, message.message_id))
        fault = self.mempool.check_room(message)
        if fault is None and not message.has_valid_id:
            fault = rejected(ErrorCode.MSG_BAD_ID, "the id is not the hash")
        fault = fault or self.judge(message)
        if fault is None and message.kes_signature != GOOD_SIGNATURE:
            fault = rejected(ErrorCode.KES_SIGNATURE, "forged")
        if fault is not None:
            return fault
        self.hold([message], source)
        return ACCEPTED

    def hold(self, messages: Iterable[DmqMessage], source: str = "local") -> None:
        for message in messages:
            self.mempool.add(message, 0, source)
        self.bell.ring()

    def ids(self) -> set[MessageId]:
        return {entry.message.message_id for entry in self.mempool.after(0, 1_000_000, SEED.message_layouts)}


class SlowChannel:
    """Every piece takes its time, in order."""

    def __init__(self, inner: MemoryChannel, delay_s: Callable[[], float]) -> None:
        self._inner = inner
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._on_data: Callable[[], None] | None = None
        self._is_on_its_way = False
        self._arrived: list[bytes] = []
        inner.on_data(self._set_out)

    def on_data(self, callback: Callable[[], None] | None) -> None:
        self._on_data = callback

    def _set_out(self) -> None:
        if not self._is_on_its_way and (piece := self._inner.read_now()) is not None:
            self._is_on_its_way = True
            self._loop.call_later(self._delay_s(), self._arrive, piece)

    def _arrive(self, piece: bytes) -> None:
        self._arrived.append(piece)
        self._is_on_its_way = not piece  # nothing comes behind the end
        self._set_out()
        if self._on_data is not None:
            self._on_data()

    @property
    def has_data(self) -> bool:
        return bool(self._arrived)

    def read_now(self) -> bytes | None:
        if not self._arrived:
            return None
        return self._arrived.pop(0) if self._arrived[0] else b""

    async def read(self) -> bytes:
        raise NotImplementedError("a conversation reads without waiting")

    @property
    def has_room(self) -> bool:
        return self._inner.has_room

    def write_now(self, data: bytes) -> bool:
        return self._inner.write_now(data)

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    def close(self, unread: bytes = b"") -> None:
        self._inner.close(unread)


def submission_talks(
    profile: Profile,
    version: int,
    delay_s: Callable[[], float] | None = None,
    *,
    supplier_profile: Profile | None = None,
    trace: Trace | None = None,
) -> tuple[Conversation, Conversation]:
    """The puller's and the supplier's end of one instance. `trace` hears what the puller says and hears."""
    pulls, supplies = memory_channels()
    roles = (Role.CLIENT, Role.SERVER) if version == 2 else (Role.SERVER, Role.CLIENT)

    def talk(speaks: Profile, role: Role, channel: MemoryChannel, trace: Trace | None = None) -> Conversation:
        spec = spec_for(speaks, MiniProtocol.MESSAGE_SUBMISSION, version)
        codec = codec_for(speaks, MiniProtocol.MESSAGE_SUBMISSION, version)
        end: ProtocolChannel = channel if delay_s is None else SlowChannel(channel, delay_s)
        return Conversation(spec, role, codec, end, trace=trace)

    return talk(profile, roles[0], pulls, trace), talk(supplier_profile or profile, roles[1], supplies)


@dataclass
class HostileSupplier:
    """Says whatever its two functions return; no rule of the window holds it back. None: it says nothing at all."""

    ids: Callable[[RequestMessageIds], Sequence[MessageIdAndSize] | None]
    messages: Callable[[tuple[MessageId, ...]], Sequence[DmqMessage] | None]
    requests: list[RequestMessageIds] = field(default_factory=list)
    requested: list[MessageId] = field(default_factory=list)

    async def run(self, talk: Conversation) -> None:
        if begins_with_init(talk):
            await talk.send(Init())
        else:
            await talk.wait_for_start()
        while not talk.is_over:
            match await talk.receive_any():
                case RequestMessageIds() as request:
                    self.requests.append(request)
                    ids = self.ids(request)
                    await self._say(talk, None if ids is None else ReplyMessageIds(tuple(ids)))
                case RequestMessages(ids):
                    self.requested.extend(ids)
                    found = self.messages(ids)
                    await self._say(talk, None if found is None else ReplyMessages(tuple(found)))

    @staticmethod
    async def _say(talk: Conversation, message: object | None) -> None:
        if message is None:
            await asyncio.Event().wait()
        await talk.send(message)


def announcing(offered: Sequence[DmqMessage]) -> Callable[[RequestMessageIds], list[MessageIdAndSize] | None]:
    """Each of them once, then silence."""
    left = list(offered)

    def ids(request: RequestMessageIds) -> list[MessageIdAndSize] | None:
        batch = [announced(message) for message in left[: request.requested]]
        del left[: request.requested]
        return batch if batch or not request.blocking else None

    return ids


def serving(offered: Iterable[DmqMessage]) -> Callable[[tuple[MessageId, ...]], list[DmqMessage]]:
    by_id = {message.message_id: message for message in offered}
    return lambda ids: [by_id[each] for each in ids if each in by_id]


@dataclass
class World:
    """The pulling node, its table, and why each connection that ended did so."""

    node: Node = field(default_factory=Node)
    downloads: Downloads = field(default_factory=Downloads)
    ends: dict[str, StagepostError | None] = field(default_factory=dict)
    pullers: dict[str, Puller] = field(default_factory=dict)
    message_gap_s: float = 60
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def connect(
        self,
        name: str,
        supply: Callable[[Conversation], Awaitable[None]],
        *,
        profile: Profile = DMQ_NODE,
        version: int = 2,
        delay_s: Callable[[], float] | None = None,
    ) -> None:
        pulling, supplying = submission_talks(profile, version, delay_s)
        puller = puller_for(
            pulling,
            profile,
            peer=name,
            downloads=self.downloads,
            held=self.node.mempool,
            intake=self.node,
            clock=LoopClock(NOW_UNIX_S),
            message_gap_s=self.message_gap_s,
        )
        self.pullers[name] = puller
        self._tasks.append(asyncio.create_task(self._connection(name, puller, supply(supplying), supplying)))

    async def _connection(
        self, name: str, puller: Puller, supplier: Awaitable[None], supplying: Conversation
    ) -> None:
        supplied = asyncio.ensure_future(supplier)
        pulled = asyncio.ensure_future(puller.run())
        try:
            await asyncio.wait({supplied, pulled}, return_when=asyncio.FIRST_COMPLETED)
            self.ends[name] = next(
                (
                    error
                    for task in (pulled, supplied)
                    if task.done() and isinstance(error := task.exception(), StagepostError)
                ),
                None,
            )
            for task in (pulled, supplied):
                if task.done() and (bug := task.exception()) and not isinstance(bug, StagepostError):
                    raise bug
        finally:
            pulled.cancel()
            supplied.cancel()
            await asyncio.gather(pulled, supplied, return_exceptions=True)

    def connect_honest(
        self,
        name: str,
        node: Node,
        *,
        profile: Profile = DMQ_NODE,
        version: int = 2,
        delay_s: Callable[[], float] | None = None,
    ) -> None:
        async def supply(talk: Conversation) -> None:
            await Supplier(talk, profile, node.mempool, node.bell).run()

        self.connect(name, supply, profile=profile, version=version, delay_s=delay_s)

    async def wait_until_held(self, ids: set[MessageId], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not ids <= self.node.ids():
                    await self.node.bell.wait()
        except TimeoutError:
            missing = len(ids - self.node.ids())
            raise AssertionError(f"{missing} of {len(ids)} messages did not arrive: {self.ends}") from None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert len(self.downloads) == 0, "nobody is left, but the table is not empty"
        for result in results:
            if isinstance(result, Exception):
                raise result


def delays(random: Random, up_to_s: float) -> Callable[[], float]:
    return lambda: random.uniform(0, up_to_s)
