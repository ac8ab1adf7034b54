"""Promises that `make test` proves in full, once more by themselves, so that each has a result of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from rigs.results import ROOT, Result, result
from tests.soak.runs import Run

SUITE: dict[str, tuple[str, ...]] = {
    "D3": (
        "tests/unit/dmq/node/test_sqlite_store.py::test_a_flipped_byte_is_noticed_in_the_first_kilobyte_everywhere",
        "tests/unit/dmq/node/test_sqlite_store.py::test_a_flipped_byte_is_noticed_in_samples_of_the_whole_file",
        "tests/unit/dmq/node/test_sqlite_store.py::test_a_file_that_was_cut_is_noticed",
        "tests/unit/dmq/node/test_sqlite_store.py::test_a_bad_row_is_moved_aside_and_reported",
        "tests/unit/dmq/node/test_sqlite_store.py::test_an_unreadable_file_is_kept_under_another_name_and_its_rows_are_copied",
        "tests/unit/dmq/node/test_sqlite_store.py::test_damage_inside_the_log_is_noticed",
        "tests/unit/topics/test_topic_damage.py",
    ),
    # Of topics and of a full node; `disks` does real nodes.
    "D4": ("tests/unit/topics/test_topic_bad_disks.py", "tests/unit/full_node/test_full_node_disk.py"),
    # The order of eviction; `delivery-worlds` does the reports.
    "D6": (
        "tests/unit/delivery/test_delivery_queue.py::test_entries_without_a_waiting_caller_go_first",
        "tests/unit/delivery/test_delivery_queue.py::test_last_used_decides_who_goes",
        "tests/unit/delivery/test_delivery_queue.py::test_in_flight_entries_survive_ten_thousand_inserts",
    ),
    # Proofs of ends in networks with liars; `ends` and `primes-ends` do many of them.
    "B10": ("tests/simulation/test_primes_ends.py", "tests/unit/chain/proofs/test_forged_proofs.py"),
    "S7": ("tests/unit/dmq/test_equivocation.py",),
    "N10": (
        "tests/unit/dmq/test_puller.py::test_320_peers_that_announce_and_withhold_delay_a_message_by_3_s_at_most",
    ),
    "P4": (
        "tests/unit/pipeline/tables/test_pipeline_manifest.py::test_a_second_driver_is_refused_and_told_who_holds_the_tables",
        "tests/unit/pipeline/tables/test_pipeline_manifest.py::test_a_driver_that_was_killed_holds_nothing",
        "tests/unit/pipeline/tables/test_pipeline_tables.py::test_two_drivers_on_one_folder_the_second_is_refused",
    ),
    "P5": (
        "tests/unit/pipeline/tables/test_pipeline_tables.py::test_every_input_row_is_counted_repeated_or_quarantined_with_its_reason",
    ),
    "O5": ("tests/unit/test_requirements.py",),
    "N9": (
        "tests/unit/dmq/test_mempool.py::test_the_count_is_bounded_and_recovers_on_expiry",
        "tests/unit/dmq/test_mempool.py::test_the_bytes_are_bounded_at_exactly_the_limit",
        "tests/unit/dmq/node/test_intake.py::test_a_full_mempool_refuses_and_takes_again_after_expiry",
    ),
    # Wrong key, wrong period, wrong pool; `signed-bits` does the bits.
    "S1": ("tests/unit/dmq/test_validation.py",),
    "O2": (
        "tests/simulation/test_dmq_world.py::test_the_same_seed_is_the_same_run_whatever_python_hashes",
        "tests/unit/simulation/test_world.py::test_the_same_seed_is_the_same_run",
    ),
    "O6": (
        "tests/simulation/test_planted_defects.py",
        "tests/unit/dmq/test_planted_defects.py",
        "tests/fuzz/test_harness.py",
        "tests/fuzz/test_guided.py::test_planted_defect_is_found_by_guidance_and_not_by_guessing",
    ),
}
"""Promise, and the tests whose passing is its proof."""

SUITE_PROMISES = tuple(SUITE)
PASSED = re.compile(r"(\d+) passed")
WITHIN_S = 1_800


def suite(run: Run) -> Iterator[Result]:
    chosen = {one: tests for one, tests in SUITE.items() if not run.promises or one in run.promises}
    for promise, tests in chosen.items():
        run.say(f"{promise}: {len(tests)} tests or files of tests")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        passed = PASSED.search(ended.stdout)
        count = int(passed[1]) if passed else 0
        faults = [] if ended.returncode == 0 and count else [f"{promise}: {ended.stdout[-3_000:]}"]
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        yield result(promise, ", ".join(files), f"{count} tests passed", faults=faults)
