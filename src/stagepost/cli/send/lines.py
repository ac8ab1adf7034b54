"""Result of a delivery, as lines for people or JSON for programs, with the exit status for it.

Explanations of a node's refusal, with advice.
"""

from __future__ import annotations

import json
from typing import Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME, UNREACHABLE, USAGE
from stagepost.delivery.errors import (
    DeliveryError,
    ErrAckDisabled,
    ErrAckTimeout,
    ErrConfig,
    ErrKeyConflict,
    ErrNacked,
    ErrNoConnectedPeers,
    ErrNoCriticalPeers,
    ErrQueueLocked,
    ErrRejected,
    ErrReservedTopic,
    ErrSendFailed,
    ErrStorage,
)
from stagepost.delivery.status import DeliveryResult, NackReason
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Reason, Rejected
from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.files.durations import format_duration

_ADVICE: tuple[tuple[type[DeliveryError], str], ...] = (
    (
        ErrNoConnectedPeers,
        "`stagepost check` says whether the node runs, `stagepost peers` whom it is connected with; "
        "--tier queued keeps the message until somebody is there",
    ),
    (ErrAckTimeout, "look whether the critical peers run and listen to this topic; they may still have it"),
    (ErrNacked, "the critical peers refused it; ask their operators, the reasons are above"),
    (
        ErrQueueLocked,
        "another program publishes from this outbox; hand the message to it, or use another --outbox",
    ),
    (
        ErrRejected,
        "the node will not take this message; `stagepost keys show` tells what the keys are good for",
    ),
    (ErrSendFailed, "look at the node's log, then send again; --tier queued would keep trying"),
)


def advice_for(error: DeliveryError) -> str:
    """In the words of the command line; the library's own speak of calls."""
    return next((advice for kind, advice in _ADVICE if isinstance(error, kind)), error.advice)


def exit_status(error: DeliveryError) -> int:
    """1: it was tried, and not that outcome; 2: the command was wrong; 3: nobody could be reached, or no disk."""
    if isinstance(error, ErrNoConnectedPeers | ErrStorage):
        return UNREACHABLE
    mistakes = ErrConfig | ErrAckDisabled | ErrNoCriticalPeers | ErrReservedTopic | ErrKeyConflict
    return USAGE if isinstance(error, mistakes) else NOT_THAT_OUTCOME


def show_failure(error: DeliveryError, shown_id: str | None, cause: StagepostError | None = None) -> None:
    """Print one sentence, advice and the code on stderr. `cause` says it better than the error, if given."""
    begin = f"failed   {shown_id}: " if shown_id else ""
    click.echo(f"{begin}{_short(error) if cause is None else cause.text}", err=True)
    if isinstance(error.result, DeliveryResult):
        for line in partial_lines(error.result, with_silent=isinstance(error, ErrAckTimeout)):
            click.echo(f"  {line}", err=True)
    advice = advice_for(error) if cause is None else cause.advice
    if advice:
        click.echo(f"  {advice}", err=True)
    click.echo(str(error.code if cause is None else cause.code), err=True)


def _short(error: DeliveryError) -> str:
    """Return the error text without peers: lines of their own name those who refused and those who are silent."""
    text = error.text.partition("; no acknowledgement from ")[0]
    return text.partition(" refused: ")[0] + " refused" if isinstance(error, ErrNacked) else text


def partial_lines(outcome: DeliveryResult, *, with_silent: bool) -> list[str]:
    """Return a line for each answer so far. Silent peers are left out where nobody waited for them to the end."""
    lines = []
    if outcome.acked_by:
        lines.append(f"acknowledged by {', '.join(map(peer_text, outcome.acked_by))}")
    lines += [
        f"refused by {peer_text(peer)}: {reason_text(reason)}" for peer, reason in outcome.nacked_by.items()
    ]
    silent = [peer for peer in outcome.missing if peer not in outcome.nacked_by]
    if silent and with_silent:
        lines.append(f"no answer from {', '.join(map(peer_text, silent))}")
    return lines


def reason_text(reason: NackReason | int) -> str:
    return reason.name.lower().replace("_", " ") if isinstance(reason, NackReason) else f"reason {reason}"


def peer_text(peer: str) -> str:
    """Return a pool id as screens show it: the bech32 form, shortened."""
    try:
        name = format_pool_id(bytes.fromhex(peer))
    except ValueError:
        return peer
    return f"{name[:10]}…{name[-4:]}"


