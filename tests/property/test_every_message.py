"""Every message of every protocol, in every profile and flavour: written as published, read back however it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from stagepost.dmq import submission
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, State
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import ItemLimits
from tests.worlds.ground.spec_checks import drip_faults, reading_faults, split_faults, writing_faults
from tests.worlds.ground.strategies import MessageParts, an_example, examples_of, saying
from tests.worlds.pipeline.published_tables import (
    CIP,
    HASKELL,
    LISTS_OF_IDS_AND_MESSAGES,
    OTHER_TAGS,
    SUBMISSION_TAGS,
    plain,
)

FLAVOURS = (HASKELL, CIP)


@dataclass(frozen=True)
class Way:
    """One way of speaking one protocol."""

    profile: Profile
    protocol: MiniProtocol
    version: int = 1
    flavour: str | None = None  # of submission only

    def codec(self) -> Codec:
        codec = codec_for(self.profile, self.protocol, self.version)
        return codec if self.flavour is None else Codec(codec.table, self.flavour)

    @property
    def spec(self) -> ProtocolSpec:
        return spec_for(self.profile, self.protocol, self.version)

    @property
    def edges(self) -> list[Edge]:
        """The transitions that exist in this flavour: the CIP's has no way to say "nothing yet"."""
        if self.flavour is None:
            return list(self.spec.edges)
        return [
            edge for edge in self.spec.edges if edge.message in SUBMISSION_TAGS[self.version, self.flavour]
        ]

    def tag(self, kind: type[object]) -> int:
        if self.flavour is None:
            return OTHER_TAGS[kind]
        return SUBMISSION_TAGS[self.version, self.flavour][kind]

    def is_indefinite(self, kind: type[object]) -> bool | None:
        """Whether the one list of this message is written indefinite; None if it has none."""
        if kind not in LISTS_OF_IDS_AND_MESSAGES:
            return None
        return self.flavour == HASKELL if self.flavour else self.profile.name == "dmq-node"

    def limits(self, state: State) -> ItemLimits:
        any_type = self.protocol is MiniProtocol.HANDSHAKE
        return ItemLimits(state.message_bytes_max, state.items_max, any_type=any_type)

    def headless_third(self, state: State) -> bytes | None:
        return b"\x83\x02" if state.name == "BusyBlocking" else None

    @property
    def elements(self) -> tuple[int, ...]:
        return (5, 4) if self.profile.name == "seed" else (5,)

    def __str__(self) -> str:
        version = f" v{self.version} {self.flavour}" if self.flavour else ""
        return f"{self.profile.name} {self.protocol.value}{version}"


def _ways() -> list[Way]:
    found = []
    for profile in PROFILES.values():
        for protocol in profile.numbers:
            if protocol is not MiniProtocol.MESSAGE_SUBMISSION:
                found.append(Way(profile, protocol))
                continue
            for version in (1,) if profile.name == "seed" else (1, 2):
                found += [Way(profile, protocol, version, flavour) for flavour in FLAVOURS]
    return found


WAYS = _ways()
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
SUBMISSION_WAYS = [way for way in WAYS if way.flavour]
every_submission_way = pytest.mark.parametrize("way", SUBMISSION_WAYS, ids=str)


def _examples(way: Way) -> list[tuple[State, Any]]:
    """Every hand-picked message of this way, and the state in which it is said."""
    found = [
        (edge.source, message)
        for edge in way.edges
        for message in examples_of(edge.message)
        if edge.accepts(message)
    ]
    if 4 in way.elements:
        legacy = MessageParts(elements=4).decoded()
        found += [
            (edge.source, edge.message((legacy,)))
            for edge in way.edges
            if edge.message is submission.ReplyMessages
        ]
    return found


@every_way
def test_each_message_is_written_as_published(way: Way) -> None:
    for _, message in _examples(way):
        kind = type(message)
        assert writing_faults(way.codec(), message, way.tag(kind), way.is_indefinite(kind)) == []


@every_way
def test_each_message_is_read_back_in_its_state(way: Way) -> None:
    for state, message in _examples(way):
        codec = way.codec()
        assert reading_faults(codec, state, message, codec.encode(message)) == []


@every_way
def test_each_message_survives_every_split_of_its_bytes(way: Way) -> None:
    for state, message in _examples(way):
        data = way.codec().encode(message)
        limits, headless_third = way.limits(state), way.headless_third(state)
        assert split_faults(data, limits, headless_third=headless_third) == []
        assert drip_faults(data, limits, headless_third=headless_third) == []


@given(st.sampled_from(WAYS), st.data())
@settings(max_examples=300)
def test_any_message_is_written_as_published_and_read_back_however_it_is_cut(
    way: Way, data: DataObject
) -> None:
    edge = data.draw(st.sampled_from(way.edges))
    message = data.draw(saying(edge, *way.elements))
    codec = way.codec()
    raw = codec.encode(message)
    kind = edge.message

    cuts = data.draw(st.lists(st.integers(1, max(1, len(raw) - 1)), max_size=5))
    assert writing_faults(codec, message, way.tag(kind), way.is_indefinite(kind)) == []
    assert reading_faults(way.codec(), edge.source, message, raw) == []
    assert (
        split_faults(
            raw,
            way.limits(edge.source),
            [cut for cut in cuts if cut < len(raw)],
            way.headless_third(edge.source),
        )
        == []
    )


@every_way
def test_lists_are_read_in_both_forms_whatever_the_profile_writes(way: Way) -> None:
    for state, message in _examples(way):
        if type(message) not in LISTS_OF_IDS_AND_MESSAGES:
            continue
        data = way.codec().encode(message)
        value = plain(message, way.tag(type(message)))
        other = _in_the_other_form(data, len(value[1]))

        assert cbor2.loads(other) == value
        assert way.codec().decode(other, state.name) == message


