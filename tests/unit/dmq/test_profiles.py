"""The three wire profiles, value for value as they were decided."""

from __future__ import annotations

import pytest

from stagepost.dmq.message import MESSAGE_BYTES_MAX, MessageLayout
from stagepost.dmq.profiles import (
    DEFAULT_PROFILE,
    PROFILES,
    MiniProtocol,
    Profile,
    answer_terms,
    profile_named,
    profile_of,
    start_within_s,
)
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import ConfigError
from stagepost.ground.net.version_data import ConnectionKind, VersionData

NUMBERS = {
    "dmq-node": {
        "handshake": 0,
        "message-submission": 11,
        "keep-alive": 12,
        "peer-sharing": 13,
        "local-message-submission": 14,
        "local-message-notification": 15,
    },
    "gouroboros": {
        "handshake": 0,
        "message-submission": 11,
        "local-message-submission": 14,
        "local-message-notification": 15,
    },
    "seed": {
        "handshake": 0,
        "message-submission": 17,
        "keep-alive": 8,
        "peer-sharing": 10,
        "local-message-submission": 18,
        "local-message-notification": 19,
    },
}
every_profile = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)


def test_there_are_three_profiles_and_the_default_is_the_running_nodes() -> None:
    assert list(PROFILES) == ["dmq-node", "gouroboros", "seed"]
    assert DEFAULT_PROFILE.name == "dmq-node"


@every_profile
def test_numbers_are_the_published_ones(profile: Profile) -> None:
    assert {protocol.value: number for protocol, number in profile.numbers.items()} == NUMBERS[profile.name]


@every_profile
def test_a_number_leads_back_to_its_protocol(profile: Profile) -> None:
    for protocol, number in profile.numbers.items():
        assert profile.protocol(number) is protocol
    assert profile.protocol(99) is None


FLAVOURS = {"dmq-node": "haskell", "gouroboros": "cip", "seed": "cip"}


@every_profile
def test_flavour_lists_and_layouts_are_the_decided_ones(profile: Profile) -> None:
    assert profile.flavour.value == FLAVOURS[profile.name]
    assert profile.list_form.value == ("indefinite" if profile.name == "dmq-node" else "definite")
    older = {MessageLayout.FOUR} if profile.name == "seed" else set()
    assert profile.message_layouts == {MessageLayout.FIVE} | older


def test_a_supplier_without_news_answers_in_time() -> None:
    assert {name: profile.no_news_reply_s for name, profile in PROFILES.items()} == {
        "dmq-node": 17,
        "gouroboros": 17,
        "seed": 25,
    }


def test_no_news_comes_before_the_asker_gives_up() -> None:
    running = spec_for(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION, 2).state("MessageIdsBlocking")
    documents = spec_for(PROFILES["seed"], MiniProtocol.MESSAGE_SUBMISSION).state("MessageIdsBlocking")

    assert running.timeout_s is not None
    assert documents.timeout_s is not None
    assert PROFILES["dmq-node"].no_news_reply_s < running.timeout_s
    assert PROFILES["seed"].no_news_reply_s < documents.timeout_s


def test_a_peer_may_take_as_long_to_start_as_the_most_patient_profile_allows() -> None:
    running = [PROFILES["dmq-node"], PROFILES["gouroboros"]]
    everything = list(PROFILES.values())

    assert start_within_s(running, ConnectionKind.NODE) == 5
    assert start_within_s(running, ConnectionKind.CLIENT) == 2
    assert start_within_s(everything, ConnectionKind.NODE) == 30
    assert start_within_s(everything, ConnectionKind.CLIENT) == 300


def test_the_idle_timeout_of_the_settings_counts_for_all_profiles_but_the_documents() -> None:
    running = [PROFILES["dmq-node"], PROFILES["gouroboros"]]

    assert start_within_s(running, ConnectionKind.NODE, 0.5) == 0.5
    assert start_within_s(running, ConnectionKind.NODE, 60.0) == 60
    assert start_within_s([*running, PROFILES["seed"]], ConnectionKind.NODE, 0.5) == 30
    assert start_within_s(running, ConnectionKind.CLIENT, 60.0) == 2