def shortened(message_id: str) -> str:
    return f"{message_id[:8]}…{message_id[-6:]}" if len(message_id) > 14 else message_id


def acked_line(outcome: DeliveryResult, after_s: float, critical: int, required: int) -> str:
    by = ", ".join(map(peer_text, outcome.acked_by))
    goal = "any" if required == 1 else "all" if required == critical else str(required)
    if critical == 1:
        goal_text = "the only critical peer"
    else:
        goal_text = (
            f"{goal} of {critical} critical peers" if goal != "all" else f"all {critical} critical peers"
        )
    return f"by {by} after {format_duration(after_s)} ({goal_text})"


def status_line(status: str, message_id: str, text: str = "") -> str:
    return f"{status.lower():<8} {shortened(message_id)}   {text}".rstrip()


def result_facts(outcome: DeliveryResult) -> dict[str, Any]:
    """For `--json`: whole ids, times in Unix milliseconds."""
    return {
        "acked_by": list(outcome.acked_by),
        "missing": list(outcome.missing),
        "nacked_by": {
            peer: reason_text(reason).replace(" ", "_") for peer, reason in outcome.nacked_by.items()
        },
        "attempts": outcome.attempts,
    }


def error_facts(error: BaseException | None) -> dict[str, Any]:
    if not isinstance(error, DeliveryError):
        return {"error": None, "text": None, "code": None}
    return {"error": type(error).__name__, "text": error.text, "code": str(error.code)}


def print_json(facts: dict[str, Any]) -> None:
    click.echo(json.dumps(facts))


_rejections_ADVICE = {
    ErrorCode.MSG_BODY_SIZE: "send 90 to 2 000 bytes; without --raw short texts are padded",
    ErrorCode.MSG_BAD_ID: "the node reads another message than was signed: check --profile on both sides",
    ErrorCode.MSG_EXPIRED: "give a longer --ttl; this machine's clock may also be behind",
    ErrorCode.MSG_EXPIRY_TOO_FAR: "set --ttl to 29m or less; this machine's clock may also be ahead",
    ErrorCode.MSG_DUPLICATE: "nothing is left to do: the node has it",
    ErrorCode.MSG_TOO_FREQUENT: "wait and send again; a pool may send only so often",
    ErrorCode.POOL_UNKNOWN: "add the pool of --keys to the node's pools file, or use keys of a pool that is in it",
    ErrorCode.POOL_NOT_ELIGIBLE: "the pool of --keys needs stake in the node's pools file",
    ErrorCode.NOT_READY: "the node is still starting: send again in a moment",
    ErrorCode.OPCERT_SIGNATURE: "issue a new operational certificate with the pool's cold key",
    ErrorCode.OPCERT_COUNTER: "issue a new operational certificate with a higher number",
    ErrorCode.KES_PERIOD: "renew the operational certificate; `stagepost keys show` tells the periods left",
    ErrorCode.KES_SIGNATURE: "check that KES key and certificate in --keys belong together: `stagepost keys show`",
    ErrorCode.QUEUE_FULL: "the node is full: send again when older messages have expired",
    ErrorCode.STORAGE_UNAVAILABLE: "the node cannot write: look at its disk, then send again",
}
_ELSEWHERE = "the node gave no reason that we know; its log may say more"


def sentence(message: DmqMessage, outcome: Rejected, now: float) -> str:
    """Why, without the code."""
    match outcome.reason:
        case Reason.ALREADY_RECEIVED:
            return "the node holds this message already"
        case Reason.EXPIRED:
            left_s = message.expires_at - now
            if left_s < 0:
                return f"expired {format_duration(-left_s)} ago"
            return f"the node says that it has expired; by this machine's clock {format_duration(left_s)} are left"
    text = outcome.text if outcome.code is None else outcome.text.removeprefix(f"{outcome.code}: ")
    return text or f"the node says: {outcome.reason}"


def advice(outcome: Rejected) -> str:
    if outcome.code is not None:
        return _rejections_ADVICE.get(outcome.code, _ELSEWHERE)
    return _rejections_ADVICE[ErrorCode.MSG_TOO_FREQUENT] if outcome.is_transient else _ELSEWHERE


def code_text(outcome: Rejected) -> str:
    """Our code; the protocol's own word where the node gave none."""
    return str(outcome.code) if outcome.code is not None else str(outcome.reason)
