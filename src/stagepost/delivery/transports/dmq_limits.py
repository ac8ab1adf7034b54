"""How patient and how busy the DMQ transport is, and what it counts beside deliveries."""

from __future__ import annotations

from dataclasses import dataclass

from stagepost.delivery.transports.dmq_connectivity import PEERS_POLL_S, PEERS_POLL_WITHOUT_S
from stagepost.dmq.endpoints.options import require_positive


@dataclass(frozen=True, slots=True)
class DmqTransportLimits:
    """`peers_poll_s` is how soon lost peers are noticed; a publisher without any waits for the first one, so asks sooner."""

    peers_poll_s: float = PEERS_POLL_S
    peers_poll_without_s: float = PEERS_POLL_WITHOUT_S
    lanes: int = 8
    reconnect_delay_s: float = 0.05
    reconnect_delay_max_s: float = 1.0
    listen_again_s: float = 5.0  # after a fault that is more than a node being away
    first_look_s: float = 5.0
    submit_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        require_positive(
            peers_poll_s=self.peers_poll_s,
            peers_poll_without_s=self.peers_poll_without_s,
            lanes=self.lanes,
            listen_again_s=self.listen_again_s,
            first_look_s=self.first_look_s,
        )


@dataclass(slots=True)
class DmqTransportCounters:
    foreign_bodies: int = 0  # no envelope of ours: other programs use the network too
    forged: int = 0  # only with `verify`: the node handed on what proves nothing
    acks_unsent: int = 0
    callbacks_failed: int = 0
