"""Options that name the source of a pipeline's records: a data folder, a node's address, a DMQ node's socket, a Kafka broker.

A further kind of source is a few more options in `with_source`, and a branch in `source_from`.

What `pipeline backfill` takes: dumps, or a range of topics that is looked at before Spark starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stagepost.cli.options.shared import path_option, with_options
from stagepost.ground.files.local_paths import require_local_path

if TYPE_CHECKING:
    from stagepost.pipeline.sources.sources import RecordSource, Topics
    from stagepost.pipeline.sources.survey import Surveyed
    from stagepost.pipeline.tables.store import TableStore


F = TypeVar("F", bound=Callable[..., Any])


class TablesAddress(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases
    """Type of an option that takes a folder of tables, or an address of object storage.

    The settings of the storage in the environment go with the address to workers on other machines.
    """

    name = "DIR|s3://…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TableStore:
        from stagepost.pipeline.tables.store import SCHEMES, TableStore, storage_options

        if not str(value).lower().startswith(tuple(f"{one}://" for one in SCHEMES)):
            require_local_path(str(value), param.opts[0] if param is not None else "")
            return TableStore.at(value)
        return TableStore.at(value, storage_options(os.environ))


WAYS = ("data", "address", "socket", "kafka")
"""Of which one is given."""

_OPTIONS = (
    path_option("--data", metavar="DIR", help="Data folder of a node: read its topics."),
    click.option(
        "--address",
        metavar="HOST:PORT|PATH",
        help="Address of a `stagepost topic serve`: read its topics; STAGEPOST_TOKEN is its token.",
    ),
    click.option(
        "--socket",
        metavar="PATH",
        help="Local socket of a DMQ node: read its messages; needs --network-magic and --retained.",
    ),
    click.option(
        "--network-magic",
        type=click.IntRange(min=0),
        metavar="N",
        help="With --socket: magic number of the DMQ network.",
    ),
    path_option(
        "--retained",
        metavar="DIR",
        help="With --socket: folder that keeps the messages, since the node sends each only once.",
    ),
    click.option("--profile", help="With --socket: wire profile of the connection.  [default: dmq-node]"),
    click.option(
        "--kafka",
        metavar="HOST:PORT",
        help="Kafka broker: read its topics; [kafka] of the settings says how to reach it.",
    ),
    path_option(
        "--config",
        "kafka_config",
        metavar="FILE",
        help="Settings file: [kafka] for --kafka, [pipeline] for `run`.  [default: stagepost.toml, if it exists]",
    ),
    path_option(
        "--jars",
        metavar="DIR",
        help="With --kafka: folder of the jars that `stagepost kafka jars` fetched.  [default: the user's cache folder]",
    ),
    click.option(
        "--topic", "topics", metavar="NAME", multiple=True, help="Read this topic only; may be repeated."
    ),
)


def with_source(command: F) -> F:
    """Add the options that name a source; they arrive as keyword arguments, for `source_from`."""
    return with_options(command, *_OPTIONS)


def source_from(given: Mapping[str, Any]) -> RecordSource:
    """`click.UsageError` unless exactly one way is given, with what belongs to it."""
    if given["kafka"] is None:
        # The settings file has more than Kafka's section for a stream.
        return topics_from({**given, "kafka_config": None})
    _require_one(given)
    return _kafka_from(given)


def keep_ms_from(keep_s: float | None, config_file: Path | None) -> int | None:
    """Return the milliseconds for which days are kept: of the flag, else of `pipeline.keep` in the settings; None for ever.

    `ConfigFaults` for a settings file with faults, `click.UsageError` for less than a day.
    """
    from stagepost.config.effective import ConfigRequest, effective_config
    from stagepost.config.settings import KEEP_S_MIN
    from stagepost.ground.files.durations import parse_duration

    if keep_s is None:
        config = effective_config(ConfigRequest(config_file=config_file))
        config.faults.raise_if_any()
        found = config["pipeline.keep"]
        return None if found is None else int(parse_duration(config.text("pipeline.keep")) * 1_000)
    if keep_s < KEEP_S_MIN:
        raise click.UsageError("--keep is less than one day: tables are dropped by whole days")
    return int(keep_s * 1_000)


def before_spark(
    source: RecordSource, given: Mapping[str, Any], sets_path: Path, out: TableStore
) -> dict[str, str]:
    """Settings that Spark needs for this source, once everything that can be wrong with it has been looked at."""
    from stagepost.pipeline.sources.checkpoint_fit import STREAM, restore_checkpoint
    from stagepost.pipeline.sources.kafka import (
        KafkaRecords,
        connector_settings,
        refuse_kafka_checkpoint,
        require_broker,
    )
    from stagepost.pipeline.sources.sources import Topics
    from stagepost.pipeline.sources.topic_marks import require_going_on
    from stagepost.pipeline.tables.manifest import Manifest, read_manifest
    from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER
    from stagepost.topics.kafka.jars import default_folder

    if out.is_local:
        checkpoint = out.folder / CHECKPOINT_FOLDER
        restore_checkpoint(checkpoint, read_manifest(out) or Manifest(), STREAM)
    if isinstance(source, KafkaRecords):
        settings = connector_settings(given["jars"] or default_folder(os.environ))
        require_broker(source.access, source.topics, out)
        return settings
    refuse_kafka_checkpoint(out)
    if out.is_local and isinstance(source, Topics):
        require_going_on(source.options, sets_path, out, checkpoint)
    return {}


def _kafka_from(given: Mapping[str, Any]) -> RecordSource:
    from stagepost.config.kafka import load_kafka_settings
    from stagepost.pipeline.sources.kafka import KafkaRecords

    settings = load_kafka_settings(given["kafka"], given["kafka_config"], os.environ)
    assert settings is not None
    return KafkaRecords(settings.access, tuple(given["topics"]) or (settings.statuses.name,))


def topics_from(given: Mapping[str, Any]) -> Topics:
    """Topics that can be read by ranges, too."""
    from stagepost.pipeline.sources.sources import Topics
    from stagepost.pipeline.sources.topic_places import place_of

    _require_one(given)
    if given.get("kafka") is not None:
        raise click.UsageError(
            "--kafka is for `run`, which takes all that the broker keeps; add --once to end with that"
        )
    options = {
        "path": _absolute(given["data"]),
        "address": _node_address(given["address"]),
        "socket": _absolute(given["socket"]),
        "network_magic": given["network_magic"],
        "retained": _absolute(given["retained"]),
        "profile": given["profile"],
        "topic": ",".join(given["topics"]),
    }
    texts = {name: str(value) for name, value in options.items() if value not in (None, "")}
    place_of(texts)  # everything that can be wrong with them is told before Spark starts
    if given["data"] is not None and not given["topics"]:
        from stagepost.pipeline.stream import require_topics

        require_topics(given["data"])
    return Topics(texts)


def _require_one(given: Mapping[str, Any]) -> None:
    ways = [name for name in WAYS if given.get(name) is not None]
    if len(ways) != 1:
        listed = ", ".join(f"--{name}" for name in WAYS)
        raise click.UsageError(f"give one of {listed}" + (f", not {len(ways)} of them" if ways else ""))
    if ways != ["kafka"]:
        for name, flag in (("kafka_config", "--config"), ("jars", "--jars")):
            if given.get(name) is not None:
                raise click.UsageError(f"{flag} is for --kafka")
    if ways != ["socket"]:
        stray = [name for name in ("network_magic", "retained", "profile") if given.get(name) is not None]
        if stray:
            raise click.UsageError(f"--{stray[0].replace('_', '-')} is for --socket")
        return
    for name in ("network_magic", "retained"):
        if given.get(name) is None:
            raise click.UsageError(f"--socket needs --{name.replace('_', '-')}")


def _absolute(path: Path | str | None) -> str | None:
    """Workers may stand in another folder."""
    return None if path is None else str(Path(path).absolute())


def _node_address(text: str | None) -> str | None:
    return text if text is None or "/" not in text else _absolute(text)


def is_range_asked(
    context: click.Context, inputs: Sequence[Path], where: Mapping[str, Any], bounds: Sequence[object]
) -> bool:
    is_range = any(value not in (None, ()) for value in (*where.values(), *bounds))
    if is_range == bool(inputs):
        text = "give dumps with --input, or topics with --data, --address or --socket"
        raise click.UsageError(text + (", not both" if is_range else ""), context)
    return is_range


def survey_range(
    where: Mapping[str, Any], partition: int | None, first: str | None, last: str | None
) -> tuple[Topics, Surveyed]:
    import time

    from stagepost.pipeline.sources.survey import OPEN, parse_bound, survey_topics
    from stagepost.pipeline.sources.topic_places import place_of, topics_of

    topics, now = topics_from(where), time.time()
    surveyed = survey_topics(
        place_of(topics.options),
        topics_of(topics.options),
        partition=partition,
        first=OPEN if first is None else parse_bound("--from", first, now),
        last=OPEN if last is None else parse_bound("--to", last, now),
    )
    return topics, surveyed
