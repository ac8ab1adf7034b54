"""A network that operators found and change with public commands, each with its own files, while messages become final."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from tests.worlds.network.operators import FULL_NODE, ChangeStory, operated
from tests.worlds.network.traffic import MessageStream

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("devnet")]


MESSAGES_PER_S = 5.0
"""A quarter of the rate of the whole story, which `make soak` plays with kills, a replaced key and resharding."""


def test_a_network_is_founded_grows_and_shrinks_while_ends_are_proved(tmp_path: Path, run_seed: int) -> None:
    print(f"seed {run_seed}")
    with operated(tmp_path) as network:
        story = ChangeStory(network, Random(run_seed))
        story.found()
        stream = MessageStream(network.data(FULL_NODE), tmp_path / "network.json", b"grows", MESSAGES_PER_S)
        stream.start()
        try:
            story.add("validator-5")
            story.remove("validator-1")
            network.execute(300)
            assert stream.ends() == []
        finally:
            stream.stop()
        assert stream.sent
        assert network.strange_lines() == []
        assert network.in_set(FULL_NODE) == {"validator-2", "validator-3", "validator-4", "validator-5"}


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
