"""A bearer on a real socket pair, in virtual time: dispatch, back-pressure, deadlines, every way to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from stagepost.errors import ErrorCode, LocalProtocolError, ProtocolTimeout, StagepostError, TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import Bearer, Trace
from stagepost.ground.net.channel import ProtocolChannel
from stagepost.ground.wire.mux import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES_SENT_MAX,
    Direction,
    Segment,
    SegmentReader,
    encode_header,
    lane_number,
)
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX

INITIATOR, RESPONDER = Direction


async def a_bearer(sock: socket.socket, trace: Trace | None = None) -> Bearer:
    loop = asyncio.get_running_loop()
    _, bearer = await loop.create_unix_connection(lambda: Bearer(peer="test peer", trace=trace), sock=sock)
    return bearer


async def two_bearers() -> tuple[Bearer, Bearer]:
    ours, theirs = socket.socketpair()
    return await a_bearer(ours), await a_bearer(theirs)


def with_raw_peer(
    scenario: Callable[[Bearer, socket.socket], Awaitable[None]], trace: Trace | None = None
) -> None:
    """Runs `scenario` with a bearer and the bare socket at its other end."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            bearer = await a_bearer(ours, trace)
            await scenario(bearer, theirs)
            bearer.abort(TransportError("end of test"))
            await bearer.wait_closed()

    run_in_virtual_time(main())


def a_segment(protocol: int, direction: Direction, payload: bytes) -> bytes:
    return Segment(0, lane_number(protocol, direction), payload).encode()


async def read_for_ever(channel: ProtocolChannel) -> None:
    while True:
        await channel.read()


async def write_for_ever(channel: ProtocolChannel) -> None:
    while True:
        await channel.write(bytes(100_000))


