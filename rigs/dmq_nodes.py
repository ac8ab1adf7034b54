"""Production DMQ nodes for simulated worlds: a configuration of each, and the factory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.node.dialler import SrvLookup
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.profiles import DMQ_NODE, Profile
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.ground.crypto.bounded_cache import BoundedCache
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.network import Network
from stagepost.ground.net.srv_lookup import look_up_srv
from stagepost.ground.signatures.verifier import InlineVerifier, valid_messages_memory
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.world import NETWORK_MAGIC, NODE_PORT, local_address


def config_of(
    name: str, dials: Sequence[AccessPoint], *, profile: Profile = DMQ_NODE, peer_sharing: bool = True
) -> NodeConfig:
    root = LocalRoot(tuple(dials), hot_valency=len(dials), warm_valency=len(dials))
    return NodeConfig(
        data_dir=Path(f"/simulated/{name}"),
        local_socket=local_address(name).path,
        pools_file=Path("/simulated/pools.json"),
        host_addresses=("0.0.0.0",),
        port=NODE_PORT,
        network_magic=NETWORK_MAGIC,
        topology=Topology((root,)),
        wire_profile=profile,
        peer_sharing=peer_sharing,
        metrics_port=None,
    )


@dataclass
class NodeFactory:
    """Makes production nodes for a world."""

    configs: Mapping[str, NodeConfig]
    pools: SimulatedPools
    memory: BoundedCache[bytes, bool] = field(default_factory=valid_messages_memory)
    look_up: SrvLookup = look_up_srv

    def __call__(
        self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random
    ) -> DmqNode:
        return DmqNode(
            self.configs[name],
            network=network,
            clock=clock,
            store=store,
            pools=self.pools,
            verifier=InlineVerifier(self.memory),
            random=random,
            look_up=self.look_up,
        )
