"""Ten lines of Python publish on a network of two DMQ nodes, and two programs acknowledge: the story of one message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagepost.client import Client
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.errors import LocalProtocolError
from stagepost.ground.crypto.hashing import pool_id
from tests.worlds.dmq.node_processes import NodeProcess, ending

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""Trace context of the program."""

PROGRAM = """
import sys
from stagepost.client import Client
from stagepost.delivery import ReliablePublisherConfig

data, keys, traceparent, *recipients = sys.argv[1:]
config = ReliablePublisherConfig(
    enable_ack=True, critical_peers=tuple(recipients), require_all_acks=True, ack_timeout=5.0, max_retries=20
)
with Client.connect(data=data, keys=keys, publisher=config) as client:
    order = b'{"order": 17}'
    sent = client.send(order, topic="orders", tier="acked", key="order-17", traceparent=traceparent)
    print(sent.message_id)
"""


class Network:
    """Two nodes below one data folder, a pool that sends and two that receive."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ids = {}
        for name in ("alice", "bob", "carol"):
            issued = make_keys(data / "keys" / name, start_kes_period=0, issue_number=0)
            self.ids[name] = pool_id(issued.cold_verification_key).hex()
        pools = data / "pools.json"
        entries = [{"pool_id": one, "stake": 1} for one in self.ids.values()]
        pools.write_text(
            json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": entries})
        )
        self.nodes = [NodeProcess(data / "node-1", pools)]

    def start(self) -> None:
        self.nodes[0].start()
        peers = [(self.nodes[0].port, "dmq-node")]
        self.nodes.append(NodeProcess(self.data / "node-2", self.nodes[0].pools_file, peers=peers))
        self.nodes[1].start()


def acknowledge(client: Client, received: list[tuple[bytes, str]]) -> None:
    try:
        for message in client.receive("orders"):
            received.append((message.payload, message.traceparent))
            message.ack()
    except LocalProtocolError:
        pass  # the test has ended


@contextmanager
def published(data: Path) -> Iterator[tuple[Network, str]]:
    """Give the network, still running, and the id that the program printed."""
    os.chmod(data, 0o700)
    network = Network(data)
    clients: list[Client] = []
    received: list[tuple[bytes, str]] = []
    with ending(network.nodes):
        network.start()
        try:
            for name in ("bob", "carol"):
                client = Client.connect(data=data / "node-2", keys=data / "keys" / name)
                clients.append(client)
                threading.Thread(target=acknowledge, args=(client, received), daemon=True).start()
            told = subprocess.run(
                [
                    *(
                        sys.executable,
                        "-c",
                        PROGRAM,
                        str(data / "node-1"),
                        str(data / "keys" / "alice"),
                        CALLER,
                    ),
                    *(network.ids["bob"], network.ids["carol"]),
                ],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert told.returncode == 0, told.stderr
            assert received == [(b'{"order": 17}', CALLER)] * 2
            yield network, told.stdout.strip()
        finally:
            for client in clients:
                client.close()
