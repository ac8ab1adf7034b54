"""How a broker is reached: what librdkafka and Spark are told, and what is refused before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stagepost.errors import ConfigError
from stagepost.topics.kafka.access import (
    PASSWORD_VARIABLE,
    SASL_MECHANISMS,
    KafkaAccess,
    Secret,
    password_from,
)
from stagepost.topics.kafka.admin import BROKERS_CHOICE, TopicPlan
from stagepost.topics.topic import Retention


def test_a_plain_broker_needs_nothing_but_its_address() -> None:
    access = KafkaAccess("10.0.0.1:9092,10.0.0.2:9092").check()

    assert access.client_settings()["bootstrap.servers"] == "10.0.0.1:9092,10.0.0.2:9092"
    assert access.client_settings()["security.protocol"] == "plaintext"
    assert access.spark_options() == {
        "kafka.bootstrap.servers": "10.0.0.1:9092,10.0.0.2:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
def test_user_and_certificates_are_told_to_both_clients(tmp_path: Path, mechanism: str) -> None:
    files = [tmp_path / name for name in ("ca.pem", "client.pem", "client.key")]
    for path in files:
        path.write_text(f"content of {path.name}")
    access = KafkaAccess("b:1", "sasl_ssl", mechanism, "al\\ice", Secret('se"cret'), *files).check()

    settings, options = access.client_settings(), access.spark_options()

    assert (settings["sasl.mechanism"], settings["sasl.username"]) == (mechanism, "al\\ice")
    assert settings["sasl.password"] == 'se"cret'
    assert settings["ssl.key.location"] == str(files[2])
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"].endswith(' required username="al\\\\ice" password="se\\"cret";')
    assert ("scram" in options["kafka.sasl.jaas.config"]) == mechanism.startswith("SCRAM")
    assert options["kafka.ssl.truststore.certificates"] == "content of ca.pem"
    assert options["kafka.ssl.keystore.key"] == "content of client.key"


def test_no_representation_shows_the_password() -> None:
    access = KafkaAccess(
        "b:1", "sasl_plaintext", "PLAIN", "alice", password_from({PASSWORD_VARIABLE: "canary"})
    )

    assert "canary" not in f"{access!r} {access} {access.password} {vars(ConfigError('x'))}"
    assert access.client_settings()["sasl.password"] == "canary"
    with pytest.raises(TypeError):
        msgspec.json.encode(access)


@pytest.mark.parametrize("environment", [{}, {PASSWORD_VARIABLE: ""}])
def test_an_empty_password_is_none(environment: dict[str, str]) -> None:
    assert password_from(environment) is None


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "ca.pem"
    here.write_text("")
    for access, said in (
        (KafkaAccess(" "), "no address of a Kafka broker"),
        (KafkaAccess("b:1", "sasl_ssl", password=Secret("x")), "kafka.username is not set"),
        (KafkaAccess("b:1", "sasl_ssl", username="alice"), f"{PASSWORD_VARIABLE} is empty"),
        (KafkaAccess("b:1", "ssl", certificate_file=here), "only one is set"),
        (KafkaAccess("b:1", "ssl", ca_file=tmp_path / "none"), "cannot be read: no such file"),
    ):
        with pytest.raises(ConfigError, match=said):
            access.check()


def test_a_topic_is_made_with_the_retention_that_was_stated() -> None:
    assert TopicPlan("t", 3).settings()["retention.ms"] == "-1"
    plan = TopicPlan("t", 3, retention=Retention(bytes_max=5, age_ms_max=3_600_000))
    assert (plan.settings()["retention.ms"], plan.settings()["retention.bytes"]) == ("3600000", "5")
    assert plan.settings()["message.timestamp.type"] == "CreateTime"
    assert plan.replication == BROKERS_CHOICE
