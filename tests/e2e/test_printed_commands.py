"""Every command line that docs, pages and help print, run as it is printed: in the folder that it speaks of, with the id of a
message of that folder in the place of the printed one. Servers, and lines that need other machines, have tests of their own,
which `ELSEWHERE` names.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stagepost.cli import main as command
from stagepost.client import Client
from stagepost.delivery.stores.reading import read_outbox
from stagepost.devnet.devnet import DevnetPlan
from stagepost.devnet.messages import SumMessage, account_of
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.ground.crypto.hashing import pool_id
from tests.browser.served import an_outbox
from tests.unit.test_command_lines import LINES, ROOT
from tests.worlds.devnet.running_devnet import devnet_in_background
from tests.worlds.dmq.node_processes import NodeProcess, ending
from tests.worlds.ground.captures import a_node_connection

pytestmark = [pytest.mark.xdist_group("commands"), pytest.mark.slow]

PRINTED = sorted({re.split(r"\s+#|\s{4,}[a-z]", line)[0].strip() for _, line in LINES})
"""Command lines, without the words beside them."""
SHOWN_ID = re.compile(r"\b(16923245\w*|2ce218ee|f6d7e64b|5f0c91aa|MESSAGE_ID|ID)\b")

FILES = (
    "--help",
    "keys new my-pool",
    "keys show my-pool",
    "keys show my-pool/cold.vkey",
    "keys evolve my-pool/kes.skey --to 3 --out evolved/period-3.skey",
    "keys renew my-pool --out my-pool-renewed --start-kes-period 160",
    "keys new my-pool --start-kes-period 120",
    "message make note.txt --keys my-pool --out note.cbor",
    "message make note.txt --keys my-pool --pad --out note.cbor",
    "message inspect note.cbor",
    "message verify note.cbor",
    "config init",
    "config check",
    "config check --config FILE",
    "config check --pools pools.json",
    "config schema",
    "config show --context preview",
    "serve --new-token",
    "serve --new-token --data stagepost-data",
    "wire inspect capture.bin",
    "wire inspect capture.hex",
    "network join validator-1 --name validator-1 --address 10.0.0.1:4001",
    "network join validator-2 --name validator-2 --address 10.0.0.2:4001",
    "network join validator-3 --name validator-3 --address 10.0.0.3:4001",
    "network join validator-4 --name validator-4 --address 10.0.0.4:4001",
    "network join full-node --name full-node --address 10.0.0.5:4001 --full-node",
    "network init */member.json --name example --out network.json",
    "network join validator-1 --network network.json",
)
"""In this order, in an empty folder."""
BESIDE_A_DMQ_NODE = (
    "peers --data stagepost-data",
    "check --data stagepost-data --outbox stagepost-outbox",
    'send "hello" --keys my-pool --topic demo',
    "message send note.cbor --data stagepost-data",
    "message send body.bin --keys my-pool --data stagepost-data",
    "queue ls --limit 20",
    "queue ls --outbox stagepost-outbox",
    "queue ls --outbox stagepost-outbox --dead",
    "queue check --outbox stagepost-outbox",
    "queue show ID",
    "queue show ID@12",
    "queue replay ID@12 --keys my-pool",
    "queue replay ID --keys my-pool",
    "queue flush --keys my-pool",
    "listen --topic demo --count 10 --until-idle 5s",
)
ON_A_NETWORK = (
    "submit --to alice --number 100 --expires 60s --wait final --data stagepost-data",
    "submit --to alice --number 100 --wait final --data stagepost-devnet",
    "submit message.bin --wait final --data stagepost-devnet",
    "submit --to alice --number 100 --wait final --data stagepost-data",
    "submit message.bin --wait final --data stagepost-data --json",
    "submit message.bin --wait optimistic --data stagepost-data",
    "chain show --data stagepost-data",
    "prove ID --data stagepost-data --out proof.json",
    "verify proof.json --genesis stagepost-devnet/network.json",
    "verify proof.json --genesis network.json --checkpoint newest.json",
    "listen --data stagepost-devnet --kind Finalized --since 10m --until-idle 5s",
    "sets export --data stagepost-data --out sets.json",
    "sets export --data devnet --out sets.json",
    "topic ls --data stagepost-data",
    "topic check stagepost.remp.statuses --data stagepost-data",
    "topic dump stagepost.remp.statuses --data stagepost-data --out statuses.jsonl",
    "topic dump stagepost.remp.statuses --data devnet --out statuses.jsonl",
    "verify statuses.jsonl --validator-sets sets.json",
    "trace ID --data stagepost-data",
    "trace ID --data stagepost-data --follow",
    "trace ID --data stagepost-demo",
    "trace ID --dump statuses.jsonl --validator-sets sets.json",
    "telemetry ID --data stagepost-data",
)
EXITS = {
    # Fewer messages came than were asked for.
    "listen --topic demo --count 10 --until-idle 5s": 1,
}
"""Exit codes of lines that end with another one than 0, each with its reason."""
ELSEWHERE = (
    (r"demo|demo --live|demo --messages .*", "tests/e2e/test_demo.py"),
    (r"demo --live", "tests/browser/test_living_demo.py"),
    (
        r"devnet .*--kafka.*|kafka .*|pipeline (run|sql) .*(--kafka|spark_catalog).*",
        "tests/e2e/test_kafka_pipeline.py",
    ),
    (r"devnet .*", "tests/e2e/test_devnet.py"),
    (r"conform .*", "tests/unit/cli/test_conform.py"),
    (r"node clock .*", "tests/unit/dmq/node/test_intake.py"),
    (r"node dmq .*", "tests/e2e/test_drop_in_node.py"),
    (
        r"node (full|validator) .*|network (set|show|join) .*|(backup|restore) .*",
        "tests/e2e/test_operated_network.py",
    ),
    (r"observe .*until-idle.*", "tests/unit/cli/observe/test_observe.py"),  # a node of the main network
    (r"observe .*--record.*|pipeline run --once --data observed .*", "tests/e2e/test_node_processes.py"),
    (r"serve .*", "tests/e2e/test_dashboard_serve.py"),
    (r"topic (serve|ls|dump) .*--address.*", "tests/e2e/test_topic_serve.py"),
    (r"pipeline (pack|submit) .*|pipeline sql .*s3:.*", "tests/e2e/test_cluster.py"),
    (r"telemetry .*--otlp.*", "tests/e2e/test_one_message_spans.py"),
    (r"(pipeline|export) .*", "tests/e2e/test_tutorial.py"),
    (r"queue (ls|show) .*--data validator-1", "tests/unit/cli/test_queue.py"),
    (r"queue replay .*--proof.*", "tests/unit/cli/test_queue_outbox.py"),
    (r"prove ID --address .*", "tests/e2e/test_end_stories.py"),
    (r"--install-completion", "tests/unit/cli/test_command_line.py"),
    (r"send --raw|submit --wait final", "tests/unit/cli/test_send.py"),  # parts of lines
    (r"listen .*--ack.*", "tests/e2e/test_tutorial.py"),
)
"""Lines that run until they are stopped or need other machines, and the test that runs their command."""


def words_of(line: str) -> str:
    return SHOWN_ID.sub("ID", line.removeprefix("stagepost "))


def command_of(words: str) -> str:
    """Return the name of the command: its words before the first value or option."""
    return re.match(r"[a-z]*(?: (?:[a-z]+)(?= |$))?", words)[0]  # type: ignore[index]  # it always matches


def test_every_printed_command_is_run_by_some_test() -> None:
    run_here = {*FILES, *BESIDE_A_DMQ_NODE, *ON_A_NETWORK}
    printed = {words_of(line) for line in PRINTED}
    run = {
        one for one in printed if one in run_here or any(re.fullmatch(shape, one) for shape, _ in ELSEWHERE)
    }
    print("lines of commands whose other lines are run:", sorted(printed - run))
    assert {command_of(one) for one in printed} == {command_of(one) for one in run}
    assert run_here <= printed, "lines that nobody prints any more"
    assert all((ROOT / path).exists() for _, path in ELSEWHERE)


class Folder:
    """Folder in which a person types the lines. `message_id` stands for the id that they have seen."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.message_id = ""
        self._capsys = capsys

    def run(self, *lines: str) -> None:
        for line in lines:
            if line.startswith("keys new"):
                shutil.rmtree(self.path / "my-pool", ignore_errors=True)
            typed = shlex.split(re.sub(r"\bID\b", self.message_id, line))
            words = [word for one in typed for word in self._expanded(one)]
            self._capsys.readouterr()
            with contextlib.chdir(self.path):
                status = command.run(words)
            said = self._capsys.readouterr()
            assert status == EXITS.get(line, 0), (line, words, status, said.out[-2_000:], said.err[-2_000:])

    def _expanded(self, word: str) -> Sequence[str]:
        """Return the files that a shell puts in the place of a pattern."""
        found = sorted(str(one.relative_to(self.path)) for one in self.path.glob(word)) if "*" in word else []
        return found or [word]


