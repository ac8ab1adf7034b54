"""The mini-protocols of links: their graphs, their numbers, and that another CBOR library reads what they write."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.catchain import overlay_protocol
from stagepost.catchain.overlay_protocol import CATCHAIN_OVERLAY, OBJECT_BYTES_MAX
from stagepost.dmq.profiles import PROFILES
from stagepost.dmq.specs import ALL_SPECS
from stagepost.errors import DecodeError, ErrorCode, RemoteProtocolError
from stagepost.full_node.local_client import INTAKE_VERSION
from stagepost.ground.net.version_data import CARDANO_VERSIONS, DMQ_VERSIONS
from stagepost.ground.statemachine.spec import ProtocolSpec, Role
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.remp.links import authentication as link_authentication
from stagepost.remp.links import local_intake
from stagepost.remp.links import protocols as link_protocols
from stagepost.remp.links.specs import LINK_SPECS, PROTOCOLS, LinkProtocol, codec_table
from stagepost.remp.links.versions import LinkVersion, read_link_data

ROOT = Path(__file__).parents[4]
SIGNATURE = bytes(64)
WRITTEN: list[tuple[LinkProtocol, str, Any, list[Any]]] = [
    (
        LinkProtocol.AUTHENTICATION,
        "Prove",
        link_authentication.Prove(bytes(32), SIGNATURE),
        [0, bytes(32), SIGNATURE],
    ),
    (LinkProtocol.AUTHENTICATION, "Answer", link_authentication.Proved(SIGNATURE), [1, SIGNATURE]),
    (
        LinkProtocol.AUTHENTICATION,
        "Answer",
        link_authentication.Refuse("NOT_READY", "UnknownSession", "later"),
        [2, "NOT_READY", "UnknownSession", "later"],
    ),
    (LinkProtocol.CATCHAIN_OVERLAY, "Speaking", overlay_protocol.Push(b"frame"), [0, b"frame"]),
    (
        LinkProtocol.CATCHAIN_OVERLAY,
        "Speaking",
        overlay_protocol.Ask((1 << 64) - 1, b"query"),
        [1, (1 << 64) - 1, b"query"],
    ),
    (LinkProtocol.CATCHAIN_OVERLAY, "Speaking", overlay_protocol.Answer(7, b"answer"), [2, 7, b"answer"]),
    (LinkProtocol.CATCHAIN_OVERLAY, "Speaking", overlay_protocol.Done(), [3]),
    (LinkProtocol.REMP_MESSAGES, "Speaking", link_protocols.MessageFrame(b"message"), [0, b"message"]),
    (LinkProtocol.REMP_MESSAGES, "Speaking", link_protocols.Done(), [1]),
    (LinkProtocol.REMP_RECEIPTS, "Speaking", link_protocols.Receipts(b"receipts"), [0, b"receipts"]),
    (LinkProtocol.REMP_RECEIPTS, "Speaking", link_protocols.Done(), [1]),
    (LinkProtocol.LOCAL_INTAKE, "Idle", local_intake.SubmitExternalMessage(b"message"), [0, b"message"]),
    (LinkProtocol.LOCAL_INTAKE, "Submitted", local_intake.MessageTaken(bytes(32), 1), [1, bytes(32), 1]),
    (
        LinkProtocol.LOCAL_INTAKE,
        "Submitted",
        local_intake.MessageRefused(b"", "TL_INVALID", "no message", ""),
        [2, b"", "TL_INVALID", "no message", ""],
    ),
    (
        LinkProtocol.LOCAL_INTAKE,
        "Idle",
        local_intake.FollowMessage(bytes(32), 7, 60_000),
        [3, bytes(32), 7, 60_000],
    ),
    (
        LinkProtocol.LOCAL_INTAKE,
        "Following",
        local_intake.TellStatuses((local_intake.ToldStatus(b"{}", 5, "ab", "", "cd"),), 8, 9, b"{}"),
        [4, [[b"{}", 5, "ab", "", "cd"]], 8, 9, b"{}"],
    ),
    (LinkProtocol.LOCAL_INTAKE, "Idle", local_intake.Done(), [5]),
    (LinkProtocol.LOCAL_INTAKE, "Idle", local_intake.AskProof(bytes(32)), [6, bytes(32)]),
    (LinkProtocol.LOCAL_INTAKE, "Proving", local_intake.TellProof(b"{}"), [7, b"{}"]),
    (
        LinkProtocol.DELIVERY_BODIES,
        "Delivering",
        link_protocols.DeliveryBody(bytes(64), b"x"),
        [0, bytes(64), b"x"],
    ),
    (LinkProtocol.DELIVERY_BODIES, "Delivering", link_protocols.Done(), [1]),
]


def codec(protocol: LinkProtocol) -> Codec:
    return Codec(codec_table(protocol), PROTOCOLS[protocol][1].name)


@pytest.mark.parametrize("spec", LINK_SPECS, ids=lambda spec: spec.name)
def test_every_state_is_reachable_and_can_end_and_no_two_edges_compete(spec: ProtocolSpec) -> None:
    assert [state.name for state in spec.states if state.speaker is None] == ["Done"]
    assert not [edge for edge in spec.edges if edge.source.speaker is None]
    assert len({(edge.source.name, edge.message) for edge in spec.edges}) == len(spec.edges)
    reached = {spec.initial}
    for _ in spec.states:
        reached |= {edge.target for edge in spec.edges if edge.source in reached}
    assert reached == set(spec.states)


def test_every_spec_has_a_name_of_its_own_beside_those_of_dmq() -> None:
    names = [spec.name for spec in (*ALL_SPECS, *LINK_SPECS)]
    assert len(set(names)) == len(names)


def test_numbers_begin_at_0x400_and_neither_they_nor_the_versions_are_dmqs() -> None:
    numbers = {number for profile in PROFILES.values() for number in profile.numbers.values()}
    assert min(LinkProtocol) == 0x400
    assert max(numbers) < 0x400
    versions = {
        number for table in (DMQ_VERSIONS, CARDANO_VERSIONS) for by in table.values() for number in by
    }
    assert versions.isdisjoint(LinkVersion)
    assert list(LinkVersion) == [0x5001, 0x5002, 0x5003, 0x5004, 0x5005, 0x5006]
    assert INTAKE_VERSION == 0x5003, "at another socket, where links are not spoken"
    assert INTAKE_VERSION not in versions


@pytest.mark.parametrize(("protocol", "state", "message", "plain"), WRITTEN)
def test_messages_are_plain_cbor_and_are_read_back(
    protocol: LinkProtocol, state: str, message: Any, plain: list[Any]
) -> None:
    data = codec(protocol).encode(message)
    assert cbor2.loads(data) == plain
    limits = PROTOCOLS[protocol][0].state(state)
    framer = Framer()
    framer.feed(data)
    item = framer.next_item(ItemLimits(limits.message_bytes_max, limits.items_max))
    assert item == data, "within the limits of its state"
    assert codec(protocol).decode(data, state) == message


def test_every_message_of_every_link_protocol_was_looked_at() -> None:
    assert {type(message) for _, _, message, _ in WRITTEN} == {
        kind for spec in LINK_SPECS for kind in spec.messages
    }


@pytest.mark.parametrize("number", [0, (1 << 64) - 1])
def test_the_longest_object_fits_into_its_message_whatever_its_number(number: int) -> None:
    data = codec(LinkProtocol.CATCHAIN_OVERLAY).encode(
        overlay_protocol.Answer(number, bytes(OBJECT_BYTES_MAX))
    )
    assert len(data) <= overlay_protocol.SPEAKING.message_bytes_max


@pytest.mark.parametrize("size", [3, OBJECT_BYTES_MAX + 1])
def test_an_object_that_is_too_short_or_too_long_is_refused(size: int) -> None:
    data = codec(LinkProtocol.CATCHAIN_OVERLAY).encode(overlay_protocol.Push(bytes(size)))
    with pytest.raises(DecodeError) as refused:
        codec(LinkProtocol.CATCHAIN_OVERLAY).decode(data, "Speaking")
    assert refused.value.code in (ErrorCode.CBOR_INVALID, ErrorCode.CBOR_LIMIT)


def test_objects_of_full_nodes_have_the_same_limit_as_those_of_members() -> None:
    assert link_protocols.OBJECT_BYTES_MAX == OBJECT_BYTES_MAX == 66_535


def test_the_schema_of_links_defines_every_rule_it_uses_and_uses_every_rule_it_defines() -> None:
    text = re.sub(r";.*", "", (ROOT / "specs" / "links.cddl").read_text(encoding="utf-8"))
    defined = re.findall(r"^([a-z][a-z0-9-]*)\s*=", text, re.MULTILINE)
    bodies = re.sub(r"^[a-z][a-z0-9-]*\s*=|[a-z][a-z-]*:", "", text, flags=re.MULTILINE)
    used = set(re.findall(r"[a-z][a-z0-9-]*", bodies))
    assert len(defined) == len(set(defined))
    assert used - {"bstr", "tstr", "size", "true", "false"} == set(defined) - {"link-wire"}


def test_only_who_opened_an_instance_speaks_in_it() -> None:
    for spec in (CATCHAIN_OVERLAY, link_protocols.REMP_MESSAGES, link_protocols.REMP_RECEIPTS):
        assert {state.speaker for state in spec.states} == {Role.CLIENT, None}


@given(st.binary(max_size=200), st.sampled_from([row[:3] for row in WRITTEN]), st.integers(0, 100))
@settings(max_examples=300)
def test_whatever_bytes_come_are_read_or_refused_as_the_peers_fault(
    junk: bytes, sample: tuple[LinkProtocol, str, Any], at: int
) -> None:
    protocol, state, message = sample
    written = codec(protocol).encode(message)
    for data in (junk, written[:at] + junk, written[:at] + junk + written[at:]):
        with suppress(RemoteProtocolError):
            codec(protocol).decode(data, state)
    with suppress(RemoteProtocolError):
        read_link_data(junk, LinkVersion.CATCHAIN)
