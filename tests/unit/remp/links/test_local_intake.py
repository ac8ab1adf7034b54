"""The local socket of a full node: messages in, statuses out, and what happens to those who break its rules."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path

import pytest

from stagepost.chain.proofs.proof_form import EndKind
from stagepost.chain.proofs.proof_rules import ProofVerifier
from stagepost.errors import ErrorCode, HandshakeRefused, StagepostError, TransportError
from stagepost.full_node import followed as followed_statuses
from stagepost.full_node import local_server as local_intake
from stagepost.full_node.local_client import (
    AcceptedSubmission,
    ExternalMessages,
    IntakeAddress,
    IntakeConversation,
    RefusedByFullNode,
    SubmissionRefusal,
)
from stagepost.full_node.local_server import SOCKET_FILE, LocalIntake, serving_programs, told_statuses
from stagepost.ground.files.running_nodes import FULL_NODE_FILE, FullNodeFacts, find_full_node
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.wire.codec import Codec
from stagepost.remp.links.local_intake import (
    FOLLOWING,
    READ_BYTES_MAX,
    TELLING_RECORDS_MAX,
    VERDICT_BYTES_MAX,
    Done,
    SubmitExternalMessage,
    TellStatuses,
)
from stagepost.remp.links.specs import OBJECTS_INGRESS_BYTES_MAX, LinkProtocol, codec_table
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.remp.receipts.receipt import RECEIPT_BYTES_MAX
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.remp.verdict.message_verdict import Awaited
from tests.worlds.full_node.full_node_desk import MAGIC, REFUSING, FullNodeDesk, a_desk, a_served_desk, primes

Scenario = Callable[[FullNodeDesk, FullNodeFacts], Awaitable[None]]
WITHIN_S = 120.0


def at_a_socket(data: Path, scenario: Scenario, allowed_user_ids: frozenset[int] | None = None) -> None:
    async def main() -> None:
        served = a_served_desk(data, allowed_user_ids=allowed_user_ids)
        async with asyncio.timeout(WITHIN_S), served as (desk, facts):
            await scenario(desk, facts)

    asyncio.run(main())


def address(facts: FullNodeFacts, magic: int = MAGIC) -> IntakeAddress:
    return IntakeAddress.of(facts.local_socket, magic)


# Messages in


def test_a_message_is_taken_once_and_recognised_afterwards(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        async with await address(facts).open() as talk:
            first = await talk.submit(primes())
            assert first == AcceptedSubmission(desk.node.id_of(primes()), is_new=True)
            assert await talk.submit(primes()) == AcceptedSubmission(first.message_id, is_new=False)
        assert desk.desk.taken == 1

    at_a_socket(tmp_path, scenario)


def test_what_is_no_message_or_is_refused_by_the_account_is_refused_in_words(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        async with await address(facts).open() as talk:
            junk = await talk.submit(b"no message at all")
            assert isinstance(junk, SubmissionRefusal)
            assert (junk.message_id, junk.code) == (None, ErrorCode.TL_INVALID)
            refused = await talk.submit(primes(account=REFUSING))
            assert isinstance(refused, SubmissionRefusal)
            assert refused.message_id == desk.node.id_of(primes(account=REFUSING))
            assert "52" in refused.text
            assert isinstance(await talk.submit(primes()), AcceptedSubmission), (
                "and the connection is still good"
            )
        assert desk.desk.refused == 2

    at_a_socket(tmp_path, scenario)


@pytest.mark.parametrize(
    ("size", "is_answered"),
    [(MESSAGE_BYTES_MAX + 1, True), (READ_BYTES_MAX, True), (READ_BYTES_MAX + 1, False)],
)
def test_a_message_that_is_too_large_is_refused_and_one_far_too_large_ends_the_connection(
    tmp_path: Path, size: int, is_answered: bool
) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        talk = await address(facts).open()
        if is_answered:
            reply = await talk._ask(SubmitExternalMessage(bytes(size)))
            assert getattr(reply, "code", None) == ErrorCode.MSG_BODY_SIZE
            await talk.close()
        else:
            with pytest.raises(StagepostError):
                await talk._ask(SubmitExternalMessage(bytes(size)))
        assert desk.desk.taken == 0
        async with await address(facts).open() as another:
            assert isinstance(await another.submit(primes()), AcceptedSubmission)

    at_a_socket(tmp_path, scenario)


def test_the_client_does_not_even_send_what_is_too_large(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        messages = ExternalMessages(facts)
        with pytest.raises(RefusedByFullNode, match="65536 bytes; at most 65535") as caught:
            await messages.submit(bytes(MESSAGE_BYTES_MAX + 1), 5)
        assert caught.value.code is ErrorCode.MSG_BODY_SIZE
        await messages.close()
        assert desk.desk.refused == 0

    at_a_socket(tmp_path, scenario)


def test_a_full_node_with_too_much_to_do_says_so_and_that_it_may_be_tried_again(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        desk.node.sending._options = type(desk.node.sending._options)(messages_max=1)
        async with await address(facts).open() as talk:
            assert isinstance(await talk.submit(primes(10)), AcceptedSubmission)
            refused = await talk.submit(primes(11))
            assert isinstance(refused, SubmissionRefusal)
            assert refused.code is ErrorCode.QUEUE_FULL

    at_a_socket(tmp_path, scenario)


# Statuses out


def test_statuses_come_from_the_topic_and_as_they_happen_each_once(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        messages = ExternalMessages(facts)
        with pytest.raises(RefusedByFullNode) as refused:
            await messages.submit(primes(account=REFUSING), 5)
        assert refused.value.message_id is not None
        claimed = await messages.wait_for(refused.value.message_id, Awaited.FINAL, 0.3)
        assert (claimed.verdict, claimed.is_reached) == ("rejected_by_fullnode", False)
        assert not claimed.has_ended, "nothing was sent, and nothing is proved"
        taken = await messages.submit(primes(), 5)
        waiting = asyncio.create_task(messages.wait_for(taken.message_id, Awaited.FINAL, 10))
        while not desk.desk.followed:
            await asyncio.sleep(0)
        desk.in_a_final_block(primes())
        final = await waiting
        assert (final.verdict, final.is_reached, str(final)) == ("finalized", True, "Finalized")
        assert final.proof is not None
        assert final.proof == await messages.proof(taken.message_id, 5)
        checked = ProofVerifier(desk.chain.genesis).check_file(final.proof)
        assert (checked.kind, checked.message_id) == (EndKind.EXECUTED, taken.message_id)
        trace = await messages.trace(taken.message_id, 5)
        assert [point.receipt.kind.name for point in trace.points] == ["SentToValidators", "Finalized"]
        await messages.close()
        assert desk.desk.followed == 0

    at_a_socket(tmp_path, scenario)


def test_a_wait_ends_with_how_the_message_stands(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        messages = ExternalMessages(facts)
        taken = await messages.submit(primes(), 5)
        found = await messages.wait_for(taken.message_id, Awaited.QUEUED, 0.3)
        assert (found.verdict, found.is_reached, found.has_ended, found.missing) == (None, False, False, ())
        assert str(found) == "No receipt counts"
        assert await messages.proof(taken.message_id, 5) is None
        await messages.close()

    at_a_socket(tmp_path, scenario)


def test_a_wait_outlives_a_restart_of_the_full_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(WITHIN_S), a_desk(tmp_path) as desk:

            def served() -> AbstractAsyncContextManager[Path]:
                return serving_programs(LocalIntake(desk.desk, MAGIC), tmp_path, SocketNetwork())

            async with served() as path:
                messages = ExternalMessages(FullNodeFacts(1, str(path), MAGIC, str(tmp_path / SETS_FILE)))
                taken = await messages.submit(primes(), 5)
                waiting = asyncio.create_task(messages.wait_for(taken.message_id, Awaited.FINAL, 15))
                await _until(lambda: desk.desk.followed == 1)
            await _until(lambda: desk.desk.followed == 0)
            desk.in_a_final_block(primes())
            async with served():
                assert (await waiting).is_reached
                # The connection that was kept for messages has ended as well, which nobody notices.
                assert not (await messages.submit(primes(), 5)).is_new
                await messages.close()

    asyncio.run(main())


def test_a_message_of_which_there_is_no_receipt_has_no_trace(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        with pytest.raises(StagepostError, match="no receipt of message") as caught:
            await ExternalMessages(facts).trace(bytes(32), 5)
        assert caught.value.code is ErrorCode.MSG_BAD_ID

    at_a_socket(tmp_path, scenario)


def test_many_and_large_statuses_come_page_by_page_and_none_is_lost(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        identifier = bytes(range(32))
        async with await address(facts).open() as talk:
            assert (await talk.follow(identifier, 0, 0)).records == ()
            sizes = [0] * (2 * TELLING_RECORDS_MAX + 1) + [RECEIPT_BYTES_MAX - 64] * 5
            told = [desk.status(identifier, number, size) for number, size in enumerate(sizes)]
            for record in told:
                desk.desk.written(record)
                desk.desk.written(record)  # a copy says it once
            await asyncio.sleep(0)
            got: list[StatusRecord] = []
            pages = 0
            while page := (await talk.follow(identifier, len(got), 0)).records:
                got += page
                pages += 1
                assert len(page) <= TELLING_RECORDS_MAX
            assert [one.value for one in got] == [one.value for one in told]
            assert pages >= 5
            beyond = await talk.follow(identifier, 4_000_000_000, 0)
            assert (beyond.records, beyond.after) == ((), len(told))

    at_a_socket(tmp_path, scenario)


def test_an_answer_never_exceeds_what_the_other_side_reads() -> None:
    largest = StatusRecord(b"x" * (RECEIPT_BYTES_MAX + 9), "", STATUSES_TOPIC, -5, {"session": "s" * 999})
    told = told_statuses([largest] * 100, 0)
    assert 1 <= len(told) < 100
    assert (told[0].session, told[0].arrived_ms, len(told[0].value)) == ("", 0, RECEIPT_BYTES_MAX)
    answer = TellStatuses(tuple(told), 1, 1, bytes(VERDICT_BYTES_MAX))
    written = Codec(codec_table(LinkProtocol.LOCAL_INTAKE), "local intake").encode(answer)
    assert len(written) <= FOLLOWING.message_bytes_max < OBJECTS_INGRESS_BYTES_MAX


def test_following_has_a_limit_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_statuses, "FOLLOWED_MAX", 2)

    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        async with AsyncExitStack() as open_ones:
            for number in range(2):
                talk = await open_ones.enter_async_context(await address(facts).open())
                await talk.follow(bytes([number] * 32), 0, 0)
            third = await open_ones.enter_async_context(await address(facts).open())
            with pytest.raises(StagepostError, match="followed already") as caught:
                await third.follow(bytes([9] * 32), 0, 0)
            assert caught.value.code is ErrorCode.QUEUE_FULL
            await third.follow(bytes([1] * 32), 0, 0)  # which another one follows
            await third.follow(bytes([0] * 32), 0, 0)  # and lets go of the former
        await _until(lambda: desk.desk.followed == 0)

    at_a_socket(tmp_path, scenario)


# Those who break the rules


JUNK = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x00" * 64,
    b"\xff" * 4_096,
    bytes.fromhex("0000000000000008") + b"\xff" * 8,
]


@pytest.mark.parametrize("junk", JUNK, ids=["HTTP", "zeros", "ones", "a segment of junk"])
def test_junk_ends_the_connection_and_nothing_else(tmp_path: Path, junk: bytes) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        reader, writer = await asyncio.open_unix_connection(facts.local_socket)
        writer.write(junk)
        writer.write_eof()
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        writer.close()
        async with await address(facts).open() as talk:
            assert isinstance(await talk.submit(primes()), AcceptedSubmission)

    at_a_socket(tmp_path, scenario)


def test_a_program_that_leaves_in_the_middle_of_a_message_is_forgotten(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        talk = await address(facts).open()
        written = Codec(codec_table(LinkProtocol.LOCAL_INTAKE), "local intake").encode(
            SubmitExternalMessage(primes())
        )
        talk._talk._channel.write_now(written[: len(written) // 2])
        await asyncio.sleep(0)
        talk._bearer.close()
        await talk._bearer.wait_closed()
        assert desk.desk.taken == 0
        follower = await address(facts).open()
        asking = asyncio.create_task(follower.follow(bytes(32), 0, 60))
        await _until(lambda: desk.desk.followed == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await _until(lambda: desk.desk.followed == 0)

    at_a_socket(tmp_path, scenario)


def test_words_out_of_turn_end_the_connection(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        talk = await address(facts).open()
        codec = Codec(codec_table(LinkProtocol.LOCAL_INTAKE), "local intake")
        talk._talk._channel.write_now(codec.encode(Done()) + codec.encode(SubmitExternalMessage(primes())))
        await asyncio.wait_for(talk._bearer.wait_closed(), 10)
        assert desk.desk.taken == 0

    at_a_socket(tmp_path, scenario)


def test_a_program_of_another_network_is_refused_with_both_named(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        with pytest.raises(HandshakeRefused) as caught:
            await address(facts, MAGIC + 1).open()
        assert caught.value.code is ErrorCode.HANDSHAKE_WRONG_NETWORK

    at_a_socket(tmp_path, scenario)


def test_another_user_is_cut_off_before_a_word_is_said(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        with pytest.raises(StagepostError):
            await address(facts).open()

    at_a_socket(tmp_path, scenario, allowed_user_ids=frozenset({os.getuid() + 1}))


def test_more_connections_than_the_limit_are_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_intake, "CONNECTIONS_MAX", 3)

    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        talks: list[IntakeConversation] = [await address(facts).open() for _ in range(3)]
        with pytest.raises(StagepostError):
            await address(facts).open()
        await talks.pop().close()
        await _until_open(facts)
        for talk in talks:
            await talk.close()

    at_a_socket(tmp_path, scenario)


# Where it is


def test_the_socket_is_the_owners_alone_and_goes_with_the_node(tmp_path: Path) -> None:
    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        path = tmp_path / SOCKET_FILE
        assert facts.local_socket == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / FULL_NODE_FILE).stat().st_mode) == 0o600
        assert find_full_node(tmp_path) == facts

    at_a_socket(tmp_path, scenario)
    assert not (tmp_path / SOCKET_FILE).exists()


def test_a_folder_with_a_long_name_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    elsewhere: list[Path] = []

    async def scenario(desk: FullNodeDesk, facts: FullNodeFacts) -> None:
        elsewhere.append(Path(facts.local_socket))
        assert stat.S_IMODE(elsewhere[0].parent.stat().st_mode) == 0o700
        async with await address(facts).open() as talk:
            assert isinstance(await talk.submit(primes()), AcceptedSubmission)

    at_a_socket(deep, scenario)
    assert not elsewhere[0].parent.exists()


def test_a_note_of_a_node_that_is_gone_leads_to_an_error_that_says_so(tmp_path: Path) -> None:
    FullNodeFacts(1, str(tmp_path / SOCKET_FILE), MAGIC, "sets").write(tmp_path)
    with pytest.raises(TransportError, match="no such socket"):
        asyncio.run(ExternalMessages(find_full_node(tmp_path)).check())
    (tmp_path / FULL_NODE_FILE).write_text("{}")
    with pytest.raises(StagepostError, match="cannot be read"):
        find_full_node(tmp_path)
    (tmp_path / FULL_NODE_FILE).unlink()
    with pytest.raises(StagepostError, match="no full node runs"):
        find_full_node(tmp_path)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


async def _until_open(facts: FullNodeFacts) -> None:
    """The place of a connection that has ended is free a moment later."""
    while True:
        with suppress(StagepostError):
            await (await address(facts).open()).close()
            return
        await asyncio.sleep(0.001)
