"""One message, one record, in a real Chromium: ten lines of Python publish on a network of two DMQ nodes, the id that they
print goes into the search box, and the page draws the way from the program to two signed acknowledgements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.optional import require
from stagepost.client import Client
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.errors import LocalProtocolError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.web.access.settings import WebSettings
from tests.browser.chromium import chromium_path
from tests.worlds.dmq.node_processes import NodeProcess, ending

pytest.importorskip("fastapi", reason="the extra web is not installed")
try:
    from playwright import sync_api as playwright
except ModuleNotFoundError:
    require("browser", "the package playwright is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

PROGRAM = """
import sys
from stagepost.client import Client
from stagepost.delivery import ReliablePublisherConfig

data, keys, *recipients = sys.argv[1:]
config = ReliablePublisherConfig(
    enable_ack=True, critical_peers=tuple(recipients), require_all_acks=True, ack_timeout=5.0, max_retries=20
)
with Client.connect(data=data, keys=keys, publisher=config) as client:
    print(client.send(b'{"order": 17}', topic="orders", tier="acked", key="order-17").message_id)
"""


class Network:
    """Two nodes below one data folder, a pool that sends and two that receive."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ids = {}
        for name in ("alice", "bob", "carol"):
            issued = make_keys(data / "keys" / name, start_kes_period=0, issue_number=0)
            self.ids[name] = pool_id(issued.cold_verification_key).hex()
        pools = data / "pools.json"
        entries = [{"pool_id": one, "stake": 1} for one in self.ids.values()]
        pools.write_text(
            json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": entries})
        )
        self.nodes = [NodeProcess(data / "node-1", pools)]

    def start(self) -> None:
        self.nodes[0].start()
        peers = [(self.nodes[0].port, "dmq-node")]
        self.nodes.append(NodeProcess(self.data / "node-2", self.nodes[0].pools_file, peers=peers))
        self.nodes[1].start()


def acknowledge(client: Client, received: list[bytes]) -> None:
    try:
        for message in client.receive("orders"):
            received.append(message.payload)
            message.ack()
    except LocalProtocolError:
        pass  # the test has ended


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Network, str]]:
    data = tmp_path_factory.mktemp("story")
    os.chmod(data, 0o700)
    network = Network(data)
    clients: list[Client] = []
    received: list[bytes] = []
    with ending(network.nodes):
        network.start()
        try:
            for name in ("bob", "carol"):
                client = Client.connect(data=data / "node-2", keys=data / "keys" / name)
                clients.append(client)
                threading.Thread(target=acknowledge, args=(client, received), daemon=True).start()
            told = subprocess.run(
                [
                    *(sys.executable, "-c", PROGRAM, str(data / "node-1"), str(data / "keys" / "alice")),
                    *(network.ids["bob"], network.ids["carol"]),
                ],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert told.returncode == 0, told.stderr
            assert received == [b'{"order": 17}'] * 2
            yield network, told.stdout.strip()
        finally:
            for client in clients:
                client.close()


def test_the_returned_id_shows_the_way_from_the_program_to_two_signed_acknowledgements(
    published: tuple[Network, str],
) -> None:
    from tests.browser.served import served

    network, message_id = published
    with served(WebSettings(network.data)) as server, playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=chromium_path())
        except playwright.Error as error:
            require("browser", f"no Chromium could be started: {str(error).splitlines()[0]}")
        page = browser.new_page(viewport={"width": 1_280, "height": 900})
        page.set_default_timeout(60_000)
        for text in (message_id, message_id[:8], "order-17"):
            page.goto(server.base + "/")
            page.fill("input[name=q]", text)
            page.press("input[name=q]", "Enter")
            page.wait_for_url(f"**/trace/{message_id}")
            assert page.text_content("h1") == "Acknowledged by 2 of 2"
        lanes = page.eval_on_selector_all(".way-lane", "all => all.map(one => one.dataset.name)")
        recipients = {f"pool {network.ids[name][:8]}" for name in ("bob", "carol")}
        assert lanes[:2] == ["program", "node-1"]
        assert {"node-2", "peers"} | recipients <= set(lanes)
        steps = page.text_content("table.steps") or ""
        assert steps.count("acknowledged, signed") == 2
        for word in ("published", "sent", "accepted", "pulled by"):
            assert word in steps
        page.screenshot(
            path=os.environ.get("STAGEPOST_PICTURE", str(network.data / "page.png")), full_page=True
        )
        browser.close()