async def read_raw(theirs: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < size and (piece := await loop.sock_recv(theirs, size - len(received))):
        received += piece
    return received


def test_two_bearers_talk_on_several_channels_and_in_both_directions() -> None:
    async def main() -> None:
        left, right = await two_bearers()
        pairs = [
            (left.channel(11, INITIATOR, 1_000), right.channel(11, RESPONDER, 1_000)),
            (left.channel(11, RESPONDER, 1_000), right.channel(11, INITIATOR, 1_000)),
            (left.channel(12, INITIATOR, 1_000), right.channel(12, RESPONDER, 1_000)),
        ]
        for number, (ours, theirs) in enumerate(pairs):
            await ours.write(b"request %d" % number)
            await theirs.write(b"answer %d" % number)
        for number, (ours, theirs) in enumerate(pairs):
            assert await theirs.read() == b"request %d" % number
            assert await ours.read() == b"answer %d" % number
        left.close()

        assert await right.wait_closed() is None
        assert await left.wait_closed() is None
        for ours, theirs in pairs:
            assert (await ours.read(), await theirs.read()) == (b"", b"")
            with pytest.raises(TransportError, match="is closed"):
                await ours.write(b"late")

    asyncio.run(main())


def test_large_message_arrives_whole_in_segments_of_the_size_we_send() -> None:
    async def main() -> None:
        traced: list[bytes] = []
        ours, theirs = socket.socketpair()
        left = await a_bearer(ours, lambda sent, raw: traced.append(raw) if sent else None)
        right = await a_bearer(theirs)
        message = bytes(index % 253 for index in range(1_000_000))
        writer, reader = left.channel(15, INITIATOR, 100), right.channel(15, RESPONDER, 2_000_000)

        writing = asyncio.ensure_future(writer.write(message))
        received = b""
        while len(received) < len(message):
            received += await reader.read()
        await writing

        assert received == message
        assert max(len(raw) for raw in traced) == SEGMENT_HEADER_BYTES + SEGMENT_PAYLOAD_BYTES_SENT_MAX
        left.close()
        await right.wait_closed()
        await left.wait_closed()

    asyncio.run(main())


def test_stream_cut_at_every_byte_is_received() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        handshake = bearer.channel(0, INITIATOR, 1_000)
        submission = bearer.channel(11, INITIATOR, 1_000)
        received: dict[str, bytes] = {"handshake": b"", "submission": b""}

        for byte in a_segment(0, RESPONDER, b"accept") + a_segment(11, RESPONDER, b"ids"):
            theirs.send(bytes((byte,)))
            for name, channel in (("handshake", handshake), ("submission", submission)):
                reading = asyncio.ensure_future(channel.read())
                await asyncio.wait([reading], timeout=0.001)
                if reading.done():
                    received[name] += reading.result()
                reading.cancel()

        assert received == {"handshake": b"accept", "submission": b"ids"}

    with_raw_peer(scenario)


def test_header_carries_the_loops_clock_and_our_direction() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(14, RESPONDER, 100)
        elapsed = asyncio.Event()
        asyncio.get_running_loop().call_later(5_000, elapsed.set)
        await elapsed.wait()

        await channel.write(b"hi")

        lane = lane_number(14, RESPONDER)
        assert await read_raw(theirs, 10) == encode_header(5_000_000_000 % 2**32, lane, 2) + b"hi"

    with_raw_peer(scenario)


def test_trace_shows_each_whole_segment_sent_and_received() -> None:
    traced: list[tuple[bool, bytes]] = []

    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        first, second = bearer.channel(14, INITIATOR, 100), bearer.channel(15, INITIATOR, 100)
        await first.write(b"submit")
        await second.write(b"request")
        theirs.send(a_segment(14, RESPONDER, b"accept"))
        await first.read()

        assert sorted(traced) == [
            (False, a_segment(14, RESPONDER, b"accept")),
            (True, a_segment(14, INITIATOR, b"submit")),
            (True, a_segment(15, INITIATOR, b"request")),
        ]

    with_raw_peer(scenario, lambda sent, raw: traced.append((sent, raw)))


@pytest.mark.parametrize("is_complete", [False, True])
def test_data_before_anything_is_registered_ends_the_connection(is_complete: bool) -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        handshake = bearer.channel(0, RESPONDER, 5_760)
        theirs.send(a_segment(0, INITIATOR, b"propose"))
        theirs.send(a_segment(14, INITIATOR, b"too early")[: None if is_complete else SEGMENT_HEADER_BYTES])

        reason = await bearer.wait_closed()

        assert reason is not None
        assert (reason.code, reason.offset, reason.peer) == (ErrorCode.MUX_UNKNOWN_PROTOCOL, 15, "test peer")
        assert await handshake.read() == b"propose"  # what came before the fault is not lost
        for _ in range(2):
            with pytest.raises(StagepostError, match="mini-protocol 14") as caught:
                await handshake.read()
            assert caught.value is reason
        with pytest.raises(StagepostError, match="mini-protocol 14"):
            await handshake.write(b"accept")

    with_raw_peer(scenario)


def test_expected_lane_holds_what_comes_before_its_channel() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        handshake = bearer.channel(0, RESPONDER, 5_760)
        bearer.expect(14, RESPONDER, 100)
        theirs.send(a_segment(14, INITIATOR, b"early"))
        theirs.send(a_segment(0, INITIATOR, b"propose"))
        await handshake.read()

        assert await bearer.channel(14, RESPONDER, 100).read() == b"early"
        with pytest.raises(LocalProtocolError, match="already registered"):
            bearer.channel(14, RESPONDER, 100)

    with_raw_peer(scenario)


def test_data_for_a_closed_channel_ends_the_connection_but_its_number_can_be_used_again() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        first = bearer.channel(14, INITIATOR, 100)
        await first.write(b"done")
        first.close()
        first.close()
        assert await first.read() == b""
        with pytest.raises(LocalProtocolError, match="after the channel was closed"):
            await first.write(b"more")
        second = bearer.channel(14, INITIATOR, 100)
        theirs.send(a_segment(14, RESPONDER, b"again"))
        assert await second.read() == b"again"
        assert await read_raw(theirs, 12) == a_segment(14, INITIATOR, b"done")

        second.close()
        theirs.send(a_segment(14, RESPONDER, b"nobody listens"))
        reason = await bearer.wait_closed()

        assert reason is not None
        assert reason.code is ErrorCode.MUX_UNKNOWN_PROTOCOL

    with_raw_peer(scenario)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (encode_header(0, lane_number(11, RESPONDER), 1)[:6] + b"\0\0", ErrorCode.PROTOCOL_SIZE),
        (
            a_segment(11, RESPONDER, bytes(90)) + a_segment(11, RESPONDER, bytes(11)),
            ErrorCode.MUX_INGRESS_OVERFLOW,
        ),
        (encode_header(0, lane_number(11, RESPONDER), 101), ErrorCode.MUX_INGRESS_OVERFLOW),
        (encode_header(0, lane_number(11, RESPONDER), 91), ErrorCode.MUX_TOO_LARGE),
        (encode_header(0, lane_number(11, INITIATOR), 1), ErrorCode.MUX_UNKNOWN_PROTOCOL),
    ],
)
def test_violation_closes_with_its_code(raw: bytes, code: ErrorCode) -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        payload_bytes_max = 90 if code is ErrorCode.MUX_TOO_LARGE else 65_535
        channel = bearer.channel(11, INITIATOR, 100, payload_bytes_max)
        theirs.send(raw)

        reason = await bearer.wait_closed()

        assert reason is not None
        assert reason.code is code
        assert bearer.closed.is_set()
        await asyncio.get_running_loop().sock_recv(theirs, 1)  # the socket is really closed
        if code is not ErrorCode.MUX_INGRESS_OVERFLOW or len(raw) == SEGMENT_HEADER_BYTES:
            with pytest.raises(StagepostError):
                await channel.read()

    with_raw_peer(scenario)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17])
