"""JSON that others wrote may be nested as deeply as they like: every decoder that meets it refuses it by the same rule."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagepost
from rigs.receipt_lines import line_of, signed
from stagepost.delivery.effects import DeliveryEvent
from stagepost.dmq.cardano.stake_record import decode_record
from stagepost.dmq.conform.kit import SEED_FILE, load_cast
from stagepost.errors import ConfigFaults, DecodeError, StagepostError, StorageError, TransportError
from stagepost.full_node.network import load_network
from stagepost.ground.files.data_folder import RESTORED_FILE, restored_note
from stagepost.ground.files.running_nodes import NodeFacts, _found
from stagepost.ground.telemetry.status_reading import decoded
from stagepost.ground.wire.foreign_json import DEPTH_MAX, decode_foreign, is_too_deep
from stagepost.pipeline.sources.checkpoint_fit import parsed_offsets
from stagepost.pipeline.sources.dumps import read_line
from stagepost.pipeline.sources.kafka import read_note
from stagepost.pipeline.steps.other_checks import OtherChecks
from stagepost.pipeline.steps.record_checks import RecordChecks
from stagepost.pipeline.tables.own_files import KAFKA_NOTE_FILE
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.status_records import read_dump_line, read_record
from stagepost.remp.validator_sets import parse_validator_sets
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, create_topic, open_topic
from stagepost.topics.log.positions import GROUPS_FOLDER, read_positions
from stagepost.topics.topic import DELIVERY_EVENTS
from stagepost.web.access.security import TOKEN_FILE, read_token_hash
from tests.worlds.pipeline.pipeline_others import EVENT
from tests.worlds.pipeline.pipeline_world import sets_bytes

DEEP = 100_000
FRAMES = 400


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def with_member(document: bytes, levels: int) -> bytes:
    """Add a member that nobody asks for; the object itself is one level more."""
    return document.rstrip()[:-1] + b', "unknown": ' + nested(levels - 1) + b"}"


def a_receipt() -> bytes:
    return str(line_of(signed(1, 0, New(), 0))["value"]).encode()


def called_deeply(action: Callable[[], Any], frames: int = FRAMES) -> Any:
    """Call `action` with so many frames on the stack already."""
    return called_deeply(action, frames - 1) if frames else action()


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 990, DEEP])
@pytest.mark.parametrize("frames", [0, FRAMES])
def test_a_deep_line_is_a_row_that_is_quarantined(levels: int, frames: int) -> None:
    line = with_member(json.dumps(line_of(signed(1, 0, New(), 0))).encode(), levels)

    record = called_deeply(lambda: read_line(line, 7), frames)
    checked = RecordChecks(parse_validator_sets(sets_bytes(), "sets")).check(
        record.key, record.value, record.arrived_ms, is_fault=record.is_fault
    )

    assert (record.value, record.offset, record.is_fault) == (line, 7, True)
    assert checked.reason == "RECEIPT_FORMAT"


@pytest.mark.parametrize("key", [b'{"key": %s, "value": "{}"}', b'{"key": "a", "headers": %s}'])
def test_a_deep_member_that_is_asked_for_makes_the_line_a_fault(key: bytes) -> None:
    assert read_line(key % nested(DEEP), 0).is_fault


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 900, 20_000])
@pytest.mark.parametrize("frames", [0, FRAMES])
def test_a_deep_receipt_is_a_format_fault_wherever_it_is_read(levels: int, frames: int) -> None:
    value = with_member(a_receipt(), levels)

    with pytest.raises(DecodeError, match="RECEIPT_FORMAT: nested deeper than 256 levels"):
        called_deeply(lambda: Receipt.from_json(value), frames)
    of_dump = called_deeply(lambda: read_record(read_dump_line(value)), frames)
    assert isinstance(of_dump, Quarantined)
    assert of_dump.reason == "RECEIPT_FORMAT"


def test_what_is_within_the_limit_is_read_from_any_stack() -> None:
    line, receipt = with_member(b'{"key": "a", "value": "b"}', DEPTH_MAX), with_member(a_receipt(), DEPTH_MAX)

    assert called_deeply(lambda: read_line(line, 0)).value == b"b"
    assert called_deeply(lambda: Receipt.from_json(receipt)) == Receipt.from_json(a_receipt())
    assert (
        called_deeply(lambda: read_line(b'{"key": %s}' % nested(DEPTH_MAX - 1), 0)).key
        == nested(DEPTH_MAX - 1).decode()
    )


def test_a_deep_event_of_another_topic_is_quarantined() -> None:
    event = with_member(json.dumps(EVENT).encode(), DEEP)

    assert OtherChecks().check(DELIVERY_EVENTS, None, event).reason == "RECEIPT_FORMAT"
    with pytest.raises(msgspec.DecodeError, match="nested deeper than 256 levels"):
        decode_foreign(event, DeliveryEvent)


def test_deep_answers_and_files_of_a_node_are_refused_in_one_sentence(tmp_path: Path) -> None:
    deep = with_member(b'{"a": 1}', DEEP)
    for name in ("network.json", "node.json"):
        (tmp_path / name).write_bytes(deep)
    refusals: list[tuple[type[StagepostError], Callable[[], Any]]] = [
        (TransportError, lambda: decoded(deep, NodeFacts)),
        (ConfigFaults, lambda: load_network(tmp_path / "network.json")),
        (StorageError, lambda: _found(tmp_path, "node.json", NodeFacts, "")),
    ]

    for kind, action in refusals:
        with pytest.raises(kind):
            action()


def test_deep_notes_in_a_data_folder_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Somebody else may have put them there: a restored folder is a folder from elsewhere."""
    topic = create_topic(tmp_path, "notes")
    deep = with_member(b'{"a": 1}', DEEP)
    places = (RESTORED_FILE, TOKEN_FILE, KAFKA_NOTE_FILE, f"{TOPICS_FOLDER}/notes/{TOPIC_FILE}", SEED_FILE)
    for name in places:
        (tmp_path / name).write_bytes(deep)
    (topic.folder / GROUPS_FOLDER).mkdir()
    (topic.folder / GROUPS_FOLDER / "group.json").write_bytes(deep)
    offsets = f"v1\n{{}}\n{deep.decode()}"
    refusals: list[Callable[[], Any]] = [
        lambda: restored_note(tmp_path),
        lambda: read_token_hash(tmp_path),
        lambda: read_note(TableStore.at(tmp_path)),
        lambda: open_topic(tmp_path, "notes"),
        lambda: read_positions(topic.folder, "group"),
        lambda: load_cast(tmp_path),
        lambda: decode_record(deep + b"\n{}"),
        lambda: parsed_offsets(offsets, "offsets"),
    ]

    for action in refusals:
        with pytest.raises(StagepostError):
            action()


