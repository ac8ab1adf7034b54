"""`[kafka]` of the settings, the note of a broker and the list of jars: everything that needs no broker to be looked at."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Event
from xml.etree import ElementTree

import pytest

from stagepost.cli.main import run
from stagepost.config.kafka import load_kafka_settings
from stagepost.devnet.demo.kafka_broker import NOTE_FILE, Broker, read_note, stop_broker
from stagepost.errors import ConfigError, ConfigFaults, ErrorCode, KeyFileError, StorageError
from stagepost.topics.kafka import jars
from stagepost.topics.kafka.access import PASSWORD_VARIABLE
from stagepost.topics.kafka.jars import (
    COMPLETE,
    Artifacts,
    default_folder,
    fetch_jars,
    found_jars,
    is_current,
    pom_of,
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> Path:
    Path("stagepost.toml").write_text(f"[kafka]\n{text}")
    return Path("stagepost.toml")


def test_without_flag_and_file_there_is_no_way_to_kafka() -> None:
    assert load_kafka_settings(None, None, {}) is None


def test_the_flag_alone_is_enough_and_wins_over_the_file() -> None:
    written('bootstrap = "file:1"\npartitions = 7\nretention_hours = 2\ngroup = "mine"\n')

    found = load_kafka_settings("flag:2", None, {})

    assert found is not None
    assert found.access.bootstrap == "flag:2"
    assert (found.statuses.name, found.statuses.partitions) == ("stagepost.remp.statuses", 7)
    assert found.messages.retention.age_ms_max == 2 * 3_600_000
    assert (found.group, found.may_create) == ("mine", True)


def test_the_password_comes_from_the_environment_alone() -> None:
    path = written('bootstrap = "b:1"\nsecurity_protocol = "sasl_plaintext"\nusername = "alice"\n')

    found = load_kafka_settings(None, path, {PASSWORD_VARIABLE: "canary"})
    assert found is not None
    assert found.access.client_settings()["sasl.password"] == "canary"
    with pytest.raises(ConfigError, match=f"{PASSWORD_VARIABLE} is empty"):
        load_kafka_settings(None, path, {})
    with pytest.raises(ConfigFaults, match=r"kafka\.password +unknown key"):
        load_kafka_settings(None, written('password = "canary"\n'), {})


@pytest.mark.parametrize(
    "line",
    [
        "partitions = 0",
        "partitions = 65",
        'security_protocol = "tls"',
        "retention_hours = 0",
        'bootstrap = ""',
    ],
)
def test_values_beyond_their_limits_are_faults_of_the_file(line: str) -> None:
    with pytest.raises(ConfigFaults, match=f"kafka.{line.split()[0]}"):
        load_kafka_settings(None, written(line), {})


def test_a_name_that_can_be_no_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a topic"):
        load_kafka_settings("b:1", written('statuses_topic = "a b"\n'), {})


def test_a_key_file_that_others_can_read_is_refused() -> None:
    for name in ("client.pem", "client.key"):
        Path(name).write_text("pem")
        Path(name).chmod(0o600)
    lines = 'security_protocol = "ssl"\ncertificate_file = "client.pem"\nkey_file = "client.key"\n'
    assert load_kafka_settings("b:1", written(lines), {}) is not None
    Path("client.key").chmod(0o640)

    with pytest.raises(KeyFileError, match="mode 0640") as refused:
        load_kafka_settings("b:1", written(lines), {})
    assert refused.value.code is ErrorCode.KEY_PERMISSIONS


# The broker's note


def test_a_broker_that_is_not_there_is_not_stopped_and_the_number_of_another_process_is_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read_note(Path("gone")) is None
    assert stop_broker(Path("gone")) is None
    Path("data").mkdir()
    # Our own number, with another beginning: the process that had it before us is gone.
    Path("data", NOTE_FILE).write_text(json.dumps({"pid": os.getpid(), "begun": 1, "port": 9092}))

    assert stop_broker(Path("data")) is None
    assert run(["kafka", "status", "--data", "data", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"data": "data", "running": False}
    assert run(["kafka", "stop", "--data", "data"]) == 1


def test_a_process_with_the_noted_beginning_is_the_broker() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()

    assert Broker(os.getpid(), int(fields[19]), 9092).is_running
    assert not Broker(os.getpid(), int(fields[19]) + 1, 9092).is_running


def test_a_damaged_note_is_told() -> None:
    Path(NOTE_FILE).write_text("{")
    with pytest.raises(StorageError, match="cannot be read"):
        read_note(Path())


# Jars


@pytest.mark.parametrize(
    ("several", "count"), [((Artifacts.BROKER, Artifacts.SPARK), 6), ((Artifacts.DELTA,), 7)]
)
def test_a_list_has_a_profile_for_each_set_of_jars_and_a_version_for_each_artifact(
    several: tuple[Artifacts, ...], count: int
) -> None:
    (path,) = {pom_of(one) for one in several}
    pom = ElementTree.parse(path).getroot()
    properties = {one.tag for one in pom.findall("./properties/*")}

    assert [one.text for one in pom.findall("./profiles/profile/id")] == [one.value for one in several]
    versions = [one.text or "" for one in pom.findall(".//dependency/version")]
    assert len(versions) == count
    assert {version.strip("${}") for version in versions} == properties - {"delta.spark.version"}


def jars_as_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two jars, and a list of checksums that names them."""
    folder.mkdir()
    lines = []
    for name in ("a.jar", "b.jar"):
        (folder / name).write_bytes(name.encode())
        lines.append(f"{sha256(name.encode()).hexdigest()}  spark/{name}\n{'0' * 64}  broker/{name}\n")
    checksums = folder.parent / "checksums.txt"
    checksums.write_text("".join(lines))
    monkeypatch.setattr(jars, "CHECKSUMS", checksums)
    return sorted(folder.glob("*.jar"))


