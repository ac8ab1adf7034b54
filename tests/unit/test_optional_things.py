"""The one switch that turns skips into failures does what it says."""

from __future__ import annotations

import pytest

from rigs.optional import require, required_things


@pytest.mark.parametrize(
    ("setting", "names"),
    [("", set()), ("java", {"java"}), ("java, kafka,", {"java", "kafka"}), (" , ", set())],
)
def test_the_list_of_required_things_may_be_empty_or_loosely_written(
    setting: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEPOST_REQUIRE", setting)

    assert required_things() == names


def test_a_missing_thing_skips_when_it_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEPOST_REQUIRE", "kafka")

    with pytest.raises(pytest.skip.Exception, match="no Java found"):
        require("java", "no Java found")


def test_a_missing_thing_fails_when_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEPOST_REQUIRE", "java,kafka")

    with pytest.raises(pytest.fail.Exception, match="no Java found"):
        require("java", "no Java found")


def test_an_unknown_thing_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="coffee"):
        require("coffee", "none left")
