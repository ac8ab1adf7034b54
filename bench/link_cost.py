"""Cost of encryption on a link: a full node and a validator over TCP on the loopback address, plain and encrypted in turns.

    python -m bench.link_cost            processor time of both ends for each message, in V, and bytes on the wire

V is one signature check. Both ends run in this process, so a message's time has its sending and its receiving.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from statistics import median

from bench.steps import unit
from stagepost.full_node.links import DiallingFullNodeLinks
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork, TcpAddress
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.validator.links import ListeningValidatorLinks

SIZES = (256, 4_096, 65_535)
MESSAGES = {256: 20_000, 4_096: 8_000, 65_535: 800}
AT_ONCE = {256: 64, 4_096: 16, 65_535: 2}
ROUNDS = 5
CHECKS = 2_000


@dataclass
class Counted:
    """Those above the links of both nodes."""

    came: int = 0

    def message_came(self, full_node: bytes, message: bytes) -> None:
        self.came += 1

    def full_node_linked(self, full_node: bytes) -> None: ...

    def receipts_came(self, validator: bytes, data: bytes) -> None: ...

    def validator_linked(self, validator: bytes) -> None: ...


async def seconds_of_message(encryption: LinkEncryption, size: int) -> float:
    """Return the processor time of one message, both ends together."""
    ends = [
        OurEnd(bytes([number]) * 32, 7, SocketNetwork(), SystemClock(), Random(number), encryption=encryption)
        for number in (1, 2)
    ]
    listener, counted = LinkListener(ends[1]), Counted()
    await listener.start(TcpAddress("127.0.0.1", 0))
    validator = ListeningValidatorLinks(ends[1], listener, lambda public_key: True)
    full_node = DiallingFullNodeLinks(ends[0])
    validator.start(counted)
    full_node.start(counted)
    assert listener.port is not None
    full_node.set_validators({ends[1].public_key: TcpAddress("127.0.0.1", listener.port)})
    peer, message, count = key_id(ends[1].public_key), bytes(size), MESSAGES[size]
    try:
        while not full_node.linked:
            await asyncio.sleep(0.01)
        began = time.process_time()
        sent = 0
        while counted.came < count:
            while sent < count and sent - counted.came < AT_ONCE[size] and full_node.send(peer, message):
                sent += 1
            await asyncio.sleep(0)
        return (time.process_time() - began) / count
    finally:
        await full_node.close()
        await validator.close()
        await listener.close()


def main() -> None:
    check = unit()
    began = time.process_time()
    check(CHECKS)
    check_s = (time.process_time() - began) / CHECKS
    print(f"V: {check_s * 1e6:.0f} µs")
    print(f"{'message':>8} {'plain, V':>9} {'encrypted, V':>13} {'ratio':>6}")
    for size in SIZES:
        found: dict[LinkEncryption, list[float]] = {LinkEncryption.OFF: [], LinkEncryption.REQUIRED: []}
        for _ in range(ROUNDS):
            for encryption, times in found.items():
                times.append(asyncio.run(seconds_of_message(encryption, size)))
        plain, encrypted = (median(times) / check_s for times in found.values())
        print(f"{size:>8} {plain:>9.2f} {encrypted:>13.2f} {encrypted / plain:>6.2f}")


if __name__ == "__main__":
    main()
