"""Progress of the pipeline: also where no terminal is, and not too much of it there."""

from __future__ import annotations

import pytest

from stagepost.cli.pipeline.progress import LOG_LINE_EVERY_S, PipelineProgress


def test_off_a_terminal_a_line_is_shown_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = PipelineProgress(lambda: now, is_terminal=lambda: False)
    progress.say("starting")
    now = LOG_LINE_EVERY_S - 0.1
    progress.say("too early")
    now = LOG_LINE_EVERY_S
    progress.at_point("after write")
    progress.at_point("before write")
    now = 3 * LOG_LINE_EVERY_S
    progress.at_point("before write")
    assert capsys.readouterr() == ("", "starting\nrecords are checked\n")


def test_a_person_at_a_terminal_sees_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PipelineProgress(lambda: 0.0, is_terminal=lambda: True)
    for text in ("one", "two"):
        progress.say(text)
    assert capsys.readouterr().err == "one\ntwo\n"
