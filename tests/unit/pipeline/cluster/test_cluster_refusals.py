"""What is wrong with a submission is said in one sentence with its code, before anything is started or written."""

from __future__ import annotations

import shutil
import socket
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stagepost.cli.main import run
from stagepost.errors import ConfigError, ErrorCode, StorageError, TransportError
from stagepost.pipeline.cluster import pack as packing
from stagepost.pipeline.cluster.cluster import (
    Address,
    Cluster,
    for_job,
    parse_conf,
    parse_master,
    reach,
    settings_for,
    start_on_cluster,
)
from stagepost.pipeline.cluster.pack import (
    LABEL_FILE,
    Label,
    pack,
    python_version,
    read_label,
    require_fitting,
)
from stagepost.pipeline.sources.checkpoint_fit import (
    planned_offsets,
    planned_text,
    require_fitting_checkpoint,
    restore_checkpoint,
)
from stagepost.pipeline.tables.manifest import Manifest
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes


@pytest.fixture
def label() -> Label:
    need_packages()
    return packing.this_label()


def an_archive(path: Path, label: Label) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(LABEL_FILE, msgspec.json.encode(label))
    return path


def a_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def submitted(tmp_path: Path, archive: Path, master: str, *more: str) -> int:
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    (tmp_path / "dump.jsonl").write_bytes(b"")
    given = ["pipeline", "submit", "--master", master, "--archive", str(archive), *more]
    given += ["--worker-python", sys.executable, "backfill", "--input", str(tmp_path / "dump.jsonl")]
    given += ["--validator-sets", str(tmp_path / "sets.json"), "--out", str(tmp_path / "tables")]
    return run(given)


def test_a_master_is_one_address_or_several() -> None:
    assert parse_master("spark://10.0.0.1:7077") == [Address("10.0.0.1", 7_077)]
    assert parse_master("spark://a:1,b:65535") == [Address("a", 1), Address("b", 65_535)]
    assert parse_master("spark://[::1]:7077") == [Address("::1", 7_077)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "local[2]",
        "yarn",
        "spark://",
        "spark://host",
        "spark://host:0",
        "spark://host:65536",
        "spark://a:1,",
    ],
)
def test_what_is_no_masters_address_is_refused_with_the_form_that_is_meant(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a Spark master") as caught:
        parse_master(text)

    assert "spark://HOST:PORT" in caught.value.advice


def test_settings_of_spark_go_along_except_those_that_carry_the_package(tmp_path: Path, label: Label) -> None:
    conf = parse_conf(["spark.hadoop.fs.s3a.endpoint=http://store:9000/?a=b", "spark.driver.host=10.0.0.7"])
    archive = an_archive(tmp_path / "a.zip", label)

    settings = settings_for(Cluster("spark://a:1", archive, "python3", conf), "127.0.0.1")

    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000/?a=b"
    assert settings["spark.driver.host"] == "10.0.0.7"
    assert settings["spark.archives"].startswith(str(archive))
    for text in ("executor.memory=1g", "spark.cores.max", "spark.archives=x.zip"):
        with pytest.raises(ConfigError, match="--conf"):
            parse_conf([text])


def test_jars_of_the_caller_go_along_with_those_of_the_source() -> None:
    def jars(*given: str) -> str | None:
        cluster = Cluster("spark://a:1", Path("a.zip"), "python3", parse_conf(given))
        return for_job(cluster, {"spark.jars": "/c/kafka.jar,/c/pool.jar", "spark.x": "1"}).conf["spark.jars"]

    assert jars() == "/c/kafka.jar,/c/pool.jar"
    assert jars("spark.jars=/mine/store.jar") == "/c/kafka.jar,/c/pool.jar,/mine/store.jar"
    assert jars("spark.jars=/c/pool.jar") == "/c/kafka.jar,/c/pool.jar"
    without = Cluster("spark://a:1", Path("a.zip"), "python3", {"spark.x": "2"})
    assert for_job(without, {"spark.x": "1", "spark.y": "1"}).conf == {"spark.x": "2", "spark.y": "1"}


def test_an_address_where_nobody_listens_is_told_at_once_and_nothing_is_started(
    tmp_path: Path, label: Label, capsys: pytest.CaptureFixture[str]
) -> None:
    port = a_closed_port()

    status = submitted(tmp_path, an_archive(tmp_path / "a.zip", label), f"spark://127.0.0.1:{port}")

    said = capsys.readouterr().err.splitlines()
    assert status == 3
    assert said[0] == f"no Spark master answers at 127.0.0.1:{port}: connection refused"
    assert said[-1] == ErrorCode.NO_CONNECTED_PEERS
    assert not (tmp_path / "tables").exists()


def test_the_first_of_several_masters_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = Address("127.0.0.1", server.getsockname()[1])

        assert reach([Address("127.0.0.1", a_closed_port()), there]) == "127.0.0.1"


def test_a_master_that_does_not_answer_is_waited_for_no_longer_than_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def connect(address: Address, timeout: float) -> socket.socket:
        asked.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)

    with pytest.raises(TransportError, match="no Spark master answers at a:1: timed out; b:2: timed out"):
        reach([Address("a", 1), Address("b", 2)], within_s=0.5)

    assert asked == [0.5, 0.5]


