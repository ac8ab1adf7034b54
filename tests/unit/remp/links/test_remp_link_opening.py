"""Handshake and authentication of links: who is let in, who is refused by which name, and that no proof serves twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from stagepost.catchain.overlay_protocol import Push
from stagepost.dmq.endpoints.connection import initiate
from stagepost.dmq.profiles import DEFAULT_PROFILE
from stagepost.errors import (
    ErrorCode,
    HandshakeRefused,
    ProtocolTimeout,
    RemoteProtocolError,
    StagepostError,
)
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.secret_stream import EphemeralKey
from stagepost.ground.net.admission import PROOF_WITHIN_S, AdmissionLimits
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import open_handshake
from stagepost.ground.net.handshake import ProposeVersions
from stagepost.ground.net.handshake import Refuse as NotAccepted
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction
from stagepost.remp.links.authentication import (
    LinkTerms,
    Prove,
    Proved,
    Refuse,
    Side,
    network_session_id,
    refusal,
    refused_by_peer,
)
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import initiate_link
from stagepost.remp.links.specs import LinkProtocol, open_link_protocol
from stagepost.remp.links.versions import (
    LinkData,
    LinkKind,
    LinkVersion,
    answer,
    conclude,
    propose,
    read_link_data,
)
from tests.worlds.remp.remp_links import (
    MAGIC,
    OTHER_SESSION,
    PORT,
    SESSION,
    Heard,
    MemberNode,
    SimulatedMembers,
    an_end,
    host_of,
    in_virtual_time,
    key_of,
    seed_of,
    until,
)

STRANGER = 7
ADDRESS = TcpAddress(host_of(1), PORT)
VERSIONS = (LinkVersion.CATCHAIN,)
EPHEMERALS = tuple(EphemeralKey(bytes([number]) * 32) for number in (1, 2))
OURS = LinkData(MAGIC, key_of(0), b"\1" * 32, EPHEMERALS[0].public_key, VERSIONS)
THEIRS = LinkData(MAGIC, key_of(1), b"\2" * 32, EPHEMERALS[1].public_key, VERSIONS)
PROPOSED = propose(VERSIONS, OURS)
_, _SETTLED = answer(PROPOSED, VERSIONS, THEIRS)
assert isinstance(_SETTLED, LinkTerms)
TERMS = _SETTLED


def with_member(scenario: Callable[[SimulatedMembers, MemberNode], Awaitable[None]]) -> None:
    """Member 1 of three runs alone; the scenario plays the others."""

    async def main() -> None:
        world = SimulatedMembers(3)
        node = await world.node(1)
        node.start()
        try:
            await scenario(world, node)
        finally:
            await node.stop()

    in_virtual_time(main())


async def refused_as(
    world: SimulatedMembers,
    number: int,
    *,
    kind: LinkKind = LinkKind.CATCHAIN,
    session_id: bytes = SESSION,
    magic: int = MAGIC,
    seed: bytes | None = None,
    expected_key: bytes = key_of(1),
) -> StagepostError:
    """What node `number` hears when it opens a link to member 1."""
    end = an_end(number, world.network.process(host_of(number)), magic=magic, seed=seed)
    bearer = await end.network.connect(ADDRESS)
    with pytest.raises(StagepostError) as refused:
        await initiate_link(bearer, end, kind, session_id, expected_key)
    await bearer.wait_closed()
    return refused.value


# Who is refused, and by which name


def test_a_peer_of_another_network_is_told_both_magics() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        error = await refused_as(world, 0, magic=8_888)
        assert error.code is ErrorCode.HANDSHAKE_WRONG_NETWORK
        assert str(MAGIC) in error.text
        assert "8888" in error.text

    with_member(scenario)


def test_a_key_that_is_no_member_is_refused_by_name_before_its_signature_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        monkeypatch.setattr(ed25519, "verify", lambda *_: pytest.fail("a signature was verified"))
        error = await refused_as(world, STRANGER)
        assert (error.code, error.reason) == (ErrorCode.PROTOCOL_REQUEST, "NotAMember")
        assert key_of(STRANGER).hex() in error.text

    with_member(scenario)


def test_a_session_that_is_not_registered_is_refused_by_name_and_may_be_asked_for_again() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        error = await refused_as(world, 0, session_id=OTHER_SESSION)
        assert (error.code, error.reason) == (ErrorCode.NOT_READY, "UnknownSession")
        assert OTHER_SESSION.hex() in error.text
        error = await refused_as(world, 0, kind=LinkKind.REMP, session_id=SESSION)
        assert error.reason == "UnknownSession", "a session of members is none of full nodes"

    with_member(scenario)


def test_a_member_of_a_higher_index_waits_to_be_dialled() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        error = await refused_as(world, 2)
        assert (error.code, error.reason) == (ErrorCode.NOT_READY, "WrongDirection")

    with_member(scenario)


def test_a_node_that_dials_somebody_with_its_own_key_is_told_so() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        error = await refused_as(world, 0, seed=seed_of(1), expected_key=key_of(1))
        assert "own" in error.text
        assert error.code is ErrorCode.PROTOCOL_REQUEST

    with_member(scenario)


def test_somebody_else_at_the_address_is_found_out_before_anything_is_signed() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        error = await refused_as(world, 0, expected_key=key_of(2))
        assert not isinstance(error, HandshakeRefused), "this is the peer's fault"
        assert error.reason == "OtherKey"
        assert node.overlay.linked == []

    with_member(scenario)


def test_a_dmq_peer_never_sees_links_and_links_never_see_a_dmq_peer() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        bearer = await world.network.process(host_of(0)).connect(ADDRESS)
        with pytest.raises(HandshakeRefused) as refused:
            await initiate(bearer, DEFAULT_PROFILE, ConnectionKind.NODE, VersionData(MAGIC))
        assert refused.value.code is ErrorCode.HANDSHAKE_NO_VERSION
        assert refused.value.found == (LinkVersion.REMP, LinkVersion.CATCHAIN)

    with_member(scenario)


# Proofs


async def shaken(world: SimulatedMembers, number: int, claimed: bytes) -> tuple[Bearer, LinkTerms]:
    """A connection of `number` to member 1 after the handshake, with a key that it only claims to have."""
    bearer = await world.network.process(host_of(number)).connect(ADDRESS)
    ours = LinkData(MAGIC, claimed, bytes(32), EPHEMERALS[0].public_key, VERSIONS)
    talk = open_handshake(bearer, Direction.INITIATOR)
    await talk.send(propose(VERSIONS, ours))
    terms = conclude(await talk.receive_any(), propose(VERSIONS, ours), ours, key_of(1))
    await talk.release()
    return bearer, terms


async def answer_to(bearer: Bearer, proof: Prove) -> Proved | Refuse:
    talk = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.CLIENT)
    await talk.send(proof)
    reply: Proved | Refuse = await talk.receive_any()
    return reply


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(lambda terms: bytes(64), id="zeros"),
        pytest.param(
            lambda terms: terms.prove(Side.INITIATOR, SESSION, seed_of(STRANGER)), id="another key's"
        ),
        pytest.param(lambda terms: terms.prove(Side.RESPONDER, SESSION, seed_of(0)), id="the other role's"),
        pytest.param(
            lambda terms: terms.prove(Side.INITIATOR, OTHER_SESSION, seed_of(0)), id="another session's"
        ),
        pytest.param(lambda terms: TERMS.prove(Side.INITIATOR, SESSION, seed_of(0)), id="of other nonces"),
    ],
)
def test_a_key_that_is_only_claimed_opens_nothing(proof: Callable[[LinkTerms], bytes]) -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        bearer, terms = await shaken(world, STRANGER, key_of(0))
        reply = await answer_to(bearer, Prove(SESSION, proof(terms)))
        assert isinstance(reply, Refuse)
        assert (reply.code, reply.rule) == (ErrorCode.PROTOCOL_REQUEST, "BadProof")
        await bearer.wait_closed()
        assert node.overlay.linked == []
        # The member whose key was claimed does not pay for it; the address does.
        end = an_end(0, world.network.process(host_of(0)))
        honest = await end.network.connect(ADDRESS)
        await initiate_link(honest, end, LinkKind.CATCHAIN, SESSION, key_of(1))
        await until(lambda: node.overlay.linked == [0])
        again = await world.network.process(host_of(STRANGER)).connect(ADDRESS)
        assert await again.wait_closed() is None
        honest.close()

    with_member(scenario)


def test_a_proof_that_was_heard_once_opens_no_second_link() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        bearer, terms = await shaken(world, 0, key_of(0))
        heard = Prove(SESSION, terms.prove(Side.INITIATOR, SESSION, seed_of(0)))
        assert isinstance(await answer_to(bearer, heard), Proved)
        again, _ = await shaken(world, STRANGER, key_of(0))
        reply = await answer_to(again, heard)
        assert isinstance(reply, Refuse)
        assert reply.rule == "BadProof"
        bearer.close()

    with_member(scenario)


def test_a_responder_that_sends_our_own_proof_or_nonce_back_is_found_out() -> None:
    with pytest.raises(RemoteProtocolError) as mirrored:
        TERMS.check(Side.RESPONDER, SESSION, TERMS.prove(Side.INITIATOR, SESSION, seed_of(0)))
    assert mirrored.value.reason == "BadProof"
    same_nonce = msgspec.structs.replace(THEIRS, nonce=OURS.nonce)
    reply, _ = answer(PROPOSED, VERSIONS, same_nonce)
    assert not isinstance(reply, ProposeVersions)
    with pytest.raises(RemoteProtocolError) as nonce:
        conclude(reply, PROPOSED, OURS, key_of(1))
    assert nonce.value.reason == "MirroredNonce"


def test_a_proof_holds_for_its_own_link_alone() -> None:
    proof = TERMS.prove(Side.INITIATOR, SESSION, seed_of(0))
    TERMS.check(Side.INITIATOR, SESSION, proof)
    changes: list[dict[str, Any]] = [
        {"version": LinkVersion.REMP},
        {"network_magic": MAGIC + 1},
        {"initiator_nonce": b"\3" * 32},
        {"responder_nonce": b"\3" * 32},
        {"responder_key": key_of(2)},
        {"initiator_key": key_of(2)},
        {"initiator_ephemeral": b"\3" * 32},
        {"responder_ephemeral": b"\3" * 32},
        {"transcript": b"\3" * 32},
        {"transcript": b"", "initiator_ephemeral": b"", "responder_ephemeral": b""},
    ]
    others = [msgspec.structs.replace(TERMS, **change) for change in changes]
    for terms in others:
        with pytest.raises(RemoteProtocolError, match="did not prove"):
            terms.check(Side.INITIATOR, SESSION, proof)
    with pytest.raises(RemoteProtocolError, match="did not prove"):
        TERMS.check(Side.INITIATOR, OTHER_SESSION, proof)


@pytest.mark.parametrize(
    "field",
    [
        *("initiator_nonce", "responder_nonce", "responder_key"),
        *("initiator_ephemeral", "responder_ephemeral", "transcript"),
    ],
)
def test_a_field_that_is_left_out_of_the_proof_is_noticed(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect for each field."""
    signed = LinkTerms.signed_bytes

    def without(terms: LinkTerms, side: Side, session_id: bytes) -> bytes:
        return signed(msgspec.structs.replace(terms, **{field: b"?"}), side, session_id)

    monkeypatch.setattr(LinkTerms, "signed_bytes", without)
    with pytest.raises(BaseException) as noticed:  # noqa: PT011 - a failed `raises` is no Exception
        test_a_proof_holds_for_its_own_link_alone()
    assert "DID NOT RAISE" in str(noticed.value)


