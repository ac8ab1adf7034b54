"""The simulated network shows a bearer what TCP would: order, delay, back-pressure, resets, silence, time-outs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from stagepost.errors import ConfigError, ProtocolTimeout, TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.channel import ProtocolChannel
from stagepost.ground.net.network import TcpAddress, UnixAddress
from stagepost.ground.net.sockets import PEER_IS_DEAD_AFTER_S
from stagepost.ground.wire.mux import Direction
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.network import SimulatedNetwork

HERE, THERE = "10.0.0.1", "10.0.0.2"
ADDRESS = TcpAddress(THERE, 3_141)
EXACT = LinkSettings(latency_s=0.5, jitter_s=0.0, cut_chance=0.0)
INGRESS_BYTES_MAX = 8_000_000


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def echo(bearer: Bearer) -> None:
    channel = bearer.channel(14, Direction.RESPONDER, INGRESS_BYTES_MAX)
    while data := await channel.read():
        await channel.write(data)


async def idle(bearer: Bearer) -> None:
    await bearer.wait_closed()


def opened(bearer: Bearer) -> ProtocolChannel:
    return bearer.channel(14, Direction.INITIATOR, INGRESS_BYTES_MAX)


async def read_exactly(channel: ProtocolChannel, size: int) -> bytes:
    received = b""
    while len(received) < size and (piece := await channel.read()):
        received += piece
    return received


def with_connection(
    scenario: Callable[[SimulatedNetwork, Bearer], Awaitable[None]],
    link: LinkSettings = EXACT,
    handler: Callable[[Bearer], Awaitable[None]] = echo,
) -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1), link)
        listener = await network.process(THERE).serve(ADDRESS, handler)
        bearer = await network.process(HERE).connect(ADDRESS)
        await scenario(network, bearer)
        network.heal_all()
        await listener.close()

    run_in_virtual_time(main())


def test_bytes_take_the_time_of_the_link() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        assert now_s() == 1.0  # there and back for the connection
        channel = opened(bearer)
        await channel.write(b"hello")
        assert await channel.read() == b"hello"
        assert now_s() == 2.0
        assert bearer.peer == "10.0.0.2:3141"

    with_connection(scenario)


def test_bandwidth_is_shared_by_the_connections_of_a_route() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        second = await network.process(HERE).connect(ADDRESS)
        start_s = now_s()
        channels = [opened(bearer), opened(second)]
        await asyncio.gather(*(channel.write(bytes(50_000)) for channel in channels))
        await asyncio.gather(*(read_exactly(channel, 50_000) for channel in channels))
        # 100 kB there and, beginning while they still arrive, 100 kB back.
        assert 10.0 < now_s() - start_s < 22.0

    with_connection(scenario, LinkSettings(latency_s=0.1, jitter_s=0.0, bytes_per_s=10_000))


@pytest.mark.parametrize("loss_chance", [0.0, 0.3])
def test_a_stream_stays_in_order_whatever_the_link_does_to_it(loss_chance: float) -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        channel = opened(bearer)
        sent = Random(2).randbytes(400_000)
        writing = asyncio.ensure_future(_write_in_pieces(channel, sent))
        assert await read_exactly(channel, len(sent)) == sent
        await writing

    link = LinkSettings(
        latency_s=0.01, jitter_s=0.2, cut_chance=0.8, loss_chance=loss_chance, window_bytes=20_000
    )
    with_connection(scenario, link)


async def _write_in_pieces(channel: ProtocolChannel, data: bytes) -> None:
    for start in range(0, len(data), 7_001):
        await channel.write(data[start : start + 7_001])
        await asyncio.sleep(0.001)


def test_a_full_window_pauses_the_writer_until_bytes_have_arrived() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        channel = opened(bearer)
        writing = asyncio.ensure_future(_write_times(channel, bytes(100_000), 20))
        network.partition(HERE, THERE)
        await asyncio.sleep(20)
        assert not writing.done()
        network.heal(HERE, THERE)
        assert len(await read_exactly(channel, 2_000_000)) == 2_000_000
        await writing

    with_connection(scenario, LinkSettings(latency_s=0.01, window_bytes=50_000))


async def _write_times(channel: ProtocolChannel, data: bytes, times: int) -> None:
    for _ in range(times):
        await channel.write(data)


def test_a_partition_holds_bytes_until_it_heals() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        channel = opened(bearer)
        network.partition(HERE, THERE)
        await channel.write(b"held")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await channel.read()
        network.heal(THERE, HERE)
        assert await channel.read() == b"held"

    with_connection(scenario)


def test_a_partition_that_lasts_is_noticed_by_the_kernels_keep_alive() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        network.partition(HERE, THERE)
        start_s = now_s()
        assert isinstance(await bearer.wait_closed(), TransportError)
        assert now_s() - start_s == PEER_IS_DEAD_AFTER_S

    with_connection(scenario)


def test_a_host_without_power_is_noticed_by_the_kernels_keep_alive() -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1), EXACT)
        process = network.process(THERE)
        await process.serve(ADDRESS, idle)
        bearers = [await network.process(HERE).connect(ADDRESS) for _ in range(2)]
        start_s = now_s()
        process.crash(reset=False)
        assert isinstance(await bearers[0].wait_closed(), TransportError)
        assert now_s() - start_s == PEER_IS_DEAD_AFTER_S
        assert isinstance(await bearers[1].wait_closed(), TransportError)
        _end_tasks()

    run_in_virtual_time(main())


def test_a_partition_that_cuts_a_write_short_ends_in_a_time_out() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        channel = opened(bearer)
        network.partition(HERE, THERE)
        await channel.write(bytes(100_000))
        assert isinstance(await bearer.wait_closed(), ProtocolTimeout)

    with_connection(scenario, LinkSettings(window_bytes=5_000))


def test_connecting_through_a_partition_times_out_or_waits_for_it_to_heal() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        network.partition(HERE, THERE)
        with pytest.raises(TransportError, match="no answer within 10 s"):
            await network.process(HERE).connect(ADDRESS)
        connecting = asyncio.ensure_future(network.process(HERE).connect(ADDRESS))
        await asyncio.sleep(5)
        network.heal(HERE, THERE)
        channel = opened(await connecting)
        await channel.write(b"x")
        assert await channel.read() == b"x"

    with_connection(scenario)


def test_nobody_listening_is_refused_and_an_address_in_use_as_well() -> None:
    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        with pytest.raises(TransportError, match="nobody is listening"):
            await network.process(HERE).connect(TcpAddress(THERE, 1))
        with pytest.raises(ConfigError, match="in use"):
            await network.process(THERE).serve(ADDRESS, echo)
        with pytest.raises(ConfigError, match="no such address"):
            await network.process(THERE).serve(TcpAddress("10.0.0.9", 1), echo)

    with_connection(scenario)


def test_a_free_port_is_chosen_and_told() -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1))
        listener = await network.process(THERE).serve(TcpAddress("0.0.0.0", 0), echo)
        assert listener.port is not None
        bearer = await network.process(HERE).connect(TcpAddress(THERE, listener.port))
        assert listener.connection_count == 1
        await listener.close()
        assert await bearer.wait_closed() is None
        with pytest.raises(TransportError, match="nobody is listening"):
            await network.process(HERE).connect(TcpAddress(THERE, listener.port))

    run_in_virtual_time(main())


def test_a_reset_ends_both_ends_with_a_reason() -> None:
    ends: list[Bearer] = []

    async def remember(bearer: Bearer) -> None:
        ends.append(bearer)
        await bearer.wait_closed()

    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        network.reset(HERE, THERE)
        assert isinstance(await bearer.wait_closed(), TransportError)
        assert isinstance(await ends[0].wait_closed(), TransportError)

    with_connection(scenario, handler=remember)


def test_an_orderly_end_brings_everything_that_was_written_before() -> None:
    async def say_and_go(bearer: Bearer) -> None:
        channel = bearer.channel(14, Direction.RESPONDER, INGRESS_BYTES_MAX)
        await channel.read()
        await channel.write(bytes(300_000))

    async def scenario(network: SimulatedNetwork, bearer: Bearer) -> None:
        channel = opened(bearer)
        await channel.write(b"?")
        assert len(await read_exactly(channel, 400_000)) == 300_000
        assert await channel.read() == b""
        assert await bearer.wait_closed() is None

    with_connection(scenario, LinkSettings(window_bytes=10_000), handler=say_and_go)


def test_a_crashed_process_resets_its_connections_and_hears_nothing_more() -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1), EXACT)
        process = network.process(THERE)
        served: list[Bearer] = []

        async def remember(bearer: Bearer) -> None:
            served.append(bearer)
            await bearer.wait_closed()

        await process.serve(ADDRESS, remember)
        bearer = await network.process(HERE).connect(ADDRESS)
        process.crash()
        assert isinstance(await bearer.wait_closed(), TransportError)
        await asyncio.sleep(100)
        assert not served[0].closed.is_set()
        with pytest.raises(TransportError, match="crashed"):
            await process.connect(ADDRESS)
        with pytest.raises(TransportError, match="nobody is listening"):
            await network.process(HERE).connect(ADDRESS)
        _end_tasks()

    run_in_virtual_time(main())


def test_a_host_without_power_is_silent_until_it_is_up_again() -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1), EXACT)
        process = network.process(THERE)
        await process.serve(ADDRESS, idle)
        bearer = await network.process(HERE).connect(ADDRESS)
        channel = opened(bearer)
        process.crash(reset=False)
        await channel.write(b"anybody?")
        with pytest.raises(TransportError, match="no answer"):
            await network.process(HERE).connect(ADDRESS)
        assert not bearer.is_over
        await network.process(THERE).serve(ADDRESS, echo)
        await channel.write(b"anybody now?")
        assert isinstance(await bearer.wait_closed(), TransportError)
        again = opened(await network.process(HERE).connect(ADDRESS))
        await again.write(b"x")
        assert await again.read() == b"x"
        _end_tasks()

    run_in_virtual_time(main())


def _end_tasks() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def test_local_sockets_belong_to_one_host() -> None:
    async def main() -> None:
        network = SimulatedNetwork(Random(1))
        address = UnixAddress(Path("/run/node.socket"))
        listener = await network.process(THERE).serve(address, echo)
        bearer = await network.process(THERE).connect(address)
        assert bearer.peer == "/run/node.socket"
        assert bearer.peer_user_id is None
        channel = opened(bearer)
        await channel.write(b"local")
        assert await channel.read() == b"local"
        with pytest.raises(TransportError, match="nobody is listening"):
            await network.process(HERE).connect(address)
        await listener.close()

    run_in_virtual_time(main())


def test_connections_overtake_one_another_though_each_stays_in_order() -> None:
    """With jitter two connections of one route arrive in another order than they were written."""

    async def main() -> list[int]:
        network = SimulatedNetwork(Random(3), LinkSettings(latency_s=0.1, jitter_s=0.5))
        heard: list[int] = []

        async def hear(bearer: Bearer) -> None:
            channel = bearer.channel(14, Direction.RESPONDER, 1_000)
            while data := await channel.read():
                heard.extend(data)

        listener = await network.process(THERE).serve(ADDRESS, hear)
        process = network.process(HERE)
        channels = [opened(await process.connect(ADDRESS)) for _ in range(8)]
        for number, channel in enumerate(channels):
            await channel.write(bytes([number]))
            await channel.write(bytes([number + 100]))
        await asyncio.sleep(5)
        await listener.close()
        return heard

    heard = run_in_virtual_time(main())

    assert sorted(heard) == [*range(8), *range(100, 108)]
    assert [number for number in heard if number < 100] != list(range(8))
    assert all(heard.index(number) < heard.index(number + 100) for number in range(8))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    def run(number: int) -> str:
        async def main() -> str:
            network = SimulatedNetwork(Random(number), LinkSettings(jitter_s=0.1, cut_chance=0.5))
            listener = await network.process(THERE).serve(ADDRESS, echo)
            channel = opened(await network.process(HERE).connect(ADDRESS))
            await channel.write(bytes(10_000))
            await read_exactly(channel, 10_000)
            await listener.close()
            return network.trace.hexdigest()

        return run_in_virtual_time(main())

    assert run(seed) == run(seed)
    assert run(seed) != run(seed + 1)
