"""Mutants of promises: for each promise a defect, and the tests of that promise which notice it.

A `Mutant` is code that Python runs before a test: `make soak` plants it and runs the promise's own tests, which must fail. A
`PlantedTest` is a test that plants the defect itself and passes when the promise's check notices it; `make test` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`tests` are pytest node ids; each must fail."""

    name: str
    tests: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class PlantedTest:
    name: str
    test: str


CATCHAIN = (
    "tests/simulation/test_catchain_agreement.py::"
    "test_honest_members_end_with_the_same_messages_and_blame_the_same_forkers"
)
WAY_IN = "tests/simulation/test_intake_model.py::test_a_defect_planted_in_the_way_in_is_noticed"
DELIVERY = "tests/simulation/test_delivery_planted_defects.py::test_planted_defect_is_caught"
WORLDS = "tests/simulation/test_planted_defects.py::test_a_planted_defect_is_caught"
FUZZ = "tests/fuzz/test_harness.py::test_planted_defect_is_found_and_found_again"

MUTANTS: Mapping[str, tuple[Mutant | PlantedTest, ...]] = {
    "D1": (
        PlantedTest(
            "a topic acknowledges what it has not written",
            "tests/e2e/test_kill_topic_writer.py::test_a_planted_defect_of_the_writer_is_found",
        ),
    ),
    "D2": (
        PlantedTest(
            "a store does not wait for the disk",
            "tests/e2e/test_power_cut.py::test_a_build_that_does_not_wait_for_the_disk_loses_messages_by_a_power_cut",
        ),
    ),
    "D3": (
        Mutant(
            "a damaged log is taken for whole",
            ("tests/unit/dmq/node/test_sqlite_store.py::test_damage_inside_the_log_is_noticed",),
            """
            from stagepost.ground.storage import damage
            damage.damage_in = lambda log: None
            """,
        ),
    ),
    "D4": (
        PlantedTest(
            "a store takes a failed write for a good one",
            "tests/hostile/test_bad_disks.py::test_a_defect_planted_in_the_store_is_noticed",
        ),
        Mutant(
            "a full node tells statuses that its disk has refused",
            (
                "tests/unit/full_node/test_full_node_disk.py::"
                "test_a_node_that_ends_on_a_full_disk_tells_nobody_of_what_it_could_not_write",
            ),
            """
            from stagepost.full_node.status_topic import StatusTopic
            appended = StatusTopic._appended
            StatusTopic._appended = lambda topic, entries, outcome: appended(topic, entries, [])
            """,
        ),
    ),
    "D5": (PlantedTest("answers before it is on disk", DELIVERY),),
    "D6": (
        PlantedTest("evicts silently", DELIVERY),
        Mutant(
            "evicts entries with a waiting caller first",
            ("tests/unit/delivery/test_delivery_queue.py::test_entries_without_a_waiting_caller_go_first",),
            """
            from heapq import heappush
            from stagepost.delivery.outbox import Outbox
            def remember(box, entry):
                heappush(box._idle[not entry.is_awaited], (entry.last_used, entry.sequence))
            Outbox._remember_idle = remember
            """,
        ),
        Mutant(
            "evicts the most recently used entry first",
            ("tests/unit/delivery/test_delivery_queue.py::test_last_used_decides_who_goes",),
            """
            from stagepost.delivery.outbox import Outbox
            room_for = Outbox.room_for
            def newest_first(box, size):
                found = room_for(box, size)
                if not found:
                    return found
                idle = [entry for entry in box if entry.is_awaited == found[0].is_awaited and entry.status is found[0].status]
                return tuple(sorted(idle, key=lambda entry: -entry.last_used)[: len(found)])
            Outbox.room_for = newest_first
            """,
        ),
    ),
    "D7": (
        PlantedTest("grants every claim", DELIVERY),
        Mutant(
            "a receiver forgets by any clock",
            (
                "tests/unit/delivery/test_delivery_receiver.py::"
                "test_a_clock_that_is_wrong_for_minutes_lets_no_message_run_twice[86400.0-True]",
            ),
            """
            from stagepost.ground.loop.clock import SureTime
            SureTime.at = lambda sure, unix_s, mono_s: unix_s
            """,
        ),
    ),
    "D8": (PlantedTest("sends the newest first", DELIVERY),),
    "B1": (
        Mutant(
            "a member does not hear every seventh block that is delivered",
            (CATCHAIN,),
            """
            from stagepost.remp.queue.reliable_queue import ReliableQueue
            heard, count = ReliableQueue.block_delivered, [0]
            def half(queue, *block):
                count[0] += 1
                return heard(queue, *block) if count[0] % 7 else []
            ReliableQueue.block_delivered = half
            """,
        ),
    ),
    "B2": (
        Mutant(
            "a body that did not come at once is never asked for",
            (CATCHAIN,),
            """
            from stagepost.remp.queue.body_search import BodySearch
            BodySearch.begin = lambda search, message_id, member, now: None
            BodySearch.again = lambda search, now, announced_by: []
            BodySearch.not_had = lambda search, message_id, now, announced_by: None
            """,
        ),
    ),
    "B3": (
        PlantedTest(
            "a message in two blocks",
            "tests/simulation/test_primes.py::test_a_message_in_two_blocks_is_found",
        ),
    ),
    "B4": (
        Mutant(
            "blocks that become ready together are delivered backwards",
            (CATCHAIN,),
            """
            from stagepost.catchain.member import Member
            settle = Member._settle
            def backwards(member, outcome, now):
                outcome.delivered.reverse()
                settle(member, outcome, now)
            Member._settle = backwards
            """,
        ),
    ),
    "B5": (
        PlantedTest(
            "an old session is accepted",
            "tests/simulation/test_primes_sessions.py::test_a_planted_defect_is_noticed",
        ),
    ),
    "B6": (
        Mutant(
            "a fork is blamed and its proof thrown away",
            (CATCHAIN,),
            """
            from stagepost.catchain.graph import Graph
            blame = Graph._blame
            Graph._blame = lambda graph, source, proof, outcome: blame(graph, source, None, outcome)
            """,
        ),
        PlantedTest(
            "a delay is blamed",
            "tests/simulation/test_catchain_agreement.py::test_a_planted_defect_is_noticed",
        ),
    ),
    "B7": (
        Mutant(
            "every signature of a receipt counts",
            (
                "tests/simulation/test_primes_sessions.py::"
                "test_honest_receipts_count_and_every_lie_is_refused_for_its_reason",
            ),
            """
            from stagepost.remp.receipts.receipt import Receipt
            Receipt.is_signed_by = lambda receipt, public_key: True
            """,
        ),
    ),
    "B8": (
        PlantedTest(
            "time-outs stay short under delays",
            "tests/simulation/test_chain_agreement.py::test_a_planted_defect_is_noticed",
        ),
    ),
    "B9": (
        Mutant(
            "a lost quorum is not reported",
            (
                "tests/simulation/test_catchain_quorum.py::"
                "test_a_third_that_falls_silent_is_told_in_time_and_cleared_when_it_is_back",
            ),
            """
            from stagepost.catchain.quorum_watch import QuorumWatch
            QuorumWatch.look = lambda watch, now: None
            """,
        ),
    ),
    "B10": (
        PlantedTest(
            "a verifier leaves a rule out",
            "tests/simulation/test_primes_ends.py::test_a_verifier_that_leaves_a_rule_out_believes_a_false_proof",
        ),
    ),
    "S1": (
        PlantedTest("believes every signature", WORLDS),
        Mutant(
            "the verifying process finds every signature valid",
            ("tests/unit/dmq/test_validation.py::test_another_process_judges_signatures_as_this_one_does",),
            """
            from stagepost.ground.signatures import worker
            if "worker" in " ".join(__import__("sys").orig_argv):
                worker.verify_signed = lambda key, signed: True
                __import__("stagepost.ground.crypto.ed25519").ground.crypto.ed25519.verify_signed = worker.verify_signed
            """,
        ),
    ),
    "S2": (PlantedTest("a full mempool refuses a message and remembers it for its pool", WAY_IN),),
    "S3": (PlantedTest("messages are forgotten at a restart", WAY_IN),),
    "S4": (
        PlantedTest("a clock that was set back is believed", WAY_IN),
        Mutant(
            "a clock that goes a day ahead is believed at once",
            (
                "tests/unit/dmq/node/test_intake.py::"
                "test_a_message_accepted_while_the_clock_is_a_day_ahead_costs_others_no_day",
            ),
            """
            from stagepost.ground.loop.clock import FlooredClock
            FlooredClock.lead_s = 0.0
            """,
        ),
        Mutant(
            "the way back leaves no note, so what was forgotten may come again",
            (
                "tests/unit/dmq/node/test_stored_time.py::"
                "test_recovery_sets_the_time_keeps_every_message_and_leaves_the_note_of_a_restore",
            ),
            """
            from stagepost.dmq.node import stored_time
            stored_time._leave_note = lambda data, now_ms: None
            """,
        ),
    ),
    "S5": (
        PlantedTest(
            "no difference of clocks is allowed",
            "tests/simulation/test_skews.py::test_a_node_that_allows_no_skew_is_noticed",
        ),
    ),
    "S6": (PlantedTest("a lower certificate number is accepted", WAY_IN),),
    "S7": (
        Mutant(
            "second bodies of a slot are not noticed",
            (
                "tests/unit/dmq/test_equivocation.py::test_every_second_body_is_flagged_and_refused_if_that_is_wanted",
            ),
            """
            from stagepost.dmq.equivocation import Equivocations
            Equivocations.hold = lambda book, message: None
            """,
        ),
    ),
    "S8": (
        Mutant(
            "an evolved key is written in place",
            (
                "tests/hostile/test_key_care.py::test_a_kill_at_any_step_of_an_evolution_leaves_one_usable_key",
            ),
            """
            from stagepost.dmq.keys import key_files
            def in_place(folder, name, text, mode):
                os = key_files.os  # the test kills at the steps of this one
                descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
                os.write(descriptor, text[:50])
                os.write(descriptor, text[50:])
                os.close(descriptor)
                os.fsync(folder)
            key_files._put = in_place
            """,
        ),
    ),
    "S9": (
        Mutant(
            "a secret that others can read is used",
            (
                "tests/hostile/test_key_care.py::"
                "test_secret_files_that_others_can_reach_are_refused_by_every_command",
            ),
            """
            from stagepost.dmq.keys import key_files
            key_files._require_private = lambda path, status, content: None
            """,
        ),
    ),
    "S10": (
        Mutant(
            "a key file is written to the error output",
            (
                "tests/hostile/test_key_care.py::test_no_secret_is_told_by_node_commands_errors_or_process_lists",
            ),
            """
            import sys
            from stagepost.dmq.keys import key_files
            read = key_files._read
            def read_aloud(path):
                found = read(path)
                sys.stderr.write(found[0].decode(errors="replace"))
                return found
            key_files._read = read_aloud
            """,
        ),
    ),
    "N1": (PlantedTest("a decoder reads past the end", FUZZ),),
    "N2": (PlantedTest("a decoder loses high bits", FUZZ),),
    "N3": (
        Mutant(
            "each connection holds two megabytes",
            (
                "tests/hostile/test_storms.py::test_storm_harms_nobody_else"
                "[frames that are large, slow or never finished]",
            ),
            """
            from stagepost.ground.wire.mux import SegmentReader
            begin = SegmentReader.__init__
            def begin_and_hold(reader, *arguments):
                begin(reader, *arguments)
                reader.held = bytearray(b"x") * 2_000_000
            SegmentReader.__init__ = begin_and_hold
            """,
        ),
        Mutant(
            "a stranger that brings nothing keeps its place for ever",
            (
                "tests/simulation/test_valency.py::"
                "test_a_peer_that_brings_nothing_keeps_its_place_in_a_full_node_for_ten_minutes",
            ),
            """
            from stagepost.dmq.node.peer_link import PeerLink
            PeerLink.worth = lambda link: 1.0
            """,
        ),
    ),
    "N4": (
        Mutant(
            "nobody has to prove itself, or to finish, in time",
            ("tests/hostile/test_storms.py::test_storm_harms_nobody_else[a byte a second]",),
            """
            from stagepost.ground.net import bearer, conversation, doorway
            async def proving(place, bearer, proof, on_late=None):
                return await proof
            doorway.proving = proving
            bearer.SEGMENT_COMPLETION_TIMEOUT_S = 1e6
            conversation.Conversation._watch = lambda talk: None
            """,
        ),
    ),
    "N5": (
        Mutant(
            "forged messages are taken for good ones",
            ("tests/hostile/test_storms.py::test_storm_harms_nobody_else[forged signatures at full speed]",),
            """
            from stagepost.dmq.validation import MessageValidator
            MessageValidator.check_signatures = lambda validator, message: None
            MessageValidator.claims = lambda validator, message: None
            """,
        ),
    ),
    "N6": (
        Mutant(
            "a submitter may have as much in processing as it likes",
            (
                "tests/unit/full_node/test_submitter_shares.py::"
                "test_1500_costly_messages_of_one_submitter_leave_a_few_blocks_of_backlog",
            ),
            """
            from stagepost.full_node.staged_sending import SubmitterShares
            SubmitterShares.check = lambda shares, submitter: None
            """,
        ),
        Mutant(
            "a pool may send as often as it likes",
            (
                "tests/hostile/test_crowds.py::test_a_valid_flood_by_one_pool_is_limited_and_nobody_else_is_refused",
            ),
            """
            from stagepost.dmq.pool_memory import PoolMemories
            PoolMemories.check_gap = lambda memories, pool_id, mono: None
            """,
        ),
    ),
    "N7": (
        Mutant(
            "a listener has a hundred places",
            ("tests/hostile/test_crowds.py::test_open_connections_are_all_answered_and_told",),
            """
            from stagepost.ground.net.sockets import Server
            begin = Server.__init__
            def begin_small(server, on_connection, trace, connections_max, socket_path=None):
                begin(server, on_connection, trace, min(connections_max, 100), socket_path)
            Server.__init__ = begin_small
            """,
        ),
    ),
    "N8": (
        Mutant(
            "a consumer that is slow is told the same again",
            ("tests/hostile/test_storms.py::test_storm_harms_nobody_else[consumers that do not read]",),
            """
            from stagepost.dmq.node.mempool_feed import MempoolFeed
            take = MempoolFeed.take
            def take_again(feed, count_max):
                before = feed._cursor
                messages, has_more = take(feed, count_max)
                if len(messages) > 1:
                    feed._cursor = before + 1
                return messages, has_more
            MempoolFeed.take = take_again
            """,
        ),
    ),
    "N9": (
        Mutant(
            "a mempool has no limits",
            (
                "tests/unit/dmq/test_mempool.py::test_the_count_is_bounded_and_recovers_on_expiry",
                "tests/unit/dmq/test_mempool.py::test_the_bytes_are_bounded_at_exactly_the_limit",
            ),
            """
            from stagepost.dmq.mempool import Mempool
            Mempool.check_limits = lambda mempool, message, *more: None
            """,
        ),
    ),
    "N10": (
        PlantedTest("leases never expire", WORLDS),
        Mutant(
            "a stuck download is never tried elsewhere",
            (
                "tests/unit/dmq/test_puller.py::"
                "test_320_peers_that_announce_and_withhold_delay_a_message_by_3_s_at_most",
            ),
            """
            from stagepost.dmq import downloads
            downloads.STUCK_S = 1e9
            """,
        ),
    ),
    "N11": (PlantedTest("gives up on a lost peer among many hostile ones", WORLDS),),
    "P1": (
        PlantedTest(
            "a row of the tables is another",
            "tests/unit/pipeline/tables/test_pipeline_tables.py::test_check_finds_the_tables_right_and_a_changed_row_wrong",
        ),
    ),
    "P2": (
        Mutant(
            "a batch that comes again is taken again",
            (
                "tests/unit/pipeline/tables/test_pipeline_tables.py::"
                "test_a_stream_gives_what_a_backfill_gives_and_its_replay_changes_nothing",
            ),
            """
            from stagepost.pipeline.tables.manifest import OfStream
            OfStream.is_taken = lambda batch, manifest: False
            """,
        ),
    ),
    "P3": (
        PlantedTest(
            "the writer of a log acknowledges what is not written",
            "tests/e2e/test_kill_topic_writer.py::test_a_planted_defect_of_the_writer_is_found",
        ),
    ),
    "P4": (
        Mutant(
            "the lock of a driver is not taken",
            (
                "tests/unit/pipeline/tables/test_pipeline_manifest.py::"
                "test_a_second_driver_is_refused_and_told_who_holds_the_tables",
            ),
            """
            from stagepost.pipeline.tables.own_files import DriverLock
            DriverLock.__init__ = lambda lock, folder: None
            DriverLock.release = lambda lock: None
            """,
        ),
    ),
    "P5": (
        Mutant(
            "a bad record is quarantined for another reason",
            (
                "tests/unit/pipeline/tables/test_pipeline_tables.py::"
                "test_every_input_row_is_counted_repeated_or_quarantined_with_its_reason",
            ),
            """
            from stagepost.pipeline.steps import record_checks
            honest = record_checks._unreadable
            record_checks._unreadable = lambda reason, key, value: honest("ANOTHER", key, value)
            """,
        ),
    ),
    "O1": (
        PlantedTest(
            "a node sweeps nothing",
            "tests/simulation/test_days.py::test_a_node_that_sweeps_nothing_is_noticed",
        ),
        Mutant(
            "a full node forgets no session",
            (
                "tests/unit/trace/test_session_records.py::"
                "test_a_switch_appends_two_records_however_many_sessions_there_were_and_memory_stays",
            ),
            """
            from stagepost.remp.validator_sets import ValidatorSets
            ValidatorSets.forget_before = lambda sets, time_ms: None
            """,
        ),
    ),
    "O2": (
        Mutant(
            "the simulation draws from the system",
            ("tests/unit/simulation/test_world.py::test_the_same_seed_is_the_same_run",),
            """
            from random import SystemRandom
            from stagepost.simulation import network
            network.Random = lambda *seed: SystemRandom()
            """,
        ),
    ),
    "O3": (
        Mutant(
            "each row of a start is checked together with all before it",
            ("tests/hostile/test_stops.py::test_a_node_with_thousands_of_stored_messages_is_ready_in_time",),
            """
            from hashlib import sha256
            from stagepost.dmq.node.stored_messages import MessageRows
            read, before = MessageRows.read, bytearray()
            def read_all_again(table, row):
                before.extend(b"".join(part for part in row if isinstance(part, bytes)))
                sha256(before).digest()
                return read(table, row)
            MessageRows.read = read_all_again
            """,
        ),
    ),
    "O4": (
        Mutant(
            "a stopped node takes twenty seconds",
            ("tests/hostile/test_stops.py::test_a_stop_under_load_loses_nothing_and_lets_no_replay_in",),
            """
            import asyncio
            from stagepost.dmq.node.intake import Intake
            close = Intake.close
            async def close_late(intake):
                await asyncio.sleep(20)
                await close(intake)
            Intake.close = close_late
            """,
        ),
    ),
    "O5": (
        PlantedTest("a pin without a hash", "tests/unit/test_requirements.py::test_a_planted_fault_is_found"),
    ),
    "O6": (
        Mutant(
            "the checkers of the simulation find nothing",
            ("tests/simulation/test_planted_defects.py::test_a_planted_defect_is_caught",),
            """
            from stagepost.simulation import checkers
            checkers.judge = lambda history, rules: []
            """,
        ),
    ),
    "W1": (PlantedTest("gives up on a lost peer", WORLDS),),
}
