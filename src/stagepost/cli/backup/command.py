"""`stagepost backup` copies the data folder of a node or an outbox; `stagepost restore` makes a data folder from the copy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import disable_core_dumps, json_option

if TYPE_CHECKING:
    from stagepost.ground.storage.backup import BackupManifest

_FOLDER = click.Path(path_type=Path)


@click.command()
@click.option(
    "--data", required=True, metavar="DIR", type=_FOLDER, help="Data folder of a node or an outbox."
)
@click.option("--out", required=True, metavar="DIR", type=_FOLDER, help="Folder to make; it must not exist.")
@click.option(
    "--with-key",
    "keys",
    metavar="FILE",
    type=_FOLDER,
    multiple=True,
    help="Key file to take along, into the folder `keys` of the backup. Without it no secret key is copied. May be repeated.",
)
@json_option
def backup(data: Path, out: Path, keys: tuple[Path, ...], as_json: bool) -> None:
    """Copy a data folder into a new folder, while its node runs or not.

    The copy holds the stores as they are at one moment each, the topics up to a mark, and a manifest with the hash of every
    file. It holds no secret key unless --with-key names one. The folder gets its name when the copy is whole and on the
    disk.

    \b
    Example:
      stagepost backup --data validator-1/data --out backups/validator-1
    """
    from stagepost.cli.backup.data_folders import back_up

    disable_core_dumps()
    manifest = back_up(data, out, _now_ms(), keys)
    _show(manifest, {"written": str(out)}, as_json)


@click.command()
@click.argument("folder", metavar="BACKUP", type=_FOLDER)
@click.option("--data", metavar="DIR", type=_FOLDER, help="Data folder to make; it must be missing or empty.")
@click.option("--check", "is_check", is_flag=True, help="Read the whole backup and restore nothing.")
@click.option(
    "--accept-replays",
    "accepts_replays",
    is_flag=True,
    help="Let a DMQ node take all messages at once, also those that it may have accepted after the backup was made.",
)
@json_option
@click.pass_context
def restore(
    context: click.Context,
    folder: Path,
    data: Path | None,
    is_check: bool,
    accepts_replays: bool,
    as_json: bool,
) -> None:
    """Make a data folder from a backup. A backup that is damaged or of another version is refused as a whole.

    A restore that was interrupted goes on when the same command is given again; no node starts before that. Never start
    the node whose backup this is beside the restored one. A restored validator is silent in sessions that began before
    the restore; a restored DMQ node refuses messages that it may have accepted before.

    \b
    Example:
      stagepost restore backups/validator-1 --data validator-1/data
    """
    from stagepost.cli.backup import data_folders

    disable_core_dumps()
    if is_check is (data is not None):
        raise click.UsageError("give either --data DIR or --check", context)
    if data is None:
        _show(data_folders.checked_backup(folder), {"whole": str(folder)}, as_json)
        return
    manifest, _ = data_folders.restore(folder, data, _now_ms(), accepts_replays=accepts_replays)
    _show(manifest, {"restored": str(data)}, as_json)


def _show(manifest: BackupManifest, first: dict[str, str], as_json: bool) -> None:
    facts = first | {
        "kind": manifest.kind,
        "made_at_ms": manifest.made_at_ms,
        "release": manifest.release,
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "records": sum(mark.end_offset - mark.start_offset for mark in manifest.topics),
        "keys": list(manifest.keys),
        "left_out": list(manifest.left_out),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    from stagepost.ground.files.durations import format_date

    (verb, path), *_ = first.items()
    made = format_date(manifest.made_at_ms / 1_000)
    click.echo(
        f"{verb} {path}: {manifest.kind}, {facts['files']} files, {facts['bytes']} bytes, "
        f"{facts['records']} records of topics, as of {made}"
    )
    click.echo(f"secret keys: {', '.join(manifest.keys) or 'none; keep them elsewhere'}")
    for path in manifest.left_out:
        click.echo(f"left out: {path}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
