"""A network of validators and one full node on this machine, all from one seed: for trying things out, and for tests.

    async with devnet(DevnetPlan(validators=7, shards=2, seed=7), data) as network:
        await network.ready()
        message_id = await network.front.submit(message)

The folder of the devnet is that of its full node, with a folder for each validator beside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec

from stagepost.chain.configuration import ChainValidator as SetMember
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.genesis import Genesis
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.devnet.behaviours import Behaviour, FaultyLayer
from stagepost.devnet.front import DevnetFront, HereFront, ProcessFront
from stagepost.devnet.member import COMMANDS, MemberProcess
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.full_node import FullNode, OnStatus
from stagepost.full_node.kafka import require_kafka
from stagepost.full_node.network import NETWORK_FILE, NetworkMember, RempNetwork, load_network
from stagepost.full_node.running import RunningFullNode, start_full_node
from stagepost.ground.crypto import ed25519
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork, TcpAddress
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.topics.kafka.admin import KafkaSettings
from stagepost.validator.running import RunningValidator, start_validator

NETWORK_MAGIC = 0x5350_0007
SET_LIFETIME_MS = 10 * 365 * 86_400_000
READY_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05
FULL_NODE = "full-node"
FAULTY, HONEST = "stagepost.devnet.member", "none"


class DevnetPlan(msgspec.Struct, frozen=True):
    validators: int = 7
    shards: int = 1
    seed: int = 7
    message_timeout_s: float = 240.0
    session_lifetime_s: float = 250.0
    balances: tuple[tuple[bytes, int], ...] = ()
    """Balances of accounts at the beginning."""
    loss: float = 0.0
    """Part, from 0 to 1, of the messages among validators that gets lost on the way."""
    behaviours: dict[str, Behaviour] = {}
    """Validators that break the rules, by name."""

    def seed_of(self, name: str) -> bytes:
        return sha256(f"stagepost devnet {self.seed} {name}".encode()).digest()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all members, in their order."""
        return (*(f"validator-{number + 1}" for number in range(self.validators)), FULL_NODE)


class DevnetMember(Protocol):
    """A member that can be killed without a farewell, and started again from its disk."""

    @property
    def fault(self) -> str | None:
        """Return why the member is not running, if it ended by itself; else None."""

    async def start(self) -> None: ...

    async def kill(self) -> None: ...

    async def close(self) -> None: ...


