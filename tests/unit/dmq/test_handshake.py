"""The handshake as the specification tables it: proposals, acceptance, refusals, queries, simultaneous open."""

from __future__ import annotations

from itertools import product
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.profiles import PROFILES, MiniProtocol, answer_terms
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError, ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.net.handshake import (
    QUERY_DEPARTURE_S,
    AcceptVersion,
    Agreement,
    HandshakeDecodeError,
    OfferedVersion,
    ProposeVersions,
    QueryReply,
    Refuse,
    Refused,
    ReplyVersions,
    Terms,
    VersionMismatch,
    answer,
    conclude,
)
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.worlds.ground.strategies import cbor_items, written_head

MAGIC = 2_147_483_650
NODE, CLIENT = ConnectionKind.NODE, ConnectionKind.CLIENT
BOOLEANS = (False, True)


def data_of(magic: int = MAGIC, **flags: bool) -> VersionData:
    return VersionData(magic, **flags)


def terms(kind: ConnectionKind = NODE, *, profiles: tuple[str, ...] = ("dmq-node",), **ours: Any) -> Terms:
    return answer_terms([PROFILES[name] for name in profiles], kind, data_of(**ours))


def proposal(versions: dict[int, Any]) -> ProposeVersions:
    return ProposeVersions(
        tuple(OfferedVersion(number, cbor2.dumps(data)) for number, data in versions.items())
    )


def node_data(
    magic: int = MAGIC, *, initiator_only: bool = False, peer_sharing: int = 1, query: bool = False
) -> list[Any]:
    return [magic, initiator_only, peer_sharing, query]


# What is written


def test_a_node_proposes_its_versions_in_ascending_order_with_four_values_each() -> None:
    ours = data_of(initiator_only=True, peer_sharing=True)
    said = PROFILES["dmq-node"].proposal_terms(NODE, ours).proposal()

    raw = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE).encode(said)

    assert cbor2.loads(raw) == [0, {1: [MAGIC, True, 1, False], 2: [MAGIC, True, 1, False]}]
    assert raw[:4] == b"\x82\x00\xa2\x01"


def test_a_client_proposes_4097_with_two_values() -> None:
    for profile in PROFILES.values():
        said = profile.proposal_terms(CLIENT, data_of(query=True)).proposal()

        raw = codec_for(profile, MiniProtocol.HANDSHAKE).encode(said)

        assert cbor2.loads(raw) == [0, {4_097: [MAGIC, True]}]


@pytest.mark.parametrize(("profile", "versions"), [("dmq-node", [1, 2]), ("gouroboros", [1]), ("seed", [1])])
def test_each_profile_proposes_its_node_versions(profile: str, versions: list[int]) -> None:
    said = PROFILES[profile].proposal_terms(NODE, data_of()).proposal()

    assert [offered.number for offered in said.versions] == versions


# What is chosen


def test_the_highest_common_version_is_chosen() -> None:
    for offered, chosen in (
        ({1: node_data()}, 1),
        ({2: node_data()}, 2),
        ({1: node_data(), 2: node_data()}, 2),
    ):
        reply, agreement = answer(proposal(offered), terms(peer_sharing=True))

        assert isinstance(reply, AcceptVersion)
        assert reply.version == chosen
        assert cbor2.loads(reply.parameters) == [MAGIC, False, 1, False]
        assert agreement == Agreement(NODE, chosen, MAGIC, peer_sharing=True)
        assert agreement is not None
        assert agreement.submission_version == chosen


def test_a_client_is_accepted_with_4097() -> None:
    reply, agreement = answer(proposal({4_097: [MAGIC, False]}), terms(CLIENT))

    assert reply == AcceptVersion(4_097, cbor2.dumps([MAGIC, False]))
    assert agreement == Agreement(CLIENT, 4_097, MAGIC)


@given(cbor_items(), cbor_items())
def test_unknown_versions_of_any_shape_are_skipped(lower: bytes, higher: bytes) -> None:
    said = ProposeVersions(
        (
            OfferedVersion(0, lower),
            OfferedVersion(2, cbor2.dumps(node_data())),
            OfferedVersion(900, higher),
        )
    )
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)

    heard = codec.decode(codec.encode(said), "Propose")

    assert heard == said
    reply, _ = answer(heard, terms())
    assert isinstance(reply, AcceptVersion)
    assert reply.version == 2


