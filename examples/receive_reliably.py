"""Keep every line that is published in a database, each once, and acknowledge it; also across crashes of this program.

    python examples/receive_reliably.py dmq-node.socket 2147483690 my-pool my-inbox lines.sqlite

Ends after the number of lines that a sixth argument gives, if there is one.
"""

import asyncio
import sqlite3
import sys

from stagepost.delivery import DmqTransport, Message, Receiver, ReceiverConfig
from stagepost.delivery.stores.inbox_stores import claim_within

TOPIC = "lines"


async def main(
    socket_path: str, network_magic: str, keys: str, inbox: str, database: str, count: str = "0"
) -> None:
    kept = sqlite3.connect(database)
    kept.execute("CREATE TABLE IF NOT EXISTS lines (line TEXT)")
    handled = 0
    enough = asyncio.Event()

    def keep_once(message: Message) -> None:
        nonlocal handled
        # In one transaction with its effect, the claim is given once, however often the message comes and whenever we
        # crash. An effect outside of a database claims with `await receiver.inbox.claim(message.message_id)`.
        with kept:
            if claim_within(kept, message.message_id):
                kept.execute("INSERT INTO lines VALUES (?)", (message.data.decode(),))
        handled += 1
        if handled == int(count):
            enough.set()

    async with (
        DmqTransport(socket_path, int(network_magic), keys) as transport,
        Receiver(transport, {TOPIC: keep_once}, config=ReceiverConfig(inbox_path=inbox)),
    ):
        await enough.wait()
    kept.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
