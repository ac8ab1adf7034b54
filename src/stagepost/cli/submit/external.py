"""External message to a full node: submit it, and print each stage that it reaches."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import dataclass
from math import ceil, isinf
from pathlib import Path
from shlex import quote
from typing import Any

import click
import msgspec

from stagepost.cli.exit_codes import DONE, NOT_KNOWN_YET, NOT_THAT_OUTCOME
from stagepost.cli.options.shared import printable
from stagepost.cli.send.reliably import quiet_logs
from stagepost.errors import ErrorCode, ProtocolTimeout, StagepostError
from stagepost.full_node.local_client import ExternalMessages, RefusedByFullNode, StatusUpdate
from stagepost.ground.files.durations import format_duration
from stagepost.ground.files.running_nodes import find_full_node
from stagepost.ground.identifiers import abbreviated
from stagepost.remp.receipts.message_status import Accepted, Rejected, SentToValidators, block_of
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.status_records import StatusRecord, read_record
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.remp.verdict.verdict import Conclusion, Verdict
from stagepost.remp.verdict.words import end_words, silent_words, verdict_words

ANSWER_TIMEOUT_S = 30.0
"""Seconds, for a full node to take the message."""
WAIT_TIMEOUT_S = 300.0
"""Seconds: a little more than a message lives."""

_STAGES = ("sent", "queued", "included", "accepted", "finalized")
_CODES = {
    Conclusion.EXPIRED.value: ErrorCode.MSG_EXPIRED,
    Conclusion.REJECTED.value: ErrorCode.PROTOCOL_REQUEST,
    Conclusion.REJECTED_BY_FULLNODE.value: ErrorCode.PROTOCOL_REQUEST,
    Conclusion.EXECUTED_AS.value: ErrorCode.MSG_DUPLICATE,
}


@dataclass(frozen=True)
class SubmitRequest:
    """Message and outcome that a user asked for. `data` is the full node's folder. `awaited` None: do not wait."""

    data: Path
    content: bytes
    awaited: Awaited | None
    timeout_s: float
    as_json: bool


async def submit_and_follow(submission: SubmitRequest) -> int:
    """Submit the message, print every stage, and return the exit status."""
    quiet_logs()
    messages = ExternalMessages(find_full_node(submission.data))
    report = ProgressReport(submission)
    try:
        return await _submit_and_follow(messages, submission, report)
    except RefusedByFullNode as error:
        report.refused(error)
        return NOT_THAT_OUTCOME
    finally:
        await messages.close()


async def _submit_and_follow(
    messages: ExternalMessages, submission: SubmitRequest, report: ProgressReport
) -> int:
    taken = await messages.submit(submission.content, submission.timeout_s)
    report.taken(taken.message_id, is_new=taken.is_new)
    if submission.awaited is None:
        return DONE
    found: MessageVerdict | None = None
    try:
        async with (
            asyncio.timeout(submission.timeout_s),
            aclosing(messages.follow(taken.message_id)) as progresses,
        ):
            async for progress in progresses:
                report.progress(progress)
                found = MessageVerdict(
                    taken.message_id.hex(), submission.awaited, progress.verdict, progress.as_of_ms
                )
                if found.has_ended:
                    proof = await messages.proof(taken.message_id, submission.timeout_s)
                    found = msgspec.structs.replace(found, proof=proof)
                    break
                if found.is_reached:
                    break
    except TimeoutError:
        if found is None:
            raise ProtocolTimeout(
                f"the full node took the message, and said nothing more within {format_duration(submission.timeout_s)}",
                advice="check that it runs",
                message_id=taken.message_id,
            ) from None
    assert found is not None, "there was an answer at least"
    return report.end(await messages.with_names(found))


