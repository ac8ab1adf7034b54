"""The index of messages: any id finds the same record, from the program's call to the signed answers of recipients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rigs.dashboard_world import DashboardWorld
from rigs.remp_world import FULL_NODE
from stagepost.client import AsyncClient, ClientLimits
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.envelope import AckReceipt, DataEnvelope, pack_receipts
from stagepost.delivery.identity import nonce_of_key
from stagepost.delivery.status import AckType, DeliveryStatus, NackReason, Tier
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.errors import StorageError
from stagepost.ground.identifiers import DMQ_MESSAGES_TOPIC
from stagepost.ground.loop.clock import SystemClock
from stagepost.remp.receipts.message_status import SentToValidators
from stagepost.remp.verdict.trace import Mark, Trace
from stagepost.topics.log.file_topic import create_topic
from stagepost.trace import index as index_module
from stagepost.trace.index import INDEX_FILE, MessageIndex
from stagepost.trace.layer_topics import KEPT, DeliveryEventsLog, recorded
from stagepost.trace.reading import NotOneMessage, read_trace, trace_object
from stagepost.trace.way import _event_step
from tests.worlds.dmq.pool_signers import Signer, _signing_key

NOW_MS = 1_700_000_000_000
SENDER, FIRST, SECOND, STRANGER = (Signer(number) for number in range(4))
NONCE = nonce_of_key("order-17")


def signed(signer: Signer, body: bytes) -> DmqMessage:
    return sign_message(
        body,
        key=_signing_key(signer.number, 0),
        certificate=signer.certificate,
        cold_verification_key=signer.cold_key,
        kes_period=0,
        expires_at=1_900_000_600,
    )


def data_envelope(payload: bytes = b'{"amount": 3}', attempt: int = 0, nonce: bytes = NONCE) -> DataEnvelope:
    ackers = (FIRST.pool_id, SECOND.pool_id)
    return DataEnvelope("orders", nonce, NOW_MS, payload, attempt, ackers)


def answer(
    signer: Signer, delivery_id: bytes, ack: AckType, after_ms: int, claims: Signer | None = None
) -> DmqMessage:
    reason = NackReason.INVALID if ack is AckType.NACK else NackReason.NONE
    receipt = AckReceipt(delivery_id, NOW_MS + after_ms, ack, reason)
    (envelope,) = pack_receipts((claims or signer).pool_id.hex(), [receipt])
    return signed(signer, envelope.encode())


class Deployment:
    """A DMQ node's folder: what its process and a publisher write there."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.message = signed(SENDER, data_envelope().encode())
        self.delivery_id = bytes(data_envelope().delivery_id(SENDER.pool_id))

    def accept(self, *messages: DmqMessage, pulled_by: tuple[str, ...] = (), source: str = "local") -> None:
        async def write() -> None:
            accepted: list[object] = []
            supplied: list[object] = []
            async with recorded(self.data, accepted, supplied):  # type: ignore[arg-type]
                for place, message in enumerate(messages):
                    accepted[0](MempoolEntry(place + 1, message, NOW_MS + 20, source))  # type: ignore[operator]
                    for peer in pulled_by:
                        supplied[0](peer, [message])  # type: ignore[operator]

        asyncio.run(write())

    def report(self, *statuses: DeliveryStatus, **changes: object) -> None:
        sink = DeliveryEventsLog(self.data)
        for place, status in enumerate(statuses):
            sink.put(
                DeliveryEvent(
                    self.delivery_id.hex(),
                    status,
                    Tier.ACKED,
                    "orders",
                    NOW_MS + place,
                    0,
                    self.message.message_id.hex() if status is not DeliveryStatus.PENDING else None,
                    None,
                    (),
                    None,
                    NONCE.hex(),
                )
            )
        sink.close()
        assert sink.dropped == 0

    def trace(self, text: str) -> Trace:
        return read_trace(self.data, text, NOW_MS + 1_000)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_every_id_and_the_key_find_the_same_record_that_ends_with_two_signed_answers(
    deployment: Deployment,
) -> None:
    deployment.report(DeliveryStatus.PENDING, DeliveryStatus.SENT)
    deployment.accept(deployment.message, pulled_by=("10.0.0.2:3001",))
    acks = [answer(one, deployment.delivery_id, AckType.ACK, 200) for one in (FIRST, SECOND)]
    deployment.accept(*acks, source="10.0.0.2:3001")
    names = [
        deployment.delivery_id.hex(),
        deployment.message.message_id.hex(),
        acks[0].message_id.hex(),
        deployment.delivery_id.hex()[:8],
        deployment.message.message_id.hex().upper()[:13],
        "order-17",
    ]
    traces = [deployment.trace(name) for name in names]
    assert all(trace == traces[0] for trace in traces)
    trace = traces[0]
    assert trace.message_id == deployment.delivery_id
    assert trace.words == "Acknowledged by 2 of 2"
    lanes = {lane.name: [step.label for step in lane.points] for lane in trace.way.lanes}
    assert lanes == {
        "program": ["published", "sent"],
        "DMQ node": ["accepted from local"],
        "peers": ["pulled by 10.0.0.2:3001"],
        f"pool {FIRST.pool_id.hex()[:8]}": ["acknowledged, signed"],
        f"pool {SECOND.pool_id.hex()[:8]}": ["acknowledged, signed"],
    }
    shown = trace_object(trace)
    assert json.loads(json.dumps(shown))["ids"] == [
        {"layer": "delivery id", "id": deployment.delivery_id.hex()},
        {"layer": "DMQ id", "id": deployment.message.message_id.hex()},
    ]
    assert trace.way.payload == b'{"amount": 3}'