def test_every_offered_version_and_its_data_are_signed() -> None:
    both = (LinkVersion.CATCHAIN_PLAIN, LinkVersion.CATCHAIN)
    answers = [
        answer(propose(offered, ours), VERSIONS, THEIRS)[1]
        for offered, ours in (
            (VERSIONS, OURS),
            (both, OURS),
            (VERSIONS, msgspec.structs.replace(OURS, versions=both)),
        )
    ]
    transcripts = {terms.transcript for terms in answers if isinstance(terms, LinkTerms)}
    assert len(transcripts) == 3


def test_a_responder_without_the_key_that_it_names_is_refused_and_nothing_of_it_is_heard() -> None:
    async def main() -> None:
        world = SimulatedMembers(2)

        async def impostor(bearer: Bearer) -> None:
            talk = open_handshake(bearer, Direction.RESPONDER)
            reply, _ = answer(await talk.receive(ProposeVersions), VERSIONS, THEIRS)
            judging = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.SERVER)
            await talk.send(reply)
            await talk.release()
            proof = await judging.receive(Prove)
            # The mirror: what was proved to us is proved back. And something to be believed, right behind it.
            await judging.send(Proved(proof.signature))
            pushing = open_link_protocol(bearer, LinkProtocol.CATCHAIN_OVERLAY, Role.CLIENT)
            await pushing.send(Push(b"believe me"))
            await bearer.wait_closed()

        listener = await world.network.process(host_of(1)).serve(ADDRESS, impostor)
        node = await world.node(0)
        node.start()
        await asyncio.sleep(30)
        assert node.overlay.linked == []
        assert node.heard == Heard()
        await node.stop()
        await listener.close()

    in_virtual_time(main())


