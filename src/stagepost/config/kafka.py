"""The section `[kafka]` of the settings, and its one secret from the environment, as the parts that speak with Kafka take them."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from stagepost.config.effective import ConfigRequest, EffectiveConfig, Flag, effective_config
from stagepost.errors import ConfigError, ErrorCode, KeyFileError
from stagepost.topics.kafka.access import KafkaAccess, password_from
from stagepost.topics.kafka.admin import BROKERS_CHOICE, KafkaSettings, TopicPlan
from stagepost.topics.topic import Retention, require_name

HOUR_MS = 3_600_000


def load_kafka_settings(
    bootstrap: str | None, config_file: Path | None, environment: Mapping[str, str]
) -> KafkaSettings | None:
    """None if neither the flag nor the file names a broker. `ConfigError` for whatever does not fit together."""
    flags = {} if bootstrap is None else {"kafka.bootstrap": Flag("--kafka", bootstrap)}
    config = effective_config(ConfigRequest(flags, config_file))
    config.faults.raise_if_any()
    if config["kafka.bootstrap"] is None:
        return None
    access = KafkaAccess(
        config.text("kafka.bootstrap"),
        config.text("kafka.security_protocol"),
        config.text("kafka.sasl_mechanism"),
        _text(config, "kafka.username"),
        password_from(environment),
        _path(config, "kafka.ca_file"),
        _path(config, "kafka.certificate_file"),
        _path(config, "kafka.key_file"),
    ).check()
    if access.key_file is not None:
        _require_private(access.key_file)
    return KafkaSettings(
        access,
        _plan(config, "kafka.statuses_topic"),
        _plan(config, "kafka.messages_topic"),
        require_name(config.text("kafka.group"), "group of readers"),
        config.flag("kafka.create_topics"),
    )


def _plan(config: EffectiveConfig, key: str) -> TopicPlan:
    replication = (
        BROKERS_CHOICE if config["kafka.replication"] is None else config.number("kafka.replication")
    )
    return TopicPlan(
        require_name(config.text(key), "topic"),
        config.number("kafka.partitions"),
        replication,
        Retention(age_ms_max=config.number("kafka.retention_hours") * HOUR_MS),
    )


def _text(config: EffectiveConfig, key: str) -> str | None:
    return None if config[key] is None else config.text(key)


def _path(config: EffectiveConfig, key: str) -> Path | None:
    return None if config[key] is None else config.path(key)


def _require_private(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", advice="correct kafka.key_file"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"the key file {path} has mode {mode:04o}: other users could read it",
            code=ErrorCode.KEY_PERMISSIONS,
            advice=f"chmod 600 {path}",
            found=mode,
        )