def test_the_client_traces_and_waits_by_any_id(deployment: Deployment) -> None:
    async def ask() -> None:
        client = AsyncClient(None, ClientLimits(), SystemClock(), data=deployment.data)
        early = await client.wait_for(deployment.delivery_id, "sent", 0)
        assert (early.is_reached, early.has_ended, str(early)) == (False, False, "Not known yet")
        await asyncio.to_thread(deployment.report, DeliveryStatus.PENDING, DeliveryStatus.QUEUED)
        stored = await client.wait_for("order-17", "stored", 0)
        assert (stored.is_reached, stored.message_id) == (True, deployment.delivery_id.hex())
        assert not (await client.wait_for("order-17", "sent", 0)).is_reached
        await asyncio.to_thread(
            deployment.accept,
            deployment.message,
            *(answer(one, deployment.delivery_id, AckType.ACK, 200) for one in (FIRST, SECOND)),
        )
        acked = await client.wait_for(deployment.message.message_id, "acked", 5)
        assert (acked.is_reached, str(acked)) == (True, "Acknowledged by 2 of 2")
        trace = await client.trace(deployment.message.message_id.hex()[:9])
        assert trace.message_id == deployment.delivery_id
        await client.close()

    asyncio.run(ask())


def test_an_answer_that_another_pool_signed_counts_for_nothing(deployment: Deployment) -> None:
    forged = answer(STRANGER, deployment.delivery_id, AckType.ACK, 50, claims=FIRST)
    own = answer(STRANGER, deployment.delivery_id, AckType.ACK, 60)
    deployment.accept(deployment.message, forged, own)
    trace = deployment.trace(deployment.delivery_id.hex())
    (lane,) = (lane for lane in trace.way.lanes if lane.name == f"pool {STRANGER.pool_id.hex()[:8]}")
    assert [step.mark for step in lane.points] == [Mark.UNTRUSTED, Mark.FINAL]
    assert trace.words == "Sent", "nobody asked the stranger"


def test_a_refusal_says_so(deployment: Deployment) -> None:
    deployment.accept(deployment.message, answer(FIRST, deployment.delivery_id, AckType.NACK, 30))
    trace = deployment.trace(deployment.delivery_id.hex())
    assert (trace.words, trace.way.why) == ("Refused", "refused, signed: invalid")


def test_retries_are_one_message_and_an_ambiguous_beginning_lists_its_matches(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = signed(SENDER, data_envelope(attempt=1).encode())
    others = [signed(SENDER, data_envelope(payload=b"%d" % number).encode()) for number in range(3)]
    deployment.accept(deployment.message, retry, *others)
    trace = deployment.trace(retry.message_id.hex())
    assert trace.message_id == deployment.delivery_id
    assert {one for layer, one in trace.way.names if layer == "DMQ id"} == {
        deployment.message.message_id.hex(),
        retry.message_id.hex(),
    }
    # The same key with other contents: four messages, and the list is bounded.
    with pytest.raises(NotOneMessage) as several:
        deployment.trace("order-17")
    assert len(several.value.message_ids) == 4
    monkeypatch.setattr(index_module, "MATCHES_MAX", 2)
    with MessageIndex(deployment.data) as index:
        assert len(index.find("order-17")) == 2


@pytest.mark.parametrize("damage", ["missing", "garbage", "other tables", "later version"])
def test_a_missing_or_damaged_index_is_made_anew_and_a_foreign_one_is_refused(
    deployment: Deployment, damage: str
) -> None:
    import sqlite3

    deployment.accept(deployment.message)
    before = deployment.trace(deployment.delivery_id.hex())
    path = deployment.data / INDEX_FILE
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    if damage in ("missing", "garbage"):
        path.unlink() if damage == "missing" else path.write_bytes(b"SQLite format 3\0" + b"x" * 5_000)
        assert deployment.trace(deployment.delivery_id.hex()) == before
        return
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE strangers (id INTEGER)")
    if damage == "later version":
        connection.execute("PRAGMA user_version = 9")
    connection.commit()
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StorageError, match="message index"):
        deployment.trace(deployment.delivery_id.hex())
    assert path.read_bytes() == content


def test_the_index_forgets_with_its_topic_and_notices_one_that_was_begun_anew(deployment: Deployment) -> None:
    deployment.accept(deployment.message)
    deployment.trace(deployment.delivery_id.hex())
    import shutil

    shutil.rmtree(deployment.data / "topics" / DMQ_MESSAGES_TOPIC)
    other = signed(SENDER, data_envelope(payload=b"other").encode())
    topic = create_topic(deployment.data, DMQ_MESSAGES_TOPIC)
    writer = topic.writer(retention=KEPT)
    writer.close_now()
    deployment.accept(other)
    assert deployment.trace(other.message_id.hex()).way.payload == b"other"
    with pytest.raises(NotOneMessage, match="no record"):
        deployment.trace(deployment.message.message_id.hex())


