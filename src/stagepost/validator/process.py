"""The process around a validator: from its files, until a signal."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stagepost.full_node.process import (
    ClosableNode,
    NodeBeside,
    load_member,
    require_free_ports,
    run_until_signal,
)
from stagepost.ground.crypto import ed25519
from stagepost.ground.files.data_folder import require_owner
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.telemetry.logs import configure_logs
from stagepost.validator.running import LinkLayer, start_validator
from stagepost.validator.status import validator_status


def run_validator(
    network: Path,
    key: Path,
    data: Path,
    *,
    shards: int | None,
    message_timeout_s: float,
    log_level: str,
    genesis: str | None = None,
    between: LinkLayer | None = None,
    metrics_port: int | None = None,
    metrics_at: TcpAddress | None = None,
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
) -> int:
    """Run a validator; return the exit status. What cannot be started raises. `genesis`: hash that the network file must
    have; None takes any. `metrics_port` None: no status over HTTP.
    `metrics_at`: address at which /metrics alone is served as well."""
    configure_logs(log_level, "auto")
    described, seed = load_member(network, genesis, key, is_validator=True)
    require_owner(data, ed25519.public_key(seed))
    require_free_ports(metrics_port, metrics_at)

    async def start() -> ClosableNode:
        validator = await start_validator(
            described,
            seed,
            data,
            shards=shards,
            message_timeout_s=message_timeout_s,
            between=between,
            network_file=network,
            encryption=encryption,
        )
        served = validator_status(validator, data, metrics_port, metrics_at)
        return await NodeBeside.start(validator, served)

    return asyncio.run(run_until_signal(start))
