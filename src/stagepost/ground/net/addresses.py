"""Addresses as people write them: `127.0.0.1:4200`, `[::1]:4200`, or the path of a Unix socket."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

from stagepost.errors import ConfigError
from stagepost.ground.net.network import Address, TcpAddress, UnixAddress

PORT_MAX = 65_535
_TCP = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)


def parse_address(text: str) -> Address:
    """A text with a slash is a path; everything else is HOST:PORT."""
    if "/" in text:
        return UnixAddress(Path(text))
    found = _TCP.fullmatch(text)
    if found is None or int(found[3]) > PORT_MAX:
        raise ConfigError(
            f"{text!r} is no address", advice="write HOST:PORT, as in 127.0.0.1:4200, or ./PATH of a socket"
        )
    return TcpAddress(found[1] or found[2], int(found[3]))


def is_on_this_machine(address: Address) -> bool:
    """Whether only programs of this machine can come in there."""
    if isinstance(address, UnixAddress):
        return True
    if address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False
