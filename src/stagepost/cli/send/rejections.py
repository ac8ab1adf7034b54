"""What a node's refusal means and what to do about it, for people."""

from __future__ import annotations

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Reason, Rejected
from stagepost.errors import ErrorCode
from stagepost.ground.files.durations import format_duration

_ADVICE = {
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
        return _ADVICE.get(outcome.code, _ELSEWHERE)
    return _ADVICE[ErrorCode.MSG_TOO_FREQUENT] if outcome.is_transient else _ELSEWHERE


def code_text(outcome: Rejected) -> str:
    """Our code; the protocol's own word where the node gave none."""
    return str(outcome.code) if outcome.code is not None else str(outcome.reason)