def test_jars_are_exactly_those_of_our_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = jars_as_listed(tmp_path / "spark", monkeypatch)
    jars.check_jars(Artifacts.SPARK, listed)
    with pytest.raises(ConfigError, match=r"release knows: b\.jar"):
        jars.check_jars(Artifacts.SPARK, listed[:1])
    (tmp_path / "spark" / "c.jar").write_bytes(b"one more")
    with pytest.raises(ConfigError, match=r"release knows: c\.jar"):
        jars.check_jars(Artifacts.SPARK, sorted((tmp_path / "spark").glob("*.jar")))
    listed[0].write_bytes(b"other bytes")
    with pytest.raises(ConfigError, match=r"release knows: a\.jar"):
        jars.check_jars(Artifacts.SPARK, listed)
    with pytest.raises(ConfigError, match=r"release knows: a\.jar, b\.jar"):
        jars.check_jars(Artifacts.BROKER, listed)


def test_there_is_a_checksum_for_each_artifact_of_the_lists() -> None:
    names = jars.CHECKSUMS.read_text().split()[1::2]
    for artifacts in Artifacts:
        pom = ElementTree.parse(pom_of(artifacts)).getroot()
        profile = next(one for one in pom.findall("./profiles/profile") if one.findtext("id") == artifacts)
        for artifact in profile.findall(".//dependency/artifactId"):
            assert any(
                name.startswith(f"{artifacts}/{(artifact.text or '').partition('$')[0]}") for name in names
            ), artifact.text


def test_jars_count_when_the_note_beside_them_was_written(tmp_path: Path) -> None:
    place = tmp_path / "spark"
    place.mkdir()
    (place / "one.jar").touch()
    with pytest.raises(ConfigError, match="Spark's Kafka connector are not in"):
        found_jars(Artifacts.SPARK, tmp_path)
    (place / COMPLETE).write_text("of an older list")

    assert found_jars(Artifacts.SPARK, tmp_path) == [place / "one.jar"]
    assert not is_current(Artifacts.SPARK, tmp_path)


def test_without_maven_missing_jars_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no `mvn` on the search path"):
        fetch_jars(Artifacts.BROKER, tmp_path / "jars", {"PATH": str(tmp_path)})
    assert not (tmp_path / "jars").exists()


def test_a_maven_that_fails_leaves_nothing_and_its_reason_is_told(tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] no such artifact -> [Help 1]'\nexit 1\n")
    maven.chmod(0o755)
    folder = tmp_path / "jars"

    with pytest.raises(ConfigError, match=r"profile broker: no such artifact$"):
        fetch_jars(Artifacts.BROKER, folder, {"PATH": f"{tmp_path}:{os.defpath}"})
    assert [path.name for path in folder.iterdir()] == [jars.TURN]


def test_jars_are_fetched_once_and_again_when_the_list_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checksums.txt").write_text(f"{sha256(b'').hexdigest()}  spark/a.jar\n")
    monkeypatch.setattr(jars, "CHECKSUMS", tmp_path / "checksums.txt")
    maven = tmp_path / "mvn"
    maven.write_text(
        '#!/bin/sh\nfor word in "$@"; do case $word in -DoutputDirectory=*) out=${word#*=};; esac; done\n'
        f'echo x >> {tmp_path}/calls\ntouch "$out/a.jar"\n'
    )
    maven.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.defpath}"}
    folder = tmp_path / "jars"

    for _ in range(2):
        assert fetch_jars(Artifacts.SPARK, folder, environment) == [folder / "spark" / "a.jar"]
    (folder / "spark" / "a.jar").write_bytes(b"altered")
    with pytest.raises(ConfigError, match="not those that this release knows"):
        fetch_jars(Artifacts.SPARK, folder, environment)
    fetch_jars(Artifacts.SPARK, folder, environment, ["kafka.version=9"])

    assert (tmp_path / "calls").read_text().count("x") == 2
    assert {path.name for path in folder.iterdir()} == {"spark", jars.TURN}


def test_one_fetches_and_the_others_wait_and_take_what_it_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checksums.txt").write_text(f"{sha256(b'').hexdigest()}  spark/a.jar\n")
    monkeypatch.setattr(jars, "CHECKSUMS", tmp_path / "checksums.txt")
    has_looked = Event()

    def which(name: str, path: str) -> str:
        has_looked.set()
        return "/nowhere/mvn"

    monkeypatch.setattr(shutil, "which", which)
    folder = tmp_path / "jars"
    with ThreadPoolExecutor(1) as others:
        with jars.turn(folder):
            waiting = others.submit(fetch_jars, Artifacts.SPARK, folder, {})
            assert has_looked.wait(60)
            (folder / "spark").mkdir()
            (folder / "spark" / "a.jar").touch()
            (folder / "spark" / COMPLETE).write_text(jars.digest_of(Artifacts.SPARK, ()))

        assert waiting.result(60) == [folder / "spark" / "a.jar"]


def test_the_cache_folder_follows_the_environment() -> None:
    assert default_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/stagepost/kafka-jars")


def test_the_help_of_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("start", "stop", "status", "jars"):
        assert run(["kafka", name, "--help"]) == 0
        assert f"stagepost kafka {name}" in capsys.readouterr().out.partition("Example:")[2]