STRANGE_SHAPES = {
    "a tag": "c11a514b67b0",
    "a float": "fb3ff199999999999a",
    "a map": "a1616101",
    "null": "f6",
    "a negative number": "3863",
    "an indefinite map": "bf0102ff",
    "an indefinite string": "5f4101ff",
    "nested arrays": "8181818101",
}


@pytest.mark.parametrize("shape", STRANGE_SHAPES.values(), ids=STRANGE_SHAPES)
def test_a_strange_shape_passes_the_framing_and_is_skipped(shape: str) -> None:
    raw = b"\x82\x00\xa2\x02" + cbor2.dumps(node_data()) + b"\x18\x63" + bytes.fromhex(shape)
    state = spec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE).initial
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)
    framer = Framer()
    framer.feed(raw)

    item = framer.next_item(ItemLimits(state.message_bytes_max, any_type=codec.table.any_type))

    assert item == raw
    reply, _ = answer(codec.decode(item, "Propose"), terms())
    assert isinstance(reply, AcceptVersion)


@pytest.mark.parametrize("order", [(2, 1), (1, 1), (2, 2)])
def test_known_versions_out_of_order_are_an_error(order: tuple[int, int]) -> None:
    said = ProposeVersions(tuple(OfferedVersion(number, cbor2.dumps(node_data())) for number in order))

    with pytest.raises(DecodeError) as caught:
        answer(said, terms())

    assert caught.value.code is ErrorCode.CBOR_INVALID


def test_unknown_versions_may_stand_in_any_order() -> None:
    numbers = (50, 1, 40, 2, 30)
    said = ProposeVersions(tuple(OfferedVersion(number, cbor2.dumps(node_data())) for number in numbers))

    reply, _ = answer(said, terms())

    assert isinstance(reply, AcceptVersion)
    assert reply.version == 2


# Refusals


def test_no_common_version_is_refused_with_our_list() -> None:
    reply, agreement = answer(proposal({7: [1, False], 4_097: [MAGIC, False]}), terms())

    assert (reply, agreement) == (Refuse(VersionMismatch((1, 2))), None)
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)
    assert codec.encode(reply) == bytes.fromhex("82028200820102")


def test_an_empty_proposal_is_refused() -> None:
    assert answer(ProposeVersions(()), terms(CLIENT))[0] == Refuse(VersionMismatch((4_097,)))


BAD_NODE_DATA = {
    "too few values": [MAGIC, False],
    "too many values": [MAGIC, False, 1, False, 0],
    "a magic beyond 32 bits": [2**32, False, 1, False],
    "a negative magic": [-1, False, 1, False],
    "peer sharing 2": [MAGIC, False, 2, False],
    "a boolean for peer sharing": [MAGIC, False, True, False],
    "a number for a boolean": [MAGIC, 0, 1, False],
    "no array": MAGIC,
    "a map": {1: 2},
}


@pytest.mark.parametrize("data", BAD_NODE_DATA.values(), ids=BAD_NODE_DATA)
def test_data_that_cannot_be_read_are_refused_as_such(data: object) -> None:
    reply, agreement = answer(proposal({1: node_data(), 2: data}), terms())

    assert isinstance(reply, Refuse)
    assert isinstance(reply.reason, HandshakeDecodeError)
    assert reply.reason.version == 2
    assert str(ErrorCode.CBOR_INVALID) in reply.reason.text
    assert agreement is None


@pytest.mark.parametrize("data", [[MAGIC], [MAGIC, False, 1, False], [MAGIC, 0], "text"])
def test_client_data_that_cannot_be_read_are_refused_as_such(data: object) -> None:
    reply, _ = answer(proposal({4_097: data}), terms(CLIENT))

    assert isinstance(reply, Refuse)
    assert isinstance(reply.reason, HandshakeDecodeError)


