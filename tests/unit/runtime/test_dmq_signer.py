"""Signing at send time: the period that it is, keys moved on durably, keys renewed, and several processes on one folder."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stagepost.crypto.kes import SigningKey
from stagepost.delivery.transport import Outgoing, SendFailed
from stagepost.dmq.proof import check_proof
from stagepost.dmq.version_data import NETWORK_MAGICS
from stagepost.errors import KeyFileError, LocalProtocolError, SigningError
from stagepost.runtime import key_files
from stagepost.runtime.clock import LoopClock
from stagepost.runtime.delivery.dmq_sending import SIGNING_RETRY_S
from stagepost.runtime.delivery.dmq_signer import DmqSigner
from stagepost.runtime.delivery.dmq_transport import DmqTransport
from stagepost.runtime.delivery.kes_schedule import PERIOD_S, KesSchedule, kes_schedule_for
from stagepost.runtime.pool_keys import CERTIFICATE, FILE_NAMES, KES_SIGNING_KEY, make_keys
from tests.small_node import MAGIC, SmallNode

T = TypeVar("T")

START_S = 1_800_000_000.0
BODY = bytes(90)
EXPIRES_AT = 1_900_000_000
SCHEDULE = KesSchedule(START_S, period_s=100.0)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
    return tmp_path / "keys"


@pytest.fixture
def signer(keys: Path) -> DmqSigner:
    return DmqSigner(keys, schedule=SCHEDULE, clock=FixedClock(START_S + 50))


class FixedClock:
    def __init__(self, unix_s: float) -> None:
        self.now_s = unix_s

    def unix_s(self) -> float:
        return self.now_s

    def mono_s(self) -> float:
        return self.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def stored_period(keys: Path) -> int:
    return key_files.load_as(SigningKey, keys / KES_SIGNING_KEY).period


def test_key_is_moved_on_to_the_present_period_on_disk_before_it_signs(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 50)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 0
        clock.now_s = START_S + 350
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, stored_period(keys)) == (3, 3)
        assert check_proof(message) is None
        assert signer.periods_left == 60
        await signer.close()

    run(scenario())


def test_clock_that_goes_back_does_not_stop_a_key_that_cannot(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 350)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        await signer.sign(BODY, EXPIRES_AT)
        clock.now_s = START_S + 150
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 3
        await signer.close()

    run(scenario())


def test_key_that_another_process_moved_further_is_taken_from_disk(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 50)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        key_files.evolve(keys / KES_SIGNING_KEY, 7)
        clock.now_s = START_S + 550  # period 5: behind the file, ahead of what this process has read
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 7
        await signer.close()

    run(scenario())


def test_two_processes_do_not_fight_for_one_key(keys: Path) -> None:
    """Two signers move the same key on at the same moment, again and again; neither fails, and the file is whole."""

    def work(errors: list[BaseException]) -> None:
        async def sign() -> None:
            clock = FixedClock(START_S)
            signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
            for period in range(12):
                clock.now_s = START_S + 100 * period
                message = await signer.sign(BODY, EXPIRES_AT)
                assert check_proof(message) is None
                assert message.kes_period >= period
            await signer.close()

        try:
            asyncio.run(sign())
        except BaseException as error:
            errors.append(error)

    errors: list[BaseException] = []
    threads = [threading.Thread(target=work, args=(errors,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert stored_period(keys) == 11


def test_renewed_keys_are_used_as_soon_as_they_fit_together(keys: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        signer = DmqSigner(keys)
        renewed = tmp_path / "renewed"
        make_keys(renewed, start_kes_period=5, issue_number=1)
        foreign_pool = await signer.sign(BODY, EXPIRES_AT)
        shutil.copy(renewed / KES_SIGNING_KEY, keys / KES_SIGNING_KEY)
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 0, "the certificate is still the old one"
        shutil.copy(renewed / CERTIFICATE, keys / CERTIFICATE)
        # Both files fit together now, but they are another pool's: a sender does not change its name on the way.
        message = await signer.sign(BODY, EXPIRES_AT)
        assert message.pool_id == foreign_pool.pool_id
        await signer.close()

    run(scenario())


def test_certificate_renewed_for_the_same_pool_is_used(keys: Path, tmp_path: Path) -> None:
    import secrets

    from stagepost.crypto.operational_certificate import issue
    from stagepost.dmq.text_envelope import ColdSigningKey, IssuedCertificate

    async def scenario() -> None:
        signer = DmqSigner(keys)
        cold = key_files.load_as(ColdSigningKey, keys / "cold.skey")
        key = SigningKey.generate(secrets.token_bytes(32))
        certificate = issue(key.verification_key, issue_number=1, start_kes_period=9, cold_seed=cold.seed)
        key_files.save(keys / KES_SIGNING_KEY, key, replace=True)
        key_files.save(
            keys / CERTIFICATE, IssuedCertificate(certificate, cold.verification_key), replace=True
        )
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, check_proof(message)) == (9, None)
        await signer.close()

    run(scenario())


def test_what_comes_together_is_signed_each_for_itself(signer: DmqSigner) -> None:
    async def scenario() -> None:
        bodies = [bytes([number]) * 90 for number in range(50)]
        wanted = [signer.sign(body, EXPIRES_AT) for body in bodies]
        messages = await asyncio.gather(
            *wanted, signer.sign(b"too short", EXPIRES_AT), return_exceptions=True
        )
        assert isinstance(messages.pop(), SigningError)
        assert [message.body for message in messages if not isinstance(message, BaseException)] == bodies
        await signer.close()
        with pytest.raises(LocalProtocolError):
            await signer.sign(BODY, EXPIRES_AT)

    run(scenario())


def test_caller_that_gave_up_does_not_disturb_the_others(signer: DmqSigner) -> None:
    async def scenario() -> None:
        first = asyncio.create_task(signer.sign(BODY, EXPIRES_AT))
        second = asyncio.create_task(signer.sign(BODY, EXPIRES_AT))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).body == BODY
        await signer.close()

    run(scenario())


def test_certificate_for_another_key_is_refused_at_once(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", start_kes_period=0, issue_number=0)
    shutil.copy(tmp_path / "other" / CERTIFICATE, keys / CERTIFICATE)

    with pytest.raises(KeyFileError, match="was issued for another KES key"):
        DmqSigner(keys)


@pytest.mark.parametrize("unix_s", [START_S - 1, START_S + 100 * 64])
def test_outside_of_the_certificate_messages_wait_and_lose_no_attempt(
    unix_s: float, keys: Path, tmp_path: Path
) -> None:
    """Before its first period and after its last: the operator renews, the queue waits."""
    late_start = tmp_path / "late"
    make_keys(late_start, start_kes_period=1, issue_number=0)
    folder = late_start if unix_s < START_S else keys

    async def scenario() -> None:
        signer = DmqSigner(folder, schedule=SCHEDULE, clock=FixedClock(unix_s))
        async with (
            SmallNode(tmp_path / "node.socket") as node,
            DmqTransport(tmp_path / "node.socket", MAGIC, signer) as transport,
        ):
            with pytest.raises(SendFailed, match="cannot sign: ") as failed:
                await transport.publish(Outgoing("demo", bytes(16), 0, 0, (), b"x"))
            assert (failed.value.retry_after_s, failed.value.costs_attempt) == (SIGNING_RETRY_S, False)
            assert node.submissions == 0
        await signer.close()

    run(scenario())


def test_end_of_the_certificate_is_announced_once_a_period(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 100 * 57)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        await signer.sign(BODY, EXPIRES_AT)
        assert caplog.records == []
        for _ in range(3):
            clock.now_s = START_S + 100 * 58
            await signer.sign(BODY, EXPIRES_AT)
        clock.now_s = START_S + 100 * 59
        await signer.sign(BODY, EXPIRES_AT)
        await signer.close()

    run(scenario())
    assert [record.__dict__["periods_left"] for record in caplog.records] == [3, 2]


def test_public_networks_have_their_known_periods_and_others_none() -> None:
    mainnet = kes_schedule_for(NETWORK_MAGICS["mithril-mainnet"])
    assert mainnet is not None
    assert mainnet.period_s == PERIOD_S
    # Slot 4 492 800 is the first of one second; 4 492 800 / 129 600 is 34 and two thirds.
    assert mainnet.period_at(1_596_059_091) == 34
    assert mainnet.period_at(1_596_059_091 + 43_199) == 34
    assert mainnet.period_at(1_596_059_091 + 43_200) == 35
    preview = kes_schedule_for(NETWORK_MAGICS["mithril-preview"])
    assert preview is not None
    assert (preview.period_at(0), preview.period_at(1_666_656_000 + PERIOD_S)) == (0, 1)
    assert kes_schedule_for(NETWORK_MAGICS["mithril-devnet"]) is None


def test_without_a_thread_it_signs_at_once_as_virtual_time_needs(keys: Path) -> None:
    from stagepost.runtime.virtual_time import run_in_virtual_time

    async def scenario() -> None:
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=LoopClock(START_S), beside_the_loop=False)
        await asyncio.sleep(250)
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 2
        with pytest.raises(SigningError):
            await signer.sign(b"too short", EXPIRES_AT)
        await signer.close()

    run_in_virtual_time(scenario())
    assert set(FILE_NAMES) <= {path.name for path in keys.iterdir()}
