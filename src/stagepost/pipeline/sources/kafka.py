"""Which source a tables folder follows, said in a note beside the checkpoint; and whether a broker still has what comes next.

Offsets of a local topic and of a broker's look the same in a checkpoint, and mean different records. Needs no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.small_files import replace_file
from stagepost.pipeline.sources.checkpoint_fit import read_offsets
from stagepost.pipeline.sources.topic_marks import offsets_of
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER, KAFKA_NOTE_FILE
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk

ANOTHER_FOLDER = "choose another --out, or go on with the source that these tables were made from"

Offsets = Mapping[str, Mapping[str, int]]


def require_broker(access: KafkaAccess, topics: Sequence[str], out: Path) -> None:
    """Before Spark starts: the broker answers, has the topics, and still holds what the checkpoint asks for next."""
    desk = BrokerDesk(access)
    known = desk.partitions()
    for name in topics:
        if name not in known:
            raise ConfigError(
                f"the Kafka broker at {access.bootstrap} shows no topic {name}",
                advice=f"see --topic; topics there: {', '.join(sorted(known)) or 'none that this user may read'}",
                found=name,
            )
    offsets = next_offsets(out)
    _require_note(out, {"cluster": desk.cluster_id(), "topics": sorted(topics)}, is_begun=offsets is not None)
    for name, partitions in (offsets or {}).items():
        _require_kept(desk, name, known[name], partitions)


def refuse_kafka_checkpoint(out: Path) -> None:
    """For a stream from anywhere else."""
    if (out / KAFKA_NOTE_FILE).exists() and next_offsets(out) is not None:
        raise ConfigError(
            f"the tables in {out} follow topics of a Kafka broker, and another source was given",
            advice=ANOTHER_FOLDER,
        )


def next_offsets(out: Path) -> Offsets | None:
    """Where the stream goes on, by topic and partition; None if it has not finished a batch."""
    commits = out / CHECKPOINT_FOLDER / "commits"
    numbers = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
    if not numbers:
        return None
    return offsets_of(read_offsets(out / CHECKPOINT_FOLDER / "offsets" / str(max(numbers))))


def _require_note(out: Path, facts: Mapping[str, object], *, is_begun: bool) -> None:
    path = out / KAFKA_NOTE_FILE
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        known = None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", advice=ANOTHER_FOLDER) from error
    if is_begun and known != facts:
        follow = "another source" if known is None else f"topics {', '.join(known.get('topics', []))}"
        where = "" if known is None else f" of Kafka cluster {known.get('cluster')}"
        raise ConfigError(
            f"the checkpoint in {out} belongs to {follow}{where}, not to "
            f"{', '.join(map(str, facts['topics']))} of cluster {facts['cluster']}",  # type: ignore[call-overload]
            advice=ANOTHER_FOLDER,
        )
    if known != facts:
        try:
            out.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(facts).encode() + b"\n", 0o600)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", advice="see --out") from error


def _require_kept(desk: BrokerDesk, name: str, count: int, wanted: Mapping[str, int]) -> None:
    bounds = desk.bounds(name, count)
    for partition, offset in wanted.items():
        oldest, newest = bounds.get(int(partition), (0, 0))
        if offset < oldest:
            raise ConfigError(
                f"the stream goes on at offset {offset} of partition {partition} of {name}, "
                f"and the broker has kept {oldest} and what follows",
                advice="records are lost to these tables: make new ones with another --out, and keep more",
                offset=offset,
            )
        if offset > newest:
            raise ConfigError(
                f"the stream goes on at offset {offset} of partition {partition} of {name}, which ends at {newest}",
                advice="the topic was begun anew: make new tables with another --out",
                offset=offset,
            )