def test_an_absent_archive_is_named_with_the_command_that_makes_one(
    tmp_path: Path, label: Label, capsys: pytest.CaptureFixture[str]
) -> None:
    status = submitted(tmp_path, tmp_path / "none.zip", "spark://127.0.0.1:1")

    said = capsys.readouterr().err.splitlines()
    assert status == 3
    assert said[0] == f"the archive {tmp_path / 'none.zip'} cannot be read: No such file or directory"
    assert "stagepost pipeline pack" in said[1]
    assert said[-1] == ErrorCode.STORAGE_UNAVAILABLE


@pytest.mark.parametrize("content", [b"", b"PK", b"{}"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="is no archive of this package"):
        read_label(path)


def test_a_zip_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("other", b"")

    with pytest.raises(ConfigError, match="is no archive of this package"):
        read_label(tmp_path / "a.zip")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": "3.1"}, f"for Python 3.1, and this is Python {python_version()}"),
        ({"stagepost": "0.0"}, "for stagepost 0.0, and this is stagepost "),
        ({"machine": "linux s390x"}, "for machine linux s390x, and this is machine "),
    ],
)
def test_an_archive_that_was_made_for_something_else_is_refused_with_both_sides(
    tmp_path: Path, label: Label, change: dict[str, str], said: str
) -> None:
    path = an_archive(tmp_path / "a.zip", msgspec.structs.replace(label, **change))

    with pytest.raises(ConfigError, match=said):
        require_fitting(path)


def test_a_python_that_this_machine_does_not_have_is_refused(tmp_path: Path, label: Label) -> None:
    archive = an_archive(tmp_path / "a.zip", label)
    from stagepost.pipeline.cluster.probe import Folders

    with pytest.raises(ConfigError, match="there is no no-such-python on this machine"):
        start_on_cluster(Cluster("spark://127.0.0.1:1", archive, "no-such-python", {}), Folders((), None))


def test_the_archive_holds_the_package_and_what_its_steps_import_and_no_tests(
    tmp_path: Path, label: Label
) -> None:
    made = pack(tmp_path / "a.zip")

    assert require_fitting(made.path) == label
    assert {"pyarrow", "deltalake", "arro3-core", "msgspec", "pynacl", "cffi"} <= set(label.packages)
    with zipfile.ZipFile(made.path) as archive:
        names = archive.namelist()
    assert {
        "stagepost/__init__.py",
        "stagepost/pipeline/steps/record_checks.py",
        "pyarrow/__init__.py",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    assert len(names) == len(set(names)) == made.files + 1
    assert list(tmp_path.iterdir()) == [made.path]


def test_a_place_where_no_archive_can_be_written_is_named(tmp_path: Path, label: Label) -> None:
    with pytest.raises(StorageError, match=r"cannot write the archive .*nowhere/a\.zip: No such file"):
        pack(tmp_path / "nowhere" / "a.zip")


# Checkpoints that do not belong to the tables beside them

GOOD = 'v1\n{"batchWatermarkMs":0}\n{"stagepost.remp.statuses":{"0":12}}\n'


def a_checkpoint(folder: Path, planned: int = 3, finished: int = 2, text: str = GOOD) -> Path:
    for name, last in (("offsets", planned), ("commits", finished)):
        (folder / name).mkdir(parents=True)
        for number in range(last + 1):
            (folder / name / str(number)).write_text(text)
            (folder / name / f".{number}.crc").write_bytes(b"")
    return folder


def tables_with(batch: int | None) -> Manifest:
    return Manifest(stream_batches={} if batch is None else {"topics": batch})


@pytest.mark.parametrize("taken", [2, 3])
def test_a_checkpoint_that_is_where_its_tables_are_is_gone_on_from(tmp_path: Path, taken: int) -> None:
    require_fitting_checkpoint(a_checkpoint(tmp_path / "checkpoint"), tables_with(taken), "topics")


def test_a_stream_that_begins_has_neither_checkpoint_nor_batches(tmp_path: Path) -> None:
    require_fitting_checkpoint(tmp_path / "checkpoint", tables_with(None), "topics")
    require_fitting_checkpoint(a_checkpoint(tmp_path / "other", 0, -1), tables_with(None), "topics")


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("taken", "change", "said"),
    [
        (3, shutil.rmtree, r"hold batch 3 of the stream, and the checkpoint .* is empty"),
        (
            4,
            lambda path: None,
            r"hold batch 4 of the stream, and the checkpoint .* knows batches up to 3 only",
        ),
        (
            1,
            lambda path: None,
            r"has finished batch 2 of the stream, and the tables hold batches up to 1 only",
        ),
        (None, lambda path: None, r"has finished batch 2 of the stream, and the tables hold none of it"),
        (
            3,
            lambda path: (path / "offsets/3").write_text("v9\n"),
            "begins with v9, and this program reads v1",
        ),
        (3, lambda path: (path / "offsets/3").write_text(""), "begins with nothing"),
        (
            3,
            lambda path: (path / "offsets/3").write_text('v1\n{}\n{"logOffset":5}\n'),
            "another kind of stream",
        ),
        (3, lambda path: (path / "offsets/3").write_text("v1\n{}\n"), "another kind of stream"),
    ],
)
def test_a_checkpoint_of_other_tables_or_another_stream_is_refused(
    tmp_path: Path, taken: int | None, change: Change, said: str
) -> None:
    checkpoint = a_checkpoint(tmp_path / "checkpoint")
    change(checkpoint)

    with pytest.raises(ConfigError, match=said) as caught:
        require_fitting_checkpoint(checkpoint, tables_with(taken), "topics")

    assert "--out" in caught.value.advice


