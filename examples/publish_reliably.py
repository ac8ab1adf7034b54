"""Publish every line of standard input so that none is lost: stored first, sent when somebody is there, acknowledged.

    python examples/publish_reliably.py dmq-node.socket 2147483690 my-pool my-outbox <pool id> < lines.txt

The keys are those of `stagepost keys new my-pool`; the last argument is the pool that shall acknowledge, in hex. Start
it again after a crash: what lies in the outbox is carried on, and no receiver handles a line twice.
"""

import asyncio
import sys

from stagepost.delivery import (
    DeliveryStatus,
    DmqTransport,
    ReliablePublisher,
    ReliablePublisherConfig,
)

TOPIC = "lines"


def tell(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
    print(message_id, status.value, "" if error is None else type(error).__name__, flush=True)


async def main(socket_path: str, network_magic: str, keys: str, outbox: str, critical_peer: str) -> None:
    config = ReliablePublisherConfig(
        persistence="disk",
        queue_path=outbox,
        enable_ack=True,
        critical_peers=(critical_peer,),
        max_retries=10,
    )
    async with DmqTransport(socket_path, int(network_magic), keys) as transport:
        publisher = ReliablePublisher(transport, config)
        publisher.on_delivery_status(tell)
        async with publisher:
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                # Returns as soon as the line is on disk; `require_ack` has it followed until it is acknowledged.
                await publisher.publish_queued(TOPIC, line.rstrip("\n").encode(), require_ack=True)
            while publisher.stats().live:
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
