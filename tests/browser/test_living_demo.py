"""A living network in a real Chromium: ten lines of Python publish an external message, the id that they print shows its way
from the outbox to the proof, every fault is set and taken back from the page, and every face says what is broken.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import find_java_home
from tests.browser.chromium import chromium_path
from tests.worlds.devnet.health_faces import HealthFaces

if TYPE_CHECKING:
    from playwright.sync_api import Page

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("fastapi", reason="the extra web is not installed")
try:
    from playwright import sync_api as playwright
except ModuleNotFoundError:
    require("browser", "the package playwright is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

COMMAND = (sys.executable, "-m", "stagepost.cli.main")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
WITHIN_S = 90.0
"""Seconds, at most, on a busy machine; the time that was taken is printed."""
KILLED = ("validator-3", "validator-4")
PROGRAM = """
import sys
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.client import Client
from stagepost.delivery import ReliablePublisherConfig

data, keys, full_node = sys.argv[1:]
account = b"alice".ljust(31, b".") + bytes([ContractKind.SUM_OF_PRIMES])
message = CanonicalMessage(account, primes_body(200)).encode()
config = ReliablePublisherConfig(enable_ack=True, critical_peers=(full_node,), ack_timeout=5.0, max_retries=20)
with Client.connect(data=data, keys=keys, publisher=config) as client:
    sent = client.send(message, topic="stagepost.remp.messages", tier="acked", key="order-17")
    print(sent.message_id)
"""


class Living:
    """Network of a process of its own: `base` is the address of its pages, `token` opens them for changes."""

    def __init__(self, data: Path, base: str, token: str) -> None:
        self.data = data
        self.base = base
        self.token = token


@contextmanager
def living(data: Path, *options: str) -> Iterator[Living]:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--live", *options, "--port", "0", "--data", str(data)],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stderr is not None
        told = [process.stderr.readline() for _ in range(4)]
        link = re.search(r"open (http://\S+)/login\?token=(\S+)", "".join(told))
        assert link is not None, told
        yield Living(data, link[1], link[2])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert _processes_of(data) == [], "a process of the network is left"
    finally:
        process.kill()
        process.communicate()


def _processes_of(data: Path) -> list[str]:
    """Return the command lines of processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [one for one in found if str(data) in one]


def test_a_message_is_followed_to_its_proof_and_a_living_network_is_broken_and_mended(tmp_path: Path) -> None:
    try:
        find_java_home(ENVIRONMENT, tmp_path / "java")
        options: tuple[str, ...] = ()
    except ConfigError:
        options = ("--no-spark",)
    with living(tmp_path / "demo", *options) as network, playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=chromium_path())
        except playwright.Error as error:
            require("browser", f"no Chromium could be started: {str(error).splitlines()[0]}")
        page = browser.new_page(viewport={"width": 1_280, "height": 900})
        page.set_default_timeout(WITHIN_S * 1_000)
        page.goto(f"{network.base}/login?token={network.token}")
        _follow_to_the_proof(page, network, tmp_path)
        with httpx.Client(base_url=network.base, timeout=30) as client:
            client.get("/login", params={"token": network.token})
            _break_and_mend(page, network, HealthFaces(network.data, client, _run))
            if not options:
                _tables_follow(page, network, client)
        browser.close()


def _run(*line: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *line], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    return done.returncode, done.stdout + done.stderr


