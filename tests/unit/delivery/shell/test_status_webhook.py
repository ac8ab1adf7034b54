"""Status callbacks by webhook: CloudEvents as the SDK of CloudEvents reads them, repetitions, bounds, and closed doors."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.client import AsyncClient, WebhookConfig
from stagepost.delivery import MemoryNetwork, ReliablePublisher
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.shell.status_webhook import StatusWebhook, cloud_event, together
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.errors import ConfigError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.net.webhook import ATTEMPTS_MAX, Webhook, WebhookEvent, allowed_address
from tests.worlds.dmq.small_node import MAGIC, SmallNode
from tests.worlds.ground.waiting import wait_until

SENDER = "ab" * 28
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENT = DeliveryEvent(
    "cd" * 32, DeliveryStatus.ACKED, Tier.ACKED, "orders", 1_800_000_000_250, 1, "ef" * 32, None, (SENDER,),
    None, None, CALLER,
)  # fmt: skip


@dataclass
class Hook:
    url: str
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def hook() -> Iterator[Hook]:
    """A receiver that gives these answers first, then 204."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.requests.append((dict(self.headers), body))
            status, headers = made.answers.pop(0) if made.answers else (204, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Hook(f"http://127.0.0.1:{server.server_address[1]}/hook?of=me")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join(30)


def private(url: str, **changes: Any) -> WebhookConfig:
    return WebhookConfig(url=url, allow_private=True, **changes)


def test_a_status_is_a_cloud_event_that_the_sdk_reads() -> None:
    http = pytest.importorskip("cloudevents.v1.http", reason="the package cloudevents is not installed")
    with hook() as receiver:
        sink = StatusWebhook(private(receiver.url), SENDER)
        sink.put(EVENT)
        sink.close()
        ((headers, body),) = receiver.requests
    assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    read = http.from_http({name.lower(): value for name, value in headers.items()}, body)
    assert (read["specversion"], read["type"]) == ("1.0", "stagepost.delivery.acked")
    assert (read["source"], read["subject"]) == (f"/stagepost/nodes/{SENDER}", EVENT.delivery_id)
    assert read["time"] == "2027-01-15T08:00:00.250Z"
    assert read["traceparent"] == CALLER
    assert msgspec.convert(read.data, DeliveryEvent) == EVENT
    # The SDK of version 2 checks every attribute by the specification.
    core = pytest.importorskip("cloudevents.core.v1.event")
    attributes = {name: value for name, value in cloud_event(EVENT, SENDER).items() if name != "data"}
    from datetime import datetime

    attributes["time"] = datetime.fromisoformat(attributes["time"])
    core.CloudEvent(attributes, cloud_event(EVENT, SENDER)["data"])


def test_events_carry_a_token_and_a_signature_that_covers_id_time_and_body() -> None:
    with hook() as receiver:
        sink = Webhook(private(receiver.url, token="t0ken", secret="s3cret"), now=lambda: 1_800_000_000.9)
        sink.put(WebhookEvent("one/two", b'{"a": 1}'))
        sink.close()
        ((headers, body),) = receiver.requests
    assert headers["Authorization"] == "Bearer t0ken"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("one/two", "1800000000")
    digest = hmac.new(b"s3cret", b"one/two.1800000000." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert "s3cret" not in repr(private(receiver.url, secret="s3cret"))


def test_faults_are_tried_again_in_order_and_refusals_are_not() -> None:
    with hook() as receiver:
        receiver.answers = [
            (500, {}),
            (429, {"Retry-After": "0"}),
            (204, {}),
            (400, {}),
            (302, {"Location": "/"}),
        ]
        sink = Webhook(private(receiver.url), first_delay_s=0.001)
        for number in range(4):
            sink.put(WebhookEvent(str(number), b"%d" % number))
        sink.close(60)
        assert [body for _, body in receiver.requests] == [b"0", b"0", b"0", b"1", b"2", b"3"]
        counts = sink.counts
        assert (counts.sent, counts.repeated, counts.refused, counts.dropped) == (2, 2, 2, 0)


def test_a_receiver_that_is_gone_gets_nothing_more() -> None:
    with hook() as receiver:
        receiver.answers = [(410, {})]
        sink = Webhook(private(receiver.url))
        for number in range(5):
            sink.put(WebhookEvent(str(number), b"x"))
        sink.close(60)
        assert len(receiver.requests) == 1
        assert (sink.counts.refused, sink.counts.dropped) == (1, 4)


def test_a_receiver_that_never_answers_well_costs_so_many_attempts_and_no_more() -> None:
    with hook() as receiver:
        receiver.answers = [(503, {})] * 100
        sink = Webhook(private(receiver.url), first_delay_s=0.0001)
        sink.put(WebhookEvent("one", b"x"))
        wait_until(lambda: sink.counts.dropped == 1)
        sink.close(0)
        assert len(receiver.requests) == ATTEMPTS_MAX


def test_the_queue_is_bounded_and_closing_does_not_wait_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        sink = Webhook(private(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2), waiting_max=3)
        for number in range(10):
            sink.put(WebhookEvent(str(number), b"x"))
        assert sink.counts.dropped >= 6
        sink.close(0)
        assert sink.counts.sent == 0
        sink.put(WebhookEvent("late", b"x"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.org/", "not protected"),
        ("ftp://example.org/", "begins with https"),
        ("https:///path", "begins with https"),
        ("https://user:pass@example.org/", "name or password"),
        ("https://example.org:99999/", "not an address"),
    ],
)
def test_addresses_that_cannot_be_are_refused_at_once(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WebhookConfig(url=url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "fc00::1", "localhost", "::127.0.0.1", "64:ff9b::10.0.0.1", "2002:7f00:1::", "fec0::1"],
)  # fmt: skip
def test_private_addresses_are_refused_before_a_connection(host: str) -> None:
    with pytest.raises(ConfigError, match="not public"):
        allowed_address(host, 443, allow_private=False)
    assert allowed_address("127.0.0.1", 443, allow_private=True)[1] == "127.0.0.1"


def test_a_public_name_with_one_private_address_is_refused_and_the_event_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def two_addresses(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (one, port)) for one in ("93.184.216.34", "169.254.169.254")]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    sink = Webhook(WebhookConfig(url="https://rebinding.example/"))
    sink.put(WebhookEvent("one", b"x"))
    sink.close(60)
    assert (sink.counts.refused, sink.counts.sent) == (1, 0)


def test_publishers_and_programs_post_every_change_of_status(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
    pool = pool_id(keys.cold_verification_key).hex()

    async def scenario() -> None:
        network = MemoryNetwork()
        network.join("bob")
        first = StatusWebhook(private(receiver.url), "alice")
        async with ReliablePublisher(network.join("alice"), events=together(None, first)) as publisher:
            await publisher.publish_queued("orders", b"hello", traceparent=CALLER)
            await asyncio.sleep(0)
        await asyncio.to_thread(first.close)
        async with (
            SmallNode(tmp_path / "node.socket"),
            AsyncClient.connect(
                tmp_path / "node.socket", MAGIC, keys=tmp_path / "keys", webhook=private(receiver.url)
            ) as client,
        ):
            await client.send(b"hello", tier="best-effort", traceparent=CALLER)

    with hook() as receiver:
        asyncio.run(scenario())
        events = [msgspec.json.decode(body) for _, body in receiver.requests]
    found = [(event["source"].rpartition("/")[2], event["type"].rpartition(".")[2]) for event in events]
    assert found == [("alice", "pending"), ("alice", "sent"), (pool, "pending"), (pool, "sent")]
    assert {event["traceparent"] for event in events} == {CALLER}
