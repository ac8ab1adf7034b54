"""Which nodes a client is to be connected with: as told, or as the notes in data folders say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.files.running_nodes import (
    DATA_DIR,
    FULL_NODE_FILE,
    FullNodeFacts,
    find_full_node,
    find_node,
)


class Places(msgspec.Struct, frozen=True):
    """A DMQ node's socket and network, a full node, or both. `data` is the folder of the DMQ node, where it is known."""

    socket_path: Path | None
    network_magic: int
    full_node: FullNodeFacts | None
    data: Path | None


def find_places(
    socket_path: str | Path | None,
    network_magic: int | None,
    data: str | Path | None,
    full_node: str | Path | None,
) -> Places:
    """`StorageError` if no node runs where one was looked for."""
    folder = None if data is None else Path(data)
    full_node_folder = None if full_node is None else Path(full_node)
    if socket_path is not None:
        if network_magic is None:
            network_magic = find_node(folder or Path(DATA_DIR)).network_magic
        return Places(Path(socket_path), network_magic, _facts(full_node_folder), folder)
    if folder is None and full_node_folder is None:
        folder = Path(DATA_DIR)
    if folder is None:
        return Places(None, 0, _facts(full_node_folder), None)
    if full_node_folder is None and (folder / FULL_NODE_FILE).exists():
        full_node_folder = folder
    if (folder / NODE_FILE).exists():
        facts = find_node(folder)
        magic = facts.network_magic if network_magic is None else network_magic
        return Places(Path(facts.local_socket), magic, _facts(full_node_folder), folder)
    if full_node_folder is None:
        raise StorageError(
            f"no node runs in {folder}: there is neither {NODE_FILE} nor {FULL_NODE_FILE}",
            advice="start one with `stagepost node` or `stagepost devnet`, or give its folder as data=",
        )
    return Places(None, 0, _facts(full_node_folder), folder)


def _facts(folder: Path | None) -> FullNodeFacts | None:
    return None if folder is None else find_full_node(folder)
