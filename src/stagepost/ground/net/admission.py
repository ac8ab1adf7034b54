"""Admission of connections: limits on all of them and on those from one source, and a pause above the soft
limit."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field

from stagepost.ground.identifiers import LOOPBACK_HOST

CONNECTIONS_SOFT_MAX = 384
CONNECTIONS_HARD_MAX = 512
SOFT_DELAY_S = 5.0
PER_SOURCE_MAX = 16
IPV4_PREFIX_BITS, IPV6_PREFIX_BITS = 24, 64

LOOPBACK_HOSTS = frozenset({LOOPBACK_HOST, "::1"})
"""Hosts that all programs of this machine share, so one program's faults must not shut out the others."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    soft_max: int = CONNECTIONS_SOFT_MAX
    hard_max: int = CONNECTIONS_HARD_MAX
    delay_s: float = SOFT_DELAY_S
    per_source_max: int = PER_SOURCE_MAX


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str
    limit: int
    found: int


@dataclass
class Admission:
    """Count of the connections that were admitted.

    `exempt` are hosts that many sources share honestly, such as this machine itself: the limit per source
    does not apply to them.
    """

    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    exempt: frozenset[str] = frozenset()
    _count: int = 0
    _by_source: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self._count

    def enter(self, source: str) -> Refusal | float:
        """Return the seconds to wait before serving a connection from `source`, or the refusal. `leave`
        undoes an entry."""
        if self._count >= self.limits.hard_max:
            return Refusal("all connections are taken", self.limits.hard_max, self._count)
        from_source = self._by_source[source]
        if source not in self.exempt and from_source >= self.limits.per_source_max:
            return Refusal(f"too many connections from {source}", self.limits.per_source_max, from_source)
        self._count += 1
        self._by_source[source] += 1
        return self.limits.delay_s if self._count > self.limits.soft_max else 0.0

    def leave(self, source: str) -> None:
        self._count -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


def prefix_of(host: str) -> str:
    """Return the network that one owner is likely to hold whole: /24 of an IPv4 address, /64 of an IPv6 address, and
    anything else as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    bits = IPV4_PREFIX_BITS if address.version == 4 else IPV6_PREFIX_BITS
    return str(ipaddress.ip_network((address, bits), strict=False))


def host_of(peer: str) -> str:
    """Return the host part of a peer's name `host:port` or `[host]:port`, as bearers write it."""
    return (peer.rpartition(":")[0] or peer).strip("[]")
