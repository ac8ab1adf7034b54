"""The way of a message before the full node: its records on the topics of delivery events, DMQ messages and pulls, as lanes
of steps, from the program's call to each recipient's signed answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.envelope import AckReceipt, DataEnvelope, read_ack_envelope, read_data_envelope
from stagepost.delivery.status import AckType, DeliveryStatus, NackReason, Tier
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.validation import check_proof
from stagepost.errors import DecodeError, StagepostError
from stagepost.ground.files.data_folder import MESSAGES_FILE
from stagepost.ground.files.expected import spelt_number
from stagepost.ground.files.running_nodes import find_node
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC, DMQ_MESSAGES_TOPIC, DMQ_PULLS_TOPIC
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.remp.verdict.trace import EXTERNAL_LAYER, Mark, StepLane, Way, WayStep
from stagepost.topics.batch import Read
from stagepost.topics.log.file_topic import TOPICS_FOLDER, open_topic
from stagepost.topics.topic import OffsetGone
from stagepost.trace.folder_health import dmq_folders
from stagepost.trace.indexed_records import PROFILE, MessageIds, RecordSpan
from stagepost.trace.layer_topics import PullRecord

STEPS_OF_LANE_MAX = 200
RECEIVED_MS_MAX = 2**63 - 1
"""Milliseconds since 1970, at most, in a header of a record."""
"""Steps, at most, of one lane that are shown; a message has a handful, and strangers may add any number."""
PROGRAM, PEERS, OWN_NODE = "program", "peers", "DMQ node"

_OF_STATUS = {
    DeliveryStatus.PENDING: (Mark.QUEUED, "published"),
    DeliveryStatus.QUEUED: (Mark.QUEUED, "stored"),
    DeliveryStatus.SENT: (Mark.ON_ITS_WAY, "sent"),
    DeliveryStatus.ACKED: (Mark.FINAL, "acknowledged"),
    DeliveryStatus.FAILED: (Mark.NEVER, "failed"),
}


class _NodeNames:
    """Names of the DMQ nodes below a data folder: by the folder of their topics, and by the addresses at which they listen."""

    def __init__(self, data: Path) -> None:
        folders = dmq_folders(data)
        self._data = data
        self._by_address: dict[str, str] = {}
        for folder in folders:
            with suppress(StagepostError):
                self._by_address |= dict.fromkeys(find_node(folder).tcp, self._shown(folder))
        # The topics of `data` are those of the node there, or of the only node below that keeps none of its own. A node
        # that has stopped leaves no note, but its messages.
        stopped = {path.parent for path in data.glob(f"*/{MESSAGES_FILE}")}
        silent = [folder for folder in {*folders, *stopped} if not (folder / TOPICS_FOLDER).is_dir()]
        is_here = data in folders or (data / MESSAGES_FILE).exists()
        self._own = silent[0].name if not is_here and len(silent) == 1 else OWN_NODE

    def _shown(self, folder: Path) -> str:
        return OWN_NODE if folder == self._data else folder.name

    def of_folder(self, folder: Path) -> str:
        return self._own if folder == self._data else folder.name

    def of_address(self, address: str) -> str:
        return self._by_address.get(address, address)


class _Arrival(NamedTuple):
    """DMQ message as one node accepted it."""

    node: str
    received_ms: int
    source: str
    message: DmqMessage


def read_way(ids: MessageIds, spans: Iterable[RecordSpan], data: Path) -> Way:
    """Return the way of the message whose records lie at `spans` of the topics below `data`."""
    events: list[DeliveryEvent] = []
    arrivals: list[_Arrival] = []
    names = _NodeNames(data)
    pulls: list[PullRecord] = []
    for span in spans:
        for record in span_records(span):
            try:
                if span.topic == DELIVERY_EVENTS_TOPIC:
                    events.append(decode_foreign(record.value or b"", DeliveryEvent))
                elif span.topic == DMQ_PULLS_TOPIC:
                    pulls.append(decode_foreign(record.value or b"", PullRecord))
                elif span.topic == DMQ_MESSAGES_TOPIC:
                    arrivals.append(_arrival(record, span.folder, names))
            except (StagepostError, msgspec.MsgspecError, UnicodeDecodeError):
                continue  # whoever reads the topic itself sees it with the reason
    return _way(ids, events, arrivals, pulls)


def span_records(span: RecordSpan) -> Iterator[Read]:
    """Yield the records under the span's key; those that retention has removed meanwhile are left out."""
    reader = open_topic(span.folder, span.topic).reader()
    key = span.key.encode()
    first = max(span.first, reader.start_offset(span.partition))
    end = min(span.last + 1, reader.end_offset(span.partition))
    if first >= end:
        return
    try:
        for batch in reader.batches(span.partition, first, end):
            if key in batch.keys:
                yield from (record for record in batch if record.key == key)
    except OffsetGone:
        return


