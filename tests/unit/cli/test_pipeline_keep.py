"""The time for which tables keep their days: of the flag, else of the settings file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from stagepost.cli.options.pipeline import keep_ms_from
from stagepost.errors import ConfigFaults

DAY_MS = 86_400_000


def settings(folder: Path, line: str) -> Path:
    path = folder / "stagepost.toml"
    path.write_text(f"[pipeline]\n{line}\n")
    return path


def test_the_flag_wins_over_the_file(tmp_path: Path) -> None:
    file = settings(tmp_path, 'keep = "30d"')
    assert keep_ms_from(None, file) == 30 * DAY_MS
    assert keep_ms_from(86_400.0, file) == DAY_MS


def test_without_either_every_day_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert keep_ms_from(None, None) is None
    settings(tmp_path, 'keep = "1d"')
    assert keep_ms_from(None, None) == DAY_MS


def test_less_than_a_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="less than one day"):
        keep_ms_from(86_399.9, None)
    for line in ('keep = "23h59m59s"', "keep = 30", 'keep = "a month"'):
        with pytest.raises(ConfigFaults, match="duration of at least one day"):
            keep_ms_from(None, settings(tmp_path, line))
