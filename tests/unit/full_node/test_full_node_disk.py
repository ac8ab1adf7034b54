"""Full node whose disk fills up and is freed again: the node reports nothing that the disk does not hold, and loses nothing."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
from functools import partial
from pathlib import Path

import pytest

from rigs.memory_topic import MemoryTopic
from stagepost.delivery.identity import delivery_id
from stagepost.delivery.shell.handling import Busy, Message
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.from_delivery import DeliveryIntake
from stagepost.full_node.intake_desk import IntakeDesk
from stagepost.full_node.local_client import ExternalMessages, RefusedByFullNode
from stagepost.full_node.owed_writes import RETRY_S as OWED_RETRY_S
from stagepost.full_node.owed_writes import LinesFile, OwedWrites
from stagepost.full_node.status_topic import RETRY_S, EarlierIds, StatusTopic
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.topic import Record
from stagepost.web.access.settings import WebSettings
from stagepost.web.intake.server import serving_intake
from tests.unit.full_node.test_message_intake import Desk, primes
from tests.worlds.full_node.full_node_desk import a_served_desk
from tests.worlds.full_node.full_node_desk import primes as desk_primes
from tests.worlds.topics.topic_disks import FailingFiles

MESSAGES = 5
FULL_FOR_S = 30.0
FOR_EVER = 1_000_000


def on_disk(desk: Desk) -> list[tuple[str, str, str]]:
    """Return message, source and kind of every status on the topic."""
    reader = desk.statuses.reader()
    receipts = [Receipt.from_json(one.value or b"") for batch in reader.batches(0, 0) for one in batch]
    return [(one.message_id.hex(), one.source_id.hex(), one.kind.name) for one in receipts]


def is_well(part: StatusTopic | OwedWrites) -> bool:
    return part.fault is None


async def a_run(tmp_path: Path, *, is_sick: bool) -> list[tuple[str, str, str]]:
    """Run the same messages, answers and blocks with a disk that is full from the first status on, or with a good one."""
    desk = Desk()
    desk.start()
    written: list[Record] = []
    seat = IntakeDesk(desk.node, tmp_path)
    desk.topic.written = written.append
    settled: list[bytes] = []
    desk.node.on_settled = lambda receipt: settled.append(receipt.message_id)
    desk.statuses.is_full = is_sick
    await desk.write(*(Record(desk.node.id_of(primes(n)), primes(n)) for n in range(10, 10 + MESSAGES)))
    await asyncio.sleep(2.0)
    for number in range(10, 10 + MESSAGES):
        desk.final(primes(number))
        await asyncio.sleep(FULL_FOR_S / MESSAGES)
    if is_sick:
        assert (desk.kinds, written, settled, desk.position) == ([], [], [], 0)
        assert desk.topic.waiting > MESSAGES
        await refuses_everything(desk, seat)
        desk.statuses.is_full = False
    await asyncio.sleep(RETRY_S + 1.0)
    assert (desk.topic.fault, desk.topic.waiting, desk.position) == (None, 0, MESSAGES + is_sick)
    found = on_disk(desk)
    told = [(message_id.hex(), kind) for message_id, kind in desk.kinds]
    assert told == [(one, kind) for one, source, kind in found if source == desk.node.source_id.hex()]
    assert [Receipt.from_json(one.value or b"").kind.name for one in written] == [kind for *_, kind in found]
    assert {one.hex() for one in settled} == {message_id for message_id, *_ in found}
    assert seat.submit(primes(50), "uid:1").is_new, "without a restart"
    await desk.stop()
    return found


async def refuses_everything(desk: Desk, seat: IntakeDesk) -> None:
    sent = len(desk.sent)
    for data in (primes(49), primes(10), b"no message"):
        with pytest.raises(StagepostError) as refused:
            seat.submit(data, "uid:1")
        assert refused.value.code is ErrorCode.STORAGE_UNAVAILABLE
        assert "no space left" in refused.value.text
    identifier = delivery_id(b"s" * 32, "t", bytes(16), primes(49)).hex()
    deliveries = DeliveryIntake(desk.node)
    with pytest.raises(Busy):
        await deliveries.handle(Message("t", primes(49), identifier, "s", 0, 0, maybe_duplicate=False))
    await desk.write(Record(desk.node.id_of(primes(10)), primes(10)))
    await asyncio.sleep(2.0)
    assert desk.position == 0
    assert len(desk.sent) == sent


def test_statuses_wait_for_a_full_disk_and_come_in_the_order_of_a_good_one(tmp_path: Path) -> None:
    good = run_in_virtual_time(a_run(tmp_path, is_sick=False))
    sick = run_in_virtual_time(a_run(tmp_path, is_sick=True))
    assert {kind for *_, kind in good} >= {"SentToValidators", "PutIntoQueue", "Finalized"}
    assert sick == good


def test_above_the_limit_receipts_are_not_read_and_none_is_dropped() -> None:
    async def main() -> None:
        topic = MemoryTopic(STATUSES_TOPIC)
        statuses = StatusTopic(topic.writer(lambda: 0, retry_s=RETRY_S), waiting_bytes_max=10_000)
        heard: list[bool] = []
        statuses.on_full = heard.append
        topic.is_full = True
        stored: list[int] = []
        receipt = Receipt(ExternalMessageId(bytes(32)), New(), 1, b"v" * 32, "AA==")
        for number in range(100):
            statuses.publish(receipt, None, EarlierIds(), partial(stored.append, number))
            await asyncio.sleep(0.1)
        assert (heard, stored, statuses.waiting) == ([True], [], 100)
        topic.is_full = False
        await asyncio.sleep(2 * RETRY_S)
        assert (heard, stored, statuses.waiting) == ([True, False], list(range(100)), 0)
        # A disk that is slow, not broken: no message is taken above the limit either.
        for _ in range(100):
            statuses.publish(receipt, None, EarlierIds())
        assert heard == [True, False, True]
        fault = statuses.fault
        assert fault is not None
        assert fault.code is ErrorCode.STORAGE_UNAVAILABLE
        await asyncio.sleep(1.0)
        assert heard == [True, False, True, False]
        assert is_well(statuses)
        await statuses.close()

    run_in_virtual_time(main())


def test_a_node_that_ends_on_a_full_disk_tells_nobody_of_what_it_could_not_write() -> None:
    async def main() -> None:
        topic = MemoryTopic(STATUSES_TOPIC)
        statuses = StatusTopic(topic.writer(lambda: 0, retry_s=RETRY_S))
        told: list[object] = []
        statuses.written = told.append
        topic.is_full = True
        receipt = Receipt(ExternalMessageId(bytes(32)), New(), 1, b"v" * 32, "AA==")
        statuses.publish(receipt, None, EarlierIds(), lambda: told.append("settled"))
        await asyncio.sleep(3 * RETRY_S)
        await statuses.close()
        assert told == []

    run_in_virtual_time(main())


def test_a_receiver_that_fails_keeps_no_status_from_the_others() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        statuses = StatusTopic(MemoryTopic(STATUSES_TOPIC).writer(lambda: 0, retry_s=RETRY_S))
        receipt = Receipt(ExternalMessageId(bytes(32)), New(), 1, b"v" * 32, "AA==")
        stored: list[str] = []
        statuses.publish(receipt, None, EarlierIds(), lambda: stored.remove("nothing"))
        statuses.publish(receipt, None, EarlierIds(), lambda: stored.append("second"))
        await statuses.close()
        assert stored == ["second"]

    faults: list[object] = []
    run_in_virtual_time(main())
    assert len(faults) == 1


# Small files


def test_files_that_the_disk_refuses_are_written_later_whole_and_once(tmp_path: Path) -> None:
    async def main() -> None:
        files = FailingFiles()
        lines, owed, others = LinesFile(tmp_path / "lines", files), OwedWrites(), list[int]()
        lines.add(b"first")
        owed.do("lines", lines.write)
        files.is_short = True
        files.fail(1, errno.ENOSPC, failures=FOR_EVER, kinds=("write",))
        for line in (b"second", b"third"):
            lines.add(line)
            owed.do("lines", lines.write)
            owed.do("others", lambda: others.append(1))
        assert not is_well(owed)
        assert others == [1, 1], "other files are written all the same"
        files.heal()
        assert (tmp_path / "lines").read_bytes() == b"first\n"
        await asyncio.sleep(OWED_RETRY_S)
        assert (tmp_path / "lines").read_bytes() == b"first\nsecond\nthird\n"
        assert is_well(owed)
        owed.close()

    run_in_virtual_time(main())


# Programs


def test_programs_and_web_clients_are_refused_by_code_until_the_disk_is_well(tmp_path: Path) -> None:
    async def main() -> None:
        files = FailingFiles()
        async with (
            a_served_desk(tmp_path, files=files) as (desk, facts),
            serving_intake(desk.desk, WebSettings(tmp_path, port=0)) as address,
        ):
            files.fail(1, errno.ENOSPC, failures=FOR_EVER)
            desk.node.submit(desk_primes(9))
            desk.in_a_final_block(desk_primes(9))
            client = ExternalMessages(facts)
            while is_well(desk.statuses):
                await asyncio.sleep(0.01)
            with pytest.raises(RefusedByFullNode) as refused:
                await client.submit(desk_primes(10), 30.0)
            assert refused.value.code is ErrorCode.STORAGE_UNAVAILABLE
            assert await asyncio.to_thread(posted, address, desk_primes(10)) == (503, "STORAGE_UNAVAILABLE")
            files.heal()
            while not is_well(desk.statuses):
                await asyncio.sleep(0.01)
            assert (await client.submit(desk_primes(10), 30.0)).is_new
            assert await asyncio.to_thread(posted, address, desk_primes(11)) == (202, None)
            await client.close()

    asyncio.run(main())


def posted(address: str, message: bytes) -> tuple[int, str | None]:
    host = address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        kind = {"Content-Type": "application/octet-stream"}
        connection.request("POST", "/api/v1/messages", message, kind)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("code")
    finally:
        connection.close()
