"""`stagepost trace` over a growing topic: by a whole id or its beginning, drawn anew or line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from rigs.remp_world import FULL_NODE, MESSAGE, seed_of, session, session_name, sets_file
from stagepost.cli import main as command
from stagepost.cli.trace.command import follow_trace
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import Record
from stagepost.trace.reading import NotOneMessage, TraceTail, read_trace, require_prefix

START_MS = 1_700_000_000_000
BLOCK = BlockId(0, 0x3800_0000_0000_0000, 17, b"r" * 32, b"f" * 32)
MASTER = BlockId(-1, 1 << 63, 234, b"m" * 32, b"g" * 32)
OTHER = ExternalMessageId(MESSAGE[:4] + b"\xff" * 28)
PARTITIONS = 4


class Folder:
    """Of a full node, with a topic of several partitions."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.topic = create_topic(data, STATUSES_TOPIC, PARTITIONS)
        sets = sets_file(session(1, range(7)), timeout_ms=240_000)
        (data / SETS_FILE).write_text(json.dumps(sets))

    def say(self, who: int, status: MessageStatus, after_ms: int, of: ExternalMessageId = MESSAGE) -> None:
        receipt = Receipt(of, status, START_MS + after_ms, b"").sign(seed_of(who))
        headers = {"session": session_name(1).hex()}
        record = Record(of.hex().encode(), receipt.to_json().encode(), headers, START_MS + after_ms)
        writer = self.topic.writer()
        writer.append_soon([record], lambda outcome: None)
        writer.close_now()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr("time.time", lambda: START_MS / 1_000 + 5)
    return Folder(tmp_path)


def test_a_whole_id_and_its_beginning_find_the_same_trace(folder: Folder) -> None:
    folder.say(0, New(), 10)
    folder.say(0, New(), 10, of=OTHER)
    whole = read_trace(folder.data, MESSAGE.hex().upper(), START_MS)
    beginning = read_trace(folder.data, MESSAGE.hex()[:12], START_MS)
    assert beginning == whole
    assert len(whole.points) == 1


def test_none_and_several_are_told_apart(folder: Folder) -> None:
    with pytest.raises(NotOneMessage, match="no record") as none:
        read_trace(folder.data, MESSAGE.hex(), START_MS)
    assert none.value.message_ids == {}
    folder.say(0, New(), 10)
    folder.say(0, New(), 10, of=OTHER)
    folder.say(1, New(), 11, of=OTHER)
    with pytest.raises(NotOneMessage, match="2 messages begin with") as several:
        read_trace(folder.data, MESSAGE.hex()[:8], START_MS)
    assert several.value.message_ids == {MESSAGE.hex(): 1, OTHER.hex(): 2}
    for wrong in ("", "abcdefg", "g" * 64, "ab" * 33):
        with pytest.raises(NotOneMessage, match="not a message id"):
            require_prefix(wrong)


def test_a_tail_follows_what_the_topic_gains(folder: Folder) -> None:
    tail = TraceTail(folder.data, MESSAGE.hex())
    assert tail.trace(START_MS) is None
    for count in (1, 2, 3):
        folder.say(count, New(), count)
        trace = tail.trace(START_MS)
        assert trace is not None
        assert len(trace.points) == count


def steps(*actions: Callable[[], None]) -> Callable[[float], None]:
    """Instead of sleeping, the next thing happens."""
    left = list(actions)

    def sleep(seconds: float) -> None:
        left.pop(0)()

    return sleep


def story(folder: Folder) -> Callable[[float], None]:
    return steps(
        lambda: folder.say(FULL_NODE, SentToValidators(7, 7), 0),
        lambda: folder.say(0, New(), 40),
        lambda: folder.say(0, New(), 40),  # a copy changes nothing
        lambda: folder.say(0, Accepted(Level.COLLATOR, BLOCK), 200),
        lambda: folder.say(FULL_NODE, Accepted(Level.MASTERCHAIN, BLOCK, MASTER), 900),
    )


def test_without_a_terminal_each_change_is_a_line(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    told = follow_trace(
        folder.data, MESSAGE.hex(), only_trouble=False, as_json=False, color=None, sleep=story(folder)
    )
    assert told == 0
    said = capsys.readouterr()
    assert "yet" in said.err
    words = ["Sent", "Queued at 1 of 7", "Included (optimistic)", "Finalized"]
    lines = said.out.splitlines()
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))
    assert "waiting for V2, V3, V4 and 3 more, silent for" in lines[1]


def test_in_json_each_change_is_an_object(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    follow_trace(
        folder.data, MESSAGE.hex()[:8], only_trouble=False, as_json=True, color=None, sleep=story(folder)
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["verdict"] for row in rows] == ["sent", "queued", "included", "finalized"]
    assert len(rows[-1]["all_receipts"]) == 4


@pytest.mark.parametrize("color", [None, False])
def test_on_a_terminal_the_picture_is_drawn_in_place_of_the_one_before(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, color: bool | None
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    follow_trace(
        folder.data, MESSAGE.hex(), only_trouble=False, as_json=False, color=color, sleep=story(folder)
    )
    out = capsys.readouterr().out
    pictures = out.split("\x1b[J")
    assert len(pictures) >= 5
    for before, after in pairwise(pictures):
        height = int(before.rpartition("\x1b[")[2].removesuffix("F"))
        assert height == before.rpartition("\x1b[")[0].count("\n"), "all of the picture before is taken back"
        assert after
    assert "Finalized" in pictures[-1]
    assert pictures[-1].count("◆") == 2  # in the lane, and in the legend


def test_a_message_that_expires_ends_the_following_by_time_alone(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.say(FULL_NODE, SentToValidators(7, 7), 0)
    later = steps(lambda: monkeypatch.setattr("time.time", lambda: START_MS / 1_000 + 241))
    assert (
        follow_trace(folder.data, MESSAGE.hex(), only_trouble=False, as_json=False, color=None, sleep=later)
        == 0
    )
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["Sent", "Expired"]


@pytest.mark.parametrize(
    "more",
    [("--data", "x", "--as-of", "5"), ("--data", "x", "--svg", "a.svg"), ("--data", "x", "--dump", "-")],
)
def test_only_what_grows_can_be_followed(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["trace", MESSAGE.hex(), "--follow", *more]) == 2
    assert "--follow" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.run(["trace", MESSAGE.hex(), "--follow"]) == 3
    assert "stagepost-data" in capsys.readouterr().err
