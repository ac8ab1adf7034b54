"""An address with a scheme is no path: every option that takes a path refuses it, and no folder is made of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stagepost.cli.main import SUBCOMMANDS, run, stagepost
from stagepost.cli.options.local_paths import _LocalPath
from stagepost.errors import ConfigError
from stagepost.ground.files.data_folder import DataFolder
from stagepost.ground.files.local_paths import require_local_path
from stagepost.pipeline.sources.topic_places import place_of
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes

REMOTE = "s3a://bucket/tables"


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not [name for name in os.listdir(tmp_path) if ":" in name]


def commands(
    command: click.Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from commands(inner, (*words, name))


def test_every_option_of_every_command_that_takes_a_path_refuses_an_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = 0
    for name in SUBCOMMANDS:
        found = stagepost.get_command(click.Context(stagepost), name)
        assert found is not None
        for words, command in commands(found, (name,)):
            for parameter in command.params:
                if not isinstance(parameter.type, click.Path):
                    continue
                asked += 1
                given = [parameter.opts[0], REMOTE] if isinstance(parameter, click.Option) else [REMOTE]
                with pytest.raises(ConfigError, match=f"{REMOTE} is an address with the scheme s3a"):
                    command.make_context(words[-1], given)
    assert asked > 50


def test_the_pipeline_refuses_before_anything_starts_and_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    (tmp_path / "dump.jsonl").touch()
    given = {"--input": "dump.jsonl", "--validator-sets": "sets.json", "--tables": "tables"}

    for option in given:
        line = [word for pair in {**given, option: REMOTE}.items() for word in pair]
        assert run(["pipeline", "backfill", *line]) == 2
        assert f"{option} {REMOTE} is an address with the scheme s3a" in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()


def test_a_file_address_is_refused_with_the_path_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "export", "messages", "--tables", "file:///srv/tables", "--out", "m.csv"]) == 2
    assert "give the path alone: /srv/tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", [REMOTE, "hdfs://name:9000/x", "S3:/bucket", "file:/x", "nas:/exports", "wasb+x.1-y://a"]
)
def test_what_begins_with_a_scheme_and_a_slash_is_an_address_also_as_a_path(text: str) -> None:
    for path in (text, Path(text)):
        with pytest.raises(ConfigError, match="is an address with the scheme"):
            require_local_path(path)


@pytest.mark.parametrize(
    "text", ["", "-", "tables", "/srv/s3a:/x", "./a:b/c", "a:b", "2026-01-31T12:00/x", "é://x"]
)
def test_what_has_no_scheme_is_a_path(text: str) -> None:
    require_local_path(text)


def test_programs_that_use_the_parts_are_refused_alike() -> None:
    with pytest.raises(ConfigError, match="its scheme is s3a"):
        TableStore.at(REMOTE)
    with pytest.raises(ConfigError, match="scheme s3a"):
        place_of({"path": REMOTE})
    with pytest.raises(ConfigError, match="data folder s3a:/bucket/tables is an address"):
        DataFolder(Path(REMOTE)).open()


def test_a_path_type_stays_what_it_was() -> None:
    given = click.Path(path_type=Path, allow_dash=True)
    local = _LocalPath(given)

    assert local.convert("a/b", None, None) == Path("a/b")
    assert local.allow_dash
