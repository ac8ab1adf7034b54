"""Planted defects: each check that guards the protocols must find the fault that was put in for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import cbor2
import pytest

from stagepost.dmq import submission
from stagepost.dmq.announcements import Announcements, Violation
from stagepost.dmq.message import FIVE_ONLY, DmqMessage
from stagepost.dmq.message_field import MessageField
from stagepost.dmq.profiles import PROFILES, MiniProtocol
from stagepost.dmq.specs import ALL_SPECS, spec_for
from stagepost.errors import LocalProtocolError, RemoteProtocolError
from stagepost.ground.statemachine.referee import Referee
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.codec import Codec, CodecTable, Dialect
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.worlds.dmq.message_checks import accepts, flips_accepted
from tests.worlds.ground import spec_checks
from tests.worlds.ground.spec_checks import (
    drip_faults,
    graph_faults,
    published_faults,
    reading_faults,
    refusal_faults,
    split_faults,
    window_faults,
    writing_faults,
)
from tests.worlds.ground.strategies import MessageParts, a_signed_message, examples_of
from tests.worlds.pipeline.published_tables import PUBLISHED, SUBMISSION_TAGS

SPEC = submission.SUBMISSION_V1
PUBLISHED_V1 = PUBLISHED[SPEC.name]


def with_state(spec: ProtocolSpec, state_name: str, **changes: object) -> ProtocolSpec:
    """`spec` with one state changed wherever it stands."""
    old = spec.state(state_name)
    new = replace(old, **changes)  # type: ignore[arg-type]

    def swapped(state: State) -> State:
        return new if state == old else state

    return replace(
        spec,
        initial=swapped(spec.initial),
        edges=tuple(replace(e, source=swapped(e.source), target=swapped(e.target)) for e in spec.edges),
        pipelined={swapped(state): swapped(resumed) for state, resumed in spec.pipelined.items()},
    )


# Specs


@pytest.mark.parametrize("spec", ALL_SPECS, ids=lambda spec: spec.name)
def test_every_missing_edge_is_found(spec: ProtocolSpec) -> None:
    for edge in spec.edges:
        defective = replace(spec, edges=tuple(other for other in spec.edges if other is not edge))
        assert published_faults(defective, PUBLISHED[spec.name])


def test_a_missing_edge_is_found_by_saying_everything_everywhere() -> None:
    defective = replace(SPEC, edges=tuple(edge for edge in SPEC.edges if edge.message is not submission.Done))

    assert published_faults(defective, PUBLISHED_V1)
    with_edge_unused = replace(
        SPEC, edges=tuple(edge for edge in SPEC.edges if edge.source.name != "MessageIdsNonBlocking")
    )
    assert refusal_faults(with_edge_unused, PUBLISHED_V1)


def test_an_edge_too_many_is_found() -> None:
    extra = Edge(SPEC.state("Messages"), submission.Done, SPEC.state("Done"))
    defective = replace(SPEC, edges=(*SPEC.edges, extra))

    assert published_faults(defective, PUBLISHED_V1)
    assert refusal_faults(defective, PUBLISHED_V1)


def test_an_edge_that_leads_elsewhere_is_found() -> None:
    edges = tuple(
        replace(edge, target=SPEC.state("Messages"))
        if edge.message is submission.ReplyMessageIds and edge.source.name == "MessageIdsBlocking"
        else edge
        for edge in SPEC.edges
    )
    defective = replace(SPEC, edges=edges)

    assert published_faults(defective, PUBLISHED_V1)
    assert refusal_faults(defective, PUBLISHED_V1)


@pytest.mark.parametrize(
    "changes",
    [
        {"speaker": Role.SERVER},
        {"timeout_s": 11},
        {"message_bytes_max": 97_999},
        {"id": 4},
        {"name": "Bodies"},
    ],
    ids=["speaker", "timeout", "size", "id", "name"],
)
def test_a_state_that_differs_from_the_published_one_is_found(changes: dict[str, object]) -> None:
    assert published_faults(with_state(SPEC, "Messages", **changes), PUBLISHED_V1)


def test_the_wrong_speaker_is_found_by_saying_everything_everywhere() -> None:
    assert refusal_faults(with_state(SPEC, "Messages", speaker=Role.SERVER), PUBLISHED_V1)


def test_a_blocking_request_that_may_be_sent_ahead_is_found() -> None:
    defective = replace(
        SPEC, pipelined={**SPEC.pipelined, SPEC.state("MessageIdsBlocking"): SPEC.state("Idle")}
    )

    assert published_faults(defective, PUBLISHED_V1)


def test_unreachable_states_dead_ends_and_competing_edges_are_found() -> None:
    island = State("Island", Role.CLIENT)
    dead_end = State("DeadEnd", Role.CLIENT)
    idle = SPEC.state("Idle")

    unreachable = replace(SPEC, edges=(*SPEC.edges, Edge(island, submission.Init, idle)))
    endless = replace(SPEC, edges=(*SPEC.edges, Edge(idle, submission.ReplyNoMessageIds, dead_end)))
    competing = replace(SPEC, edges=(*SPEC.edges, Edge(idle, submission.RequestMessages, idle)))
    after_the_end = replace(SPEC, edges=(*SPEC.edges, Edge(SPEC.state("Done"), submission.Init, idle)))

    assert graph_faults(unreachable) == ["Island cannot be reached"]
    assert graph_faults(endless) == ["DeadEnd cannot end"]
    assert graph_faults(competing) == ["two edges from Idle accept the same RequestMessages"]
    assert graph_faults(after_the_end) == ["Done is final but goes on"]


# Referees


class WrongBlame(Referee):
    def received(self, message: object, now: float) -> None:
        try:
            super().received(message, now)
        except RemoteProtocolError as error:
            raise LocalProtocolError(error.text) from None


class MovesBeforeItLooks(Referee):
    def received(self, message: object, now: float) -> None:
        self.deadline = now
        super().received(message, now)


class IgnoresTurns(Referee):
    def _target(self, source: State, message: object, *, ours: bool) -> State:
        target = self.spec.next_state(source, message)
        if target is None:
            return super()._target(source, message, ours=ours)
        return target


@pytest.mark.parametrize("defect", [WrongBlame, MovesBeforeItLooks, IgnoresTurns])
def test_a_defective_referee_is_found(defect: type[Referee], monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal_faults(SPEC, PUBLISHED_V1) == []

    monkeypatch.setattr(spec_checks, "Referee", defect)

    assert refusal_faults(SPEC, PUBLISHED_V1)


# Codecs


def a_codec(dialect: Dialect) -> Codec:
    said_in: dict[str, list[type[object]]] = {}
    for edge in SPEC.edges:
        said_in.setdefault(edge.source.name, []).append(edge.message)
    return Codec(CodecTable(SPEC.name, said_in, [dialect]), dialect.name)


def faults_of(codec: Codec, flavour: str) -> list[str]:
    found = []
    for edge in SPEC.edges:
        for message in examples_of(edge.message):
            if not edge.accepts(message):
                continue
            found += writing_faults(codec, message, SUBMISSION_TAGS[1, flavour][edge.message])
            found += reading_faults(codec, edge.source, message, codec.encode(message))
    return found


@pytest.mark.parametrize("flavour", submission.Flavour)
def test_every_wrong_tag_is_found(flavour: submission.Flavour) -> None:
    good = submission.dialect(1, flavour, MessageField(FIVE_ONLY))
    assert faults_of(a_codec(good), flavour.value) == []

    for index, layout in enumerate(good.layouts):
        layouts = list(good.layouts)
        layouts[index] = replace(layout, tag=9)
        assert faults_of(a_codec(Dialect(good.name, tuple(layouts))), flavour.value)


def test_swapped_fields_are_found() -> None:
    good = submission.dialect(1, submission.Flavour.CIP, MessageField(FIVE_ONLY))
    swapped = tuple(
        replace(layout, fields=(layout.fields[0], layout.fields[2], layout.fields[1]))
        if layout.message is submission.RequestMessageIds
        else layout
        for layout in good.layouts
    )

    assert faults_of(a_codec(Dialect("cip", swapped)), "cip")


@pytest.mark.parametrize(("flavour", "indefinite"), [("haskell", False), ("cip", True)])
def test_the_wrong_form_of_a_list_is_found(flavour: str, indefinite: bool) -> None:
    codec = a_codec(submission.dialect(1, submission.Flavour(flavour), MessageField(FIVE_ONLY)))
    for kind in (submission.ReplyMessageIds, submission.RequestMessages, submission.ReplyMessages):
        for message in examples_of(kind):
            tag = SUBMISSION_TAGS[1, flavour][kind]
            assert writing_faults(codec, message, tag, indefinite)
            assert writing_faults(codec, message, tag, not indefinite) == []


@dataclass(frozen=True, slots=True)
class EncodesAgain:
    """A message field that forgets the received bytes and writes shortest forms instead."""

    def read(self, reader: CborReader, what: str) -> DmqMessage:
        message = MessageField(FIVE_ONLY).read(reader, what)
        return DmqMessage.decode(cbor2.dumps(cbor2.loads(message.raw)))

    def write(self, value: DmqMessage) -> bytes:
        return value.raw


def test_a_codec_that_encodes_messages_again_is_found() -> None:
    codec = a_codec(submission.dialect(1, submission.Flavour.CIP, EncodesAgain()))

    assert faults_of(codec, "cip")


# Framing


class ForgetsTheBeginning(Framer):
    def feed(self, data: bytes) -> None:
        self._buffer.clear()
        super().feed(data)


class IsHasty(Framer):
    def next_item(self, limits: ItemLimits, *, headless_third: bytes | None = None) -> bytes | None:
        item = super().next_item(limits, headless_third=headless_third)
        return item if item is not None or self.buffered < 3 else self._take(self.buffered)


@pytest.mark.parametrize("defect", [ForgetsTheBeginning, IsHasty])
def test_a_framer_that_breaks_at_a_cut_is_found(
    defect: type[Framer], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\x82\x00" + MessageParts().raw()
    limits = ItemLimits(bytes_max=65_535)
    assert split_faults(data, limits) == drip_faults(data, limits) == []

    monkeypatch.setattr(spec_checks, "Framer", defect)

    assert split_faults(data, limits)
    assert drip_faults(data, limits)


# Windows


class ForgetsAcknowledgements(Announcements):
    def request_ids(self, *, blocking: bool, acknowledged: int, requested: int) -> Violation | None:
        return super().request_ids(blocking=blocking, acknowledged=0, requested=requested)


class CountsWhatItHopesFor(Announcements):
    """Takes ids that are only due for ids that are there."""

    def _check_ids_request(self, blocking: bool, acknowledged: int, requested: int) -> Violation | None:
        violation = super()._check_ids_request(blocking, acknowledged, requested)
        if violation is not None and violation.rule == "RequestNonBlocking" and self.ids_due:
            return None
        return violation


class ForgetsWhatIsDue(Announcements):
    @property
    def ids_due(self) -> int:
        return 0


class ForgetsSizes(Announcements):
    def reply_ids(self, ids: object) -> Violation | None:
        smaller = [submission.MessageIdAndSize(entry.message_id, 1) for entry in ids]  # type: ignore[attr-defined]
        return super().reply_ids(smaller)


def faults_in_many_runs(puller: type[Announcements], supplier: type[Announcements]) -> list[str]:
    found = []
    for seed in range(150):
        found += window_faults(puller(), supplier(), Random(seed))
    return found


def test_sound_windows_show_no_fault() -> None:
    assert faults_in_many_runs(Announcements, Announcements) == []


@pytest.mark.parametrize(
    "defect", [ForgetsAcknowledgements, CountsWhatItHopesFor, ForgetsWhatIsDue, ForgetsSizes]
)
def test_a_defective_window_of_the_puller_is_found(defect: type[Announcements]) -> None:
    assert faults_in_many_runs(defect, Announcements)


@pytest.mark.parametrize("defect", [ForgetsAcknowledgements, ForgetsSizes])
def test_a_defective_window_of_the_supplier_is_found(defect: type[Announcements]) -> None:
    assert faults_in_many_runs(Announcements, defect)


# Signatures


def test_a_check_that_is_left_out_lets_flipped_bits_through() -> None:
    raw = a_signed_message().raw

    def without_signatures(changed: bytes) -> bool:
        try:
            return DmqMessage.decode(changed).has_valid_id
        except Exception:
            return False

    def without_the_id(changed: bytes) -> bool:
        if not without_signatures(changed) and changed[3:35] != raw[3:35]:
            return changed[35:] == raw[35:]
        return accepts(changed, "dmq-node")

    assert flips_accepted(raw, without_signatures)
    assert flips_accepted(raw, without_the_id)


def test_the_planted_spec_is_the_one_that_runs() -> None:
    assert spec_for(PROFILES["dmq-node"], MiniProtocol.MESSAGE_SUBMISSION) is SPEC