def test_a_number_is_answered_by_the_first_profile_that_has_it() -> None:
    everything = list(PROFILES.values())
    wanted = {11: "dmq-node", 14: "dmq-node", 15: "dmq-node", 17: "seed", 8: "seed", 19: "seed"}

    for number, name in wanted.items():
        found = profile_of(number, everything)
        assert found is not None
        assert found[0].name == name
    assert profile_of(7, everything) is None
    assert profile_of(17, [PROFILES["dmq-node"]]) is None


def test_numbers_of_all_profiles_can_be_registered_side_by_side() -> None:
    meanings: dict[int, set[str]] = {}
    for profile in PROFILES.values():
        for protocol, number in profile.numbers.items():
            meanings.setdefault(number, set()).add(protocol.value)

    assert all(len(protocols) == 1 for protocols in meanings.values())


def test_an_unknown_profile_is_named_with_the_known_ones() -> None:
    assert profile_named("seed") is PROFILES["seed"]
    with pytest.raises(ConfigError, match="no wire profile 'haskell'") as caught:
        profile_named("haskell")
    assert "dmq-node, gouroboros, seed" in caught.value.advice


SPEC_NAMES = {
    ("dmq-node", 1): "MessageSubmission version 1",
    ("dmq-node", 2): "MessageSubmission version 2",
    ("gouroboros", 1): "MessageSubmission version 1",
    ("gouroboros", 2): "MessageSubmission version 2",
    ("seed", 1): "MessageSubmission seed",
    ("seed", 2): "MessageSubmission seed",
}


@pytest.mark.parametrize(("name", "version"), SPEC_NAMES)
def test_each_profile_runs_its_graph_of_submission(name: str, version: int) -> None:
    spec = spec_for(PROFILES[name], MiniProtocol.MESSAGE_SUBMISSION, version)

    assert spec.name == SPEC_NAMES[name, version]


@every_profile
def test_the_local_graphs_follow_the_documents_in_their_profile_only(profile: Profile) -> None:
    suffix = " seed" if profile.name == "seed" else ""

    assert spec_for(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION).name == f"LocalMessageSubmission{suffix}"
    assert (
        spec_for(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION).name == f"LocalMessageNotification{suffix}"
    )


@every_profile
def test_instances_share_their_table_and_nothing_else(profile: Profile) -> None:
    first = codec_for(profile, MiniProtocol.MESSAGE_SUBMISSION)
    second = codec_for(profile, MiniProtocol.MESSAGE_SUBMISSION)
    tag = {"haskell": 6, "cip": 0}["cip" if profile.flavour.value == "haskell" else "haskell"]
    first.decode(bytes([0x81, tag]), "Init")

    assert first.table is second.table
    assert first.speaks is not second.speaks
    assert second.speaks.name == profile.flavour.value


def test_a_reply_of_33_full_messages_fits_every_limit() -> None:
    messages = spec_for(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION, 2).state("Messages")

    assert 33 * MESSAGE_BYTES_MAX <= messages.message_bytes_max == 35 * MESSAGE_BYTES_MAX
    assert messages.items_max >= 33 * 13


def test_a_notification_reply_of_a_thousand_full_messages_fits_every_limit() -> None:
    for name in ("BusyBlocking", "BusyNonBlocking"):
        for profile in PROFILES.values():
            state = spec_for(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION).state(name)
            assert 1_000 * MESSAGE_BYTES_MAX <= state.message_bytes_max == 4 * 1024 * 1024
            assert 1_000 * 13 + 4 <= state.items_max == 16_384


def test_a_responder_knows_cardanos_numbers_only_with_the_documents_profile() -> None:
    ours = VersionData(1)
    strict = answer_terms([PROFILES["dmq-node"], PROFILES["gouroboros"]], ConnectionKind.NODE, ours)
    lenient = answer_terms(PROFILES.values(), ConnectionKind.NODE, ours)

    assert set(strict.versions) == {1, 2}
    assert set(lenient.versions) >= {1, 2, 7, 10, 13, 14}
    client = answer_terms(PROFILES.values(), ConnectionKind.CLIENT, ours)
    assert 4_097 in client.versions
    assert all(number == 4_097 or number & 0x8000 for number in client.versions)