def test_started_segment_must_be_complete_within_30_s(size: int) -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        channel = bearer.channel(11, INITIATOR, 100)
        raw = a_segment(11, RESPONDER, b"0123456789")
        loop.call_later(100, theirs.send, raw[:size])
        # Further bytes of the same segment do not move the deadline.
        if size > 1:
            loop.call_later(90, theirs.send, raw)
            loop.call_later(129, theirs.send, raw[size : size + 1] if size < 17 else b"")

        with pytest.raises(ProtocolTimeout, match="did not complete it within 30 s") as caught:
            await read_for_ever(channel)

        assert loop.time() == pytest.approx(130)
        assert caught.value.code is ErrorCode.MUX_TIMEOUT
        assert caught.value.offset == (18 if size > 1 else 0)

    with_raw_peer(scenario)


def test_segment_complete_just_in_time_is_accepted_and_the_next_has_its_own_30_s() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        channel = bearer.channel(11, INITIATOR, 100)
        raw = a_segment(11, RESPONDER, b"0123456789")
        theirs.send(raw[:5])
        loop.call_later(29.9, theirs.send, raw[5:] + raw[:5])
        loop.call_later(59.7, theirs.send, raw[5:])

        assert await channel.read() == b"0123456789"
        assert await channel.read() == b"0123456789"
        assert loop.time() == pytest.approx(59.7)
        silence = asyncio.ensure_future(channel.read())
        await asyncio.wait([silence], timeout=1_000)
        assert not silence.done()  # silence between segments is not the bearer's business
        silence.cancel()

    with_raw_peer(scenario)


def test_peer_that_does_not_take_a_segment_is_dropped_after_30_s() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        channel = bearer.channel(15, RESPONDER, 100)
        with pytest.raises(ProtocolTimeout, match="did not take the segments") as caught:
            await write_for_ever(channel)

        assert loop.time() == pytest.approx(30)
        assert caught.value.code is ErrorCode.MUX_TIMEOUT
        assert await bearer.wait_closed() is caught.value

    with_raw_peer(scenario)


def test_orderly_end_that_the_peer_does_not_take_is_reported() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(15, RESPONDER, 100)
        await channel.write(bytes(2_000_000))
        bearer.close()

        reason = await bearer.wait_closed()

        assert reason is not None
        assert reason.code is ErrorCode.MUX_TIMEOUT

    with_raw_peer(scenario)


def test_writer_waits_for_a_slow_peer_and_loses_nothing() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(15, RESPONDER, 100)
        chunk = bytes(range(256)) * 256
        accepted = 0
        while True:  # until both the socket and the egress buffer are full
            writing = asyncio.ensure_future(channel.write(chunk))
            await asyncio.wait([writing], timeout=0.1)
            if not writing.done():
                break
            accepted += 1
        assert EGRESS_BYTES_MAX < accepted * len(chunk) < EGRESS_BYTES_MAX + 2_000_000

        received = bytearray()
        reader = SegmentReader(lambda segment: received.extend(segment.payload))
        total = (accepted + 1) * len(chunk)
        while len(received) < total:
            reader.feed(await asyncio.get_running_loop().sock_recv(theirs, 50_000))

        await writing
        assert received == chunk * (accepted + 1)

    with_raw_peer(scenario)


