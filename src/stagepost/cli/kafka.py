"""`stagepost kafka`: a broker on this machine, to try things out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import json_option, path_option

data_option = path_option(
    "--data", default="stagepost-kafka", show_default=True, metavar="DIR", help="Folder of the broker."
)
jars_option = path_option(
    "--jars",
    "jars_folder",
    metavar="DIR",
    help="Folder of the jars; missing jars are fetched into it. [the user's cache folder]",
)


@click.group()
def kafka() -> None:
    """Run a Kafka broker on this machine, to try things out. Maven fetches it; a broker of your own does as well.

    \b
    Example:
      stagepost kafka start --data stagepost-kafka
      stagepost devnet --kafka 127.0.0.1:9092 --messages 200
      stagepost kafka stop --data stagepost-kafka
    """


@kafka.command()
@data_option
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port on 127.0.0.1; 0 takes a free port.",
)
@jars_option
@json_option
def start(data: Path, port: int, jars_folder: Path | None, as_json: bool) -> None:
    """Start the broker and wait until it answers. The broker runs until `stagepost kafka stop`.

    \b
    Example:
      stagepost kafka start --data stagepost-kafka --port 9092
    """
    from stagepost.devnet.demo.kafka_broker import BrokerPlan, describe, start_broker
    from stagepost.pipeline.spark import cache_folder, find_java_home
    from stagepost.topics.kafka.jars import Artifacts, default_folder, fetch_jars

    java = find_java_home(os.environ, cache_folder()) / "bin" / "java"
    jars = fetch_jars(Artifacts.BROKER, jars_folder or default_folder(os.environ), os.environ)
    broker = start_broker(BrokerPlan(data, port), java, jars)
    _show(
        describe(broker, data), f"broker at {broker.address}, process {broker.pid}, data in {data}", as_json
    )


@kafka.command()
@data_option
@json_option
@click.pass_context
def stop(context: click.Context, data: Path, as_json: bool) -> None:
    """Stop the broker of this folder; its topics stay. Exit code 1 if no broker runs.

    \b
    Example:
      stagepost kafka stop --data stagepost-kafka
    """
    from stagepost.devnet.demo.kafka_broker import stop_broker

    stopped = stop_broker(data)
    found = {"data": str(data), "stopped": None if stopped is None else stopped.pid}
    _show(
        found, f"no broker runs in {data}" if stopped is None else f"stopped process {stopped.pid}", as_json
    )
    if stopped is None:
        context.exit(NOT_THAT_OUTCOME)


@kafka.command()
@data_option
@json_option
@click.pass_context
def status(context: click.Context, data: Path, as_json: bool) -> None:
    """Show whether the broker of this folder runs, and its address. Exit code 1 if it does not run.

    \b
    Example:
      stagepost kafka status --data stagepost-kafka
    """
    from stagepost.devnet.demo.kafka_broker import describe, read_note

    found = describe(read_note(data), data)
    words = f"no broker runs in {data}"
    if found["running"]:
        answers = "answers" if found["answers"] else "does not answer"
        words = f"broker at {found['bootstrap']}, process {found['pid']}, {answers}"
    _show(found, words, as_json)
    if not found["running"]:
        context.exit(NOT_THAT_OUTCOME)


@kafka.command()
@jars_option
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of the Maven project, such as another version; may be repeated.",
)
@json_option
def jars(jars_folder: Path | None, properties: Sequence[str], as_json: bool) -> None:
    """Fetch the jars of the broker and of Spark's connector with Maven, unless they are there.

    \b
    Example:
      stagepost kafka jars
    """
    from stagepost.topics.kafka.jars import OF_KAFKA, default_folder, fetch_jars

    folder = jars_folder or default_folder(os.environ)
    for artifacts in OF_KAFKA:
        fetched = fetch_jars(artifacts, folder, os.environ, properties)
        _show(
            {"artifacts": artifacts.value, "folder": str(folder / artifacts), "jars": len(fetched)},
            f"{artifacts}: {len(fetched)} jars in {folder / artifacts}",
            as_json,
        )


def _show(found: dict[str, Any], words: str, as_json: bool) -> None:
    click.echo(json.dumps(found) if as_json else words)
