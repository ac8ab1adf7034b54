"""Signing at send time: the period that it is, keys moved on in memory, keys renewed, and several signers on one folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stagepost.delivery.transport import Outgoing, SendFailed
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.delivery.transports.dmq_sending import SIGNING_RETRY_S
from stagepost.dmq.key_texts import ColdSigningKey, Content, IssuedCertificate
from stagepost.dmq.keys import key_files
from stagepost.dmq.keys.kes_clock import PERIOD_S, KesSchedule, kes_schedule_for
from stagepost.dmq.keys.pool_keys import (
    CERTIFICATE,
    FILE_NAMES,
    KES_SIGNING_KEY,
    make_keys,
    write_evolved_key,
)
from stagepost.dmq.keys.signer import DmqSigner
from stagepost.dmq.validation import KES_EVOLUTIONS_MAX, check_proof
from stagepost.errors import ErrorCode, KeyFileError, LocalProtocolError, SigningError
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import issue
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.net.version_data import NETWORK_MAGICS
from tests.worlds.dmq.small_node import MAGIC, SmallNode

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


def evolve_in_place(path: Path, period: int) -> None:
    """What no program of ours does: an evolved key under the name and type of an operator's fresh one."""
    key = key_files.load_as(SigningKey, path)
    envelope = json.loads(path.read_text())
    while key.period < period:
        key.evolve()
    envelope["cborHex"] = "590260" + key.to_bytes().hex()
    path.write_text(json.dumps(envelope))


def renew(keys: Path, *, start_kes_period: int, issue_number: int, names: Sequence[str]) -> None:
    """A new pair of the same pool, of which only the files in `names` are put in place."""
    cold = key_files.load_as(ColdSigningKey, keys / "cold.skey")
    key = SigningKey.generate(bytes([issue_number]) * 32)
    certificate = issue(
        key.verification_key,
        issue_number=issue_number,
        start_kes_period=start_kes_period,
        cold_seed=cold.seed,
    )
    contents: dict[str, Content] = {
        KES_SIGNING_KEY: key,
        CERTIFICATE: IssuedCertificate(certificate, cold.verification_key),
    }
    for name in names:
        (keys / name).unlink()
        key_files.save(keys / name, contents[name])


def test_key_is_moved_on_to_the_present_period_in_memory_alone(keys: Path) -> None:
    before = (keys / KES_SIGNING_KEY).read_bytes()

    async def scenario() -> None:
        clock = FixedClock(START_S + 50)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 0
        clock.now_s = START_S + 350
        message = await signer.sign(BODY, EXPIRES_AT)
        assert message.kes_period == 3
        assert check_proof(message) is None
        assert signer.periods_left == 60
        await signer.close()

    run(scenario())
    assert (keys / KES_SIGNING_KEY).read_bytes() == before


def test_clock_that_goes_back_gets_its_period_from_the_file(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 350)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        await signer.sign(BODY, EXPIRES_AT)
        clock.now_s = START_S + 150
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, check_proof(message)) == (1, None)
        await signer.close()

    run(scenario())


def test_clock_that_goes_back_while_the_files_do_not_fit_is_an_error_and_no_wrong_period(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 350)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        await signer.sign(BODY, EXPIRES_AT)
        renew(keys, start_kes_period=1, issue_number=1, names=[KES_SIGNING_KEY])
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 3, "the former pair still serves"
        clock.now_s = START_S + 150
        with pytest.raises(KeyFileError, match="was issued for another KES key"):
            await signer.sign(BODY, EXPIRES_AT)
        await signer.close()

    run(scenario())


def test_evolved_key_in_the_place_of_a_fresh_one_is_refused_unless_asked_for(keys: Path) -> None:
    evolve_in_place(keys / KES_SIGNING_KEY, 2)

    with pytest.raises(KeyFileError, match="was evolved to period 2") as caught:
        DmqSigner(keys, schedule=SCHEDULE, clock=FixedClock(START_S + 350))
    assert "--evolved-key" in caught.value.advice

    async def scenario() -> None:
        clock = FixedClock(START_S + 350)
        path = keys / KES_SIGNING_KEY
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock, evolved_key=path)
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, check_proof(message)) == (3, None)
        clock.now_s = START_S + 150
        with pytest.raises(SigningError, match="KES period 1 is outside"):
            await signer.sign(BODY, EXPIRES_AT)
        await signer.close()

    run(scenario())


def test_key_that_is_evolved_on_disk_meanwhile_is_not_taken(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 50)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        evolve_in_place(keys / KES_SIGNING_KEY, 7)
        clock.now_s = START_S + 550
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 5
        await signer.close()

    run(scenario())


def test_evolved_file_of_our_own_signs_where_it_is_named(keys: Path, tmp_path: Path) -> None:
    write_evolved_key(keys / KES_SIGNING_KEY, tmp_path / "evolved" / "key", 2)

    async def scenario() -> None:
        signer = DmqSigner(
            keys,
            schedule=SCHEDULE,
            clock=FixedClock(START_S + 350),
            evolved_key=tmp_path / "evolved" / "key",
        )
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, check_proof(message)) == (3, None)
        await signer.close()

    run(scenario())