def test_names_of_one_message_are_bounded(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "NAMES_OF_ONE_MAX", 6)
    retries = [signed(SENDER, data_envelope(attempt=number).encode()) for number in range(12)]
    deployment.accept(*retries)
    with MessageIndex(deployment.data) as index:
        index.catch_up()
        (ids,) = index.find(deployment.delivery_id.hex())
        assert len(ids.dmq_ids) + len(ids.delivery_ids) <= 6


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no data folder"):
        read_trace(tmp_path / "nowhere", "ab" * 32, NOW_MS)


def test_two_publishers_write_one_folder_in_turn(tmp_path: Path) -> None:
    first, second = Deployment(tmp_path), Deployment(tmp_path)
    sinks = [DeliveryEventsLog(tmp_path), DeliveryEventsLog(tmp_path)]
    for number in range(50):
        sinks[number % 2].put(
            DeliveryEvent(
                f"{number:064x}", DeliveryStatus.PENDING, Tier.QUEUED, "t", NOW_MS, 0, None, None, ()
            )
        )
    for sink in sinks:
        sink.close()
    assert [sink.dropped for sink in sinks] == [0, 0]
    with MessageIndex(tmp_path) as index:
        assert index.catch_up() == 50
        assert index.catch_up() == 0
    assert first.delivery_id == second.delivery_id


def test_events_that_cannot_be_written_are_counted_and_hold_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "topics").write_text("not a folder")
    sink = DeliveryEventsLog(tmp_path, waiting_max=10)
    event = DeliveryEvent("ab" * 32, DeliveryStatus.PENDING, Tier.QUEUED, "t", NOW_MS, 0, None, None, ())
    for _ in range(5):
        sink.put(event)
    sink.close()
    sink.put(event)
    assert sink.dropped == 6


def test_each_external_message_of_one_delivery_shows_its_own_receipts(tmp_path: Path) -> None:
    """The outbox wraps a body anew after its expiry: the delivery stays one, and the chain knows two messages."""
    headers = {"delivery_id": "de" * 32}
    world = DashboardWorld(tmp_path / "data", NOW_MS)
    try:
        names = [
            world.tell(name, [(FULL_NODE, SentToValidators(7, 7), 0)], headers=headers)
            for name in ("first", "again")
        ]
    finally:
        world.close()
    for name in (*names, names[1][:12]):
        assert read_trace(world.data, name, NOW_MS).message_id.hex().startswith(name)
    assert read_trace(world.data, "de" * 32, NOW_MS).message_id.hex() in names


def test_nodes_are_named_where_their_notes_say_who_they_are(deployment: Deployment) -> None:
    """The topics of the folder are those of the only node below it that keeps none; addresses are those of the notes."""
    for name, port in (("dmq-1", 3001), ("dmq-2", 3002)):
        (deployment.data / name).mkdir()
        note = {"pid": 1, "local_socket": "s", "network_magic": 1, "tcp": [f"127.0.0.1:{port}"]}
        (deployment.data / name / "node.json").write_text(json.dumps(note))
    Deployment(deployment.data / "dmq-1").accept(deployment.message)
    deployment.accept(deployment.message, source="127.0.0.1:3001", pulled_by=("127.0.0.1:40000",))
    lanes = {
        lane.name: [step.label for step in lane.points] for lane in deployment.trace("order-17").way.lanes
    }
    assert lanes == {
        "dmq-1": ["accepted from local"],
        "dmq-2": ["accepted from dmq-1"],
        "peers": ["pulled by 127.0.0.1:40000"],
    }


def test_a_node_that_has_stopped_keeps_its_name(deployment: Deployment) -> None:
    """Whoever looks at a network that is over finds no notes of its nodes, but the messages that they kept."""
    for name in ("dmq-1", "dmq-2"):
        (deployment.data / name).mkdir()
        (deployment.data / name / "messages.sqlite").touch()
    Deployment(deployment.data / "dmq-1").accept(deployment.message)
    deployment.accept(deployment.message, source="127.0.0.1:3001")
    assert [lane.name for lane in deployment.trace("order-17").way.lanes] == ["dmq-1", "dmq-2"]


@pytest.mark.parametrize(
    ("tier", "attempt", "words"),
    [
        (Tier.QUEUED, 1, "sent"),
        (Tier.QUEUED, 2, "sent, attempt 2"),
        (Tier.BEST_EFFORT, 1, "sent"),
        (Tier.ACKED, 0, "sent"),
        (Tier.ACKED, 1, "sent, attempt 2"),
    ],
)
def test_a_first_attempt_is_not_called_the_second(tier: Tier, attempt: int, words: str) -> None:
    event = DeliveryEvent("ab" * 32, DeliveryStatus.SENT, tier, "orders", NOW_MS, attempt, None, None, ())
    assert _event_step(event).label == words
