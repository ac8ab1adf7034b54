"""The options of commands that run a full node with a way to Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from stagepost.topics.kafka.admin import KafkaSettings

F = TypeVar("F", bound=Callable[..., Any])


def with_kafka(command: F) -> F:
    """Add `kafka`, for `KafkaWay.given`."""
    return click.option(
        "--kafka",
        metavar="HOST:PORT",
        help="Kafka broker: write statuses to it as well, and read messages from it. [kafka.bootstrap]",
    )(command)


class KafkaWay(NamedTuple):
    """`settings` None: no way to Kafka. `flags` say the same to another process."""

    settings: KafkaSettings | None
    flags: tuple[str, ...]

    @classmethod
    def given(cls, bootstrap: str | None, config: Path | None) -> KafkaWay:
        """`ConfigError` if it does not fit together."""
        import os

        from stagepost.config.kafka import load_kafka_settings

        named = () if bootstrap is None else ("--kafka", bootstrap)
        file = () if config is None else ("--config", str(config.absolute()))
        return cls(load_kafka_settings(bootstrap, config, os.environ), (*named, *file))