# Deadlines, and nothing before the proof


def test_a_peer_that_proves_nothing_within_2_s_is_cut_off() -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        bearer, _ = await shaken(world, 0, key_of(0))
        shaken_at = asyncio.get_running_loop().time()
        await bearer.wait_closed()
        waited_s = asyncio.get_running_loop().time() - shaken_at
        assert waited_s == pytest.approx(PROOF_WITHIN_S, abs=0.1)

    with_member(scenario)


def test_an_initiator_waits_10_s_for_the_answer_to_its_proof() -> None:
    async def main() -> None:
        world = SimulatedMembers(2)

        async def silent(bearer: Bearer) -> None:
            talk = open_handshake(bearer, Direction.RESPONDER)
            reply, _ = answer(await talk.receive(ProposeVersions), VERSIONS, THEIRS)
            judging = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.SERVER)
            await talk.send(reply)
            await talk.release()
            await judging.receive(Prove)
            await bearer.wait_closed()

        listener = await world.network.process(host_of(1)).serve(ADDRESS, silent)
        error = await refused_as(world, 0)
        assert isinstance(error, ProtocolTimeout)
        await listener.close()

    in_virtual_time(main())


@pytest.mark.parametrize("protocol", [p for p in LinkProtocol if p is not LinkProtocol.AUTHENTICATION])
def test_nothing_is_served_before_the_proof(protocol: LinkProtocol) -> None:
    async def scenario(world: SimulatedMembers, node: MemberNode) -> None:
        bearer, _ = await shaken(world, 0, key_of(0))
        channel = bearer.channel(protocol, Direction.INITIATOR, 1_000)
        await channel.write(b"\x82\x00\x44abcd")
        await bearer.wait_closed()
        assert node.heard.pushes == []
        assert node.overlay.linked == []

    with_member(scenario)


