"""What `pipeline backfill` takes: dumps, or a range of topics that is looked at before Spark starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.options.pipeline import topics_from

if TYPE_CHECKING:
    from stagepost.pipeline.sources.sources import Topics
    from stagepost.pipeline.sources.survey import Surveyed


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
