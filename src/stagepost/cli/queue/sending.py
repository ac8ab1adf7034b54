"""`stagepost queue flush` and `queue replay`: a publisher for as long as it takes to empty an outbox."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.options.delivery import (
    EmptyingOptions,
    EntryName,
    delivery_settings,
    kes_clock_given,
    keys_given,
    publisher_config,
    webhook_in,
)
from stagepost.cli.options.shared import disable_core_dumps, socket_and_magic
from stagepost.cli.queue.listing import UnknownMessage, find_dead_letters, report_damage
from stagepost.cli.send.lines import (
    error_facts,
    exit_status,
    print_json,
    show_failure,
    status_line,
)
from stagepost.cli.send.reliably import DeliverySession
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.errors import DeliveryError, ErrClosed
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import OutboxRecord
from stagepost.delivery.stores.reading import read_outbox
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.errors import ConfigError, StagepostError
from stagepost.ground.files.audit import record_action, user_name
from stagepost.ground.files.durations import format_duration

RequireNever = Callable[[FailedMessage | OutboxRecord], None]
NO_ANSWER = "the critical peers have not answered"


def send_all(
    context: click.Context,
    sending: EmptyingOptions,
    replayed: EntryName | None = None,
    never: tuple[Path, Path] | None = None,
) -> int:
    """Send what waits in the outbox and return the exit status. `replayed` names dead letters to try again; an empty prefix
    names all of them. `never`: files of a proof and of the genesis, by which external messages are stamped anew.
    """
    keys = keys_given(context, sending.folder, sending.signing)
    disable_core_dumps()
    content = read_outbox(sending.outbox)
    try:
        letters = [] if replayed is None else find_dead_letters(content, replayed)
    except UnknownMessage:
        # In a damaged outbox nobody knows whether the message is there.
        if not content.damage:
            raise
        return report_damage(content, sending.outbox)
    require_never = None if never is None else never_executed(*never)
    if require_never is not None:
        for letter in letters:
            require_never(letter.record)
    socket, magic = socket_and_magic(sending.socket, sending.network_magic, sending.data)
    # Messages that wait for acknowledgement keep the critical peers whom they were published with.
    config = publisher_config(sending.outbox, delivery_settings(sending.config_file, sending.config_context))
    kes_clock = kes_clock_given(sending.signing, magic, socket, sending.data)
    webhook = webhook_in(sending.config_file, sending.config_context)
    session = DeliverySession(
        socket, magic, sending.profile, keys, config, kes_clock, sending.data, webhook=webhook
    )
    what = "queue flush" if replayed is None else f"queue replay {str(replayed) or '--all'}"
    record_action(sending.outbox, what, through="cli", who=user_name())
    tiers = {record.delivery_id.hex(): record.tier for record in content.records}
    again = [letter.record for letter in letters]
    status = asyncio.run(
        empty_outbox(session, tiers, again, sending.timeout_s, sending.as_json, require_never)
    )
    # What could be read was sent; what could not is unknown, and the publisher has set it aside.
    return report_damage(content, sending.outbox) or status


def never_executed(proof: Path, genesis: Path) -> RequireNever:
    """Return a check that a file proves of a dead letter that its external message was never executed."""
    from stagepost.chain.messages import stamped_draft
    from stagepost.chain.proofs.proof_files import FILE_BYTES_MAX
    from stagepost.chain.proofs.proof_rules import ProofVerifier
    from stagepost.ground.files.small_files import read_small_file
    from stagepost.trace.kept_proofs import load_genesis

    verifier = ProofVerifier(load_genesis(genesis))
    content, _ = read_small_file(proof, FILE_BYTES_MAX, "a proof")

    def require(letter: FailedMessage | OutboxRecord) -> None:
        if not letter.stamped_ms:
            raise ConfigError(
                "the dead letter is not an external message that was sent, so there is nothing to prove",
                advice="replay it without --proof",
            )
        verifier.require_never(content, stamped_draft(letter.payload, letter.stamped_ms))

    return require


class Emptying:
    """Tells of every message as it ends; knows which are still on their way."""

    def __init__(self, tiers: dict[str, Tier], as_json: bool) -> None:
        self.ended: Counter[DeliveryStatus] = Counter()
        self._open = set(tiers)
        self._tiers = tiers
        self._as_json = as_json
        self._change = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._open)

    def expect(self, message_id: str, tier: Tier) -> None:
        """Wait for this message too; one that is on its way already keeps the tier that it has."""
        if message_id not in self._open:
            self._tiers[message_id] = tier
            self._open.add(message_id)

    def note(self, message_id: str, status: object, error: object) -> None:
        if not isinstance(status, DeliveryStatus) or message_id not in self._open:
            return
        if isinstance(error, ErrClosed):
            return  # we end, the message does not
        if status in (DeliveryStatus.PENDING, DeliveryStatus.QUEUED):
            return
        is_end = status is not DeliveryStatus.SENT or self._tiers[message_id] is not Tier.ACKED
        self._tell(message_id, status, error)
        if is_end:
            self._open.discard(message_id)
            self.ended[status] += 1
            self._change.set()

    async def until_empty(self) -> None:
        while self._open:
            self._change.clear()
            await self._change.wait()

    def _tell(self, message_id: str, status: DeliveryStatus, error: object) -> None:
        if self._as_json:
            facts = {
                "delivery_id": message_id,
                "status": status.value,
                "timestamp_ms": int(time.time() * 1_000),
            }
            print_json(facts | error_facts(error if isinstance(error, DeliveryError) else None))
        elif isinstance(error, DeliveryError):
            click.echo(status_line(status, message_id, f"{error.text} ({type(error).__name__})"))
        else:
            click.echo(status_line(status, message_id))


async def empty_outbox(
    session: DeliverySession,
    tiers: dict[str, Tier],
    replayed: Sequence[OutboxRecord],
    timeout_s: float,
    as_json: bool,
    require_never: RequireNever | None = None,
) -> int:
    """Replay the dead letters of these records and send all that waits. Return the exit status: 0 if nothing is left
    and nothing failed. With `require_never`, external messages are stamped anew, as `ReliablePublisher.replay` says."""
    emptying = Emptying(tiers, as_json)
    until_s = time.monotonic() + timeout_s
    gone: list[OutboxRecord] = []
    try:
        async with session.open(emptying.note) as (publisher, transport):
            letters = list(replayed)
            while True:
                gone += await _replay(publisher, emptying, letters, require_never)
                await _wait(publisher, transport, emptying, until_s - time.monotonic())
                # A copy that asks for other acknowledgements than the copy before it has its turn when that one has ended.
                letters = _still_dead(publisher, letters)
                if not letters or emptying.waiting:
                    break
            nobody = session.nobody_there(transport)
            reason = transport.last_failure or NO_ANSWER if nobody is None else nobody.text
    except DeliveryError as error:
        show_failure(error, None)
        return exit_status(error)
    if not as_json:
        _summarise(emptying, reason, timeout_s)
    for record in gone:
        name = EntryName(record.delivery_id.hex(), record.sequence)
        click.echo(f"dead letter {name} was not replayed: the outbox no longer keeps it", err=True)
    failed = emptying.ended[DeliveryStatus.FAILED]
    return DONE if not (emptying.waiting or failed or letters or gone) else NOT_THAT_OUTCOME


async def _replay(
    publisher: ReliablePublisher,
    emptying: Emptying,
    letters: Sequence[OutboxRecord],
    require_never: RequireNever | None,
) -> list[OutboxRecord]:
    """Replay the dead letters of these records, the copies of one message together. Return those that are gone."""
    copies: dict[str, list[OutboxRecord]] = {}
    for record in letters:
        copies.setdefault(record.delivery_id.hex(), []).append(record)
    gone: list[OutboxRecord] = []
    for message_id, records in copies.items():
        # Other processes, and messages that had to make room, may have pushed out what was there a moment ago.
        there = _still_dead(publisher, records)
        gone += [record for record in records if record not in there]
        if there:
            emptying.expect(message_id, there[0].tier)
            again = (
                publisher.replay(message_id, sequence=record.sequence, require_never=require_never)
                for record in there
            )
            await asyncio.gather(*again)
    return gone


def _still_dead(publisher: ReliablePublisher, records: Sequence[OutboxRecord]) -> list[OutboxRecord]:
    places = {letter.sequence for letter in publisher.dead_letters()}
    return [record for record in records if record.sequence in places]


async def _wait(
    publisher: ReliablePublisher, transport: DmqTransport, emptying: Emptying, timeout_s: float
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            if transport.connected_peers:
                # Where the connection is lost meanwhile, what is left goes when it is back, or stays.
                with suppress(StagepostError):
                    await publisher.flush_queue()
            await emptying.until_empty()


def _summarise(emptying: Emptying, reason: str, timeout_s: float) -> None:
    counts = [
        f"{emptying.ended[status]} {status.value.lower()}"
        for status in (DeliveryStatus.SENT, DeliveryStatus.ACKED, DeliveryStatus.FAILED)
        if emptying.ended[status]
    ]
    if emptying.waiting:
        counts.append(f"{emptying.waiting} still waiting after {format_duration(timeout_s)}: {reason}")
    click.echo(", ".join(counts) or "nothing was waiting")