@pytest.mark.parametrize(
    ("theirs", "code"),
    [
        pytest.param(
            LinkData(MAGIC + 1, key_of(0), bytes(32)), ErrorCode.HANDSHAKE_WRONG_NETWORK, id="another network"
        ),
        pytest.param(
            LinkData(MAGIC, key_of(1), bytes(32)), ErrorCode.PROTOCOL_REQUEST, id="the responder's own key"
        ),
        pytest.param(LinkData(MAGIC, bytes(5), bytes(32)), ErrorCode.CBOR_INVALID, id="no key"),
    ],
)
def test_a_responder_says_no_to_what_it_cannot_accept_and_the_initiator_hears_why(
    theirs: LinkData, code: ErrorCode
) -> None:
    theirs = msgspec.structs.replace(theirs, ephemeral_key=EPHEMERALS[0].public_key, versions=VERSIONS)
    reply, why = answer(propose(VERSIONS, theirs), VERSIONS, THEIRS)
    assert isinstance(reply, NotAccepted)
    assert isinstance(why, HandshakeRefused)
    assert why.code is code
    with pytest.raises(HandshakeRefused) as heard:
        conclude(reply, propose(VERSIONS, theirs), theirs, key_of(1))
    assert heard.value.code is code


# How many may come


def test_one_source_gets_so_many_connections_and_has_them_back_when_they_end() -> None:
    async def main() -> None:
        world = SimulatedMembers(2)
        listener = LinkListener(
            an_end(1, world.network.process(host_of(1))), AdmissionLimits(per_source_max=2)
        )
        await listener.start(ADDRESS)
        process = world.network.process(host_of(0))
        held = [await process.connect(ADDRESS) for _ in range(2)]
        refused = await process.connect(ADDRESS)
        await asyncio.sleep(0.3)
        assert refused.is_over
        assert not any(bearer.is_over for bearer in held)
        elsewhere = await world.network.process(host_of(2)).connect(ADDRESS)
        held[0].close()
        await asyncio.sleep(0.3)
        again = await process.connect(ADDRESS)
        await asyncio.sleep(0.3)
        assert not again.is_over
        assert not elsewhere.is_over
        for bearer in (held[1], again, elsewhere):
            bearer.close()
        await listener.close()

    in_virtual_time(main())