def _arrival(record: Read, folder: Path, names: _NodeNames) -> _Arrival:
    received_ms = spelt_number(record.headers.get("received_ms", ""), RECEIVED_MS_MAX)
    received_ms = record.timestamp_ms if received_ms is None else received_ms
    message = DmqMessage.decode(record.value or b"", profile=PROFILE)
    source = names.of_address(record.headers.get("from", ""))
    return _Arrival(names.of_folder(folder), received_ms, source, message)


def _way(
    ids: MessageIds, events: list[DeliveryEvent], arrivals: list[_Arrival], pulls: list[PullRecord]
) -> Way:
    events.sort(key=lambda event: event.timestamp_ms)
    envelopes = [_envelope(arrival.message) for arrival in arrivals]
    data = [found for found in envelopes if isinstance(found, DataEnvelope)]
    answers = _answers(ids, arrivals)
    lanes = [
        _lane(PROGRAM, [_event_step(event) for event in events]),
        *_node_lanes(arrivals, envelopes),
        _lane(
            PEERS, [WayStep(pull.timestamp_ms, Mark.ON_ITS_WAY, f"pulled by {pull.peer}") for pull in pulls]
        ),
        *(_lane(f"pool {pool[:8]}", steps) for pool, steps in answers.items()),
    ]
    words, why = _words(events, data, answers, bool(arrivals))
    names = [
        *((EXTERNAL_LAYER, one) for one in ids.message_ids),
        *(("delivery id", one) for one in ids.delivery_ids),
        *(("DMQ id", one) for one in ids.dmq_ids),
    ]
    return Way(
        tuple(lane for lane in lanes if lane.points),
        tuple(names),
        ids.topic,
        data[0].payload if data else None,
        words,
        why,
        _reached({event.status for event in events}, bool(arrivals), words),
        bool(events) and not ids.message_ids and _is_end(events[-1]),
        _traceparent(events, data),
    )


def _traceparent(events: list[DeliveryEvent], data: list[DataEnvelope]) -> str:
    """Return the trace context that the publisher recorded, or the one that the message carries: the events have it even
    where the payload left no room for it.
    """
    recorded = (event.traceparent for event in events if event.traceparent)
    carried = (envelope.trace_parent.text for envelope in data if envelope.trace_parent is not None)
    return next(recorded, "") or next(carried, "")


def _reached(statuses: set[DeliveryStatus], is_on_network: bool, words: str) -> tuple[str, ...]:
    is_acked = DeliveryStatus.ACKED in statuses or words.startswith("Acknowledged")
    is_sent = is_acked or is_on_network or DeliveryStatus.SENT in statuses
    is_stored = is_sent or DeliveryStatus.QUEUED in statuses
    found = {"stored": is_stored, "sent": is_sent, "acked": is_acked}
    return tuple(name for name, is_so in found.items() if is_so)


def _is_end(event: DeliveryEvent) -> bool:
    if event.status is DeliveryStatus.SENT:
        return event.tier is not Tier.ACKED
    return event.status in (DeliveryStatus.ACKED, DeliveryStatus.FAILED)


def _lane(name: str, steps: Iterable[WayStep]) -> StepLane:
    ordered = sorted(set(steps), key=lambda step: step.timestamp_ms)
    return StepLane(name, tuple(ordered[:STEPS_OF_LANE_MAX]))


def _event_step(event: DeliveryEvent) -> WayStep:
    mark, words = _OF_STATUS[event.status]
    if event.status is DeliveryStatus.SENT:
        # A tier that awaits an acknowledgement counts the attempt after its report, every other tier before.
        number = event.attempt + 1 if event.tier is Tier.ACKED else event.attempt
        words += f", attempt {number}" if number > 1 else ""
    if event.status is DeliveryStatus.ACKED:
        words += f" by {len(event.acked_by)}"
    if event.error is not None:
        words += f": {event.reason or event.error}"
    return WayStep(event.timestamp_ms, mark, words)


