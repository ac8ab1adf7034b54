"""The fields of protocol messages in two forms: short for a line on a screen, whole for JSON. Never a body."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.inspection.connection import version_data
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.peer_sharing import PeerAddress, SharePeers
from stagepost.ground.identifiers import abbreviated
from stagepost.ground.net import handshake

SHOWN_MAX = 3
TEXT_CHARACTERS_MAX = 72


def whole(value: object) -> Any:
    """`value` as JSON can hold it, ids in full."""
    match value:
        case bytes():
            return value.hex()
        case DmqMessage():
            return {"message_id": value.message_id.hex(), "size_in_bytes": len(value.raw)}
        case handshake.OfferedVersion(number, parameters):
            data = version_data(value)
            known = {} if data is None else whole(data)
            return {"version": number, "parameters": parameters.hex(), **known}
        case tuple():
            return [whole(each) for each in value]
        case msgspec.Struct():
            fields = {name: whole(getattr(value, name)) for name in value.__struct_fields__}
            if isinstance(value, handshake.Refuse | local_submission.RejectMessage):
                fields["reason"]["name"] = type(value.reason).__name__
            return fields
        case _:
            return value


def short(message: object) -> str:
    """Return one phrase on the content of `message`."""
    match message:
        case (
            handshake.ProposeVersions(versions)
            | handshake.ReplyVersions(versions)
            | handshake.QueryReply(versions)
        ):
            numbers = _several([str(offered.number) for offered in versions], "versions")
            return _joined(numbers, *dict.fromkeys(filter(None, map(_terms, versions))))
        case handshake.AcceptVersion(version, parameters):
            return _joined(f"version {version}", _terms(handshake.OfferedVersion(version, parameters)))
        case handshake.Refuse(reason) | local_submission.RejectMessage(reason):
            return _reason(reason)
        case submission.RequestMessageIds(blocking, acknowledged, requested):
            kind = "blocking" if blocking else "non-blocking"
            return _joined(kind, f"acknowledges {acknowledged}", f"requests {requested}")
        case submission.ReplyMessageIds(ids):
            return _several([f"{abbreviated(each.message_id)} {each.size_in_bytes} B" for each in ids], "ids")
        case submission.RequestMessages(ids):
            return _several([abbreviated(each) for each in ids], "ids")
        case submission.ReplyMessages(messages) | local_notification.ReplyMessagesBlocking(messages):
            return _count(len(messages), "messages")
        case local_notification.ReplyMessagesNonBlocking(messages, has_more):
            return _joined(_count(len(messages), "messages"), "more to come" if has_more else "no more")
        case local_notification.RequestMessages(blocking):
            return "blocking" if blocking else "non-blocking"
        case SharePeers(peers):
            return _several([_address(peer) for peer in peers], "peers")
        case local_submission.SubmitMessage():
            return _count(1, "messages")
        case msgspec.Struct():
            return _joined(*(f"{name} {getattr(message, name)}" for name in message.__struct_fields__))
        case _:
            return ""


def _terms(offered: handshake.OfferedVersion) -> str:
    data = version_data(offered)
    if data is None:
        return ""
    flags = [
        name.replace("_", " ") for name in ("initiator_only", "peer_sharing", "query") if getattr(data, name)
    ]
    return _joined(f"magic {data.network_magic}", *flags)


def _reason(reason: object) -> str:
    match reason:
        case handshake.VersionMismatch(versions):
            return _joined("VersionMismatch", _several(list(map(str, versions)), "versions"))
        case handshake.HandshakeDecodeError(version, text) | handshake.Refused(version, text):
            return _joined(type(reason).__name__, f"version {version}", _quoted(text))
        case local_submission.Invalid(text) | local_submission.Other(text):
            return _joined(type(reason).__name__, _quoted(text))
        case _:
            return type(reason).__name__


def _quoted(text: str) -> str:
    """A peer chose these words: nothing in them may act on the terminal."""
    cut = text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"
    return repr(cut)


def _address(peer: PeerAddress) -> str:
    return f"[{peer.host}]:{peer.port}" if ":" in peer.host else f"{peer.host}:{peer.port}"


def _several(items: list[str], noun: str) -> str:
    count = _count(len(items), noun)
    if not items:
        return count
    more = ", …" if len(items) > SHOWN_MAX else ""
    return f"{count}: {', '.join(items[:SHOWN_MAX])}{more}"


def _count(number: int, plural: str) -> str:
    return f"{number or 'no'} {plural.removesuffix('s') if number == 1 else plural}"


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