@pytest.mark.parametrize("magic", [0, MAGIC - 1, 2**32 - 1])
def test_another_network_is_refused_and_both_are_named(magic: int) -> None:
    reply, agreement = answer(proposal({2: node_data(magic)}), terms())

    assert isinstance(reply, Refuse)
    assert isinstance(reply.reason, Refused)
    assert reply.reason.version == 2
    assert reply.reason.text.startswith(ErrorCode.HANDSHAKE_WRONG_NETWORK)
    assert str(magic) in reply.reason.text
    assert str(MAGIC) in reply.reason.text
    assert agreement is None


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (VersionMismatch((7, 8)), ErrorCode.HANDSHAKE_NO_VERSION),
        (HandshakeDecodeError(2, "what"), ErrorCode.HANDSHAKE_NO_VERSION),
        (Refused(2, "other network"), ErrorCode.HANDSHAKE_WRONG_NETWORK),
    ],
    ids=["VersionMismatch", "DecodeError", "Refused"],
)
def test_the_initiator_raises_each_of_the_three_refusals(reason: Any, code: ErrorCode) -> None:
    with pytest.raises(HandshakeRefused) as caught:
        conclude(Refuse(reason), terms())

    assert caught.value.code is code
    if not isinstance(reason, VersionMismatch):
        assert reason.text in caught.value.text


REASONS_ON_THE_WIRE = {
    VersionMismatch((1, 2)): [2, [0, [1, 2]]],
    VersionMismatch(()): [2, [0, []]],
    HandshakeDecodeError(4_097, "x"): [2, [1, 4_097, "x"]],
    Refused(2, "y"): [2, [2, 2, "y"]],
}


@pytest.mark.parametrize(("reason", "value"), REASONS_ON_THE_WIRE.items())
def test_reasons_stand_on_the_wire_as_tabled(reason: Any, value: list[Any]) -> None:
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)

    assert codec.encode(Refuse(reason)) == cbor2.dumps(value)
    assert codec.decode(cbor2.dumps(value), "Confirm") == Refuse(reason)


# What is agreed


@pytest.mark.parametrize(("ours", "theirs"), list(product(BOOLEANS, BOOLEANS)))
def test_initiator_only_holds_if_either_side_says_so(ours: bool, theirs: bool) -> None:
    _, agreement = answer(proposal({2: node_data(initiator_only=theirs)}), terms(initiator_only=ours))

    assert agreement is not None
    assert agreement.initiator_only is (ours or theirs)


@pytest.mark.parametrize(
    ("our_sharing", "their_sharing", "we_only", "they_only"),
    list(product(BOOLEANS, BOOLEANS, BOOLEANS, BOOLEANS)),
)
def test_peers_are_shared_if_both_say_so_and_the_connection_is_duplex(
    our_sharing: bool, their_sharing: bool, we_only: bool, they_only: bool
) -> None:
    said = proposal({2: node_data(initiator_only=they_only, peer_sharing=int(their_sharing))})

    reply, agreement = answer(said, terms(peer_sharing=our_sharing, initiator_only=we_only))

    assert agreement is not None
    assert agreement.peer_sharing is (our_sharing and their_sharing and not (we_only or they_only))
    assert isinstance(reply, AcceptVersion)
    assert cbor2.loads(reply.parameters) == node_data(
        initiator_only=we_only or they_only, peer_sharing=int(agreement.peer_sharing)
    )


@pytest.mark.parametrize(
    ("initiator", "responder"),
    list(product(product(BOOLEANS, BOOLEANS), product(BOOLEANS, BOOLEANS))),
)
def test_both_sides_hold_the_same_agreement(
    initiator: tuple[bool, bool], responder: tuple[bool, bool]
) -> None:
    mine = terms(initiator_only=initiator[0], peer_sharing=initiator[1])
    yours = terms(initiator_only=responder[0], peer_sharing=responder[1])

    reply, agreement = answer(mine.proposal(), yours)

    assert conclude(reply, mine) == agreement


def test_an_accepted_version_that_was_never_proposed_is_refused() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        conclude(AcceptVersion(9, cbor2.dumps(node_data())), terms())
    assert caught.value.code is ErrorCode.HANDSHAKE_NO_VERSION


def test_an_acceptance_for_another_network_is_refused() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        conclude(AcceptVersion(2, cbor2.dumps(node_data(5))), terms())
    assert caught.value.code is ErrorCode.HANDSHAKE_WRONG_NETWORK