def test_a_lost_checkpoint_is_made_anew_from_the_last_commit_and_one_that_is_there_stays(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    manifest = Manifest(stream_batches={"topics": 3}, offsets={"topics": GOOD})

    assert restore_checkpoint(checkpoint, manifest, "topics")
    require_fitting_checkpoint(checkpoint, manifest, "topics")
    assert planned_offsets(checkpoint) == {"stagepost.remp.statuses": {"0": 12}}
    assert planned_text(checkpoint, 3) == planned_text(checkpoint, 2) == GOOD

    later = Manifest(stream_batches={"topics": 4}, offsets={"topics": GOOD})
    assert not restore_checkpoint(checkpoint, later, "topics")
    with pytest.raises(ConfigError, match="knows batches up to 3 only"):
        require_fitting_checkpoint(checkpoint, later, "topics")
    assert not restore_checkpoint(tmp_path / "other", tables_with(3), "topics"), (
        "nothing says how far it read"
    )
    assert not restore_checkpoint(tmp_path / "other", Manifest(), "topics")
    assert not (tmp_path / "other").exists()


def test_a_checkpoint_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("a file where a folder has to be")
    manifest = Manifest(stream_batches={"topics": 3}, offsets={"topics": GOOD})

    with pytest.raises(StorageError, match="checkpoint cannot be written: "):
        restore_checkpoint(tmp_path / "checkpoint", manifest, "topics")
    with pytest.raises(StorageError, match="offsets/7 cannot be read: "):
        planned_text(tmp_path / "nothing", 7)


# What the first look at the workers makes of what they say; the real cluster's words are in the end-to-end tests


def test_an_output_folder_that_cannot_be_made_is_named_before_any_worker_is_asked(tmp_path: Path) -> None:
    need_packages()
    from stagepost.pipeline.cluster.probe import Folders, probe

    (tmp_path / "file").write_bytes(b"")
    out = tmp_path / "file" / "tables"

    with pytest.raises(StorageError, match=r"cannot write tables into .*: Not a directory"):
        probe(None, "spark://a:1", Folders((), out), 1.0)  # type: ignore[arg-type,unused-ignore]


def test_a_worker_looks_at_every_folder_and_leaves_its_mark_where_it_finds_the_drivers(
    tmp_path: Path,
) -> None:
    need_packages()
    from stagepost.pipeline.cluster.probe import look, refuse_faults

    mark, absent = tmp_path / "mark", str(tmp_path / "absent")
    mark.touch()
    twice = [look([str(tmp_path), str(mark)], str(mark), 3) for _ in range(2)]  # a task may be run again

    assert [(seen.faults, seen.marks) for seen in twice] == 2 * [((), ("mark-3",))]
    refuse_faults(twice, mark)
    (tmp_path / "mark-3").unlink()
    with pytest.raises(StorageError, match="is not there for the driver"):
        refuse_faults(twice, mark)
    seen = look([absent], f"{absent}/mark", 3)
    assert dict(seen.faults) == {absent: "the driver's file is not in it"}
    assert look([absent], None, 3).faults == ((absent, "no such file or directory"),)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            "x\nModuleNotFoundError: No module named 'stagepost'\ny",
            ErrorCode.CONFIG_INVALID,
            "the workers of M cannot load the package: ModuleNotFoundError: No module named 'stagepost'",
        ),
        (
            "ImportError: libarrow.so: cannot open shared object file",
            ErrorCode.CONFIG_INVALID,
            "the workers of M cannot load the package: ImportError: libarrow.so: cannot open shared object file",
        ),
        (
            "Job aborted\nCaused by: java.io.IOException: No space left on device",
            ErrorCode.NO_CONNECTED_PEERS,
            "the workers of M could not run a first task: java.io.IOException: No space left on device",
        ),
    ],
)
def test_what_spark_says_of_a_first_task_becomes_one_sentence(text: str, code: ErrorCode, said: str) -> None:
    need_packages()
    from stagepost.pipeline.cluster.probe import explained

    error = explained(text, "M")

    assert (error.code, error.text) == (code, said)
    assert error.advice
