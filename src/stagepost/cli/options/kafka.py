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
    """Adds `kafka` and `kafka_config`, for `KafkaWay.given`."""
    options = (
        click.option(
            "--kafka",
            metavar="HOST:PORT",
            help="A Kafka broker: statuses go there as well, and messages are taken from there. [kafka.bootstrap]",
        ),
        click.option(
            "--config",
            "kafka_config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Settings, whose [kafka] says how to reach it. [stagepost.toml, if it is there]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


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
