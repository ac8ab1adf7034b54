"""One health: the judging function, its limits, and what could not be read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stagepost.ground.telemetry.health import (
    SILENT_SHOWN,
    STALLED_AFTER_S,
    Finding,
    Health,
    HealthFacts,
    HealthReport,
    NodeReading,
    OutboxReading,
    Severity,
    Unread,
    judge,
)
from stagepost.ground.telemetry.status import (
    DiskStatus,
    FullNodePage,
    MemberStatus,
    NetworkStatus,
    SessionStatus,
    ValidatorPage,
)

NOW = 1_800_000_000.0
NOW_MS = int(NOW * 1_000)
NAMES = ("validator-1", "validator-2", "validator-3", "validator-4")


def network(*silent: str, **changes: Any) -> NetworkStatus:
    members = tuple(
        MemberStatus(
            name, f"10.0.0.{number}:4001", "", name not in silent, NOW_MS - 28_000 if name in silent else None
        )
        for number, name in enumerate(NAMES, 1)
    )
    sessions = (SessionStatus("masterchain", "aa", NAMES, 3), SessionStatus("0:80", "bb", NAMES, 3))
    found = NetworkStatus(members, sessions, height=7, last_final_ms=NOW_MS - 2_000)
    return msgspec.structs.replace(found, **changes)


def report(page: NetworkStatus | None, **changes: Any) -> HealthReport:
    found = FullNodePage("full node", "1", network=page, disk=DiskStatus(free_bytes=1 << 40))
    return judge(HealthFacts((NodeReading("node", msgspec.structs.replace(found, **changes)),)), NOW)


def finding(found: HealthReport, part: str) -> Finding:
    return next(one for one in found.findings if one.part == part)


def test_all_linked_is_good() -> None:
    found = report(network())
    assert (found.health, found.level) == (Health.GOOD, Severity.OK)
    assert found.text == "the network can finish a message"
    assert finding(found, "validators").text == "4 of 4 validators linked"
    assert finding(found, "chain").text == "master block 7 final 2 s ago"
    assert set(found.readiness().values()) == {None}


def test_one_silent_of_four_is_named_and_still_good() -> None:
    found = report(network("validator-3"))
    assert (found.health, found.level) == (Health.GOOD, Severity.WARNING)
    text = "3 of 4 validators linked; not linked: validator-3 (10.0.0.3:4001) silent for 28 s"
    assert finding(found, "validators").text == text
    assert found.readiness()["validators"] is None


def test_two_silent_of_four_is_bad_and_both_are_named() -> None:
    found = report(network("validator-3", "validator-4"))
    assert (found.health, found.level) == (Health.BAD, Severity.CRITICAL)
    assert found.text.startswith(
        "the network cannot finish a message: validators: 2 of 4 validators linked; "
    )
    for words in (
        "validator-3 (10.0.0.3:4001)",
        "validator-4 (10.0.0.4:4001)",
        "no quorum: masterchain needs 3 of 4",
    ):
        assert words in found.text
        assert words in str(found.readiness()["validators"])


def test_a_session_without_quorum_is_bad_although_most_members_are_linked() -> None:
    small = SessionStatus("0:80", "bb", ("validator-4",), 1)
    sessions = (SessionStatus("masterchain", "aa", NAMES, 3), small)
    assert report(network("validator-4", sessions=sessions)).health is Health.BAD
    assert report(network("validator-1", sessions=sessions)).health is Health.GOOD


@pytest.mark.parametrize(
    ("waits_s", "final_s", "level"),
    [
        (STALLED_AFTER_S, STALLED_AFTER_S, Severity.CRITICAL),
        (STALLED_AFTER_S - 1, STALLED_AFTER_S, Severity.OK),
        (STALLED_AFTER_S, STALLED_AFTER_S - 1, Severity.OK),
        (None, 86_400.0, Severity.OK),
    ],
)
def test_a_chain_is_stalled_only_while_a_message_waits(
    waits_s: float | None, final_s: float, level: Severity
) -> None:
    oldest = None if waits_s is None else NOW_MS - int(waits_s * 1_000)
    found = report(network(open=3, oldest_open_ms=oldest, last_final_ms=NOW_MS - int(final_s * 1_000)))
    assert finding(found, "chain").level is level


@pytest.mark.parametrize(
    ("over_s", "final_s", "level"),
    [
        (STALLED_AFTER_S, STALLED_AFTER_S, Severity.CRITICAL),
        (STALLED_AFTER_S - 1, STALLED_AFTER_S, Severity.OK),
        (STALLED_AFTER_S, STALLED_AFTER_S - 1, Severity.OK),
        (-600.0, 3_600.0, Severity.OK),
        (None, 86_400.0, Severity.OK),
    ],
)
def test_a_chain_on_which_a_session_outlives_its_end_is_stalled_though_nobody_waits(
    over_s: float | None, final_s: float, level: Severity
) -> None:
    ends_ms = 0 if over_s is None else NOW_MS - int(over_s * 1_000)
    sessions = (
        SessionStatus("masterchain", "aa", NAMES, 3, 0 if over_s is None else NOW_MS + 1_000_000),
        SessionStatus("0:80", "bb", NAMES, 3, ends_ms),
    )
    page = network(sessions=sessions, last_final_ms=NOW_MS - int(final_s * 1_000))
    found = finding(report(page), "chain")
    assert found.level is level
    assert ("no block that ends it has come" in found.text) == (level is Severity.CRITICAL)


def test_halted_blamed_and_late_clock_are_told() -> None:
    late = NOW_MS + 6_000
    found = report(
        network(halted="two votes are signed with our key", blamed=("validator-2",), last_final_ms=late)
    )
    assert finding(found, "chain").level is Severity.CRITICAL
    assert "votes no more: two votes" in finding(found, "chain").text
    assert "validator-2" in finding(found, "agreement").text
    assert finding(found, "clock").level is Severity.WARNING


def test_disk_fault_is_bad_and_a_disk_that_cannot_be_looked_at_unknown() -> None:
    assert report(network(), disk=DiskStatus("no space", 5)).health is Health.BAD
    assert report(network(), disk=DiskStatus(None, None, "permission denied")).health is Health.UNKNOWN
    assert report(network(), disk=DiskStatus(None, 5)).level is Severity.WARNING


def test_a_node_of_another_version_is_unknown_and_not_well() -> None:
    found = report(None)
    assert found.health is Health.UNKNOWN
    assert "does not report its links" in finding(found, "validators").text


def test_a_validator_that_no_set_has_is_well_and_says_so() -> None:
    """It waits for its set, or has left: the others decide."""
    page = ValidatorPage("validator", network=network(), in_set=False)
    found = judge(HealthFacts((NodeReading("node", page),)), NOW_MS / 1_000)
    assert (found.health, found.level) == (Health.GOOD, Severity.WARNING)
    assert "not in the set in force" in finding(found, "set").text
    assert found.readiness()["set"] is None


def test_a_validator_that_only_listens_is_bad() -> None:
    page = ValidatorPage(
        "validator", network=network(), parts={"start": "listens and does not speak", "queue": None}
    )
    found = judge(HealthFacts((NodeReading("validator-1", page),)), NOW)
    assert (found.health, finding(found, "start").text) == (Health.BAD, "listens and does not speak")


@pytest.mark.parametrize("name", ["topic", "sets", "tables", "data", "index"])
def test_a_source_that_could_not_be_read_is_unknown_with_the_reason(name: str) -> None:
    found = judge(HealthFacts(sources={name: Unread("it is damaged", "look at it")}), NOW)
    assert (found.health, found.level) == (Health.UNKNOWN, Severity.UNKNOWN)
    assert found.readiness() == {name: "it is damaged; look at it"}


def test_unknown_outbox_and_node_are_unknown_and_nothing_at_all_too() -> None:
    for facts in (
        HealthFacts(outbox=Unread("no database")),
        HealthFacts((NodeReading("node", Unread("does not answer")),)),
        HealthFacts(outbox=OutboxReading(0, 10, damage="a row is damaged")),
        HealthFacts(),
    ):
        assert judge(facts, NOW).level is Severity.UNKNOWN


def test_known_to_be_bad_is_worse_than_unknown() -> None:
    found = judge(HealthFacts(outbox=OutboxReading(10, 10), sources={"tables": Unread("damaged")}), NOW)
    assert (found.health, found.level) == (Health.BAD, Severity.CRITICAL)


def test_several_nodes_are_told_apart_and_many_silent_members_are_counted() -> None:
    names = tuple(f"validator-{number}" for number in range(SILENT_SHOWN + 3))
    crowd = NetworkStatus(
        tuple(MemberStatus(name) for name in names),
        (SessionStatus("masterchain", "aa", names, 7),),
        1,
        NOW_MS,
    )
    page = FullNodePage("full node", network=crowd)
    found = judge(HealthFacts((NodeReading("a", page), NodeReading("b", Unread("silent")))), NOW)
    assert [one.part for one in found.findings] == ["a", "a validators", "a chain", "b"]
    assert found.findings[1].text.split("; ")[1].endswith("and 3 more")
