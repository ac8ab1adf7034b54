"""What `stagepost pipeline run` is told, and whether there is anything to follow. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stagepost.errors import ConfigError
from stagepost.pipeline.sources.sources import RecordSource, Topics
from stagepost.topics.log.file_topic import topic_names
from stagepost.topics.names import KNOWN


class StreamOptions(NamedTuple):
    """`source` None: the topics of the folder `data`."""

    data: Path | None
    sets_path: Path
    out: Path
    is_once: bool = False
    every_s: float = 0.25
    rows_max: int = 200_000
    message_timeout_ms: int | None = None
    source: RecordSource | None = None

    def records(self) -> RecordSource:
        if self.source is not None:
            return self.source
        assert self.data is not None, "one of the two is given"
        return Topics({"path": str(self.data.absolute())})


def require_topics(data: Path) -> None:
    if not set(topic_names(data)) & set(KNOWN):
        raise ConfigError(
            f"{data} holds none of the topics {', '.join(KNOWN)}",
            advice="give a node's data folder with --data",
        )
