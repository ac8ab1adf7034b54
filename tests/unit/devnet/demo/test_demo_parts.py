"""The parts of the demonstration that need no network: what it sends, whose folder it takes, and what it counts."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from stagepost.chain.contracts import ContractKind
from stagepost.chain.messages import read_message
from stagepost.devnet.demo.dmq import POOLS, make_pools
from stagepost.devnet.demo.findings import MARK, demo_folder
from stagepost.devnet.demo.messages import (
    FUNDS,
    MESSAGES_MAX,
    MESSAGES_MIN,
    DemoMessages,
    Fate,
    demo_messages,
)
from stagepost.errors import ConfigError, StorageError


def fates(messages: DemoMessages) -> Counter[Fate]:
    return Counter(one.fate for group in [*messages.groups, messages.cut_off] for one in group)


@pytest.mark.parametrize("count", [MESSAGES_MIN, 61, 200, MESSAGES_MAX])
def test_as_many_messages_as_asked_for_all_different_and_some_of_every_fate(count: int) -> None:
    messages = demo_messages(count, 7, 1_000)

    everything = [one for group in [*messages.groups, messages.cut_off] for one in group]
    assert messages.count == len(everything) == len({one.message_id for one in everything}) == count
    assert set(fates(messages)) == set(Fate)
    assert fates(messages)[Fate.GOOD] > count // 2
    for one in everything:
        assert read_message(one.data, takes_cells=False).external.message_id == one.message_id


def test_one_seed_gives_the_same_messages_and_another_gives_others() -> None:
    assert demo_messages(40, 7, 1_000) == demo_messages(40, 7, 1_000)
    same = {one.message_id for group in demo_messages(40, 7, 1_000).groups for one in group}
    others = {one.message_id for group in demo_messages(40, 8, 1_000).groups for one in group}
    assert not same & others


def test_twins_have_one_body_and_what_is_spent_twice_is_there_once() -> None:
    messages = demo_messages(200, 7, 1_000)
    pairs = [group for group in messages.groups if len(group) == 2]
    twins = [group for group in pairs if group[0].fate is Fate.TWIN]
    spent = [group for group in pairs if group[0].fate is Fate.SPENT_TWICE]

    assert len(twins) == 4
    for group in twins:
        first, second = (read_message(one.data, takes_cells=False).external for one in group)
        assert (first.uid, first.account) == (second.uid, second.account)
    accounts = {read_message(group[0].data, takes_cells=False).external.account for group in spent}
    assert dict(messages.balances) == dict.fromkeys(accounts, FUNDS)
    assert {account[-1] for account in accounts} == {ContractKind.BALANCE}


def test_pools_follow_from_the_seed(tmp_path: Path) -> None:
    made = [make_pools(_private(tmp_path / name), seed) for name, seed in (("a", 7), ("b", 7), ("c", 8))]

    assert made[0] == made[1]
    assert set(made[0]) == set(POOLS)
    assert len({*made[0].values(), *made[2].values()}) == 2 * len(POOLS)


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def test_an_empty_folder_is_taken_and_one_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    with demo_folder(data):
        (data / "topics").mkdir()
        (data / "topics" / "old").write_text("old")
        (data / "network.json").write_text("{}")

    with demo_folder(data):
        assert [path.name for path in data.iterdir()] == [MARK]


@pytest.mark.parametrize("names", [["notes.txt"], ["topics"], [MARK, "topics", "thesis.odt"]])
def test_what_no_demo_has_made_is_never_removed(tmp_path: Path, names: list[str]) -> None:
    data = _private(tmp_path / "mine")
    for name in names:
        (data / name).write_text("dear to me")

    with pytest.raises(ConfigError, match=f"holds {names[-1]}"), demo_folder(data):
        pass

    assert {path.name for path in data.iterdir()} == set(names)


def test_a_folder_in_which_a_demo_runs_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    with demo_folder(data):
        (data / "log").write_text("running")
        with pytest.raises(StorageError, match=f"held by another process, {os.getpid()}"), demo_folder(data):
            pass
        assert (data / "log").exists()
