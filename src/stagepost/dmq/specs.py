"""All mini-protocols that we speak, and how an instance of one is put together for a profile."""

from __future__ import annotations

from functools import cache

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.cardano import state_query
from stagepost.dmq.message import NETWORK_SIZES, USUAL_SHAPE, MessageSizes
from stagepost.dmq.message_field import MessageField
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.submission import Flavour
from stagepost.ground.net import handshake as handshake_protocol
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.statemachine.spec import ProtocolSpec, messages_by_state
from stagepost.ground.wire.codec import Codec, CodecTable, Dialect

ALL_SPECS: tuple[ProtocolSpec, ...] = (
    handshake_protocol.HANDSHAKE,
    keep_alive.KEEP_ALIVE,
    peer_sharing.PEER_SHARING,
    submission.SUBMISSION_V1,
    submission.SUBMISSION_V2,
    submission.SEED_SUBMISSION,
    local_submission.LOCAL_SUBMISSION,
    local_submission.SEED_LOCAL_SUBMISSION,
    local_notification.LOCAL_NOTIFICATION,
    local_notification.SEED_LOCAL_NOTIFICATION,
    state_query.LOCAL_STATE_QUERY,
)


_CARRY_MESSAGES = (
    MiniProtocol.MESSAGE_SUBMISSION,
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION,
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION,
)


def spec_for(profile: Profile, protocol: MiniProtocol, submission_version: int = 1) -> ProtocolSpec:
    """Return the state graph of `protocol` in `profile`. The documents know one version of submission only."""
    match protocol:
        case MiniProtocol.HANDSHAKE:
            return handshake_protocol.HANDSHAKE
        case MiniProtocol.KEEP_ALIVE:
            return keep_alive.KEEP_ALIVE
        case MiniProtocol.PEER_SHARING:
            return peer_sharing.PEER_SHARING
        case MiniProtocol.MESSAGE_SUBMISSION if profile.follows_documents:
            return submission.SEED_SUBMISSION
        case MiniProtocol.MESSAGE_SUBMISSION:
            return submission.SUBMISSION_V2 if submission_version == 2 else submission.SUBMISSION_V1
        case MiniProtocol.LOCAL_MESSAGE_SUBMISSION if profile.follows_documents:
            return local_submission.SEED_LOCAL_SUBMISSION
        case MiniProtocol.LOCAL_MESSAGE_SUBMISSION:
            return local_submission.LOCAL_SUBMISSION
        case MiniProtocol.LOCAL_MESSAGE_NOTIFICATION if profile.follows_documents:
            return local_notification.SEED_LOCAL_NOTIFICATION
        case MiniProtocol.LOCAL_MESSAGE_NOTIFICATION:
            return local_notification.LOCAL_NOTIFICATION


def codec_for(
    profile: Profile,
    protocol: MiniProtocol,
    submission_version: int = 1,
    *,
    sizes: MessageSizes | None = NETWORK_SIZES,
) -> Codec:
    """Return a fresh codec for one instance, which speaks the profile's dialect until the peer shows another."""
    version = 1 if profile.follows_documents else submission_version
    table = _table(profile, protocol, version, MessageField(profile.message_layouts, sizes))
    if protocol is not MiniProtocol.MESSAGE_SUBMISSION:
        return Codec(table, table.dialects[0].name)
    # The second version begins in dmq-node's flavour in every profile: peers disagree on it more than on the
    # first.
    return Codec(table, Flavour.HASKELL.value if version == 2 else profile.flavour.value)


@cache
def _table(profile: Profile, protocol: MiniProtocol, version: int, field: MessageField) -> CodecTable:
    spec = spec_for(profile, protocol, version)
    is_notification = protocol is MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
    return CodecTable(
        spec.name,
        messages_by_state(spec),
        _dialects(profile, protocol, version, field),
        any_type=protocol is MiniProtocol.HANDSHAKE,
        headless_third={"BusyBlocking": local_notification.HEADLESS_BLOCKING_REPLY}
        if is_notification
        else None,
        known_shape=USUAL_SHAPE if protocol in _CARRY_MESSAGES else None,
        shares_messages=is_notification,
    )


def _dialects(profile: Profile, protocol: MiniProtocol, version: int, field: MessageField) -> list[Dialect]:
    match protocol:
        case MiniProtocol.HANDSHAKE:
            return [handshake_protocol.DIALECT]
        case MiniProtocol.KEEP_ALIVE:
            return [keep_alive.DIALECT]
        case MiniProtocol.PEER_SHARING:
            return [peer_sharing.DIALECT]
        case MiniProtocol.MESSAGE_SUBMISSION:
            return [submission.dialect(version, flavour, field) for flavour in Flavour]
        case MiniProtocol.LOCAL_MESSAGE_SUBMISSION:
            return [local_submission.dialect(field)]
        case MiniProtocol.LOCAL_MESSAGE_NOTIFICATION:
            return [local_notification.dialect(profile.list_form, field)]
