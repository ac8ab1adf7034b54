"""How long the keys of this node's own pools still last, as their messages tell.

A node has no keys. The certificate of a message that a local program submitted says when the pool's key ends, and the
message says in which period it was signed. Messages of others say nothing about whoever runs this node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagepost.dmq.message import DmqMessage

IN_USE_S = 129_600.0
"""One KES period of the public networks: a pool that was silent for longer may have moved elsewhere."""
POOLS_MAX = 1_024


@dataclass
class KeysInUse:
    """The pools that local programs send for, by cold key: when each last did, and how many periods were left."""

    _pools: dict[bytes, tuple[float, int]] = field(default_factory=dict)

    def note(self, message: DmqMessage, evolutions_max: int, mono_s: float) -> None:
        """A message of a local program was accepted."""
        key = message.cold_verification_key
        # The latest comes last, so that the first is the one that was silent for longest.
        self._pools.pop(key, None)
        self._pools[key] = (mono_s, evolutions_max - message.kes_evolution)
        if len(self._pools) > POOLS_MAX:
            del self._pools[next(iter(self._pools))]

    def periods_remaining(self, mono_s: float) -> int | None:
        """Of the key that ends first, the present period included; None while none is in use."""
        for key, (used_at_s, _) in list(self._pools.items()):
            if mono_s - used_at_s > IN_USE_S:
                del self._pools[key]
        return min((remaining for _, remaining in self._pools.values()), default=None)