class ProgressReport:
    """Printer of the stages of one message: each stage once, when the message reaches it."""

    def __init__(self, submission: SubmitRequest) -> None:
        self._as_json = submission.as_json
        self._timeout_s = submission.timeout_s
        self._data = submission.data
        self._message_id = b""
        self._began_ms = int(time.time() * 1_000)
        self._is_new = True
        self._told: set[str] = set()
        self._receipts: list[Receipt] = []

    def taken(self, message_id: bytes, *, is_new: bool) -> None:
        self._message_id = message_id
        self._is_new = is_new
        if self._as_json:
            self._print({"stage": "taken", "is_new": is_new, "timestamp_ms": int(time.time() * 1_000)})
        else:
            how = "by the full node" if is_new else "by the full node before; nothing happens twice"
            self._line("taken", how)

    def refused(self, error: StagepostError) -> None:
        if self._as_json:
            identifier = None if error.message_id is None else error.message_id.hex()
            facts = {
                "message_id": identifier,
                "stage": "refused",
                "text": error.text,
                "code": str(error.code),
            }
            click.echo(json.dumps(facts | {"advice": error.advice}))
            return
        shown = "" if error.message_id is None else f" {abbreviated(error.message_id)}"
        _show_fault(f"refused{shown}: {error.text}", error.advice, error.code)

    def progress(self, progress: StatusUpdate) -> None:
        self._receipts += _receipts(progress.records)
        row = progress.verdict
        if row is None:
            return
        reached: list[tuple[int, int, str]] = []
        for order, stage in enumerate(_STAGES):
            at_ms: int | None = getattr(row, f"{stage}_ms")
            if at_ms is not None and stage not in self._told:
                reached.append((at_ms, order, stage))
        # A full node reports its sending when it is done with it; the first validators may have answered by then.
        for at_ms, _, stage in sorted(reached):
            self._told.add(stage)
            self._stage(stage, at_ms, row)

    def end(self, found: MessageVerdict) -> int:
        row = found.row
        if self._as_json:
            facts = {} if row is None else msgspec.to_builtins(row)
            waited = {"stage": "end", "awaited": found.awaited.value, "is_reached": found.is_reached}
            known = {"has_ended": found.has_ended, "end": end_words(row)}
            self._print(
                {**waited, **known, **facts, "missing": list(found.missing), "as_of_ms": found.as_of_ms}
            )
        elif not found.is_reached:
            self._not_reached(found)
        elif found.has_ended:
            self._line("proved", f"{end_words(row)}   {self._prove_command(found)} writes the proof")
        if found.is_reached:
            return DONE
        is_open = found.awaited is Awaited.FINAL and not found.has_ended
        return NOT_KNOWN_YET if is_open else NOT_THAT_OUTCOME

    def _stage(self, stage: str, at_ms: int, row: Verdict) -> None:
        began_ms = self._began_ms if self._is_new else min(self._times(row))
        after_ms = at_ms - began_ms
        if self._as_json:
            self._print({"stage": stage, "timestamp_ms": at_ms, "after_ms": after_ms})
            return
        after = f"after {format_duration(max(0, after_ms) / 1_000)}"
        match stage:
            case "sent":
                sent = next(
                    (one.status for one in self._receipts if isinstance(one.status, SentToValidators)), None
                )
                to = "" if sent is None else f"to {sent.sent_to} of {sent.total_validators} validators "
                self._line(stage, f"{to}{after}")
            case "queued":
                self._line(stage, f"by the first validator {after}")
            case "included":
                self._line(stage, f"{after} (optimistic)")
            case _:
                self._line(stage, "   ".join(filter(None, [after, self._block()])))

    def _block(self) -> str:
        """Return the block of the receipt that is nearest to finality, for people."""
        named = [one.status for one in self._receipts if isinstance(one.status, Accepted)]
        if not named:
            return ""
        best = max(named, key=lambda status: status.level)
        block = block_of(best)
        parts = [f"shard {block.workchain}:{block.shard:016x}"] if block.is_named else []
        parts += [f"master block {best.master_id.seqno}"] if best.master_id.is_named else []
        return " · ".join(parts)

    def _times(self, row: Verdict) -> list[int]:
        times = [getattr(row, f"{stage}_ms") for stage in _STAGES]
        return [at_ms for at_ms in times if at_ms is not None] or [self._began_ms]

    def _not_reached(self, found: MessageVerdict) -> None:
        row, shown = found.row, abbreviated(self._message_id)
        if found.has_ended and row is not None:
            reasons = sorted({one.status.error for one in self._receipts if isinstance(one.status, Rejected)})
            why = f": {'; '.join(filter(None, reasons))}" if any(reasons) else ""
            words = verdict_words(row)
            text = f"{words.split()[0].lower():<8} {shown}: {end_words(row)}{why}"
            advice = f"{self._prove_command(found)} writes the proof"
            _show_fault(text, advice, _CODES.get(row.verdict, ErrorCode.PROTOCOL_REQUEST))
            return
        silent = silent_words(row, found.missing)
        if found.awaited is Awaited.FINAL:
            claims = "no validator has said anything" if row is None else verdict_words(row).lower()
            _show_fault(
                f"waiting  {shown}: not known yet; claimed so far: {claims}"
                + (f"; {silent}" if silent else ""),
                "do not send it again under another id; ask later with "
                f"`stagepost trace {found.message_id} --data {quote(str(self._data))}`",
                ErrorCode.PROTOCOL_TIMEOUT,
            )
            return
        text = f"waiting  {shown}: not {found.awaited.value} within {format_duration(self._timeout_s)}; "
        text += verdict_words(row).lower() if row is not None else "no validator has said anything"
        _show_fault(
            text + (f"; {silent}" if silent else ""),
            f"it may still come: {self._trace_command(found)} --follow",
            ErrorCode.PROTOCOL_TIMEOUT,
        )

    def _prove_command(self, found: MessageVerdict) -> str:
        return f"stagepost prove {found.message_id} --data {quote(str(self._data))}"

    def _trace_command(self, found: MessageVerdict) -> str:
        return f"stagepost trace {found.message_id[:16]} --data {quote(str(self._data))}"

    def _line(self, stage: str, text: str) -> None:
        click.echo(f"{stage:<9} {abbreviated(self._message_id)}   {text}")

    def _print(self, facts: dict[str, Any]) -> None:
        click.echo(json.dumps({"message_id": self._message_id.hex(), **facts}, ensure_ascii=False))


