"""`stagepost topic`: the topics of a data folder, listed, checked and written out as lines of JSON.

`stagepost topic serve`: the topics of a data folder for readers elsewhere, beside the node that writes them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import click

from stagepost.cli.options.shared import json_option, path_option
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.net.network import parse_address
from stagepost.topics.dump import dump_line
from stagepost.topics.remote.client import RemoteTopics
from stagepost.topics.remote.protocol import TOKEN_VARIABLE


@click.command()
@path_option("--data", required=True, metavar="DIR", help="Data folder of the node that writes the topics.")
@click.option(
    "--address",
    default=f"{LOOPBACK_HOST}:0",
    show_default=True,
    metavar="HOST:PORT|PATH",
    help="Address to listen on; port 0 takes a free port. Other machines are served only with STAGEPOST_TOKEN set.",
)
@json_option
def serve(data: Path, address: str, as_json: bool) -> None:
    """Serve topics to `stagepost pipeline run --address HOST:PORT` and other readers, until SIGTERM or Ctrl-C.

    Readers get durable records only, range by range, and the same range always gives the same records. With STAGEPOST_TOKEN
    set, readers must have the same token.

    \b
    Example:
      stagepost topic serve --data stagepost-data --address 127.0.0.1:4200
    """
    import asyncio
    import os

    from stagepost.ground.net.network import parse_address

    _require_folder(data)
    place = parse_address(address)

    async def run() -> None:
        import signal

        from stagepost.ground.telemetry.logs import configure_logs
        from stagepost.topics.remote.server import serve_topics

        configure_logs("WARNING", "auto")
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        listener = await serve_topics(data, place, token=os.environ.get(TOKEN_VARIABLE) or None)
        told = {"address": listener.address, "data": str(data)}
        click.echo(json.dumps(told) if as_json else f"topics of {data} at {listener.address}")
        await stopped.wait()
        await listener.close()

    asyncio.run(run())


_HEADER = ("topic", "partition", "from", "to", "records", "bytes", "readers")

_data_option = path_option(
    "--data", required=True, metavar="DIR", help="Data folder of the node that writes the topics."
)

_data_or_address = path_option(
    "--data", metavar="DIR", help="Data folder of the node that writes the topics."
)
_address_option = click.option(
    "--address",
    metavar="HOST:PORT|PATH",
    help="Address of a `stagepost topic serve`, instead of --data; STAGEPOST_TOKEN is its token.",
)


def _folder_given(context: click.Context, data: Path | None, address: str | None) -> Path | None:
    """None if an address was given instead; exactly one of the two is."""
    if (data is None) is (address is None):
        raise click.UsageError("give --data, or --address of `stagepost topic serve`", context)
    if data is not None:
        _require_folder(data)
    return data


def _require_folder(data: Path) -> None:
    if not data.is_dir():
        raise StorageError(f"there is no data folder {data}", advice="give the folder of a node with --data")


@click.group()
def topic() -> None:
    """List, check, dump or serve the topics of a node. The commands change nothing, and work while the node runs.

    \b
    Example:
      stagepost topic ls --data stagepost-data
    """


@topic.command(name="ls")
@_data_or_address
@_address_option
@json_option
@click.pass_context
def list_topics(context: click.Context, data: Path | None, address: str | None, as_json: bool) -> None:
    """List topics with their partitions, bytes and the positions of their readers; with --address without bytes and positions.

    \b
    Example:
      stagepost topic ls --data stagepost-data
      stagepost topic ls --address 10.0.0.1:4200
    """
    import json

    from stagepost.cli.options.shared import print_table

    folder = _folder_given(context, data, address)
    if folder is None:
        from stagepost.cli.topic import remote_facts

        assert address is not None, "one of the two was given"
        facts = remote_facts(address)
    else:
        from stagepost.topics.log.file_topic import topic_facts, topic_names

        facts = [one for name in topic_names(folder) for one in topic_facts(folder, name)]
    if as_json:
        for one in facts:
            click.echo(json.dumps(one))
        return
    if not facts:
        click.echo(f"there are no topics in {folder or address}")
        return
    rows = []
    for one in facts:
        readers = ", ".join(f"{group} at {offset}" for group, offset in one["readers"].items())
        counted = [one[name] for name in ("start_offset", "end_offset", "records", "bytes")]
        numbers = ["–" if number is None else f"{number:,}" for number in counted]
        rows.append((one["topic"], str(one["partition"]), *numbers, readers))
    print_table(_HEADER, rows)


topic.add_command(serve)
# The word that people try first.
topic.add_command(list_topics, "list")


@topic.command()
@click.argument("name")
@_data_or_address
@_address_option
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(allow_dash=True, readable=False),
    help="File to write; - for standard output.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Dump this partition only.")
@click.option("--from", "start", type=click.IntRange(min=0), help="Begin at this offset; needs --partition.")
@click.pass_context
def dump(
    context: click.Context,
    name: str,
    data: Path | None,
    address: str | None,
    out: str,
    partition: int | None,
    start: int | None,
) -> None:
    """Write the records of a topic as lines of JSON: topic, partition, offset, timestamp_ms, key, value, headers.

    A value that is not text is written as value_base64. The dump ends with the last record that was there at its start.

    \b
    Example:
      stagepost topic dump stagepost.remp.statuses --data stagepost-data --out statuses.jsonl
      stagepost topic dump stagepost.remp.statuses --address 10.0.0.1:4200 --out statuses.jsonl
    """
    if start is not None and partition is None:
        raise click.UsageError("--from needs --partition: each partition has offsets of its own", context)
    folder = _folder_given(context, data, address)
    if folder is None:
        from stagepost.cli.topic import remote_lines

        assert address is not None, "one of the two was given"
        written = 0
        with _opened(out) as file:
            for line in remote_lines(address, name, partition, start):
                file.write(line)
                written += 1
        click.echo(f"{written:,} records of {name} written", err=True)
        return
    from stagepost.topics.dump import dump_lines
    from stagepost.topics.log.file_topic import open_topic

    found = open_topic(folder, name)
    if partition is not None and partition >= found.partitions:
        raise click.UsageError(f"{name} has partitions 0 to {found.partitions - 1}", context)
    reader = found.reader()
    written = 0
    with _opened(out) as file:
        for one in range(found.partitions) if partition is None else [partition]:
            for line in dump_lines(name, reader, one, start):
                file.write(line)
                written += 1
    click.echo(f"{written:,} records of {name} written", err=True)


@contextmanager
def _opened(out: str) -> Iterator[BinaryIO]:
    """A file gets its name when it is complete, so that nobody takes half a dump for a whole one."""
    if out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = Path(f"{out}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(out)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{out} cannot be written: {error.strerror}", advice="check the folder and the space left on it"
        ) from error


@topic.command()
@click.argument("name")
@_data_option
@json_option
def check(name: str, data: Path, as_json: bool) -> None:
    """Read a whole topic and compare every digest. Exit code 3 at the first damage; the error names file and byte.

    \b
    Example:
      stagepost topic check stagepost.remp.statuses --data stagepost-data
    """
    import json

    from stagepost.topics.log.file_topic import open_topic

    _require_folder(data)
    found = open_topic(data, name)
    reader = found.reader()
    for partition in range(found.partitions):
        start = reader.start_offset(partition)
        records = sum(map(len, reader.batches(partition, start)))
        facts = {"topic": name, "partition": partition, "start_offset": start, "records": records}
        text = f"partition {partition}: {records:,} records from offset {start}, all whole"
        click.echo(json.dumps(facts) if as_json else text)


PATIENCE_S = 3.0
"""Whoever types a command wants to hear soon that nobody is there."""


def remote_facts(address: str) -> list[dict[str, Any]]:
    """In the shape of `topic_facts`; who reads there, and how much disk it takes, is not told."""
    with _topics(address) as topics:
        return [
            {
                "topic": one.topic,
                "partition": one.partition,
                "start_offset": one.start,
                "end_offset": one.end,
                "records": one.end - one.start,
                "bytes": None,
                "readers": {},
            }
            for one in topics.bounds()
        ]


def remote_lines(address: str, name: str, partition: int | None, start: int | None) -> Iterator[bytes]:
    """Up to what is there when it begins."""
    with _topics(address) as topics:
        bounds = topics.bounds()
        wanted = [one for one in bounds if one.topic == name and partition in (None, one.partition)]
        if not wanted:
            names = sorted({one.topic for one in bounds})
            which = name if partition is None else f"{name} with a partition {partition}"
            raise ConfigError(
                f"there is no topic {which} at {address}",
                advice=f"topics there: {', '.join(names) or 'none'}",
            )
        for one in wanted:
            first = one.start if start is None else start
            for reads in topics.records(name, one.partition, first, one.end):
                for read in reads:
                    yield dump_line(name, one.partition, read)


def _topics(address: str) -> RemoteTopics:
    return RemoteTopics(parse_address(address), os.environ.get(TOKEN_VARIABLE) or None, patience_s=PATIENCE_S)