class Devnet:
    """`ready` returns when there are as many shards as were asked for, and the full node, if it runs in this
    process, has all its links.
    """

    def __init__(
        self,
        plan: DevnetPlan,
        network: RempNetwork,
        validators: Sequence[DevnetMember],
        front: DevnetFront,
        node: RunningFullNode | None,
    ) -> None:
        self.plan = plan
        self.network = network
        self.validators = validators
        self.front = front
        self._node = node

    @property
    def node(self) -> RunningFullNode:
        assert self._node is not None, "the full node has a process of its own"
        return self._node

    @property
    def full_node(self) -> FullNode:
        return self.node.full_node

    @property
    def ledger(self) -> EmbeddedLedger:
        """The ledger as the full node follows it."""
        return self.node.follower.ledger

    @property
    def members(self) -> dict[str, DevnetMember]:
        """Return all members that can be killed and started again, by name."""
        found = dict(zip(self.plan.names, self.validators, strict=False))
        if isinstance(self.front, ProcessFront):
            found[FULL_NODE] = self.front.process
        return found

    @property
    def is_ready(self) -> bool:
        return self.front.linked in (None, self.plan.validators) and self.front.shards >= self.plan.shards

    async def ready(self, within_s: float = READY_WITHIN_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not self.is_ready:
                    self._require_running()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise StagepostError(
                f"the network is not ready after {within_s:g} s: {self.front.shards} of {self.plan.shards} shards, "
                f"{'unknown' if self.front.linked is None else self.front.linked} of {self.plan.validators} links",
                code=ErrorCode.NOT_READY,
                advice="use more processors, or give fewer --validators",
            ) from None

    def _require_running(self) -> None:
        for member in self.members.values():
            if member.fault is not None:
                raise StagepostError(member.fault, code=ErrorCode.NOT_READY, advice="read its log")


class HereValidator:
    """A validator in this process. `kill` ends it in an orderly way: a process cannot be killed in part."""

    def __init__(
        self, plan: DevnetPlan, network: RempNetwork, name: str, data: Path, listener: LinkListener
    ) -> None:
        self._plan = plan
        self._network = network
        self._name = name
        self._data = data
        self._listener: LinkListener | None = listener
        self._running: RunningValidator | None = None

    @property
    def running(self) -> RunningValidator | None:
        return self._running

    @property
    def fault(self) -> str | None:
        return None

    async def start(self) -> None:
        listener, self._listener = self._listener, None
        self._running = await start_validator(
            self._network,
            self._plan.seed_of(self._name),
            self._data / self._name,
            listener=listener,
            shards=self._plan.shards,
            message_timeout_s=self._plan.message_timeout_s,
            between=_between(self._plan, self._name),
        )

    async def kill(self) -> None:
        await self.close()

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()


def _between(plan: DevnetPlan, name: str) -> FaultyLayer | None:
    behaviour = plan.behaviours.get(name)
    if behaviour is None and not plan.loss:
        return None
    seed = plan.seed_of(name)
    return FaultyLayer(seed, Random(seed), plan.loss, behaviour)


def _process_of(
    plan: DevnetPlan, name: str, data: Path, full_node_flags: tuple[str, ...] = ()
) -> MemberProcess:
    life = f"{plan.message_timeout_s:g}"
    command: tuple[str, ...]
    if name == FULL_NODE:
        command = (COMMANDS, "node", "full", "--message-timeout", f"{life}s", *full_node_flags)
        return MemberProcess(plan.seed_of(name), name, data, data, command)
    shards = str(plan.shards)
    if name in plan.behaviours or plan.loss:
        fault = plan.behaviours.get(name, HONEST)
        command = (FAULTY, "--fault", fault, "--loss", f"{plan.loss:g}", "--message-timeout", life)
    else:
        command = (COMMANDS, "node", "validator", "--message-timeout", f"{life}s")
    return MemberProcess(plan.seed_of(name), name, data, data / name, (*command, "--shards", shards))


def genesis_of(plan: DevnetPlan, now_ms: int) -> Genesis:
    keys = [ed25519.public_key(plan.seed_of(name)) for name in plan.names[:-1]]
    lifetime_ms = int(plan.session_lifetime_s * 1_000)
    configuration = Configuration(
        ValidatorSet(now_ms, now_ms + SET_LIFETIME_MS, tuple(SetMember(key, key_id(key)) for key in keys)),
        master_lifetime_ms=lifetime_ms,
        shard_lifetime_ms=lifetime_ms,
    )
    return Genesis(f"devnet {plan.seed}", now_ms, configuration, plan.balances)


def chain_of(plan: DevnetPlan, data: Path, now_ms: int) -> Genesis:
    """Return the genesis of the folder, if it has one, so that the network goes on with its chain; else that
    of the plan.
    """
    path = data / NETWORK_FILE
    if not path.exists():
        return genesis_of(plan, now_ms)
    genesis = load_network(path).chain
    if genesis_of(plan, genesis.time_ms) != genesis:
        raise StagepostError(
            f"{data} holds a devnet with other validators, seed or lifetimes",
            code=ErrorCode.CONFIG_INVALID,
            advice="give the same options as before, or another folder with --data",
        )
    return genesis


def member_of(plan: DevnetPlan, name: str, port: int) -> NetworkMember:
    public_key = ed25519.public_key(plan.seed_of(name)).hex()
    return NetworkMember(name, public_key, LOOPBACK_HOST, port, name != FULL_NODE)


@asynccontextmanager
async def devnet(
    plan: DevnetPlan,
    data: Path,
    *,
    one_process: bool = True,
    full_node_here: bool = True,
    on_status: OnStatus = lambda receipt: None,
    kafka: KafkaSettings | None = None,
    full_node_flags: tuple[str, ...] = (),
) -> AsyncIterator[Devnet]:
    """Run the validators in this process or each in one of its own, and likewise the full node.

    `kafka`: broker to which the full node's statuses go as well; `full_node_flags` give the same, and any
    other option, to a full node in a process of its own.
    """
    make_private(data, "data folder", advice="choose another folder with --data")
    if kafka is not None:
        await asyncio.to_thread(require_kafka, kafka, data)  # before anybody starts
    clock = SystemClock()
    genesis = chain_of(plan, data, int(clock.unix_s() * 1_000))
    async with AsyncExitStack() as parts:
        listeners: list[LinkListener] = []
        for name in plan.names:
            seed = plan.seed_of(name)
            listener = LinkListener(OurEnd(seed, NETWORK_MAGIC, SocketNetwork(), clock, Random(seed)))
            await listener.start(TcpAddress(LOOPBACK_HOST, 0))
            parts.push_async_callback(listener.close)
            listeners.append(listener)
        members = tuple(
            member_of(plan, name, listener.port or 0)
            for name, listener in zip(plan.names, listeners, strict=True)
        )
        network = RempNetwork(NETWORK_MAGIC, genesis.encode().hex(), members)
        network.write(data / NETWORK_FILE)
        validators: list[DevnetMember] = []
        for name, listener in zip(plan.names[:-1], listeners, strict=False):
            validator: DevnetMember
            if one_process:
                validator = HereValidator(plan, network, name, data, listener)
            else:
                await listener.close()  # it only reserved the port for the process that listens there now
                validator = _process_of(plan, name, data)
            await validator.start()
            parts.push_async_callback(validator.close)
            validators.append(validator)
        front: DevnetFront
        node: RunningFullNode | None = None
        if full_node_here:
            node = await start_full_node(
                network,
                plan.seed_of(FULL_NODE),
                data,
                listener=listeners[-1],
                on_status=on_status,
                message_timeout_ms=int(plan.message_timeout_s * 1_000),
                kafka=kafka,
            )
            parts.push_async_callback(node.close)
            front = HereFront(node)
        else:
            await listeners[-1].close()
            front = ProcessFront(_process_of(plan, FULL_NODE, data, full_node_flags), data, clock, on_status)
            await front.start()
            parts.push_async_callback(front.close)
        yield Devnet(plan, network, validators, front, node)