def test_cancelled_write_sends_nothing() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(15, RESPONDER, 100)
        await channel.write(b"a" * 2_000_000)
        writing = asyncio.ensure_future(channel.write(b"b" * 10))
        await asyncio.wait([writing], timeout=1)
        writing.cancel()
        await asyncio.wait([writing])
        received = bytearray()
        reader = SegmentReader(lambda segment: received.extend(segment.payload))
        while len(received) < 2_000_000:
            reader.feed(await asyncio.get_running_loop().sock_recv(theirs, 50_000))
        await channel.write(b"c")
        reader.feed(await asyncio.get_running_loop().sock_recv(theirs, 50_000))

        assert received == b"a" * 2_000_000 + b"c"

    with_raw_peer(scenario)


def test_bulk_transfer_does_not_hold_up_another_protocol() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        bulk, ping = bearer.channel(15, RESPONDER, 100), bearer.channel(12, INITIATOR, 100)
        await bulk.write(bytes(3_000_000))
        more = asyncio.ensure_future(bulk.write(b"more"))
        await asyncio.wait([more], timeout=0.1)
        await ping.write(b"ping")
        bytes_before_ping = 0
        order: list[int] = []
        reader = SegmentReader(lambda segment: order.append(segment.protocol))
        while 12 not in order:
            piece = await asyncio.get_running_loop().sock_recv(theirs, 10_000)
            bytes_before_ping += len(piece)
            reader.feed(piece)

        # Only what the kernel and one write batch already held goes first, not the three megabytes.
        assert bytes_before_ping < 1_000_000
        more.cancel()

    with_raw_peer(scenario)


def test_peer_closing_between_segments_is_an_orderly_end() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, INITIATOR, 100)
        theirs.send(a_segment(11, RESPONDER, b"bye"))
        theirs.close()

        assert await bearer.wait_closed() is None
        assert (await channel.read(), await channel.read()) == (b"bye", b"")

    with_raw_peer(scenario)


def test_peer_closing_inside_a_segment_is_a_failure() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, INITIATOR, 100)
        theirs.send(a_segment(11, RESPONDER, b"complete") + a_segment(11, RESPONDER, b"cut")[:-1])
        theirs.close()

        reason = await bearer.wait_closed()

        assert isinstance(reason, TransportError)
        assert reason.offset == 26
        assert await channel.read() == b"complete"
        with pytest.raises(TransportError, match="at offset 26, inside the segment that began at offset 16"):
            await channel.read()

    with_raw_peer(scenario)


def test_what_was_accepted_is_sent_before_closing_also_to_a_peer_that_half_closed() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, INITIATOR, 100)
        await channel.write(b"x" * 1_000_000)
        theirs.shutdown(socket.SHUT_WR)
        received = bytearray()
        reader = SegmentReader(lambda segment: received.extend(segment.payload))
        while piece := await asyncio.get_running_loop().sock_recv(theirs, 50_000):
            reader.feed(piece)

        assert received == b"x" * 1_000_000
        assert await bearer.wait_closed() is None

    with_raw_peer(scenario)


def test_reset_is_a_transport_error() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _, bearer = await loop.create_connection(Bearer, *listener.getsockname())
            theirs, _ = listener.accept()
        channel = bearer.channel(11, INITIATOR, 100)
        # Closing with unread bytes and without lingering resets the connection.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()

        reason = await bearer.wait_closed()

        assert isinstance(reason, TransportError)
        assert isinstance(reason.__cause__, ConnectionResetError)
        assert reason.peer is not None
        assert reason.peer.startswith("127.0.0.1:")
        with pytest.raises(TransportError, match="failed"):
            await channel.read()

    asyncio.run(main())


def test_abort_wakes_whoever_waits() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel, full = bearer.channel(11, INITIATOR, 100), bearer.channel(15, INITIATOR, 100)
        await full.write(bytes(2_000_000))
        waiting = [asyncio.ensure_future(channel.read()), asyncio.ensure_future(full.write(b"x"))]
        await asyncio.wait(waiting, timeout=1)
        bearer.abort(TransportError("enough"))

        for one in waiting:
            with pytest.raises(TransportError, match="enough"):
                await one
        bearer.abort(TransportError("later"))
        bearer.close()
        assert str(await bearer.wait_closed()) == "enough"

    with_raw_peer(scenario)


