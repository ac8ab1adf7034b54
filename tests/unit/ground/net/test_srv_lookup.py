"""SRV lookup against a name server on loopback that answers as published, slowly, wrongly or not at all."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import cast

import pytest

from stagepost.errors import ConfigError, TransportError
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.srv_lookup import (
    NAME_SERVERS_MAX,
    RECORDS_MAX,
    SrvRecord,
    choose_record,
    look_up_srv,
    name_servers,
    public_address,
    read_answer,
    write_question,
)

NAME = "_dmq._mithril._cardano._tcp.example.org"


def encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def record(priority: int, weight: int, port: int, target: bytes, kind: int = 33) -> bytes:
    content = struct.pack(">HHH", priority, weight, port) + target
    return b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 300, len(content)) + content


def answer(question: bytes, *records: bytes, flags: int = 0x8180, count: int | None = None) -> bytes:
    head = struct.pack(">HHHHH", flags, 1, len(records) if count is None else count, 0, 0)
    return question[:2] + head + question[12:] + b"".join(records)


RELAY = record(10, 5, 6161, encoded("relay.example.org"))


class NameServer(asyncio.DatagramProtocol):
    def __init__(self, reply: Callable[[bytes], list[bytes]]) -> None:
        self.reply = reply
        self.asked: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        self.asked.append(data)
        for piece in self.reply(data):
            self.transport.sendto(piece, address)


def looked_up(*replies: Callable[[bytes], list[bytes]], within_s: float = 20.0) -> TcpAddress:
    async def run() -> TcpAddress:
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_datagram_endpoint(partial(NameServer, reply), local_addr=("127.0.0.1", 0))
            for reply in replies
        ]
        servers = [TcpAddress(*transport.get_extra_info("sockname")[:2]) for transport, _ in made]
        try:
            return await look_up_srv(NAME, servers=servers, within_s=within_s)
        finally:
            for transport, server in made:
                transport.close()
                assert all(data[12:] == encoded(NAME) + b"\0\x21\0\x01" for data in server.asked)

    return asyncio.run(run())


def test_the_record_names_host_and_port() -> None:
    assert looked_up(lambda question: [answer(question, RELAY)]) == TcpAddress("relay.example.org", 6161)


def test_a_target_may_point_back_into_the_question() -> None:
    at = 12 + len(encoded("_dmq._mithril._cardano._tcp")) - 1
    pointing = record(1, 1, 3, b"\x05relay" + struct.pack(">H", 0xC000 | at))

    assert looked_up(lambda question: [answer(question, pointing)]) == TcpAddress("relay.example.org", 3)


def test_a_silent_server_is_followed_by_the_next() -> None:
    assert looked_up(lambda _: [], lambda question: [answer(question, RELAY)], within_s=2.0).port == 6161


@pytest.mark.parametrize(
    "lie",
    [
        lambda question: bytes([question[0] ^ 1]) + answer(question, RELAY)[1:],
        lambda question: answer(question, RELAY, flags=0x0100),
        lambda question: answer(question, RELAY, flags=0x8380),
        lambda question: answer(question, RELAY, flags=0x8182),
        lambda question: answer(question, RELAY, count=2),
        lambda question: answer(question, RELAY, count=RECORDS_MAX + 1),
        lambda question: answer(question, record(1, 1, 1, b"\xc0\xff")),
        lambda question: answer(question, record(1, 1, 1, b"\x80abc\0")),
        lambda question: answer(question, RELAY)[:-3],
        lambda _: b"",
    ],
    ids=[
        "other number",
        "no answer",
        "cut",
        "server failure",
        "too few",
        "too many",
        "forward",
        "label",
        "short",
        "empty",
    ],
)
def test_a_wrong_answer_is_not_taken(lie: Callable[[bytes], bytes]) -> None:
    with pytest.raises(TransportError, match="no name server answered"):
        looked_up(lambda question: [lie(question)], within_s=0.2)


def test_a_wrong_answer_before_the_right_one_changes_nothing() -> None:
    assert looked_up(lambda question: [b"x", answer(question, RELAY)], within_s=5).port == 6161


@pytest.mark.parametrize("records", [(), (record(0, 0, 0, b"\0"),), (record(0, 0, 1, b"\x01a\0", kind=1),)])
def test_a_name_without_records_is_told(records: tuple[bytes, ...]) -> None:
    with pytest.raises(TransportError, match="no SRV record that names a host"):
        looked_up(lambda question: [answer(question, *records)], within_s=5)


def test_an_answer_is_cut_anywhere_without_an_error_of_another_kind() -> None:
    question = write_question(NAME, 7)
    whole = answer(question, RELAY, record(2, 3, 4, encoded("b.example")))
    records = read_answer(whole, 7)
    assert records is not None
    assert [one.target for one in records] == ["relay.example.org", "b.example"]
    assert all(read_answer(whole[:end], 7) is None for end in range(len(whole)))


def test_names_that_point_in_a_circle_end() -> None:
    head = struct.pack(">HHHHHH", 7, 0x8180, 0, 1, 0, 0)

    assert read_answer(head + b"\xc0\x0c", 7) is None


def test_the_lowest_priority_is_chosen_by_weight() -> None:
    light, heavy, later = (
        SrvRecord(1, 0, 1, "light"),
        SrvRecord(1, 98, 1, "heavy"),
        SrvRecord(2, 1000, 1, "later"),
    )
    chance = Random(1)

    chosen = [choose_record([later, light, heavy], chance) for _ in range(1000)]

    assert later not in chosen
    assert 0 < chosen.count(light) < 50


@pytest.mark.parametrize("name", ["", "a..b", "ä.example", "x" * 64 + ".example", ".".join(["abc"] * 70)])
def test_a_text_that_is_not_a_dns_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a valid DNS name"):
        write_question(name, 1)


def test_name_servers_are_those_of_the_resolver_file() -> None:
    text = (
        "# x\nsearch a.b\nnameserver 10.0.0.1\nnameserver nonsense\nnameserver ::1\n"
        + "nameserver 10.0.0.2\n" * 5
    )

    found = name_servers(text)

    assert found[:2] == [TcpAddress("10.0.0.1", 53), TcpAddress("::1", 53)]
    assert len(found) == NAME_SERVERS_MAX


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "10.1.2.3", "64:ff9b::a00:1"])
def test_a_name_of_a_stranger_that_leads_into_our_network_is_refused(host: str) -> None:
    with pytest.raises(TransportError, match="which is not public"):
        asyncio.run(public_address(TcpAddress(host, 3001)))


def test_a_name_with_one_private_address_among_public_ones_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["93.184.216.34"]

    async def addresses(loop: asyncio.AbstractEventLoop, host: str, port: int, **_: object) -> list[object]:
        return [(2, 1, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", addresses)
    relay = TcpAddress("relay.example", 3001)
    assert asyncio.run(public_address(relay)) == TcpAddress("93.184.216.34", 3001)
    found.append("192.168.0.1")
    with pytest.raises(TransportError, match=r"192\.168\.0\.1, which is not public"):
        asyncio.run(public_address(relay))


def test_a_name_that_nobody_knows_has_no_address() -> None:
    with pytest.raises(TransportError, match="has no address"):
        asyncio.run(public_address(TcpAddress("nobody.invalid", 3001)))