@pytest.fixture
def folder(capsys: pytest.CaptureFixture[str]) -> Iterator[Folder]:
    # The system allows no long names for sockets.
    with tempfile.TemporaryDirectory(prefix="stagepost-") as path:
        yield Folder(Path(path), capsys)


def test_lines_about_files_run_as_printed(folder: Folder) -> None:
    (folder.path / "note.txt").write_text("a note that is long enough for the body of a DMQ message " * 3)
    (folder.path / "pools.json").write_text(pools_file([]))
    (folder.path / "FILE").write_text("")
    (folder.path / "stagepost-data").mkdir(mode=0o700)
    capture = a_node_connection("dmq-node").data
    (folder.path / "capture.bin").write_bytes(capture)
    (folder.path / "capture.hex").write_text(capture.hex())
    cut = FILES.index("config show --context preview")
    folder.run(*FILES[:cut])
    with (folder.path / "stagepost.toml").open("a") as file:
        file.write("\n[contexts.preview]\nnode.network_magic = 2147483650\n")
    folder.run(*FILES[cut:])


def pools_file(ids: Sequence[bytes]) -> str:
    import json

    entries = [{"pool_id": one.hex(), "stake": 1} for one in ids]
    return json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": entries})


def test_lines_for_programs_and_operators_of_a_dmq_node_run_as_printed(folder: Folder) -> None:
    data, pools = folder.path / "stagepost-data", folder.path / "pools.json"
    issued = make_keys(folder.path / "my-pool", start_kes_period=0, issue_number=0)
    pools.write_text(pools_file([pool_id(issued.cold_verification_key)]))
    (folder.path / "note.txt").write_text("a note that is long enough for the body of a DMQ message " * 3)
    (folder.path / "body.bin").write_bytes(bytes(range(200)))
    node = NodeProcess(data, pools)
    other = NodeProcess(folder.path / "other", pools)
    with ending([other, node]):
        other.start()
        node.peers = [(other.port, "dmq-node")]
        node.start()
        folder.run("message make note.txt --keys my-pool --out note.cbor")
        an_outbox(folder.path / "stagepost-outbox", 1_000 * int(time.time()), waiting=2, dead=12)
        letters = read_outbox(folder.path / "stagepost-outbox").dead_letters
        for line in BESIDE_A_DMQ_NODE:
            # Line by line another message is sent again, and leaves the outbox.
            place = 12 if "@12" in line else 11
            (letter,) = (one for one in letters if one.record.sequence == place)
            folder.message_id = letter.record.delivery_id.hex()[:8]
            folder.run(line)


def test_lines_on_a_network_run_as_printed(folder: Folder) -> None:
    data = folder.path / "stagepost-data"
    with devnet_in_background(data, DevnetPlan(validators=4)) as running:
        for name in ("stagepost-devnet", "stagepost-demo", "devnet"):
            (folder.path / name).symlink_to(data)
        (folder.path / "network.json").symlink_to(data / "network.json")
        now_ms = running.network.full_node.now_ms
        with Client.connect(data=data) as client:
            sent = client.send(SumMessage(account_of(b"printed", 0), 30).data(now_ms))
            assert sent.message_id is not None
            client.wait_for(sent.message_id, "final", 120)
        folder.message_id = sent.message_id[:8]
        for number, line in enumerate(ON_A_NETWORK):
            message = SumMessage(account_of(b"printed", 1 + number % 15), 40 + number).data(
                running.network.full_node.now_ms
            )
            (folder.path / "message.bin").write_bytes(message)
            folder.run(line)