def _receipts(records: tuple[StatusRecord, ...]) -> list[Receipt]:
    read = (read_record(record) for record in records)
    return [one for one in read if not isinstance(one, Quarantined)]


def _show_fault(text: str, advice: str, code: ErrorCode) -> None:
    # A contract or a validator had a say in this text, which must not steer the terminal.
    click.echo(printable(text), err=True)
    if advice:
        click.echo(f"  {advice}", err=True)
    click.echo(str(code), err=True)


# Messages of the embedded chain


def sum_message(to: str, number: int, life_s: float, context: click.Context) -> bytes:
    """Return a message of the embedded chain that adds the primes up to `number` to the account `to`, and expires
    after `life_s`; never, if that is infinite.

    The account is named by its address or by any word. A later call makes another message, with another expiry, which
    the account takes too.
    """
    from stagepost.chain.contracts import PRIMES_UP_TO_MAX, primes_body
    from stagepost.chain.message_values import NEVER
    from stagepost.chain.messages import CanonicalMessage

    if not 2 <= number <= PRIMES_UP_TO_MAX:
        raise click.UsageError(f"--number is 2 to {PRIMES_UP_TO_MAX}", context)
    expires_at_s = NEVER if isinf(life_s) else ceil(time.time() + life_s)
    return CanonicalMessage(account_named(to), primes_body(number), expires_at_s).encode()


def account_named(to: str) -> bytes:
    from hashlib import sha256

    from stagepost.chain.contracts import ContractKind

    if len(to) == 64:
        try:
            return bytes.fromhex(to)
        except ValueError:
            pass
    return sha256(to.encode()).digest()[:31] + bytes([ContractKind.SUM_OF_PRIMES])