# Data of the versions, and texts


def changed(**changes: Any) -> bytes:
    return msgspec.structs.replace(OURS, **changes).write(is_encrypted=True)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x82\x01\x02", id="two fields"),
        pytest.param(changed(public_key=bytes(31)), id="short key"),
        pytest.param(changed(public_key=bytes(33)), id="long key"),
        pytest.param(changed(nonce=bytes(31)), id="short nonce"),
        pytest.param(changed(ephemeral_key=bytes(31)), id="short ephemeral key"),
        pytest.param(changed(network_magic=1 << 32), id="magic of 33 bits"),
        pytest.param(changed(versions=(1 << 16,)), id="version of 17 bits"),
        pytest.param(changed(versions=tuple(range(17))), id="17 versions"),
        pytest.param(OURS.write(is_encrypted=False), id="data of a plain link"),
        pytest.param(OURS.write(is_encrypted=True) + b"\0", id="bytes left over"),
    ],
)
def test_version_data_of_another_shape_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_link_data(raw, LinkVersion.CATCHAIN)


def test_version_data_are_read_back_as_they_were_written() -> None:
    assert read_link_data(OURS.write(is_encrypted=True), LinkVersion.REMP) == OURS
    plain = LinkData(MAGIC, key_of(0), OURS.nonce)
    assert read_link_data(OURS.write(is_encrypted=False), LinkVersion.REMP_PLAIN) == plain
    sixteen = msgspec.structs.replace(OURS, versions=tuple(range(16)))
    assert read_link_data(sixteen.write(is_encrypted=True), LinkVersion.REMP) == sixteen


def test_each_network_has_a_session_id_of_its_own_for_full_nodes() -> None:
    assert len({network_session_id(magic) for magic in range(100)}) == 100
    assert len(network_session_id(MAGIC)) == 32


def test_a_refusal_fits_its_message_and_an_unknown_code_is_told_as_text() -> None:
    long = RemoteProtocolError("é" * 2_000, code=ErrorCode.NOT_READY, reason="rule")
    told = refusal(long)
    assert len(told.text.encode()) <= 512
    assert refused_by_peer(told).code is ErrorCode.NOT_READY
    strange = refused_by_peer(Refuse("NO_SUCH_CODE", "rule", "text"))
    assert strange.code is ErrorCode.PROTOCOL_REQUEST
    assert "NO_SUCH_CODE" in strange.text
