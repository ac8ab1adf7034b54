"""What `make soak` leaves behind: results that can be read, repeated and believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs import results as results_module
from rigs.results import Result, by_promise, result, result_of, write_lines
from tests.soak import end_runs, fuzz_runs, suite_runs
from tests.soak.parts import Part, play
from tests.soak.run import in_all_parts, main
from tests.soak.runs import Run
from tests.soak.suite_runs import SUITE

ROOT = Path(__file__).parents[2]
NEEDED = {
    "promise", "test", "figure", "passed", "seed", "scale", "date", "revision", "command", "processors", "memory_mb"
}  # fmt: skip


def quiet(text: str) -> None:
    """Progress is of no interest here."""


A_RUN = Run("commit", seed=5, say=quiet)


def lines_of(path: Path) -> list[Result]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_one_line_per_promise_with_all_that_is_needed_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)

    code = main(
        ["--only", "fuzz", "--target", "upkeep", "--inputs", "300", "--seed", "7", "--processes", "1"]
    )

    assert code == 0
    lines = lines_of(tmp_path / "promises.jsonl")
    assert [line["promise"] for line in lines] == ["N1", "N2"]
    for line in lines:
        assert line.keys() >= NEEDED
        assert line["scale"] == "sample"
        assert line["passed"] is True
        assert "--target upkeep --seed 7" in str(line["command"])
    assert "300 inputs into 1 decoders, 0 failures" in capsys.readouterr().out
    assert {line["part"] for line in lines_of(tmp_path / "soak.jsonl")} == {"fuzz"}


def test_tests_that_prove_a_promise_exist() -> None:
    for tests in SUITE.values():
        for test in tests:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists(), test


def test_results_of_one_promise_become_one_line() -> None:
    first = result("N1", "mutated", "7 inputs", seed=5)
    second = result("N1", "guided", "3 inputs", faults=["broken"])
    other = result("N2", "mutated", "7 compared")

    lines = by_promise([first, other, second])

    assert lines == [
        {
            "promise": "N1",
            "test": "mutated; guided",
            "figure": "7 inputs; 3 inputs",
            "passed": False,
            "seed": 5,
        },
        {"promise": "N2", "test": "mutated", "figure": "7 compared", "passed": True, "seed": None},
    ]


def test_a_promise_names_its_parts_that_other_commands_ran_and_those_that_none_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)
    monkeypatch.setattr(results_module, "revision", lambda: "abc")
    monkeypatch.setattr("tests.soak.run.revision", lambda: "abc")
    earlier: Result = {**result("B10", "stories", "3 of them"), "part": "ends", "scale": "commit"}
    faulty: Result = {**result("B10", "sets", "2 of them", faults=["lost"]), "part": "changes"}
    write_lines("soak", "a command", [earlier, {**faulty, "scale": "commit"}])
    write_lines("soak", "a command", [{**earlier, "figure": "a try", "scale": "sample"}])
    ours: Result = {**result("B10", "primes", "200 networks", seed=5), "part": "primes-ends"}

    (line,) = by_promise(in_all_parts([ours], "commit"))

    storms, forged, live, whole = (
        f"part {one} was not run on this revision"
        for one in ("primes-storms", "forged-proofs", "live-changes", "suite")
    )
    assert line["figure"] == f"3 of them; 200 networks; {storms}; {forged}; 2 of them; {live}; {whole}"
    assert line["test"] == "stories; primes; sets"
    assert line["passed"] is False
    assert by_promise(in_all_parts([ours], "sample"))[0]["figure"] == "200 networks"
    for other in ("a later one", "abc-dirty"):
        monkeypatch.setattr("tests.soak.run.revision", lambda other=other: other)
        assert "3 of them" not in str(by_promise(in_all_parts([ours], "commit"))[0]["figure"])


def test_measurements_become_a_figure_in_words() -> None:
    found = result_of({"promise": "N3", "target": "memory", "inputs": 500, "peak_mb": 61.5}, "a storm", [])

    assert found["figure"] == "inputs 500, peak mb 61.5"
    assert found["passed"] is True


def test_part_that_breaks_down_has_broken_its_promises() -> None:
    def breaks(run: Run) -> Iterator[Result]:
        raise ValueError("a bug")

    def begins_and_breaks(run: Run) -> Iterator[Result]:
        yield result("N1", "part", "fine")
        raise ValueError("a bug")

    for part, told in (
        (Part("breaks", ("N1", "N2"), breaks), ["N1", "N2"]),
        (Part("begins", ("N1", "N2"), begins_and_breaks), ["N1", "N2"]),
        (Part("begins", ("N1",), begins_and_breaks), ["N1", "N1"]),
    ):
        found = list(play(part, A_RUN))
        assert [one["promise"] for one in found] == told
        assert found[-1]["passed"] is False
        assert "ValueError: a bug" in str(found[-1]["faults"])


def test_part_that_says_nothing_of_its_promise_has_broken_it_unless_it_was_a_small_try() -> None:
    silent = Part("silent", ("N1",), lambda run: iter(()))
    found = list(play(silent, A_RUN))

    assert [(one["promise"], one["passed"], one["figure"]) for one in found] == [
        ("N1", False, "gave no result")
    ]
    assert list(play(silent, Run("commit", seed=5, inputs=3, say=quiet))) == []


@pytest.mark.parametrize(
    ("run", "scale"),
    [
        (Run("commit", 1), "commit"),
        (Run("release", 1), "release"),
        (Run("commit", 1, inputs=3), "sample"),
        (Run("commit", 1, seconds=3), "sample"),
        (Run("commit", 1, target="cbor"), "sample"),
    ],
)
def test_counts_of_ones_own_are_no_scale(run: Run, scale: str) -> None:
    assert run.named_scale == scale


def test_guided_fuzzing_that_cannot_be_run_says_so_and_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(fuzz_runs, "missing_reason", lambda: "atheris is not installed")

    assert list(fuzz_runs.guided(Run("commit", seed=5, say=said.append))) == []
    assert said == ["guided fuzzing was not run: atheris is not installed"]


def test_shares_of_fuzzing_give_one_result_when_the_last_one_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)

    def played(share: tuple[int, int]) -> list[object]:
        run = Run("commit", 7, inputs=301, target="upkeep", share=share, say=quiet)
        return [one["figure"] for one in fuzz_runs.fuzz(run)]

    assert played((3, 3)) == []
    assert played((1, 3)) == []
    in_shares = played((2, 3))
    assert in_shares == played((1, 1))
    assert str(in_shares[0]).startswith("301 inputs into 1 decoders")


def test_shares_of_networks_give_the_figure_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "RESULTS", tmp_path)

    def played(share: tuple[int, int]) -> list[object]:
        run = Run("commit", 7, inputs=2, share=share, say=quiet)
        return [one["figure"] for one in end_runs.ends_of_primes(run)]

    assert played((1, 2)) == []
    in_shares = played((2, 2))
    assert in_shares == played((1, 1))
    assert str(in_shares[0]).startswith("2 networks from seed 7")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_do_each_try_once(count: int) -> None:
    shares = [Run("commit", 7, inputs=10, share=(place, count)) for place in range(1, count + 1)]
    assert [number for run in shares for number in run.tries({})] == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--share", "1/2", "--only", "ends"], "--share needs --seed"),
        (["--share", "1/2", "--only", "storms", "--seed", "5"], "storms has no shares"),
        (["--share", "3/2", "--seed", "5"], "'3/2' is not a share"),
    ],
)
def test_shares_that_could_not_be_joined_are_refused(
    arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert advice in capsys.readouterr().err


def test_only_the_promises_that_were_asked_for_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        suite_runs, "SUITE", {"O5": ("tests/unit/test_requirements.py",), "S7": ("nothing.py",)}
    )
    part = Part("suite", ("O5", "S7"), suite_runs.suite)

    found = list(play(part, Run("commit", 5, promises=("O5",), say=quiet)))

    assert [(one["promise"], one["passed"]) for one in found] == [("O5", True)]