def _envelope(message: DmqMessage) -> DataEnvelope | None:
    try:
        return read_data_envelope(message.body)
    except DecodeError:
        return None


def _node_lanes(arrivals: list[_Arrival], envelopes: list[DataEnvelope | None]) -> list[StepLane]:
    steps: dict[str, list[WayStep]] = defaultdict(list)
    for arrival, envelope in zip(arrivals, envelopes, strict=True):
        if _receipts(arrival.message) is not None:
            continue  # an answer has the lane of its recipient
        words = "accepted" if not arrival.source else f"accepted from {arrival.source}"
        if envelope is not None and envelope.attempt:
            words += f", attempt {envelope.attempt + 1}"
        steps[arrival.node].append(WayStep(arrival.received_ms, Mark.ON_ITS_WAY, words))
    # The node of the program is the one that had the message first; the others follow by name.
    first = {node: min(step.timestamp_ms for step in found) for node, found in steps.items()}
    own = min(first.values(), default=0)
    return [_lane(node, steps[node]) for node in sorted(steps, key=lambda node: (first[node] > own, node))]


def _receipts(message: DmqMessage) -> tuple[AckReceipt, ...] | None:
    try:
        return read_ack_envelope(message.body).receipts
    except DecodeError:
        return None


def _answers(ids: MessageIds, arrivals: list[_Arrival]) -> dict[str, list[WayStep]]:
    """Return the signed answers of recipients, by pool id: an answer that another pool signed is not trustworthy."""
    wanted = {bytes.fromhex(one) for one in ids.delivery_ids}
    found: dict[str, list[WayStep]] = defaultdict(list)
    seen: set[bytes] = set()
    for arrival in arrivals:
        message = arrival.message
        receipts = _receipts(message)
        if receipts is None or message.message_id in seen:
            continue
        seen.add(message.message_id)
        pool = message.pool_id
        is_signed = check_proof(message) is None and read_ack_envelope(message.body).sender == pool
        for receipt in receipts:
            if receipt.message_id in wanted:
                found[pool.hex()].append(_answer_step(receipt, is_signed=is_signed))
    return found


def _answer_step(receipt: AckReceipt, *, is_signed: bool) -> WayStep:
    if not is_signed:
        return WayStep(receipt.timestamp_ms, Mark.UNTRUSTED, "answer: SIGNATURE INVALID")
    if receipt.ack_type is AckType.ACK:
        return WayStep(receipt.timestamp_ms, Mark.FINAL, "acknowledged, signed")
    mark = Mark.RETURNED if receipt.is_transient else Mark.NEVER
    return WayStep(receipt.timestamp_ms, mark, f"refused, signed: {refusal_words(receipt)}")


def refusal_words(receipt: AckReceipt) -> str:
    """Return the reason of a refusal, with the text that the recipient gave."""
    reason = receipt.reason
    words = reason.name.lower().replace("_", " ") if isinstance(reason, NackReason) else f"reason {reason}"
    return f"{words}, {receipt.text}" if receipt.text else words


def _words(
    events: list[DeliveryEvent],
    data: list[DataEnvelope],
    answers: dict[str, list[WayStep]],
    is_on_network: bool,
) -> tuple[str, str]:
    """Return the state of the delivery, and why it is so."""
    asked = {acker.hex() for envelope in data for acker in envelope.ackers}
    acked = [pool for pool in asked if any(step.mark is Mark.FINAL for step in answers.get(pool, ()))]
    refused = [step.label for steps in answers.values() for step in steps if step.mark is Mark.NEVER]
    last = events[-1] if events else None
    if last is not None and last.status is DeliveryStatus.FAILED:
        return "Failed", last.reason or last.error or ""
    if asked and acked:
        return f"Acknowledged by {len(acked)} of {len(asked)}", ""
    if last is not None and last.status is DeliveryStatus.ACKED:
        return f"Acknowledged by {len(last.acked_by)}", ""
    if refused:
        return "Refused", refused[-1]
    if last is not None and last.status is not DeliveryStatus.SENT and not is_on_network:
        return "Stored", f"waits to be sent{f': {last.reason}' if last.reason else ''}"
    if not is_on_network and last is None:
        return "", ""
    return "Sent", f"waiting for {len(asked)} acknowledgements" if asked else ""