def _in_the_other_form(data: bytes, count: int) -> bytes:
    """`data` with its one list, which is the second element and at most 23 long, written in the other form."""
    tail = data[-1:] if data[0] == 0x83 else b""
    inner = data[3 : len(data) - len(tail)]
    if data[2] == 0x9F:
        return data[:2] + bytes([0x80 | count]) + inner[:-1] + tail
    return data[:2] + b"\x9f" + inner + b"\xff" + tail


@every_way
def test_nothing_may_be_left_over_behind_a_message(way: Way) -> None:
    for state, message in _examples(way):
        data = way.codec().encode(message)
        for rest in (b"\x00", b"\xf4", b"\xff"):
            if isinstance(message, submission.ReplyMessages) or way.headless_third(state) is None:
                with pytest.raises(DecodeError):
                    way.codec().decode(data + rest, state.name)


@every_way
def test_a_shortened_message_is_a_decode_error(way: Way) -> None:
    for state, message in _examples(way):
        data = way.codec().encode(message)
        for end in range(0, len(data), max(1, len(data) // 40)):
            with pytest.raises(DecodeError):
                way.codec().decode(data[:end], state.name)


@every_way
def test_a_message_of_another_state_is_the_peers_fault(way: Way) -> None:
    spec = way.spec
    written = [(type(message), way.codec().encode(message)) for _, message in _examples(way)]
    for state in spec.states:
        readable = {(layout[0], layout[1]) for layout in _heads_said_in(way, state)}
        for _, data in written:
            if (data[0] & 0x1F, data[1]) not in readable:
                with pytest.raises(RemoteProtocolError):
                    way.codec().decode(data, state.name)


def _heads_said_in(way: Way, state: State) -> set[tuple[int, int]]:
    """(elements, tag) of everything that may be read in a state, in all flavours."""
    flavours = FLAVOURS if way.flavour else (None,)
    found = set()
    for flavour in flavours:
        other = Way(way.profile, way.protocol, way.version, flavour)
        for edge in other.edges:
            if edge.source == state:
                data = other.codec().encode(an_example(edge))
                found.add((data[0] & 0x1F, data[1]))
                if way.headless_third(state):
                    found.add((3, 2))
    return found


# Flavours of submission


STARTS_IN = {
    ("dmq-node", 1): HASKELL,
    ("dmq-node", 2): HASKELL,
    ("gouroboros", 1): CIP,
    ("gouroboros", 2): HASKELL,
    ("seed", 1): CIP,
}
SHOW_NOTHING_IN_VERSION_2 = {submission.RequestMessageIds, submission.ReplyMessageIds}


@pytest.mark.parametrize(("profile", "version"), STARTS_IN)
def test_an_instance_begins_in_its_published_flavour(profile: str, version: int) -> None:
    codec = codec_for(PROFILES[profile], MiniProtocol.MESSAGE_SUBMISSION, version)

    assert codec.speaks.name == STARTS_IN[profile, version]
    assert not codec.is_settled


def test_the_documents_know_one_version_of_submission_only() -> None:
    seed = PROFILES["seed"]

    assert spec_for(seed, MiniProtocol.MESSAGE_SUBMISSION, 2).name == "MessageSubmission seed"
    assert codec_for(seed, MiniProtocol.MESSAGE_SUBMISSION, 2).speaks.name == CIP


@every_submission_way
def test_what_the_peer_shows_first_is_how_it_is_answered(way: Way) -> None:
    for state, message in _examples(way):
        codec = codec_for(way.profile, MiniProtocol.MESSAGE_SUBMISSION, way.version)
        before = codec.speaks.name

        assert codec.decode(way.codec().encode(message), state.name) == message

        if way.version == 2 and type(message) in SHOW_NOTHING_IN_VERSION_2:
            assert codec.speaks.name == before
            assert not codec.is_settled
        else:
            assert codec.speaks.name == way.flavour
            assert codec.is_settled


@every_submission_way
def test_a_settled_flavour_stays_though_the_other_is_still_read(way: Way) -> None:
    other = Way(way.profile, way.protocol, way.version, HASKELL if way.flavour == CIP else CIP)
    codec = codec_for(way.profile, MiniProtocol.MESSAGE_SUBMISSION, way.version)
    request = submission.RequestMessages(())
    codec.decode(way.codec().encode(request), "Idle")

    assert codec.decode(other.codec().encode(request), "Idle") == request

    assert codec.speaks.name == way.flavour
    assert codec.encode(request) == way.codec().encode(request)


@pytest.mark.parametrize("version", [1, 2])
def test_where_two_flavours_share_a_head_it_means_the_same(version: int) -> None:
    ways = [
        Way(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION, version, flavour) for flavour in FLAVOURS
    ]
    meaning: dict[tuple[str, int, int], type[object]] = {}
    for way in ways:
        for state, message in _examples(way):
            data = way.codec().encode(message)
            head = (state.name, data[0] & 0x1F, data[1])
            assert meaning.setdefault(head, type(message)) is type(message)


def test_what_a_flavour_has_no_way_to_say_is_our_own_fault_to_send() -> None:
    way = Way(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION, 2, CIP)

    with pytest.raises(LocalProtocolError):
        way.codec().encode(submission.ReplyNoMessageIds())


def test_a_message_of_another_protocol_is_our_own_fault_to_send() -> None:
    for way in WAYS:
        with pytest.raises(LocalProtocolError):
            way.codec().encode(object())
