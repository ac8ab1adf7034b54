"""Safe commits on object storage: what would let two writers commit the same version is refused before the first write.

A Delta commit is safe where the storage refuses to create an object that exists already. Options that turn this off are
refused by name; whether a server keeps to it is found out by doing what two writers would do.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.delta import DAY, LakeTable, of_commit, refused_as_storage_error
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    from deltalake import DeltaTable

PROBE = "_probe-"
"""Beginning of the name of a table that is made for the probe and removed after it."""

PROBE_NAME_BYTES = 8
PROBE_WRITERS = 8
PROBE_ROUNDS = 4
"""Writers that commit at once, and how often: a server that ignores conditions took two or more in 11 of 12 rounds tried."""

_ON = frozenset({"1", "true", "yes", "on"})
_UNSAFE_RENAME = ("aws_s3_allow_unsafe_rename", "s3_allow_unsafe_rename", "allow_unsafe_rename")
_CONDITIONAL_PUT = ("aws_conditional_put", "conditional_put")


def require_safe_options(store: TableStore, environment: Mapping[str, str]) -> None:
    """Refuse options, given or in the environment, by which commits on object storage would overwrite each other."""
    if store.is_local:
        return
    given = {name.lower(): value for name, value in (*environment.items(), *store.options.items())}
    for name in _UNSAFE_RENAME:
        if given.get(name, "").strip().lower() in _ON:
            raise ConfigError(
                f"{name.upper()} is set for {store.address}: two writers could then commit the same version",
                advice=f"take {name.upper()} out of the options and the environment",
                found=given[name],
            )
    for name in _CONDITIONAL_PUT:
        if given.get(name, "etag").strip().lower() == "disabled":
            raise ConfigError(
                f"{name.upper()} is disabled for {store.address}: two writers could then commit the same version",
                advice=f"take {name.upper()} out of the options and the environment, or set it to etag",
                found=given[name],
            )


def require_safe_commits(store: TableStore) -> None:
    """Refuse object storage that takes two commits of one version, found out on a small table that is removed again.

    The package looks at the log before it commits, so only commits at the same moment come to the storage's own refusal:
    several writers commit at once, a few times over. Two that succeed prove that the storage is unsafe.
    """
    if store.is_local:
        return
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileType

    name = f"{PROBE}{secrets.token_hex(PROBE_NAME_BYTES)}"
    schema = pa.schema([pa.field("probe", pa.int64())])
    with refused_as_storage_error(store.of(name)):
        LakeTable(store, name, schema).make()
    try:
        with ThreadPoolExecutor(PROBE_WRITERS) as pool:
            for number in range(PROBE_ROUNDS):
                with refused_as_storage_error(store.of(name)):
                    tables = [LakeTable(store, name, schema).require() for _ in range(PROBE_WRITERS)]
                if (
                    sum(
                        pool.map(
                            lambda table, number=number: _is_taken(store.of(name), table, number), tables
                        )
                    )
                    > 1
                ):
                    raise ConfigError(
                        f"the server of {store.address} took two commits of one version: it ignores the condition "
                        "`If-None-Match: *` of a put, so two writers would lose each other's rows",
                        advice="use a storage with conditional writes, or one path that all workers see",
                    )
    finally:
        with refused_as_storage_error(store.of(name)):
            files = store.file_system(name)
            for info in files.get_file_info(FileSelector("", recursive=True)):
                if info.type == FileType.File:
                    files.delete_file(info.path)


def _is_taken(place: str, table: DeltaTable, number: int) -> bool:
    """Return whether the storage takes a commit. `LakeTable` would look who has written the version, and refuse to all but one."""
    try:
        with refused_as_storage_error(place):
            table.create_write_transaction(
                [], "append", table.schema(), partition_by=[DAY], **of_commit({PROBE: number}, None, PROBE)
            )
    except StorageError:
        return False
    return True