def _follow_to_the_proof(page: Page, network: Living, folder: Path) -> None:
    status, told = _run("keys", "show", str(network.data / "keys" / "full-node"), "--json")
    full_node = re.search(r'"pool_id(?:_hex)?": "([0-9a-f]{56})"', told)
    assert status == 0, told
    assert full_node is not None, told
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM),
            *(str(network.data / "dmq-1"), str(network.data / "keys" / "program"), full_node[1]),
        ],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    delivery_id = done.stdout.strip()
    page.goto(network.base + "/")
    page.fill("input[name=q]", delivery_id)
    page.press("input[name=q]", "Enter")
    page.locator(".seal.proved").wait_for()  # the page follows the message by itself
    message_id = page.text_content("#whole-id")
    assert message_id is not None
    assert page.text_content("h1") == "Finalized"
    assert "proved executed, in master block" in page.inner_text(".seal")
    stations = page.locator(".rail li")
    assert stations.count() == page.locator(".rail li.reached").count() == 9
    lanes = page.eval_on_selector_all("svg.trace g.lane", "all => all.map(one => one.dataset.name)")
    lanes += page.eval_on_selector_all(".way-lane", "all => all.map(one => one.dataset.name)")
    assert {"program", "dmq-1", "dmq-2", "dmq-3", "full node", f"pool {full_node[1][:8]}"} <= {*lanes}
    assert {f"validator-{number}" for number in range(1, 5)} <= {*lanes}
    steps = page.inner_text("table.steps")
    for words in ("published", "accepted from local", "accepted from dmq-1", "acknowledged, signed"):
        assert words in steps, steps
    commands = page.locator(".seal .command code").all_text_contents()
    assert len(commands) == 2
    for command in commands:  # as they are printed
        done = subprocess.run(
            [*COMMAND, *command.split()[1:]],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    for text in (delivery_id[:10], message_id[:12], "order-17"):
        page.goto(network.base + "/")
        page.fill("input[name=q]", text)
        page.press("input[name=q]", "Enter")
        page.wait_for_url(f"**/trace/{message_id}")
    page.screenshot(path=os.environ.get("STAGEPOST_PICTURE", str(folder / "page.png")), full_page=True)


def _tables_follow(page: Page, network: Living, client: Any) -> None:
    """Wait until the tables hold a message that has just come, and look at them on the page of analytics."""
    (newest,) = client.get("/api/v1/messages", params={"limit": 1}).json()["rows"]
    began = time.monotonic()
    while True:
        told = client.get("/api/v1/messages", params={"source": "tables", "id": newest["message_id"]})
        if told.status_code == 200 and told.json()["rows"]:
            break
        assert time.monotonic() - began < WITHIN_S, ((network.data / "spark.log").read_text(), told.text)
        time.sleep(0.2)
    print(f"the tables have a new message after {time.monotonic() - began:.1f} s")
    while True:
        page.goto(f"{network.base}/analytics")
        if page.locator("#chart-validators").count():
            break
        assert time.monotonic() - began < 2 * WITHIN_S, (network.data / "spark.log").read_text()
        time.sleep(1)
    page.locator("#chart-outcomes [data-drawn]").wait_for()
    assert "validator-1" in (page.text_content("#chart-validators") or "")


def _all_say(faces: HealthFaces, health: str, names: tuple[str, ...]) -> None:
    began = time.monotonic()
    left: list[Callable[[], tuple[str, str]]] = faces.all
    said: dict[str, Any] = {}
    while left:
        assert time.monotonic() - began < WITHIN_S, said
        for face in [*left]:
            said[face.__name__] = answer, text = face()
            if answer == health and all(name in text for name in names):
                left.remove(face)
        time.sleep(0.1)
    print(f"every face says {health} after {time.monotonic() - began:.1f} s")


def _break_and_mend(page: Page, network: Living, faces: HealthFaces) -> None:
    base = network.base

    def says(health: str, *words: str) -> None:
        page.locator(".tile.health .figure", has_text=health).wait_for()
        for word in words:
            page.locator(".tile.health .note", has_text=word).wait_for()

    def press(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).click()
        page.wait_for_url(f"{base}/demo")
        page.evaluate("document.activeElement.blur()")

    page.goto(f"{base}/demo")
    says("good")
    press("Break: Kill validator-3")
    press("Break: Kill validator-4")
    _all_say(faces, "bad", KILLED)
    says("bad", *KILLED, "no quorum")
    press("Take back: Kill validator-3")
    press("Take back: Kill validator-4")
    _all_say(faces, "good", ())
    says("good")
    press("Break: Fill the outbox")
    says("bad", "outbox 60 of 60")
    status, told = _run("check", "--data", str(network.data))
    assert (status, "outbox 60 of 60" in told) == (2, True), told
    press("Take back: Fill the outbox")
    says("good")
    press("Break: Cut a link")
    page.goto(f"{base}/peers")
    page.locator("tr", has_text="validator-1").locator("text=not linked").first.wait_for()
    page.goto(f"{base}/demo")
    press("Take back: Cut a link")
    press("Break: Forge receipts")
    page.goto(f"{base}/")
    page.locator("#health tr", has_text="RECEIPT_SIGNATURE").wait_for()
    page.goto(f"{base}/demo")
    press("Take back: Forge receipts")
    says("good")
    page.goto(f"{base}/live")
    before = page.locator("#live-messages tbody tr").count()
    page.locator("#live-messages tbody tr").nth(before).wait_for()
    _all_say(faces, "good", ())