def test_an_acceptance_with_unreadable_data_is_the_peers_fault() -> None:
    with pytest.raises(DecodeError):
        conclude(AcceptVersion(2, cbor2.dumps([1])), terms())


# Queries


@pytest.mark.parametrize(("ours", "theirs"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("kind", ConnectionKind)
def test_a_query_by_either_side_is_answered_with_the_responders_table(
    kind: ConnectionKind, ours: bool, theirs: bool
) -> None:
    said = {NODE: {2: node_data(query=theirs)}, CLIENT: {4_097: [MAGIC, theirs]}}[kind]

    reply, agreement = answer(proposal(said), terms(kind, query=ours))

    assert isinstance(reply, QueryReply)
    numbers = [offered.number for offered in reply.versions]
    assert numbers == {NODE: [1, 2], CLIENT: [4_097]}[kind]
    assert agreement is not None
    assert agreement.query


def test_a_query_reply_stands_on_the_wire_as_tabled() -> None:
    reply, _ = answer(proposal({4_097: [MAGIC, True]}), terms(CLIENT))

    raw = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE).encode(reply)

    assert cbor2.loads(raw) == [3, {4_097: [MAGIC, False]}]


def test_a_query_for_another_network_is_refused_all_the_same() -> None:
    reply, _ = answer(proposal({4_097: [7, True]}), terms(CLIENT))

    assert isinstance(reply, Refuse)


def test_the_asker_of_a_query_concludes_and_has_20_seconds_to_go() -> None:
    agreement = conclude(QueryReply(terms(CLIENT).table()), terms(CLIENT, query=True))

    assert agreement.query
    assert QUERY_DEPARTURE_S == 20


def test_a_query_reply_that_nobody_asked_for_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        conclude(QueryReply(terms().table()), terms())


# Simultaneous open


def test_a_crossing_proposal_is_read_as_the_reply() -> None:
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)
    mine = terms()
    raw = codec.encode(mine.proposal())

    heard = codec.decode(raw, "Confirm")

    assert heard == ReplyVersions(mine.table())
    assert conclude(heard, terms()).version == 2


