"""Publishers, receivers and their disks on a network with faults, from one seed, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from stagepost.delivery import (
    DeliveryError,
    DeliveryStatus,
    MemoryNetwork,
    Message,
    Receiver,
    ReceiverConfig,
    ReliablePublisher,
    ReliablePublisherConfig,
)
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.stores.inbox_stores import MemoryInbox, MemoryInboxDisk
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk
from stagepost.delivery.transports.memory import MemoryTransport
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import Patience, run_in_virtual_time
from stagepost.simulation.processes import Process, follow_tasks
from tests.simulation.delivery_checkers import (
    ALWAYS,
    Checker,
    everything_arrives_where_nothing_is_lost,
    order_is_kept,
)
from tests.simulation.delivery_history import Call, DeliveryHistory, Event, Run

TOPIC = "orders"
START_UNIX_S = 1_800_000_000.0
CRITICAL = ("bob", "carol")
ENDING_S_MAX = 900


@dataclass(frozen=True)
class Scenario:
    name: str
    duration_s: float = 40.0
    calls: int = 60
    tiers: tuple[str, ...] = ("queued", "queued", "acked", "acked", "tracked", "best effort")
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: tuple[float, float] = (0.01, 0.01)
    cuts: int = 0
    crashes: int = 0
    full_disks: int = 0
    failing_sends: float = 0.0
    failing_handlers: float = 0.05
    queue_size: int = 1_000
    extra: tuple[Checker, ...] = ()

    @property
    def checkers(self) -> tuple[Checker, ...]:
        return (*ALWAYS, *self.extra)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "lossy",
            drop=0.15,
            duplicate=0.2,
            reorder=0.2,
            delay=(0.0, 0.4),
            cuts=4,
            failing_sends=0.1,
        ),
        Scenario("crashes", drop=0.05, duplicate=0.1, delay=(0.0, 0.3), cuts=2, crashes=5, full_disks=2),
        Scenario("overload", calls=120, queue_size=6, cuts=6, crashes=2, failing_sends=0.1),
        Scenario(
            "order",
            calls=100,
            tiers=("queued", "queued", "queued", "acked"),
            cuts=5,
            extra=(order_is_kept,),
        ),
        Scenario(
            "calm",
            calls=100,
            duplicate=0.3,
            reorder=0.3,
            delay=(0.0, 1.0),
            failing_handlers=0.0,
            tiers=("queued", "acked", "tracked"),
            extra=(everything_arrives_where_nothing_is_lost,),
        ),
    )
}


class DeliveryWorld:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.random = Random(f"{scenario.name} {seed}")
        self.network = MemoryNetwork(
            seed,
            drop=scenario.drop,
            duplicate=scenario.duplicate,
            reorder=scenario.reorder,
            delay=scenario.delay,
        )
        required = self.random.choice((1, 2))
        self.history = DeliveryHistory(CRITICAL, required)
        self.config = ReliablePublisherConfig(
            enable_ack=True,
            critical_peers=CRITICAL,
            required_acks=required,
            queue_size=scenario.queue_size,
            max_in_flight=self.random.choice((2, 256)),
        )
        # The world itself is no part of what it does to others: its disks have their own chances.
        chances = Random(f"{scenario.name} {seed} disks")
        self.outbox_disk = MemoryOutboxDisk(lambda: chances.choice((0.0, 0.002, 0.05)))
        self.inbox_disks = {name: MemoryInboxDisk(lambda: chances.choice((0.0, 0.01))) for name in CRITICAL}
        self.lives = dict.fromkeys(("alice", *CRITICAL), 0)
        self.processes: dict[str, Process] = {}
        self.transports: dict[str, MemoryTransport] = {}
        self.publisher: ReliablePublisher | None = None
        self.receivers: dict[str, Receiver] = {}
        self.numbers = count()
        self.open_calls: dict[int, asyncio.Task[None]] = {}

    # Programs and their ends.

    def clock(self) -> LoopClock:
        return LoopClock(START_UNIX_S + _now())

    async def start(self, name: str) -> None:
        self.lives[name] += 1
        process = self.processes[name] = Process(name, self.lives[name])
        self.transports[name] = self.network.join(name)
        begin = self._start_publisher if name == "alice" else self._start_receiver
        await process.run(begin(name))

    async def _start_publisher(self, name: str) -> None:
        life = self.lives[name]
        random = Random(self.random.randrange(2**32))
        publisher = ReliablePublisher(
            self.transports[name],
            self.config,
            clock=self.clock(),
            random=random,
            outbox=MemoryOutbox(self.outbox_disk, nonce_prefix=b"the same"),
            events=_Sink(self.history, self.processes[name]),
        )

        process = self.processes[name]

        def hear(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
            if not process.is_alive:
                return
            name = None if error is None else type(error).__name__
            self.history.callbacks.append(Event(_now(), life, message_id, status.value, "", name))

        publisher.on_delivery_status(hear)
        await publisher.start()
        self.publisher = publisher

    async def _start_receiver(self, name: str) -> None:
        life = self.lives[name]
        inbox = MemoryInbox(self.inbox_disks[name], clock=self.clock())
        random = Random(self.random.randrange(2**32))

        async def handle(message: Message) -> None:
            await asyncio.sleep(random.choice((0.0, 0.0, 0.02, 1.0)))
            if random.random() < self.scenario.failing_handlers:
                raise RuntimeError("the handler failed on purpose")
            # Carol never crashes, so what the receiver promises is enough for her.
            is_first = name == "carol" or await inbox.claim(message.message_id)
            self.history.runs.append(
                Run(_now(), name, life, message.message_id, message.data, message.attempt, is_first)
            )

        receiver = Receiver(
            self.transports[name],
            {TOPIC: handle},
            config=ReceiverConfig(ack_delay=random.choice((0.0, 0.05))),
            inbox=inbox,
            clock=self.clock(),
        )
        await receiver.start()
        self.receivers[name] = receiver

    def crash(self, name: str) -> None:
        """Nothing of it reaches anybody any more, and what was not synced is gone."""
        self.note_stats()
        self.history.crashed.add(name)
        self.history.faults.append(f"{_now():.2f} s: {name} crashes")
        (self.outbox_disk if name == "alice" else self.inbox_disks[name]).crash()
        self.transports[name].leave()
        if name == "alice" and self.publisher is not None:
            self.publisher.kill()
            self.publisher = None
            self.history.killed |= self.open_calls.keys()
            self.open_calls.clear()
        elif name in self.receivers:
            self.receivers[name].kill()
        self.processes[name].kill()

    # What programs do.

    async def call(self, number: int, tier: str) -> None:
        publisher, life = self.publisher, self.lives["alice"]
        assert publisher is not None
        payload = b"%d %s" % (number, tier.encode())
        began_s = _now()
        found: dict[str, Any] = {"message_id": None}
        try:
            if tier == "best effort":
                await publisher.publish(TOPIC, payload)
            elif tier == "acked":
                result = await publisher.publish_with_ack(TOPIC, payload)
                found = {
                    "message_id": result.message_id,
                    "status": result.status.value,
                    "acked_by": result.acked_by,
                }
            else:
                message_id = await publisher.publish_queued(TOPIC, payload, require_ack=tier == "tracked")
                found = {"message_id": message_id}
        except DeliveryError as error:
            partial = error.result
            accepted = partial is not None and tier != "best effort"
            found = {
                "message_id": error.message_id if accepted else None,
                "status": partial.status.value if accepted and partial is not None else "",
                "error": type(error).__name__,
            }
        finally:
            self.open_calls.pop(number, None)
        self.history.calls.append(Call(number, tier, payload, life, began_s, _now(), **found))

    async def traffic(self) -> None:
        scenario = self.scenario
        for _ in range(scenario.calls):
            await asyncio.sleep(self.random.expovariate(scenario.calls / scenario.duration_s))
            if self.publisher is None:
                continue
            transport = self.transports["alice"]
            if self.random.random() < scenario.failing_sends:
                transport.fail_next(self.random.choice((1, 1, 3)))
            for _ in range(self.random.choice((1, 1, 4))):
                number = next(self.numbers)
                work = self.call(number, self.random.choice(scenario.tiers))
                self.open_calls[number] = self.processes["alice"].run(work)

    async def fault(self, act: Callable[[], Any]) -> None:
        await asyncio.sleep(self.random.uniform(0.0, self.scenario.duration_s))
        await act()

    async def cut(self) -> None:
        name = self.random.choice(("alice", "alice", *CRITICAL))
        self.history.faults.append(f"{_now():.2f} s: {name} is cut off")
        self.network.cut(name)
        await asyncio.sleep(self.random.choice((0.05, 2.0, 10.0)))
        self.network.heal(name)

    async def crash_and_restart(self) -> None:
        name = self.random.choice(("alice", "alice", "bob"))
        if self.processes[name].is_alive and (name != "alice" or self.publisher is not None):
            self.crash(name)
            await asyncio.sleep(self.random.choice((0.0, 1.0, 5.0)))
            await self.start(name)

    async def fill_a_disk(self) -> None:
        disk = self.random.choice((self.outbox_disk, *self.inbox_disks.values()))
        self.history.faults.append(f"{_now():.2f} s: a disk is full")
        disk.is_full = True
        await asyncio.sleep(self.random.choice((0.1, 3.0)))
        disk.is_full = False

    async def look(self) -> None:
        while True:
            self.note_stats()
            await asyncio.sleep(0.25)

    def note_stats(self) -> None:
        if self.publisher is not None:
            self.history.stats.append((_now(), self.lives["alice"], dict(self.publisher.stats())))

    async def run(self) -> DeliveryHistory:
        loop = asyncio.get_running_loop()
        follow_tasks(loop)
        loop.set_exception_handler(lambda _, context: self.history.bugs.append(str(context)))
        for name in (*CRITICAL, "alice"):
            await self.start(name)
        looking = loop.create_task(self.look())
        scenario = self.scenario
        faults: list[Callable[[], Any]] = [
            *[self.cut] * scenario.cuts,
            *[self.crash_and_restart] * scenario.crashes,
            *[self.fill_a_disk] * scenario.full_disks,
        ]
        await asyncio.gather(self.traffic(), *(self.fault(act) for act in faults))
        self.network.heal()
        self.network.drop = 0.0
        await self.until_idle()
        looking.cancel()
        self.note_stats()
        await self._stop()
        self.history.ended_s = _now()
        return self.history

    async def until_idle(self) -> None:
        """Once nothing goes wrong any more, everything has to come to its end."""
        for _ in range(ENDING_S_MAX):
            await asyncio.sleep(1)
            waiting = sum(receiver.stats()["waiting"] for receiver in self.receivers.values())
            if self.publisher is not None and not self.publisher.stats()["live"] and not waiting:
                break
        await asyncio.sleep(30)

    async def _stop(self) -> None:
        assert self.publisher is not None
        await self.processes["alice"].run(self.publisher.stop())
        for name, receiver in self.receivers.items():
            await self.processes[name].run(receiver.stop())


class _Sink:
    def __init__(self, history: DeliveryHistory, process: Process) -> None:
        self._history = history
        self._process = process

    def put(self, event: DeliveryEvent) -> None:
        if not self._process.is_alive:
            return  # what the dead still say while they are cleared away reaches nobody
        self._history.events.append(
            Event(
                _now(),
                self._process.life,
                event.delivery_id,
                event.status.value,
                event.tier.value,
                event.error,
            )
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def run_delivery(scenario: Scenario, seed: int) -> DeliveryHistory:
    async def main() -> DeliveryHistory:
        return await DeliveryWorld(scenario, seed).run()

    return run_in_virtual_time(main(), Patience(virtual_s_max=2_000))


def faults_found(scenario: Scenario, history: DeliveryHistory) -> dict[str, list[str]]:
    """By checker; empty if all is well."""
    found = {checker.__name__: list(checker(history)) for checker in scenario.checkers}
    return {name: faults for name, faults in found.items() if faults}


def told(scenario: Scenario, seed: int, found: dict[str, Sequence[str]], history: DeliveryHistory) -> str:
    lines = [f"scenario {scenario.name}, seed {seed}"]
    for name, faults in found.items():
        lines += [f"  {name}: {len(faults)}", *(f"    {fault}" for fault in faults[:5])]
    return "\n".join([*lines, "faults of the run:", *(f"  {fault}" for fault in history.faults)])
