"""Free ports for servers of tests and benchmarks."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom

PORTS = (20_000, 32_000)
"""Below those that Linux chooses for connections (from 32,768 on): none of them is taken while a server is on its way."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports of the loopback address that were free a moment ago."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = SystemRandom().randrange(*PORTS)
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return tuple(found)