@given(
    st.lists(st.sampled_from(sorted(PROFILES)), min_size=2, max_size=2),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_both_sides_of_a_simultaneous_open_reach_the_same_agreement(
    names: list[str], flags: list[bool]
) -> None:
    first = PROFILES[names[0]].proposal_terms(NODE, data_of(initiator_only=flags[0], peer_sharing=flags[1]))
    second = PROFILES[names[1]].proposal_terms(NODE, data_of(initiator_only=flags[2], peer_sharing=flags[3]))

    here = conclude(ReplyVersions(second.table()), first)
    there = conclude(ReplyVersions(first.table()), second)

    assert here == there
    assert here.version == (2 if names == ["dmq-node", "dmq-node"] else 1)


def test_a_crossing_proposal_without_a_common_version_or_network_is_refused() -> None:
    with pytest.raises(HandshakeRefused) as no_version:
        conclude(ReplyVersions(proposal({9: node_data()}).versions), terms())
    assert no_version.value.code is ErrorCode.HANDSHAKE_NO_VERSION

    with pytest.raises(HandshakeRefused) as no_network:
        conclude(ReplyVersions(proposal({2: node_data(1)}).versions), terms())
    assert no_network.value.code is ErrorCode.HANDSHAKE_WRONG_NETWORK


# Cardano's numbers in profile seed

CARDANO_NODE = {7: [MAGIC, False], 10: [MAGIC, False], 13: node_data(), 14: node_data()}
CARDANO_CLIENT = {32_777: MAGIC, 32_783: [MAGIC, False], 32_784: [MAGIC, False]}


@pytest.mark.parametrize("profiles", [("dmq-node",), ("gouroboros",), ("dmq-node", "gouroboros")])
def test_cardanos_numbers_are_unknown_to_running_nodes(profiles: tuple[str, ...]) -> None:
    assert answer(proposal(CARDANO_NODE), terms(profiles=profiles))[0] == Refuse(VersionMismatch((1, 2)))
    assert answer(proposal(CARDANO_CLIENT), terms(CLIENT, profiles=profiles))[0] == Refuse(
        VersionMismatch((4_097,))
    )


@pytest.mark.parametrize("profiles", [("seed",), ("dmq-node", "gouroboros", "seed")])
def test_the_documents_profile_accepts_the_highest_of_cardanos_numbers(profiles: tuple[str, ...]) -> None:
    reply, agreement = answer(proposal(CARDANO_NODE), terms(profiles=profiles))
    assert isinstance(reply, AcceptVersion)
    assert reply.version == 14
    assert agreement is not None
    assert agreement.submission_version == 1

    reply, _ = answer(proposal(CARDANO_CLIENT), terms(CLIENT, profiles=profiles))
    assert reply == AcceptVersion(32_784, cbor2.dumps([MAGIC, False]))


@pytest.mark.parametrize("number", range(7, 11))
def test_old_node_versions_have_two_values(number: int) -> None:
    reply, agreement = answer(proposal({number: [MAGIC, True]}), terms(profiles=("seed",)))

    assert reply == AcceptVersion(number, cbor2.dumps([MAGIC, True]))
    assert agreement is not None
    assert agreement.initiator_only


def test_old_client_versions_have_a_bare_magic() -> None:
    reply, _ = answer(proposal({32_777: MAGIC}), terms(CLIENT, profiles=("seed",)))

    assert reply == AcceptVersion(32_777, cbor2.dumps(MAGIC))


def test_dmqs_own_versions_come_before_cardanos() -> None:
    reply, _ = answer(proposal({1: node_data(), 2: node_data(), 14: node_data()}), terms(profiles=("seed",)))
    assert isinstance(reply, AcceptVersion)
    assert reply.version == 2

    reply, _ = answer(
        proposal({4_097: [MAGIC, False], 32_784: [MAGIC, False]}), terms(CLIENT, profiles=("seed",))
    )
    assert isinstance(reply, AcceptVersion)
    assert reply.version == 4_097


def test_a_kind_never_answers_with_the_other_kinds_versions() -> None:
    everything = {1: node_data(), 14: node_data(), 4_097: [MAGIC, False], 32_784: [MAGIC, False]}
    ordered = dict(sorted(everything.items()))

    node_reply, _ = answer(proposal(ordered), terms(profiles=("seed",)))
    client_reply, _ = answer(proposal(ordered), terms(CLIENT, profiles=("seed",)))

    assert isinstance(node_reply, AcceptVersion)
    assert isinstance(client_reply, AcceptVersion)
    assert (node_reply.version, client_reply.version) == (1, 4_097)


# Size


def a_proposal_of(size: int) -> bytes:
    """A proposal of exactly `size` bytes: one known version, and one unknown with a long string."""
    known = b"\x82\x00\xa2\x02" + cbor2.dumps(node_data()) + b"\x18\x63"
    rest = size - len(known) - 3
    return known + written_head(2, rest) + bytes(rest)


def test_a_message_has_at_most_5760_bytes_in_both_states() -> None:
    spec = spec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)
    for state in (spec.state("Propose"), spec.state("Confirm")):
        limits = ItemLimits(state.message_bytes_max, state.items_max, any_type=True)
        fitting, too_long = a_proposal_of(5_760), a_proposal_of(5_761)
        framer = Framer()
        framer.feed(fitting)
        item = framer.next_item(limits)
        assert item == fitting
        codec.decode(item, state.name)

        framer.feed(too_long)
        with pytest.raises(DecodeError) as caught:
            framer.next_item(limits)
        assert (caught.value.code, caught.value.limit) == (ErrorCode.CBOR_LIMIT, 5_760)


@pytest.mark.parametrize(
    "raw",
    ["8200bf01841a80000002f401f4ff", "8200a12001", "8200a1613101", "820080", "8200a1180101"],
    ids=["an indefinite map", "a negative key", "a text key", "a list", "a key longer than needed"],
)
def test_a_proposal_of_another_form_is_a_decode_error(raw: str) -> None:
    codec = codec_for(PROFILES["dmq-node"], MiniProtocol.HANDSHAKE)

    with pytest.raises(DecodeError):
        codec.decode(bytes.fromhex(raw), "Propose")
