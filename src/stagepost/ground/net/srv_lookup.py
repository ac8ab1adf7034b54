"""SRV lookup: which host and port a DNS name stands for, by one question to the machine's name servers.

Python's library asks for addresses only. Hosts that an answer names are resolved where they are dialled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

from stagepost.errors import ConfigError, TransportError
from stagepost.ground.net.admission import ip_of, is_global
from stagepost.ground.net.network import TcpAddress

RESOLVER_FILE = Path("/etc/resolv.conf")
RESOLVER_FILE_BYTES_MAX = 65_536
NAME_SERVERS_MAX = 3
ASK_WITHIN_S = 3.0
"""Seconds for each name server to answer."""
DNS_PORT = 53
ANSWER_BYTES_MAX = 65_535
RECORDS_MAX = 256
NAME_BYTES_MAX = 255
LABEL_BYTES_MAX = 63
_SRV = 33
_IN = 1
_HEADER = struct.Struct(">HHHHHH")
_RECURSE = 0x0100
_IS_ANSWER, _IS_CUT, _CODE = 0x8000, 0x0200, 0x000F


@dataclass(frozen=True, slots=True)
class SrvRecord:
    priority: int
    weight: int
    port: int
    target: str


class _MalformedAnswer(Exception):
    """Answer that is not a valid DNS message."""


def choose_record(records: Sequence[SrvRecord], random: Random) -> SrvRecord | None:
    """Return one record of the lowest priority, by chance and weight; None if no record names a host."""
    usable = [record for record in records if record.target and record.port]
    if not usable:
        return None
    first = min(record.priority for record in usable)
    group = [record for record in usable if record.priority == first]
    # A record without weight must have a small chance too.
    return random.choices(group, weights=[record.weight + 1 for record in group])[0]


def write_question(name: str, number: int) -> bytes:
    """Return the message that asks for the SRV records of `name`; raise `ConfigError` if it is not a DNS name."""
    labels = [label.encode("ascii", "replace") for label in name.rstrip(".").split(".")]
    written = (
        b"".join(bytes([len(label)]) + label for label in labels if len(label) <= LABEL_BYTES_MAX) + b"\0"
    )
    is_name = name.isascii() and all(1 <= len(label) <= LABEL_BYTES_MAX for label in labels)
    if not is_name or len(written) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{name!r} is not a valid DNS name", advice="check the access point in the topology file"
        )
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + written + struct.pack(">HH", _SRV, _IN)


def read_answer(data: bytes, number: int) -> list[SrvRecord] | None:
    """Return the SRV records of an answer to question `number`; None for a message that is not this answer."""
    try:
        return _read_answer(data, number)
    except (struct.error, IndexError, UnicodeDecodeError, _MalformedAnswer):
        return None


def _read_answer(data: bytes, number: int) -> list[SrvRecord] | None:
    found, flags, questions, answers, _, _ = _HEADER.unpack_from(data)
    if found != number or not flags & _IS_ANSWER or flags & _IS_CUT or flags & _CODE not in (0, 3):
        return None
    if questions > 1 or answers > RECORDS_MAX:
        return None
    offset = _HEADER.size
    for _ in range(questions):
        _, offset = _read_name(data, offset)
        offset += 4
    records: list[SrvRecord] = []
    for _ in range(answers):
        _, offset = _read_name(data, offset)
        kind, kind_class, _, length = struct.unpack_from(">HHIH", data, offset)
        offset += 10
        if (kind, kind_class) == (_SRV, _IN):
            priority, weight, port = struct.unpack_from(">HHH", data, offset)
            target, _ = _read_name(data, offset + 6)
            records.append(SrvRecord(priority, weight, port, target))
        offset += length
        if offset > len(data):
            raise _MalformedAnswer
    return records


def _read_name(data: bytes, offset: int) -> tuple[str, int]:
    """Return a name and the offset after it. Names may point back to earlier ones, never forward."""
    labels: list[str] = []
    after: int | None = None
    total = 0
    while True:
        length = data[offset]
        if length & 0xC0 == 0xC0:
            target = (length & 0x3F) << 8 | data[offset + 1]
            if after is None:
                after = offset + 2
            if target >= offset:
                raise _MalformedAnswer
            offset = target
            continue
        if length > LABEL_BYTES_MAX:
            raise _MalformedAnswer
        if not length:
            return ".".join(labels), offset + 1 if after is None else after
        total += length + 1
        if total > NAME_BYTES_MAX or offset + 1 + length > len(data):
            raise _MalformedAnswer
        labels.append(data[offset + 1 : offset + 1 + length].decode("ascii"))
        offset += 1 + length


def name_servers(text: str) -> list[TcpAddress]:
    """Return the first name servers of a resolver file."""
    words = (line.split() for line in text.splitlines())
    found: list[TcpAddress] = []
    for line in words:
        if len(line) >= 2 and line[0] == "nameserver":
            with suppress(ValueError):
                found.append(TcpAddress(str(ipaddress.ip_address(line[1])), DNS_PORT))
    return found[:NAME_SERVERS_MAX]


class _Asker(asyncio.DatagramProtocol):
    def __init__(self, number: int) -> None:
        self._number = number
        self.answer: asyncio.Future[list[SrvRecord]] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _: object) -> None:
        records = read_answer(data[:ANSWER_BYTES_MAX], self._number)
        if records is not None and not self.answer.done():
            self.answer.set_result(records)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def look_up_srv(
    name: str, *, servers: Sequence[TcpAddress] | None = None, within_s: float = ASK_WITHIN_S
) -> TcpAddress:
    """Return a host and port for the SRV name `name`; raise `TransportError` if no name server knows any."""
    if servers is None:
        servers = name_servers(_resolver_text())
    for server in servers:
        number = secrets.randbits(16)
        question = write_question(name, number)
        try:
            records = await _ask(server, question, number, within_s)
        except (OSError, TimeoutError):
            continue
        record = choose_record(records, SystemRandom())
        if record is None:
            raise TransportError(
                f"{name} has no SRV record that names a host",
                advice="check the access point in the topology file",
            )
        return TcpAddress(record.target, record.port)
    shown = ", ".join(str(server) for server in servers) or "none is configured"
    raise TransportError(
        f"no name server answered for the SRV record of {name} ({shown})",
        advice="check the name servers of this machine",
    )


async def public_address(
    address: TcpAddress, *, within_s: float = NAME_SERVERS_MAX * ASK_WITHIN_S
) -> TcpAddress:
    """Return an IP address of `address` at which a host of the public Internet listens; raise `TransportError` if its name has
    any other address. The caller dials what is returned: a name that stands for another address a moment later changes nothing.
    """
    if ip_of(address.host) is not None:
        found = [address.host]
    else:
        try:
            async with asyncio.timeout(within_s):
                entries = await asyncio.get_running_loop().getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            raise TransportError(
                f"{address.host} has no address: {error or 'nobody answered'}",
                advice="check the name servers of this machine",
            ) from error
        found = [str(entry[4][0]) for entry in entries]
    for one in found:
        if not is_global(one):
            raise TransportError(
                f"{address} has the address {one}, which is not public, and is not dialled",
                advice="set node.private_peers if peers of private networks may be dialled",
                found=one,
            )
    return TcpAddress(found[0], address.port)


async def _ask(server: TcpAddress, question: bytes, number: int, within_s: float) -> list[SrvRecord]:
    loop = asyncio.get_running_loop()
    transport, asker = await loop.create_datagram_endpoint(
        lambda: _Asker(number), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(question)
        async with asyncio.timeout(within_s):
            return await asker.answer
    finally:
        transport.close()


def _resolver_text() -> str:
    try:
        with RESOLVER_FILE.open("rb") as file:
            return file.read(RESOLVER_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
