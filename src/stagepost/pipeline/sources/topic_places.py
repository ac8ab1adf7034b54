"""Places from which topics are read: a data folder of this machine, a node that serves them, or a folder that
keeps the messages of a DMQ node.

A place is a plain value that travels to Spark's workers; nothing is open between two calls. The same range
gives the same records every time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from stagepost.dmq.profiles import DEFAULT_PROFILE, profile_named
from stagepost.errors import ConfigError
from stagepost.ground.files.local_paths import require_local_path
from stagepost.ground.net.network import parse_address
from stagepost.ground.net.version_data import NETWORK_MAGIC_BITS
from stagepost.pipeline.sources.dmq_collector import DmqSocket, collect_once, keep_collecting
from stagepost.pipeline.sources.topic_ranges import Offsets, Range
from stagepost.topics.batch import Read
from stagepost.topics.log.file_topic import open_topic, topic_names
from stagepost.topics.remote.client import RemoteTopics
from stagepost.topics.remote.protocol import TOKEN_VARIABLE
from stagepost.topics.topic import DMQ_MESSAGES


class TopicPlace(Protocol):
    def bounds(self) -> tuple[Offsets, Offsets]:
        """Return, for all topics, the offsets of the oldest kept records, and the offsets behind the newest."""
        ...

    def reads(self, wanted: Range) -> Iterator[Iterable[Read]]:
        """Yield the records of the range, in batches; `StorageError` if the range is not there in full."""
        ...

    def catch_up(self) -> None:
        """Fetch what is missing; called before the present records count as all that there are."""
        ...

    def keep_up(self) -> None:
        """Keep fetching; called again and again while a stream follows."""
        ...


class FolderPlace(NamedTuple):
    """Plain files, also while a node writes them."""

    data: Path

    def bounds(self) -> tuple[Offsets, Offsets]:
        oldest: Offsets = {}
        newest: Offsets = {}
        for name in topic_names(self.data):
            reader = open_topic(self.data, name).reader()
            oldest[name] = {str(one): reader.start_offset(one) for one in range(reader.partitions)}
            newest[name] = {str(one): reader.end_offset(one) for one in range(reader.partitions)}
        return oldest, newest

    def reads(self, wanted: Range) -> Iterator[Iterable[Read]]:
        return (
            open_topic(self.data, wanted.topic).reader().batches(wanted.partition, wanted.start, wanted.end)
        )

    def catch_up(self) -> None:
        """Do nothing: the node itself writes the folder."""

    def keep_up(self) -> None:
        """Do nothing, as in `catch_up`."""


class NodePlace(NamedTuple):
    """A node, or `stagepost topic serve`, at an address. Plans and logs of ours never show the token."""

    address: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"NodePlace({self.address!r})"

    def bounds(self) -> tuple[Offsets, Offsets]:
        oldest: Offsets = {}
        newest: Offsets = {}
        with self._topics() as topics:
            for one in topics.bounds():
                oldest.setdefault(one.topic, {})[str(one.partition)] = one.start
                newest.setdefault(one.topic, {})[str(one.partition)] = one.end
        return oldest, newest

    def reads(self, wanted: Range) -> Iterator[Iterable[Read]]:
        with self._topics() as topics:
            yield from topics.records(*wanted)

    def catch_up(self) -> None:
        """Do nothing: the node itself has the records."""

    def keep_up(self) -> None:
        """Do nothing, as in `catch_up`."""

    def _topics(self) -> RemoteTopics:
        return RemoteTopics(parse_address(self.address), self.token)


class RetainedPlace(NamedTuple):
    """A folder of our own with the messages of a DMQ node. The node sends each message once to a listener,
    and forgets it when it expires: so the messages are kept in a topic of the folder, and read from there.
    """

    folder: Path
    socket: DmqSocket

    def bounds(self) -> tuple[Offsets, Offsets]:
        return FolderPlace(self.folder).bounds()

    def reads(self, wanted: Range) -> Iterator[Iterable[Read]]:
        return FolderPlace(self.folder).reads(wanted)

    def catch_up(self) -> None:
        collect_once(self.folder, self.socket)

    def keep_up(self) -> None:
        keep_collecting(self.folder, self.socket)


def place_of(options: Mapping[str, str]) -> TopicPlace:
    """Return the place that the options of `format("stagepost")` name; Spark writes their names in small
    letters.
    """
    given = [name for name in ("path", "address", "socket") if options.get(name)]
    if len(given) != 1:
        found = "nothing" if not given else " and ".join(given)
        raise ConfigError(
            f'format("stagepost") was given {found} to read',
            advice="give one of: path (a data folder), address (of a node that serves topics), socket (of a DMQ node)",
        )
    for name in ("path", "retained"):
        require_local_path(options.get(name) or "", name)
    if given == ["path"]:
        return FolderPlace(Path(options["path"]))
    if given == ["address"]:
        parse_address(options["address"])
        return NodePlace(options["address"], options.get("token") or os.environ.get(TOKEN_VARIABLE) or None)
    return RetainedPlace(Path(_required(options, "retained")), _dmq_socket(options))


def topics_of(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the topics that the option `topic` names, with commas; None where it is not given."""
    names = tuple(dict.fromkeys(name.strip() for name in options.get("topic", "").split(",") if name.strip()))
    if not names and options.get("socket"):
        return (DMQ_MESSAGES,)
    return names or None


def _dmq_socket(options: Mapping[str, str]) -> DmqSocket:
    text = _required(options, "network_magic")
    if not (text.isascii() and text.isdigit() and int(text) < 1 << NETWORK_MAGIC_BITS):
        raise ConfigError(
            f"{text!r} is no network magic",
            advice=f"a number below {1 << NETWORK_MAGIC_BITS}, as the node has it",
        )
    profile = options.get("profile") or DEFAULT_PROFILE.name
    profile_named(profile)
    return DmqSocket(options["socket"], int(text), profile)


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(
            f'format("stagepost") with a socket was not given {name}',
            advice=f'add .option("{name}", "...")',
        )
    return value