def test_certificate_that_the_cold_key_did_not_sign_is_refused(keys: Path) -> None:
    envelope = json.loads((keys / CERTIFICATE).read_text())
    digits = envelope["cborHex"]
    envelope["cborHex"] = digits[:-136] + f"{int(digits[-136:-134], 16) ^ 1:02x}" + digits[-134:]
    (keys / CERTIFICATE).write_text(json.dumps(envelope))

    with pytest.raises(KeyFileError, match="its cold key did not sign it") as caught:
        DmqSigner(keys)
    assert caught.value.code is ErrorCode.OPCERT_SIGNATURE


def test_two_signers_of_one_folder_do_not_disturb_each_other(keys: Path) -> None:
    async def scenario() -> None:
        clocks = [FixedClock(START_S), FixedClock(START_S)]
        signers = [DmqSigner(keys, schedule=SCHEDULE, clock=clock) for clock in clocks]
        for period in range(12):
            for clock in clocks:
                clock.now_s = START_S + 100 * period
            for message in await asyncio.gather(*(signer.sign(BODY, EXPIRES_AT) for signer in signers)):
                assert (message.kes_period, check_proof(message)) == (period, None)
        for signer in signers:
            await signer.close()

    run(scenario())


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


@pytest.mark.parametrize(
    "names", [(KES_SIGNING_KEY, CERTIFICATE), (CERTIFICATE, KES_SIGNING_KEY)], ids=["key first", "key last"]
)
def test_renewed_pair_of_the_same_pool_is_used_when_both_files_fit(
    names: tuple[str, str], keys: Path
) -> None:
    async def scenario() -> None:
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=FixedClock(START_S + 950))
        assert (await signer.sign(BODY, EXPIRES_AT)).issue_number == 0
        for name, issue_number in zip(names, (0, 1), strict=True):
            renew(keys, start_kes_period=9, issue_number=1, names=[name])
            message = await signer.sign(BODY, EXPIRES_AT)
            assert (message.kes_period, message.issue_number) == (9, issue_number)
            assert check_proof(message) is None
        await signer.close()

    run(scenario())


def test_renewed_pair_that_was_open_to_others_is_used_when_it_is_closed(keys: Path) -> None:
    async def scenario() -> None:
        signer = DmqSigner(keys)
        renew(keys, start_kes_period=9, issue_number=1, names=[KES_SIGNING_KEY, CERTIFICATE])
        (keys / KES_SIGNING_KEY).chmod(0o644)
        assert (await signer.sign(BODY, EXPIRES_AT)).issue_number == 0
        (keys / KES_SIGNING_KEY).chmod(0o600)
        assert (await signer.sign(BODY, EXPIRES_AT)).issue_number == 1
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


@pytest.mark.parametrize("unix_s", [START_S - 1, START_S + 100 * KES_EVOLUTIONS_MAX])
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


def test_outside_of_the_certificate_the_date_of_its_beginning_or_end_is_named(
    keys: Path, tmp_path: Path
) -> None:
    make_keys(tmp_path / "late", start_kes_period=1_000, issue_number=0)

    async def text_of(folder: Path, unix_s: float) -> str:
        signer = DmqSigner(folder, schedule=SCHEDULE, clock=FixedClock(unix_s))
        try:
            with pytest.raises(SigningError) as caught:
                await signer.sign(BODY, EXPIRES_AT)
            assert caught.value.advice
            return caught.value.text
        finally:
            await signer.close()

    # 1 800 000 000 is 2027-01-15 08:00; the 62 periods of 100 s end 6 200 s later.
    ended = run(text_of(keys, START_S + 100 * KES_EVOLUTIONS_MAX))
    assert ended.endswith("served periods 0 to 61 and ended on 2027-01-15 09:43 UTC")
    early = run(text_of(tmp_path / "late", START_S))
    assert early.endswith("begins with period 1000, on 2027-01-16 11:46 UTC")


def test_last_period_of_the_certificate_is_signed_for(keys: Path) -> None:
    async def scenario() -> None:
        clock = FixedClock(START_S + 100 * KES_EVOLUTIONS_MAX - 1)
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=clock)
        message = await signer.sign(BODY, EXPIRES_AT)
        assert (message.kes_period, check_proof(message)) == (KES_EVOLUTIONS_MAX - 1, None)
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
    from stagepost.ground.loop.virtual_time import run_in_virtual_time

    async def scenario() -> None:
        signer = DmqSigner(keys, schedule=SCHEDULE, clock=LoopClock(START_S), beside_the_loop=False)
        await asyncio.sleep(250)
        assert (await signer.sign(BODY, EXPIRES_AT)).kes_period == 2
        with pytest.raises(SigningError):
            await signer.sign(b"too short", EXPIRES_AT)
        await signer.close()

    run_in_virtual_time(scenario())
    assert set(FILE_NAMES) <= {path.name for path in keys.iterdir()}
