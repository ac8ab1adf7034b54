"""Every Python block of README.md and of the pages below docs/ is run as it is printed: here, in a folder that holds what the block
speaks of, or by the test that `ELSEWHERE` names. A new block without a place in one of the tables fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost.client import Client
from stagepost.delivery import ReliablePublisherConfig
from tests.unit.delivery.shell.test_status_webhook import hook
from tests.worlds.delivery.one_message import Network
from tests.worlds.devnet.devnet_runs import ENVIRONMENT, ROOT
from tests.worlds.dmq.node_processes import ending

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]

WITHIN_S = 300
BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SIGNS = {
    "docs/delivery.md: MemoryNetwork(": "tests/unit/delivery/test_delivery_docs.py",
    "docs/delivery.md: client.receive(": "test_a_program_receives_what_another_sends",
    "docs/endpoints.md: respond(": "tests/unit/delivery/test_transport_docs.py",
    "docs/pipeline.md: register(spark)": "test_spark_reads_tables_and_topics",
    "docs/pipeline.md: stored_message(": "test_tables_are_read_without_spark",
    "docs/sending.md: CanonicalMessage(": "tests/e2e/test_external_messages.py",
    "docs/tables.md: register_tables(": "test_spark_reads_tables_and_topics",
    "docs/telemetry.md: WebhookConfig(": "test_statuses_go_to_a_webhook",
    "docs/topics.md: create_topic(": "test_a_topic_is_written_and_read",
    "docs/topics.md: def records(": "tests/unit/topics/test_topic_docs.py",
    "docs/topics.md: def binary_array(": "tests/unit/topics/test_topic_docs.py",
    "docs/transports.md: SocketTransport(": "tests/unit/delivery/test_transport_docs.py",
    "docs/tutorial.md: POOL_ID_HEX": "tests/e2e/test_tutorial.py",
}
"""Page and words of each block, and the test that runs it: one of this file, or a file that reads the page."""


def pages() -> list[Path]:
    rooms = (ROOT / "src" / "stagepost").glob("*/README.md")
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *rooms])


def blocks() -> Iterator[tuple[str, str]]:
    """Yield each block with the name of its page."""
    for page in pages():
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), block


def block_with(sign: str) -> str:
    page, words = sign.split(": ", 1)
    (found,) = (block for name, block in blocks() if name == page and words in block)
    return found


def places(found: Iterator[tuple[str, str]]) -> list[list[str]]:
    """Return for each block the signs that it shows."""
    return [
        [sign for sign in SIGNS if sign.split(": ", 1)[0] == name and sign.split(": ", 1)[1] in block]
        for name, block in found
    ]


def test_every_block_is_run_by_one_test() -> None:
    found = places(blocks())
    assert all(len(signs) == 1 for signs in found), [*zip(blocks(), found, strict=True)]
    assert {sign for (sign,) in found} == {*SIGNS}, "blocks that are gone"
    for sign, test in SIGNS.items():
        if test in globals():
            continue
        page = sign.split(": ")[0].rpartition("/")[2]
        text = (ROOT / test).read_text(encoding="utf-8")
        assert page in text or page.removesuffix(".md") in text, test
    strange = [("docs/topics.md", "print('a block that nobody runs')")]
    assert places(iter(strange)) == [[]]


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    # The system allows no long names for sockets.
    with tempfile.TemporaryDirectory(prefix="stagepost-") as path:
        yield Path(path)


def test_a_topic_is_written_and_read(folder: Path) -> None:
    said = run(block_with("docs/topics.md: create_topic("), folder).splitlines()
    assert [line for line in said if not line.startswith("stored")] == [
        *("0 b'key' b'value' {'by': 'me'}", "[b'value']", "1 b'key' b'more' {}", "[b'more']"),
        *("1 records handled", "1 records handled"),
    ]
    assert sum(line.startswith("stored [Place(") for line in said) == 1


@pytest.fixture
def network(folder: Path) -> Iterator[Network]:
    os.chmod(folder, 0o700)
    made = Network(folder)
    with ending(made.nodes):
        made.start()
        for name in made.ids:
            (folder / name).symlink_to(folder / "keys" / name)
        yield made


def test_a_program_receives_what_another_sends(network: Network) -> None:
    """The program of the page waits for an order and answers it; it has no other end than its time without one."""
    program = block_with("docs/delivery.md: client.receive(")
    assert "idle_timeout_s=60" in program
    command = [sys.executable, "-W", "error", "-c", program.replace("=60", "=20")]
    config = ReliablePublisherConfig(
        enable_ack=True, critical_peers=(network.ids["bob"],), ack_timeout=5.0, max_retries=20
    )
    receiving = subprocess.Popen(command, cwd=network.data, env=ENVIRONMENT, stderr=subprocess.PIPE)
    try:
        with Client.connect(
            data=network.data / "node-1", keys=network.data / "alice", publisher=config
        ) as client:
            # It returns when bob has acknowledged the message, and raises otherwise.
            client.send(b"an order", topic="orders", tier="acked", timeout_s=WITHIN_S)
        _, said = receiving.communicate(timeout=WITHIN_S)
        assert receiving.returncode == 0, said
    finally:
        receiving.kill()
        receiving.communicate()


def test_statuses_go_to_a_webhook(network: Network) -> None:
    program = block_with("docs/telemetry.md: WebhookConfig(")
    assert (program.count('"https://example.org/hook"'), program.count('"my-pool"')) == (1, 1)
    (network.data / "my-pool").symlink_to(network.data / "keys" / "alice")
    with hook() as receiver:
        # A hook on this machine, and the folder of a node: the defaults name others.
        program = program.replace('"https://example.org/hook"', f'"{receiver.url}", allow_private=True')
        run(program.replace('keys="my-pool"', 'data="node-1", keys="my-pool"'), network.data)
        headers, body = receiver.requests[-1]
    assert headers["Authorization"] == "Bearer my-token"
    assert json.loads(body)["type"] == "stagepost.delivery.sent"


def test_tables_are_read_without_spark(folder: Path) -> None:
    pytest.importorskip("deltalake", reason="the extra spark brings it")
    from tests.browser.tables_world import write_tables

    write_tables(folder / "tables", 1_800_000_000_000, count=6)
    program = block_with("docs/pipeline.md: stored_message(")
    said = run(program, folder)
    assert "finalized" in said
    assert said.splitlines()[-1] == "None"


def test_spark_reads_tables_and_topics(folder: Path, run_seed: int) -> None:
    pytest.importorskip("deltalake", reason="the extra spark brings it")
    from stagepost.pipeline.tables.store import TableStore
    from tests.e2e.test_spark_lake import delta_jars
    from tests.worlds.pipeline.pipeline_topics import a_topic
    from tests.worlds.pipeline.pipeline_world import a_dump
    from tests.worlds.pipeline.small_lake import write_small_lake
    from tests.worlds.topics.topic_serving import served_at

    tables, sources = (
        block_with(f"docs/{sign}") for sign in ("tables.md: register_tables(", "pipeline.md: register(spark)")
    )
    jars = ",".join(map(str, delta_jars()))
    write_small_lake(TableStore.at(folder / "tables"))
    records = len(a_topic(folder / "stagepost-data", a_dump(2, run_seed)).read_bytes().splitlines())
    with served_at(folder / "stagepost-data") as address:
        assert (tables.count('"…"'), sources.count('"127.0.0.1:4200"')) == (1, 1)
        program = tables.replace('"…"', repr(jars)) + sources.replace("127.0.0.1:4200", address)
        said = run(program, folder)
    assert "finalized" in said
    assert said.split().count(str(records)) == 2