def test_two_readers_of_one_channel_are_a_mistake() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, INITIATOR, 100)
        reading = asyncio.ensure_future(channel.read())
        await asyncio.wait([reading], timeout=1)
        with pytest.raises(LocalProtocolError, match="two tasks"):
            await channel.read()
        reading.cancel()

    with_raw_peer(scenario)


def test_bytes_are_accepted_without_any_socket() -> None:
    """The receiving path is plain calls, so that it can be measured and simulated."""

    async def main() -> bytes:
        bearer = Bearer()
        channel = bearer.channel(11, INITIATOR, 100)
        raw = a_segment(11, RESPONDER, b"direct")
        bearer.get_buffer(-1)[: len(raw)] = raw
        bearer.buffer_updated(len(raw))
        return await channel.read()

    assert asyncio.run(main()) == b"direct"


def test_bearer_ended_before_it_was_connected_closes_its_transport() -> None:
    async def main(error: TransportError | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            bearer = Bearer(peer="test peer")
            if error is None:
                bearer.close()
            else:
                bearer.abort(error)
            await asyncio.get_running_loop().create_unix_connection(lambda: bearer, sock=ours)

            assert await bearer.wait_closed() is error
            assert theirs.recv(1) == b""

    asyncio.run(main(None))
    asyncio.run(main(TransportError("never mind")))


# Without waiting


def test_a_reader_is_called_once_for_all_that_came_and_its_answer_leaves_in_the_same_call() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, RESPONDER, 1_000)
        other = bearer.channel(12, RESPONDER, 1_000)
        heard: list[bytes | None] = []

        def answer() -> None:
            heard.append(channel.read_now())
            assert channel.write_now(b"pong")

        channel.on_data(answer)
        segments = a_segment(11, INITIATOR, b"pi") + a_segment(12, INITIATOR, b"x")
        segments += a_segment(11, INITIATOR, b"ng")
        bearer.get_buffer(-1)[: len(segments)] = segments
        bearer.buffer_updated(len(segments))

        assert heard == [b"ping"]
        sent = theirs.recv(100)
        assert sent[SEGMENT_HEADER_BYTES:] == b"pong"
        assert (channel.read_now(), other.read_now()) == (None, b"x")

    with_raw_peer(scenario)


def test_a_reader_is_called_when_the_connection_ends_and_not_inside_of_the_call_that_ends_it() -> None:
    async def main() -> None:
        left, right = await two_bearers()
        channel = right.channel(11, RESPONDER, 1_000)
        ends: list[bytes | None] = []
        over = asyncio.Event()

        def look() -> None:
            ends.append(channel.read_now())
            over.set()

        channel.on_data(look)
        left.close()
        await over.wait()
        assert ends == [b""]

        channel.on_data(lambda: ends.append(b"again"))
        channel.close()
        assert ends == [b""]
        await asyncio.sleep(0)
        assert ends == [b"", b"again"]
        assert channel.has_room
        with pytest.raises(LocalProtocolError, match="closed"):
            channel.write_now(b"late")

    run_in_virtual_time(main())


def test_what_closed_a_connection_is_raised_to_readers_and_writers_that_do_not_wait() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, RESPONDER, 1_000)
        told = asyncio.Event()
        channel.on_data(told.set)
        await asyncio.get_running_loop().sock_sendall(
            theirs, a_segment(11, INITIATOR, b"before") + a_segment(99, INITIATOR, b"x")
        )
        await told.wait()

        assert channel.read_now() == b"before"
        for use in (channel.read_now, lambda: channel.write_now(b"late")):
            with pytest.raises(StagepostError) as caught:
                use()
            assert caught.value.code is ErrorCode.MUX_UNKNOWN_PROTOCOL

    with_raw_peer(scenario)


def test_a_writer_that_does_not_wait_never_overtakes_one_that_does() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, RESPONDER, 1_000)
        while channel.has_room:
            assert channel.write_now(bytes(100_000))
            await asyncio.sleep(0)
        assert not channel.write_now(b"x")
        waiting = asyncio.ensure_future(channel.write(b"first"))
        while not waiting.done():
            await read_raw(theirs, 10_000)
            assert waiting.done() or not channel.write_now(b"overtakes")
        assert channel.write_now(b"second")

    with_raw_peer(scenario)
