"""The DMQ side of the demonstration: three nodes in a line, the pools that may send, and a stranger who tries it on.

program ─ dmq-1 ⇄ dmq-2 ⇄ dmq-3 ─ full node

A pretend cardano-node tells the nodes who has stake, as a real one does beside an operator's node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import shake_256
from pathlib import Path

import msgspec

from stagepost.client.client import AsyncClient
from stagepost.devnet.cardano_node import DAY_S, PretendLedger, pretend_cardano_node
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.keys.signing_pair import load_signing_pair
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.config import CardanoAccess, NodeConfig
from stagepost.dmq.node.main import running_node
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.profiles import DEFAULT_PROFILE
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.dmq.validation import TTL_MAX_S
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.identifiers import LOOPBACK_HOST, PoolId
from stagepost.ground.net.version_data import NETWORK_MAGICS

NETWORK_MAGIC = NETWORK_MAGICS["mithril-devnet"]
NODES = 3
PROGRAM, FULL_NODE, STRANGER = "program", "full-node", "stranger"
POOLS = (PROGRAM, FULL_NODE, STRANGER)
KEYS_FOLDER = "keys"
SOCKET = "dmq.socket"
CARDANO_SOCKET = "cardano.socket"
STAKE = 1_000_000
"""Lovelace of each pool."""
READY_WITHIN_S = 60.0
"""Seconds for the nodes to learn who has stake; it takes milliseconds."""

_TTL_S = 600
_TOO_FAR_S = 3_600
_BODY = b"what a stranger sends: forged, stale or a copy, so that it can be seen how a DMQ node answers such messages"
_PER = 200
_FORGED, _COPIES, _TOO_FAR = 4, 3, 2
"""Messages for 200 of the program, and at least one of each kind."""


class DemoNode(msgspec.Struct, frozen=True):
    node: DmqNode
    data: Path
    socket: Path


def make_pools(data: Path, seed: int) -> dict[str, str]:
    """Make the keys of all pools from the seed. Return the ids by name, in hexadecimal digits."""
    ids: dict[str, str] = {}
    for name in POOLS:
        drawn = iter(shake_256(f"stagepost demo {seed} {name}".encode()).digest(64 * 16))
        issued = make_keys(
            data / KEYS_FOLDER / name,
            start_kes_period=0,
            issue_number=0,
            random_bytes=lambda count, drawn=drawn: bytes(next(drawn) for _ in range(count)),  # type: ignore[misc]
        )
        ids[name] = pool_id(issued.cold_verification_key).hex()
    return ids


@asynccontextmanager
async def dmq_nodes(data: Path, sockets: Path, pools: Iterable[str]) -> AsyncIterator[list[DemoNode]]:
    """Run the nodes beside a cardano-node in which `pools` have stake; each dials the one before it. `sockets`: a
    folder with a short name, because the system limits the length of socket names.
    """
    nodes: list[DemoNode] = []
    stakes = {PoolId(bytes.fromhex(one)): STAKE for one in pools}
    # The keys are of period 0, and so is the present: the pretend chain began at the last midnight.
    ledger = PretendLedger(stakes, int(time.time()) // DAY_S * DAY_S)
    access = CardanoAccess(sockets / CARDANO_SOCKET, ledger.magic)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pretend_cardano_node(ledger, access.socket))
        for number in range(NODES):
            before = [nodes[-1].node.tcp_ports[0]] if nodes else []
            points = tuple(AccessPoint(LOOPBACK_HOST, port, DEFAULT_PROFILE) for port in before)
            folder = data / f"dmq-{number + 1}"
            socket = sockets / f"{number + 1}.{SOCKET}"
            config = NodeConfig(
                data_dir=folder,
                local_socket=socket,
                pools_file=None,
                cardano=access,
                host_addresses=(LOOPBACK_HOST,),
                port=0,
                network_magic=NETWORK_MAGIC,
                topology=Topology(local_roots=(LocalRoot(points, len(points), len(points)),)),
                min_sig_delay_s=0.0,
                verification_processes=1,
            )
            node = await stack.enter_async_context(running_node(config))
            nodes.append(DemoNode(node, folder, socket))
        async with asyncio.timeout(READY_WITHIN_S):
            while not all(one.node.status().ready for one in nodes):
                await asyncio.sleep(0.02)
        yield nodes


class Stranger:
    """Signs with a pool of the network, and sends what no honest program sends."""

    def __init__(self, data: Path) -> None:
        keys = data / KEYS_FOLDER / STRANGER
        self._pair = load_signing_pair(keys)

    def message(self, number: int, ttl_s: float) -> DmqMessage:
        body, expires_at = _BODY + b" %d" % number, int(time.time() + ttl_s)
        return self._pair.sign(body, kes_period=self._pair.earliest_period, expires_at=expires_at)

    async def try_everything(self, node: DemoNode, count: int) -> list[Rejected]:
        """Send bad messages in the proportion for `count` good ones. Return the node's answer to each that it
        refused.
        """
        attempts = [_forged(self.message(number, _TTL_S)) for number in range(_share(_FORGED, count))]
        taken = self.message(len(attempts), _TTL_S)
        attempts += [taken] * (1 + _share(_COPIES, count))
        far_s = TTL_MAX_S + _TOO_FAR_S
        attempts += [self.message(1_000 + number, far_s) for number in range(_share(_TOO_FAR, count))]
        async with AsyncClient.connect(node.socket, NETWORK_MAGIC) as client:
            answers = [await client.submit(message) for message in attempts]
        return [answer for answer in answers if isinstance(answer, Rejected)]


def _forged(message: DmqMessage) -> DmqMessage:
    """Return the same message with one bit of its signature turned."""
    place = message.raw.index(message.kes_signature)
    raw = bytearray(message.raw)
    raw[place] ^= 1
    return DmqMessage.decode(bytes(raw))


def _share(of_200: int, count: int) -> int:
    return max(1, of_200 * count // _PER)
