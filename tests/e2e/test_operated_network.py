"""A network that operators found and change with public commands, each with its own files, while messages become final."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from stagepost.ground.files.data_folder import restored_note
from tests.worlds.network.operators import FULL_NODE, ChangeStory, OperatedNetwork, operated
from tests.worlds.network.traffic import MessageStream

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("devnet")]


FOUNDERS = ("validator-1", "validator-2", "validator-3", "validator-4")
OTHERS = FOUNDERS[1:]
PAGES = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
MACHINE = re.compile(r"10\.0\.0\.\d:4001")
MESSAGES_PER_S = 5.0
"""A quarter of the rate of the story that `make soak` plays with kills, a replaced key and resharding."""


class WalkedPage:
    """Command lines of a page, in order. Each is run once as it stands, on this machine's addresses and with quicker
    sessions; `also` runs it for other members.
    """

    def __init__(self, network: OperatedNetwork, page: str) -> None:
        self.network = network
        blocks = "".join(BLOCK.findall((PAGES / page).read_text())).replace("\\\n", " ")
        lines = (line.strip() for line in blocks.splitlines())
        self.left = [line for line in lines if line.startswith("stagepost ")]

    def run(self, begins: str, code: int = 0) -> str:
        """Run the first line left that begins so; return the line."""
        line = next(one for one in self.left if one.startswith(f"stagepost {begins}"))
        self.left.remove(line)
        self.also(line, code)
        return line

    def also(self, line: str, code: int = 0, **names: str) -> None:
        network = self.network
        for old, new in names.items():
            line = line.replace(old.replace("_", "-"), new)
        line = MACHINE.sub(lambda _: network.free_address(), line).replace("HASH", network.genesis)
        line = line.replace("--in 1h", "--in 1s")
        words = shlex.split(line)[1:]
        words = [found for one in words for found in self._spread(one)]
        if words[:2] == ["network", "init"]:
            words += ["--session-lifetime", "10s"]
        if words[0] == "node":
            name = Path(words[words.index("--key") + 1]).parent.name
            network.spawn(name, *words)
            network.at_work.add(name)
        else:
            network.command(*words, code=code)

    def _spread(self, word: str) -> list[str]:
        found = sorted(str(one.relative_to(self.network.folder)) for one in self.network.folder.glob(word))
        return found if "*" in word else [word]


def test_every_command_of_the_page_founds_changes_and_mends_a_network(tmp_path: Path, run_seed: int) -> None:
    """As four operators with docs/network.md in hand: found, add a validator, lose a disk twice, let one leave."""
    print(f"seed {run_seed}")
    with operated(tmp_path, has_one_file=True) as network:
        page = WalkedPage(network, "network.md")
        found(page)
        stream = MessageStream(network.data(FULL_NODE), tmp_path / "network.json", b"page", MESSAGES_PER_S)
        stream.start()
        try:
            add_validator(page)
            add_full_node(page)
            lose_disk(page)
            story = ChangeStory(network, Random(run_seed))
            story.present = {f"validator-{number}" for number in range(1, 6)}
            story.remove("validator-1")
            network.execute(300)
            assert stream.ends() == []
        finally:
            stream.stop()
        assert page.left == []
        assert len(stream.sent) > 50
        assert network.strange_lines() == []
        back_up_and_renew(network)


def found(page: WalkedPage) -> None:
    network = page.network
    for _ in range(5):
        page.run("network join")
    page.run("network init")
    network.genesis = network.shown_genesis()
    line = page.run("network join")
    for name in OTHERS:
        page.also(line, validator_1=name)
    line = page.run("node validator")
    for name in OTHERS:
        page.also(line, validator_1=name)
    page.run("node full")
    network.members = [*FOUNDERS, FULL_NODE]
    for name in network.members:
        network.until(f"{name} is ready", lambda name=name: network.is_ready(name))  # type: ignore[misc]
    network.execute(100)


def add_validator(page: WalkedPage) -> None:
    network = page.network
    network.join("validator-5")
    page.run("network set propose")
    refused = network.approve(network.folder / "proposal.json", "validator-2", code=2)
    assert "validator-5 is not in the network file" in refused.stderr
    page.run("network set members")
    network.start("validator-5")
    approve = page.run("network set approve")
    page.run("network set show", code=1)
    page.also("stagepost network set withdraw proposal.json --data validator-1/data")
    page.also(approve)
    page.also(approve, validator_1="validator-2", approval_1="approval-2")
    network.execute(200)
    assert network.in_set(FULL_NODE) == {*FOUNDERS}, "two approvals of four changed the set"
    page.also(approve, validator_1="validator-3", approval_1="approval-3")
    network.until("five validators", lambda: network.in_set(FULL_NODE) == {*FOUNDERS, "validator-5"})
    network.until("the fifth is ready", lambda: network.is_ready("validator-5"))


def add_full_node(page: WalkedPage) -> None:
    """The full node needs no vote, follows the chain, and its messages are taken by validators that never restarted."""
    network = page.network
    page.run("network join")
    page.run("network set members")
    network.start("full-node-2")
    network.until("the second full node is ready", lambda: network.is_ready("full-node-2"))
    data = network.data("full-node-2")
    network.command("submit", "--to", "bob", "--number", "40", "--wait", "final", "--data", data)


def lose_disk(page: WalkedPage) -> None:
    """Come back from a backup, then from nothing; each time the network needs the votes of the one that came back."""
    network = page.network
    name = "validator-2"
    page.run("backup")
    network.kill(name)
    shutil.rmtree(network.data(name))
    page.run("restore")
    line = page.run("node validator")
    network.until("the restored validator speaks", lambda: network.is_ready(name))
    network.kill(name)
    shutil.rmtree(network.data(name))
    page.also(line)
    network.until("the validator that lost everything speaks", lambda: network.is_ready(name))
    network.kill("validator-3")
    network.execute(250)
    network.start("validator-3")
    network.until("the third is back", lambda: network.is_ready("validator-3"))


def back_up_and_renew(network: OperatedNetwork) -> None:
    network.command("keys", "new", "my-pool", "--start-kes-period", "120")
    page = WalkedPage(network, "operations.md")
    while page.left:
        page.run("")
    assert restored_note(network.folder / "validator-1" / "restored") is not None


def test_nothing_starts_with_files_that_are_wrong(tmp_path: Path) -> None:
    with operated(tmp_path) as network:
        network.found("validator-1", "validator-2", "validator-3", "validator-4")
        file = network.network_file("validator-1")
        good = json.loads(file.read_text())

        # The hash of the genesis is what operators compare: a changed byte is another network.
        other = bytearray.fromhex(good["genesis"])
        other[12] ^= 1
        file.write_text(json.dumps({**good, "genesis": other.hex()}))
        refused = network.command(
            *("network", "join", "validator-1", "--network", file, "--genesis", network.genesis), code=2
        )
        assert "genesis" in refused.stderr
        start = (
            *("node", "validator", "--key", tmp_path / "validator-1" / "member.skey", "--network", file),
            *("--data", network.data("validator-1"), "--genesis", network.genesis),
        )
        refused = network.command(*start, code=2)
        assert f"has the hash {sha256(other).hexdigest()}, not {network.genesis}" in refused.stderr
        assert not network.data("validator-1").exists()

        # A key that is in twice.
        twice = [*good["members"], {**good["members"][0], "name": "again"}]
        file.write_text(json.dumps({**good, "members": twice}))
        refused = network.command(*start, code=2)
        assert f"{good['members'][0]['public_key']} is that of validator-1 and of again" in refused.stderr
        assert not network.data("validator-1").exists()

        # A card that was changed on its way.
        card = tmp_path / "validator-2" / "member.json"
        changed = {**json.loads(card.read_text()), "port": 1}
        card.write_text(json.dumps(changed))
        refused = network.command(
            "network",
            "init",
            card,
            tmp_path / FULL_NODE / "member.json",
            "--name",
            "x",
            "--out",
            "x.json",
            code=2,
        )
        assert "the card was changed" in refused.stderr
        assert not (tmp_path / "x.json").exists()
        refused = network.command(
            *("network", "join", "validator-3", "--name", "validator-3", "--address", "127.0.0.1:9"), code=2
        )
        assert "a member's key is made once" in refused.stderr
