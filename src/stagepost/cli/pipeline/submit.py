"""`stagepost pipeline submit` and `pack`: the same jobs, done by the workers of a Spark cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stagepost.cli.options.shared import json_option, path_option
from stagepost.ground.files.durations import parse_duration

JOBS = ("backfill", "run", "compact")


@click.command()
@path_option("--out", required=True, help="Zip file to write.")
@json_option
def pack(out: Path, as_json: bool) -> None:
    """Pack this package, with what workers need, into the archive for `submit`.

    \b
    Example:
      stagepost pipeline pack --out stagepost.zip
    """
    from stagepost.pipeline.cluster.pack import pack as make

    made = make(out)
    label = made.label
    if as_json:
        found = {"file": str(out), "files": made.files, "bytes": made.size_bytes, "python": label.python}
        click.echo(json.dumps({**found, "machine": label.machine, "packages": label.packages}))
        return
    click.echo(f"{out}: {made.files} files, {made.size_bytes / 1e6:.0f} MB")
    packages = ", ".join(f"{name} {version}" for name, version in label.packages.items())
    click.echo(f"  stagepost {label.stagepost}, {packages}; for Python {label.python} on {label.machine}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--master", required=True, metavar="spark://HOST:PORT", help="Address of the cluster's master.")
@path_option("--archive", required=True, help="Archive that `stagepost pipeline pack` made.")
@click.option(
    "--worker-python",
    default=f"python{sys.version_info.major}.{sys.version_info.minor}",
    show_default=True,
    help="Command that starts Python on the workers; same version as the driver's.",
)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Setting of Spark; may be repeated.")
@click.option(
    "--wait",
    default="60s",
    show_default=True,
    help="How long to wait until a worker has finished a first task.",
)
@click.argument("job", type=click.Choice(JOBS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE JOB]…")
@click.pass_context
def submit(
    context: click.Context,
    master: str,
    archive: Path,
    worker_python: str,
    conf: Sequence[str],
    wait: str,
    job: str,
    arguments: Sequence[str],
) -> None:
    """Run `backfill`, `run` or `compact` on a Spark cluster, and send the package to its workers.

    Workers need Java and a Python of this version, and no other package. Driver and workers must see the folders of the
    job under the same path.

    \b
    Example:
      stagepost pipeline pack --out stagepost.zip
      stagepost pipeline submit --master spark://10.0.0.1:7077 --archive stagepost.zip \\
        run --once --data /shared/node --validator-sets sets.json --tables /shared/tables
    """
    from stagepost.pipeline.cluster.cluster import Cluster, parse_conf, parse_master

    parse_master(master)
    try:
        wait_s = parse_duration(wait)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--wait") from error
    cluster = Cluster(master, archive, worker_python, parse_conf(conf), wait_s)
    assert context.parent is not None
    group = context.parent.command
    assert isinstance(group, click.Group)
    command = group.get_command(context.parent, job)
    assert command is not None
    # Its options are read before anything starts.
    inner = command.make_context(job, [*arguments, "--master", master], parent=context)

    from stagepost.pipeline.cluster.cluster import on_cluster, require_ready

    require_ready(cluster)
    _refuse_another_checkpoint(job, inner.params)
    from stagepost.pipeline.cluster.probe import Folders

    with on_cluster(cluster, Folders(*_folders(inner.params))), inner:
        command.invoke(inner)


def _folders(parameters: dict[str, Any]) -> tuple[tuple[Path, ...], Path | None]:
    """Return the folders that workers read, and those that they write. The validator sets travel with the steps."""
    read = [
        *(parameters.get("inputs") or ()),
        *filter(None, (parameters.get(name) for name in ("data", "retained"))),
    ]
    out = parameters.get("out") or parameters.get("folder")
    return tuple(Path(path) for path in read), out.folder if out is not None and out.is_local else None


def _refuse_another_checkpoint(job: str, parameters: dict[str, Any]) -> None:
    """The stream looks at it, too; here it is said before a cluster is asked for anything."""
    if job != "run" or (out := parameters.get("out")) is None or not out.is_local:
        return
    from stagepost.pipeline.sources.checkpoint_fit import (
        STREAM,
        require_fitting_checkpoint,
        restore_checkpoint,
    )
    from stagepost.pipeline.tables.manifest import Manifest, read_manifest
    from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER

    checkpoint, manifest = out.folder / CHECKPOINT_FOLDER, read_manifest(out) or Manifest()
    restore_checkpoint(checkpoint, manifest, STREAM)
    require_fitting_checkpoint(checkpoint, manifest, STREAM)
