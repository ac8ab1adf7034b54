"""Options that name the source of a pipeline's records: a data folder, a node's address, a DMQ node's socket, a Kafka broker.

A further kind of source is a few more options in `with_source`, and a branch in `source_from`.

What `pipeline backfill` takes: dumps, or a range of topics that is looked at before Spark starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from stagepost.pipeline.sources.sources import RecordSource, Topics
    from stagepost.pipeline.sources.survey import Surveyed


F = TypeVar("F", bound=Callable[..., Any])

WAYS = ("data", "address", "socket", "kafka")
"""Of which one is given."""

_OPTIONS = (
    click.option(
        "--data",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="A node's data folder, with its topics.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT|PATH",
        help="A node that serves its topics (see `stagepost topic serve`); STAGEPOST_TOKEN if it needs one.",
    ),
    click.option(
        "--socket",
        metavar="PATH",
        help="The local socket of any DMQ node; needs --network-magic and --retained.",
    ),
    click.option(
        "--network-magic", type=click.IntRange(min=0), metavar="N", help="With --socket: its network."
    ),
    click.option(
        "--retained",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="With --socket: where its messages are kept, for they are told once.",
    ),
    click.option("--profile", help="With --socket: the wire profile.  [default: dmq-node]"),
    click.option(
        "--kafka", metavar="HOST:PORT", help="A Kafka broker; [kafka] of the settings says how to reach it."
    ),
    click.option(
        "--config",
        "kafka_config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="With --kafka: the settings.  [default: stagepost.toml, if it is there]",
    ),
    click.option(
        "--jars",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="With --kafka: jars of `stagepost kafka jars`.  [default: the user's cache folder]",
    ),
    click.option("--topic", "topics", metavar="NAME", multiple=True, help="Only this one; may be repeated."),
)


def with_source(command: F) -> F:
    """All of them arrive as keyword arguments, for `source_from`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def source_from(given: Mapping[str, Any]) -> RecordSource:
    """`click.UsageError` unless exactly one way is given, with what belongs to it."""
    _require_one(given)
    if given["kafka"] is not None:
        return _kafka_from(given)
    return topics_from(given)


def before_spark(
    source: RecordSource, given: Mapping[str, Any], sets_path: Path, out: Path
) -> dict[str, str]:
    """Settings that Spark needs for this source, once everything that can be wrong with it has been looked at."""
    import os

    from stagepost.pipeline.sources.kafka import (
        KafkaRecords,
        connector_settings,
        refuse_kafka_checkpoint,
        require_broker,
    )
    from stagepost.pipeline.sources.sources import Topics
    from stagepost.pipeline.sources.topic_marks import require_going_on
    from stagepost.topics.kafka.jars import default_folder

    if not isinstance(source, KafkaRecords):
        refuse_kafka_checkpoint(out)
        if isinstance(source, Topics):
            require_going_on(source.options, sets_path, out)
        return {}
    settings = connector_settings(given["jars"] or default_folder(os.environ))
    require_broker(source.access, source.topics, out)
    return settings


def _kafka_from(given: Mapping[str, Any]) -> RecordSource:
    import os

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
