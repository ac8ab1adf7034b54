"""A full node or validator that runs on this machine: where its status is served, and what it tells of its messages."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.files.data_folder import FILE_MODE
from stagepost.ground.files.running_nodes import decoded, fetch
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.wire.foreign_json import decode_foreign

FULL_NODE, VALIDATOR = "full node", "validator"
STATUS_FILES = {FULL_NODE: "full-node-status.json", VALIDATOR: "validator-status.json"}
NOTE_BYTES_MAX = 65_536


class StatusFacts(msgspec.Struct, frozen=True):
    """The note in its data folder. `kind`: FULL_NODE or VALIDATOR."""

    pid: int
    kind: str
    metrics_port: int | None

    def write(self, data: Path) -> None:
        path = data / STATUS_FILES[self.kind]
        try:
            replace_file(path, json.dumps(msgspec.to_builtins(self)).encode() + b"\n", FILE_MODE)
        except OSError as error:
            raise StorageError(
                f"could not write {path}: {error.strerror}", advice="check the space left on the disk"
            ) from error


class QueuedMessage(msgspec.Struct, frozen=True):
    """One message without an end. `status`: the last kind of receipt at a validator, the last stage at a full node."""

    index: int
    message_id: str
    shard: str
    status: str
    received_ms: int


class QueuedMessages(msgspec.Struct, frozen=True):
    entries: tuple[QueuedMessage, ...]
    next: int | None = None


def find_remp_node(data: Path) -> StatusFacts | None:
    """None if neither a full node nor a validator has left its note there."""
    for name in STATUS_FILES.values():
        path = data / name
        try:
            with path.open("rb") as file:
                return decode_foreign(file.read(NOTE_BYTES_MAX), StatusFacts)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(
                f"could not read {path}: {(error.strerror or 'unknown reason').lower()}",
                advice="run this command as the user that runs the node",
            ) from error
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} is not understood: {error}", advice="restart the node") from error
    return None


def queued_messages(facts: StatusFacts, after: int, limit: int) -> QueuedMessages:
    """A page: entries with an index greater than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), QueuedMessages)
