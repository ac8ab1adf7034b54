"""Print the messages of a DMQ node: first those that it holds, then each as it comes.

    python examples/listen_for_messages.py dmq-node.socket 2147483690 10

The numbers are the network's magic and, if you like, after how many messages to end. A node that is restarted
meanwhile is connected to again; no message is shown twice.
"""

import asyncio
import sys

from stagepost.client import AsyncClient


async def main(socket_path: str, network_magic: str, count: str = "0") -> None:
    shown = 0
    async with AsyncClient.connect(socket_path, int(network_magic)) as client:
        async for message in client.listen():
            print(message.message_id.hex(), message.expires_at, message.body)
            shown += 1
            if shown == int(count):
                break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
