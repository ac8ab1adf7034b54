"""The harness can fail: planted defects are found, and the printed line finds them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import ItemScanner
from stagepost.ground.wire.mux_queues import Ingress
from tests.fuzz import harness, mutate
from tests.fuzz.harness import Failure, Target, Verdict, run_range
from tests.fuzz.targets import target

SEED = 20
INPUTS = 4_000

Plant = Callable[[pytest.MonkeyPatch], None]


def reads_past_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CborReader, "peek", lambda reader: reader.data[reader.offset])


def accepts_what_is_left_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CborReader, "finish", lambda reader, what: None)


def believes_declared_lengths(patch: pytest.MonkeyPatch) -> None:
    honest = CborReader.argument

    def argument(reader: CborReader, major: int, what: str) -> int:
        length = honest(reader, major, what)
        room = bytearray(min(length, 1 << 24)) if major >= 2 else b""
        return length if room is not None else 0

    patch.setattr(CborReader, "argument", argument)


def loses_high_bits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CborReader, "unsigned", lambda reader, bits, what: reader.argument(0, what) & 0xFF)


def stops_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = ItemScanner.scan

    def scan(scanner: ItemScanner, data: bytes) -> int | None:
        end = honest(scanner, data)
        return end - 1 if end else end

    patch.setattr(ItemScanner, "scan", scan)


def queues_without_limit(patch: pytest.MonkeyPatch) -> None:
    def put(ingress: Ingress, payload: bytes) -> bool:
        ingress.queued_bytes += len(payload)
        return True

    patch.setattr(Ingress, "put", put)


@pytest.mark.parametrize(
    ("plant", "name", "symptom"),
    [
        (reads_past_the_end, "submission", "IndexError"),
        (accepts_what_is_left_over, "message", "does not keep its bytes"),
        (accepts_what_is_left_over, "handshake", "would be written differently"),
        (believes_declared_lengths, "message", "bytes of memory were taken"),
        (loses_high_bits, "cbor", "cbor2"),
        (loses_high_bits, "upkeep", "cbor2 reads"),
        (stops_too_early, "cbor", "cbor2 stops at"),
        (queues_without_limit, "mux", "more waits than the limit allows"),
    ],
)
def test_planted_defect_is_found_and_found_again(
    plant: Plant, name: str, symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = target(name)
    plant(monkeypatch)

    failures = _failures(chosen)
    found = next((failure for failure in failures if symptom in failure.text), None)

    assert found is not None, f"{symptom!r} is not among {[failure.text for failure in failures]}"
    assert f"--target {name} --seed {SEED} --index {found.index}" in str(found)
    again = run_range(chosen, SEED, found.index, 1)
    assert [(failure.index, failure.input) for failure in again.failures] == [(found.index, found.input)]
    monkeypatch.undo()
    assert run_range(chosen, SEED, found.index, 1).failures == []


def _failures(chosen: Target) -> list[Failure]:
    """In short ranges, since a range keeps only its first few failures."""
    found: list[Failure] = []
    for start in range(0, INPUTS, 20):
        found += run_range(chosen, SEED, start, 20).failures
    return found


def test_decoder_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ending(data: bytes) -> Verdict:
        while data:
            pass
        return Verdict.REFUSED

    monkeypatch.setattr(harness, "INPUT_SECONDS_MAX", 0.01)

    outcome = run_range(Target("planted", (b"\x80",), never_ending), SEED, 0, 1)

    assert ["NeverEnding" in failure.text for failure in outcome.failures] == [True]


def test_equal_numbers_give_equal_inputs() -> None:
    samples = target("upkeep").samples

    first = [mutate.input_for(samples, SEED, index) for index in range(500)]
    second = [mutate.input_for(samples, SEED, index) for index in range(500)]
    other = [mutate.input_for(samples, SEED + 1, index) for index in range(500)]

    assert first == second
    assert first != other


def test_every_mutation_takes_every_length() -> None:
    samples: tuple[Any, ...] = (b"", b"\x82\x01\x02")
    lengths = {len(mutate.input_for(samples, SEED, index)) for index in range(3_000)}

    assert 0 in lengths
    assert max(lengths) <= mutate.INPUT_BYTES_MAX