CALLS = {("json", "loads"), ("json", "load"), ("json", "decode"), ("json", "Decoder")}
OUR_OWN = {
    "ground/wire/foreign_json.py": "checks the depth itself",
    "cli/listen/receipts.py": "a receipt that was read before",
    "trace/reading.py": "a receipt that this process writes",
    "web/queues.py": "lines of a command that this process ran",
    "devnet/faults.py": "complaints that the demonstration wrote",
    "pipeline/driver.py": "batches that this process reads from its own table",
    "pipeline/tables/tables.py": "files that this process reads from its own table",
    "remp/receipts/receipt_fields.py": "called behind the check of the depth, and knows RecursionError",
    "trace/session_records.py": "members of a record whose depth was checked as a whole",
    "topics/batch.py": "texts by name: anything deeper is refused at its first bracket",
    "topics/remote/client.py": "texts by name: anything deeper is refused at its first bracket",
    "pipeline/sources/dumps.py": "behind the check of the depth",
}


def test_every_decoder_of_json_bounds_the_depth() -> None:
    """A new decoder uses `decode_foreign`, or knows RecursionError, or stands above with the reason why it needs neither."""
    source = Path(stagepost.__file__).parent
    found = []
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and _called(node) in CALLS):
                continue
            within: ast.AST = node
            while within in parents and not isinstance(within, ast.FunctionDef | ast.AsyncFunctionDef):
                within = parents[within]
            names = {one.id for one in ast.walk(within) if isinstance(one, ast.Name)}
            name = str(path.relative_to(source))
            if not names & {"RecursionError", "is_too_deep"} and name not in OUR_OWN:
                found.append(f"{name}:{node.lineno}")

    assert not found


def _called(node: ast.Attribute) -> tuple[str, str]:
    owner = node.value
    return (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")), node.attr


anything = st.recursive(
    st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(value=anything, levels=st.integers(1, 2 * DEPTH_MAX))
def test_brackets_count_by_their_depth_and_not_in_texts(value: Any, levels: int) -> None:
    text = json.dumps([value, '"\\[{' * DEPTH_MAX, [[]] * DEPTH_MAX], ensure_ascii=False).encode()
    whole = b"[" * levels + text + b"]" * levels

    def depth(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert is_too_deep(whole) == (levels + depth(json.loads(text)) > DEPTH_MAX)


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * 500_000, b'"\\' * 500_000, b"[" * 300 + b'"\\', b'"' * 999_999]
)
def test_a_text_that_is_no_json_is_looked_at_once(text: bytes) -> None:
    """A second look for each quotation mark would take hours."""
    assert is_too_deep(text + b"{" * DEPTH_MAX) in (True, False)
