"""What cannot work with Kafka is said in one sentence, before anything is started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rigs.kafka_world import PASSWORD, USER, WEAK_PASSWORD, WEAK_USER, WorldBroker
from stagepost.cli.main import run
from stagepost.devnet.demo.kafka_broker import BrokerPlan, start_broker
from stagepost.errors import ConfigError
from stagepost.topics.kafka.access import PASSWORD_VARIABLE
from stagepost.topics.kafka.admin import BrokerDesk, TopicPlan
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes

pytestmark = pytest.mark.xdist_group("kafka")

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


def settings_file(broker: WorldBroker, user: str, ca_file: Path | None = None) -> str:
    access = broker.access_of(user, "", ca_file)
    Path("kafka.toml").write_text(
        "[kafka]\n"
        + f'security_protocol = "sasl_ssl"\nsasl_mechanism = "PLAIN"\nusername = "{user}"\n'
        + f'ca_file = "{access.ca_file}"\nstatuses_topic = "not.there"\n'
    )
    return access.bootstrap


def devnet(*options: str) -> int:
    return run(
        ["devnet", "--validators", "1", "--one-process", "--data", "devnet", "--messages", "1", *options]
    )


def nothing_was_started() -> bool:
    """No key, chain, topic or member; the log that the command itself writes to may be there."""
    return {path.name for path in Path("devnet").glob("*")} <= {"log"}


def test_no_broker_is_one_sentence_and_no_validator_was_started(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert devnet("--kafka", NOBODY) == 3

    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"no Kafka broker answers at {NOBODY}")
    assert said[-1] == "NO_CONNECTED_PEERS"
    assert len(said) == 3
    assert nothing_was_started()


def test_a_wrong_password_is_one_sentence_that_names_the_user_and_no_secret(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong canary word")
    bootstrap = settings_file(kafka_broker, USER)

    assert devnet("--kafka", bootstrap, "--config", "kafka.toml") == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"the Kafka broker at {bootstrap} does not accept user {USER} with PLAIN"
    assert "canary" not in "".join(said)
    assert nothing_was_started()


def test_sasl_without_a_password_is_refused_before_anybody_is_asked(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = settings_file(kafka_broker, USER)

    assert devnet("--kafka", bootstrap, "--config", "kafka.toml") == 2
    assert f"{PASSWORD_VARIABLE} is empty" in capsys.readouterr().err.splitlines()[0]


def test_a_broker_with_a_certificate_of_somebody_else_is_refused(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path("other.pem").absolute()
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other -keyout other.key -out other.pem"
    subprocess.run(command.split(), check=True, capture_output=True)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    bootstrap = settings_file(kafka_broker, USER, other)

    assert devnet("--kafka", bootstrap, "--config", "kafka.toml") == 2
    assert capsys.readouterr().err.startswith(f"no TLS connection with the Kafka broker at {bootstrap}: ")
    assert nothing_was_started()


def test_a_missing_topic_that_this_user_may_not_make_is_one_sentence(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, WEAK_PASSWORD)
    bootstrap = settings_file(kafka_broker, WEAK_USER)

    assert devnet("--kafka", bootstrap, "--config", "kafka.toml") == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(
        f"the Kafka broker at {bootstrap} shows no topic not.there, and it cannot be made: "
    )
    assert "uthoriz" in said[0]
    assert nothing_was_started()


def test_a_topic_that_is_not_to_be_made_is_asked_for_in_one_sentence(kafka_broker: WorldBroker) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.create_topics is false"):
        BrokerDesk(kafka_broker.access).require(TopicPlan("never.made", 1), may_create=False)

    assert "never.made" not in BrokerDesk(kafka_broker.access).partitions()


def pipeline_run(bootstrap: str, *options: str) -> int:
    Path("sets.json").write_bytes(sets_bytes())
    base = ["pipeline", "run", "--once", "--kafka", bootstrap, "--validator-sets", "sets.json"]
    return run([*base, "--out", "tables", *options])


def test_a_pipeline_without_broker_topic_or_jars_says_so_and_makes_no_tables(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    bootstrap = kafka_broker.access.bootstrap

    assert pipeline_run(NOBODY) == 3
    assert capsys.readouterr().err.startswith(f"no Kafka broker answers at {NOBODY}")
    assert pipeline_run(bootstrap, "--topic", "not.there") == 2
    assert capsys.readouterr().err.startswith(f"the Kafka broker at {bootstrap} shows no topic not.there\n")
    assert pipeline_run(bootstrap, "--jars", "empty") == 2
    assert capsys.readouterr().err.startswith("the jars of Spark's Kafka connector are not in empty/spark\n")
    assert not Path("tables").exists()


def a_checkpoint(offsets: dict[str, dict[str, int]]) -> None:
    for name in ("offsets", "commits"):
        (Path("tables/checkpoint") / name).mkdir(parents=True, exist_ok=True)
    Path("tables/checkpoint/offsets/0").write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    Path("tables/checkpoint/commits/0").write_text("v1\n{}")


def test_a_checkpoint_of_another_source_or_beyond_the_topic_is_refused(
    kafka_broker: WorldBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    bootstrap, topic = kafka_broker.access.bootstrap, kafka_broker.fresh_topic("followed")
    a_checkpoint({topic: {"0": 7}})
    tables = Path("tables").absolute()

    assert pipeline_run(bootstrap, "--topic", topic) == 2
    assert capsys.readouterr().err.startswith(
        f"the checkpoint in {tables} belongs to another source, not to "
    )

    facts = {"cluster": BrokerDesk(kafka_broker.access).cluster_id(), "topics": [topic]}
    Path("tables/kafka-source.json").write_text(json.dumps(facts))
    assert pipeline_run(bootstrap, "--topic", topic) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"the stream goes on at offset 7 of partition 0 of {topic}, which ends at 0\n")

    Path("data/topics/stagepost.remp.statuses").mkdir(parents=True)
    Path("data/topics/stagepost.remp.statuses/topic.json").write_text("{}")
    sources = ["--data", "data", "--validator-sets", "sets.json", "--out", "tables"]
    assert run(["pipeline", "run", "--once", *sources]) == 2
    assert capsys.readouterr().err.startswith(f"the tables in {tables} follow topics of a Kafka broker, ")


def test_a_port_that_is_taken_and_a_broker_that_runs_already_are_refused(
    kafka_broker: WorldBroker, tmp_path: Path
) -> None:
    port = int(kafka_broker.access.bootstrap.rpartition(":")[2])

    with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used: address already in use"):
        start_broker(BrokerPlan(tmp_path / "second", port), Path("java"), [])
    with pytest.raises(ConfigError, match="runs already"):
        kafka_broker.start()
    assert not (tmp_path / "second" / "broker.json").exists()
